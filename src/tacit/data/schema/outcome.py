"""Conversion of the outcome to y: 1 or 0 (positive or not), the index of a level, or a number."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.prepare import Column, as_text, missing_cells, names_of, read_column
from tacit.data.schema.table import SourceSchema, Table
from tacit.errors import DataError


def read_outcome(table: Table) -> Column:
    """Read the outcome column and convert it to y by `as_y`.

    Numbers are clipped to declared bounds. They are rescaled only if center and scale are declared,
    never by statistics of the records. The scale of predictions is therefore known.
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
    """Return the schema of the outcome column; a default schema if it is not declared."""
    if not schema.outcome:
        return ColumnConfig(name="no outcome")
    kind = "numeric" if schema.positive is None else "categorical"
    return schema.declared(schema.outcome) or ColumnConfig(name=schema.outcome, kind=kind)


def outcome_bounds(schema: SourceSchema) -> tuple[float, float] | None:
    """Return the smallest and the largest y that the declared bounds allow, after rescaling.

    The result is None if no bounds are declared or the outcome has a positive level.
    """
    config = outcome_config(schema)
    if schema.positive is not None or config.low is None or config.high is None:
        return None
    center = 0.0 if config.center is None else config.center
    scale = 1.0 if config.scale is None else config.scale
    return (config.low - center) / scale, (config.high - center) / scale


def outcome_levels(schema: SourceSchema) -> tuple[str, ...]:
    """Return the levels of a categorical outcome; y = k for level number k, counted from 0.

    The result is empty for other outcomes.
    """
    return outcome_config(schema).levels if schema.positive is None else ()


def as_y(column: Column, positive: str | None) -> np.ndarray:
    """Convert the outcome to y.

    If `positive` is given, y is 1 for this level and 0 for other levels. Otherwise y is the index
    of the level or, for a numeric column, the number, rescaled by a declared center and scale.
    """
    config = column.config
    if positive is not None:
        return (column.values == config.levels.index(positive)).astype(np.float64)
    if config.kind == "categorical":
        return column.values.astype(np.float64)
    if config.center is None or config.scale is None:
        return column.values
    return (column.values - config.center) / config.scale


def _two_levels(series: pl.Series, config: ColumnConfig) -> tuple[str, ...]:
    """Return the values of a binary outcome without declared levels; raise an error for more than
    two.
    """
    text = as_text(series)
    gone = missing_cells(text, config.missing_values)
    found = names_of(text.filter(~gone)).drop_nulls().unique().sort().to_list()
    if len(found) > 2:
        raise DataError(
            f'column "{config.name}" has {len(found)} values ({", ".join(found[:5])}, …); with'
            " `positive`, an outcome with more than two values needs declared levels: declare all"
            " levels in [columns], so that `positive` is y = 1 and every other level is y = 0"
        )
    return tuple(found)
