"""The [data] table of a configuration, validated when it is read.

This module needs no array library. It reports the errors that can be found without opening the
data. Other errors are reported when the data are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from tacit.data.partition_settings import PartitionConfig
from tacit.data.schema.columns import ColumnConfig, undeclared
from tacit.errors import TacitError
from tacit.support.argument_names import column_key
from tacit.support.tables import Table, shown
from tacit.support.validation import BelowOne, Count, Finite, Positive

TABULAR = ("held_out", "scaling", "keep", "balance", "party")
SOURCE_KEYS: dict[str, tuple[str, ...]] = {
    "synthetic-cohort": ("records", "person", "site", *TABULAR),
    "normal-mean": ("records", "mean", "sd", "held_out"),
    "adult": TABULAR,
    "rugged": tuple(key for key in TABULAR if key != "balance"),
    "heart": ("site", *TABULAR),
    "breast-cancer": TABULAR,
    "mimic3": ("path", "person", *TABULAR),
    "file": ("path", "separator", "columns", "outcome", "positive", "person", *TABULAR),
    "sql": ("database", "query", "columns", "outcome", "positive", "person", *TABULAR),
    "synthetic-topics": ("records", "different_words", "held_out"),
    "wikipedia": ("records", "different_words", "held_out"),
    "documents": ("path", "vocabulary", "different_words", "held_out"),
}
"""Sources of records, and the keys of [data] for each."""
SOURCES = tuple(SOURCE_KEYS)
GENERATED = ("synthetic-cohort", "normal-mean", "synthetic-topics")
OWN_TABLES = ("file", "sql")
"""Sources that are the user's own tables, with a declared schema."""
CORPORA = ("synthetic-topics", "wikipedia", "documents")
"""Sources whose records are documents."""
WITH_SITES = tuple(source for source, keys in SOURCE_KEYS.items() if "site" in keys)
PERSONS = {"synthetic-cohort": "patient", "mimic3": "subject"}
"""The column that identifies the person of a record, for the sources that have one."""
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")

Scaling = Literal["public", "pooled"]


