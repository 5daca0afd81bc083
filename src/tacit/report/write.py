"""Write the report of a run as one HTML file."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.report.load import PartyRun, Run, load_run
from tacit.report.page import page_of, party_page
from tacit.support.storage import write_text

REPORT = "report.html"


def write_report(run_dir: Path, *, private: bool = False) -> Path:
    """Write `run_dir/public/report.html` and return its path.

    With `private`, write `run_dir/private/report.html` instead, which also has the measurements on
    records and the ledger's totals.
    """
    run = load_run(run_dir, private=private)
    return write_page(run, run.directory / ("private" if private else "public") / REPORT)


def write_page(run: Run | PartyRun, path: Path) -> Path:
    """Write the page to a file."""
    write_text(path, render(run))
    return path


def render(run: Run | PartyRun) -> str:
    """Return the HTML of the whole page, with style and figures."""
    template, css = _template()
    page = party_page(run) if isinstance(run, PartyRun) else page_of(run)
    return template.render(page=page, css=css)


def breakable(name: str) -> Markup:
    """Return the HTML of a name in which lines may break after separators.

    >>> breakable("previous_stays=<2")
    Markup('previous_<wbr>stays=<wbr>&lt;2')
    """
    parts = re.split(r"(?<=[_=,|/])", name)
    return Markup("<wbr>").join(part for part in parts if part)


@functools.cache
def _template() -> tuple[Any, Markup]:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    css = Markup((folder / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("report.html.j2"), css
