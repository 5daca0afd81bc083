"""Data frames of every library give the same federation; wrong ones are refused in one line."""

import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tacit
from tacit.data.formula import parse_formula
from tacit.data.frames import raw_frame
from tacit.data.study import federation_from
from tacit.errors import ConfigError, DataError, TacitError
from tacit.run.config import parse_config
from tacit.run.run import prepare

N = 60
RNG = np.random.default_rng(0)
COLUMNS = {
    "age": RNG.integers(20, 90, N),
    "sex": np.where(RNG.random(N) < 0.5, "f", "m"),
    "ward": np.array(["north", "south", "east"])[np.arange(N) % 3],
    "died": (RNG.random(N) < 0.4).astype(int),
}
FRAME = pd.DataFrame(COLUMNS)
SCHEMA = tacit.Schema(
    bounds={"age": (18, 105)}, levels={"sex": ["f", "m"], "died": [0, 1]}, units={"age": "year"}
)
FORMULA = parse_formula("died ~ age + C(sex)")


def federation(data=FRAME, formula=FORMULA, party="ward", schema=SCHEMA, private=True, **more):
    return federation_from(data, formula, party=party, schema=schema, private=private, **more)


def same(one, other):
    assert list(one.parties) == list(other.parties)
    for name, records in one.parties.items():
        for key, values in records.items():
            np.testing.assert_array_equal(values, other.parties[name][key])


@pytest.mark.parametrize(
    "convert",
    [
        lambda frame: frame.set_index(pd.Index(RNG.integers(0, 9, N))),
        lambda frame: frame.convert_dtypes(),
        lambda frame: frame.astype({"sex": "category", "ward": "category"}),
        lambda frame: frame.astype({"sex": object, "age": object}),
        lambda frame: frame.astype({"age": float, "died": bool}),
        lambda frame: frame.assign(age=[decimal.Decimal(int(one)) for one in frame["age"]]),
        lambda frame: frame.assign(age=frame["age"].astype(str), junk=[[1]] * N),
        lambda frame: frame.rename_axis("age"),
        lambda frame: pl.DataFrame(frame.to_dict("list")),
        lambda frame: pl.DataFrame(frame.to_dict("list")).lazy(),
        lambda frame: pl.DataFrame(frame.to_dict("list")).cast({"sex": pl.Enum(["m", "f"])}),
        lambda frame: pa.table(frame.to_dict("list")),
        lambda frame: frame.to_dict("list"),
        lambda frame: {name: frame[name] for name in frame},
        lambda frame: frame.to_records(index=False),
    ],
)  # fmt: skip
def test_every_kind_of_frame_gives_the_same_records(convert):
    same(federation(convert(FRAME.copy())), federation())


def test_parties_of_a_dictionary_keep_their_order(tmp_path):
    parts = {name: FRAME[FRAME["ward"] == name] for name in ("south", "east", "north")}
    found = federation(parts, party=None)
    assert list(found.parties) == ["south", "east", "north"]
    whole = federation()
    for name in parts:
        np.testing.assert_array_equal(found.parties[name]["x"], whole.parties[name]["x"])
    for name, part in parts.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    files = federation(str(tmp_path / "*.csv"), party=None)
    assert list(files.parties) == ["east", "north", "south"]
    same(files, federation([tmp_path / f"{name}.csv" for name in files.parties], party=None))
    same(federation(str(tmp_path / "*.csv")), files)


def test_a_table_without_parties_is_one_party():
    assert list(federation(party=None).parties) == ["records"]


def test_without_privacy_facts_may_come_from_records():
    found = federation(schema=None, private=False)
    assert found.output == "bernoulli"
    assert found.names == ("intercept", "age", "sex=m")
    assert any('column "age": centre' in note for note in found.notes)
    x = np.concatenate([records["x"] for records in found.parties.values()])
    assert x[:, 1].mean() == pytest.approx(0, abs=1e-12)
    # Such a federation is refused by a private fit, whatever was read from its records.
    with pytest.raises(ConfigError, match="public bounds, but these columns have none: age"):
        tacit.fit(tacit.models.LogisticRegression, found, privacy=tacit.Privacy(epsilon=1.0))


def test_a_category_keeps_the_order_of_its_type():
    frame = FRAME.assign(sex=pd.Categorical(FRAME["sex"], categories=["m", "f"]))
    found = federation(frame, schema=None, private=False)
    assert found.names == ("intercept", "age", "sex=f")


