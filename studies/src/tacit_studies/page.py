"""Figures and tables of a study's page as HTML, in the style of tacit's reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

_OWN = """
figure { margin: 1.5rem 0; }
figure img { display: block; width: 100%; height: auto; padding: .75rem; background: #fff;
  border: 1px solid var(--line); border-radius: .5rem; }
figure.narrow img { max-width: 32rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""


class Picture(NamedTuple):
    """A figure file of the page."""

    file: str
    caption: str
    narrow: bool = False


def html_figure(picture: Picture) -> str:
    """A figure with its caption."""
    narrow = ' class="narrow"' if picture.narrow else ""
    caption = escape(picture.caption)
    return (
        f'<figure{narrow}><img src="{escape(picture.file)}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def html_table(head: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> str:
    """Table of HTML cells; the first cell of a row is its header, the others are numbers."""
    lines = []
    for first, *rest in rows:
        cells = "".join(f'<td class="number">{cell}</td>' for cell in rest)
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    top = ""
    if head is not None:
        first, *rest = (escape(title) for title in head)
        titles = "".join(f'<th scope="col" class="number">{title}</th>' for title in rest)
        top = f'<thead><tr><th scope="col">{first}</th>{titles}</tr></thead>'
    return f'<div class="wide"><table>{top}<tbody>{"".join(lines)}</tbody></table></div>'


def page_css() -> str:
    """The style sheet."""
    return (files("tacit.report") / "style.css").read_text(encoding="utf-8") + _OWN
