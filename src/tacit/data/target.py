"""The target: 0/1 for a named positive level, otherwise a number."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.prepare import Column, as_text, read_column
from tacit.data.table import Table
from tacit.errors import DataError


def read_target(table: Table) -> Column:
    """The values of y; a number is clipped if it has bounds, and rescaled only if told how.

    The target is never rescaled by pooled statistics, so a prediction keeps its unit.
    """
    declared = table.declared(table.target)
    series = table.frame[table.target]
    if table.positive is None:
        config = declared or ColumnConfig(name=table.target)
        column = read_column(series, config, pooled=False)
        if config.center is None or config.scale is None:
            return column
        return replace(column, values=(column.values - config.center) / config.scale)
    config = declared or ColumnConfig(name=table.target, kind="categorical")
    if not config.levels:
        config = msgspec.structs.replace(config, levels=_two_levels(series, config))
    column = read_column(series, config, pooled=False)
    if table.positive not in column.config.levels:
        raise DataError(
            f'data.positive = "{table.positive}" does not occur in column "{table.target}", whose'
            f" values are {', '.join(column.config.levels)}; name one of them, or"
            " declare the target's levels in data.columns"
        )
    y = column.values == column.config.levels.index(table.positive)
    return replace(column, values=y.astype(np.float64))


def _two_levels(series: pl.Series, config: ColumnConfig) -> tuple[str, ...]:
    """Levels of an undeclared binary target; a third would quietly become y = 0: refused."""
    text = as_text(series)
    found = text.set(text.is_in(config.missing_values), None).drop_nulls().unique().sort().to_list()
    if len(found) > 2:
        raise DataError(
            f'column "{config.name}" has {len(found)} values ({", ".join(found[:5])}, …) and'
            " data.positive makes every other one y = 0; declare its levels in data.columns if so"
        )
    return tuple(found)
