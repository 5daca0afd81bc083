"""Base class of models of numeric columns without an outcome."""

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
    """Base class of models that describe the columns of x and have no outcome.

    Parameters
    ----------
    columns
        Names of the columns of x.
    bounds
        (low, high), the smallest and largest value of every column. A private run needs them,
        unless the columns are standardised or `layout` contains bounds.
    layout
        Public description of each column of x.
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
                f"party {party!r} has no column 'x' (it has {', '.join(records)}), but model "
                f"{self.kind!r} needs x; add this column"
            )
        shape = np.shape(records["x"])
        if shape[1:] != (self.width,):
            raise DataError(
                f"party {party!r}: x has shape {shape}, but model {self.kind!r} has {self.width} "
                f"columns; give x the shape (number of records, {self.width})"
            )


def _bounds(
    kind: str, names: tuple[str, ...], layout: Layout, bounds: tuple[Any, Any] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds (low, high) of every column. They are `bounds` if given, otherwise those of
    `layout`, otherwise ±3.
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
            f"bounds = {bounds!r}; give (low, high), where low and high are a number or an array "
            f"of {len(names)} numbers, one per column"
        ) from None
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
        raise ConfigError(
            f"model {kind!r} has invalid bounds; give finite numbers, low < high in every column"
        )
    return low.copy(), high.copy()


def check_numeric(kind: str, layout: Layout | None) -> None:
    """Raise a ConfigError if a column is not numeric, because the model assumes normal
    distributions.
    """
    levels = [one.source for one in layout or () if one.kind != "numeric"]
    if levels:
        raise ConfigError(
            f"model.kind = {kind!r} needs numeric columns, but column {levels[0]!r} is "
            "categorical; leave the column out"
        )
