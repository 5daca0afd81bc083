"""Figures of the TMLR study: performance against exchanges, and against the number of shards."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tacit.results.figures import BLUE, GREY, INK, VERMILION, canvas, plain
from tacit.results.figures import title_and_subtitle as title
from tacit_studies.tmlr_published import ROUNDS, ROUNDS_NETWORK
from tacit_studies.tmlr_settings import REFERENCE
from tacit_studies.tmlr_tables import METRICS, SAME_METHOD, SPLITS, Series

GREEN, ORANGE, PURPLE, SKY = "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
LOOKS = {
    "non-private": (GREY, (0, (4, 3))),
    "dp-optimisation": (BLUE, "-"),
    "dp-optimisation-sequential": (BLUE, "--"),
    "dp-optimisation-few": (BLUE, ":"),
    "dp-optimisation-adam": (BLUE, "-."),
    "dp-optimisation-learned": (VERMILION, "-."),
    "dp-optimisation-long": (BLUE, (0, (1, 2))),
    "averaged": (ORANGE, "-"),
    "averaged-steps": (ORANGE, ":"),
    "averaged-sequential": (ORANGE, (0, (5, 1))),
    "averaged-parameters": (ORANGE, "-."),
    "averaged-trusted": (ORANGE, (0, (3, 1.5))),
    "virtual": (GREEN, "-"),
    "virtual-steps": (GREEN, ":"),
    "virtual-sequential": (GREEN, (0, (5, 1))),
    "virtual-factors": (VERMILION, "-"),
    "virtual-trusted": (GREEN, (0, (3, 1.5))),
    "virtual-factors-trusted": (VERMILION, (0, (3, 1.5))),
    "committee-same": (PURPLE, "-"),
    "committee-split": (SKY, "-"),
    "central": (INK, "-"),
}
LINES = {
    "open": (GREY, "-", "o"),
    "tight": (BLUE, "--", "s"),
    "private": (VERMILION, "-", "D"),
    "single": (GREEN, (0, (1, 1)), "^"),
    "published-open": (INK, ":", "o"),
    "published": (PURPLE, ":", "D"),
    "published-wide": (SKY, ":", "s"),
}
NAMES = {"accuracy": "Held-out accuracy", "log_likelihood": "Held-out log-likelihood (nats)"}


def plot_figure(found: Sequence[Series]) -> Figure:
    """One column per split, one row per metric; bands: standard errors, diamonds: the paper."""
    splits = list(dict.fromkeys(one.cell.split for one in found))
    figure = canvas(max(6.5, 4.1 * len(splits)), 7.2)
    panels = figure.subplots(2, len(splits), sharex=True, sharey="row", squeeze=False)
    for row, metric in enumerate(METRICS):
        for axes, split in zip(panels[row], splits, strict=True):
            here = [one for one in found if one.cell.split == split]
            plain(axes)
            for one in here:
                _draw(axes, one, metric)
            if row == 0:
                title(axes, SPLITS[split].capitalize(), _best(here))
        panels[row][0].set_ylim(*_limits(found, metric))
        panels[row][0].set_ylabel(NAMES[metric])
    for axes in panels[1]:
        axes.set_xscale("log")
        axes.set_xlabel("Exchanges between server and parties")
    _explain(figure, found)
    return figure


def plot_shards(found: Sequence[Series]) -> Figure:
    """Final log-likelihood against the number of shards: one line per noise and clip."""
    figure = canvas(7.2, 4.2)
    axes = figure.subplots()
    plain(axes)
    for name in dict.fromkeys(one.method for one in found):
        chosen = sorted((s for s in found if s.method == name), key=lambda s: s.cell.count or 0)
        ends = [one.end("log_likelihood") for one in chosen]
        colour, style, marker = LINES[name]
        axes.errorbar(
            [one.cell.count or 0 for one in chosen],
            [np.nan if end.value is None else end.value for end in ends],
            yerr=[end.error or 0.0 for end in ends],
            color=colour,
            linestyle=style,
            marker=marker,
            markersize=5,
            linewidth=1.8,
            label=chosen[0].label,
        )
    axes.set_xscale("log")
    axes.set_xlabel("Shards at each party")
    axes.set_ylabel(NAMES["log_likelihood"])
    axes.legend(frameon=False, fontsize=9)
    rounds = found[0].cell.job.recipe.rounds
    title(axes, "Local averaging", f"After {rounds} rounds; bars are standard errors")
    return figure


def plot_shard_curves(found: Sequence[Series]) -> Figure:
    """Log-likelihood against rounds for every number of shards: one panel per noise and clip."""
    names = list(dict.fromkeys(one.method for one in found))
    figure = canvas(max(6.5, 3.4 * len(names)), 4.2)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    counts = sorted({one.cell.count or 0 for one in found})
    shades = dict(zip(counts, np.linspace(0.85, 0.15, len(counts)), strict=True))
    for axes, name in zip(panels, names, strict=True):
        plain(axes)
        chosen = sorted((s for s in found if s.method == name), key=lambda s: s.cell.count or 0)
        for one in chosen:
            exchanges, mean, error = one.curve("log_likelihood")
            rounds = exchanges / one.runs[0].parties
            colour = mpl.colormaps["viridis"](shades[one.cell.count or 0])
            axes.plot(rounds, mean, color=colour, linewidth=1.8, label=f"{one.cell.count:,}")
            axes.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.15)
        axes.set_xlabel("Rounds")
        axes.set_title(chosen[0].label, fontsize=9, loc="left", wrap=True)
    panels[0].set_ylabel(NAMES["log_likelihood"])
    panels[-1].legend(title="shards", frameon=False, fontsize=8)
    return figure


def _draw(axes: Axes, one: Series, metric: str) -> None:
    colour, style = LOOKS[one.method]
    end = one.end(metric)
    if one.method == REFERENCE:
        if end.value is not None:
            axes.axhline(end.value, color=colour, linestyle=style, linewidth=1.4, zorder=1)
        return
    exchanges, mean, error = one.curve(metric)
    if len(exchanges) == 1:
        axes.errorbar(exchanges, mean, yerr=error, fmt="o", color=colour, markersize=5)
    else:
        axes.plot(exchanges, mean, color=colour, linestyle=style, linewidth=1.7)
        axes.fill_between(
            exchanges, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0
        )
    theirs = getattr(one.published, metric) if one.published else None
    if theirs is not None:
        axes.plot(
            [_published_at(one)],
            [theirs],
            "D",
            color=colour,
            markerfacecolor="none" if "trusted" in one.method else "white",
            markeredgewidth=1.3,
            markersize=6,
            linestyle="none",
            zorder=4,
        )


def _published_at(one: Series) -> int:
    """The exchanges of the paper's curve: its rounds times the parties."""
    name = SAME_METHOD.get(one.method, one.method).removesuffix("-trusted")
    rounds = ROUNDS if one.cell.job.hidden is None else ROUNDS_NETWORK
    return rounds.get(name, 1) * one.runs[0].parties


