"""Synthetic federations, generated from a declared schema.

Only the configuration is used; no file is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
from scipy.special import ndtr, ndtri

from tacit.data.config import ColumnConfig, DataConfig, PartitionConfig
from tacit.data.federation import Federation, Records, assemble, deal
from tacit.data.partition import Rows, by_label
from tacit.data.prepare import Column
from tacit.data.readers.catalogue import declared
from tacit.data.rows import ReadRows, check_keep
from tacit.data.schema.outcome import outcome_bounds
from tacit.data.schema.public import declared_range, known_outcome
from tacit.data.schema.table import SourceSchema, listed
from tacit.errors import ConfigError

RECORDS_PER_PERSON = 2
MISSING_SHARE = 0.1
"""Share of missing values in a numeric column with an indicator."""
POOLED_PARTY = "everyone"

Bounds = tuple[float, float] | None
Outcome = Callable[[Records, Bounds, np.random.Generator], np.ndarray]
"""A function that draws y, given prepared records, the bounds of y and a random generator."""


def synthetic_federation(
    data: DataConfig,
    partition: PartitionConfig,
    *,
    records: int,
    test: int,
    outcome: Outcome,
    seed: int,
) -> Federation:
    """Generate a federation with `records` training records and `test` held-out records.

    Columns are independent. A category is uniform over its declared levels, including a level for
    missing values if the schema has one. A number has a normal distribution, truncated to its
    bounds. Its mean and standard deviation are the declared centre and scale; otherwise they are
    the midpoint of the bounds and a quarter of their width. A person has two records. `outcome`
    generates y, which is then clipped to the bounds of the outcome. The parties are those of
    `partition` or, if a column names the parties, its levels; these parties have equal sizes.
    """
    sites = partition.parties if partition.kind == "source" else None
    schema = declared(data, sites=sites)
    check_keep(schema, data)
    known_outcome(schema)
    rng = np.random.default_rng(seed)
    size = records + test
    columns = {config.name: _drawn(config, size, rng) for config in schema.columns}
    label = schema.site if partition.kind == "source" else data.party
    groups = None
    if label is not None:
        columns[label], groups = _parties(schema, columns, label, records, rng)
    persons = np.arange(size) // RECORDS_PER_PERSON if data.person is not None else None
    if persons is not None and groups is not None:
        persons = _own_persons(groups, size)
    read = ReadRows(
        schema=schema,
        features=[columns[config.name] for config in schema.features],
        kept=[columns[name] for name in data.keep],
        y=np.zeros(size),
        groups=groups,
        persons=persons,
    )
    held = np.arange(size) >= records
    plain = msgspec.structs.replace(data, held_out=0.0)
    all_rows = {POOLED_PARTY: np.arange(size)}
    whole = assemble(read, plain, all_rows, np.zeros(size, dtype=bool), ()).parties[POOLED_PARTY]
    bounds = outcome_bounds(schema)
    y = outcome({k: v for k, v in whole.items() if k != "person"}, bounds, rng)
    y = y if bounds is None else np.clip(y, *bounds)
    rows = groups
    if rows is None:
        rows, _ = deal(
            partition,
            y[:records],
            None if persons is None else persons[:records],
            binary=schema.positive is not None,
            seed=seed,
        )
    return replace(assemble(replace(read, y=y), plain, rows, held, ()), raw={})


def _drawn(config: ColumnConfig, size: int, rng: np.random.Generator) -> Column:
    missing = np.zeros(size, dtype=bool)
    if config.kind == "categorical":
        values = rng.integers(len(config.levels) + (config.missing == "level"), size=size)
        missing = values == len(config.levels)
        values = np.where(missing, 0, values)
    else:
        center, spread, low, high = _law(config)
        below, above = ndtr((low - center) / spread), ndtr((high - center) / spread)
        values = center + spread * ndtri(below + (above - below) * rng.random(size))
        values = np.clip(values, low, high)
        if config.missing == "indicator":
            missing = rng.random(size) < MISSING_SHARE
            values = np.where(missing, 0.0, values)
    return Column(config=config, values=values, missing=missing)


def _law(config: ColumnConfig) -> tuple[float, float, float, float]:
    """Return mean, standard deviation, lower bound and upper bound of a numeric column."""
    low, high = declared_range(config)
    if config.low is None:
        low, high = -np.inf, np.inf
    if config.center is not None and config.scale is not None:
        return config.center, config.scale, low, high
    if config.low is None:
        return 0.0, 1.0, low, high
    return (low + high) / 2, (high - low) / 4, low, high


def _parties(
    schema: SourceSchema,
    columns: dict[str, Column],
    label: str,
    records: int,
    rng: np.random.Generator,
) -> tuple[Column, Rows]:
    """Return a column that names the party of each row, and the training rows of each party.

    All parties have the same number of training rows, up to one.
    """
    config = schema.declared(label)
    if config is None or not config.levels:
        known = [c.name for c in schema.columns if c.levels and c.name != schema.outcome]
        raise ConfigError(
            f'data.party = "{label}" has no declared levels, so the parties are unknown'
            f' without records: declare "{label}" in [columns] with its levels, or name one of'
            f" {listed(known) or 'the declared categories'}"
        )
    codes = rng.permutation(np.arange(records) % len(config.levels))
    rest = columns[label].values[records:]
    column = Column(
        config=config,
        values=np.concatenate([codes, rest]),
        missing=np.zeros(records + len(rest), dtype=bool),
    )
    return column, by_label(np.array(config.levels, dtype=object)[codes], config.levels, label)


def _own_persons(groups: Rows, size: int) -> np.ndarray:
    """Return the person of each row as an integer; no person has records at two parties."""
    persons, first = np.zeros(size, dtype=np.int64), 0
    for rows in groups.values():
        persons[rows] = first + np.arange(len(rows)) // RECORDS_PER_PERSON
        first = int(persons[rows].max()) + 1
    return persons
