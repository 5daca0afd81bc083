"""The outcome as y: 0/1 for a positive level, the code of a level, or a number."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.prepare import Column, as_text, read_column
from tacit.data.schema.table import SourceSchema, Table
from tacit.errors import DataError


def read_outcome(table: Table) -> Column:
    """Read the outcome; a number is clipped to its bounds and rescaled only if declared.

    The outcome is never rescaled by pooled statistics, so a prediction keeps its unit.
    """
    schema = table.schema
    config = outcome_config(schema)
    if not schema.outcome:
        rows = table.frame.height
        return Column(config=config, values=np.zeros(rows), missing=np.zeros(rows, dtype=bool))
    series = table.frame[schema.outcome]
    if schema.positive is not None and not config.levels:
        config = msgspec.structs.replace(config, levels=_two_levels(series, config))
    column = read_column(series, config, pooled=False)
    if schema.positive is not None and schema.positive not in config.levels:
        raise DataError(
            f'positive = "{schema.positive}" does not occur in column "{schema.outcome}", whose'
            f" values are {', '.join(config.levels)}; name one of them, or"
            " declare the levels of the outcome in [columns]"
        )
    return replace(column, values=as_y(column, schema.positive))


def outcome_config(schema: SourceSchema) -> ColumnConfig:
    """Return the declared column of the outcome, or a default column."""
    if not schema.outcome:
        return ColumnConfig(name="no outcome")
    kind = "numeric" if schema.positive is None else "categorical"
    return schema.declared(schema.outcome) or ColumnConfig(name=schema.outcome, kind=kind)


def outcome_bounds(schema: SourceSchema) -> tuple[float, float] | None:
    """Return the smallest and largest y by the schema, scaled as in the model; None if
    undeclared.
    """
    config = outcome_config(schema)
    if schema.positive is not None or config.low is None or config.high is None:
        return None
    center = 0.0 if config.center is None else config.center
    scale = 1.0 if config.scale is None else config.scale
    return (config.low - center) / scale, (config.high - center) / scale


def outcome_levels(schema: SourceSchema) -> tuple[str, ...]:
    """Return the levels of a categorical outcome in the order of y; empty for other outcomes."""
    return outcome_config(schema).levels if schema.positive is None else ()


def as_y(column: Column, positive: str | None) -> np.ndarray:
    """Convert an outcome to y: 0/1, a level's code, or a number in its unit."""
    config = column.config
    if positive is not None:
        return (column.values == config.levels.index(positive)).astype(np.float64)
    if config.kind == "categorical":
        return column.values.astype(np.float64)
    if config.center is None or config.scale is None:
        return column.values
    return (column.values - config.center) / config.scale


def _two_levels(series: pl.Series, config: ColumnConfig) -> tuple[str, ...]:
    """Return the two levels of an undeclared binary outcome; refuse more than two."""
    text = as_text(series)
    found = text.set(text.is_in(config.missing_values), None).drop_nulls().unique().sort().to_list()
    if len(found) > 2:
        raise DataError(
            f'column "{config.name}" has {len(found)} values ({", ".join(found[:5])}, …) but'
            " positive allows two; declare all levels in [columns] to treat the others as y = 0"
        )
    return tuple(found)
