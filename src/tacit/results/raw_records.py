"""Prepare raw records, new or held out, according to the schema of a fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tacit.data.config import ColumnConfig
from tacit.data.derived import raw_names, with_derived
from tacit.data.frames import RawFrame, raw_frame
from tacit.data.prepare import (
    CellError,
    Column,
    as_kept,
    count_outside,
    encode,
    read_column,
    without_intercept,
)
from tacit.data.schema.outcome import read_outcome
from tacit.data.schema.table import SourceSchema, Table
from tacit.errors import ConfigError, DataError
from tacit.models import Records
from tacit.results.summary import DataFacts, declared_columns


class Prepared(NamedTuple):
    """Records in the form that a model needs."""

    records: Records
    complete: np.ndarray
    """One boolean per row, False if the row is dropped because of a missing value and has no
    prediction.
    """
    clipped: dict[str, int]
    """Dict from a column to the number of its values that are outside the bounds."""


def schema_of(data: DataFacts) -> SourceSchema | None:
    """Return the schema of a stored result; None for plain arrays and documents."""
    columns = declared_columns(data)
    if columns is None or data.outcome is None:
        return None
    return SourceSchema(columns=tuple(columns), outcome=data.outcome, positive=data.positive)


def prepared_records(
    schema: SourceSchema,
    frame: Any,
    where: str,
    *,
    keep: tuple[str, ...] = (),
    outcome: bool = False,
    declare: bool = False,
) -> Prepared:
    """Prepare raw records according to a schema.

    Parameters
    ----------
    schema
        The schema that the fit used.
    frame
        A data frame, a dictionary of columns or the path of a file.
    where
        Name of the records in messages.
    keep
        Columns that the model uses besides x.
    outcome
        True if the prepared records must also contain the outcome, as y. Incomplete records are
        then left out.
    declare
        True before a fit: an error about a cell may advise to change the schema.
    """
    try:
        return _prepared(schema, frame, where, keep, outcome=outcome)
    except CellError as error:
        if declare:
            raise
        raise DataError(f"{error.found}; {error.fix}, or drop the row") from error


def _prepared(
    schema: SourceSchema, frame: Any, where: str, keep: tuple[str, ...], *, outcome: bool
) -> Prepared:
    opened = frame if isinstance(frame, RawFrame) else raw_frame(frame, where)
    configs = [*schema.features, *(schema.declared(name) for name in keep)]
    known = [config for config in configs if config is not None]
    names = [config.name for config in known]
    raw = raw_names(schema.columns, names)
    wanted = [*raw, *([schema.outcome] if outcome and schema.outcome else [])]
    measured = outcome  # incomplete records are left out
    _refuse_absent(opened, wanted)
    table = with_derived(opened.select(wanted), schema.columns, names)
    known += [one for one in schema.columns if one.name in raw and one.name not in names]
    if not opened.rows:
        raise DataError(f"{where}: there are no rows; give at least one record")
    columns = {config.name: _read(table[config.name], config) for config in known}
    complete = np.ones(opened.rows, dtype=bool)
    for column in columns.values():
        if column.config.missing == "drop":
            complete &= ~column.missing
    records: Records = {}
    if schema.design:
        read = [columns[config.name] for config in schema.features]
        records["x"] = encode(read, opened.rows)[0]
    clipped = count_outside(columns.values())
    if not schema.outcome:
        records["x"], outcome = without_intercept(records["x"]), False
    if outcome:
        found = read_outcome(Table(frame=table, schema=schema))
        clipped |= count_outside([found])
        records["y"] = found.values.astype(np.float64)
        if found.config.missing == "drop":
            complete &= ~found.missing
    for name in keep:
        if name in columns:
            records[name] = as_kept(columns[name])
    if measured and not complete.all():
        records = {name: values[complete] for name, values in records.items()}
    return Prepared(records, complete, clipped)


def _refuse_absent(frame: RawFrame, wanted: list[str]) -> None:
    absent = [name for name in wanted if name not in frame.names]
    if absent:
        more = "" if len(absent) == 1 else f" (nor {', '.join(absent[1:6])})"
        raise DataError(
            f'{frame.where}: there is no column "{absent[0]}"{more}, which the fit used; add it'
        )


def _read(series: pl.Series, config: ColumnConfig) -> Column:
    """Read one column without dropping records; missing values are marked and set to 0."""
    if config.kind == "numeric" and config.feature and config.affine is None:
        raise ConfigError(
            f'the fit has no scale for column "{config.name}"; fit again with this version of tacit'
        )
    column = read_column(series, config, pooled=False)
    return replace(column, values=np.where(column.missing, 0, column.values))
