"""Figures of the frontier: regret against ε, and the effect of each part of private scoring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from tacit.results.figures import BLUE, GREY, INK, VERMILION, canvas, plain
from tacit.results.figures import title_and_subtitle as title
from tacit_studies.frontier_ablation import VARIANTS
from tacit_studies.frontier_settings import ABLATION, BALANCED, REFERENCE, Settings
from tacit_studies.frontier_tables import FIT, Series, published
from tacit_studies.tmlr_figures import GREEN, ORANGE, PURPLE, SKY
from tacit_studies.tmlr_tables import mean_of

LOOKS = {
    "scoring-eb": (VERMILION, "-", 2.6),
    "scoring": (VERMILION, (0, (3, 1.5)), 1.8),
    "dp-optimisation": (BLUE, "-", 1.8),
    "averaged": (ORANGE, "-", 1.8),
    "virtual": (GREEN, (0, (3, 1.5)), 1.8),
    "statistics": (GREY, "-", 1.8),
    "hybrid": (GREY, (0, (3, 1.5)), 1.8),
    "committee-same": (PURPLE, "-", 1.4),
    "committee-split": (SKY, "-", 1.4),
    "central": (INK, (0, (1, 1)), 1.8),
}
APART = 0.055
"""Smallest distance between two labels, as a share of the panel's height."""
TOP = 0.3
"""Upper end of the panels: larger losses would hide the differences."""
TICKS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
PANELS = (
    ("No one is trusted", ("none",)),
    ("One party is trusted", ("the aggregator", "central holder")),
)


def plot_frontier(settings: Settings, figure: int, found: Sequence[Series]) -> Figure:
    """Regret against ε on two logarithmic axes, by trust assumption."""
    private = [one for one in found if one.cell.figure == figure and one.cell.method != REFERENCE]
    epsilons = sorted({one.cell.epsilon for one in private if one.cell.epsilon is not None})
    drawn = canvas(11.0, 5.2)
    panels = drawn.subplots(1, 2, sharey=True)
    ends = []
    for axes, (words, who) in zip(panels, PANELS, strict=True):
        plain(axes)
        axes.set_xscale("log")
        axes.set_yscale("log")
        shown = [one for one in private if settings.methods[one.cell.method].trusted in who]
        names = dict.fromkeys(one.cell.method for one in shown)
        ends.append({name: _line(axes, settings, figure, name, shown) for name in names})
        title(axes, words, _whom(who))
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(0.85 * epsilons[0], 1.08 * epsilons[-1])
        axes.set_xlabel("ε  (δ = 1e−5, substituting one record)")
    low, high = panels[0].get_ylim()
    high = min(high, TOP)
    panels[0].set_ylim(low, high)
    panels[0].set_yticks([tick for tick in TICKS if low <= tick <= high])
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].yaxis.set_minor_formatter(NullFormatter())
    panels[0].set_ylabel("Held-out log-likelihood lost to privacy (nats)")
    for axes, lines in zip(panels, ends, strict=True):
        _label(axes, settings, lines)
    figure_settings = settings.figures[str(figure)]
    drawn.suptitle(
        f"Adult, logistic regression, {figure_settings.title}; lower is better; ◇ published "
        f"(TMLR 2023, ε = {figure_settings.published.epsilon:g})",
        fontsize=10,
        color=GREY,
    )
    return drawn


def _whom(who: Sequence[str]) -> str:
    if "none" in who:
        return "every message is private by itself"
    return "the aggregator of the messages; central DP-VI: the holder of all records"


def _line(
    axes: Axes, settings: Settings, figure: int, name: str, shown: Sequence[Series]
) -> tuple[float, float]:
    """Draw the regret of one method against ε.

    The balanced split is a line with a band, every other split a thin line, and the paper's value a
    diamond. Returns the last point (ε, regret) of the balanced split.
    """
    colour, style, width = LOOKS[name.removesuffix("-trusted")]
    end = (1.0, 1.0)
    for split in dict.fromkeys(one.cell.split for one in shown):
        points = sorted(
            (one.cell.epsilon or 0.0, max(one.regret.value or 0.0, 1e-5), one.regret.error or 0.0)
            for one in shown
            if one.cell.method == name and one.cell.split == split
        )
        epsilons, values, errors = np.array(points).T
        if split != BALANCED:
            axes.plot(epsilons, values, color=colour, linewidth=0.7, alpha=0.45, zorder=2)
            continue
        axes.plot(epsilons, values, color=colour, linestyle=style, linewidth=width, zorder=3)
        low = np.maximum(values - errors, 0.5 * values)
        axes.fill_between(epsilons, low, values + errors, color=colour, alpha=0.15, linewidth=0)
        end = epsilons[-1], values[-1]
    theirs = published(settings, figure, BALANCED, name).log_likelihood
    reference = shown[0].references
    ours = mean_of([row[FIT] for row in reference]).value
    if theirs is not None and ours is not None:
        axes.plot(
            [settings.figures[str(figure)].published.epsilon],
            [ours - theirs],
            "D",
            color=colour,
            markerfacecolor="white",
            markeredgewidth=1.3,
            markersize=6,
            zorder=4,
        )
    return end


def _label(axes: Axes, settings: Settings, ends: dict[str, tuple[float, float]]) -> None:
    """Write each method's name at the end of its line; move it up if it would overlap another."""
    low, high = np.log(axes.get_ylim())
    order = sorted(ends, key=lambda name: ends[name][1])
    heights = [min((np.log(ends[name][1]) - low) / (high - low), 1.0) for name in order]
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + APART) if placed else max(height, 0.0))
    for name, height, at in zip(order, heights, placed, strict=True):
        colour = LOOKS[name.removesuffix("-trusted")][0]
        axes.annotate(
            settings.methods[name].label,
            xy=(1.0, height),
            xytext=(1.03, at),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize=9,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6},
            annotation_clip=False,
        )


def plot_ablation(found: Sequence[Series]) -> Figure:
    """Log-likelihood lost by leaving out one part of private scoring: one bar per part."""
    here = {one.cell.method: one for one in found if one.cell.figure == ABLATION}
    whole = here["whole"]
    bars = []
    for name, (words, _) in VARIANTS.items():
        if name == "whole":
            continue
        pairs = zip(here[name].rows, whole.rows, strict=True)
        lost = mean_of([reference[FIT] - row[FIT] for row, reference in pairs])
        bars.append((lost.value or 0.0, lost.error or 0.0, words))
    bars.sort()
    drawn = canvas(8.0, 3.4)
    axes = drawn.subplots()
    plain(axes)
    places = np.arange(len(bars))
    axes.barh(
        places,
        [bar[0] for bar in bars],
        xerr=[bar[1] for bar in bars],
        color=BLUE,
        height=0.6,
        error_kw={"ecolor": INK, "linewidth": 1},
    )
    axes.axvline(0.0, color=GREY, linewidth=1)
    axes.set_yticks(places, [bar[2] for bar in bars])
    axes.set_xlabel("Loss of held-out log-likelihood (nats); bars are standard errors")
    title(axes, "Private scoring without one of its parts", f"No one trusted; {whole.guarantee}")
    return drawn
