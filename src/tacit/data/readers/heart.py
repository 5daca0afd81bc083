"""Heart disease: 920 patients of four hospitals, which are the parties.

Three of the hospitals rarely record slope, ca and thal. Every column except age, sex and chest pain
therefore declares how missing values are handled.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.readers.download import local_files
from tacit.data.schema.table import SourceSchema, Table

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

_ORDER = [
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
]

_CODES = {
    "sex": {"0": "female", "1": "male"},
    "cp": {"1": "typical", "2": "atypical", "3": "non-anginal", "4": "asymptomatic"},
    "restecg": {"0": "normal", "1": "st-t", "2": "hypertrophy"},
    "exang": {"0": "no", "1": "yes"},
    "slope": {"1": "up", "2": "flat", "3": "down"},
    "thal": {"3": "normal", "6": "fixed", "7": "reversible"},
}


def _measured(
    name: str, low: float, high: float, center: float, scale: float, *gaps: str
) -> ColumnConfig:
    return ColumnConfig(
        name=name,
        low=low,
        high=high,
        center=center,
        scale=scale,
        missing="indicator",
        missing_values=("?", *gaps),
    )


def _coded(name: str, *, gaps: bool) -> ColumnConfig:
    return ColumnConfig(
        name=name,
        kind="categorical",
        levels=tuple(_CODES[name].values()),
        missing="level" if gaps else "refuse",
        missing_values=("?",) if gaps else (),
    )


COLUMNS = (
    # Constants rounded from the means, deviations and ranges of these public files.
    ColumnConfig(name="age", low=20, high=90, center=54, scale=9),
    _coded("sex", gaps=False),
    _coded("cp", gaps=False),
    _coded("restecg", gaps=True),
    # A resting blood pressure or a cholesterol of 0 was not measured.
    _measured("trestbps", 70, 220, 132, 18, "0"),
    _measured("chol", 80, 620, 245, 55, "0"),
    _measured("thalach", 50, 220, 138, 25),
    _coded("exang", gaps=True),
    _measured("oldpeak", -3, 7, 0.9, 1.1),
    _coded("slope", gaps=True),
    _measured("ca", 0, 3, 0.7, 0.9),
    _coded("thal", gaps=True),
    ColumnConfig(name="hospital", kind="categorical", levels=HOSPITALS, feature=False),
    ColumnConfig(name="disease", kind="categorical", levels=("no", "yes")),
)
SCHEMA = SourceSchema(columns=COLUMNS, outcome="disease", positive="yes", site="hospital")


def _plain_code(name: str) -> pl.Expr:
    """Return a polars expression that replaces the codes of a column by their meanings ("1.0"
    counts as "1").
    """
    text = pl.col(name).str.strip_chars().str.strip_suffix(".0")
    return text.replace(_CODES[name]).alias(name)


def read(hospitals: Sequence[str] = HOSPITALS) -> Table:
    """Read the files of `hospitals` as one table with a column "hospital"."""
    files = {hospital: f"processed.{hospital}.data" for hospital in hospitals}
    folder = local_files("heart", only=tuple(files.values()))
    parts = [
        pl.read_csv(
            folder / file,
            has_header=False,
            new_columns=_ORDER,
            infer_schema=False,
        ).with_columns(pl.lit(hospital).alias("hospital"))
        for hospital, file in files.items()
    ]
    frame = pl.concat(parts).with_columns(
        *(_plain_code(name) for name in _CODES),
        pl.when(pl.col("num").str.strip_chars() == "0")
        .then(pl.lit("no"))
        .otherwise(pl.lit("yes"))
        .alias("disease"),
    )
    return Table(frame=frame, schema=SCHEMA)
