"""The linear-regression study of the MEng report (chapter 4), repeated by one simulation.

This is a study of the published scheme, not a run of the library's federation engine: the model has
one parameter and closed-form answers, so that thousands of runs are one array. Figure 4.N of the
report is figure N here. Each figure is a PNG and a CSV of its numbers.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from tacit.errors import ConfigError
from tacit.run.config import MAX_SEED
from tacit.support.storage import write_text
from tacit_studies import Progress
from tacit_studies.meng_figures import Made
from tacit_studies.meng_parties import PARTY_FIGURES
from tacit_studies.meng_points import POINT_FIGURES, Context
from tacit_studies.meng_tables import (
    accounting_table,
    claims_table,
    coverage_table,
    figure_17,
    prior_table,
    summary_table,
)
from tacit_studies.meng_unequal import unequal_table
from tacit_studies.meng_unequal_parties import unequal_parties_table
from tacit_studies.tables import Table
from tacit_studies.write import make_folder, write_study

TITLE = "DP-PVI for one regression coefficient (MEng report), repeated"
FIGURES = {**POINT_FIGURES, **PARTY_FIGURES, 17: figure_17}
SEEDS, QUICK_SEEDS = 50, 10


def reproduce(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    figure: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make the figures, or one of them, and the tables; returns the content of tables.json.

    `figure` N is the report's Figure 4.N. `quick` takes 10 seeds instead of 50, and shorter runs.
    """
    out = Path(out)
    if figure is not None and figure not in FIGURES:
        raise ConfigError(f"--figure 4.{figure}; choose one of 4.1 to 4.17")
    if not 0 <= seed < MAX_SEED:
        raise ConfigError(f"--seed {seed}; it must be a whole number from 0 to {MAX_SEED - 1}")
    make_folder(out)
    context = Context(seed, QUICK_SEEDS if quick else SEEDS, quick)
    numbers = list(FIGURES) if figure is None else [figure]
    steps = len(numbers) + (figure is None)
    made: list[Made] = []
    for index, number in enumerate(numbers):
        _tell(progress, index, steps, f"figure 4.{number}")
        made.append(FIGURES[number](context))
    tables = [summary_table(made)] if any(one.summary for one in made) else []
    if figure is None:
        _tell(progress, steps - 1, steps, "claims and coverage")
        tables = [*_tables(context), *tables]
    result = _write(out, context, figure, tables, made)
    _tell(progress, steps, steps, "done")
    return result


def _tables(context: Context) -> list[Table]:
    return [
        accounting_table(),
        claims_table(context),
        coverage_table(context),
        unequal_table(context),
        unequal_parties_table(context),
        prior_table(context),
    ]


def _tell(progress: Progress | None, done: int, steps: int, what: str) -> None:
    if progress is not None:
        progress(done, steps, what)


def _write(
    out: Path, context: Context, figure: int | None, tables: list[Table], made: list[Made]
) -> dict[str, Any]:
    command = f"tacit reproduce meng --seed {context.seed}"
    command += f" --figure 4.{figure}" if figure is not None else ""
    command += " --quick" if context.quick else ""
    facts = {
        "study": "meng",
        "command": command,
        "seed": context.seed,
        "seeds": context.seeds,
        "quick": context.quick,
        "figure": figure,
    }
    figures = [(one.picture, one.figure) for one in made]
    result = write_study(
        out, title=TITLE, summary=SUMMARY, facts=facts, tables=tables, figures=figures, theirs=None
    )
    files = list(result["files"])
    for one in made:
        path = out / one.picture.file.replace(".png", ".csv")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([one.columns, *one.rows])
        write_text(path, text.getvalue())
        files.append(str(path))
    return {**result, "files": files}


SUMMARY = (
    "One regression coefficient, y = θx + e, fitted by up to 40 parties under differential "
    "privacy: the report's chapter 4, by a vectorised simulation of the published scheme, not by "
    "the library's federation engine. Noise comes from known seeds. Every ε has its unit; the "
    "published form has no ε."
)
