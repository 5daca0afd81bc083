"""What every reader hands over: raw cells and the public schema that will prepare them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tacit.data.config import ColumnConfig


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows as they were read. Columns of `frame` that the schema does not name are not used."""

    frame: pl.DataFrame
    columns: tuple[ColumnConfig, ...]
    target: str
    positive: str | None = None
    site: str | None = None
    """The column that says which party a row belongs to by nature, where there is one."""
    design: bool = True
    """False: the records are y alone, with no x."""
    truth: dict[str, float] | None = None
    """For generated data: the weights, by name of the prepared column, that made y."""
    notes: tuple[str, ...] = ()
    """What the reader itself did to the data: values clipped, records left out."""

    def declared(self, name: str) -> ColumnConfig | None:
        return next((column for column in self.columns if column.name == name), None)
