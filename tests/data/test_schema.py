"""The public schema against what loading gives, and where there is nothing to load."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tacit import data
from tacit.data import ColumnConfig, DataConfig, Federation, PartitionConfig, public_schema
from tacit.data.readers.download import REGISTRY
from tacit.errors import ConfigError
from tacit.models.numpyro.model import NumPyroModel
from tacit.run.build import make_model
from tacit.run.config import parse_config

ILL = ColumnConfig(name="ill", kind="categorical", levels=("no", "yes"))
COLUMNS = (
    ColumnConfig(name="age", low=0, high=100, missing="indicator"),
    ColumnConfig(name="dose", center=5, scale=2),
    ColumnConfig(
        name="ward", kind="categorical", levels=("A", "B", "C"), reference="B", missing="level"
    ),
    ColumnConfig(name="weight", feature=False),
    ILL,
)
FILE = {"source": "file", "path": "absent.csv", "columns": COLUMNS, "outcome": "ill"}
CONFIGS = {
    "synthetic-cohort": DataConfig(records=300, keep=("site", "bmi", "sex"), person="patient"),
    "normal-mean": DataConfig(source="normal-mean", records=40),
    "adult": DataConfig(source="adult", keep=("age", "workclass")),
    "rugged": DataConfig(source="rugged", keep=("rugged",)),
    "heart": DataConfig(source="heart", keep=("hospital", "chol", "thal")),
    "breast-cancer": DataConfig(source="breast-cancer", keep=("mean area",), balance=True),
    "mimic3": DataConfig(source="mimic3", keep=("pH mean all",), person="subject"),
    "file": DataConfig(**FILE, positive="yes", keep=("weight", "ward", "dose"), person="who"),
}
OWN_QUERY = ("sql",)
"""tests/data/test_sql.py has its schema."""
EVERY = list(CONFIGS)


@pytest.fixture
def no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no source can be read."""
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)


@pytest.fixture
def with_files(
    tmp_path: Path, need: Callable[[str], None], mimic3: SimpleNamespace
) -> Callable[[str], DataConfig]:
    """The configuration of a source as one who has its files writes it."""

    def at_hand(source: str) -> DataConfig:
        if source in REGISTRY:
            need(source)
        settings = {name: getattr(CONFIGS[source], name) for name in DataConfig.__struct_fields__}
        if source == "mimic3":
            mimic3.write_benchmark(tmp_path, subjects=12)
            settings["path"] = str(tmp_path)
        if source == "file":
            settings["path"] = str(tmp_path / "own.csv")
            pl.DataFrame(
                {
                    "age": ["40", "", "60", "70"],
                    "dose": ["1", "2", "3", "90"],
                    "ward": ["A", "A", "", "C"],
                    "weight": ["80", "70", "60", "50"],
                    "ill": ["yes", "no", "no", "yes"],
                    "who": ["p", "q", "p", "r"],
                }
            ).write_csv(settings["path"])
        return DataConfig(**settings)

    return at_hand


def same_form(schema: Federation, loaded: Federation) -> None:
    assert schema.names == loaded.names
    assert schema.outcome == loaded.outcome
    assert schema.output == loaded.output
    assert schema.unbounded == loaded.unbounded
    assert schema.scaling == loaded.scaling
    (example,) = schema.parties.values()
    for records in loaded.parties.values():
        assert list(example) == list(records)
        for key, values in records.items():
            assert example[key].dtype == values.dtype, key
            assert example[key].shape == (8, *values.shape[1:]), key


def test_every_source_is_tried():
    assert {*EVERY, *OWN_QUERY, *data.config.CORPORA} == set(data.config.SOURCES)


@pytest.mark.parametrize("source", EVERY)
def test_the_schema_is_that_of_the_loaded_records(source, with_files):
    config = with_files(source)
    schema = public_schema(config)
    same_form(schema, data.load_federation(config, PartitionConfig(parties=2), 0))
    if not config.balance:
        same_form(schema, data.load_party(config, "here"))


