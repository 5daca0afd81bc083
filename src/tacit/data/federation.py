"""Data and partition put together: the records of every party, ready for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tacit.data.catalogue import read_table
from tacit.data.config import WITH_SITES, DataConfig, PartitionConfig, check_together
from tacit.data.partition import Rows, balanced, by_label, held_out_rows, skew
from tacit.data.prepare import Column, as_kept, as_text, encode, read_column, with_pooled_scale
from tacit.data.table import Table
from tacit.data.target import read_target
from tacit.errors import ConfigError, DataError

Records = dict[str, np.ndarray]

HOLD_OUT, PARTITION = 1, 2
"""Purposes that keep the random streams of one seed apart; 0 generates the data."""


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Who holds which prepared records.

    `parties` maps a name to {"x": (n, d), "y": (n,), and the kept columns}; its order is the
    parties' order. `notes` say what was done to the data beyond the declared schema: rows
    dropped, values clipped, pooled statistics. They are counts of records, so they stay with
    whoever may see the records.
    """

    parties: dict[str, Records] = field(repr=False)  # records are not for notebooks and logs
    test: Records | None = field(repr=False)
    names: tuple[str, ...]
    target: str
    output: Literal["bernoulli", "gaussian"]
    preparation: str
    notes: tuple[str, ...]
    truth: dict[str, float] | None = None
    """For generated data: the weights, by name, that made y."""


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """A table after reading and after the rows that a policy drops are gone."""

    table: Table
    features: list[Column]
    kept: list[Column]
    y: np.ndarray
    groups: Rows | None
    notes: tuple[str, ...]


def load_federation(data: DataConfig, partition: PartitionConfig, seed: int) -> Federation:
    """Read, check, split, prepare and hand out the records.

    The same configuration and seed give the same federation on every machine.
    """
    check_together(data, partition)
    sites = partition.parties if partition.kind == "source" else None
    table = read_table(data, sites=sites, seed=_checked(seed))
    read = _read(table, data, partition)
    held = _hold_out(read, data, seed)
    train = np.flatnonzero(~held)
    y = read.y[train]
    if table.positive is not None and (y == y[0]).all():
        raise DataError(
            f'column "{table.target}": all {len(y)} training records have y = {y[0]:g}; nothing'
            f' can be learnt from one class: check data.positive = "{table.positive}" and the file'
        )
    if read.groups is not None:
        rows, notes = {name: part[~held[part]] for name, part in read.groups.items()}, ()
    else:
        dealt, notes = _deal(partition, y, binary=table.positive is not None, seed=seed)
        rows = {name: train[part] for name, part in dealt.items()}
    return _assemble(read, data, rows, held, notes)


def load_party(data: DataConfig, name: str, seed: int = 0) -> Federation:
    """What one site loads at its own place: all its records as one party, of whatever classes."""
    if data.preparation == "pooled":
        raise ConfigError(
            'data.preparation = "pooled"; one party alone has nothing to pool: declare the schema'
            ' and say "public"'
        )
    read = _read(read_table(data, sites=None, seed=_checked(seed)), data, PartitionConfig())
    held = _hold_out(read, data, seed)
    return _assemble(read, data, {name: np.flatnonzero(~held)}, held, ())


def load(
    source: str = "synthetic-cohort",
    *,
    parties: int | None = None,
    kind: Literal["balanced", "column", "skew", "source"] | None = None,
    column: str | None = None,
    size_skew: float = 0.0,
    label_skew: float = 0.0,
    seed: int = 0,
    **data: Any,
) -> Federation:
    """`load_federation` for a notebook: further keywords are those of `DataConfig`.

    Without `kind` the partition is what the other arguments imply: by column, skewed, the
    source's own sites, or balanced.

    >>> federation = load("gaussian-mean", parties=4, records=100, held_out=0.2, seed=1)
    >>> [len(records["y"]) for records in federation.parties.values()]
    [20, 20, 20, 20]
    """
    if kind is None:
        own_sites = source in WITH_SITES and (parties is None or source == "synthetic-cohort")
        if column is not None:
            kind = "column"
        elif size_skew != 0 or label_skew != 0:
            kind = "skew"
        else:
            kind = "source" if own_sites else "balanced"
    config = PartitionConfig(
        kind=kind,
        parties=10 if parties is None else parties,
        column=column,
        size_skew=size_skew,
        label_skew=label_skew,
    )
    return load_federation(DataConfig(source=source, **data), config, seed)


def split(records: Records, *, held_out: float = 0.2, seed: int = 0) -> tuple[Records, Records]:
    """(training, held-out) records, drawn as `load_federation` draws them."""
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out = {held_out}; it must be in [0, 1)")
    held = held_out_rows(
        len(records["y"]), held_out, np.random.default_rng([_checked(seed), HOLD_OUT])
    )
    return _take(records, np.flatnonzero(~held)), _take(records, np.flatnonzero(held))


def _checked(seed: int) -> int:
    if not seed >= 0:
        raise ConfigError(f"seed = {seed}; it must be a whole number of at least 0")
    return seed


def _take(records: Records, rows: np.ndarray) -> Records:
    return {name: values[rows] for name, values in records.items()}


