"""Write a study: tables.md, tables.json, the figures and index.html, all in one folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tacit.errors import ConfigError
from tacit.support.storage import write_text
from tacit_studies.page import Picture, html_figure, page_css
from tacit_studies.tables import Table

DPI = 120
WIDE = "body { max-width: 66rem; } p { max-width: 48rem; } thead th.number { white-space: normal; }"
"""A wide page for tables with many columns, with short lines of text."""


def make_folder(out: Path) -> None:
    """Create `out` before anything is computed, so that a bad path fails early."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a directory")
    out.mkdir(parents=True, exist_ok=True)


def write_study(
    out: Path,
    *,
    title: str,
    summary: str,
    facts: dict[str, Any],
    tables: Sequence[Table],
    figures: Sequence[tuple[Picture, Figure]],
    theirs: str | None = "numbers of the thesis are as published",
) -> dict[str, Any]:
    """Write all files; returns the content of tables.json and the paths of the files.

    `theirs` states the source of numbers that are not ours; None if there are none.
    """
    source = "" if theirs is None else f"; {escape(theirs)}"
    for picture, figure in figures:
        figure.savefig(out / picture.file, format="png", dpi=DPI)
    pictures = [picture for picture, _ in figures]
    result = {**facts, "tables": [table.data() for table in tables]}
    command = escape(str(facts["command"]))
    markdown = "\n".join(table.markdown() for table in tables)
    write_text(out / "tables.md", f"# {title}\n\n{summary}\n\n`{facts['command']}`\n\n{markdown}")
    write_text(
        out / "tables.json", json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    )
    write_text(
        out / "index.html",
        '<!doctype html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · tacit</title>\n<style>{page_css()}{WIDE}</style>\n"
        "</head>\n<body>\n"
        f'<p class="kicker">tacit · a publication repeated</p>\n<h1>{escape(title)}</h1>\n'
        f"<p>{escape(summary)}</p>\n<pre>{command}</pre>\n"
        f"<section><h2>Figures</h2>{''.join(html_figure(p) for p in pictures)}</section>\n"
        f"{''.join(table.html() for table in tables)}"
        f"<footer>Every number of ours was computed by the command above{source}."
        "</footer>\n</body>\n</html>\n",
    )
    names = ["index.html", "tables.md", "tables.json", *(p.file for p in pictures)]
    return {**result, "files": [str(out / name) for name in names]}
