"""Raw tables and their public schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tacit.data.config import ColumnConfig

NAMES_SHOWN = 50


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Public schema of a source, known before any record is read."""

    columns: tuple[ColumnConfig, ...]
    """The public facts about each column."""
    target: str
    """The outcome column."""
    positive: str | None = None
    """Level of the target that is y = 1; None: the target is a number, or one of its declared
    levels.
    """
    site: str | None = None
    """Column that names the natural party of a row, if any."""
    design: bool = True
    """False: the records have y but no x."""

    def declared(self, name: str) -> ColumnConfig | None:
        """The column of that name; None if it is not declared.

        Parameters
        ----------
        name
            Name of the column.
        """
        return next((column for column in self.columns if column.name == name), None)

    @property
    def features(self) -> list[ColumnConfig]:
        """Feature columns."""
        return [column for column in self.columns if column.name != self.target and column.feature]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Raw rows and their schema. Columns of `frame` without a declaration are not used."""

    frame: pl.DataFrame
    schema: Schema
    true_values: dict[str, float] | None = None
    """For generated data: the true weights by prepared column."""
    notes: tuple[str, ...] = ()
    """Notes of the reader: values clipped, records dropped."""


def listed(names: Sequence[str]) -> str:
    """Names for an error message, truncated if there are many."""
    more = f", … ({len(names)} in all)" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
