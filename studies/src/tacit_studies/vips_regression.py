"""Logistic regression by Pólya–Gamma statistics (VIPS, full paper) and by two other methods.

The data are Adult, and ε is for substituting one record, at δ = 1e-5. Three cases are compared: all
records in one place, ten parties without a trusted party, and ten parties whose noisy sums a
trusted server adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy.stats import rankdata

from tacit.data.records import pooled
from tacit.datasets import load
from tacit.engines.execute import carry_out
from tacit.methods import (
    DPSGD,
    ExpectedStatistics,
    LocalMethod,
    NaturalVI,
    PrivateMethod,
    PrivateScoring,
    PrivateStatistics,
)
from tacit.models import LogisticRegression, Records
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.results import predict
from tacit.results.figures import BLUE, GREY, VERMILION, canvas, plain
from tacit.results.figures import title_and_subtitle as title
from tacit.server.schedule import Damping, Schedule, Synchronous
from tacit_studies import Progress
from tacit_studies.page import Picture
from tacit_studies.tables import Table
from tacit_studies.write import DPI, make_folder

Row = dict[str, Any]
Made = tuple[list[Table], list[tuple[Picture, Figure]]]
PARTIES = 10
DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0, 4.0)
FILE = "vips-regression.png"
GREEN = "#009E73"


@dataclass(frozen=True, kw_only=True)
class Way:
    """A method with a suitable schedule."""

    name: str
    method: LocalMethod
    schedule: Schedule
    family: str = "auto"


OPEN = (
    Way(name="quadrature", method=NaturalVI(), schedule=Synchronous(rounds=10)),
    Way(name="Pólya–Gamma statistics", method=ExpectedStatistics(),
        schedule=Synchronous(rounds=15), family="full"),
)  # fmt: skip
PRIVATE = (
    Way(name="Pólya–Gamma statistics", method=PrivateStatistics(), family="full",
        schedule=Synchronous(rounds=6, damping=Damping(start=1.0, end=0.2, rounds=6))),
    Way(name="private scoring", method=PrivateScoring(), schedule=Synchronous(rounds=20)),
    Way(name="DP-SGD", method=DPSGD(), schedule=Synchronous(rounds=40)),
)  # fmt: skip
TRUST = {"central": "central holder", "plain": "none", "trusted": "the summing server"}
COLOURS = {"Pólya–Gamma statistics": VERMILION, "private scoring": BLUE, "DP-SGD": GREEN}


def regression(
    out: Path, *, seed: int = 0, quick: bool = False, progress: Progress | None = None
) -> list[Row]:
    """Run the study and write its figure to `out`; returns one row per run.

    `quick` has ε = 1 only, and omits the case of ten parties without a trusted party.
    """
    make_folder(out)
    data = load("adult", parties=PARTIES, seed=seed)
    model = LogisticRegression(data.names, layout=data.layout, prior_sd=1.0)
    central, federated = {"everybody": pooled(data.parties)}, data.parties
    tell = progress or (lambda *_: None)
    assert data.test is not None
    places = ("central", "trusted") if quick else tuple(TRUST)
    cells = [
        (way, epsilon, place)
        for epsilon in ((1.0,) if quick else EPSILONS)
        for place in places
        for way in PRIVATE
        if place != "trusted" or _can_share(way.method)
    ]
    rows = []
    for number, way in enumerate(OPEN):
        tell(number, len(OPEN) + len(cells), f"{way.name}, not private")
        plan = make_plan(
            model, federated, method=way.method, schedule=way.schedule, family=way.family
        )
        rows.append(_row(way.name, model, carry_out(plan).posterior, data.test))
    for number, (way, epsilon, place) in enumerate(cells, start=len(OPEN)):
        tell(number, len(OPEN) + len(cells), f"{way.name}, ε = {epsilon:g}, {place}")
        privacy = Privacy(
            epsilon=epsilon, delta=DELTA, unit="record", adjacency="replace-one",
            insecure_noise_seed=seed,
            aggregation="trusted" if place == "trusted" else "plain",
        )  # fmt: skip
        parties = central if place == "central" else federated
        plan = make_plan(
            model, parties, method=way.method, schedule=way.schedule, family=way.family,
            privacy=privacy, seed=seed,
        )  # fmt: skip
        posterior = carry_out(plan).posterior
        said = {
            "epsilon": plan.guarantee.epsilon if plan.guarantee else None,
            "asked": epsilon,
            "place": place,
            "trust": TRUST[place],
            "parties": len(parties),
        }
        rows.append(_row(way.name, model, posterior, data.test) | said)
    plot_regression(rows).savefig(out / FILE, format="png", dpi=DPI)
    return rows


def _can_share(method: LocalMethod) -> bool:
    """True if each party can add a share of the noise; DP-SGD adds noise in its local steps."""
    return isinstance(method, PrivateMethod) and "trusted" in method.aggregations


def regression_part(out: Path, *, seed: int, quick: bool, tell: Callable[[str], None]) -> Made:
    """Run this study as a part of `tacit reproduce vips`; returns its table and figure."""
    rows = regression(out, seed=seed, quick=quick, progress=lambda *step: tell(step[2]))
    columns = ("method", "place", "trust", "parties", "asked", "epsilon", "log_likelihood", "auc")
    table = Table(
        name="regression",
        title="Logistic regression on Adult",
        columns=columns,
        rows=[[row[column] for column in columns] for row in rows],
        note="Unit: a record, substituted; δ = 1e−5. Held-out log-likelihood in nats per record. "
        "Private scoring is a method of this library, DP-SGD the usual baseline.",
        digits={"log_likelihood": 4, "auc": 4, "epsilon": 3},
    )
    picture = Picture(FILE, "Held-out log-likelihood of logistic regression on Adult against ε.")
    return [table], [(picture, plot_regression(rows))]


def _row(name: str, model: LogisticRegression, posterior: Any, test: Records) -> Row:
    found = predict(model, posterior.family, posterior.natural, test)
    return {
        "model": model.kind,
        "method": name,
        "epsilon": None,
        "asked": None,
        "delta": DELTA,
        "adjacency": "replace-one",
        "unit": "record",
        "place": "federated, not private",
        "trust": "everybody",
        "parties": PARTIES,
        "log_likelihood": float(np.mean(found.log_density)),
        "auc": auc(found.mean, test["y"]),
    }


def auc(probability: np.ndarray, y: np.ndarray) -> float:
    """P(a record with y = 1 has a larger value than one with y = 0); ties count half.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1]))
    0.875
    """
    positive = np.asarray(y) > 0.5
    ones = int(positive.sum())
    ranks = float(rankdata(probability)[positive].sum())
    return (ranks - ones * (ones + 1) / 2) / (ones * (len(positive) - ones))


def plot_regression(rows: list[Row]) -> Figure:
    """Held-out log-likelihood against ε: one panel for each case of `TRUST`."""
    private = [row for row in rows if row["asked"] is not None]
    places = list(dict.fromkeys(row["place"] for row in private))
    figure = canvas(4.2 * len(places), 3.9)
    panels = figure.subplots(1, len(places), sharey=True, squeeze=False)[0]
    best = max(row["log_likelihood"] for row in rows if row["asked"] is None)
    for axes, place in zip(panels, places, strict=True):
        plain(axes)
        axes.axhline(best, color=GREY, linestyle="--", linewidth=1)
        for name, colour in COLOURS.items():
            mine = [row for row in private if (row["method"], row["place"]) == (name, place)]
            axes.plot(
                [row["asked"] for row in mine],
                [row["log_likelihood"] for row in mine],
                "o-", color=colour, label=name,
            )  # fmt: skip
        log_ticks(axes, sorted({row["asked"] for row in private}))
        axes.set_xlabel("ε (δ = 1e−5, one record substituted)")
        title(axes, place.capitalize(), f"trusted: {TRUST[place]}; dashed: not private")
    panels[0].set_ylabel("Held-out log-likelihood (nats)")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def log_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic ε axis with ticks at these values."""
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
