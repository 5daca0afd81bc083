"""A table of a study: its data, and the same cells as text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from tacit_studies.page import html_table

Cell = str | int | float | None
DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of numbers and text under named columns.

    `digits` is the number of significant digits of a column, by default five; the data keep all.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    digits: Mapping[str, int] = field(default_factory=dict)

    @property
    def shown(self) -> list[list[str]]:
        """The cells as text."""
        width = [self.digits.get(column, DIGITS) for column in self.columns]
        return [
            [_shown(cell, digits) for cell, digits in zip(row, width, strict=True)]
            for row in self.rows
        ]

    def data(self) -> dict[str, Any]:
        """The content of tables.json."""
        return {
            "name": self.name,
            "title": self.title,
            "note": self.note,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "shown": self.shown,
        }

    def markdown(self) -> str:
        """Heading, note and table."""
        columns = zip(*self.rows, strict=True)
        text = [all(c is None or isinstance(c, str) for c in column) for column in columns]
        rule = ["---" if one else "---:" for one in text]
        lines = [self.columns, rule, *self.shown]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"## {self.title}\n\n{self.note}\n\n{body}\n"

    def html(self) -> str:
        """A section of the page."""
        rows = [[escape(cell) for cell in row] for row in self.shown]
        return (
            f"<section><h2>{escape(self.title)}</h2><p>{escape(self.note)}</p>"
            f"{html_table(self.columns, rows)}</section>\n"
        )


def _shown(cell: Cell, digits: int) -> str:
    """Text of a cell: a dash for None, separated thousands, a true minus sign.

    >>> [_shown(cell, 3) for cell in (None, "a", 1200, -0.01234, 1234.5, 2.443e-6)]
    ['–', 'a', '1,200', '−0.0123', '1,234', '2.44e−06']
    """
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, float) and abs(cell) < 10 ** max(digits, 3):
        return f"{cell:.{digits}g}".replace("-", "−")
    return f"{cell:,.0f}".replace("-", "−")