class DataConfig(Table, frozen=True, kw_only=True):
    """Where the records come from and how they are prepared. The allowed keys depend on
    `source`.
    """

    place: ClassVar[str] = "data"
    kind_key: ClassVar[str] = "source"
    keys_of: ClassVar[Mapping[str, tuple[str, ...]]] = SOURCE_KEYS
    renamed: ClassVar[Mapping[str, str]] = {
        "target": "outcome at the top of the file",
        "columns": "the [columns] table",
        "positive": "positive at the top of the file",
        "preparation": "scaling",
        "column": "party",
    }
    renamed_kinds: ClassVar[Mapping[str, str]] = {"gaussian-mean": "normal-mean"}

    source: str = "synthetic-cohort"
    """A data set of `tacit data list`; not needed for a file, which only needs `path`."""
    path: str | tuple[str, ...] | None = None
    """The file with the records. In a list of files or a pattern such as "data/*.csv", each file is
    one party, unless `party` names a column."""
    database: str | None = None
    """A DuckDB file; if left out, the query names files, e.g. from 'visits.parquet'."""
    query: str | dict[str, str] | None = None
    """The SQL query whose rows are the records, or a table from party names to queries."""
    separator: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    """Separator of a CSV file; with "," a header with semicolons or tabs is recognised."""
    columns: tuple[ColumnConfig, ...] = ()
    """The public schema of the columns."""
    outcome: str | None = None
    """The outcome column; "" for a model of the columns themselves."""
    positive: str | None = None
    """Level of the outcome that becomes y = 1; all other levels become y = 0. If left out, y is the
    number in the outcome column or, if its levels are declared, the index of the level.
    """
    records: Count | None = None
    """Number of records to generate, or to read."""
    mean: Finite = 5.0
    """Mean of the generated records."""
    sd: Positive = 1.0
    """Standard deviation of the generated records."""
    held_out: BelowOne = 0.2
    """Share of the records that is held out of training to measure predictions."""
    scaling: Scaling = "public"
    """"public": numbers are scaled by the declared schema alone; "pooled": by statistics of all
    records, which is not private and is noted in the result."""
    keep: tuple[str, ...] = ()
    """Columns that are passed to the model besides the features."""
    person: str | None = None
    """The column that identifies the person of a record; a person's records stay together."""
    balance: bool = False
    """True: drop random records of the larger class until both classes have the same size."""
    party: str | None = None
    """Column whose values are the parties; by default [partition] distributes the records."""
    site: str | None = None
    """For one party: the site whose records it holds; by default it holds all records."""
    vocabulary: str | None = None
    """A text file with one word per line; by default vocabulary.txt in data.path."""
    different_words: Count | None = None
    """Largest number of different words per document, keeping the most frequent; by default all.
    Memory per document is proportional to it.
    """

    def faults(self) -> Iterator[str | TacitError]:
        yield from self._keep_faults()
        if self.source in OWN_TABLES:
            yield from self._file_faults() if self.source == "file" else self._sql_faults()
            yield from self._table_faults()
            yield from self._column_faults()
        yield from self._person_faults()
        if self.source != "file" and not isinstance(self.path, str | None):
            yield f'data.path is a list; source = "{self.source}" takes one path'
        if self.source == "documents" and not self.path:
            yield (
                'data.path is missing; source = "documents" needs a .npz of scipy.sparse counts'
                " and data.vocabulary, or a folder with counts.npz and vocabulary.txt"
            )
        if self.balance and self.source in OWN_TABLES and self.positive is None:
            yield (
                "data.balance = true; it needs an outcome of two classes: set positive at the top"
                " of the file, or leave balance out"
            )

    def _keep_faults(self) -> Iterator[str]:
        for name in dict.fromkeys(self.keep):
            if name in ("x", "y"):
                yield f'data.keep names "{name}"; x and y are reserved: rename the column'
            if self.keep.count(name) > 1:
                yield f'data.keep names "{name}" twice; name it once'
        if self.person is not None and "person" in self.keep:
            yield 'data.keep names "person", which is reserved with data.person: rename the column'

    def _person_faults(self) -> Iterator[str]:
        """Yield errors in data.person. This column must not be a feature or the outcome."""
        if self.person is None:
            return
        expected = PERSONS.get(self.source)
        if expected is not None and self.person != expected:
            yield f'data.person = "{self.person}"; source "{self.source}" has "{expected}"'
        if not self.person.strip():
            yield 'data.person = ""; give the name of a column of the file'
        elif self.person == self.outcome:
            yield f'data.person = "{self.person}"; this is the outcome: name another column'
        if any(column.name == self.person and column.feature for column in self.columns):
            yield (
                f'data.person = "{self.person}"; [columns] declares it as a feature: set'
                f" {column_key(self.person)}.feature = false, or do not declare it"
            )

    def _file_faults(self) -> Iterator[str]:
        if not self.path:
            yield 'data.path is missing; name the file with the records, e.g. "records.csv"'
        for one in (self.path,) if isinstance(self.path, str) else self.path or ():
            if not one.lower().endswith((*SUFFIXES, "*")):
                yield f'data.path = "{one}"; the name must end in one of {", ".join(SUFFIXES)}'

    def _sql_faults(self) -> Iterator[str]:
        if not self.query:
            yield (
                "data.query is missing; give the SQL query whose rows are the records, or a table "
                "[data.query] with one query per party"
            )
        if isinstance(self.query, dict) and self.party is not None:
            yield (
                f'data.party = "{self.party}" and [data.query] has one query per party; leave one '
                "of them out"
            )

    def _table_faults(self) -> Iterator[str]:
        if self.outcome is None:
            yield "outcome is missing; name the outcome column at the top of the file"
        if not self.columns:
            yield "columns is missing; declare the columns of the file in a [columns] table"

    def _column_faults(self) -> Iterator[str]:
        names = [column.name for column in self.columns]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                yield f"{column_key(name)} is declared twice; declare it once"
        for name in self.keep:
            if names and name not in names:
                yield (
                    f'data.keep names "{name}"; declare it in [columns] (feature = false keeps it'
                    " out of the features)"
                )
        for column in self.columns:
            if column.name == self.outcome:
                yield from self._outcome_faults(column)
            elif self.scaling == "public":
                yield from undeclared(column)

    def _outcome_faults(self, column: ColumnConfig) -> Iterator[str]:
        if column.missing not in ("refuse", "drop"):
            yield column.fault("missing", 'an outcome takes "drop" or "refuse"')
        if column.kind == "numeric" and self.positive is not None:
            yield (
                f'positive = "{self.positive}", but {column_key(self.outcome)} is declared numeric;'
                " declare its levels, or leave positive out"
            )
        if column.kind == "categorical" and self.positive is None and len(column.levels) < 2:
            yield (
                f"{column_key(self.outcome)}.levels = {shown(column.levels)}; declare all levels "
                "of the outcome, two or more, or set positive to the one that is y = 1"
            )
        if self.positive is not None and column.levels and self.positive not in column.levels:
            yield (
                f'positive = "{self.positive}"; the levels of {self.outcome} are'
                f" {', '.join(column.levels)}"
            )


def faults_together(data: DataConfig, partition: PartitionConfig) -> Iterator[str]:
    """Yield errors in the combination of the tables [data] and [partition], without opening any
    data.
    """
    if data.party is not None and partition != PartitionConfig():
        yield (
            f'data.party = "{data.party}" and partition.kind = "{partition.kind}"; the column'
            " assigns records to parties: leave [partition] out"
        )
    several = not isinstance(data.path, str | None) or "*" in (data.path or "")
    if isinstance(data.query, dict) and partition != PartitionConfig():
        yield (
            f'[data.query] has one query per party and partition.kind = "{partition.kind}"; leave'
            " [partition] out"
        )
    if several and data.party is None and partition != PartitionConfig():
        yield (
            f'data.path names several files and partition.kind = "{partition.kind}"; each file is a'
            " party: leave [partition] out"
        )
    if partition.kind == "source" and data.source not in WITH_SITES:
        yield (
            f'partition.kind = "source", but data.source = "{data.source}" has no sites'
            f' ({" and ".join(WITH_SITES)} have): choose "balanced" or "skew", or set data.party'
        )
    if data.source in CORPORA and partition.kind == "skew":
        yield (
            f'partition.kind = "skew", but data.source = "{data.source}" has documents:'
            ' choose "balanced"'
        )
    if data.records is not None and data.party is None and partition.parties > data.records:
        yield (
            f"partition.parties = {partition.parties}, but data.records = {data.records} are too"
            " few: lower partition.parties or raise data.records"
        )
