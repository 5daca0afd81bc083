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
    plot_loss,
    plot_parties,
)

FIGURES = "figures"


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/public/report.html` and its figures; returns the path of the page."""
    run = load_run(run_dir)
    folder = run.directory / "public"
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
        caption = "The most probable words of each topic, with probabilities."
        figure = TopicTable.from_rows([dict(topic) for topic in result.topics]).plot()
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
    if any(row.get("loss") is not None for row in run.rounds):
        caption = "Negative ELBO at the start of each round."
        found.append((Picture(f"{FIGURES}/loss.png", caption), plot_loss(run.rounds)))
    if any((row.get("step_kl") or 0.0) > 0 for row in run.rounds):
        caption = "Change of the posterior per round: KL divergence on a log scale."
        found.append((Picture(f"{FIGURES}/convergence.png", caption), plot_convergence(run.rounds)))
    if result.parties and all(party.get("records") is not None for party in result.parties):
        caption = "Records of each party."
        found.append((Picture(f"{FIGURES}/parties.png", caption), plot_parties(result.parties)))
    return found
