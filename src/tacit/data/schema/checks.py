"""Find columns without public bounds, which a private run does not accept.

Without declared bounds, a value can be arbitrarily large. Bounds computed from the data would
depend on every record. In both cases noise that is added later does not give a guarantee.
"""

from __future__ import annotations

from tacit.data.config import CORPORA, DataConfig
from tacit.data.readers.catalogue import declared
from tacit.data.schema.table import SourceSchema


def unbounded(data: DataConfig) -> tuple[str, ...]:
    """Return the names of features and columns of `data.keep` for which the public schema has no
    bounds.

    These are numeric columns without low and high, and categorical columns without declared levels.
    If `data.scaling` is "pooled", all numeric columns are listed. The outcome is never listed. No
    file is opened.

    >>> unbounded(DataConfig(source="breast-cancer"))
    ()
    """
    if data.source in CORPORA:  # documents have no columns
        return ()
    return unbounded_columns(declared(data), data)


def unbounded_columns(schema: SourceSchema, data: DataConfig) -> tuple[str, ...]:
    """Return the names of columns for which `schema` has no bounds. `unbounded` does the same for
    the schema that `data` declares.
    """
    pooled = data.scaling == "pooled"
    return tuple(
        column.name
        for column in schema.columns
        if column.name != schema.outcome
        and (column.feature or column.name in data.keep)
        and (not column.bounded or (pooled and column.kind == "numeric"))
    )
