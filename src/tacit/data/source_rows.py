"""All rows and columns of each party's source, from which a ledger identifies the records.

Rows and columns that a run does not use are included. Another split, seed or selection of columns
therefore does not count as another data set. Cells are converted only if a ledger needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

import numpy as np
import polars as pl

from tacit.data.partition import Rows
from tacit.data.records import Records


class SourceRows(Mapping[str, Records]):
    """A mapping from party names to records of a source, which are converted when they are read."""

    def __init__(self, parts: Rows, take: Callable[[np.ndarray], Records]) -> None:
        """Store the row numbers of each party, and the function that converts rows to records."""
        self._parts, self._take = parts, take

    def __getitem__(self, name: str) -> Records:
        return self._take(self._parts[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def table_rows(frame: pl.DataFrame, parts: Rows) -> SourceRows:
    """Return the rows of each party as records. `parts` maps party names to row numbers.

    A column of text in which every cell is a number becomes a column of numbers.
    """

    @cache
    def columns() -> Records:
        return {name: _values(frame[name]) for name in frame.columns}

    return SourceRows(parts, lambda rows: {name: one[rows] for name, one in columns().items()})


def with_unused(rows: Rows, shared: np.ndarray) -> Rows:
    """Return the row numbers of each party, with additional rows.

    The rows in `shared` that no party has are divided equally among the parties.
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
