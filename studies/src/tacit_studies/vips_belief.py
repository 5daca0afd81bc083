"""Sigmoid belief networks on binarised digits (VIPS, full paper): bound, filters, reconstructions.

Batches are Poisson samples, and ε is for substituting one image, at δ = 1e-5. Three cases are
compared: all records in one place, ten parties without a trusted party, and ten parties whose noisy
sums a trusted server adds up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tacit.engines.execute import carry_out
from tacit.expfam import Natural
from tacit.methods import ExpectedStatistics, PrivateStatistics
from tacit.models import BeliefNetwork
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.results.figures import BLUE, GREY, VERMILION, canvas, plain
from tacit.results.figures import title_and_subtitle as title
from tacit.server.schedule import Damping, Synchronous
from tacit_studies import Progress
from tacit_studies.images import SIDE, Images, load_images
from tacit_studies.page import Picture
from tacit_studies.tables import Table
from tacit_studies.vips_regression import log_ticks
from tacit_studies.write import DPI, make_folder

Row = dict[str, Any]
PARTIES = 10
DELTA = 1e-5
TRUST = {"central": "central holder", "plain": "none", "trusted": "the summing server"}
CURVE, FILTERS, RECONSTRUCTIONS = (
    f"vips-belief-{name}.png" for name in ("bound", "filters", "reconstructions")
)
CAPTIONS = {
    CURVE: "Held-out bound of a sigmoid belief network on digits against ε.",
    FILTERS: "Effect of each hidden unit on the logits of an image, with and without privacy.",
    RECONSTRUCTIONS: "Test images, their reconstructions and generated images.",
}
GREEN = "#009E73"
SHOWN = 20
Made = tuple[list[Table], list[tuple[Picture, Figure]]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Size of the computation."""

    hidden: int = 50
    sweeps: int = 6
    train: int | None = None
    test: int = 10_000
    rate: float = 0.02
    rounds: int = 120
    clip: float = 0.5
    precision_weight: float = 0.5
    damping: tuple[float, float] = (0.1, 0.02)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    places: tuple[str, ...] = ("central", "trusted", "plain")


FULL = Setting()
LARGE = Setting(hidden=100, epsilons=(1.0, 4.0), places=("central",))
QUICK = Setting(
    hidden=16, train=20_000, test=500, rate=0.02, rounds=25, damping=(0.2, 0.05), epsilons=(4.0,),
    places=("central", "trusted"),
)  # fmt: skip


def belief(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    progress: Progress | None = None,
    setting: Setting | None = None,
) -> list[Row]:
    """Run the study and write its three figures to `out`; returns one row per run.

    Quick: a third of the images, 16 hidden units, 25 rounds and ε = 4 only.
    """
    make_folder(out)
    setting = setting or (QUICK if quick else FULL)
    rows, figures = _study(setting, seed, progress or (lambda *_: None))
    for file, figure in figures.items():
        figure.savefig(out / file, format="png", dpi=DPI)
    return rows


def belief_part(out: Path, *, seed: int, quick: bool, tell: Callable[[str], None]) -> Made:
    """Run this study as a part of `tacit reproduce vips`; returns its tables and figures."""
    del out
    tables, pictures = [], []
    for setting in (QUICK,) if quick else (FULL, LARGE):
        rows, figures = _study(setting, seed, lambda *step: tell(f"belief network: {step[2]}"))
        tables.append(_table(setting, rows))
        if not pictures:  # pictures of a larger network look the same
            pictures = [(Picture(file, CAPTIONS[file]), one) for file, one in figures.items()]
    return tables, pictures


def _table(setting: Setting, rows: list[Row]) -> Table:
    columns = ("method", "place", "trust", "parties", "asked", "epsilon", "bound", "sampled_bound",
               "pixels_wrong")  # fmt: skip
    return Table(
        name=f"belief-{setting.hidden}",
        title=f"Sigmoid belief network of {setting.hidden} units on digits",
        columns=columns,
        rows=[[row[column] for column in columns] for row in rows],
        note="Unit: an image, substituted; δ = 1e−5. Bounds are in nats per held-out image: the "
        "training objective, and the same without the slack of the Pólya–Gamma bound.",
        digits={"bound": 5, "sampled_bound": 5, "pixels_wrong": 3, "epsilon": 3},
    )


def _study(setting: Setting, seed: int, progress: Progress) -> tuple[list[Row], dict[str, Figure]]:
    whole = load_images()
    images = Images(
        train={"x": whole.train["x"][: setting.train]},
        test={"x": whole.test["x"][: setting.test]},
    )
    pixels = images.train["x"].shape[1]
    model = BeliefNetwork(pixels, hidden=setting.hidden, sweeps=setting.sweeps, start_seed=seed)
    cells: list[tuple[float | None, str]] = [(None, "central")]
    cells += [(epsilon, place) for place in setting.places for epsilon in setting.epsilons]
    rows: list[Row] = []
    found: dict[str, Natural] = {}
    for number, (epsilon, place) in enumerate(cells):
        name = "not private" if epsilon is None else f"ε = {epsilon:g}, {place}"
        progress(number, len(cells), name)
        natural, said = _learnt(model, images, setting, epsilon, place, seed)
        rows.append(_row(model, natural, images, place) | said)
        found[name] = natural
    shown = ("not private", *(f"ε = {e:g}, central" for e in setting.epsilons if e in (1.0, 4.0)))
    chosen = {name: found[name] for name in shown if name in found}
    figures = {
        CURVE: plot_bounds(rows),
        FILTERS: plot_filters(model, chosen),
        RECONSTRUCTIONS: plot_reconstructions(model, chosen, {"x": images.test["x"][:SHOWN]}),
    }
    return rows, figures


