"""Read a raw table: check its columns, drop rows, and find the party and person of each row."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tacit.data.balance import balance_rng, surplus, surplus_note
from tacit.data.config import DataConfig, PartitionConfig
from tacit.data.derived import raw_names, with_derived
from tacit.data.partition import Rows, by_label
from tacit.data.persons import read_persons
from tacit.data.prepare import (
    Column,
    as_text,
    count_outside,
    missing_cells,
    names_of,
    read_column,
    share_outside,
)
from tacit.data.schema.columns import ColumnConfig
from tacit.data.schema.outcome import read_outcome
from tacit.data.schema.table import PARTY, SourceSchema, Table, listed
from tacit.errors import ConfigError, DataError
from tacit.support.argument_names import column_key
from tacit.support.validation import near_word

MIN_RECORDS = 20
"""With more records than this, a party column without repeated values is refused as a mistake."""


@dataclass(frozen=True, kw_only=True)
class ReadRows:
    """A table after reading, without dropped rows."""

    schema: SourceSchema
    features: list[Column]
    kept: list[Column]
    y: np.ndarray
    groups: Rows | None
    """Rows of each party, as indices into the rows that were read."""
    persons: np.ndarray | None
    """An integer per row that identifies the person; None without data.person."""
    frame: pl.DataFrame | None = None
    """The whole table, with all its columns; None for synthetic rows."""
    places: np.ndarray | None = None
    """For each remaining row, its index in the whole table; None for synthetic rows."""
    labels: np.ndarray | None = None
    """Party of each row of the table, including dropped ones; None if there are no parties."""
    true_values: dict[str, float] | None = None
    notes: tuple[str, ...] = ()
    clipped: dict[str, int] = field(default_factory=dict)
    """Number of values per column that were clipped to the bounds."""
    shares_outside: dict[str, float] = field(default_factory=dict)
    """Share of the values of a column that were clipped, of those that are not missing."""


def read_rows(table: Table, data: DataConfig, partition: PartitionConfig, *, seed: int) -> ReadRows:
    """Read the columns in use and find the party of each row.

    Rows with missing values are dropped where the schema declares this.
    """
    try:
        return _read_rows(table, data, partition, seed=seed)
    except DataError as error:
        raise located(error, table) from error


def located(error: DataError, table: Table) -> DataError:
    """Return the error with the name of the party and the row number in the party's table.

    This applies if the table was made from several tables; otherwise the error is unchanged.
    """
    found = re.search(r"data row (\d+)", str(error))
    if found is None or len(table.parties) < 2:
        return error
    row = int(found[1]) - 1
    party = table.frame[PARTY][row]
    before = int((table.frame[PARTY][:row] == party).sum())
    text = str(error).replace(found[0], f"data row {before + 1}", 1)
    return DataError(f'party "{party}": {text}')


def _read_rows(
    table: Table, data: DataConfig, partition: PartitionConfig, *, seed: int
) -> ReadRows:
    schema = table.schema
    label = schema.site if partition.kind == "source" else data.party
    if label is None and table.parties:
        label = PARTY
    wanted = {column.name for column in schema.features}
    check_keep(schema, data)
    _refuse_unknown(table, data, label, wanted)
    wanted.update(data.keep)
    nameless = np.zeros(table.frame.height, dtype=bool)
    declared = schema.declared(label) if label else None
    if declared is not None and (declared.levels or declared.name in wanted):
        wanted.add(declared.name)
    elif declared is not None and declared.missing == "drop":
        nameless = without_name(_names(table.frame[declared.name], declared))
    outcome = read_outcome(table)
    frame = with_derived(table.frame, schema.columns, wanted)
    wanted.update(raw_names(schema.columns, wanted))
    columns = {
        config.name: read_column(frame[config.name], config, pooled=data.scaling == "pooled")
        for config in schema.columns
        if config.name in wanted and config.name != schema.outcome
    }
    there, notes = _remaining(outcome, columns, nameless, data, seed)
    labels = _labels(table, label, columns) if label else None
    shares = share_outside((outcome, *columns.values()))
    columns = {name: column.rows(there) for name, column in columns.items()}
    measured = (outcome, *columns.values())
    columns_notes = [note for column in measured for note in column.notes]
    return ReadRows(
        schema=schema,
        features=[columns[config.name] for config in schema.features],
        kept=[columns[name] for name in data.keep],
        y=outcome.values[there].astype(np.float64),
        groups=_groups(table, label, columns, labels, there) if labels is not None else None,
        persons=_persons(table, data.person, there) if data.person else None,
        frame=table.frame,
        places=np.flatnonzero(there),
        labels=labels,
        true_values=table.true_values,
        notes=(*table.notes, *notes, *columns_notes),
        clipped=count_outside(measured),
        shares_outside=shares,
    )


def _remaining(
    outcome: Column,
    columns: dict[str, Column],
    nameless: np.ndarray,
    data: DataConfig,
    seed: int,
) -> tuple[np.ndarray, list[str]]:
    """Return a mask of the rows that are used, and notes about the dropped rows.

    `nameless` marks rows without a party, which are dropped.
    """
    gone, notes = nameless.copy(), []
    if nameless.any():
        notes.append(f"rows dropped because their party is missing: {nameless.sum()}")
    for column in (outcome, *columns.values()):
        if column.config.missing == "drop" and column.missing.any():
            gone |= column.missing
            if column.config.derived:  # noted for its sources
                continue
            notes.append(
                f'column "{column.config.name}": rows dropped because of missing values:'
                f" {column.missing.sum()}"
            )
    if gone.all():
        raise DataError(
            f"no rows are left, because all {len(gone)} have missing values; fill them in, or "
            'declare another treatment than missing = "drop"'
        )
    if data.balance:
        left = np.flatnonzero(~gone)
        over = left[surplus(outcome.values[left], balance_rng(seed))]
        gone[over] = True
        if len(over):
            notes.append(surplus_note(len(over), len(left) - len(over)))
    return ~gone, notes


def check_keep(schema: SourceSchema, data: DataConfig) -> None:
    """Raise an error if `data.keep` names the outcome or a column that the schema does not
    declare.
    """
    for name in data.keep:
        if name == schema.outcome or schema.declared(name) is None:
            others = [c.name for c in schema.columns if c.name != schema.outcome]
            raise ConfigError(f'data.keep names "{name}"; choose from the columns {listed(others)}')


def _refuse_unknown(table: Table, data: DataConfig, label: str | None, wanted: set[str]) -> None:
    """Raise an error if the configuration uses a column that the data lacks."""
    reasons = {
        "[columns] or outcome names it": [
            *sorted(wanted),
            *data.keep,
            *([table.schema.outcome] if table.schema.outcome else []),
        ],
        "data.party names it": [label] if label else [],
        "data.person names it": [data.person] if data.person else [],
    }
    there = set(table.frame.columns)
    for why, names in reasons.items():
        for name in raw_names(table.schema.columns, names):
            if name not in there:
                near = near_word(name, table.frame.columns)
                advice = f'did you mean "{near}"? ' if near else ""
                raise DataError(
                    f'column "{name}" is not in the data, but {why}; {advice}the columns of the '
                    f"data are {listed(table.frame.columns)}"
                )


def _persons(table: Table, name: str, there: np.ndarray) -> np.ndarray:
    declared = table.schema.declared(name)
    gaps = () if declared is None else declared.missing_values
    return read_persons(table.frame[name], there, gaps)


def _labels(table: Table, label: str, columns: dict[str, Column]) -> np.ndarray:
    """Return the name of the party of each row of the table; None where it is missing."""
    column = columns.get(label)
    if label != PARTY and column is not None and column.config.kind == "categorical":
        order = np.array([*column.config.levels, None], dtype=object)
        return order[np.where(column.missing, len(column.config.levels), column.values)]
    declared = None if label == PARTY else table.schema.declared(label)
    return _names(table.frame[label], declared)


def _names(series: pl.Series, declared: ColumnConfig | None) -> np.ndarray:
    """Return the cells of the party column as text; None for missing cells."""
    text = as_text(series)
    if declared is not None and declared.missing_values:
        text = text.set(missing_cells(text, declared.missing_values), None)
    return names_of(text).to_numpy().astype(object)


def without_name(labels: np.ndarray) -> np.ndarray:
    """Return a mask of the rows whose party is missing."""
    return np.array([one is None for one in labels.tolist()], dtype=bool)


def _groups(
    table: Table,
    label: str | None,
    columns: dict[str, Column],
    labels: np.ndarray,
    there: np.ndarray,
) -> Rows:
    """Return the rows of each party.

    Parties are in the declared order of levels, otherwise in alphabetical order.
    """
    read = labels[there]
    if label == PARTY:
        return by_label(read, table.parties)
    assert label is not None
    column = columns.get(label)
    if column is not None and column.config.kind == "categorical":
        order = [*column.config.levels, *(["missing"] if column.missing.any() else [])]
        return by_label(np.where(column.missing, "missing", read), order, label)
    absent = without_name(labels) & there
    if absent.any():
        raise DataError(
            f'column "{label}", data row {int(np.argmax(absent)) + 1}: the value is missing, so the'
            f" record has no party; fill it in, or drop such records with {column_key(label)}"
            '.missing = "drop" in the schema'
        )
    if len(read) > MIN_RECORDS and len(set(read.tolist())) == len(read):
        raise DataError(
            f'column "{label}" has a different value in each of {len(read)} records, so it cannot '
            "name the party; use the column of the organisations that hold the records"
        )
    return by_label(read, sorted(set(read.tolist())), label)
