"""The experiments of the DP-PVI paper (Heikkilä et al., TMLR 2023), repeated.

Five figures: logistic regression on Adult and on MIMIC-III with ten parties, on Adult with 200, a
Bayesian neural network, and the number of shards. Tables 2 to 4 describe the splits. tmlr.toml
has the settings. Every finished run is stored in OUT/runs, so that the same command continues an
interrupted study.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tacit.errors import ConfigError, DataError
from tacit.run.config import MAX_SEED
from tacit.run.sweep import default_workers
from tacit_studies import Progress
from tacit_studies.page import Picture
from tacit_studies.tables import Table
from tacit_studies.tmlr_figures import plot_figure, plot_shard_curves, plot_shards
from tacit_studies.tmlr_runs import Run, Store, carried_out, federation_of
from tacit_studies.tmlr_settings import (
    SHARDS,
    Cell,
    Settings,
    check_figure,
    figure_cells,
    on_stand_in,
    only,
    read_settings,
    shard_cells,
)
from tacit_studies.tmlr_splits import split_tables
from tacit_studies.tmlr_tables import (
    SPLITS,
    absent_table,
    series_of,
    shard_table,
    split_table,
)
from tacit_studies.write import make_folder, write_study

TITLE = "Differentially private partitioned VI (TMLR 2023), repeated"
Made = tuple[list[Table], list[tuple[Picture, Figure]]]


def reproduce(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    figure: int | None = None,
    progress: Progress | None = None,
    settings: Settings | None = None,
    workers: int | None = None,
    methods: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Run the study, or one figure of it, and write tables.md, tables.json, index.html, figures.

    `seed` is the first seed; each seed draws the split and the noise. `quick` takes fewer seeds,
    splits, methods and rounds. `workers` processes share the runs; by default one per core.
    `methods` restricts the figures to these methods. Returns the content of `tables.json`.
    """
    out = Path(out)
    figures = check_figure(figure)
    settings = _settings(settings, methods)
    if not 0 <= seed <= MAX_SEED - settings.seeds:
        raise ConfigError(f"--seed {seed}; it must be a whole number from 0 to {MAX_SEED}")
    make_folder(out)
    planned, absent, used = _plan(settings, figures, seed, quick)
    store = Store(out / "runs")
    cells = [cell for cells in planned.values() for cell in cells]
    runs = _run_all(cells, store, workers or default_workers(), progress)
    tables: list[Table] = []
    pictures: list[tuple[Picture, Figure]] = []
    for number in figures:
        if number in absent:
            tables.append(absent_table(number, used.figures[str(number)], absent[number]))
            continue
        cells = planned[number]
        made = _shards(used, cells, runs) if number == SHARDS else _curves(
            used, number, cells, runs
        )  # fmt: skip
        tables += made[0]
        pictures += made[1]
    tables += split_tables(settings, figures, seed)
    return _write(out, seed, quick, figure, tables, pictures)


def _settings(settings: Settings | None, methods: Sequence[str] | None) -> Settings:
    given = read_settings() if settings is None else settings
    return given if methods is None else only(given, methods)


def _plan(
    settings: Settings, figures: Sequence[int], seed: int, quick: bool
) -> tuple[dict[int, list[Cell]], dict[int, str], Settings]:
    """The runs of each figure, reasons why figures cannot be run, and the settings of the runs.

    Data files are located before anything is computed. A figure on Adult raises an error if its
    files are missing. A figure on MIMIC-III, to which access is restricted, then uses another data
    set or is left out; an error is raised only if no figure remains.
    """
    planned: dict[int, list[Cell]] = {}
    absent: dict[int, str] = {}
    missing: DataError | None = None
    for number in figures:
        if number == SHARDS:
            cells = shard_cells(settings, "mimic3", first=seed, quick=quick)
        else:
            cells = figure_cells(settings, number, first=seed, quick=quick)
        try:
            federation_of(cells[0].job)
        except DataError as error:
            if cells[0].job.data.source != "mimic3":
                raise
            missing = missing or error
            if number == SHARDS:
                cells = shard_cells(settings, "adult", first=seed, quick=quick)
                federation_of(cells[0].job)
            else:
                other = on_stand_in(settings, number)
                cells = [] if other is None else _present(other, number, seed, quick)
                if other is None or not cells:
                    missing = DataError(f"figure {number} needs {_WANTED}{error}")
                    absent[number] = str(missing)
                    continue
                settings = other
        planned[number] = cells
    if not planned and missing is not None:
        raise missing
    return planned, absent, settings


def _present(settings: Settings, number: int, seed: int, quick: bool) -> list[Cell]:
    """The runs of a figure on its replacement data; empty if these are missing too."""
    cells = figure_cells(settings, number, first=seed, quick=quick)
    try:
        federation_of(cells[0].job)
    except DataError:
        return []
    return cells


