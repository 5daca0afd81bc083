"""Functions for models of counts: their public upper bound, and the check of records against it."""

from __future__ import annotations

import math

import numpy as np

from tacit.arrays import Array
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError, DataError
from tacit.models.base import ModelSchema

MIN_SQUARED_NORM = 1e-6
"""Minimum of `squared_reach`, needed if all columns are declared to be 0."""


def checked_max_count(max_count: float | None, name: str) -> float:
    """Return `max_count` as a number ≥ 1, or raise a ConfigError."""
    if max_count is None:
        raise ConfigError(
            "model.max_count is missing; give an upper bound on the counts, e.g. "
            f"{name}(names, max_count=20)"
        )
    if not 1 <= max_count < math.inf:
        raise ConfigError(f"model.max_count = {max_count}; it must be finite and at least 1")
    return float(max_count)


def check_counts(party: str, counts: Array, largest: float, kind: str) -> None:
    """Raise a DataError unless all counts are whole numbers from 0 to `largest`."""
    y = np.asarray(counts, np.float64)
    whole = (y >= 0) & (y == np.round(y))
    good = whole & (y <= largest)
    if np.all(good):
        return
    first = int(np.argmin(good))
    advice = "declare a larger max_count" if whole[first] else "use a model of another family"
    raise DataError(
        f"party {party!r}: y of record {first + 1} is {y[first]:g}, not one of the whole numbers "
        f"from 0 to {math.floor(largest)}, which model {kind!r} needs; correct it, or {advice}"
    )


def count_bounds(kind: str, max_count: float | None, schema: ModelSchema) -> tuple[float, float]:
    """Return the bounds of the counts: those declared for the outcome, or 0 and model.max_count."""
    declared = schema.y_bounds
    if declared is None:
        if max_count is None:
            raise ConfigError(
                f"model {kind!r} needs an upper bound on the counts; declare the bounds low = 0 "
                "and high of the outcome in [columns], or set model.max_count"
            )
        return 0.0, max_count
    if max_count not in (None, declared[1]):
        raise ConfigError(
            f"model.max_count = {max_count:g}, but outcome {schema.outcome!r} is declared up to "
            f"{declared[1]:g}; leave model.max_count out"
        )
    return declared


def squared_reach(layout: Layout) -> float:
    """Return a typical ‖x‖², to which each column of the records and the intercept add 1.

    A numeric column that is declared to have absolute values of at most b < 1 adds b² instead.
    """
    levels = {feature.source for feature in layout if feature.kind == "level"}
    others = [feature for feature in layout if feature.kind != "level"]
    sizes = [min(1.0, max(abs(one.low), abs(one.high))) for one in others]
    return max(len(levels) + sum(size**2 for size in sizes), MIN_SQUARED_NORM)


def unchecked(constant: str, distribution: str, *, private: bool) -> str:
    """Return a caution for users that the declared `constant` is not compared with the records."""
    method = (
        '"dp-scores", whose histogram shows it,' if private else '"natural", which compares them,'
    )
    return (
        f"The declared {constant} is not compared with the records: if it is wrong, intervals are "
        f"wrong by an unknown amount; use method = {method} or a NumPyro model with {distribution}."
    )
