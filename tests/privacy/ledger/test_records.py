"""A ledger finds records again under another split, seed, number of parties or column choice."""

import sqlite3

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pytest
from ledger_worker import EVENT, TERMS, budget_of, zcdp

import tacit
from tacit.data.config import ColumnConfig, DataConfig, PartitionConfig
from tacit.data.federation import load_federation, load_party
from tacit.data.formula import parse_formula
from tacit.data.study import federation_from
from tacit.errors import DataError, PrivacyBudgetError
from tacit.party.datasets import identify_arrays, identify_parties
from tacit.privacy.ledger.ledger import Ledger, LineageWarning
from tacit.privacy.ledger.records import HashedRecords, hash_records
from tacit.privacy.ledger.verify import audit

KEY = bytes(range(32))
NUMERIC = {"kind": "numeric", "low": -100.0, "high": 100.0}


@pytest.fixture
def table(tmp_path):
    """A file with 120 rows, some of them equal and some with a gap."""
    rng = np.random.default_rng(1)
    path = tmp_path / "t.csv"
    lines = ["age,dose,site,patient,y"]
    for row in range(120):
        dose = f"{rng.normal():.6f}" if row % 11 else ""
        lines.append(
            f"{20 + row % 5},{dose},s{row % 3},p{row // 2},{'yes' if rng.random() < 0.5 else 'no'}"
        )
    lines += ["20,0.5,s0,p99,no"] * 6
    path.write_text("\n".join(lines) + "\n")
    return path


def loaded(path, *, seed=0, parties=3, columns=("age", "dose"), missing="drop", **more):
    configs = tuple(ColumnConfig(name=one, missing=missing, **NUMERIC) for one in columns)
    data = DataConfig(
        source="file", path=str(path), outcome="y", positive="yes", columns=configs, **more
    )
    return load_federation(data, PartitionConfig(kind="balanced", parties=parties), seed)


def identified(ledger, federation):
    return identify_parties(ledger, federation, federation.parties)


@pytest.mark.parametrize(
    "changed",
    [
        {"held_out": 0.5},
        {"seed": 9},
        {"parties": 5},
        {"columns": ("age",)},
        {"missing": "indicator"},
        {"seed": 3, "parties": 2, "columns": ("dose",), "held_out": 0.1},
    ],
    ids=str,
)
def test_the_same_file_is_no_new_data_set(ledger, table, changed):
    first = identified(ledger, loaded(table))
    ledger.set_budgets(dict.fromkeys(first.values(), budget_of()), reason="test")
    for name, dataset in first.items():
        ledger.charge(dataset, "one", name, [EVENT], **TERMS)
    second = identified(ledger, loaded(table, **changed))
    for name, dataset in second.items():
        assert ledger.budget(dataset) == budget_of(), "inherited"
        check = ledger.check(dataset, [EVENT], **TERMS)
        assert check.spent == zcdp([EVENT], 1e-5, "add-or-remove-one"), "once, not per old party"
        assert check.total > 1.3 * check.spent
        ledger.charge(dataset, "two", name, [EVENT], **TERMS)
    for dataset in (*first.values(), *second.values()):
        assert ledger.spent(dataset).as_one_run == zcdp([EVENT] * 2, 1e-5, "add-or-remove-one")
    assert ledger.verify().sound


def test_one_party_has_one_id_whatever_is_held_out(ledger, table):
    def party(**more):
        data = DataConfig(
            source="file", path=str(table), outcome="y", positive="yes",
            columns=(ColumnConfig(name="age", **NUMERIC),), **more,
        )  # fmt: skip
        return identify_parties(ledger, load_party(data, "north"), ["north"])["north"]

    assert party() == party(held_out=0.4)


def test_dropped_rows_belong_to_their_own_party(ledger, table):
    """Together and alone a party has one data set, whatever the others' gaps are."""

    def ids(path):
        configs = tuple(
            ColumnConfig(name=one, missing="drop", **NUMERIC) for one in ("age", "dose")
        )
        data = DataConfig(
            source="file", path=str(path), outcome="y", positive="yes", columns=configs,
            party="site",
        )  # fmt: skip
        return identified(ledger, load_federation(data, PartitionConfig(), 0))

    together = ids(table)
    head, *lines = table.read_text().splitlines()
    for name, dataset in together.items():
        alone = table.with_name(f"{name}.csv")
        alone.write_text("\n".join([head, *(one for one in lines if f",{name}," in one)]) + "\n")
        assert ids(alone) == {name: dataset}


