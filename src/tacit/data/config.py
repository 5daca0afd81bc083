"""What a user may say about data and about who holds it: validated when it is read.

This module needs no array library, so that a bad file is answered at once. Everything that can
be known to be wrong without opening the data is refused here; the rest is refused on loading.
"""

from __future__ import annotations

import difflib
import math
from typing import Literal

import msgspec

from tacit.errors import ConfigError

SOURCES = (
    "synthetic-cohort",
    "gaussian-mean",
    "adult",
    "rugged",
    "heart",
    "breast-cancer",
    "file",
)
GENERATED = ("synthetic-cohort", "gaussian-mean")
WITH_SITES = ("synthetic-cohort", "heart")
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")

DEFAULT_MEAN = 5.0
DEFAULT_SD = 1.0

Kind = Literal["numeric", "categorical"]
Missing = Literal["refuse", "level", "indicator", "drop"]
Outside = Literal["clip", "refuse"]
Preparation = Literal["public", "pooled"]


class ColumnConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The public schema of one column: what every party may know before anyone opens a record.

    A number becomes (clip(v, low, high) - center) / scale. With bounds alone, center and scale
    are their midpoint and half-width. A category becomes one 0/1 column a level, except for its
    `reference` level if it has one.

    `missing` says what an empty cell, or one of the texts in `missing_values`, becomes:
    "level" is a further level of a category, "indicator" is a number's centre plus a 0/1 column,
    "drop" leaves the row out, "refuse" is an error.
    """

    name: str
    kind: Kind = "numeric"
    low: float | None = None
    high: float | None = None
    center: float | None = None
    scale: float | None = None
    levels: tuple[str, ...] = ()
    reference: str | None = None
    """The level that gets no 0/1 column: the others' weights are then differences from it."""
    missing: Missing = "refuse"
    missing_values: tuple[str, ...] = ()
    outside: Outside = "clip"
    feature: bool = True
    """False: a column for `data.keep`, `data.target` or `partition.column` only, not part of x."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError('data.columns: name = ""; give the column\'s name in the file')
        if self.kind == "numeric":
            self._check_numeric()
        else:
            self._check_categorical()

    def refusal(self, key: str, advice: str) -> ConfigError:
        """The error that names this column and the value of one of its keys."""
        value = getattr(self, key)
        shown = f'"{value}"' if isinstance(value, str) else value
        return ConfigError(f'data.columns "{self.name}": {key} = {shown}; {advice}')

    def _check_numeric(self) -> None:
        if self.reference is not None:
            raise self.refusal("reference", 'only a column of kind = "categorical" has one')
        if self.levels:
            raise self.refusal("levels", 'only a column of kind = "categorical" has levels')
        if self.missing == "level":
            raise self.refusal("missing", 'a numeric column takes "indicator", "drop" or "refuse"')
        for key, other in (
            ("low", "high"),
            ("high", "low"),
            ("center", "scale"),
            ("scale", "center"),
        ):
            value = getattr(self, key)
            if value is not None and not math.isfinite(value):
                raise self.refusal(key, "it must be a finite number")
            if value is not None and getattr(self, other) is None:
                raise self.refusal(key, f"declare {other} as well")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise self.refusal("low", f"it must be less than high = {self.high}")
        if self.scale is not None and not self.scale > 0:
            raise self.refusal("scale", "it must be > 0")

    def _check_categorical(self) -> None:
        for key in ("low", "high", "center", "scale"):
            if getattr(self, key) is not None:
                raise self.refusal(key, 'only a column of kind = "numeric" has it')
        if self.missing == "indicator":
            raise self.refusal("missing", 'a categorical column takes "level", "drop" or "refuse"')
        if self.reference is not None and self.reference not in self.levels:
            raise self.refusal("reference", f"it must be one of levels = {list(self.levels)}")
        for level in self.levels:
            if not level or level != level.strip():
                raise self.refusal("levels", f"'{level}' is empty or has spaces around it")
            if self.levels.count(level) > 1:
                raise self.refusal("levels", f"'{level}' is there twice")
            if level in self.missing_values:
                raise self.refusal("levels", f"'{level}' is also one of missing_values")

    @property
    def affine(self) -> tuple[float, float] | None:
        """(center, scale) as declared or as the bounds imply; None when neither is declared."""
        if self.center is not None and self.scale is not None:
            return self.center, self.scale
        if self.low is not None and self.high is not None:
            return (self.low + self.high) / 2, (self.high - self.low) / 2
        return None


class DataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the records come from and how they become numbers."""

    source: str = "synthetic-cohort"
    path: str | None = None
    separator: str = ","
    columns: tuple[ColumnConfig, ...] = ()
    target: str | None = None
    positive: str | None = None
    """The level of the target that is y = 1; None: the target is a number."""
    records: int | None = None
    mean: float = DEFAULT_MEAN
    sd: float = DEFAULT_SD
    held_out: float = 0.2
    preparation: Preparation = "public"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            near = difflib.get_close_matches(self.source, SOURCES, n=1, cutoff=0.5)
            advice = f'did you mean "{near[0]}"?' if near else f"choose from {', '.join(SOURCES)}"
            raise ConfigError(f'data.source = "{self.source}"; no such source: {advice}')
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"data.held_out = {self.held_out}; it must be in [0, 1)")
        if self.records is not None:
            if self.source not in GENERATED:
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
            for key in ("path", "columns", "target", "positive"):
                if getattr(self, key):
                    raise ConfigError(
                        f'data.{key} is set; source "{self.source}" brings its own:'
                        ' leave the key out, or say source = "file"'
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
        for key in ("path", "target", "columns"):
            if not getattr(self, key):
                raise ConfigError(f'data.{key} is missing; source = "file" needs it')
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
        if (column.kind == "categorical") != (self.positive is not None):
            raise ConfigError(
                f'data.target = "{self.target}" is declared {column.kind};'
                " data.positive goes with a categorical target and with no other"
            )
        if self.positive is not None and column.levels and self.positive not in column.levels:
            raise ConfigError(
                f'data.positive = "{self.positive}"; the declared levels of "{self.target}" are'
                f" {', '.join(column.levels)}"
            )


def check_public(column: ColumnConfig) -> None:
    """Refuse a column that only the records themselves could prepare."""
    advice = 'or say data.preparation = "pooled", which is written into the result'
    if column.kind == "categorical" and not column.levels:
        raise ConfigError(f'data.columns "{column.name}" has no levels; declare them, {advice}')
    needed = column.feature or column.missing == "indicator"
    if column.kind == "numeric" and needed and column.affine is None:
        raise ConfigError(
            f'data.columns "{column.name}" has neither low and high nor center and scale;'
            f" declare them, {advice}"
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
    if data.records is not None and partition.kind != "column" and partition.parties > data.records:
        raise ConfigError(
            f"partition.parties = {partition.parties}; data.records = {data.records} cannot give"
            " each party a record"
        )
