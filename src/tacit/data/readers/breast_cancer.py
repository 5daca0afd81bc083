"""Breast cancer (Wisconsin, diagnostic): 569 biopsies, as scikit-learn ships them."""

from __future__ import annotations

from typing import Any

import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.schema.table import SourceSchema, Table

_FEATURES: dict[str, tuple[float, float, float, float]] = {
    # low, high, center, scale: rounded from the ranges, means and deviations of this public set.
    "mean radius": (5, 30, 14, 3.5),
    "mean texture": (5, 40, 19, 4.3),
    "mean perimeter": (40, 200, 92, 24),
    "mean area": (100, 2600, 650, 350),
    "mean smoothness": (0.05, 0.2, 0.096, 0.014),
    "mean compactness": (0, 0.4, 0.1, 0.053),
    "mean concavity": (0, 0.5, 0.089, 0.08),
    "mean concave points": (0, 0.25, 0.049, 0.039),
    "mean symmetry": (0.1, 0.35, 0.18, 0.027),
    "mean fractal dimension": (0.04, 0.1, 0.063, 0.007),
    "radius error": (0, 3, 0.4, 0.28),
    "texture error": (0, 5, 1.2, 0.55),
    "perimeter error": (0, 25, 2.9, 2),
    "area error": (0, 600, 40, 45),
    "smoothness error": (0, 0.04, 0.007, 0.003),
    "compactness error": (0, 0.15, 0.025, 0.018),
    "concavity error": (0, 0.4, 0.032, 0.03),
    "concave points error": (0, 0.06, 0.012, 0.006),
    "symmetry error": (0, 0.1, 0.02, 0.008),
    "fractal dimension error": (0, 0.03, 0.004, 0.0026),
    "worst radius": (5, 40, 16, 4.8),
    "worst texture": (10, 50, 26, 6),
    "worst perimeter": (50, 260, 110, 34),
    "worst area": (150, 4500, 880, 570),
    "worst smoothness": (0.05, 0.25, 0.13, 0.023),
    "worst compactness": (0, 1.1, 0.25, 0.16),
    "worst concavity": (0, 1.3, 0.27, 0.21),
    "worst concave points": (0, 0.3, 0.11, 0.066),
    "worst symmetry": (0.15, 0.7, 0.29, 0.06),
    "worst fractal dimension": (0.05, 0.25, 0.084, 0.018),
}

COLUMNS = (
    *(
        ColumnConfig(name=name, low=low, high=high, center=center, scale=scale)
        for name, (low, high, center, scale) in _FEATURES.items()
    ),
    ColumnConfig(name="diagnosis", kind="categorical", levels=("benign", "malignant")),
)
SCHEMA = SourceSchema(columns=COLUMNS, outcome="diagnosis", positive="malignant")


def read() -> Table:
    """Read the table of scikit-learn.

    The outcome y is 1 for malignant, while scikit-learn codes malignant as 0.
    """
    from sklearn.datasets import load_breast_cancer

    bunch: Any = load_breast_cancer()
    frame = pl.DataFrame(bunch.data, schema=list(bunch.feature_names))
    names = [bunch.target_names[code] for code in bunch.target]
    frame = frame.with_columns(pl.Series("diagnosis", names, dtype=pl.String))
    return Table(frame=frame, schema=SCHEMA)
