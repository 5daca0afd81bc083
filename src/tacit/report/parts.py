"""Parts of a report as plain data without HTML. The template converts them to HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from markupsafe import Markup

Tone = Literal["good", "bad", "neutral"]
LONG_TABLE = 40


@dataclass(frozen=True)
class Badge:
    """A short verdict at the top."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Statement:
    """An important sentence at the top."""

    lead: str
    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    kind: ClassVar[str] = "paragraph"
    text: str
    lead: str = ""


@dataclass(frozen=True)
class Heading:
    """Heading of a part of a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    kind: ClassVar[str] = "list"
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """A command or a file; with a label it starts collapsed."""

    text: str
    label: str = ""

    @property
    def kind(self) -> str:
        """Name of the block in the template that draws this part."""
        return "folded" if self.label else "code"


@dataclass(frozen=True)
class Drawing:
    """A figure; `svg` is made by `tacit.report.figures` and is trusted."""

    kind: ClassVar[str] = "figure"
    svg: Markup
    caption: str


@dataclass(frozen=True)
class Bar:
    """The interval of a table row, as positions from 0 to 100 on the axis that all rows share."""

    low: float
    mean: float
    high: float
    zero: float
    label: str
    true_value: float | None = None


@dataclass(frozen=True)
class TableRow:
    """A row: its name, a subtitle, and its cells."""

    name: str
    cells: Sequence[str]
    note: str = ""
    clear: bool = False
    bar: Bar | None = None


@dataclass(frozen=True)
class Table:
    """A table; `head` has the titles of the name column and of all cell columns, or is empty."""

    kind: ClassVar[str] = "table"
    label: str
    head: Sequence[str]
    rows: Sequence[TableRow]
    numbers: bool = True
    minor: Sequence[int] = ()
    """Columns (0 is the name) that narrow screens do not show."""

    @property
    def folded(self) -> bool:
        """True if the table starts collapsed, because it is long."""
        return len(self.rows) > LONG_TABLE

    def attributes(self, column: int) -> Markup:
        """Return the HTML class attribute for the cells of a column."""
        words = [
            *(["number"] if self.numbers and column else []),
            *(["minor"] if column in self.minor else []),
        ]
        return Markup(f' class="{" ".join(words)}"' if words else "")


@dataclass(frozen=True)
class Section:
    """A section, which is listed in the table of contents."""

    id: str
    title: str
    parts: Sequence[Any] = field(default_factory=tuple)


@dataclass(frozen=True)
class Page:
    """Everything that the template shows."""

    title: str
    kicker: str
    finding: str
    badges: Sequence[Badge]
    statements: Sequence[Statement]
    sections: Sequence[Section]
    footer: str


def facts(label: str, rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and values without a header row."""
    return Table(label, (), [TableRow(name, (value,)) for name, value in rows], numbers=False)


def number(value: float | None) -> str:
    """Format a number with four significant digits and a true minus sign."""
    return "–" if value is None else f"{value:#.4g}".rstrip(".").replace("-", "−")


def percent(value: float | None) -> str:
    """Format a share as a percentage with one decimal."""
    return "–" if value is None else f"{100 * value:.1f} %"


def count(value: int, noun: str) -> str:
    """Format a number with its noun, in the plural if needed.

    >>> count(1, "record"), count(1200, "record")
    ('1 record', '1,200 records')
    """
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def several(parties: int) -> str:
    """Format a number of parties as text, such as "1 party" or "12 parties"."""
    return "1 party" if parties == 1 else f"{parties:,} parties"


def joined(words: Sequence[str]) -> str:
    """Join words with commas and "and"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
