"""Write a report into the public part of the run it describes."""

from __future__ import annotations

import warnings
from pathlib import Path

from matplotlib.figure import Figure

from tacit.models.lda.table import TopicTable
from tacit.report.load import Run, load_run
from tacit.report.page import Picture, render
from tacit.results.figures import (
    plot_calibration,
    plot_coefficients,
    plot_convergence,
    plot_negative_elbo,
    plot_parties,
)
from tacit.results.summary import builtins_of

FIGURES = "figures"


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/public/report.html` and its figures; returns the path of the page."""
    run = load_run(run_dir)
    return write_page(run, run.directory / "public")


def write_page(run: Run, folder: Path) -> Path:
    """Write report.html and its figures into a folder; answer the path of the page."""
    (folder / FIGURES).mkdir(exist_ok=True)
    pictures = []
    for picture, figure in draw(run):
        with warnings.catch_warnings():
            # Glyphs that the font lacks show as boxes; the tables have the full names.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure.savefig(folder / picture.file, format="png")
        pictures.append(picture)
    page = folder / "report.html"
    page.write_text(render(run, pictures), encoding="utf-8")
    return page


def draw(run: Run) -> list[tuple[Picture, Figure]]:
    """All figures for which the run has data."""
    result, found = run.result, []
    if run.rows:
        caption = "Posterior mean and 95 % interval of the coefficients."
        if result.converged is False:
            caption += " This fit did not converge."
        if result.intervals.warning:
            caption += f" {result.intervals.warning}"
        names, mean, sd, low, high, real = zip(*run.rows, strict=True)
        figure = plot_coefficients(
            names, mean, sd, result.true_values,
            low=low, high=high, real=real, warning=result.intervals.warning,
            converged=result.converged,
        )  # fmt: skip
        found.append((Picture(f"{FIGURES}/coefficients.png", caption), figure))
    if result.topics:
        caption = "The most probable words of each topic, and how probable they are."
        figure = TopicTable.from_rows([builtins_of(topic) for topic in result.topics]).plot()
        found.append((Picture(f"{FIGURES}/topics.png", caption), figure))
    bins = result.calibration.get("held_out")
    if bins:
        caption = (
            "Calibration on the held-out records: observed frequency against predicted "
            "probability, with 95 % intervals, and the number of records in each bin."
        )
        found.append(
            (Picture(f"{FIGURES}/calibration.png", caption, narrow=True), plot_calibration(bins))
        )
    if any(row.negative_elbo is not None for row in run.rounds):
        caption = "Negative evidence lower bound of the q that each round started from."
        found.append(
            (Picture(f"{FIGURES}/negative_elbo.png", caption), plot_negative_elbo(run.rounds))
        )
    if any((row.last_change or 0.0) > 0 for row in run.rounds):
        caption = "How far each round moved q: KL divergence on a log scale."
        found.append((Picture(f"{FIGURES}/convergence.png", caption), plot_convergence(run.rounds)))
    if result.parties and all(party.records is not None for party in result.parties):
        caption = "What each party holds."
        found.append((Picture(f"{FIGURES}/parties.png", caption), plot_parties(result.parties)))
    return found