def _learnt(
    model: BeliefNetwork,
    images: Images,
    setting: Setting,
    epsilon: float | None,
    place: str,
    seed: int,
) -> tuple[Natural, Row]:
    start, end = setting.damping
    schedule = Synchronous(
        rounds=setting.rounds,
        damping=Damping(start=start, end=end, rounds=setting.rounds),
        tolerance=0.0,
    )
    parties = {"everybody": images.train}
    if place != "central":
        parties = images.parties(PARTIES, seed=seed)
    if epsilon is None:
        open_method = ExpectedStatistics(sampling_rate=setting.rate)
        plan = make_plan(model, parties, method=open_method, schedule=schedule, seed=seed)
        return carry_out(plan).posterior.natural, {}
    privacy = Privacy(
        epsilon=epsilon, delta=DELTA, unit="record", adjacency="replace-one",
        insecure_noise_seed=seed,
        aggregation="trusted" if place == "trusted" else "plain",
    )  # fmt: skip
    method = PrivateStatistics(
        sampling_rate=setting.rate, clip=setting.clip, precision_weight=setting.precision_weight
    )
    plan = make_plan(model, parties, method=method, schedule=schedule, privacy=privacy, seed=seed)
    assert plan.guarantee is not None
    said = {
        "method": "private statistics",
        "epsilon": plan.guarantee.epsilon,
        "asked": epsilon,
        "trust": TRUST[place],
        "parties": len(parties),
    }
    return carry_out(plan).posterior.natural, said


def _row(model: BeliefNetwork, natural: Natural, images: Images, place: str) -> Row:
    again = model.reconstruct(natural, images.test)
    return {
        "model": f"{model.kind}, {model.hidden} units",
        "method": "expected statistics",
        "epsilon": None,
        "asked": None,
        "delta": DELTA,
        "adjacency": "replace-one",
        "unit": "record",
        "place": place,
        "trust": "everybody",
        "parties": 1,
        "bound": float(np.mean(model.bound(natural, images.test))),
        "sampled_bound": float(np.mean(model.bound(natural, images.test, draws=10))),
        "pixels_wrong": float(np.mean((again > 0.5) != images.test["x"])),
    }


def plot_bounds(rows: list[Row]) -> Figure:
    """Held-out bound in nats per image against ε; the dashed line is without privacy."""
    figure = canvas(6.4, 4.2)
    axes = figure.subplots()
    plain(axes)
    for place, colour in (("central", VERMILION), ("trusted", BLUE), ("plain", GREEN)):
        mine = [row for row in rows if row["asked"] is not None and row["place"] == place]
        if mine:
            axes.plot(
                [row["asked"] for row in mine], [row["sampled_bound"] for row in mine], "o-",
                color=colour, label=f"{place}, trusted: {mine[0]['trust']}",
            )  # fmt: skip
    axes.axhline(rows[0]["sampled_bound"], color=GREY, linestyle="--", linewidth=1)
    log_ticks(axes, sorted({row["asked"] for row in rows if row["asked"] is not None}))
    axes.set_xlabel("ε (δ = 1e−5, one image substituted)")
    axes.set_ylabel("Held-out variational bound (nats per image)")
    axes.legend(frameon=False, fontsize=8)
    title(axes, "Sigmoid belief network on digits", f"{rows[0]['model']}; dashed: not private")
    return figure


def plot_filters(model: BeliefNetwork, found: dict[str, Natural]) -> Figure:
    """Contribution of each hidden unit to the logits of the image: one block of tiles per q."""
    figure = canvas(5.4 * len(found), 5.6)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (name, natural) in zip(panels, found.items(), strict=True):
        filters = model.filters(natural)
        reach = float(np.percentile(np.abs(filters), 99.5))
        _tiles(axes, filters, cmap="RdBu_r", vmin=-reach, vmax=reach)
        title(axes, name, f"weights of {len(filters)} units, ±{reach:.2g}")
    return figure


def plot_reconstructions(
    model: BeliefNetwork, found: dict[str, Natural], records: dict[str, np.ndarray]
) -> Figure:
    """Test images, their reconstructions by each q, and generated images."""
    count = len(records["x"])
    blocks = {"Test images": records["x"].astype(float)}
    for name, natural in found.items():
        blocks[f"Reconstructed, {name}"] = model.reconstruct(natural, records)
        blocks[f"Generated, {name}"] = model.sample(natural, count)
    figure = canvas(9.0, 0.8 * len(blocks))
    panels = figure.subplots(len(blocks), 1, squeeze=False)[:, 0]
    for axes, (name, rows) in zip(panels, blocks.items(), strict=True):
        _tiles(axes, rows, columns=count, cmap="gray_r", vmin=0.0, vmax=1.0)
        axes.set_title(name, loc="left", fontsize=9)
    return figure


def _tiles(axes: Axes, rows: np.ndarray, columns: int | None = None, **look: Any) -> None:
    """Draw images side by side, one pixel apart."""
    columns = columns or int(np.ceil(np.sqrt(len(rows))))
    lines = -(-len(rows) // columns)
    sheet = np.full((lines * (SIDE + 1), columns * (SIDE + 1)), np.nan)
    for number, row in enumerate(rows):
        top, left = (SIDE + 1) * (number // columns), (SIDE + 1) * (number % columns)
        sheet[top : top + SIDE, left : left + SIDE] = row.reshape(SIDE, SIDE)
    axes.imshow(sheet, interpolation="nearest", **look)
    axes.set_axis_off()
