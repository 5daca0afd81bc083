import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit import data, datasets
from tacit.data import ColumnConfig, DataConfig, PartitionConfig, load_party
from tacit.data.persons import balanced_persons, by_appearance, held_out_persons
from tacit.errors import ConfigError, DataError

NOT_TABLES = ("file", "sql", *data.config.CORPORA)
PERSONS = st.lists(st.integers(0, 40), min_size=1, max_size=200).map(
    lambda codes: by_appearance(np.array(codes))
)
EIGHT = {
    "age": ["40", "50", "60", "70", "41", "51", "61", "71"],
    "colour": ["red", "blue"] * 4,
    "ill": ["yes", "no"] * 4,
    "who": ["b", "a", "b", "c", "d", "d", "a", "e"],
}


@given(persons=PERSONS, parties=st.integers(1, 12), seed=st.integers(0, 5))
def test_balanced_deals_whole_persons_evenly(persons, parties, seed):
    rng = np.random.default_rng(seed)
    if parties > len(set(persons)):
        with pytest.raises(ConfigError, match=f"there are only {len(set(persons))} persons"):
            balanced_persons(persons, parties, rng)
        return
    rows = balanced_persons(persons, parties, rng)
    everything = np.concatenate(list(rows.values()))
    assert np.array_equal(np.sort(everything), np.arange(len(persons)))
    assert sum(len(set(persons[part])) for part in rows.values()) == len(set(persons))
    sizes = [len(part) for part in rows.values()]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= np.bincount(persons).max()


@given(persons=PERSONS, fraction=st.floats(0, 0.99), seed=st.integers(0, 5))
def test_held_out_persons_are_whole_and_leave_somebody(persons, fraction, seed):
    held = held_out_persons(persons, fraction, np.random.default_rng(seed))
    assert not set(persons[held]) & set(persons[~held])
    assert not held.all()
    assert held.sum() <= round(len(persons) * fraction)
    if len(set(persons)) == len(persons) > 1:
        assert held.sum() >= min(len(persons) - 1, int(len(persons) * fraction))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), fraction=st.floats(0, 0.99))
def test_every_natural_party_keeps_a_person(sizes, fraction):
    persons = np.arange(3 * sum(sizes)) // 3
    groups = np.split(np.arange(len(persons)), 3 * np.cumsum(sizes)[:-1])
    held = held_out_persons(persons, fraction, np.random.default_rng(0), groups)
    assert not any(held[rows].all() for rows in groups)
    assert not set(persons[held]) & set(persons[~held])


def test_a_thousand_tiny_sites_hold_out_persons_too():
    persons = np.arange(6000) // 2
    held = held_out_persons(
        persons, 0.2, np.random.default_rng(0), list(np.arange(6000).reshape(1000, 6))
    )
    assert held.sum() == 1200


def test_records_carry_codes_of_their_own_party(load_table):
    partition = PartitionConfig(parties=2)
    federation = load_table(EIGHT, person="who", keep=("age",), partition=partition)
    whose = dict(zip([float(age) for age in EIGHT["age"]], EIGHT["who"], strict=True))
    seen: list[set[str]] = []
    for records in federation.parties.values():
        codes = records["person"]
        names = [whose[age] for age in records["age"].tolist()]
        assert codes.dtype == np.int64
        assert codes.shape == records["y"].shape
        assert len(set(zip(codes.tolist(), names, strict=True))) == len(set(names))
        assert set(codes.tolist()) == set(range(len(set(names))))
        assert codes[0] == 0
        seen.append(set(names))
    assert not seen[0] & seen[1]
    assert {len(records["y"]) for records in federation.parties.values()} == {4}
    assert federation.names == load_table(EIGHT).names


def test_nobody_is_both_trained_on_and_held_out(load_table):
    federation = load_table(EIGHT, person="who", held_out=0.5, keep=("age",))
    assert federation.test is not None
    assert set(federation.test) == {"x", "y", "age"}
    whose = dict(zip([float(age) for age in EIGHT["age"]], EIGHT["who"], strict=True))
    trained = {whose[age] for age in federation.parties["party-1"]["age"].tolist()}
    assert not trained & {whose[age] for age in federation.test["age"].tolist()}


def test_without_persons_there_is_no_such_column(load_table):
    assert set(load_table(EIGHT).parties["party-1"]) == {"x", "y"}


def test_a_record_of_nobody_is_named(load_table):
    cells = {**EIGHT, "who": ["b", "a", "", "c", "d", "d", "a", "e"]}
    with pytest.raises(DataError, match=r'column "who", data row 3: the value is missing'):
        load_table(cells, person="who")
    with pytest.raises(
        DataError, match=r'column "whom" is not in the data, but data\.person names'
    ):
        load_table(EIGHT, person="whom")
    declared = ColumnConfig(
        name="who", kind="categorical", levels=("b",), feature=False, missing_values=("c",)
    )
    with pytest.raises(DataError, match=r'column "who", data row 4: the value is missing'):
        load_table(EIGHT, declared, person="who")


