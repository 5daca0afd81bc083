"""Tables of the TMLR study: our numbers, the published ones, and the costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit_studies.tables import Cell as TableCell
from tacit_studies.tables import Table
from tacit_studies.tmlr_published import PUBLISHED, UNDERSTATED
from tacit_studies.tmlr_published import Point as Published
from tacit_studies.tmlr_runs import Run
from tacit_studies.tmlr_settings import DELTA, REFERENCE, Cell, FigureSettings

SPLITS = {
    "balanced": "balanced",
    "unbalanced-1": "unbalanced 1",
    "unbalanced-2": "unbalanced 2",
}
TRUSTED = {"plain": "none", "trusted": "the aggregator"}
METRICS = ("accuracy", "log_likelihood")
SAME_METHOD = {
    "dp-optimisation-sequential": "dp-optimisation",
    "dp-optimisation-few": "dp-optimisation",
    "dp-optimisation-adam": "dp-optimisation",
    "dp-optimisation-learned": "dp-optimisation",
    "dp-optimisation-long": "dp-optimisation",
    "averaged-steps": "averaged",
    "averaged-sequential": "averaged",
    "virtual-steps": "virtual",
    "virtual-sequential": "virtual",
    "virtual-factors": "virtual",
    "virtual-factors-trusted": "virtual-trusted",
}
"""Our variants (schedules, local steps) of one method of the paper."""
UNDERSTATED_NOTE = (
    "The published ε of DP optimisation, of the committees and of central DP-VI is understated: "
    "their batches are drawn without replacement and accounted for as Poisson samples (marked *). "
    "Our ε is valid."
)


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard error; `lost` runs had no finite value."""

    value: float | None
    error: float | None = None
    lost: int = 0


