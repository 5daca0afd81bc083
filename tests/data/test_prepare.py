"""A user's table: what becomes of good cells, and the answer to each kind of bad one."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from tacit.data import ColumnConfig, DataConfig, PartitionConfig, load_federation, load_party
from tacit.data.federation import Federation
from tacit.data.prepare import missing_cells
from tacit.data.schema.schema import Schema
from tacit.errors import ConfigError, DataError
from tacit.party.datasets import identify_parties
from tacit.privacy.ledger.ledger import Ledger


def test_declared_schema_makes_the_columns(load_table):
    federation = load_table(keep=("colour", "age"))
    records = federation.parties["party-1"]
    order = np.argsort(records["age"])
    assert federation.names == ("intercept", "age", "colour=red", "colour=blue")
    assert federation.output == "bernoulli"
    assert federation.test is None
    assert federation.notes == ()
    expected = [[1, -1, 1, 0], [1, 0, 0, 1], [1, 1, 1, 0], [1, 2, 1, 0]]
    assert np.array_equal(records["x"][order], expected)
    assert np.array_equal(records["y"][order], [1, 0, 1, 0])
    assert np.array_equal(records["colour"][order], [0, 1, 0, 0])
    assert np.array_equal(records["age"][order], [40, 50, 60, 70])
    assert records["x"].dtype == records["y"].dtype == np.float64


def test_missing_codes_are_equal_as_numbers_and_names_with_zeros_differ():
    cells = pl.Series(["999.0", "0999", "9.99e2", "a", None])
    assert missing_cells(cells, ["999", "a"]).to_list() == [True, False, True, True, False]
    assert missing_cells(cells, ["999"], numeric=True).to_list() == [True, True, True, False, False]
    assert missing_cells(pl.Series([0.1, 9.9], dtype=pl.Float32), ["9.90"])[1]
    assert missing_cells(pl.Series([float("nan"), 1.0]), ["nan"]).to_list() == [True, False]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            {"colour": ["red", "blue", "green", "red"]},
            '"colour", data row 3: "green" is not a declared level; the levels are red, blue',
        ),
        ({"age": ["40", "old", "60", "70"]}, 'column "age", data row 2: "old" is not a number'),
        ({"age": ["40", "50", "NaN", "70"]}, 'column "age", data row 3: the value is nan'),
        ({"age": ["40", "50", "60", "inf"]}, 'column "age", data row 4: the value is inf'),
        ({"age": ["40", "", "60", "70"]}, 'column "age", data row 2: the value is missing'),
        (
            {"colour": ["", "red", "red", "red"]},
            'column "colour", data row 1: the value is missing',
        ),
        ({"ill": ["yes", "", "no", "no"]}, 'column "ill", data row 2: the value is missing'),
        ({"ill": ["yes"] * 4}, 'column "ill": all 4 training records have y = 1'),
        ({"ill": ["Y", "N", "Y", "N"]}, 'positive = "yes" does not occur in column "ill"'),
        ({"ill": ["yes", "no", "maybe", "no"]}, 'column "ill" has 3 values'),
    ],
)
def test_bad_cell_is_named_in_one_line(load_table, cells, message):
    with pytest.raises(DataError) as caught:
        load_table(cells)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_outside_bounds_are_clipped_and_counted_or_refused(load_table):
    cells = {"age": ["-5", "50", "60", "130"]}
    clipped = load_table(cells)
    assert clipped.notes == ('column "age": values clipped to [0, 100]: 2',)
    assert sorted(clipped.parties["party-1"]["x"][:, 1]) == [-5, 0, 1, 5]
    strict = ColumnConfig(name="age", low=0, high=100, outside="refuse")
    with pytest.raises(DataError, match=r'"age", data row 1: -5 is outside \[0, 100\]'):
        load_table(cells, strict)


def test_missing_number_becomes_its_centre_and_an_indicator(load_table):
    column = ColumnConfig(
        name="age", center=50, scale=10, missing="indicator", missing_values=("?", "0")
    )
    federation = load_table({"age": ["40", "?", "", "0.0"]}, column, keep=("age",))
    records = federation.parties["party-1"]
    assert federation.names[1:3] == ("age", "age missing")
    assert sorted(map(tuple, records["x"][:, 1:3])) == [(-1, 0), (0, 1), (0, 1), (0, 1)]
    assert sorted(records["age"]) == [40, 50, 50, 50]


def test_missing_category_becomes_its_own_level(load_table):
    column = ColumnConfig(
        name="colour",
        kind="categorical",
        levels=("red", "blue"),
        missing="level",
        missing_values=("?",),
    )
    federation = load_table({"colour": ["red", "?", "", "blue"]}, column, keep=("colour",))
    records = federation.parties["party-1"]
    assert federation.names[2:] == ("colour=red", "colour=blue", "colour missing")
    assert np.array_equal(records["x"][:, 2:].sum(axis=0), [1, 1, 2])
    assert np.array_equal(np.argmax(records["x"][:, 2:], axis=1), records["colour"])


def test_schema_alone_decides_the_columns(load_table):
    """A party without a gap has the same columns as one with gaps."""
    column = ColumnConfig(name="age", low=0, high=100, missing="indicator")
    assert load_table(None, column).names == load_table({"age": [""] * 4}, column).names


def test_dropped_rows_are_counted_by_column(load_table):
    age = ColumnConfig(name="age", low=0, high=100, missing="drop")
    ill = ColumnConfig(name="ill", kind="categorical", levels=("no", "yes"), missing="drop")
    federation = load_table(
        {"age": ["", "50", "60", "70"], "ill": ["yes", "no", "yes", ""]}, age, ill
    )
    assert len(federation.parties["party-1"]["y"]) == 2
    assert federation.notes == (
        'column "ill": rows dropped because of missing values: 1',
        'column "age": rows dropped because of missing values: 1',
    )
    with pytest.raises(DataError, match="no rows are left"):
        load_table({"age": [""] * 4}, age)


def test_column_out_of_x_is_neither_read_nor_used_until_kept(load_table):
    ward = ColumnConfig(name="ward", kind="categorical", levels=("A",), feature=False)
    cells = {"ward": ["A", "A", "A", "Z"]}
    assert load_table(cells, ward).names == load_table().names
    with pytest.raises(DataError, match='"Z" is not a declared level'):
        load_table(cells, ward, keep=("ward",))


def test_absent_columns_are_named_with_those_there(load_table):
    with pytest.raises(DataError, match=r'column "bmi" is not in the data.*age, colour, ill'):
        load_table(None, ColumnConfig(name="bmi", low=0, high=1))
    with pytest.raises(DataError, match=r'column "dead" is not in the data'):
        load_table(outcome="dead")
    with pytest.raises(DataError, match=r'"ward" is not in the data, but data\.party names it'):
        load_table(party="ward")
    with pytest.raises(DataError, match=r'"color" is not in the data.*; did you mean "colour"'):
        load_table(party="color")


def test_partition_by_any_column_of_the_file(load_table):
    federation = load_table({"ward": ["B", "A", "B", "B"]}, party="ward")
    assert {name: len(r["y"]) for name, r in federation.parties.items()} == {"A": 1, "B": 3}
    with pytest.raises(DataError, match='column "ward", data row 2: the value is missing'):
        load_table({"ward": ["B", "", "B", "B"]}, party="ward")
    ward = ColumnConfig(name="ward", kind="categorical", levels=("B", "A", "C"), feature=False)
    with pytest.raises(DataError, match=r'party "C".*has no records'):
        load_table({"ward": ["B", "A", "B", "B"]}, ward, party="ward")


def test_more_parties_than_records_is_refused(load_table):
    with pytest.raises(ConfigError, match=r"partition\.parties = 5; there are only 4"):
        load_table(partition=PartitionConfig(parties=5))


def test_numeric_target_keeps_its_unit_unless_told(load_table):
    cells = {"ill": ["1.5", "2", "3", "4"]}
    plain = load_table(cells, positive=None)
    assert plain.output == "gaussian"
    assert sorted(plain.parties["party-1"]["y"]) == [1.5, 2, 3, 4]
    declared = ColumnConfig(name="ill", low=2, high=4, center=2, scale=2)
    scaled = load_table(cells, declared, positive=None, scaling="pooled")
    assert sorted(scaled.parties["party-1"]["y"]) == [0, 0, 0.5, 1]
    assert any('"ill": values clipped' in note for note in scaled.notes)


def test_pooled_preparation_is_written_down(load_table):
    undeclared = (ColumnConfig(name="age"), ColumnConfig(name="colour", kind="categorical"))
    federation = load_table(None, *undeclared, scaling="pooled")
    x = federation.parties["party-1"]["x"]
    assert federation.scaling == "pooled"
    assert federation.names == ("intercept", "age", "colour=blue", "colour=red")
    assert x[:, 1].mean() == pytest.approx(0, abs=1e-12)
    assert x[:, 1].std() == pytest.approx(1)
    text = " | ".join(federation.notes)
    assert "no privacy guarantee covers" in text
    assert 'column "age": centre 55 and scale 11.1803 are pooled statistics' in text
    assert 'column "colour": its 2 levels come from pooled data' in text


def test_pooled_statistics_come_from_training_rows_only():
    data = DataConfig(source="breast-cancer", held_out=0.5, scaling="pooled")
    federation = load_federation(data, PartitionConfig(parties=3), seed=0)
    train = np.vstack([records["x"] for records in federation.parties.values()])
    assert federation.test is not None
    assert np.allclose(train[:, 1:].mean(axis=0), 0)
    assert not np.allclose(federation.test["x"][:, 1:].mean(axis=0), 0, atol=1e-3)


def test_parquet_types_are_read_as_their_text(tmp_path: Path):
    path = tmp_path / "table.parquet"
    pl.DataFrame(
        {
            "dose": [1.0, None, float("nan"), 4.0],
            "grade": [1.0, 1.5, 1.0, 1.5],
            "unmeasured": [None] * 4,
            "treated": [True, False, True, False],
            "ill": [1, 0, 0, 1],
        }
    ).write_parquet(path)
    columns = (
        ColumnConfig(name="dose", low=0, high=4, missing="indicator", missing_values=("nan",)),
        ColumnConfig(name="grade", kind="categorical", levels=("1", "1.5")),
        ColumnConfig(name="unmeasured", low=0, high=1, missing="indicator"),
        ColumnConfig(name="treated", kind="categorical", levels=("false", "true")),
    )
    data = DataConfig(
        source="file", path=str(path), columns=columns, outcome="ill", positive="1", held_out=0
    )
    federation = load_party(data, "ward 7")
    assert list(federation.parties) == ["ward 7"]
    expected = [
        [1, -0.5, 0, 1, 0, 0, 1, 0, 1],
        [1, 0, 1, 0, 1, 0, 1, 1, 0],
        [1, 0, 1, 1, 0, 0, 1, 0, 1],
        [1, 1, 0, 0, 1, 0, 1, 1, 0],
    ]
    assert np.array_equal(federation.parties["ward 7"]["x"], expected)
    assert np.array_equal(federation.parties["ward 7"]["y"], [1, 0, 0, 1])


def test_column_of_dates_is_no_number(tmp_path: Path):
    path = tmp_path / "table.parquet"
    pl.DataFrame({"day": ["2020-01-01", "2020-01-02"], "ill": ["a", "b"]}).with_columns(
        pl.col("day").str.to_date()
    ).write_parquet(path)
    columns = (ColumnConfig(name="day", low=0, high=1),)
    data = DataConfig(source="file", path=str(path), columns=columns, outcome="ill", positive="a")
    with pytest.raises(DataError, match='column "day" holds dates or times'):
        load_party(data, "here")


@pytest.mark.parametrize(
    ("name", "separator", "opener"),
    [("t.csv", ";", open), ("t.tsv", ",", open), ("t.csv.gz", ";", gzip.open)],
)
def test_separators_and_compression(tmp_path: Path, name, separator, opener):
    path = tmp_path / name
    between = "\t" if name.endswith("tsv") else separator
    with opener(path, "wt") as out:
        out.write(f"age{between}ill\n 40 {between}yes\n60{between} no\n")
    data = DataConfig(
        source="file",
        path=str(path),
        separator=separator,
        columns=(ColumnConfig(name="age", center=50, scale=10),),
        outcome="ill",
        positive="yes",
        held_out=0,
    )
    records = load_party(data, "here").parties["here"]
    assert np.array_equal(records["x"], [[1, -1], [1, 1]])
    assert np.array_equal(records["y"], [1, 0])


def file_of(path: Path, separator=","):
    return DataConfig(
        source="file",
        path=str(path),
        separator=separator,
        columns=(ColumnConfig(name="age", low=0, high=100),),
        outcome="ill",
        positive="yes",
        held_out=0,
    )


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("between", [";", "\t"])
def test_the_header_shows_the_separator_and_every_door_reads_the_same_records(
    tmp_path: Path, name, between
):
    rows = [("age", "ill", "ward"), ("40.5", "yes", "a"), ("60.25", "no", "b, left")]
    path = tmp_path / name
    with (gzip.open if name.endswith("gz") else open)(path, "wt", encoding="utf-8-sig") as out:
        out.writelines(between.join(row) + "\n" for row in rows)
    found = load_party(file_of(path), "here")
    declared = load_party(file_of(path, between), "here")
    frame = pd.read_csv(path, sep=between)
    schema = Schema(bounds={"age": (0, 100)}, levels={"ill": ["no", "yes"]})
    given = Federation.from_frame({"here": frame}, "ill ~ age", schema=schema)
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        ids = [
            identify_parties(ledger, one, one.parties)["here"].content
            for one in (found, declared, given)
        ]
    assert len(set(ids)) == 1
    np.testing.assert_array_equal(found.parties["here"]["x"], declared.parties["here"]["x"])


@pytest.mark.parametrize(
    ("content", "separator", "message"),
    [
        ("age;ill\tx\n1;2\t3\n", ",", r'one column, named "age;ill\\tx": set data.separator to'),
        ("age,ill\n1,yes\n", ";", r"set data.separator to ',', or save the file with commas"),
        ("age,ill\n64,5,yes\n", ",", r"line 2 has 3 fields and the header 2; .*decimal commas"),
        ("age;ill\n64,5;yes\n7;no\n", ",", r'row 1: "64,5" has a decimal comma; write numbers'),
        ("age;ill\n27,200;yes\n64,5;no\n", ",", r'row 2: "64,5" has a decimal comma; write'),
        ("age;ill\n27,200;yes\n0,250;no\n", ",", r'row 2: "0,250" has a decimal comma; write'),
        ("age;ill\n7;yes\n27,200;no\n", ",", r'row 2: "27,200" may be 27.2 or 27200; .*thousands'),
        ("age;ill\n27,200;yes\n1,234,567;no\n", ",", r'"1,234,567" has commas between thousands'),
        ("age;ill\n1.234,5;yes\n7;no\n", ",", r'"1.234,5" has a .*decimal=",", thousands="."'),
        ("age,ill,age\n1,yes,2\n", ",", r'the file has two columns "age": rename or remove one'),
    ],
)
def test_csv_files_that_cannot_be_read_say_what_was_seen(
    tmp_path: Path, content, separator, message
):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_party(file_of(path, separator), "here")


@pytest.mark.parametrize("encoding", ["latin1", "utf-16"])
@pytest.mark.parametrize("content", ["age,ill,ort\n1,yes,Köln\n", "age,ill,höhe\n1,yes,2\n"])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_file_that_is_not_utf8_is_refused_with_the_conversion(
    tmp_path: Path, name, content, encoding
):
    path = tmp_path / name
    with (gzip.open if name.endswith("gz") else open)(path, "wt", encoding=encoding) as out:
        out.write(content)
    with pytest.raises(DataError, match=f"is not UTF-8: convert it, .*iconv -f {encoding} -t"):
        load_party(file_of(path), "here")


def test_columns_without_a_name_may_repeat(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("age,ill,,\n1,yes,,\n2,no,,\n")
    assert len(load_party(file_of(path), "here").parties["here"]["y"]) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.csv", None, "there is no such file"),
        ("empty.csv", "", "the file cannot be read"),
        ("ragged.csv", "age,ill\n1,2,3\n", "the file cannot be read"),
        ("header.csv", "age,ill\n", "the file has no rows"),
        ("no.parquet", "not parquet", "the file cannot be read"),
    ],
)
def test_unreadable_file_is_named(tmp_path: Path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    data = DataConfig(
        source="file",
        path=str(path),
        columns=(ColumnConfig(name="age", low=0, high=1),),
        outcome="ill",
        positive="yes",
    )
    with pytest.raises(DataError, match=message) as caught:
        load_party(data, "here")
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_party_alone_may_have_one_class_but_nothing_to_pool(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("age,ill\n40,no\n60,no\n")
    ill = ColumnConfig(name="ill", kind="categorical", levels=("no", "yes"))
    keys = {"source": "file", "path": str(path), "outcome": "ill", "positive": "yes"}
    columns = (ColumnConfig(name="age", low=0, high=100), ill)
    federation = load_party(DataConfig(columns=columns, held_out=0, **keys), "here")
    assert not federation.parties["here"]["y"].any()
    with pytest.raises(ConfigError, match="cannot pool"):
        load_party(DataConfig(columns=columns, scaling="pooled", **keys), "here")


def test_reference_level_has_no_column_of_its_own(load_table):
    colour = ColumnConfig(
        name="colour",
        kind="categorical",
        levels=("red", "blue", "green"),
        reference="blue",
        missing="level",
    )
    federation = load_table({"colour": ["red", "blue", "green", ""]}, colour)
    records = federation.parties["party-1"]
    assert federation.names == ("intercept", "age", "colour=red", "colour=green", "colour missing")
    rows = records["x"][np.argsort(records["x"][:, 1])][:, 2:]
    assert np.array_equal(rows, [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]])


def test_reference_must_be_a_level():
    with pytest.raises(ConfigError, match=r'columns\.colour\.reference = "pink"; it must be'):
        ColumnConfig(name="colour", kind="categorical", levels=("red",), reference="pink")
