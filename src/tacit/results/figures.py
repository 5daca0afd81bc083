"""Figures of a run, as matplotlib `Figure` objects without pyplot state.

Colours are those of Okabe and Ito (2008), which are safe for colour-blind readers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tacit.results.shown import NORMAL_95
from tacit.results.summary import CalibrationBin, PartyRow, Round

BLUE, VERMILION, INK, GREY, FAINT = "#0072B2", "#D55E00", "#222222", "#7A7A7A", "#E4E4E4"
MOST_COEFFICIENTS, MOST_PARTIES = 30, 40


def plot_coefficients(
    names: Sequence[str],
    mean: Sequence[float],
    sd: Sequence[float],
    true_values: Mapping[str, float] | None = None,
    *,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    real: Sequence[bool] | None = None,
    warning: str | None = None,
    converged: bool | None = None,
) -> Figure:
    """Draw a forest plot: posterior mean and central 95 % interval of each coefficient.

    Intervals are from `low` to `high`, or mean ± 1.96 sd if these are None. An interval is blue if
    it excludes 0 and its quantity can have either sign (`real`). No interval is blue if there is a
    `warning` about the intervals, or if the fit has not converged. Only the 30 coefficients with
    the largest |mean|/sd are shown.
    """
    location, scale = np.asarray(mean, np.float64), np.asarray(sd, np.float64)
    lower = location - NORMAL_95 * scale if low is None else np.asarray(low, np.float64)
    upper = location + NORMAL_95 * scale if high is None else np.asarray(high, np.float64)
    signed = np.ones(len(location), bool) if real is None else np.asarray(real, bool)
    usable = warning is None and converged is not False
    coloured = signed & ((lower > 0) | (upper < 0)) & usable
    strength = np.abs(location) / np.where(scale > 0, scale, 1.0)
    shown = np.argsort(-strength, kind="stable")[:MOST_COEFFICIENTS]
    shown = shown[np.argsort(location[shown], kind="stable")]
    labels = [names[int(k)] for k in shown]
    figure, axes = _panel(1.5 + 0.235 * len(shown))
    rows, clear = np.arange(len(shown)), coloured[shown]
    for chosen, colour in ((clear, BLUE), (~clear, GREY)):
        ends = (lower[shown][chosen], upper[shown][chosen])
        axes.hlines(rows[chosen], *ends, color=colour, linewidth=2)
        axes.plot(location[shown][chosen], rows[chosen], "o", color=colour, markersize=5)
    if true_values:
        _mark_true_values(axes, labels, true_values)
    axes.axvline(0.0, color=GREY, linewidth=1, zorder=1)
    _name_rows(axes, labels)
    axes.set_xlabel("Posterior mean and 95 % interval")
    few = len(shown) == len(location)
    total = len(location)
    which = f"All {total}" if few else f"The {len(shown)} largest by |mean|/sd of {total}"
    rest = "blue where the interval excludes 0"
    if converged is False:
        rest = "NOT CONVERGED, do not use"
    elif warning is not None:
        rest = "intervals are too narrow"
    title_and_subtitle(axes, "Coefficients", f"{which}; {rest}")
    return figure


def _mark_true_values(axes: Axes, labels: Sequence[str], true_values: Mapping[str, float]) -> None:
    known = [(row, true_values[name]) for row, name in enumerate(labels) if name in true_values]
    axes.plot(
        [value for _, value in known],
        [row for row, _ in known],
        "D",
        color=VERMILION,
        markerfacecolor="none",
        markersize=6,
        markeredgewidth=1.3,
        label="true value",
    )
    axes.legend(frameon=False, loc="lower right", fontsize=9)


def plot_negative_elbo(rounds: Sequence[Round]) -> Figure:
    """Draw the negative evidence lower bound at the start of each round; rounds without one are
    left out.
    """
    number, value = _series(rounds, "negative_elbo")
    figure, axes = _panel(3.6)
    axes.plot(number, value, **_line(number))
    axes.set_ylabel("Negative ELBO (nats)")
    axes.ticklabel_format(axis="y", useOffset=False)
    _round_axis(axes)
    last = (
        f"{value[-1]:,.1f} nats at the start of round {number[-1]}"
        if len(value)
        else "None was recorded"
    )
    title_and_subtitle(axes, "Negative ELBO", f"{last}; lower is better")
    return figure


def plot_convergence(rounds: Sequence[Round]) -> Figure:
    """Draw the KL divergence between consecutive rounds on a log scale; rounds with divergence 0
    are left out.
    """
    number, step = _series(rounds, "last_change")
    positive = step > 0
    number, step = number[positive], step[positive]
    figure, axes = _panel(3.6)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.plot(number, step, **_line(number))
    refused = {row.round for row in rounds if row.refused}
    marked = np.isin(number, sorted(refused))
    if marked.any():
        axes.plot(
            number[marked],
            step[marked],
            "X",
            color=VERMILION,
            markersize=8,
            label="an update was refused",
        )
        axes.legend(frameon=False, fontsize=9)
    axes.set_ylabel("KL from previous round (nats)")
    _round_axis(axes)
    last = f"Last change: {step[-1]:.2g} nats" if len(step) else "None was recorded"
    title_and_subtitle(axes, "Convergence", last)
    return figure


def plot_calibration(bins: Sequence[CalibrationBin]) -> Figure:
    """Draw observed frequency against predicted probability with 95 % Wilson intervals, and below
    it the number of records in each bin.
    """
    figure = canvas(5.4, 5.6)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    predicted, observed, count, low, high = (
        np.array([getattr(row, key) for row in bins], np.float64)
        for key in ("predicted", "observed", "count", "low", "high")
    )
    lower, upper = _wilson(observed, count)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.vlines(predicted, lower, upper, color=BLUE, linewidth=1.6, alpha=0.55)
    axes.plot(predicted, observed, "o", color=BLUE, markersize=6)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel="Observed frequency of y = 1")
    below.bar(low, count, width=high - low, align="edge", color=BLUE, edgecolor="white")
    below.set(xlabel="Predicted probability of y = 1", ylabel="Records")
    below.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    for panel in (axes, below):
        plain(panel)
    total = count.sum()
    error = float(np.sum(count * np.abs(observed - predicted)) / total) if total else math.nan
    found = f"{error:.3f} on {total:,.0f} records" if total else "unknown without records"
    title_and_subtitle(axes, "Calibration", f"Expected calibration error {found}; dashed: perfect")
    return figure


def plot_parties(parties: Sequence[PartyRow]) -> Figure:
    """Draw the number of records and the share of positive outcomes of each party, for at most the
    40 largest parties.

    Every party needs a number of records.
    """
    shown = sorted(parties, key=lambda party: party.records or 0)[-MOST_PARTIES:]
    records = np.array([party.records for party in shown], np.float64)
    share = np.array([_number(party.positive_fraction) for party in shown], np.float64)
    known = np.isfinite(share)
    columns = 2 if known.any() else 1
    figure = canvas(7.2, 1.4 + 0.235 * len(shown))
    panels = figure.subplots(1, columns, sharey=True, squeeze=False)[0]
    rows = np.arange(len(shown))
    panels[0].barh(rows, records, height=0.62, color=BLUE)
    for row, value in enumerate(records):
        panels[0].annotate(
            f"{value:,.0f}",
            (value, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    panels[0].set_xlim(0, 1.18 * max(records, default=1.0))
    panels[0].set_xlabel("Records")
    panels[0].xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    for panel in panels:
        plain(panel)
    _name_rows(panels[0], [party.name for party in shown])
    few = len(shown) == len(parties)
    which = f"All {len(shown)}" if few else f"The {len(shown)} largest of {len(parties)}"
    title_and_subtitle(panels[0], "Parties", f"{which}, by size")
    if columns == 2:
        pooled = float(np.sum(records[known] * share[known]) / max(records[known].sum(), 1.0))
        panels[1].axvline(pooled, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        panels[1].plot(share[known], rows[known], "o", color=VERMILION, markersize=6)
        panels[1].set_xlim(-0.02, 1.02)
        panels[1].xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        panels[1].set_xlabel("Records with y = 1")
        title_and_subtitle(
            panels[1], "Positive outcomes", f"Dashed: {100 * pooled:.1f} % of all shown"
        )
    return figure


def canvas(width: float, height: float) -> Figure:
    """Make an empty figure with this width and height in inches."""
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    return Figure(figsize=(width, height), dpi=160, layout=layout, facecolor="white")


def _panel(height: float) -> tuple[Figure, Axes]:
    figure = canvas(7.2, height)
    axes = figure.subplots()
    plain(axes)
    return figure, axes


def plain(axes: Axes) -> None:
    """Draw a faint grid without a box."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, length=0)


