"""The frontier: distance of private posteriors from the non-private one, by method and ε.

Every run is a job of a sweep in OUT/sweep. Worker processes run the jobs, finished runs are stored,
and the same command continues an interrupted study. Runs are simulations with known noise seeds, so
that they can be repeated. With secret noise the same runs would have the stated guarantees.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tacit.data import DataConfig, PartitionConfig, load_federation
from tacit.errors import ConfigError
from tacit.run.config import MAX_SEED
from tacit.run.sweep import sweep_jobs
from tacit.support.storage import write_text
from tacit_studies import Progress
from tacit_studies.frontier_figures import plot_ablation, plot_frontier
from tacit_studies.frontier_settings import (
    ABLATION,
    Cell,
    Settings,
    ablation_cells,
    figure_cells,
    read_settings,
    refused,
    unique_jobs,
)
from tacit_studies.frontier_tables import (
    Series,
    ablation_table,
    absent_table,
    as_csv,
    regret_table,
    series_of,
)
from tacit_studies.page import Picture
from tacit_studies.tables import Table
from tacit_studies.write import make_folder, write_study

TITLE = "The cost of privacy: logistic regression on Adult, method by method"
FIGURES = (1, 2, ABLATION)
MADE_BY = "# This directory has the runs of `tacit reproduce frontier`.\n"


def reproduce(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    figure: Sequence[int | str] = FIGURES,
    progress: Progress | None = None,
    settings: Settings | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Run the study, or some figures of it; write tables.md, frontier.csv, index.html, figures.

    `seed` is the first seed; each seed draws the held-out half, the split and the noise. Returns
    the content of `tables.json`.
    """
    out, settings = Path(out), settings or read_settings()
    most = max(one.seeds for one in (settings.ablation, *settings.figures.values()))
    if not 0 <= seed <= MAX_SEED - most:
        raise ConfigError(f"--seed {seed}; it must be a whole number from 0 to {MAX_SEED}")
    make_folder(out)
    load_federation(
        DataConfig(**settings.base["data"]), PartitionConfig(), seed
    )  # fails if the data are missing
    absent = refused(settings)
    cells: list[Cell] = []
    for one in figure:
        if one == ABLATION:
            cells += ablation_cells(settings, first=seed, quick=quick)
        else:
            cells += figure_cells(settings, int(one), absent, first=seed, quick=quick)
    found = series_of(cells, _run_all(cells, out / "sweep", workers, progress))
    tables: list[Table] = []
    pictures: list[tuple[Picture, Figure]] = []
    for one in figure:
        if one == ABLATION:
            tables.append(ablation_table(found))
            pictures.append((Picture("ablation.png", _ABLATION, narrow=True), plot_ablation(found)))
            continue
        number = int(one)
        splits = dict.fromkeys(cell.split for cell in cells if cell.figure == number)
        tables += [regret_table(settings, number, split, found) for split in splits]
        words = f"Figure {number}. {settings.figures[str(number)].title}. {_CURVES}"
        drawn = plot_frontier(settings, number, found)
        pictures.append((Picture(f"figure-{number}.png", words), drawn))
    if absent and set(figure) != {ABLATION}:
        tables.append(absent_table(settings, absent))
    return _write(out, seed, quick, figure, settings, found, tables, pictures)


def _run_all(
    cells: list[Cell], out: Path, workers: int | None, progress: Progress | None
) -> dict[str, dict[str, Any]]:
    """The row of every run, run now or stored before."""
    swept = sweep_jobs(
        unique_jobs(cells), out,
        text=MADE_BY, resume=(out / "sweep.toml").exists(), workers=workers, progress=progress,
    )  # fmt: skip
    if swept.failed:
        raise ConfigError(
            f"{len(swept.failed)} of {len(swept.jobs)} runs failed, the first: "
            f"{swept.failed[0]['error']}; the same command repeats the failed runs"
        )
    return {row["id"]: row for row in swept.rows}


def _write(
    out: Path,
    seed: int,
    quick: bool,
    figure: Sequence[int | str],
    settings: Settings,
    found: Sequence[Series],
    tables: Sequence[Table],
    pictures: Sequence[tuple[Picture, Figure]],
) -> dict[str, Any]:
    command = f"tacit reproduce frontier --seed {seed}"
    if tuple(figure) != FIGURES:
        command += "".join(f" --figure {one}" for one in figure)
    command += " --quick" if quick else ""
    facts = {"study": "frontier", "command": command, "seed": seed, "quick": quick,
             "figure": list(figure)}  # fmt: skip
    result = write_study(
        out, title=TITLE, summary=_summary(quick), facts=facts, tables=tables, figures=pictures,
        theirs="numbers of the DP-PVI paper were read off its plots",
    )  # fmt: skip
    files = [*result["files"], str(out / "frontier.csv")]
    write_text(out / "frontier.csv", as_csv(settings, found))
    for picture, drawn in pictures:
        vector = out / picture.file.replace(".png", ".svg")
        drawn.savefig(vector, format="svg")
        files.append(str(vector))
    return {**result, "files": files}


_CURVES = (
    "Loss of held-out log-likelihood relative to the non-private posterior of the same records; "
    "lower is better. Lines: balanced split, mean over seeds; shaded: standard error; thin lines: "
    "the two unbalanced splits. Diamonds: ends of the paper's curves, as published (the ε of its "
    "DP optimisation, committees and central DP-VI is understated). A line may leave the panel at "
    "the top."
)
_ABLATION = "Loss of private scoring if one of its parts is left out."


def _summary(quick: bool) -> str:
    words = (
        "Adult, half held out, logistic regression with an N(0, I) prior: every private method of "
        "the library that supports it, against the posterior without privacy. All ε are for "
        "substituting one record, δ = 1e−5. Noise seeds are known, so that runs can be repeated; "
        "with secret noise the same runs would have the stated guarantees."
    )
    small = (
        " This is the quick version: fewer seeds, splits, methods and values of ε. Its numbers are "
        "not the results of the study."
    )
    return words + small if quick else words
