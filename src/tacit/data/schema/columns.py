"""The public schema of one column, validated when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import msgspec

from tacit.data.schema.units import EXAMPLE, parse_unit
from tacit.errors import TacitError
from tacit.support.argument_names import column_key
from tacit.support.tables import Table, shown
from tacit.support.validation import Finite, Positive

Kind = Literal["numeric", "categorical"]
Missing = Literal["refuse", "level", "indicator", "drop"]
Outside = Literal["clip", "refuse"]


LARGEST = 1e150
"""Largest absolute value of a number; sums of squares of larger ones would overflow."""


class ColumnConfig(Table, frozen=True, kw_only=True):
    """Public schema of one column, known to every party before any record is read.

    A numeric value v becomes (clip(v, low, high) - center) / scale. If only the bounds are
    declared, center is their midpoint and scale is half their difference. A categorical column
    becomes one 0/1 column per level, without a column for the level `reference`.

    `missing` says what is done with an empty cell or a text in `missing_values`. "level": the
    column, which must be categorical, gets an additional level. "indicator": the value, which must
    be numeric, is replaced by `center`, and an additional 0/1 column marks the row. "drop": the row
    is dropped. "refuse": an error is raised.
    """

    unwritten: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    """The column's name in the file."""
    kind: Kind | None = None
    """Kind of column; by default categorical if levels are declared, otherwise numeric."""
    low: Finite | None = None
    """Smallest value of a number; smaller ones are clipped to it."""
    high: Finite | None = None
    """The largest value of a number; larger ones are clipped to it."""
    center: Finite | None = None
    """The value that becomes 0 after scaling."""
    scale: Positive | None = None
    """The difference of values that becomes 1 after scaling."""
    unit: str | None = None
    """Unit in which results show effects, e.g. per "year" or per "10 years"."""
    levels: tuple[str, ...] = ()
    """All values of a category."""
    reference: str | None = None
    """Reference level without a 0/1 column; other levels' weights are relative to it."""
    missing: Missing = "refuse"
    """Handling of empty cells."""
    missing_values: tuple[str, ...] = ()
    """Texts that are treated as empty cells."""
    outside: Outside = "clip"
    """Handling of numbers outside low and high."""
    feature: bool = True
    """False: the column is not a feature, but other keys (party, person, …) may name it."""
    expression: str | None = None
    """A number that is computed from other columns of the same record, e.g. "log(age)"."""
    product: tuple[str, ...] = ()
    """Factors of an interaction: names of numeric columns, which are centred, and levels such as
    "sex[m]".
    """
    draft: bool = False
    """True: `tacit init` read the bounds or levels from records, and they are not confirmed. A
    private run refuses the column."""

    def __post_init__(self) -> None:
        if self.kind is None:
            kind = "categorical" if self.levels else "numeric"
            msgspec.structs.force_setattr(self, "kind", kind)
        super().__post_init__()

    def table_key(self) -> str:
        return column_key(self.name)

    def faults(self) -> Iterator[str | TacitError]:
        if not self.name.strip():
            yield 'columns has a column named ""; give the column\'s name in the file'
        yield from self._numeric() if self.kind == "numeric" else self._categorical()

    def fault(self, key: str, advice: str) -> str:
        """Return an error message about a key of this column, with its value and `advice`."""
        return f"{column_key(self.name)}.{key} = {shown(getattr(self, key))}; {advice}"

    def _numeric(self) -> Iterator[str]:
        if self.reference is not None:
            yield self.fault("reference", "only a column with levels can have one; leave it out")
        if self.levels:
            yield self.fault("levels", "a numeric column has no levels; leave them out")
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
        for key in ("low", "high", "center", "scale"):
            if abs(getattr(self, key) or 0.0) > LARGEST:
                yield self.fault(key, f"it must be at most {LARGEST:g} in size; change the unit")
        if self.unit is not None and parse_unit(self.unit) is None:
            yield self.fault("unit", EXAMPLE)
        if self.low is not None and self.high is not None and not self.low < self.high:
            yield self.fault("low", f"it must be less than high = {self.high}")

    def _categorical(self) -> Iterator[str]:
        for key in ("low", "high", "center", "scale", "unit"):
            if getattr(self, key) is not None:
                yield self.fault(key, "a column with levels cannot have it; leave it out")
        if self.missing == "indicator":
            yield self.fault("missing", 'a categorical column takes "level", "drop" or "refuse"')
        if self.reference is not None and self.reference not in self.levels:
            yield self.fault("reference", f"it must be one of levels = {shown(self.levels)}")
        for level in dict.fromkeys(self.levels):
            if not level or level != level.strip():
                yield self.fault("levels", f"'{level}' is empty or has spaces around it")
            if self.levels.count(level) > 1:
                yield self.fault("levels", f"'{level}' occurs twice; list it once")
            if level in self.missing_values:
                yield self.fault("levels", f"'{level}' is also one of missing_values")

    @property
    def derived(self) -> bool:
        """True if this column is computed from other columns."""
        return self.expression is not None or bool(self.product)

    @property
    def affine(self) -> tuple[float, float] | None:
        """Centre and scale of the column: the declared ones, or else midpoint and half-width of the
        bounds.

        It is None if neither is declared.
        """
        if self.center is not None and self.scale is not None:
            return self.center, self.scale
        if self.low is not None and self.high is not None:
            return (self.low + self.high) / 2, (self.high - self.low) / 2
        return None

    @property
    def bounded(self) -> bool:
        """True if the schema declares bounds (numeric column) or levels (categorical column)."""
        if self.kind == "categorical":
            return bool(self.levels)
        return self.low is not None and self.high is not None


def undeclared(column: ColumnConfig) -> Iterator[str]:
    """Yield an error message for each fact that is needed to prepare the column but is not
    declared.
    """
    advice = 'or set data.scaling = "pooled", which is noted in the result'
    if column.kind == "categorical" and not column.levels:
        yield f"{column_key(column.name)}.levels is missing; declare all levels, {advice}"
    needed = column.feature or column.missing == "indicator"
    if column.kind == "numeric" and needed and column.affine is None:
        yield (
            f"{column_key(column.name)} has neither low and high nor center and scale; declare "
            f"them, {advice}"
        )