def title_and_subtitle(axes: Axes, title: str, subtitle: str) -> None:
    """Write a bold title with a subtitle below."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=20)
    axes.annotate(
        subtitle,
        (0, 1),
        xytext=(0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=9,
        color=GREY,
        annotation_clip=False,
    )


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label the rows with literal text, without mathematical markup."""
    short = [name if len(name) <= 32 else f"{name[:31]}…" for name in names]
    axes.set_yticks(np.arange(len(short)), labels=short)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(-0.7, len(short) - 0.3)
    axes.grid(visible=False, axis="y")


def _round_axis(axes: Axes) -> None:
    axes.set_xlabel("Round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _line(number: np.ndarray) -> dict[str, Any]:
    marker = "o" if len(number) <= 60 else None
    return {"color": BLUE, "linewidth": 1.8, "marker": marker, "markersize": 4}


def _series(rounds: Sequence[Round], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return round numbers and values of the rounds that have a finite value."""
    pairs = [(row.round, _number(getattr(row, key))) for row in rounds]
    kept = [(number, value) for number, value in pairs if math.isfinite(value)]
    return np.array([n for n, _ in kept], int), np.array([v for _, v in kept], np.float64)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute Wilson's 95 % interval of a binomial proportion (Wilson 1927)."""
    square = NORMAL_95**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    variance = share * (1 - share) / count + square / (4 * count**2)
    half = NORMAL_95 * np.sqrt(variance) / (1 + square / count)
    return centre - half, centre + half
