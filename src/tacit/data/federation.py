"""Federations: the prepared records of every party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacit.data.config import CORPORA, DataConfig, PartitionConfig, faults_together
from tacit.data.partition import Rows, balanced, held_out_rows, skew
from tacit.data.persons import balanced_persons, by_appearance, held_out_persons, refuse_shared
from tacit.data.prepare import Column, as_kept, encode, with_pooled_scale, without_intercept
from tacit.data.readers.catalogue import read_table
from tacit.data.records import len_records
from tacit.data.rows import ReadRows, read_rows, without_name
from tacit.data.schema.checks import unbounded_columns
from tacit.data.schema.layout import Layout, layout_of
from tacit.data.schema.outcome import outcome_bounds, outcome_levels
from tacit.data.schema.table import PARTY, SourceSchema, Table
from tacit.data.source_rows import SourceRows, table_rows, with_unused
from tacit.errors import ConfigError, DataError
from tacit.support.argument_names import python_names
from tacit.support.notebook import notebook_html
from tacit.support.tables import raise_all

if TYPE_CHECKING:
    from tacit.data.schema.schema import Schema

Records = dict[str, np.ndarray]
MOST_NAMES = 20
"""Largest number of parties and of columns that a notebook shows."""

HOLD_OUT, PARTITION = 1, 2
"""Ids of independent random streams; ids 0, 3 and 4 are used to generate and balance data."""


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The prepared records of every party.

    `parties` maps the name of a party to its records: "x" of shape (n, d), "y" of shape (n,), and
    the columns of data.keep. With data.person there is also "person" of shape (n,), which numbers
    the persons of each party separately. `notes` say what preparation did beyond the declared
    schema: which rows were dropped, which values were clipped, and which statistics were pooled.
    They contain numbers of records, so they are as private as the records.

    Parameters
    ----------
    parties
        An ordered dict from party names to prepared records.
    test
        Held-out records, if there are any.
    names
        Names of the columns of x.
    outcome
        Name of the outcome; "" if there is none.
    output
        Kind of outcome: "bernoulli", "gaussian", "categorical" or "other".
    scaling
        "public", or "pooled" if statistics of all records were used.
    notes
        Descriptions of preparation beyond the schema.
    """

    parties: dict[str, Records] = field(repr=False)  # records are not for notebooks and logs
    test: Records | None = field(repr=False)
    names: tuple[str, ...]
    outcome: str
    output: Literal["bernoulli", "gaussian", "categorical", "other"]
    scaling: str
    notes: tuple[str, ...] = field(repr=False)  # notes contain numbers of records
    raw: dict[str, Records] = field(default_factory=dict, repr=False)
    """The training records before scaling and encoding. Version 0.1 identified a data set by
    these.
    """
    source: Mapping[str, Records] | None = field(default=None, repr=False)
    """For each party, all rows and columns of the source, even those that this split or selection
    of columns does not use. A ledger identifies the records by `source`, or by `raw` if `source`
    is None.
    """
    person: str | None = None
    """Column of `source` that identifies the person of a record."""
    true_values: dict[str, float] | None = None
    """For generated data: a dict from names of weights to their true values."""
    unbounded: tuple[str, ...] = ()
    """Columns without public bounds (`tacit.data.unbounded`)."""
    known_by: dict[str, Any] | None = None
    """Schema for the ledger's fingerprint; None if columns and outcome are used instead."""
    layout: Layout | None = field(default=None, repr=False)
    """What the schema declares about each column of x; None if the records have no x."""
    y_bounds: tuple[float, float] | None = None
    """Smallest and largest y that the schema allows, on the scale of y; None if the schema declares
    no bounds or the outcome is binary.
    """
    schema: SourceSchema | None = field(default=None, repr=False)
    """The public schema; None for documents, which have no columns."""
    levels: tuple[str, ...] = ()
    """Levels of a categorical outcome, in the order of y; otherwise empty."""

    frames: str | None = None
    """Library of the data frames that were given, "pandas" or "pyarrow"; None for polars and for
    records that are not data frames.
    """
    clipped: dict[str, int] = field(default_factory=dict, repr=False)
    """Number of values per column that were clipped to the bounds; as private as the records."""
    shares_outside: dict[str, float] = field(default_factory=dict, repr=False)
    """Share of the values of a column that were clipped, of those that are not missing; as private
    as the records.
    """
    test_parties: tuple[str, ...] = field(default=(), repr=False)
    """The party of each held-out record, if records naturally belong to parties."""

    def held_out_by_party(self) -> dict[str, Records]:
        """Return the held-out records of each party.

        The result is empty if records were distributed over the parties at random.
        """
        if self.test is None or not self.test_parties:
            return {}
        labels = np.array(self.test_parties, dtype=object)
        return {
            name: _take(self.test, np.flatnonzero(labels == name))
            for name in self.parties
            if (labels == name).any()
        }

    @classmethod
    def from_frame(
        cls,
        data: Any,
        formula: str,
        *,
        party: str | None = None,
        schema: Schema | None = None,
        person: str | None = None,
        held_out: float = 0.0,
        infer: bool = False,
        seed: int = 0,
    ) -> Federation:
        """Prepare data frames or files for a model.

        Parameters
        ----------
        data
            A pandas, polars or Arrow data frame with a `party` column, a dict from party names to
            such frames, files (one per party) or a pattern such as "data/*.csv".
        formula
            Outcome and columns, e.g. "died ~ age + C(sex)".
        party
            The column that names the party of each record.
        schema
            Public bounds and levels of the columns.
        person
            The column that identifies the person of a record.
        held_out
            Share of the records that is held out of training.
        infer
            True: undeclared facts are read from the records, which no privacy guarantee covers.
        seed
            Seed of the held-out split.
        """
        from tacit.data.formula import parse_formula
        from tacit.data.study import federation_from

        with python_names():
            return federation_from(
                data,
                parse_formula(formula),
                party=party,
                schema=schema,
                person=person,
                held_out=held_out,
                private=not infer,
                seed=seed,
            )

    def _repr_html_(self) -> str:
        """Return a summary for notebooks that contains no record and no number of records."""
        shown = ", ".join(list(self.parties)[:MOST_NAMES])
        more = len(self.parties) - MOST_NAMES
        columns = ", ".join(self.names[:MOST_NAMES])
        return notebook_html(
            f"Federation of {len(self.parties)} parties",
            [
                ("parties", shown + (f" and {more} more" if more > 0 else "")),
                ("outcome", f"{self.outcome} ({self.output})" if self.outcome else "none"),
                (
                    f"{len(self.names)} columns of x",
                    columns + ("…" * (len(self.names) > MOST_NAMES)),
                ),
                ("scaling", self.scaling),
                ("held-out records", "no" if self.test is None else "yes"),
                ("ready for privacy", "no: public bounds are missing" if self.unbounded else "yes"),
            ],
        )


