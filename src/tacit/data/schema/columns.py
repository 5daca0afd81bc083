"""The public schema of one column: what a user may declare, checked when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import msgspec

from tacit.errors import TacitError
from tacit.support.tables import Table, shown
from tacit.support.validation import Finite, Positive

Kind = Literal["numeric", "categorical"]
Missing = Literal["refuse", "level", "indicator", "drop"]
Outside = Literal["clip", "refuse"]


class ColumnConfig(Table, frozen=True, kw_only=True):
    """The public schema of one column: what every party may know before any record is read.

    A number becomes (clip(v, low, high) - center) / scale. With bounds alone, center and scale
    are their midpoint and half-width. A category becomes one 0/1 column per level, except for its
    `reference` level if it has one.

    `missing` says what an empty cell, or one of the texts in `missing_values`, becomes:
    "level" is a further level of a category, "indicator" is a number's centre plus a 0/1 column,
    "drop" leaves the row out, "refuse" is an error.
    """

    unwritten: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    """The column's name in the file."""
    kind: Kind | None = None
    """Left out: categorical if levels are declared, otherwise numeric."""
    low: Finite | None = None
    """The least value of a number; smaller ones are clipped to it."""
    high: Finite | None = None
    """The largest value of a number; larger ones are clipped to it."""
    center: Finite | None = None
    """The value of a number that becomes 0."""
    scale: Positive | None = None
    """The difference of a number that becomes 1."""
    levels: tuple[str, ...] = ()
    """All values of a category."""
    reference: str | None = None
    """The level without a 0/1 column: the weights of the others are differences from it."""
    missing: Missing = "refuse"
    """What an empty cell becomes."""
    missing_values: tuple[str, ...] = ()
    """Texts that count as empty cells."""
    outside: Outside = "clip"
    """What happens to a number outside of low and high."""
    feature: bool = True
    """False: the column is not a feature of the model, but may be named by other keys."""

    def __post_init__(self) -> None:
        if self.kind is None:
            kind = "categorical" if self.levels else "numeric"
            msgspec.structs.force_setattr(self, "kind", kind)
        super().__post_init__()

    def table_key(self) -> str:
        return f"columns.{self.name}"

    def faults(self) -> Iterator[str | TacitError]:
        if not self.name.strip():
            yield 'columns has a column named ""; give the column\'s name in the file'
        yield from self._numeric() if self.kind == "numeric" else self._categorical()

    def fault(self, key: str, advice: str) -> str:
        """The line that names this column and the value of one of its keys."""
        return f"columns.{self.name}.{key} = {shown(getattr(self, key))}; {advice}"

    def _numeric(self) -> Iterator[str]:
        if self.reference is not None:
            yield self.fault("reference", "only a column with levels has one")
        if self.levels:
            yield self.fault("levels", 'a column of kind = "numeric" has none')
        if self.missing == "level":
            yield self.fault("missing", 'a numeric column takes "indicator", "drop" or "refuse"')
        for key, other in (
            ("low", "high"),
            ("high", "low"),
            ("center", "scale"),
            ("scale", "center"),
        ):
            if getattr(self, key) is not None and getattr(self, other) is None:
                yield self.fault(key, f"declare {other} as well")
        if self.low is not None and self.high is not None and not self.low < self.high:
            yield self.fault("low", f"it must be less than high = {self.high}")

    def _categorical(self) -> Iterator[str]:
        for key in ("low", "high", "center", "scale"):
            if getattr(self, key) is not None:
                yield self.fault(key, "a column with levels has none")
        if self.missing == "indicator":
            yield self.fault("missing", 'a categorical column takes "level", "drop" or "refuse"')
        if self.reference is not None and self.reference not in self.levels:
            yield self.fault("reference", f"it must be one of levels = {shown(self.levels)}")
        for level in dict.fromkeys(self.levels):
            if not level or level != level.strip():
                yield self.fault("levels", f"'{level}' is empty or has spaces around it")
            if self.levels.count(level) > 1:
                yield self.fault("levels", f"'{level}' is there twice")
            if level in self.missing_values:
                yield self.fault("levels", f"'{level}' is also one of missing_values")

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


def undeclared(column: ColumnConfig) -> Iterator[str]:
    """What keeps a column from being prepared by the declared schema alone."""
    advice = 'or set data.scaling = "pooled", which is noted in the result'
    if column.kind == "categorical" and not column.levels:
        yield f"columns.{column.name}.levels is missing; declare all levels, {advice}"
    needed = column.feature or column.missing == "indicator"
    if column.kind == "numeric" and needed and column.affine is None:
        yield (
            f"columns.{column.name} has neither low and high nor center and scale; declare them,"
            f" {advice}"
        )
