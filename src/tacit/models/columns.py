"""Models of numeric columns without an outcome: public bounds, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError, DataError
from tacit.models.base import Output, Records, checked_layout, checked_names
from tacit.models.conjugate import ConjugateExponential

UNDECLARED = 3.0
"""Columns without declared bounds are assumed to be standardised: within ±3 of 0."""


class ColumnModel(ConjugateExponential):
    """Base class of models for the columns of x, without an outcome.

    Parameters
    ----------
    columns
        Names of the columns of x.
    bounds
        Smallest and largest value of every column, (low, high); needed with privacy unless the
        columns are standardised. A data frame's schema declares them.
    layout
        Description of each column by a schema.
    """

    serves: ClassVar[tuple[Output, ...]] = ("other",)
    output: Output = "other"
    listed: ClassVar[bool] = False
    multimodal: ClassVar[bool] = True

    def __init__(
        self, columns: Sequence[str], bounds: tuple[Any, Any] | None, layout: Layout | None
    ) -> None:
        self.columns = checked_names(columns, "columns")
        self.layout = checked_layout(self.columns, layout)
        self.bounds = _bounds(self.kind, self.columns, self.layout, bounds)

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.columns)

    def check_records(self, party: str, records: Records) -> None:
        if "x" not in records:
            raise DataError(
                f"party {party!r} has no column 'x' (it has {', '.join(records)}); model "
                f"{self.kind!r} needs x: add it"
            )
        shape = np.shape(records["x"])
        if shape[1:] != (self.width,):
            raise DataError(
                f"party {party!r}: x has shape {shape}, but model {self.kind!r} has {self.width} "
                f"names; give x the shape (n, {self.width})"
            )


def _bounds(
    kind: str, names: tuple[str, ...], layout: Layout, bounds: tuple[Any, Any] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the public bounds (low, high) of every column: as given, as declared by a schema, or
    ±3.
    """
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
            f"model.kind = {kind!r} needs numeric columns, but column {levels[0]!r} is "
            "categorical; leave it out"
        )
