"""What a user may say about data and about who holds it: validated when it is read.

This module needs no array library, so that a bad file is answered at once. Everything that can
be known to be wrong without opening the data is refused here; the rest is refused on loading.
"""

from __future__ import annotations

import difflib
import math
from typing import Literal

import msgspec

from tacit.data.schema.columns import ColumnConfig, check_public
from tacit.errors import ConfigError

SOURCES = (
    "synthetic-cohort",
    "gaussian-mean",
    "adult",
    "rugged",
    "heart",
    "breast-cancer",
    "mimic3",
    "file",
    "synthetic-topics",
    "wikipedia",
    "documents",
)
GENERATED = ("synthetic-cohort", "gaussian-mean", "synthetic-topics")
CORPORA = ("synthetic-topics", "wikipedia", "documents")
"""Sources whose records are documents."""
WITH_SITES = ("synthetic-cohort", "heart")
PERSONS = {"synthetic-cohort": "patient", "mimic3": "subject"}
"""The column that says whose a record is, for the sources that know it."""
NUMERIC_TARGET = ("gaussian-mean", "rugged")
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")

DEFAULT_MEAN = 5.0
DEFAULT_SD = 1.0

Preparation = Literal["public", "pooled"]


class DataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the records come from and how they become numbers."""

    source: str = "synthetic-cohort"
    path: str | None = None
    separator: str = ","
    columns: tuple[ColumnConfig, ...] = ()
    target: str | None = None
    positive: str | None = None
    """The level of the target that is y = 1; None: the target is a number, or, where it is declared
    categorical, one of its levels."""
    records: int | None = None
    mean: float = DEFAULT_MEAN
    sd: float = DEFAULT_SD
    held_out: float = 0.2
    preparation: Preparation = "public"
    keep: tuple[str, ...] = ()
    person: str | None = None
    """The column that says whose a record is; a person's records then stay together."""
    balance: bool = False
    """True: keep only as many records of the larger class as there are of the smaller one."""
    site: str | None = None
    """For one party: which of the source's own sites it is; None: all records are its own."""
    vocabulary: str | None = None
    """For source = "documents": a text file with the words; None: vocabulary.txt in data.path."""
    different_words: int | None = None
    """How many different words of a document are kept at most, its most frequent ones; None: all.
    Every document takes the memory of that many, so that few very long ones need not cost much."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            near = difflib.get_close_matches(self.source, SOURCES, n=1, cutoff=0.5)
            advice = f'did you mean "{near[0]}"?' if near else f"choose from {', '.join(SOURCES)}"
            raise ConfigError(f'data.source = "{self.source}"; no such source: {advice}')
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"data.held_out = {self.held_out}; it must be in [0, 1)")
        if self.records is not None:
            if self.source not in (*GENERATED, "wikipedia"):
                raise ConfigError(
                    f'data.records = {self.records}; source "{self.source}" has a fixed size:'
                    f" only {' and '.join(GENERATED)} take it"
                )
            if not self.records >= 1:
                raise ConfigError(f"data.records = {self.records}; it must be at least 1")
        self._check_generator()
        for name in self.keep:
            if name in ("x", "y"):
                raise ConfigError(f'data.keep names "{name}"; x and y are taken: rename the column')
            if self.keep.count(name) > 1:
                raise ConfigError(f'data.keep names "{name}" twice; name it once')
        if self.source == "file":
            self._check_file()
        else:
            own = {("mimic3", "path"), ("documents", "path")}
            for key in ("path", "columns", "target", "positive"):
                if getattr(self, key) and (self.source, key) not in own:
                    raise ConfigError(
                        f'data.{key} is set; source "{self.source}" brings its own:'
                        ' leave the key out, or say source = "file"'
                    )
        self._check_person()
        if self.site is not None and self.source not in WITH_SITES:
            raise ConfigError(
                f'data.site = "{self.site}"; source "{self.source}" has no sites of its own'
                f" ({' and '.join(WITH_SITES)} have): leave the key out"
            )
        unnamed = self.source == "file" and self.positive is None
        if self.balance and (unnamed or self.source in NUMERIC_TARGET):
            raise ConfigError(
                f'data.balance = true; the target of source "{self.source}" is not yes or no:'
                " balance needs two classes, name one in data.positive or leave balance out"
            )
        self._check_corpus()

    def _check_person(self) -> None:
        """A person's name is neither learnt from nor predicted: it only groups records."""
        if self.person is None:
            return
        if self.source != "file" and self.person != PERSONS.get(self.source):
            known = ", ".join(f'"{column}" of {source}' for source, column in PERSONS.items())
            raise ConfigError(
                f'data.person = "{self.person}"; source "{self.source}" has no such column (there'
                f' is {known}): leave the key out, or say source = "file"'
            )
        if not self.person.strip():
            raise ConfigError('data.person = ""; give the column\'s name in the file')
        if self.person == self.target:
            raise ConfigError(
                f'data.person = "{self.person}"; it is the target too: name another column'
            )
        if any(column.name == self.person and column.feature for column in self.columns):
            raise ConfigError(
                f'data.person = "{self.person}"; data.columns declares it a feature: declare it'
                " with feature = false, or not at all"
            )
        if "person" in self.keep:
            raise ConfigError(
                'data.keep names "person"; with data.person set that name is taken: rename the'
                " column"
            )

    def _check_corpus(self) -> None:
        """Documents have no columns; other records have no words."""
        if self.source == "documents" and not self.path:
            raise ConfigError(
                'data.path is missing; source = "documents" needs it: a .npz of scipy.sparse counts'
                " and data.vocabulary, or a folder with counts.npz and vocabulary.txt"
            )
        if self.vocabulary is not None and self.source != "documents":
            raise ConfigError(
                f'data.vocabulary = "{self.vocabulary}"; source "{self.source}" takes none: leave'
                ' it out, or say source = "documents"'
            )
        if self.source not in CORPORA:
            if self.different_words is not None:
                raise ConfigError(
                    f"data.different_words = {self.different_words}; the records of source"
                    f' "{self.source}" are no documents: leave it out'
                )
            return
        if self.different_words is not None and not self.different_words >= 1:
            raise ConfigError(
                f"data.different_words = {self.different_words}; it must be at least 1"
            )
        for key in ("keep", "balance"):
            if getattr(self, key):
                raise ConfigError(
                    f'data.{key} = {getattr(self, key)!r}; source "{self.source}" has documents,'
                    " which have no columns: leave it out"
                )
        if self.preparation != "public":
            raise ConfigError(
                f'data.preparation = "{self.preparation}"; counts of words are taken as they are:'
                " leave it out"
            )

    def _check_generator(self) -> None:
        if self.source != "gaussian-mean" and (self.mean, self.sd) != (DEFAULT_MEAN, DEFAULT_SD):
            raise ConfigError(
                f'data.mean = {self.mean}, data.sd = {self.sd}; only source = "gaussian-mean" has'
                " them: leave them out"
            )
        if not math.isfinite(self.mean):
            raise ConfigError(f"data.mean = {self.mean}; it must be a finite number")
        if not (self.sd > 0 and math.isfinite(self.sd)):
            raise ConfigError(f"data.sd = {self.sd}; it must be a finite number > 0")

    def _check_file(self) -> None:
        missing = [f"data.{key}" for key in ("path", "target", "columns") if not getattr(self, key)]
        if len(missing) > 1:
            raise ConfigError(f'{", ".join(missing)} are missing; source = "file" needs them')
        if missing:
            raise ConfigError(f'{missing[0]} is missing; source = "file" needs it')
        if not str(self.path).lower().endswith(SUFFIXES):
            raise ConfigError(
                f'data.path = "{self.path}"; the name must end in one of {", ".join(SUFFIXES)}'
            )
        if len(self.separator) != 1:
            raise ConfigError(f'data.separator = "{self.separator}"; it must be one character')
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f'data.columns declares "{name}" twice; declare it once')
        for name in self.keep:
            if name not in names:
                raise ConfigError(
                    f'data.keep names "{name}"; declare it in data.columns'
                    " (feature = false keeps it out of x)"
                )
        for column in self.columns:
            if column.name == self.target:
                self._check_target(column)
            elif self.preparation == "public":
                check_public(column)

    def _check_target(self, column: ColumnConfig) -> None:
        if column.missing not in ("refuse", "drop"):
            raise column.refusal("missing", 'a target takes "drop" or "refuse"')
        if column.kind == "numeric" and self.positive is not None:
            raise ConfigError(
                f'data.target = "{self.target}" is declared {column.kind};'
                " data.positive goes with a categorical target and with no other"
            )
        if column.kind == "categorical" and self.positive is None and len(column.levels) < 2:
            raise ConfigError(
                f'data.target = "{self.target}" is declared categorical with levels ='
                f" {list(column.levels)}; declare all of its levels, two or more, or name the one"
                " that is y = 1 in data.positive"
            )
        if self.positive is not None and column.levels and self.positive not in column.levels:
            raise ConfigError(
                f'data.positive = "{self.positive}"; the declared levels of "{self.target}" are'
                f" {', '.join(column.levels)}"
            )


class PartitionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who holds which record.

    "balanced" deals the records at random to `parties` equal parties; "column" makes a party of
    each value of `column`; "skew" makes half of the parties small and of another label mix
    (`size_skew` is ρ, `label_skew` is κ of Heikkilä et al., TMLR 2023, Appendix B); "source"
    keeps the sites the source itself has. `parties` counts for "balanced", for "skew" and for
    the sites of the synthetic cohort; a column or the heart data bring their own number.
    """

    kind: Literal["balanced", "column", "skew", "source"] = "balanced"
    parties: int = 10
    column: str | None = None
    size_skew: float = 0.0
    label_skew: float = 0.0

    def __post_init__(self) -> None:
        if not self.parties >= 1:
            raise ConfigError(f"partition.parties = {self.parties}; it must be at least 1")
        if self.kind == "column" and not self.column:
            raise ConfigError('partition.column is missing; partition.kind = "column" needs it')
        if self.kind != "column" and self.column is not None:
            raise ConfigError(
                f'partition.column = "{self.column}"; it needs partition.kind = "column",'
                f' not "{self.kind}"'
            )
        for key in ("size_skew", "label_skew"):
            value = getattr(self, key)
            if self.kind != "skew" and value != 0:
                raise ConfigError(
                    f'partition.{key} = {value}; it needs partition.kind = "skew",'
                    f' not "{self.kind}"'
                )
        if not 0 <= self.size_skew < 1:
            raise ConfigError(f"partition.size_skew = {self.size_skew}; it must be in [0, 1)")
        if not (self.label_skew <= 1 and math.isfinite(self.label_skew)):
            raise ConfigError(f"partition.label_skew = {self.label_skew}; it must be at most 1")
        if self.kind == "skew" and self.parties < 2:
            raise ConfigError(
                f"partition.parties = {self.parties}; a skewed partition needs at least 2"
            )


def check_together(data: DataConfig, partition: PartitionConfig) -> None:
    """Refuse what neither table shows alone, still without opening any data."""
    if partition.kind == "source" and data.source not in WITH_SITES:
        raise ConfigError(
            f'partition.kind = "source"; source "{data.source}" has no sites of its own'
            f' ({" and ".join(WITH_SITES)} have): choose "balanced", "skew" or "column"'
        )
    if data.source in CORPORA and partition.kind != "balanced":
        raise ConfigError(
            f'partition.kind = "{partition.kind}"; documents of source "{data.source}" are dealt at'
            ' random: choose "balanced"'
        )
    if data.records is not None and partition.kind != "column" and partition.parties > data.records:
        raise ConfigError(
            f"partition.parties = {partition.parties}; data.records = {data.records} cannot give"
            " each party a record"
        )
