"""The outcome: 0/1 for a named positive level, the place of its level, or a number."""

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
    """The values of y; a number is clipped if it has bounds, and rescaled only if told how.

    The outcome is never rescaled by pooled statistics, so a prediction keeps its unit.
    """
    schema = table.schema
    config = outcome_config(schema)
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
    """The outcome's column as it is declared, or as a column without a declaration is."""
    kind = "numeric" if schema.positive is None else "categorical"
    return schema.declared(schema.outcome) or ColumnConfig(name=schema.outcome, kind=kind)


def outcome_bounds(schema: SourceSchema) -> tuple[float, float] | None:
    """Least and largest y by the schema, in the unit that a model sees; None: not declared."""
    config = outcome_config(schema)
    if schema.positive is not None or config.low is None or config.high is None:
        return None
    center = 0.0 if config.center is None else config.center
    scale = 1.0 if config.scale is None else config.scale
    return (config.low - center) / scale, (config.high - center) / scale


def outcome_levels(schema: SourceSchema) -> tuple[str, ...]:
    """The levels of an outcome that is one of several, in the order of y; none for any other."""
    return outcome_config(schema).levels if schema.positive is None else ()


def as_y(column: Column, positive: str | None) -> np.ndarray:
    """What an outcome that was read is as y: 0/1, a level's place, or a number in its unit."""
    config = column.config
    if positive is not None:
        return (column.values == config.levels.index(positive)).astype(np.float64)
    if config.kind == "categorical":
        return column.values.astype(np.float64)
    if config.center is None or config.scale is None:
        return column.values
    return (column.values - config.center) / config.scale


def _two_levels(series: pl.Series, config: ColumnConfig) -> tuple[str, ...]:
    """Levels of an undeclared binary outcome; a third would quietly become y = 0: refused."""
    text = as_text(series)
    found = text.set(text.is_in(config.missing_values), None).drop_nulls().unique().sort().to_list()
    if len(found) > 2:
        raise DataError(
            f'column "{config.name}" has {len(found)} values ({", ".join(found[:5])}, …) and'
            " positive makes every other one y = 0; declare its levels in [columns] if so"
        )
    return tuple(found)