@dataclass(frozen=True)
class Series:
    """All seeds of one method on one split."""

    cell: Cell
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]

    @property
    def method(self) -> str:
        return self.cell.method

    @property
    def label(self) -> str:
        return self.cell.job.recipe.label

    @property
    def published(self) -> Published | None:
        """The end of the paper's curve, if it can be read and has the same data."""
        if self.cell.figure == 2 and self.cell.job.data.source != "mimic3":
            return None
        curves = PUBLISHED.get((self.cell.figure, self.cell.split), {})
        return curves.get(SAME_METHOD.get(self.method, self.method))

    @property
    def trusted(self) -> str:
        """Who must be trusted with more than the guarantee covers; a dash without privacy."""
        recipe = self.cell.job.recipe
        if recipe.kind is None:
            return "–"
        return "central holder" if recipe.baseline == "central" else TRUSTED[recipe.aggregation]

    def end(self, metric: str) -> Mean:
        """Mean over seeds of a metric after the last exchange."""
        return mean_of([getattr(run.end, metric) for run in self.runs])

    def curve(self, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(exchanges, mean, standard error) at the points that all seeds have."""
        shared = set.intersection(*({p.exchanges for p in run.curve} for run in self.runs))
        rows = []
        for exchanges in sorted(shared):
            points = [[p for p in run.curve if p.exchanges == exchanges][-1] for run in self.runs]
            found = mean_of([getattr(point, metric) for point in points])
            rows.append((exchanges, found.value, found.error or 0.0))
        table = np.array(rows, np.float64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2]


def mean_of(values: Sequence[float | None]) -> Mean:
    """Mean and standard error of the values that are not None.

    >>> mean_of([1.0, 3.0, None])
    Mean(value=2.0, error=1.0, lost=1)
    """
    kept = [value for value in values if value is not None and math.isfinite(value)]
    lost = len(values) - len(kept)
    if not kept:
        return Mean(None, None, lost)
    error = float(np.std(kept, ddof=1) / math.sqrt(len(kept))) if len(kept) > 1 else None
    return Mean(float(np.mean(kept)), error, lost)


def series_of(cells: Sequence[Cell], runs: Sequence[Run]) -> list[Series]:
    """Group the runs that differ only in their seed; groups are in order of first appearance."""
    groups: dict[tuple, list[tuple[Cell, Run]]] = {}
    for cell, run in zip(cells, runs, strict=True):
        groups.setdefault((cell.split, cell.method, cell.count), []).append((cell, run))
    return [
        Series(pairs[0][0], tuple(r for _, r in pairs), tuple(c.job.seed for c, _ in pairs))
        for pairs in groups.values()
    ]


def regret(one: Series, reference: Series | None) -> Mean:
    """Log-likelihood without privacy of the same seed, minus the run's log-likelihood."""
    if reference is None or one.seeds != reference.seeds:
        return Mean(None)
    pairs = zip(one.runs, reference.runs, strict=True)
    ends = [(a.end.log_likelihood, b.end.log_likelihood) for a, b in pairs]
    return mean_of([None if a is None or b is None else b - a for a, b in ends])


def split_table(figure: int, what: FigureSettings, split: str, found: Sequence[Series]) -> Table:
    """One split of one of Figures 1 to 4."""
    here = [one for one in found if one.cell.split == split]
    reference = next((one for one in here if one.method == REFERENCE), None)
    rows = [_row(one, reference) for one in here]
    return Table(
        name=f"figure-{figure}-{split}",
        title=f"Figure {figure}, {SPLITS[split]}: {what.title}",
        columns=(
            "method", "exchanges", "accuracy", "s.e.", "log-likelihood", "s.e. ", "regret",
            "paper: accuracy", "ours − paper", "paper: log-lik.", "ours − paper ", "ε", "trusted",
        ),
        rows=rows,
        note=_note(what, here),
        digits={
            "accuracy": 4, "s.e.": 1, "log-likelihood": 4, "s.e. ": 1, "regret": 2,
            "ours − paper": 2, "ours − paper ": 2, "ε": 4,
        },
    )  # fmt: skip


def _row(one: Series, reference: Series | None) -> list[TableCell]:
    accuracy, fit = one.end("accuracy"), one.end("log_likelihood")
    theirs = one.published or Published(None, None)
    known = SAME_METHOD.get(one.method, one.method)
    star = "*" if one.published and known in UNDERSTATED else ""
    lost = f" ({fit.lost} of {len(one.runs)} without finite predictions)" if fit.lost else ""
    return [
        f"{one.label}{star}{lost}",
        one.runs[0].end.exchanges,
        accuracy.value,
        accuracy.error,
        fit.value,
        fit.error,
        regret(one, reference).value if one is not reference else None,
        theirs.accuracy,
        _difference(accuracy.value, theirs.accuracy),
        theirs.log_likelihood,
        _difference(fit.value, theirs.log_likelihood),
        one.runs[0].epsilon,
        one.trusted,
    ]


def _difference(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else round(ours - theirs, 6)


def _note(what: FigureSettings, here: Sequence[Series]) -> str:
    seeds = here[0].seeds
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    note = (
        f"Held-out records; mean of {which}. Every private row is (ε = {what.epsilon:g}, "
        f"δ = {DELTA:g}) for substituting one record, against everyone except those who are "
        "trusted in the last column; the column ε is the accounted ε. Regret: loss of "
        "log-likelihood relative to the first row, on the same records. Central DP-VI counts an "
        f"exchange with every party for every step, as the paper does. {UNDERSTATED_NOTE}"
    )
    return f"{note} {what.absent}" if what.absent else note


def shard_table(data: str, title: str, found: Sequence[Series], note: str) -> Table:
    """Figure 5: final log-likelihood against the number of shards."""
    lines = list(dict.fromkeys(one.label for one in found))
    counts = sorted({one.cell.count or 0 for one in found})
    by_place = {(one.cell.count, one.label): one for one in found}
    rows: list[list[TableCell]] = []
    for count in counts:
        row: list[TableCell] = [count]
        for label in lines:
            end = by_place[count, label].end("log_likelihood")
            row += [end.value, end.error]
        rows.append(row)
    errors = [f"s.e.{' ' * number}" for number in range(len(lines))]
    columns = [name for pair in zip(lines, errors, strict=True) for name in pair]
    return Table(
        name="figure-5",
        title=f"Figure 5, {data}: {title}",
        columns=("shards", *columns),
        rows=rows,
        note=note,
        digits=dict.fromkeys(lines, 4) | dict.fromkeys(errors, 1),
    )


def absent_table(figure: int, what: FigureSettings, words: str) -> Table:
    """Table for a figure whose data are missing; it says which data are needed."""
    return Table(
        name=f"figure-{figure}",
        title=f"Figure {figure}: {what.title}",
        columns=("not run", "why"),
        rows=[[f"figure {figure}", words]],
        note="The data of this figure are missing; the rest of the study does not need them.",
    )