def test_the_same_records_have_the_same_identity_however_they_come(tmp_path):
    """A ledger knows them by all their columns, whatever a formula uses."""
    FRAME.to_csv(tmp_path / "all.csv", index=False)
    from_file, from_frame = federation(tmp_path / "all.csv"), federation()
    other = federation(formula=parse_formula("died ~ age"), held_out=0.3, seed=7)
    for same_records in (from_file, other):
        for name, rows in from_frame.source.items():
            assert set(rows) == set(COLUMNS)
            for key, values in rows.items():
                np.testing.assert_array_equal(values, same_records.source[name][key])


def changed(**columns):
    return FRAME.assign(**columns)


def with_cell(name, value, row=4):
    column = FRAME[name].astype(object).copy()
    column[row] = value
    return changed(**{name: column})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (with_cell("age", None), 'column "age", data row 5: the value is missing'),
        (with_cell("age", np.nan), 'column "age", data row 5: the value is missing'),
        (with_cell("age", pd.NA), 'column "age", data row 5: the value is missing'),
        (with_cell("age", "old"), 'column "age", data row 5: "old" is not a number'),
        (with_cell("age", np.inf), 'column "age", data row 5: the value is inf'),
        (with_cell("age", [3]), 'column "age" holds values of type list'),
        (with_cell("sex", "x"), 'column "sex", data row 5: "x" is not a declared level'),
        (with_cell("sex", None), 'column "sex", data row 5: the value is missing'),
        (with_cell("ward", None), 'column "ward", data row 5: the value is missing, so the record'),
        (with_cell("died", 2), 'column "died", data row 5: "2" is not a declared level'),
        (with_cell("died", None), 'column "died", data row 5: the value is missing'),
        (changed(age=datetime.date(2020, 1, 1)), 'column "age" holds dates'),
        (changed(age=pd.Timestamp("2020-01-01")), 'column "age" holds dates'),
        (changed(age=pd.Timedelta("1D")), 'column "age" holds dates'),
        (changed(age=1j), 'column "age" holds values of type complex'),
        (changed(ward=np.arange(N)), 'column "ward" has a different value in each of 60 records'),
        (FRAME.drop(columns="age"), 'no column "age"'),
        (FRAME.rename(columns={"age": "Age"}), 'no column "age"; did you mean "Age"'),
        (FRAME.drop(columns="ward"), 'no column "ward"'),
        (FRAME.iloc[:0], "the table has no records; give at least one"),
        (pd.concat([FRAME, FRAME[["age"]]], axis=1), "all names differ"),
        (FRAME.rename(columns={"age": 7}), "column name 7 is not text"),
        (FRAME.to_numpy(), "without column names"),
        (FRAME["age"], "the records are a Series"),
        (None, "the records are a NoneType"),
        (7, "the records are a int"),
        ([FRAME, FRAME], "the records are a list"),
        ("nowhere.csv", "there is no such file"),
        ("nowhere/*.csv", "no file with the ending"),
        ("frame.xlsx", "there is no such file"),
        (pl.DataFrame({**COLUMNS, "age": [float("nan")] * N}), "the value is nan"),
        ({"age": [1, 2], "sex": ["f"], "ward": ["a", "b"], "died": [0, 1]}, "unequal lengths"),
        ({**COLUMNS, "age": np.ones((N, 2))}, 'column "age" has 2 dimensions'),
    ],
)  # fmt: skip
def test_wrong_records_are_refused_in_one_line(data, words):
    with pytest.raises(TacitError) as caught:
        federation(data, party="ward" if not isinstance(data, dict) or "ward" in data else None)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, DataError | ConfigError)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"a": FRAME, "b": FRAME.iloc[:0]}, 'party "b" has no records'),
        ({"a": FRAME, "b": with_cell("age", "old")}, 'party "b": column "age", data row 5: "old"'),
        ({"a": FRAME, "b": FRAME.drop(columns="sex")}, 'party "b": there is no column "sex"'),
        ({"a": FRAME, 5: FRAME}, "party name 5 is not text"),
        ({"a": FRAME, " b": FRAME}, "party name ' b' is not text"),
        ({"a": FRAME, "b": 3}, 'party "b" is of type int'),
        ({}, "there are no parties"),
    ],
)
def test_errors_name_the_party_and_its_own_row(parts, words):
    with pytest.raises((DataError, ConfigError)) as caught:
        federation(parts, party=None)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schema": None}, 'column "age" has no public bounds, which privacy needs'),
        ({"schema": tacit.Schema(bounds={"age": (18, 105)})}, 'column "sex" has no public bounds'),
        ({"schema": tacit.Schema(scale={"age": (50, 10)})}, 'column "age" has no public bounds'),
        (
            {"schema": tacit.Schema(bounds={"age": (18, 105)}, levels={"sex": ["f", "m"]})},
            'outcome "died" is not declared; with privacy its kind must be public',
        ),
        ({"party": "died"}, "party = 'died' is the outcome too"),
        ({"party": "age"}, "party = 'age' is a term of the formula too"),
        ({"party": 5}, "party = 5; give the name of a column"),
        ({"person": "nobody"}, 'no column "nobody"'),
        ({"data": {"a": FRAME}, "party": "ward"}, "leave party out"),
        ({"held_out": 1.5}, "held_out = 1.5; give a share"),
        ({"formula": parse_formula("died ~ C(age)")}, "C(age): age is declared as a number"),
        ({"formula": parse_formula("died ~ C(sex, 'x')")}, "the levels of sex are f, m"),
        ({"formula": parse_formula("died['x'] ~ age")}, "the levels of died are 0, 1"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, words):
    with pytest.raises(ConfigError if "person" not in arguments else DataError) as caught:
        federation(**arguments)
    assert words in str(caught.value)


