"""Descriptions of the columns of x, as the public schema declares them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from tacit.data.schema.columns import ColumnConfig


class Feature(NamedTuple):
    """One column of x: the constant 1, a number, or an indicator (0 or 1) of a level or a missing
    value.

    `source` is the column of the table from which it is computed. `low` and `high` are bounds on
    its values in x, infinite if no bounds are declared.
    """

    kind: Literal["intercept", "numeric", "level"]
    source: str
    low: float = 0.0
    high: float = 1.0


Layout = tuple[Feature, ...]
INTERCEPT = Feature("intercept", "intercept", 1.0, 1.0)


def column_layout(config: ColumnConfig) -> Layout:
    """Return a description of each column of x that is computed from the column `config` of the
    table.

    The order is that of `column_names`.

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
    """Return the names of the numeric columns that are followed by an indicator for missing values.

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
    """Return a description of each column of x: the constant first, then the columns computed from
    `columns`.
    """
    return (INTERCEPT, *(feature for config in columns for feature in column_layout(config)))


def unknown_layout(names: tuple[str, ...]) -> Layout:
    """Return a description of each column of x if there is no schema.

    A column "intercept" is the constant, and all others are unbounded numbers.
    """
    return tuple(
        INTERCEPT if name == "intercept" else Feature("numeric", name, -math.inf, math.inf)
        for name in names
    )
