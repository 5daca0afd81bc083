"""The figure of the posteriordb study: errors of means and ratios of sds, by posterior."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tacit.results.figures import BLUE, FAINT, GREY, INK, VERMILION, canvas, plain
from tacit.results.figures import title_and_subtitle as title
from tacit_studies.posteriordb_runs import MEAN_ERROR, SD_HIGH, SD_LOW
from tacit_studies.posteriordb_tables import GUIDES, TACIT, Run
from tacit_studies.tmlr_figures import GREEN, ORANGE, SKY

LOOKS = {
    (TACIT, 1): (SKY, "o", "tacit, 1 party"),
    (TACIT, 5): (BLUE, "D", "tacit, 5 parties"),
    (TACIT, 20): (GREEN, "s", "tacit, 20 parties"),
    (GUIDES[0], None): (ORANGE, "x", "SVI, AutoNormal"),
    (GUIDES[1], None): (VERMILION, "+", "SVI, AutoMultivariateNormal"),
}
ERRORS = (1e-3, 100.0)
RATIOS = (0.4, 2.5)
"""The ends of the axes; values beyond are drawn there, as triangles."""


def plot_errors(runs: Sequence[Run]) -> Figure:
    """One line per posterior; the bands are the ranges that count as right."""
    names = list(dict.fromkeys(run.posterior for run in runs))
    rows = {name: len(names) - number for number, name in enumerate(names)}
    drawn = canvas(11.0, 1.9 + 0.3 * len(names))
    errors, ratios = drawn.subplots(1, 2, sharey=True)
    looks = {key: look for key, look in LOOKS.items() if any(_key(run) == key for run in runs)}
    for number, (key, (colour, marker, label)) in enumerate(looks.items()):
        offset = 0.12 * (number - (len(looks) - 1) / 2)
        for run in runs:
            if _key(run) == key and run.result.get("mean_error") is not None:
                y = rows[run.posterior] - offset
                _mark(errors, run.result["mean_error"], y, ERRORS, colour, marker)
                _span(ratios, run, y, colour)
        errors.plot([], [], marker, color=colour, markersize=5, label=label)
    errors.axvspan(ERRORS[0], MEAN_ERROR, color=FAINT, zorder=0)
    ratios.axvspan(SD_LOW, SD_HIGH, color=FAINT, zorder=0)
    ratios.axvline(1.0, color=GREY, linewidth=1, zorder=1)
    for axes, ends in ((errors, ERRORS), (ratios, RATIOS)):
        plain(axes)
        axes.set_xscale("log")
        axes.set_xlim(ends[0] / 1.3, ends[1] * 1.3)
    errors.set_yticks(list(rows.values()), list(rows), fontsize=8)
    errors.set_ylim(0.3, len(names) + 0.7)
    errors.set_xlabel("Largest |mean − reference| (reference sds)")
    ratios.set_xlabel("sd / reference sd, smallest to largest")
    ticks = [0.4, 0.6, 0.88, 1.1, 1.5, 2.5]
    ratios.xaxis.set_major_locator(FixedLocator(ticks))
    ratios.xaxis.set_minor_locator(NullLocator())
    ratios.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    title(errors, "Means", f"Shaded: at most {MEAN_ERROR} sd")
    title(ratios, "Standard deviations", f"Shaded: {SD_LOW} to {SD_HIGH}")
    drawn.legend(
        *errors.get_legend_handles_labels(),
        loc="outside lower center", ncols=len(looks), frameon=False, fontsize=9,
    )  # fmt: skip
    return drawn


def _key(run: Run) -> tuple[str, int | None]:
    return run.method, run.parties


def _mark(
    axes: Axes, value: float, y: float, ends: tuple[float, float], colour: str, marker: str
) -> None:
    inside = min(max(value, ends[0]), ends[1])
    beyond = {ends[0]: "<", ends[1]: ">"}.get(inside, marker)
    axes.plot(inside, y, beyond, color=colour, markersize=5, zorder=3)


def _span(axes: Axes, run: Run, y: float, colour: str) -> None:
    low, high = (min(max(run.result[key], RATIOS[0]), RATIOS[1]) for key in ("sd_low", "sd_high"))
    axes.hlines(y, low, high, color=colour, linewidth=1.6, zorder=2)
    for value in (low, high):
        _mark(axes, value, y, RATIOS, colour if RATIOS[0] < value < RATIOS[1] else INK, "|")
