"""Adult: 48,842 people of the 1994 US census; the outcome is an income above 50,000 dollars per
year.
"""

from __future__ import annotations

import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.readers.download import local_files
from tacit.data.schema.table import SourceSchema, Table

_ORDER = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]

_LEVELS = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov"
    " Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th"
    " 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed"
    " Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty"
    " Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving"
    " Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany"
    " Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines"
    " Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador"
    " Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador"
    " Trinadad&Tobago Peru Hong Holand-Netherlands",
}
"""Levels from the public description of the data (adult.names)."""

_WITH_GAPS = ("workclass", "occupation", "native-country")


def _numeric(name: str, low: float, high: float, center: float, scale: float) -> ColumnConfig:
    return ColumnConfig(name=name, low=low, high=high, center=center, scale=scale)


COLUMNS = (
    # Constants rounded from the means, deviations and ranges of this public file. The two capital
    # columns are mostly zero with a long tail; their bounds cover all of it.
    _numeric("age", 17, 90, 39, 14),
    _numeric("fnlwgt", 10_000, 1_500_000, 190_000, 100_000),
    _numeric("education-num", 1, 16, 10, 2.5),
    _numeric("capital-gain", 0, 100_000, 1_000, 7_500),
    _numeric("capital-loss", 0, 4_500, 90, 400),
    _numeric("hours-per-week", 1, 99, 40, 12),
    *(
        ColumnConfig(
            name=name,
            kind="categorical",
            levels=tuple(levels.split()),
            missing="level" if name in _WITH_GAPS else "refuse",
            missing_values=("?",) if name in _WITH_GAPS else (),
        )
        for name, levels in _LEVELS.items()
    ),
    ColumnConfig(name="income", kind="categorical", levels=("<=50K", ">50K")),
)
SCHEMA = SourceSchema(columns=COLUMNS, outcome="income", positive=">50K")


def read() -> Table:
    """Read both files as one table. The original division into training and test records is not
    used.
    """
    folder = local_files("adult")
    parts = [
        pl.read_csv(
            folder / name,
            has_header=False,
            skip_rows=skip,
            new_columns=_ORDER,
            infer_schema=False,
        )
        for name, skip in (("adult.data", 0), ("adult.test", 1))
    ]
    frame = pl.concat(parts).filter(pl.col("income").is_not_null())
    # The test file's labels end in a full stop.
    frame = frame.with_columns(pl.col("income").str.strip_chars(" ."))
    return Table(frame=frame, schema=SCHEMA)
