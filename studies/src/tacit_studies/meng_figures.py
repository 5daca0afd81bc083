"""Plots of the linear-regression study: sweeps, posteriors, training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from tacit.results.figures import BLUE, GREY, INK, VERMILION, canvas, plain
from tacit.results.figures import title_and_subtitle as title
from tacit_studies.page import Picture

GREEN, ORANGE, PURPLE, SKY = "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, INK, GREY)
PERCENTILES = (10, 50, 90)
SMALLEST = 1e-9
"""Smaller values of KL are drawn at this value."""


class Made(NamedTuple):
    """One repeated figure: the picture, its numbers, and its rows of the summary table."""

    picture: Picture
    figure: Figure
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    summary: Sequence[tuple[str, str, float, float, float, float, float | None]]
    """Form, setting; 10th percentile, median, 90th and mean of KL; median precision ratio."""


class Outcome(NamedTuple):
    """All seeds of one setting: mean KL and mean precision ratio of the last ten rounds."""

    label: str
    theta: np.ndarray
    kl: np.ndarray
    ratio: np.ndarray

    def summary(self, what: str) -> tuple[str, str, float, float, float, float, float | None]:
        low, middle, high = (float(v) for v in np.percentile(self.kl, PERCENTILES))
        mean, ratio = float(np.mean(self.kl)), float(np.median(self.ratio))
        return what, self.label, low, middle, high, mean, ratio

    def rows(self, *before: object) -> list[tuple[object, ...]]:
        """One row per seed: the given cells, the label, θ, KL and precision ratio."""
        numbers = zip(self.theta, self.kl, self.ratio, strict=True)
        return [(*before, self.label, *(float(v) for v in row)) for row in numbers]


def plot_sweep(found: Sequence[Outcome], axis: str, shown: Sequence[int]) -> Figure:
    """The report's four panels: ratio and KL against θ, percentiles and sd of KL per setting."""
    figure = canvas(11.0, 7.4)
    (ratio, against), (percent, spread) = figure.subplots(2, 2)
    for number, index in enumerate(shown):
        one, colour = found[index], COLOURS[number % len(COLOURS)]
        ratio.plot(one.theta, one.ratio, ".", color=colour, label=one.label, alpha=0.8)
        against.plot(one.theta, np.maximum(one.kl, SMALLEST), ".", color=colour, alpha=0.8)
    ratio.axhline(1.0, color=GREY, linewidth=1)
    ratio.set_yscale("symlog", linthresh=1.0)
    ratio.legend(frameon=False, fontsize=8)
    against.set_yscale("log")
    draw_percentiles(percent, found)
    at = np.arange(len(found))
    spread.plot(at, [max(float(np.std(one.kl)), SMALLEST) for one in found], "o-", color=BLUE)
    spread.set_yscale("log")
    for axes in (percent, spread):
        axes.set_xticks(at, [one.label for one in found], rotation=45, ha="right", fontsize=7)
        axes.set_xlabel(axis)
    for axes, name in (
        (ratio, "Precision of q over the exact one, against θ"),
        (against, "KL(q ‖ exact) in nats, against θ"),
        (percent, "KL: percentiles over seeds"),
        (spread, "KL: standard deviation over seeds"),
    ):
        plain(axes)
        title(axes, name, "mean of the last ten rounds")
    return figure


def draw_percentiles(axes: Axes, found: Sequence[Outcome], at: Sequence[float] | None = None):
    """Median, 10th and 90th percentile and mean of KL."""
    where = np.arange(len(found)) if at is None else np.asarray(at)
    low, middle, high = np.array([np.percentile(one.kl, PERCENTILES) for one in found]).T
    axes.fill_between(
        where, np.maximum(low, SMALLEST), np.maximum(high, SMALLEST), color=BLUE, alpha=0.15
    )
    axes.plot(where, np.maximum(middle, SMALLEST), "o-", color=BLUE, label="median, 10–90 %")
    mean = np.maximum(np.array([float(np.mean(one.kl)) for one in found]), SMALLEST)
    axes.plot(where, mean, "s--", color=VERMILION, markersize=4, label="mean")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)