def _run_all(
    cells: Sequence[Cell], store: Store, workers: int, progress: Progress | None
) -> dict[str, Run]:
    """Every run, run now or stored before, by the digest of its job."""
    cell_of = {cell.job.digest: cell for cell in cells}
    tell = progress or (lambda *_: None)
    tell(0, len(cell_of), "")
    found: dict[str, Run] = {}
    for job, run in carried_out([cell.job for cell in cell_of.values()], store, workers):
        found[job.digest] = run
        cell = cell_of[job.digest]
        words = f"figure {cell.figure}, {SPLITS[cell.split]}: {job.recipe.label}, seed {job.seed}"
        tell(len(found), len(cell_of), words if len(found) < len(cell_of) else "done")
    return found


def _curves(settings: Settings, number: int, cells: Sequence[Cell], runs: dict[str, Run]) -> Made:
    """Tables, one per split, and the picture of one of Figures 1 to 4."""
    what = settings.figures[str(number)]
    found = series_of(cells, [runs[cell.job.digest] for cell in cells])
    splits = dict.fromkeys(cell.split for cell in cells)
    tables = [split_table(number, what, split, found) for split in splits]
    picture = Picture(f"figure-{number}.png", f"Figure {number}. {what.title}. {_CURVES}")
    return tables, [(picture, plot_figure(found))]


def _shards(settings: Settings, cells: Sequence[Cell], runs: dict[str, Run]) -> Made:
    """Table and picture of Figure 5."""
    what, source = settings.shards, cells[0].job.data.source
    data = "MIMIC-III" if source == "mimic3" else "Adult"
    note = (
        f"Local averaging, {what.parties} parties, balanced split, {what.rounds} rounds with "
        f"damping {what.damping:g} (the paper: 5 and 0.4); held-out log-likelihood. "
    )
    if source != "mimic3":
        note += "The paper uses MIMIC-III, which is not available here; this is Adult. "
    note += _NOISE_OFF
    found = series_of(cells, [runs[cell.job.digest] for cell in cells])
    picture = Picture("figure-5.png", f"Figure 5. {data}, {what.title}. {note}", narrow=True)
    over_rounds = Picture(
        "figure-5-curves.png", f"Figure 5 over rounds, by number of shards. {note}"
    )
    pictures = [(picture, plot_shards(found)), (over_rounds, plot_shard_curves(found))]
    return [shard_table(data, what.title, found, note)], pictures


_WANTED = (
    "MIMIC-III or, in its place, GUSTO-I, and finds neither. GUSTO-I has no command that downloads "
    "it: write the data set gusto of the R package predtools as CSV to "
    "$TACIT_DATA/gusto/gusto.csv.gz. MIMIC-III: "
)
_CURVES = (
    "Held-out accuracy and log-likelihood against exchanges: mean over seeds; shaded: standard "
    "error. Diamonds: ends of the paper's curves. A curve may begin below the panel."
)
_NOISE_OFF = (
    "A private method always adds noise: “noise off” is ε = 1e8, with negligible noise. The "
    "private lines are (4, 1e−5) for substituting one record, without a trusted party."
)


def _write(
    out: Path,
    seed: int,
    quick: bool,
    figure: int | None,
    tables: Sequence[Table],
    pictures: Sequence[tuple[Picture, Figure]],
) -> dict[str, Any]:
    command = f"tacit reproduce tmlr --seed {seed}"
    command += f" --figure {figure}" if figure is not None else ""
    command += " --quick" if quick else ""
    facts = {"study": "tmlr", "command": command, "seed": seed, "quick": quick, "figure": figure}
    result = write_study(
        out, title=TITLE, summary=_summary(quick), facts=facts, tables=tables, figures=pictures,
        theirs="numbers of the paper were read off its plots",
    )  # fmt: skip
    files = list(result["files"])
    for picture, drawn in pictures:
        vector = out / picture.file.replace(".png", ".svg")
        drawn.savefig(vector, format="svg")
        files.append(str(vector))
    return {**result, "files": files}


def _summary(quick: bool) -> str:
    words = (
        "The experiments of the DP-PVI paper (section 5 and Appendix B), with the ends of "
        "its published curves and ours. Ours are simulations: the noise comes from known seeds, so "
        "that they can be repeated. With secret noise the same runs would have the stated "
        "guarantees. Our private methods run synchronously, except DP optimisation with 20 steps "
        "per visit and, on the network, shard methods without an aggregator. "
        "The paper visits parties one after another if it trusts no aggregator."
    )
    small = (
        " This is the quick version: fewer seeds, splits, methods and rounds. Its numbers are "
        "not the results of the study."
    )
    return words + small if quick else words
