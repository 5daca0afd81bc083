"""Short HTML for notebooks: a title, facts, a table and warnings. Every value is escaped.

Colours are inherited from the notebook, so the text is readable in light and dark notebooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

CELL = "text-align:{};padding:.15em .8em .15em 0"


def notebook_html(
    title: str,
    facts: Sequence[tuple[str, str]] = (),
    *,
    head: Sequence[str] = (),
    rows: Iterable[Sequence[str]] = (),
    remarks: Sequence[str] = (),
    warnings: Sequence[str] = (),
    details: Sequence[tuple[str, str, str]] = (),
) -> str:
    """Return the HTML of an object for a notebook.

    Parameters
    ----------
    title
        Short description of the object.
    facts
        Names and values.
    head, rows
        A table; the first cell of a row is its name, the others are numbers.
    remarks, warnings
        Sentences below the table.
    details
        Names, values and their meanings, in a table at the end.

    Examples
    --------
    >>> notebook_html("a < b", warnings=["c"])
    '<div><p><strong>a &lt; b</strong></p><p><strong>Warning:</strong> c</p></div>'
    """
    parts = [f"<p><strong>{escape(title)}</strong></p>"]
    if facts:
        parts.append(_table((), facts, right=False))
    body = list(rows)
    if body:
        parts.append(_table(head, body, right=True))
    parts += [f"<p>{escape(text)}</p>" for text in remarks]
    parts += [f"<p><strong>Warning:</strong> {escape(text)}</p>" for text in warnings]
    if details:
        parts.append(_table(("diagnostic", "value", "meaning"), details, right=False))
    return f"<div>{''.join(parts)}</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool) -> str:
    styles = [CELL.format("left"), CELL.format("right" if right else "left")]
    top = "".join(
        f'<th scope="col" style="{styles[place > 0]}">{escape(text)}</th>'
        for place, text in enumerate(head)
    )
    lines = "".join(
        f'<tr><th scope="row" style="{styles[0]};font-weight:normal">{escape(first)}</th>'
        + "".join(f'<td style="{styles[1]}">{escape(cell)}</td>' for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    shown = f"<thead><tr>{top}</tr></thead>" if head else ""
    return f"<table>{shown}<tbody>{lines}</tbody></table>"
