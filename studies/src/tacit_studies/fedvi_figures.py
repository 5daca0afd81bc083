"""Figures of the thesis study: loss against exchanges, and the 90 % band of the line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from tacit.expfam.gaussian import Gaussian
from tacit.methods import GradientVI
from tacit.results import exact_posterior
from tacit.results.figures import BLUE, GREY, INK, VERMILION, canvas, plain
from tacit.results.figures import title_and_subtitle as title
from tacit_studies.fedvi_published import TABLE_4_2
from tacit_studies.fedvi_runs import MODES, Experiment, Trace

GREEN = "#009E73"
LOOKS = {
    "sequential": (BLUE, "-", "o"),
    "synchronous": (VERMILION, "--", "s"),
    "asynchronous": (GREEN, (0, (1, 1)), "^"),
}
FLOOR = 1e-8
NORMAL_90 = 1.6448536269514722
GROUPS = (("Africa", 1.0, VERMILION), ("elsewhere", 0.0, BLUE))


def plot_goal(experiment: Experiment) -> Figure:
    """The draws, the density they come from, its mean, and the exact posterior of the mean."""
    y = experiment.records["y"]
    mean, covariance = exact_posterior(experiment.model, [experiment.records])
    sd = float(np.sqrt(covariance[0, 0]))
    grid = np.linspace(y.min(), y.max(), 400)
    near = mean[0] + sd * np.linspace(-4.0, 4.0, 80)
    figure = canvas(5.4, 3.6)
    axes = figure.subplots()
    plain(axes)
    axes.hist(y, bins=60, density=True, color=GREY, alpha=0.35, label=f"{len(y):,} draws")
    axes.plot(grid, _normal(grid, 5.0, 1.0), color=BLUE, linewidth=1.8, label="N(5, 1)")
    axes.axvline(5.0, color=VERMILION, linestyle="--", linewidth=1.4, label="goal: the mean, 5")
    height = _normal(near, float(mean[0]), sd)
    axes.fill_between(
        near, 0.4 * height / height.max(), color=GREEN, alpha=0.6, linewidth=0,
        label=f"posterior: {mean[0]:.3f} ± {sd:.3f}",
    )  # fmt: skip
    axes.set(xlabel="y", ylabel="Density", ylim=(0.0, 0.62))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    title(axes, "Data and goal", f"{len(experiment.parties)} parties, prior N(0, 1)")
    return figure


def plot_visits(found: Sequence[Trace]) -> Figure:
    """Loss at the end against the steps of a visit: a line per number of draws."""
    figure = canvas(5.4, 3.6)
    axes = figure.subplots()
    plain(axes)
    methods = [trace.setting.method for trace in found]
    for draws, colour in zip(visit_draws(found), (BLUE, VERMILION, GREEN), strict=False):
        ends = [
            (method.steps, max(float(trace.excess[-1]), FLOOR))
            for trace, method in zip(found, methods, strict=True)
            if isinstance(method, GradientVI) and method.draws == draws
        ]
        steps, excess = zip(*sorted(ends), strict=True)
        axes.plot(steps, excess, color=colour, marker="o", markersize=4, label=f"draws: {draws}")
    axes.set(xscale="log", yscale="log", xlabel="Steps per visit")
    axes.set_ylabel("Loss above its minimum (nats)")
    axes.legend(frameon=False, fontsize=9)
    title(axes, "Steps and draws", f"{found[0].exchanges[-1]} exchanges, sequential")
    return figure


def visit_draws(found: Sequence[Trace]) -> list[int]:
    """The numbers of draws that were compared."""
    methods = (trace.setting.method for trace in found)
    return sorted({method.draws for method in methods if isinstance(method, GradientVI)})


def _normal(at: np.ndarray, mean: float, sd: float) -> np.ndarray:
    return np.exp(-0.5 * ((at - mean) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))


def plot_loss(found: Sequence[Trace]) -> Figure:
    """Loss above its minimum against exchanges: one panel per setting, one line per mode."""
    labels = list(dict.fromkeys(trace.setting.label for trace in found))
    figure = canvas(3.9 * len(labels), 3.9)
    panels = figure.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    for axes, label in zip(panels, labels, strict=True):
        chosen = [trace for trace in found if trace.setting.label == label]
        plain(axes)
        for trace in chosen:
            colour, style, marker = LOOKS[trace.mode]
            few = _shown_until(chosen) <= 60
            # A line ends at `FLOOR`: drawn further, it would hide the others.
            drawn = trace.exchanges <= (trace.reached(FLOOR) or trace.exchanges[-1])
            axes.plot(
                trace.exchanges[drawn],
                np.maximum(trace.excess[drawn], FLOOR),
                color=colour,
                linestyle=style,
                linewidth=1.8,
                marker=marker if few else None,
                markersize=4,
                label=trace.mode,
            )
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=9))
        axes.minorticks_off()
        axes.set_xlim(-0.03 * _shown_until(chosen), 1.03 * _shown_until(chosen))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_xlabel("Exchanges")
        title(axes, label, f"minimum {chosen[0].minimum:,.2f} nats")
    panels[0].set_ylabel("Loss above its minimum (nats)")
    panels[-1].legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def plot_bands(experiment: Experiment, found: Sequence[Trace]) -> Figure:
    """log GDP against ruggedness with the central 90 % band of the line: one panel per mode."""
    mean, covariance = exact_posterior(experiment.model, [experiment.records])
    x, y = experiment.records["x"], experiment.records["y"]
    rugged = np.linspace(0.0, 1.03 * x[:, 2].max(), 120)
    figure = canvas(11.4, 4.5)
    panels = figure.subplots(1, len(MODES), sharex=True, sharey=True)
    for axes, trace in zip(panels, found, strict=True):
        plain(axes)
        family = trace.posterior.family
        assert isinstance(family, Gaussian)
        spread = np.asarray(family.covariance(trace.posterior.natural))
        for _, africa, colour in GROUPS:
            here = x[:, 1] == africa
            axes.plot(
                x[here, 2], y[here], ".", color=colour, alpha=0.5, markersize=6.5, markeredgewidth=0
            )
            line = np.stack([np.ones_like(rugged), np.full_like(rugged, africa), rugged], axis=1)
            line = np.column_stack([line, africa * rugged])
            low, high = _band(line, trace.posterior.mean, spread)
            axes.fill_between(rugged, low, high, color=colour, alpha=0.28, linewidth=0)
            axes.plot(rugged, line @ trace.posterior.mean, color=colour, linewidth=1.6)
            for edge in _band(line, mean, covariance):
                axes.plot(rugged, edge, color=colour, linewidth=1.1, linestyle=(0, (4, 2)))
            published = np.array(TABLE_4_2[trace.mode].mean)
            axes.plot(rugged, line @ published, color=INK, linewidth=1.2, linestyle=(0, (1, 1.5)))
        axes.set_xlabel("Terrain ruggedness index")
        axes.set(xlim=(-0.1, rugged[-1]), ylim=(y.min() - 0.5, y.max() + 0.3))
        ends = f"α {trace.posterior.mean[0]:.3f} ± {trace.posterior.sd[0]:.3f}"
        title(axes, trace.mode.capitalize(), f"{ends} after {trace.exchanges[-1]:,} exchanges")
    panels[0].set_ylabel("log real GDP per head, 2000")
    _explain(figure)
    return figure


def _shown_until(chosen: Sequence[Trace]) -> int:
    """Return the number of exchanges until the slowest of these lines reaches `FLOOR` or ends."""
    return max(trace.reached(FLOOR) or int(trace.exchanges[-1]) for trace in chosen)


def _band(line: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    reach = NORMAL_90 * np.sqrt(np.sum((line @ spread) * line, axis=1))
    return line @ mean - reach, line @ mean + reach


def _explain(figure: Figure) -> None:
    marks = [Patch(color=colour, alpha=0.5, label=name) for name, _, colour in GROUPS]
    marks += [
        Patch(color=GREY, alpha=0.3, label="90 % band of q (mean-field)"),
        Line2D([], [], color=GREY, linestyle=(0, (4, 2)), label="90 % band, exact posterior"),
        Line2D([], [], color=INK, linestyle=(0, (1, 1.5)), label="the thesis's line"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
