import subprocess
import sys

import msgspec
import pytest

from tacit.data import ColumnConfig, DataConfig, PartitionConfig
from tacit.data.config import check_together
from tacit.errors import ConfigError

AGE = ColumnConfig(name="age", low=0, high=100)
FILE = {"source": "file", "path": "a.csv", "target": "ill", "positive": "yes", "columns": (AGE,)}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"source": "adlut"}, r'data\.source = "adlut".*did you mean "adult"'),
        ({"source": "?"}, r"choose from synthetic-cohort"),
        ({"held_out": 1.0}, r"data\.held_out = 1\.0; it must be in \[0, 1\)"),
        ({"held_out": -0.1}, r"data\.held_out = -0\.1"),
        ({"held_out": float("nan")}, r"data\.held_out = nan"),
        ({"records": 0}, r"data\.records = 0; it must be at least 1"),
        ({"source": "adult", "records": 5}, r'data\.records = 5; source "adult" has a fixed size'),
        ({"source": "adult", "mean": 1.0}, r'only source = "gaussian-mean"'),
        ({"source": "gaussian-mean", "sd": 0.0}, r"data\.sd = 0\.0; it must be a finite number"),
        ({"source": "gaussian-mean", "mean": float("inf")}, r"data\.mean = inf"),
        ({"keep": ("x",)}, r'data\.keep names "x"; x and y are taken'),
        ({"keep": ("site", "site")}, r'data\.keep names "site" twice'),
        ({"source": "adult", "target": "age"}, r'data\.target is set; source "adult" brings'),
        (
            {"person": "name"},
            r'data\.person = "name"; source "synthetic-cohort" has no such column',
        ),
        ({"source": "adult", "person": "age"}, r'"adult" has no such column .*"subject" of mimic3'),
        ({**FILE, "person": " "}, r"data\.person = "),
        ({**FILE, "person": "ill"}, r'data\.person = "ill"; it is the target too'),
        ({**FILE, "person": "age"}, r'data\.person = "age"; data\.columns declares it a feature'),
        (
            {"person": "patient", "keep": ("person",)},
            r'data\.keep names "person"; with data\.person',
        ),
        (
            {"source": "rugged", "balance": True},
            r'data\.balance = true; the target of source "rugg',
        ),
        ({**FILE, "positive": None, "balance": True}, r"data\.balance = true; .*data\.positive"),
        ({**FILE, "path": None}, r"data\.path is missing"),
        ({**FILE, "target": None}, r"data\.target is missing"),
        ({**FILE, "columns": ()}, r"data\.columns is missing"),
        ({**FILE, "path": "a.xlsx"}, r'data\.path = "a\.xlsx"; the name must end in'),
        ({**FILE, "separator": "ab"}, r'data\.separator = "ab"; it must be one character'),
        ({**FILE, "columns": (AGE, AGE)}, r'data\.columns declares "age" twice'),
        ({**FILE, "keep": ("ward",)}, r'data\.keep names "ward"; declare it'),
        (
            {**FILE, "columns": (ColumnConfig(name="bmi"),)},
            r'data\.columns "bmi" has neither low and high nor center and scale; declare them',
        ),
        (
            {**FILE, "columns": (ColumnConfig(name="ward", kind="categorical"),)},
            r'data\.columns "ward" has no levels',
        ),
        (
            {**FILE, "columns": (ColumnConfig(name="ill"),)},
            r'data\.target = "ill" is declared numeric',
        ),
        (
            {
                **FILE,
                "columns": (ColumnConfig(name="ill", kind="categorical", levels=("no", "Yes")),),
            },
            r'data\.positive = "yes"; the declared levels of "ill" are no, Yes',
        ),
        (
            {
                **FILE,
                "columns": (ColumnConfig(name="ill", kind="categorical", missing="level"),),
            },
            r'data\.columns "ill": missing = "level"; a target takes',
        ),
    ],
)
def test_bad_data_is_refused_by_key_value_and_advice(keys, message):
    with pytest.raises(ConfigError, match=message) as caught:
        DataConfig(**keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": " "}, r"name = "),
        ({"low": 1.0}, r'data\.columns "c": low = 1\.0; declare high as well'),
        ({"scale": 1.0}, r"scale = 1\.0; declare center as well"),
        ({"low": 2.0, "high": 2.0}, r"low = 2\.0; it must be less than high = 2\.0"),
        ({"low": float("nan"), "high": 2.0}, r"low = nan; it must be a finite number"),
        ({"center": 0.0, "scale": 0.0}, r"scale = 0\.0; it must be > 0"),
        ({"levels": ("a",)}, r"levels = .*categorical"),
        ({"missing": "level"}, r'missing = "level"; a numeric column takes'),
        ({"kind": "categorical", "missing": "indicator"}, r"a categorical column takes"),
        ({"kind": "categorical", "low": 0.0}, r"low = 0\.0; only a column of kind"),
        ({"kind": "categorical", "levels": ("a", "a")}, r"'a' is there twice"),
        ({"kind": "categorical", "levels": (" a",)}, r"' a' is empty or has spaces"),
        (
            {"kind": "categorical", "levels": ("?",), "missing_values": ("?",)},
            r"'\?' is also one of missing_values",
        ),
    ],
)
def test_bad_column_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        ColumnConfig(**{"name": "c", **keys})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"parties": 0}, r"partition\.parties = 0; it must be at least 1"),
        ({"kind": "column"}, r"partition\.column is missing"),
        ({"column": "site"}, r'partition\.column = "site"; it needs partition\.kind = "column"'),
        ({"size_skew": 0.5}, r"partition\.size_skew = 0\.5; it needs partition\.kind"),
        ({"kind": "skew", "size_skew": 1.0}, r"partition\.size_skew = 1\.0; it must be in"),
        ({"kind": "skew", "label_skew": 1.1}, r"partition\.label_skew = 1\.1; it must be at"),
        ({"kind": "skew", "parties": 1}, r"a skewed partition needs at least 2"),
    ],
)
def test_bad_partition_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        PartitionConfig(**keys)


def test_data_and_partition_are_checked_together():
    with pytest.raises(ConfigError, match='source "adult" has no sites of its own'):
        check_together(DataConfig(source="adult"), PartitionConfig(kind="source"))
    with pytest.raises(ConfigError, match=r"partition\.parties = 10; data\.records = 9"):
        check_together(DataConfig(records=9), PartitionConfig())


def test_bounds_alone_imply_centre_and_scale():
    assert ColumnConfig(name="c", low=10, high=30).affine == (20, 10)
    assert ColumnConfig(name="c", low=10, high=30, center=12, scale=3).affine == (12, 3)
    assert ColumnConfig(name="c").affine is None


def test_config_is_read_from_toml_with_its_own_errors():
    text = """
    source = "file"
    path = "patients.csv"
    target = "died"
    positive = "yes"
    [[columns]]
    name = "age"
    low = 0
    high = 100
    """
    assert msgspec.toml.decode(text, type=DataConfig).columns[0].affine == (50, 50)
    with pytest.raises(ConfigError, match="held_out"):
        msgspec.toml.decode("held_out = 1.5", type=DataConfig)
    with pytest.raises(msgspec.ValidationError, match="held_outt"):
        msgspec.toml.decode("held_outt = 0.5", type=DataConfig)


def test_checking_a_config_imports_no_array_library():
    code = (
        "import sys, tacit.data.config;"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'polars', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
