"""The output of every reader: raw cells, and the public schema by which they are prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tacit.data.config import ColumnConfig

NAMES_SHOWN = 50
PARTY = "(party)"
"""The column that names the party of a row, in a table made of several parties' tables."""


@dataclass(frozen=True, kw_only=True)
class SourceSchema:
    """Public facts about a source, known before any record is read."""

    columns: tuple[ColumnConfig, ...]
    """The public facts about each column."""
    outcome: str
    """The outcome column; "" if there is none."""
    positive: str | None = None
    """Level of the outcome that becomes y = 1. None: y is the number in the outcome column or, if
    its levels are declared, the index of the level.
    """
    site: str | None = None
    """The column with the natural party of a row, if there is one."""
    design: bool = True
    """False: the records are y alone, with no x."""

    def declared(self, name: str) -> ColumnConfig | None:
        """Return the declared facts about the column `name`; None if it is not declared.

        Parameters
        ----------
        name
            Name of the column.
        """
        return next((column for column in self.columns if column.name == name), None)

    @property
    def features(self) -> list[ColumnConfig]:
        """The columns that become x."""
        return [column for column in self.columns if column.name != self.outcome and column.feature]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows as read from the source, before they are prepared for a model.

    Models do not use columns of `frame` that the schema does not declare.
    """

    frame: pl.DataFrame
    schema: SourceSchema
    true_values: dict[str, float] | None = None
    """For generated data: a dict from prepared columns to their true weights."""
    parties: tuple[str, ...] = ()
    """For a table combined from several parties' tables: the names in the column `PARTY`."""
    notes: tuple[str, ...] = ()
    """Changes made by the reader: values clipped, records dropped."""


def listed(names: Sequence[str]) -> str:
    """Join names by commas for an error message. A long list is shortened."""
    more = f", … ({len(names)} in all)" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
