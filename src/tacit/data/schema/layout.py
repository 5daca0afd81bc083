"""What the public schema declares about each column of x."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from tacit.data.schema.columns import ColumnConfig


class Feature(NamedTuple):
    """One column of x: the constant, a number, or a 0/1 level of its source column.

    `low` and `high` are its bounds on the scale of x, infinite if undeclared.
    """

    kind: Literal["intercept", "numeric", "level"]
    source: str
    low: float = 0.0
    high: float = 1.0


Layout = tuple[Feature, ...]
INTERCEPT = Feature("intercept", "intercept", 1.0, 1.0)


def column_layout(config: ColumnConfig) -> Layout:
    """Return the columns of x that one source column becomes, in the order of `column_names`.

    >>> column_layout(ColumnConfig(name="age", low=0, high=100, missing="indicator"))
    (Feature(kind='numeric', source='age', low=-1.0, high=1.0), \
Feature(kind='level', source='age missing', low=0.0, high=1.0))
    """
    if config.kind == "categorical":
        shown = len(config.levels) - (config.reference is not None) + (config.missing == "level")
        return (Feature("level", config.name),) * shown
    low, high = -math.inf, math.inf
    if config.low is not None and config.high is not None and config.affine is not None:
        center, scale = config.affine
        low, high = (config.low - center) / scale, (config.high - center) / scale
    number = Feature("numeric", config.name, low, high)
    if config.missing == "indicator":
        return number, Feature("level", f"{config.name} missing")
    return (number,)


def indicated_columns(layout: Layout | None) -> tuple[str, ...]:
    """Return the numeric columns that have an indicator for missing values.

    >>> indicated_columns(layout_of([ColumnConfig(name="bmi", missing="indicator")]))
    ('bmi',)
    """
    features = layout or ()
    return tuple(
        number.source
        for number, flag in itertools.pairwise(features)
        if number.kind == "numeric" and flag == Feature("level", f"{number.source} missing")
    )


def layout_of(columns: Iterable[ColumnConfig]) -> Layout:
    """Return the layout of a design matrix, the constant first."""
    return (INTERCEPT, *(feature for config in columns for feature in column_layout(config)))


def unknown_layout(names: tuple[str, ...]) -> Layout:
    """Return the layout of undeclared columns: unbounded numbers, and a constant called
    "intercept".
    """
    return tuple(
        INTERCEPT if name == "intercept" else Feature("numeric", name, -math.inf, math.inf)
        for name in names
    )