def _read(table: Table, data: DataConfig, partition: PartitionConfig) -> _Rows:
    """Read the columns that are used, drop the rows whose policy says so, and find the sites."""
    label = table.site if partition.kind == "source" else partition.column
    used = [c for c in table.columns if c.name != table.target and c.feature]
    wanted = [column.name for column in used]
    for name in data.keep:
        if name == table.target or table.declared(name) is None:
            others = [c.name for c in table.columns if c.name != table.target]
            raise ConfigError(
                f'data.keep names "{name}"; the columns that can be kept are {", ".join(others)}'
            )
    _refuse_absent(
        table, [*wanted, *data.keep, table.target], "data.columns or data.target names it"
    )
    _refuse_absent(table, [label] if label else [], "partition.column names it")
    pooled = data.preparation == "pooled"
    target = read_target(table)
    wanted.extend(name for name in (*data.keep, label) if name and table.declared(name))
    columns = {
        config.name: read_column(table.frame[config.name], config, pooled=pooled)
        for config in table.columns
        if config.name in wanted and config.name != table.target
    }
    gone = np.zeros(len(table.frame), dtype=bool)
    notes: list[str] = []
    for column in (target, *columns.values()):
        if column.config.missing == "drop" and column.missing.any():
            gone |= column.missing
            notes.append(
                f'column "{column.config.name}": rows dropped for want of a value:'
                f" {column.missing.sum()}"
            )
    if gone.all():
        raise DataError(f"no rows are left after dropping {len(gone)} with missing values")
    there = ~gone
    columns = {name: column.rows(there) for name, column in columns.items()}
    columns_notes = [note for column in (target, *columns.values()) for note in column.notes]
    return _Rows(
        table=table,
        features=[columns[config.name] for config in used],
        kept=[columns[name] for name in data.keep],
        y=target.values[there].astype(np.float64),
        groups=_groups(table, label, columns, there) if label else None,
        notes=(*notes, *columns_notes),
    )


def _refuse_absent(table: Table, names: Sequence[str], why: str) -> None:
    for name in names:
        if name not in table.frame.columns:
            raise DataError(
                f'column "{name}" is not in the data ({why}); the columns are'
                f" {', '.join(table.frame.columns)}"
            )


def _groups(table: Table, label: str, columns: dict[str, Column], there: np.ndarray) -> Rows:
    """Rows of each natural party, in the declared order of levels, else in that of the text."""
    column = columns.get(label)
    if column is not None and column.config.kind == "categorical":
        order = list(column.config.levels)
        if column.missing.any():
            order.append("missing")
        codes = np.where(column.missing, len(column.config.levels), column.values)
        return by_label(np.array(order, dtype=object)[codes], order, label)
    text = as_text(table.frame[label])
    absent = text.is_null().to_numpy() & there
    if absent.any():
        raise DataError(
            f'column "{label}", data row {int(np.argmax(absent)) + 1}: the value is missing, so the'
            ' record has no party; fill it in, or declare the column with missing = "drop"'
        )
    labels = text.to_numpy()[there]
    return by_label(labels, sorted(set(labels.tolist())), label)


def _hold_out(read: _Rows, data: DataConfig, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, HOLD_OUT])
    groups = None if read.groups is None else list(read.groups.values())
    return held_out_rows(len(read.y), data.held_out, rng, groups)


def _deal(
    partition: PartitionConfig, y: np.ndarray, *, binary: bool, seed: int
) -> tuple[Rows, tuple[str, ...]]:
    rng = np.random.default_rng([seed, PARTITION])
    if partition.kind == "balanced":
        return balanced(len(y), partition.parties, rng), ()
    return skew(
        y,
        parties=partition.parties,
        size_skew=partition.size_skew,
        label_skew=partition.label_skew,
        binary=binary,
        rng=rng,
    )


def _assemble(
    read: _Rows, data: DataConfig, rows: Rows, held: np.ndarray, notes: tuple[str, ...]
) -> Federation:
    """Prepare all rows at once, then hand each party its own."""
    features, kept = read.features, read.kept
    if data.preparation == "pooled":
        features = [with_pooled_scale(column, ~held) for column in features]
        kept = [with_pooled_scale(column, ~held) for column in kept]
        notes = (
            "preparation is pooled: statistics of all parties' training records entered it, which"
            " no privacy guarantee covers",
            *(
                f'column "{c.config.name}": centre {c.config.center:.6g} and scale'
                f" {c.config.scale:.6g} are pooled statistics"
                for c in features
                if c.config.kind == "numeric"
            ),
            *notes,
        )
    records: Records = {"y": read.y}
    names: tuple[str, ...] = ("mean",)
    if read.table.design:
        x, names = encode(features, len(read.y))
        records = {"x": x, "y": read.y}
    for column in kept:
        records[column.config.name] = as_kept(column)
    if data.held_out > 0 and not held.any():
        notes = (*notes, f"data.held_out = {data.held_out} rounds to no record: there is no test")
    return Federation(
        parties={name: _take(records, part) for name, part in rows.items()},
        test=_take(records, np.flatnonzero(held)) if held.any() else None,
        names=names,
        target=read.table.target,
        output="gaussian" if read.table.positive is None else "bernoulli",
        preparation=data.preparation,
        notes=(*read.notes, *notes),
        truth=read.table.truth,
    )
