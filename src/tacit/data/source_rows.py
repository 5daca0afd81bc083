"""All rows and columns of a source by party; a ledger identifies the records by these.

Rows that a run holds out, drops or does not use are included, so that another split, seed or
selection of columns does not count as another data set. Nothing is converted before a ledger needs
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

import numpy as np
import polars as pl

from tacit.data.partition import Rows
from tacit.data.records import Records


class SourceRows(Mapping[str, Records]):
    """The rows of a source by party; they are converted only when they are read."""

    def __init__(self, parts: Rows, take: Callable[[np.ndarray], Records]) -> None:
        """Keep the rows of each party, and the function that reads rows."""
        self._parts, self._take = parts, take

    def __getitem__(self, name: str) -> Records:
        return self._take(self._parts[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def table_rows(frame: pl.DataFrame, parts: Rows) -> SourceRows:
    """Return the rows of a table; columns of text in which every cell is a number become
    numbers.
    """

    @cache
    def columns() -> Records:
        return {name: _values(frame[name]) for name in frame.columns}

    return SourceRows(parts, lambda rows: {name: one[rows] for name, one in columns().items()})


def with_unused(rows: Rows, shared: np.ndarray) -> Rows:
    """Return the rows of each party, plus an equal part of the rows in `shared` that no party
    has.
    """
    left = np.setdiff1d(shared, np.concatenate(list(rows.values())))
    return {
        name: np.sort(np.concatenate([part, left[place :: len(rows)]]))
        for place, (name, part) in enumerate(rows.items())
    }


def _values(column: pl.Series) -> np.ndarray:
    kind = column.dtype
    if kind in (pl.Date, pl.Datetime):
        column = column.cast(pl.Datetime("us")).to_physical()
    elif kind.is_temporal():
        column = column.to_physical()
    elif not (kind.is_numeric() or kind == pl.Boolean):
        text = column.cast(pl.String)
        column = text.cast(pl.Float64, strict=False)
        if column.null_count() > text.null_count():
            return np.array(text.to_list(), dtype=object)
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
