"""Columns of models without an outcome: public bounds, and checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError, DataError
from tacit.models.base import Records

UNDECLARED = 3.0
"""Columns without declared bounds are assumed to be standardised: within ±3 of 0."""


def column_bounds(
    kind: str, names: tuple[str, ...], layout: Layout, bounds: tuple[Any, Any] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Public (low, high) of every column: given, declared by a schema, or ±3."""
    if bounds is None:
        low = np.array([one.low for one in layout])
        high = np.array([one.high for one in layout])
        known = np.isfinite(low) & np.isfinite(high) & (low < high)
        return np.where(known, low, -UNDECLARED), np.where(known, high, UNDECLARED)
    try:
        low, high = (np.broadcast_to(np.asarray(b, np.float64), (len(names),)) for b in bounds)
    except (TypeError, ValueError):
        raise ConfigError(
            f"bounds = {bounds!r}; give (low, high), each a number or one number per column "
            f"({len(names)})"
        ) from None
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
        raise ConfigError(f"model {kind!r}: bounds must be finite with low < high in every column")
    return low.copy(), high.copy()


def check_numeric(kind: str, layout: Layout | None) -> None:
    """Refuse categorical columns, which a normal distribution does not describe."""
    levels = [one.source for one in layout or () if one.kind != "numeric"]
    if levels:
        raise ConfigError(
            f"model.kind = {kind!r} with column {levels[0]!r}, which has levels; it reads numbers: "
            "leave the column out"
        )


def check_x(kind: str, width: int, party: str, records: Records) -> None:
    """Refuse records without an x with that number of columns."""
    if "x" not in records:
        raise DataError(
            f"party {party!r} has no column 'x' (it has {', '.join(records)}); model {kind!r} "
            "needs x: add it"
        )
    shape = np.shape(records["x"])
    if shape[1:] != (width,):
        raise DataError(
            f"party {party!r}: x has shape {shape}, but model {kind!r} has {width} names; give x "
            f"the shape (n, {width})"
        )