def _limits(found: Sequence[Series], metric: str) -> tuple[float, float]:
    """Range of the curves' ends, ours and theirs; their beginnings would hide differences."""
    ends = [one.end(metric).value for one in found]
    ends += [getattr(one.published, metric) for one in found if one.published]
    kept = [value for value in ends if value is not None]
    if not kept:
        return 0.0, 1.0
    low, high = min(kept), max(kept)
    room = 0.1 * (high - low) + 1e-3
    return low - room, high + room


def _best(here: Sequence[Series]) -> str:
    """Text on the best private row without a trusted party."""
    plain_ones = [
        (value, one.label)
        for one in here
        if one.trusted == "none" and (value := one.end("log_likelihood").value) is not None
    ]
    if not plain_ones:
        return ""
    value, label = max(plain_ones)
    return f"best without trust: {label}, {value:.3f} nats".replace("-", "−")


def _explain(figure: Figure, found: Sequence[Series]) -> None:
    marks: list[Line2D] = []
    for method, label in dict.fromkeys((one.method, one.label) for one in found):
        colour, style = LOOKS[method]
        lone = method.startswith("committee")
        marks.append(
            Line2D(
                [],
                [],
                color=colour,
                linestyle="none" if lone else style,
                linewidth=1.7,
                marker="o" if lone else None,
                markersize=5,
                label=label,
            )
        )
    if any(line.get_marker() == "D" for axes in figure.axes for line in axes.lines):
        marks.append(
            Line2D(
                [],
                [],
                color=GREY,
                linestyle="none",
                marker="D",
                markerfacecolor="white",
                markersize=6,
                label="end of the paper's curve",
            )
        )
    columns = 2 if figure.get_figwidth() < 8 else 3 if figure.get_figwidth() < 12 else 4
    place = "outside lower center"
    figure.legend(handles=marks, loc=place, ncols=columns, frameon=False, fontsize=9)
