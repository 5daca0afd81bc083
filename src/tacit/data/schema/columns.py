"""The public schema of one column: what a user may declare, validated when it is read."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from tacit.errors import ConfigError

Kind = Literal["numeric", "categorical"]
Missing = Literal["refuse", "level", "indicator", "drop"]
Outside = Literal["clip", "refuse"]


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

    @property
    def bounded(self) -> bool:
        """Whether every value of x it can become is bounded by the schema alone."""
        if self.kind == "categorical":
            return bool(self.levels)
        return self.low is not None and self.high is not None


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