def test_a_file_read_by_any_library_is_the_same_data_set(ledger, tmp_path):
    """pandas and polars make booleans, times and gaps of texts that a study file keeps as text."""
    path = tmp_path / "t.csv"
    path.write_text(
        "flag,on,weight,name,y\n"
        + "".join(
            f"{row % 3 == 0},2024-02-{row % 28 + 1:02d},{'NA' if row % 7 == 0 else row + 0.5},"
            f" n{row} ,{'yes' if row % 2 else 'no'}\n"
            for row in range(40)
        )
    )
    schema = tacit.Schema(
        bounds={"weight": (0, 100)}, levels={"y": ["no", "yes"]}, missing={"weight": "drop"},
        missing_values={"weight": ["NA"]},
    )  # fmt: skip
    frames = (
        path,
        pd.read_csv(path),
        pd.read_csv(path, parse_dates=["on"]),
        pl.read_csv(path, try_parse_dates=True, null_values="NA"),
    )
    found = set()
    for frame in frames:
        federation = federation_from(
            frame, parse_formula("y ~ weight"), schema=schema, private=True
        )
        found |= set(identified(ledger, federation).values())
    assert len(found) == 1


@pytest.mark.parametrize("party", [None, "ward"])
def test_whole_numbers_with_a_decimal_point_are_the_same_data_set(ledger, tmp_path, party):
    """pandas writes 1.0, 2.0 if a column of whole numbers has a gap."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"ward": 1.0 + np.arange(40) % 3, "grade": 1.0 + np.arange(40) % 2})
    frame = frame.assign(weight=rng.uniform(0, 100, 40), y=np.arange(40) % 2)
    frame.loc[::9, ["ward", "grade"]] = np.nan
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    assert ",2.0," in path.read_text()
    schema = tacit.Schema(
        bounds={"weight": (0, 100)},
        levels={"y": [0, 1], "grade": [1, 2], "ward": [1, 2, 3]},
        missing={"grade": "drop", "ward": "drop"},
    )
    whole = pd.read_csv(path).astype({"ward": "Int64", "grade": "Int64"})
    found = [
        identified(
            ledger,
            federation_from(
                data, parse_formula("y ~ weight + grade"), schema=schema, party=party, private=True
            ),
        )
        for data in (frame, path, whole)
    ]
    assert found[0] == found[1] == found[2]
    assert party is None or list(found[0]) == ["1", "2", "3"]


def test_both_are_charged_and_both_budgets_bind(ledger):
    rows = np.random.default_rng(0).normal(size=(100, 2))
    old = ledger.identify([], {"x": rows[:80]})
    ledger.set_budget(old, budget_of(0.3), reason="small")
    new = ledger.identify([], {"x": rows[60:]})
    assert ledger.budget(new) is None, "20 records are in no data set with a budget"
    with pytest.raises(PrivacyBudgetError, match=rf"shares 20 of 40 records with {old.short}"):
        ledger.check(new, [EVENT], **TERMS)
    ledger.set_budget(new, budget_of(), reason="larger")
    ledger.charge(new, "run", "r1", [EVENT] * 4, **TERMS)
    assert ledger.spent(old).releases == 4
    assert ledger.spent(old).shared == {new.content: 20}
    with pytest.raises(PrivacyBudgetError, match=r"> ε = 0\.3"):
        ledger.charge(new, "run", "r2", [EVENT] * 10, **TERMS)
    third = ledger.identify([], {"x": rows[:70]})
    with pytest.warns(LineageWarning, match="70 of 70 records"):
        ledger.set_budget(third, budget_of(), reason="own")


def test_disjoint_parts_do_not_add_up(ledger):
    rows = np.random.default_rng(0).normal(size=(100, 2))
    parts = ledger.identify_many([], {str(i): {"x": rows[i::4]} for i in range(4)})
    ledger.set_budgets(dict.fromkeys(parts.values(), budget_of()), reason="test")
    for name, dataset in parts.items():
        ledger.charge(dataset, "run", name, [EVENT], **TERMS)
    whole = ledger.identify([], {"x": rows})
    assert ledger.spent(whole).releases == 1
    assert ledger.budget(whole) == budget_of()


def test_arrays_with_a_column_less_are_found_by_the_other_columns(ledger):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 4)), rng.integers(0, 2, 300)
    first = identify_arrays(ledger, {"a": {"x": x, "y": y}})["a"]
    ledger.set_budget(first, budget_of(), reason="test")
    ledger.charge(first, "run", "r1", [EVENT], **TERMS)
    fewer = identify_arrays(ledger, {"a": {"x": x[:200, 1:].astype(np.float32), "y": y[:200]}})["a"]
    assert ledger.spent(fewer).releases == 1
    assert ledger.spent(fewer).shared == {first.content: None}
    other = identify_arrays(ledger, {"a": {"x": rng.normal(size=(300, 3)), "y": y}})["a"]
    assert ledger.spent(other).releases == 0


def test_columns_with_few_digits_do_not_make_records_the_same(ledger):
    rng = np.random.default_rng(0)
    for digits, size in ((1, 300), (2, 300), (3, 3_000)):
        parties = {
            str(i): {"x": np.round(rng.normal(50, 10, size=(size, 5)), digits)} for i in range(6)
        }
        for dataset in ledger.identify_many([digits], parties).values():
            assert ledger.spent(dataset).shared == {}


@pytest.mark.parametrize("decimals", [0, 1, 2])
def test_rounded_columns_of_other_records_are_not_taken_for_the_same(ledger, decimals):
    """Body mass indices with one decimal repeat; two hospitals have most of them in common."""
    rng = np.random.default_rng(decimals)
    values = np.round(rng.normal(27.0, 4.0, size=(2, 400)), decimals)
    noise = rng.normal(size=(2, 400))  # makes every record different
    both = identify_arrays(
        ledger, {name: {"bmi": values[i], "x": noise[i]} for i, name in enumerate("ab")}
    )
    for dataset in both.values():
        ledger.set_budget(dataset, budget_of(), reason="test")
    ledger.charge(both["a"], "run", "r1", [EVENT], **TERMS)
    assert ledger.spent(both["b"]).releases == 0


def rounded_table(seed, size=400):
    """Whole numbers, one decimal and categories: no column of measurements."""
    rng = np.random.default_rng(seed)
    return {
        "age": rng.integers(18, 100, size),
        "creatinine": np.round(rng.normal(80.0, 20.0, size), 1),
        "sex": rng.choice(["f", "m"], size),
        "died": rng.integers(0, 2, size),
        "row": np.arange(size),
        "id": np.array([f"P{number:04d}" for number in range(size)]),
    }


@pytest.mark.parametrize("kept", [("age", "died"), ("creatinine", "sex"), ("age", "sex", "row")])
def test_columns_of_rounded_values_identify_their_records(ledger, kept):
    whole = rounded_table(1)
    first = identify_arrays(ledger, {"a": whole})["a"]
    ledger.set_budget(first, budget_of(), reason="test")
    ledger.charge(first, "run", "r1", [EVENT], **TERMS)
    order = np.random.default_rng(2).permutation(400)
    renamed = {f"column {name}": np.asarray(whole[name])[order] for name in kept}
    assert ledger.spent(identify_arrays(ledger, {"b": renamed})["b"]).releases == 1
    other = {name: rounded_table(3)[name] for name in kept}
    assert ledger.spent(identify_arrays(ledger, {"c": other})["c"]).releases == 0


DAYS = np.arange("2023-01-01", "2024-01-01", dtype="datetime64[D]")
DESIGNED = {
    "days": DAYS,
    "text of days": DAYS.astype(str),
    "day of month": (DAYS - DAYS.astype("datetime64[M]")).astype(int) + 1,
    "month of hours": np.repeat(DAYS.astype("datetime64[M]").astype(int) % 12, 24),
    "strata": np.repeat(np.arange(25), 40),
    "text strata": np.repeat([f"stratum {number}" for number in range(25)], 40),
    "grid": np.arange(0.0, 10.0, 0.1),
    "doses": np.repeat(np.geomspace(1.0, 500.0, 30).round(1), 12),
    "ids with a gap": np.append(np.arange(1.0, 300.0), np.nan),
    "text ids": np.array([f"01-{number:03d}" for number in range(300)]),
    "object ids": np.array([str(float(number)) for number in range(300)], object),
    "weekdays": DAYS[(DAYS.astype(int) + 3) % 7 < 5],
}


@pytest.mark.parametrize("name", DESIGNED)
def test_columns_that_every_study_has_do_not_identify_records(ledger, name):
    column, rng = DESIGNED[name], np.random.default_rng(4)
    sizes = rng.normal(size=(2, len(column)))  # makes every record different
    first = identify_arrays(ledger, {"a": {"key": column, "x": np.rint(99 * sizes[0])}})["a"]
    ledger.set_budget(first, budget_of(), reason="test")
    ledger.charge(first, "run", "r1", [EVENT], **TERMS)
    other = identify_arrays(ledger, {"b": {"key": column, "z": np.rint(99 * sizes[1])}})["b"]
    assert ledger.spent(other).releases == 0


def test_numbered_rows_and_few_levels_do_not_identify_records(ledger):
    first = identify_arrays(ledger, {"a": rounded_table(1)})["a"]
    ledger.set_budget(first, budget_of(), reason="test")
    ledger.charge(first, "run", "r1", [EVENT], **TERMS)
    # The same ids, row numbers and frequencies of the sexes, but other records.
    other = rounded_table(3) | {"sex": rounded_table(1)["sex"][::-1]}
    assert ledger.spent(identify_arrays(ledger, {"b": other})["b"]).releases == 0


def test_a_person_with_other_records_is_the_same_person(ledger, table):
    data = {"person": "patient", "held_out": 0.0}
    first = identified(ledger, loaded(table, parties=1, **data))
    ledger.set_budgets(dict.fromkeys(first.values(), budget_of()), reason="test")
    text = table.read_text().split("\n")
    moved = [line.replace("s1", "s7").replace("s2", "s7").replace("s0", "s7") for line in text[1:]]
    table.write_text("\n".join([text[0], *moved]))
    (again,) = identified(ledger, loaded(table, parties=1, columns=("age",), **data)).values()
    assert ledger.spent(again).shared[next(iter(first.values())).content] == 61


def test_equal_rows_of_disjoint_parties_are_different_records():
    rows = {"y": np.zeros(4)}
    found = hash_records([], {"a": rows, "b": rows}, KEY)
    assert not set(found["a"].elements) & set(found["b"].elements)
    whole = hash_records([], {"c": {"y": np.zeros(8)}}, KEY)["c"]
    assert set(whole.elements) == {*found["a"].elements, *found["b"].elements}


def test_types_and_order_do_not_matter_and_the_key_does():
    values = np.array([1.0, 2.5, np.nan])
    first = hash_records([], {"": {"v": values, "w": np.array(["a", "b", None], object)}}, KEY)[""]
    texts = np.array(["1", "2.5", ""], object)[::-1]
    again = hash_records([], {"": {"w": np.array([None, "b", "a"], object), "v": texts}}, KEY)[""]
    assert first.id == again.id
    other = hash_records(
        [], {"": {"v": values, "w": np.array(["a", "b", None], object)}}, bytes(32)
    )
    assert not set(first.elements) & set(other[""].elements)


def test_the_hashes_are_guarded_by_the_chain(path, ledger):
    dataset = ledger.identify([], {"y": np.arange(9.0)})
    ledger.set_budget(dataset, budget_of(), reason="test")
    ledger.close()
    for statement in ("UPDATE records SET elements = x'0000000000000000'", "DELETE FROM records"):
        with sqlite3.connect(path) as db:
            db.execute(statement)
        db.close()
        assert "record hashes" in audit(path).problems[0]
        with Ledger(path, epsilon=zcdp) as again, pytest.raises(DataError, match="record hashes"):
            again.spent(dataset)


def test_charges_of_version_0_1_are_carried_over(ledger, table):
    federation = loaded(table)
    name = next(iter(federation.parties))
    raw = federation.raw[name]
    old = ledger.first_version_id({"columns": sorted(raw), "target": "y"}, raw)
    ledger.set_budget(old, budget_of(), reason="version 0.1")
    ledger.charge(old, "run", "r1", [EVENT], **TERMS)
    found = identified(ledger, federation)
    assert ledger.budget(found[name]) == budget_of()
    ledger.charge(found[name], "run", "r2", [EVENT], **TERMS)
    assert ledger.spent(old).charges == ledger.spent(found[name]).charges == 2
    kinds = [row.kind for row in ledger.entries()]
    assert kinds == ["budget", "charge", "records", "link", "charge"]
    others = [one for party, one in found.items() if party != name]
    assert all(ledger.budget(one) is None for one in others)


def test_hashes_stay_out_of_what_may_be_shared(ledger, tmp_path):
    dataset = ledger.identify([], {"y": np.arange(9.0)})
    ledger.set_budget(dataset, budget_of(), reason="test")
    element = hash_records([], {"": {"y": np.arange(9.0)}}, ledger._log.store.key)[""].elements[0]
    ledger.export(tmp_path / "e.json")
    text = (tmp_path / "e.json").read_text()
    assert str(int(element)) not in text
    assert f"{int(element):x}" not in text


def test_a_budget_is_a_filter_over_runs(ledger, dataset):
    many = msgspec.structs.replace(EVENT, count=20)
    ledger.charge(dataset, "one", "r1", [many], **TERMS)
    alone = ledger.spent(dataset)
    assert alone.epsilon == alone.as_one_run, "one run is planned in advance"
    ledger.charge(dataset, "two", "r1", [many], **TERMS)
    both = ledger.spent(dataset)
    assert both.as_one_run < both.epsilon < 1.02 * both.as_one_run


def grid(n=300, parties="abc"):
    rng = np.random.default_rng(5)
    time = np.linspace(0.001, 0.999, n)
    return {name: {"time": time, "y": rng.normal(size=n)} for name in parties}


def test_parties_with_an_equal_column_are_not_the_same_records(path, ledger):
    """Three sites that measure on one time grid; also after the ledger is opened again."""
    found = ledger.identify_many([], grid())
    ledger.set_budgets(dict.fromkeys(found.values(), budget_of()), reason="test")
    for name, dataset in found.items():
        ledger.charge(dataset, "run", name, [EVENT], **TERMS)
    ledger.close()
    with Ledger(path, epsilon=zcdp) as again:
        for dataset in found.values():
            assert again.spent(dataset).releases == 1
            assert again.spent(dataset).shared == {}
        (alone,) = again.identify_many([], {"d": {"time": grid()["a"]["time"]}}).values()
        assert again.spent(alone).shared.keys() == {one.content for one in found.values()}
        assert again.spent(alone).releases == 1, "its records are in one of the three"
        assert again.verify().sound


def test_linked_data_sets_of_a_run_are_checked_and_priced_together(ledger):
    found = ledger.identify_many([], grid(parties="ab"))
    one, two = found.values()
    ledger.set_budgets(dict.fromkeys(found.values(), budget_of()), reason="test")
    ledger.link(two, one, reason="the same patients")
    wanted = dict.fromkeys(found.values(), [EVENT] * 3)
    both = zcdp([EVENT] * 6, 1e-5, "add-or-remove-one")
    checks = ledger.check_many(wanted, **TERMS)
    assert [check.total for check in checks.values()] == [both, both]
    assert ledger.check(one, [EVENT] * 3, **TERMS).total < both
    prices = ledger.price_many(wanted, delta=dict.fromkeys(wanted, 1e-5), **TERMS)
    assert list(prices.values()) == [both, both]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 3)])
def test_another_division_with_a_column_less_is_charged_on_top(ledger, before, after):
    rng = np.random.default_rng(0)
    table = {name: rng.normal(size=6_000) for name in ("a", "b", "c")}

    def divided(parties, columns):
        order = rng.permutation(6_000)
        parts = {str(i): {c: table[c][order[i::parties]] for c in columns} for i in range(parties)}
        return ledger.identify_many([columns], parts).values()

    first = divided(before, "abc")
    ledger.set_budgets(dict.fromkeys(first, budget_of()), reason="test")
    for dataset in first:
        ledger.charge(dataset, "one", dataset.short, [EVENT], **TERMS)
    for dataset in divided(after, "ab"):
        assert ledger.spent(dataset).releases == 1, "a record is in one part of the first division"
        ledger.charge(dataset, "two", dataset.short, [EVENT], **TERMS)
        assert ledger.spent(dataset).releases == 2


def test_a_record_in_common_does_not_hide_that_the_others_may_be_the_same(ledger):
    rng = np.random.default_rng(0)
    x, code = rng.normal(size=300), rng.integers(0, 2, 300).astype(float)
    first = ledger.identify([], {"x": x, "code": code})
    ledger.set_budget(first, budget_of(), reason="test")
    ledger.charge(first, "one", "r1", [EVENT], **TERMS)
    recoded, other = code + 10, code + 20
    recoded[0], other[1], other[2] = code[0], code[1], recoded[2]
    second = ledger.identify([], {"x": x, "code": recoded})
    assert ledger.budget(second) is None, "what may be new records has no budget yet"
    with pytest.warns(LineageWarning, match="1 of 300 records"):
        ledger.set_budget(second, budget_of(), reason="test")
    ledger.charge(second, "two", "r1", [EVENT], **TERMS)
    third = ledger.identify([], {"x": x, "code": other})
    assert ledger.spent(third).releases == 2


def test_equal_rows_in_another_division_are_charged_once_per_division(ledger):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1_000, 2))
    for run in ("one", "two"):
        order = rng.permutation(1_000)
        parts = {str(i): {"x": rows[order[i::2]]} for i in range(2)}
        found = ledger.identify_many([], parts)
        if run == "one":
            ledger.set_budgets(dict.fromkeys(found.values(), budget_of()), reason="test")
        for name, dataset in found.items():
            ledger.charge(dataset, run, name, [EVENT], **TERMS)
    assert {ledger.spent(one).releases for one in ledger.datasets()} == {2}


# A table with a column of parties' names, and files of the parties without it.


def codes(rows=90, seed=0):
    """A table without any measurement: rows of different parties may be equal."""
    rng = np.random.default_rng(seed)
    whole = {name: rng.integers(0, 40, rows).astype(float) for name in ("age", "stage", "y")}
    return whole, np.array(["north", "south", "west"], object)[np.arange(rows) % 3]


def parts_of(whole, site, *, keep, order=("north", "south", "west")):
    """Records by party; with `keep` each has the column of its name."""
    named = whole | ({"site": site, "country": np.full(len(site), "x", object)} if keep else {})
    named |= {} if keep else {"country": np.full(len(site), "x", object)}
    return {name: {c: v[site == name] for c, v in named.items()} for name in order}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_files_without_the_party_column_hold_the_same_records(path, ledger, first, alone):
    whole, site = codes()
    one = ledger.identify_many(["a"], parts_of(whole, site, keep=first))
    ledger.set_budgets(dict.fromkeys(one.values(), budget_of()), reason="test")
    for name, dataset in one.items():
        ledger.charge(dataset, "one", name, [EVENT], **TERMS)
    ledger.close()
    other = parts_of(whole, site, keep=not first, order=("west", "north", "south"))
    with Ledger(path, epsilon=zcdp) as again:
        for name, records in other.items():
            calls = {name: records} if alone else other
            dataset = again.identify_many(["b"], calls)[name]
            check = again.check_many({dataset: [EVENT]}, budget_required=False, **TERMS)[dataset]
            assert check.spent == zcdp([EVENT], 1e-5, "add-or-remove-one"), "once, and not missed"
            assert again.spent(dataset).shared[one[name].content] == 30
            if first:
                assert again.budget(dataset) == budget_of(), "inherited"


def test_parties_with_equal_rows_are_charged_once_by_a_run(ledger):
    """And the records of one party alone are found among those of all, whatever their order."""
    rows = {"smoker": np.arange(60) % 2.0, "y": np.arange(60) % 3.0}
    site = np.array(["north", "south", "west"], object)[np.arange(60) // 20]
    found = ledger.identify_many([], parts_of(rows, site, keep=True))
    ledger.set_budgets(dict.fromkeys(found.values(), budget_of()), reason="test")
    for name, dataset in found.items():
        ledger.charge(dataset, "one", name, [EVENT] * (3 if name == "west" else 1), **TERMS)
    assert [ledger.spent(one).releases for one in found.values()] == [1, 1, 3]
    alone = ledger.identify([], parts_of(rows, site, keep=False)["west"])
    assert ledger.spent(alone).releases == 3


def test_hashes_of_an_earlier_version_are_replaced(path, ledger, monkeypatch):
    whole, site = codes()
    with monkeypatch.context() as patched:
        patched.setattr(HashedRecords, "packed", lambda self: (
            self.elements.astype("<u8").tobytes(), self.columns.astype("<u8").tobytes()
        ))  # fmt: skip
        found = ledger.identify_many([], parts_of(whole, site, keep=True))
        ledger.set_budgets(dict.fromkeys(found.values(), budget_of()), reason="test")
    ledger.close()
    with Ledger(path, epsilon=zcdp) as again:
        assert again.identify_many([], parts_of(whole, site, keep=True)) == found
        again.charge(found["west"], "one", "r1", [EVENT], **TERMS)
    with Ledger(path, epsilon=zcdp) as again:
        assert again.verify().sound
        dataset = again.identify([], parts_of(whole, site, keep=False)["west"])
        assert again.spent(dataset).releases == 1


def test_a_table_read_beside_one_with_fewer_columns_is_the_same_data_set(ledger):
    """Columns that only one party has are part of its records, whoever else takes part."""
    whole, site = codes()
    schema = tacit.Schema(bounds={"age": (0, 40), "y": (0, 40)})
    frames = {
        name: pl.DataFrame({**{c: list(v) for c, v in part.items()}, f"only {name}": range(30)})
        for name, part in parts_of(whole, site, keep=False).items()
    }
    formula = parse_formula("y ~ age")
    options = {"private": True, "schema": schema, "seed": 0}

    def named(tables):
        return identified(ledger, federation_from(tables, formula, **options))

    together = named(frames)
    ledger.set_budgets(dict.fromkeys(together.values(), budget_of()), reason="test")
    for name, dataset in together.items():
        ledger.charge(dataset, "one", name, [EVENT], **TERMS)
    for name, frame in frames.items():
        alone = named({name: frame})[name]
        assert ledger.spent(alone).releases == 1


def whole_numbers(count=60):
    """Columns without measurements, by which columns could be recognised."""
    rng = np.random.default_rng(3)
    return {"x": rng.integers(0, 50, count) * 1.0, "k": np.arange(count) * 1.0}


def test_charges_add_up_over_every_choice_of_constant_columns(ledger):
    base = whole_numbers()
    more = {"a": np.full(60, 3.0), "b": np.full(60, "b")}
    choices = [base, base | {"a": more["a"]}, base | {"b": more["b"]}, base | more]
    ids = [ledger.identify({}, records) for records in choices]
    ledger.set_budgets(dict.fromkeys(ids, budget_of(epsilon=50.0)), reason="test")
    for number, dataset in enumerate(ids):
        ledger.charge(dataset, f"run-{number}", "q", [EVENT], **TERMS)
        assert {ledger.spent(one).releases for one in ids} == {number + 1}


def test_a_chain_of_tables_is_one_group(ledger):
    """The pooled table and the file without the party column share no hash with each other."""
    base = whole_numbers()
    site = np.where(np.arange(60) < 30, "north", "south")
    divided = ledger.identify_many(
        {},
        {
            name: {key: values[site == name] for key, values in base.items()}
            | {"site": site[site == name]}
            for name in ("north", "south")
        },
    )
    pooled = ledger.identify({}, base | {"site": site})
    north = ledger.identify({}, {key: values[site == "north"] for key, values in base.items()})
    ids = [divided["north"], pooled, north]
    ledger.set_budgets(dict.fromkeys([*ids, divided["south"]], budget_of(epsilon=50.0)), reason="t")
    for number, dataset in enumerate(ids):
        ledger.charge(dataset, f"run-{number}", "q", [EVENT], **TERMS)
    assert [ledger.spent(one).releases for one in ids] == [3, 3, 3]


def test_one_record_is_found_without_its_label_but_not_by_some_of_its_numbers(ledger):
    one = {"x": np.array([3.0]), "y": np.array([1.0])}
    with_label = ledger.identify({}, one | {"site": np.array(["s1"])})
    again, other = ledger.identify({}, one), ledger.identify({}, one | {"y": np.array([0.0])})
    budgets = dict.fromkeys([with_label, again, other], budget_of())
    ledger.set_budgets(budgets, reason="test")
    ledger.charge(with_label, "run", "q", [EVENT], **TERMS)
    assert ledger.spent(again).releases == 1
    assert ledger.spent(other).releases == 0


def test_a_table_read_with_one_of_more_columns_is_found_again(ledger):
    """Parties have rows of both tables, so that the further column is missing in some rows."""
    base = whole_numbers()
    alone = {key: values[:30] for key, values in base.items()}
    dataset = ledger.identify({}, alone)
    extra = np.r_[np.full(30, np.nan), np.arange(30.0)]
    both = ledger.identify({}, base | {"c": extra})
    ledger.set_budgets(dict.fromkeys([dataset, both], budget_of()), reason="test")
    ledger.charge(dataset, "run", "q", [EVENT], **TERMS)
    assert ledger.spent(both).releases == 1
