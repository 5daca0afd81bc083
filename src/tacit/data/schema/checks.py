"""Which columns no public bound limits: what a private run has to refuse.

A value without declared bounds can be as large as the one record that has it, and a statistic of
the data says something of every record in it. Neither is covered by noise added later.
"""

from __future__ import annotations

from tacit.data.config import CORPORA, DataConfig
from tacit.data.readers.catalogue import declared
from tacit.data.schema.table import SourceSchema


def unbounded(data: DataConfig) -> tuple[str, ...]:
    """Names of the columns of x, and of kept columns, that the schema alone does not bound.

    They are numbers without low and high (centre and scale bound nothing) and, where scaling
    is "pooled", all numbers and every category whose levels are not declared. The outcome is not
    among them. No file is opened: a source's schema is known without its records.

    >>> unbounded(DataConfig(source="breast-cancer"))
    ()
    """
    if data.source in CORPORA:  # documents have no columns
        return ()
    return unbounded_columns(declared(data), data)


def unbounded_columns(schema: SourceSchema, data: DataConfig) -> tuple[str, ...]:
    """The same for a schema at hand."""
    pooled = data.scaling == "pooled"
    return tuple(
        column.name
        for column in schema.columns
        if column.name != schema.outcome
        and (column.feature or column.name in data.keep)
        and (not column.bounded or (pooled and column.kind == "numeric"))
    )