def load_federation(data: DataConfig, partition: PartitionConfig, seed: int) -> Federation:
    """Read, check, split and prepare the records of all parties.

    The same configuration and seed give the same federation on every machine.
    """
    raise_all(faults_together(data, partition))
    if data.site is not None:
        raise ConfigError(
            f'data.site = "{data.site}"; it is for a single party, but all parties are loaded '
            "here: leave data.site out, or use `load_party`"
        )
    if data.source in CORPORA:
        from tacit.data.readers.corpora import corpus_federation

        return corpus_federation(data, partition, _checked(seed))
    sites = partition.parties if partition.kind == "source" else None
    return federation_of_table(
        read_table(data, sites=sites, seed=_checked(seed)), data, partition, seed
    )


def federation_of_table(
    table: Table, data: DataConfig, partition: PartitionConfig, seed: int
) -> Federation:
    """Check, split and prepare the rows of a table."""
    schema = table.schema
    read = read_rows(table, data, partition, seed=_checked(seed))
    if read.groups is not None and read.persons is not None:
        setting = f'partition.kind = "{partition.kind}"'
        if data.party is not None:
            setting = f'data.party = "{data.party}"'
        own = data.person if table.parties and data.party is None else None
        refuse_shared(read.groups, read.persons, setting, own_tables=own)
    held = _hold_out(read, data, seed)
    train = np.flatnonzero(~held)
    y = read.y[train]
    if schema.positive is not None and (y == y[0]).all():
        raise DataError(
            f'column "{schema.outcome}": all {len(y)} training records have y = {y[0]:g}, but both'
            f' classes are needed; check the records, and check that "{schema.positive}" is the'
            " level for y = 1"
        )
    if read.groups is not None:
        rows, notes = {name: part[~held[part]] for name, part in read.groups.items()}, ()
    else:
        persons = None if read.persons is None else read.persons[train]
        binary = schema.positive is not None
        dealt, notes = deal(partition, y, persons, binary=binary, seed=seed)
        rows = {name: train[part] for name, part in dealt.items()}
    return assemble(read, data, rows, held, notes)


