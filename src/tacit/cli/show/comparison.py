"""`tacit compare`: two or more runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.cli.show.results import MOST_ROWS, console, show_table, show_warning
from tacit.results.summary import Coefficient, Result
from tacit.results.text import table_rows


def compared(results: Sequence[Result]) -> dict[str, list[Any]]:
    """Return lists with one value per run, by the name of the fact (model, method, a metric, …)."""
    rows: dict[str, list[Any]] = {
        "model": [one.model.kind for one in results],
        "posterior": [one.posterior.family for one in results],
        "method": [one.method for one in results],
        "schedule": [one.schedule for one in results],
        "rounds": [one.rounds for one in results],
        "parties": [len(one.parties) for one in results],
        "converged": [one.converged for one in results],
        "warnings": [len(one.every_caution) for one in results],
        "privacy": [_privacy(one) for one in results],
    }
    for split in ("training", "held_out"):
        measured = [one.metrics.get(split) or {} for one in results]
        for name in dict.fromkeys(name for one in measured for name in one):
            rows[f"{split}.{name}"] = [one.get(name) for one in measured]
    return rows


def coefficients(results: Sequence[Result]) -> dict[str, list[tuple[float, float] | None]]:
    """Return one pair (mean, sd) per run for every coefficient or latent site, by name. The entry
    of a run without this coefficient or site is None.

    The numbers are in the units of the columns, so that runs with different bounds are comparable.
    """
    tables = [{_term(row): (row.mean, row.sd) for row in table_rows(one)} for one in results]
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: [table.get(name) for table in tables] for name in names}


def _term(row: Coefficient) -> str:
    return row.term if row.unit is None else f"{row.term} (per {row.unit})"


def show_comparison(paths: Sequence[Path], results: Sequence[Result]) -> None:
    """Print the table of facts, the table of coefficients, and the warnings of every run."""
    heads = [str(path) for path in paths]
    facts = [[name, *map(_cell, row)] for name, row in compared(results).items()]
    show_table("Runs", ["", *heads], facts)
    known = coefficients(results)
    rows = [[name, *map(_estimate, row)] for name, row in list(known.items())[:MOST_ROWS]]
    if rows:
        show_table("Posterior: mean ± sd", ["", *heads], rows, formatted=heads)
    if len(known) > MOST_ROWS:
        console.print(f"… and {len(known) - MOST_ROWS} more: tacit show RUN", highlight=False)
    for head, result in zip(heads, results, strict=True):
        for caution in result.every_caution:
            show_warning(f"{head}: {caution.text}")


def _privacy(result: Result) -> str:
    """Return ε with δ, unit and adjacency as text."""
    found = result.privacy.guarantee
    if found is None:
        return "none"
    simulated = "" if result.privacy.private else ", simulated: not private"
    return (
        f"ε = {found.epsilon:.4g}, δ = {found.delta:g} per {found.unit}, {found.adjacency}"
        f"{simulated}"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _estimate(value: tuple[float, float] | None) -> str:
    return "–" if value is None else f"{value[0]:.4g} ± {value[1]:.2g}"