def plot_posteriors(cases: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> Figure:
    """Densities of q and of the exact posterior, one panel per case (label, q, exact)."""
    figure = canvas(3.3 * min(len(cases), 4), 2.9 * -(-len(cases) // 4))
    panels = figure.subplots(-(-len(cases) // 4), min(len(cases), 4), squeeze=False).ravel()
    for axes, (label, q, exact) in zip(panels, cases, strict=False):
        plain(axes)
        means, sds = [p[1] / p[0] for p in (q, exact)], [p[0] ** -0.5 for p in (q, exact)]
        reach = 4 * max(sds)
        grid = np.linspace(min(means) - reach, max(means) + reach, 400)
        axes.plot(grid, norm.pdf(grid, means[0], sds[0]), color=VERMILION, label="q")
        axes.plot(grid, norm.pdf(grid, means[1], sds[1]), color=INK, ls="--", label="exact")
        axes.set_yticks([])
        axes.set_xlabel("θ")
        title(axes, label, f"mean {means[0]:.3g}, exact {means[1]:.3g}")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def plot_curves(
    cases: Sequence[tuple[str, np.ndarray, np.ndarray]], mark: float | None = None
) -> Figure:
    """η₁ and η₂ against rounds, exact values dashed: one column per case (label, q, exact)."""
    figure = canvas(3.6 * len(cases), 5.2)
    panels = figure.subplots(2, len(cases), squeeze=False, sharex="col")
    for column, (label, q, exact) in enumerate(cases):
        for row, name in enumerate(("η₁", "η₂")):
            axes = panels[row, column]
            plain(axes)
            axes.plot(np.arange(1, len(q) + 1), q[:, row], color=(BLUE, VERMILION)[row])
            axes.axhline(exact[row], color=INK, ls="--", linewidth=1)
            if mark is not None:
                axes.axvline(mark, color=GREY, ls=":", linewidth=1)
            axes.set_ylabel(name)
        title(panels[0, column], label, "dashed: exact posterior")
        panels[1, column].set_xlabel("Round")
    return figure


def plot_lines(
    panels: Sequence[tuple[str, str, str, Mapping[str, tuple[np.ndarray, np.ndarray]]]],
    *,
    log_y: bool = True,
    log_x: bool = False,
) -> Figure:
    """Draw one panel per (title, x label, y label, lines); `lines` maps a label to x and y.

    If a label ends with *, its points are drawn as dots instead of a line, without the * in the
    legend.
    """
    figure = canvas(4.6 * len(panels), 3.9)
    for axes, (name, x_label, y_label, lines) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        plain(axes)
        for number, (label, (x, y)) in enumerate(lines.items()):
            dots = label.endswith("*")
            axes.plot(
                x, y, "o" if dots else "-", label=label.rstrip("*"),
                color=COLOURS[number % len(COLOURS)], markersize=4,
            )  # fmt: skip
        axes.set_yscale("log" if log_y else "linear")
        axes.set_xscale("log" if log_x else "linear")
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.legend(frameon=False, fontsize=8)
        title(axes, name, "")
    return figure


def plot_robustness(panels: Sequence[tuple[str, Sequence[float], Sequence[Outcome]]]) -> Figure:
    """Percentiles of KL against a number: one panel per (label, values, outcomes)."""
    figure = canvas(5.2 * len(panels), 4.0)
    for axes, (label, at, found) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        plain(axes)
        draw_percentiles(axes, found, at)
        axes.set_xlabel(label)
        axes.set_ylabel("KL(q ‖ exact), nats")
        title(axes, f"KL against {label}", "mean of the last ten rounds, over seeds")
    return figure


def plot_comparison(found: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """KL over seeds, one row per method: 10th to 90th percentile, median as a dot."""
    figure = canvas(9.0, 0.42 * len(found) + 1.4)
    axes = figure.subplots()
    plain(axes)
    for row, (_, kl) in enumerate(found):
        low, middle, high = np.maximum(np.percentile(kl, PERCENTILES), SMALLEST)
        axes.hlines(row, low, high, color=BLUE, linewidth=2)
        axes.plot(middle, row, "o", color=VERMILION)
    axes.set_yticks(range(len(found)), [label for label, _ in found], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("KL(q ‖ exact), nats: 10th to 90th percentile; dot: median")
    return figure
