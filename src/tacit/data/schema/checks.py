"""Columns without public bounds, which a private run refuses.

A value without declared bounds can be arbitrarily large, and a statistic of the data depends on
every record. Neither is covered by noise added later.
"""

from __future__ import annotations

from tacit.data.config import CORPORA, DataConfig
from tacit.data.readers.catalogue import declared
from tacit.data.schema.table import SourceSchema


def unbounded(data: DataConfig) -> tuple[str, ...]:
    """List the columns of x and the kept columns that the schema does not bound.

    These are numbers without low and high and, if scaling is "pooled", all numbers and every
    category without declared levels. The outcome is not included. Opens no file.

    >>> unbounded(DataConfig(source="breast-cancer"))
    ()
    """
    if data.source in CORPORA:  # documents have no columns
        return ()
    return unbounded_columns(declared(data), data)


def unbounded_columns(schema: SourceSchema, data: DataConfig) -> tuple[str, ...]:
    """List the unbounded columns as `unbounded` does, for a given schema."""
    pooled = data.scaling == "pooled"
    return tuple(
        column.name
        for column in schema.columns
        if column.name != schema.outcome
        and (column.feature or column.name in data.keep)
        and (not column.bounded or (pooled and column.kind == "numeric"))
    )