@pytest.mark.parametrize(
    "keys",
    [
        {"party": "colour"},
        {"partition": PartitionConfig(kind="skew", parties=4, size_skew=0.5)},
    ],
)
def test_a_person_of_two_parties_is_refused(load_table, keys):
    with pytest.raises(DataError, match=r"gives \d of 5 persons to more than one party") as caught:
        load_table(EIGHT, person="who", **keys)
    assert "each party would protect only its own records" in str(caught.value)
    assert 'partition.kind = "balanced"' in str(caught.value)


def test_parties_that_share_nobody_are_fine(load_table):
    cells = {**EIGHT, "who": ["b", "a", "b", "a", "c", "d", "e", "f"]}
    federation = load_table(cells, person="who", party="colour")
    assert [r["person"].tolist() for r in federation.parties.values()] == [
        [0, 0, 1, 2],
        [0, 0, 1, 2],
    ]
    own = load_table(cells, person="who", party="who")
    assert all(set(records["person"]) == {0} for records in own.parties.values())


def test_one_party_loads_its_persons(tmp_path):
    path = tmp_path / "own.csv"
    pl.DataFrame(EIGHT).write_csv(path)
    columns = (ColumnConfig(name="age", low=0, high=100),)
    keys = {"source": "file", "path": str(path), "outcome": "ill", "positive": "yes"}
    config = DataConfig(**keys, columns=columns, person="who", held_out=0)
    assert load_party(config, "here").parties["here"]["person"].tolist() == [0, 1, 0, 2, 3, 3, 1, 4]
    with pytest.raises(ConfigError, match=r"data\.balance = true; a single party"):
        load_party(DataConfig(**keys, columns=columns, balance=True), "here")


def test_split_keeps_persons_whole():
    records = {"y": np.arange(30.0), "person": np.arange(30) // 3}
    train, test = data.split(records, held_out=0.4, seed=1)
    assert not set(train["person"]) & set(test["person"])
    assert len(test["y"]) == 12


def test_cohort_patients_have_one_site_sex_and_age():
    frame = data.synthetic_cohort(records=3000, sites=4, seed=2).frame
    stays = frame.group_by("patient").agg(
        pl.len().alias("n"), pl.col("site", "sex", "age").n_unique()
    )
    assert stays.select(pl.col("site", "sex", "age").max()).row(0) == (1, 1, 1)
    assert 0.1 < (stays["n"] > 1).mean() < 0.4
    federation = datasets.load(records=3000, parties=4, person="patient", held_out=0.2, seed=2)
    assert next(iter(federation.parties)) == "hospital-1"
    assert federation.test is not None
    assert 500 < len(federation.test["y"]) <= 600


def test_balance_leaves_out_records_of_the_larger_class(load_table):
    cells = {**EIGHT, "ill": ["yes", "no", "no", "no", "yes", "no", "no", "no"]}
    federation = load_table(cells, balance=True)
    y = federation.parties["party-1"]["y"]
    assert sorted(y.tolist()) == [0, 0, 1, 1]
    assert federation.notes[0].startswith("balance: 4 records of the larger class left out, 4 rec")
    assert "no privacy guarantee covers" in federation.notes[0]
    assert load_table(EIGHT, balance=True).notes == ()
    with pytest.raises(DataError, match=r"all 8 records have the same class"):
        load_table({**EIGHT, "ill": ["yes"] * 8}, balance=True)


def test_unbounded_columns_are_named(load_table):
    loose = ColumnConfig(name="age", center=50, scale=10)
    kept = ColumnConfig(name="weight", feature=False)
    cells = {**EIGHT, "weight": EIGHT["age"]}
    assert load_table(cells).unbounded == ()
    assert load_table(cells, loose).unbounded == ("age",)
    assert load_table(cells, kept).unbounded == ()
    assert load_table(cells, kept, keep=("weight",)).unbounded == ("weight",)
    assert load_table(cells, scaling="pooled").unbounded == ("age",)
    bare = ColumnConfig(name="colour", kind="categorical")
    assert load_table(cells, bare, scaling="pooled").unbounded == ("age", "colour")


@pytest.mark.parametrize("source", [s for s in data.config.SOURCES if s not in NOT_TABLES])
def test_built_in_schemas_are_bounded(source):
    assert data.unbounded(DataConfig(source=source)) == ()
    if source != "normal-mean":  # which has no columns to scale
        assert data.unbounded(DataConfig(source=source, scaling="pooled"))


@pytest.mark.parametrize("source", ["synthetic-cohort", "breast-cancer"])
@pytest.mark.parametrize("scaling", ["public", "pooled"])
def test_configuration_and_federation_agree_on_bounds(source, scaling):
    config = DataConfig(source=source, scaling=scaling)
    federation = data.load_federation(config, PartitionConfig(parties=2), 0)
    assert federation.unbounded == data.unbounded(config)
