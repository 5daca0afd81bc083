import subprocess
import sys

import pytest

from tacit.data import ColumnConfig, DataConfig, PartitionConfig
from tacit.data.config import faults_together
from tacit.errors import ConfigError
from tacit.support.table_reader import read_table

AGE = ColumnConfig(name="age", low=0, high=100)
FILE = {"source": "file", "path": "a.csv", "outcome": "ill", "positive": "yes", "columns": (AGE,)}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"source": "adlut"}, r'data\.source = "adlut"; choose from synthetic-cohort'),
        ({"held_out": 1.0}, r"data\.held_out = 1\.0; it must be a number in \[0, 1\)"),
        ({"held_out": -0.1}, r"data\.held_out = -0\.1"),
        ({"held_out": float("nan")}, r"data\.held_out = nan"),
        ({"records": 0}, r"data\.records = 0; it must be a whole number of at least 1"),
        ({"source": "adult", "records": 5}, r'data\.records = 5 is not a key of source = "adult"'),
        ({"source": "adult", "mean": 1.0}, r'data\.mean = 1\.0 is not a key of source = "adult"'),
        ({"source": "normal-mean", "sd": 0.0}, r"data\.sd = 0\.0; it must be a number > 0"),
        ({"source": "normal-mean", "mean": float("inf")}, r"data\.mean = inf"),
        ({"keep": ("x",)}, r'data\.keep names "x"; x and y are reserved'),
        ({"keep": ("site", "site")}, r'data\.keep names "site" twice'),
        ({"source": "adult", "outcome": "age"}, r'data\.outcome = "age" is not a key of source'),
        ({"person": "name"}, r'data\.person = "name"; source "synthetic-cohort" has "pat'),
        ({"source": "adult", "person": "age"}, r'data\.person = "age" is not a key of source'),
        ({**FILE, "person": " "}, r"data\.person = "),
        ({**FILE, "person": "ill"}, r'data\.person = "ill"; this is the outcome'),
        ({**FILE, "person": "age"}, r'data\.person = "age"; \[columns\] declares it as a feature'),
        (
            {"person": "patient", "keep": ("person",)},
            r'data\.keep names "person", which is reserved',
        ),
        ({"source": "rugged", "balance": True}, r"data\.balance = true is not a key of source"),
        ({**FILE, "positive": None, "balance": True}, r"data\.balance = true; it needs an outcome"),
        ({**FILE, "path": None}, r"data\.path is missing"),
        ({**FILE, "outcome": None}, r"outcome is missing"),
        ({**FILE, "columns": ()}, r"columns is missing"),
        ({**FILE, "path": "a.xlsx"}, r'data\.path = "a\.xlsx"; the name must end in'),
        ({**FILE, "separator": "ab"}, r"data\.separator = 'ab'; it must be a text of 1 character"),
        ({**FILE, "columns": (AGE, AGE)}, r"columns\.age is declared twice"),
        ({**FILE, "keep": ("ward",)}, r'data\.keep names "ward"; declare it'),
        (
            {**FILE, "columns": (ColumnConfig(name="bmi"),)},
            r"columns\.bmi has neither low and high nor center and scale; declare them",
        ),
        (
            {**FILE, "columns": (ColumnConfig(name="ward", kind="categorical"),)},
            r"columns\.ward\.levels is missing",
        ),
        (
            {**FILE, "columns": (ColumnConfig(name="ill"),)},
            r'positive = "yes", but columns\.ill is declared numeric',
        ),
        (
            {**FILE, "columns": (ColumnConfig(name="ill", levels=("no", "Yes")),)},
            r'positive = "yes"; the levels of ill are no, Yes',
        ),
        (
            {**FILE, "columns": (ColumnConfig(name="ill", kind="categorical", missing="level"),)},
            r'columns\.ill\.missing = "level"; an outcome takes',
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
        ({"name": " "}, r"columns has a column named"),
        ({"low": 1.0}, r"columns\.c\.low = 1\.0; declare high as well"),
        ({"scale": 1.0}, r"scale = 1\.0; declare center as well"),
        ({"low": 2.0, "high": 2.0}, r"low = 2\.0; it must be less than high = 2\.0"),
        ({"low": float("nan"), "high": 2.0}, r"columns\.c\.low = nan; it must be a number that is"),
        ({"center": 0.0, "scale": 0.0}, r"scale = 0\.0; it must be a number > 0"),
        ({"kind": "numeric", "levels": ("a",)}, r"levels = .*numeric"),
        ({"missing": "level"}, r'missing = "level"; a numeric column takes'),
        ({"kind": "categorical", "missing": "indicator"}, r"a categorical column takes"),
        ({"levels": ("a",), "low": 0.0}, r"low = 0\.0; a column with levels cannot have it"),
        ({"levels": ("a", "a")}, r"'a' occurs twice"),
        ({"levels": (" a",)}, r"' a' is empty or has spaces"),
        ({"levels": ("?",), "missing_values": ("?",)}, r"'\?' is also one of missing_values"),
    ],
)
def test_bad_column_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        ColumnConfig(**{"name": "c", **keys})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"parties": 0}, r"partition\.parties = 0; it must be a whole number of at least 1"),
        ({"size_skew": 0.5}, r'partition\.size_skew = 0\.5 is not a key of kind = "balanced"'),
        (
            {"kind": "skew", "size_skew": 1.0},
            r"partition\.size_skew = 1\.0; it must be a number in",
        ),
        (
            {"kind": "skew", "label_skew": 1.1},
            r"label_skew = 1\.1; it must be a number of at most 1",
        ),
        ({"kind": "skew", "parties": 1}, r"a skewed partition needs at least 2"),
    ],
)
def test_bad_partition_is_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        PartitionConfig(**keys)


@pytest.mark.parametrize(
    ("data", "partition", "message"),
    [
        ({"source": "adult"}, {"kind": "source"}, 'data.source = "adult" has no sites'),
        ({"records": 9}, {}, "partition.parties = 10, but data.records = 9"),
        ({"party": "ward"}, {"kind": "skew"}, 'data.party = "ward" and partition.kind = "skew"'),
        ({"source": "wikipedia"}, {"kind": "skew"}, "has documents: choose"),
    ],
)
def test_data_and_partition_are_checked_together(data, partition, message):
    (fault,) = faults_together(DataConfig(**data), PartitionConfig(**partition))
    assert message in fault


def test_bounds_alone_imply_centre_and_scale():
    assert ColumnConfig(name="c", low=10, high=30).affine == (20, 10)
    assert ColumnConfig(name="c", low=10, high=30, center=12, scale=3).affine == (12, 3)
    assert ColumnConfig(name="c").affine is None


def test_a_table_is_read_with_all_of_its_faults():
    raw = {**FILE, "columns": [{"name": "age", "low": 0, "high": 100}]}
    assert read_table(raw, DataConfig).columns[0].affine == (50, 50)
    with pytest.raises(ConfigError, match=r"held_outt = 1\.5 is not a key") as caught:
        read_table({**raw, "held_outt": 1.5, "keep": 3}, DataConfig, "data")
    assert [str(one) for one in caught.value.also] == ["data.keep = 3; it must be a list of texts"]


def test_checking_a_config_imports_no_array_library():
    code = (
        "import sys, tacit.data.config;"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'polars', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