def load_party(
    data: DataConfig, name: str, seed: int = 0, *, sites: int | None = None
) -> Federation:
    """Load the records of a single party.

    If `data.site` is set, these are the records of that site, in the same order as in
    `load_federation` with partition.kind = "source". `sites` is the number of sites of the
    synthetic cohort; other sources ignore it.
    """
    if data.scaling == "pooled":
        raise ConfigError(
            'data.scaling = "pooled"; a single party cannot pool the records of all parties: '
            'declare bounds in the schema and set data.scaling = "public"'
        )
    if data.balance:
        raise ConfigError(
            "data.balance = true; a single party does not know the labels of all parties: leave "
            "data.balance out"
        )
    if data.source in CORPORA:
        from tacit.data.readers.corpora import corpus_party

        return corpus_party(data, name, _checked(seed))
    table = read_table(data, sites=sites, seed=_checked(seed))
    read = read_rows(table, data, PartitionConfig(), seed=seed)
    held = _hold_out(read, data, seed)
    return assemble(read, data, {name: np.flatnonzero(~held)}, held, ())


def split(records: Records, *, held_out: float = 0.2, seed: int = 0) -> tuple[Records, Records]:
    """Split records into training and held-out records, as `load_federation` does.

    All records of a person are in the same part.
    """
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out = {held_out}; it must be in [0, 1)")
    rng = np.random.default_rng([_checked(seed), HOLD_OUT])
    if "person" in records:
        held = held_out_persons(by_appearance(records["person"]), held_out, rng)
    else:
        held = held_out_rows(len_records(records), held_out, rng)
    return _take(records, np.flatnonzero(~held)), _take(records, np.flatnonzero(held))


def _checked(seed: int) -> int:
    if not seed >= 0:
        raise ConfigError(f"seed = {seed}; it must be a whole number, at least 0")
    return seed


def _take(records: Records, rows: np.ndarray) -> Records:
    return {name: values[rows] for name, values in records.items()}


def _hold_out(read: ReadRows, data: DataConfig, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, HOLD_OUT])
    groups = None if read.groups is None else list(read.groups.values())
    if read.persons is not None:
        return held_out_persons(read.persons, data.held_out, rng, groups)
    return held_out_rows(len(read.y), data.held_out, rng, groups)


def deal(
    partition: PartitionConfig,
    y: np.ndarray,
    persons: np.ndarray | None,
    *,
    binary: bool,
    seed: int,
) -> tuple[Rows, tuple[str, ...]]:
    """Distribute rows over parties as the [partition] table says.

    Returns the row numbers of each party, and notes about the distribution.
    """
    rng = np.random.default_rng([seed, PARTITION])
    if partition.kind == "balanced":
        if persons is not None:
            return balanced_persons(persons, partition.parties, rng), ()
        return balanced(len(y), partition.parties, rng), ()
    rows, notes = skew(
        y,
        parties=partition.parties,
        size_skew=partition.size_skew,
        label_skew=partition.label_skew,
        binary=binary,
        rng=rng,
    )
    if persons is not None:
        refuse_shared(rows, persons, 'partition.kind = "skew"')
    return rows, notes


def _pooled_notes(features: Sequence[Column]) -> list[str]:
    return [
        "scaling is pooled: it uses statistics of all parties' training records, which no"
        " privacy guarantee covers",
        *(
            f'column "{c.config.name}": centre {c.config.center:.6g} and scale'
            f" {c.config.scale:.6g} are pooled statistics"
            for c in features
            if c.config.kind == "numeric"
        ),
    ]