@pytest.mark.parametrize("source", EVERY)
def test_the_schema_needs_no_file(source, no_files):
    config = CONFIGS[source]
    schema = public_schema(config)
    assert list(schema.parties) == ["example"]
    assert schema.test is None
    assert schema.raw == {}
    assert schema.notes == ()
    assert schema.unbounded == data.unbounded(config)
    again = public_schema(config).parties["example"]
    for key, values in schema.parties["example"].items():
        assert len(values) == 8
        assert np.isfinite(values).all()
        assert np.array_equal(values, again[key])


@pytest.mark.parametrize("source", EVERY)
def test_made_up_rows_are_inside_bounds_and_levels(source, no_files):
    schema = data.readers.catalogue.declared(CONFIGS[source])
    config = DataConfig(
        **{name: getattr(CONFIGS[source], name) for name in ("source", "path", "outcome")},
        columns=COLUMNS if source == "file" else (),
        positive=CONFIGS[source].positive,
        keep=tuple(column.name for column in schema.columns if column.name != schema.outcome),
    )
    records = public_schema(config).parties["example"]
    for column in schema.columns:
        if column.name == schema.outcome:
            continue
        values = records[column.name]
        if column.kind == "categorical":
            assert set(values.tolist()) <= set(range(len(column.levels)))
            assert len(set(values.tolist())) == min(8, len(column.levels))
        elif column.bounded:
            assert column.low <= values.min() < values.max() <= column.high
    assert len(set(records["y"].tolist())) == (2 if schema.positive else 8)
    assert schema.positive is None or set(records["y"].tolist()) == {0.0, 1.0}


def test_a_numeric_target_is_inside_its_bounds_and_in_its_unit():
    pay = ColumnConfig(name="pay", low=1000, high=3000, center=2000, scale=1000)
    columns = (COLUMNS[0], pay)
    config = DataConfig(source="file", path="absent.csv", columns=columns, outcome="pay")
    schema = public_schema(config)
    y = schema.parties["example"]["y"]
    assert schema.output == "gaussian"
    assert -1 <= y.min() < y.max() <= 1


def test_the_number_of_sites_is_public_too():
    codes = [
        public_schema(DataConfig(keep=("site",)), sites=sites).parties["example"]["site"]
        for sites in (1, 3, 20)
    ]
    assert [len(set(values.tolist())) for values in codes] == [1, 3, 8]
    with pytest.raises(ConfigError, match="sites = 0; it must be at least 1"):
        public_schema(DataConfig(), sites=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DataConfig(scaling="pooled"), r'data\.scaling = "pooled" needs records'),
        (
            DataConfig(
                source="file", path="a.csv", outcome="ill", positive="y", columns=COLUMNS[:1]
            ),
            r'outcome = "ill" has no declared levels.*declare them as columns\.ill\.levels',
        ),
        (
            DataConfig(source="heart", keep=("wing",)),
            r'data\.keep names "wing"; choose from the columns',
        ),
    ],
)
def test_what_is_not_public_is_refused(config, message):
    with pytest.raises(ConfigError, match=message) as caught:
        public_schema(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", EVERY)
def test_a_model_is_made_of_the_schema(source, no_files):
    schema = public_schema(CONFIGS[source])
    # Which model "auto" is depends on the source for the gaussian mean alone.
    named = source if source == "normal-mean" else "heart"
    model = make_model(parse_config({"privacy": "none", "data": {"source": named}}), schema)
    assert model.names[: len(schema.names)] == schema.names
    assert model.output == schema.output


def test_a_program_is_traced_on_made_up_rows_as_on_real_ones():
    root = Path(__file__).parents[2] / "examples"
    raw = tomllib.loads((root / "numpyro_hierarchy.toml").read_text(encoding="utf-8"))
    raw["model"]["function"] = f"{root / 'numpyro_hierarchy.py'}:readmission"
    config = parse_config(raw)
    real = make_model(config, data.load_federation(config.data, config.partition, 0))
    made_up = make_model(config, public_schema(config.data, sites=config.partition.parties))
    assert isinstance(real, NumPyroModel)
    assert isinstance(made_up, NumPyroModel)
    assert made_up.names == real.names
    assert made_up.output == real.output
    assert made_up.has_site_prior == real.has_site_prior
    assert made_up.reported == real.reported
    assert np.array_equal(made_up.prior_mean, real.prior_mean)
    assert np.array_equal(made_up.prior_sd, real.prior_sd)