def test_only_used_columns_are_converted():
    frame = raw_frame(changed(junk=[object()] * N), "it")
    assert frame.select(["age"]).height == N
    with pytest.raises(DataError, match="values of type object"):
        frame.select(["junk"])


def test_persons_stay_together_and_at_one_party():
    frame = FRAME.assign(who=[f"p{i // 6}" for i in range(N)], ward=["a", "b"] * (N // 2))
    with pytest.raises(DataError, match="persons to more than one party"):
        federation(frame, person="who")
    whole = federation(frame.assign(ward=np.where(np.arange(N) < 30, "a", "b")), person="who")
    assert len(np.unique(whole.parties["a"]["person"])) == 5


def test_person_codes_that_are_local_to_each_frame_are_named_as_such():
    frames = {name: FRAME.assign(who=np.arange(N) // 6) for name in ("a", "b")}
    with pytest.raises(DataError, match="make them differ between parties") as caught:
        federation(frames, party=None, person="who")
    assert "partition" not in str(caught.value)


@pytest.mark.parametrize("path", ["*.csv", ["north.csv", "south.csv"]])
def test_a_study_file_reads_several_files(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        FRAME[FRAME["ward"] == name].to_csv(f"{name}.csv", index=False)
    raw = {
        "privacy": "none",
        "formula": "died ~ age + C(sex)",
        "data": {"path": path, "held_out": 0.25},
        "columns": {
            "age": {"low": 18, "high": 105},
            "sex": {"levels": ["f", "m"]},
            "died": {"levels": ["0", "1"]},
        },
    }
    found = prepare(parse_config(raw)).federation
    assert list(found.parties) == ["north", "south"]
    assert set(found.test_parties) == {"north", "south"}
    assert sum(len(part["y"]) for part in found.held_out_by_party().values()) == 10
    one_party = {**raw, "data": {**raw["data"], "party": "ward"}}
    same(prepare(parse_config(one_party)).federation, found)
    with pytest.raises(ConfigError, match="each file is a party"):
        parse_config({**raw, "partition": {"parties": 3}})


def test_codes_are_ordered_as_numbers_and_booleans_as_any_library_writes_them(tmp_path):
    frame = FRAME.assign(code=np.array([10, 2, 9])[np.arange(N) % 3], old=FRAME["age"] > 50)
    formula = parse_formula("died ~ C(code) + old")
    found = federation(frame, formula=formula, schema=None, private=False)
    assert found.names == ("intercept", "code=9", "code=10", "old=true")
    frame.to_csv(tmp_path / "a.csv", index=False)  # True and False
    pl.DataFrame(frame.to_dict("list")).write_csv(tmp_path / "b.csv")  # true and false
    schema = tacit.Schema(levels={"code": [2, 9, 10], "old": [False, True], "died": [0, 1]})
    first = federation(tmp_path / "a.csv", formula=formula, schema=schema)
    same(first, federation(tmp_path / "b.csv", formula=formula, schema=schema))
    same(first, federation(frame, formula=formula, schema=schema))