def assemble(
    read: ReadRows, data: DataConfig, rows: Rows, held: np.ndarray, notes: tuple[str, ...]
) -> Federation:
    """Prepare all rows and return the federation. `rows` has the training rows of each party, and
    `held` marks held-out rows.
    """
    features, kept = read.features, read.kept
    if data.scaling == "pooled":
        features = [with_pooled_scale(column, ~held) for column in features]
        kept = [with_pooled_scale(column, ~held) for column in kept]
        notes = (*_pooled_notes(features), *notes)
    records: Records = {"y": read.y}
    names: tuple[str, ...] = ("mean",)
    layout: Layout | None = None
    if read.schema.design:
        x, names = encode(features, len(read.y))
        layout = layout_of(column.config for column in features)
        records = {"x": x, "y": read.y}
    if not read.schema.outcome:
        assert layout is not None
        records, names, layout = {"x": without_intercept(x)}, names[1:], layout[1:]
    for column in kept:
        records[column.config.name] = as_kept(column)
    if data.held_out > 0 and not held.any():
        held_out = f"data.held_out = {data.held_out} holds out no record; raise it for a test"
        notes = (*notes, held_out)
    parties = {name: _take(records, part) for name, part in rows.items()}
    raw: Records = {"target " + read.schema.outcome: read.y} if read.schema.outcome else {}
    for column in (*features, *kept):
        raw[column.config.name] = np.where(column.missing, np.nan, column.values)
    if read.persons is not None:
        for name, part in rows.items():
            parties[name]["person"] = by_appearance(read.persons[part])
    schema = _prepared_schema(read.schema, (*features, *kept))
    return Federation(
        parties=parties,
        raw={name: _take(raw, part) for name, part in rows.items()},
        source=_source(read, rows),
        person=data.person,
        test=_take(records, np.flatnonzero(held)) if held.any() else None,
        names=names,
        outcome=read.schema.outcome,
        output=_output(read.schema),
        scaling=data.scaling,
        notes=(*read.notes, *notes),
        true_values=read.true_values,
        unbounded=unbounded_columns(read.schema, data),
        schema=schema,
        layout=layout,
        y_bounds=outcome_bounds(read.schema),
        levels=outcome_levels(read.schema),
        test_parties=_labels(read.groups, held),
        clipped=read.clipped,
        shares_outside=read.shares_outside,
    )


def _labels(groups: Rows | None, held: np.ndarray) -> tuple[str, ...]:
    if groups is None:
        return ()
    labels = np.empty(len(held), dtype=object)
    for name, rows in groups.items():
        labels[rows] = name
    return tuple(labels[held].tolist())


def _source(read: ReadRows, rows: Rows) -> SourceRows | None:
    """Return the rows of the source table by party, including held-out and dropped rows; None if
    there is no table.

    Rows without a party are divided equally among the parties. If a column names the parties, these
    are the rows in which the name is missing. Otherwise they are all rows that are not training
    records.
    """
    if read.frame is None or read.places is None:
        return None
    frame = read.frame.drop(PARTY, strict=False)  # a name that the reader gave
    places = {name: read.places[part] for name, part in rows.items()}
    if read.groups is None or read.labels is None:
        return table_rows(frame, with_unused(places, np.arange(frame.height)))
    belongs = {name: np.flatnonzero(read.labels == name) for name in rows}
    places = {name: np.union1d(part, belongs[name]) for name, part in places.items()}
    nameless = np.flatnonzero(without_name(read.labels))
    return table_rows(frame, with_unused(places, nameless))


def _prepared_schema(schema: SourceSchema, columns: Sequence[Column]) -> SourceSchema:
    """Return the schema with the centres and scales that pooled scaling computed.

    The result is used to prepare other records in the same way.
    """
    read = {column.config.name: column.config for column in columns}
    known = tuple(read.get(column.name, column) for column in schema.columns)
    return replace(schema, columns=known)


def _output(schema: SourceSchema) -> Literal["bernoulli", "gaussian", "categorical", "other"]:
    if not schema.outcome:
        return "other"
    if schema.positive is not None:
        return "bernoulli"
    return "categorical" if outcome_levels(schema) else "gaussian"
