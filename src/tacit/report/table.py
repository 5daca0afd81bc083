"""Tables and numbers of a report as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    head: Sequence[str] | None,
    rows: Iterable[Sequence[str]],
    *,
    numbers: bool = True,
    clear: Sequence[bool] = (),
    minor: Sequence[int] = (),
) -> str:
    """Table of HTML cells; the first cell of a row is its header.

    Columns in `minor` (0 is the header) are hidden on narrow screens.
    """

    def kind(place: int) -> str:
        words = [*(["number"] if numbers else []), *(["minor"] if place in minor else [])]
        return f' class="{" ".join(words)}"' if words else ""

    lines = []
    for index, (first, *rest) in enumerate(rows):
        mark = ' class="clear"' if index < len(clear) and clear[index] else ""
        cells = "".join(f"<td{kind(at)}>{cell}</td>" for at, cell in enumerate(rest, 1))
        lines.append(f'<tr{mark}><th scope="row">{first}</th>{cells}</tr>')
    top = ""
    if head is not None:
        first, *rest = (escape(title) for title in head)
        top = f'<thead><tr><th scope="col">{first}</th>'
        heads = (f'<th scope="col"{kind(at)}>{title}</th>' for at, title in enumerate(rest, 1))
        top += "".join(heads) + "</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>{"".join(lines)}</tbody></table></div>'


def breakable(name: str) -> str:
    """Name as HTML with break opportunities after separators."""
    return re.sub(r"([_=,|/])", r"\1<wbr>", escape(name, quote=False))


def details(title: str, content: str) -> str:
    """Collapsed content."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def number(value: float | None) -> str:
    """Four significant digits and a true minus sign."""
    return "–" if value is None else f"{value:#.4g}".rstrip(".").replace("-", "−")


def percent(value: float | None) -> str:
    """Percentage with one decimal."""
    return "–" if value is None else f"{100 * value:.1f} %"
