"""Private scoring without one of its parts, to measure the contribution of each part.

Every variant makes the same releases as private scoring, with the same clips and a budget whose
shares add up to 1. The same code accounts for it, so the ε of each is valid. A variant also pays
for the release that it does not use, which costs little (8 % of μ² for the counts, 4 % for the
second moment).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.arrays import Array, namespace
from tacit.expfam import Natural
from tacit.methods.scoring.combine import ScoringServer
from tacit.methods.scoring.marginals import Marginals
from tacit.methods.scoring.method import PrivateScoring
from tacit.methods.scoring.party import KNOTS
from tacit.methods.scoring.stages import COUNTS, MOMENT
from tacit.models import Model
from tacit.models.glm.logistic import BernoulliLikelihood
from tacit.models.scores import ScoreLikelihood
from tacit.run.config import parse_config
from tacit.run.run import simulate
from tacit.run.sweep import Job, columns_of
from tacit.server.combine import Combine, RoundSum, Run, Shared


@dataclass(frozen=True, kw_only=True)
class LastRound(PrivateScoring):
    """Every step uses the last score alone."""

    def server(self, run: Run) -> Combine:
        whole = super().server(run)

        def forgetful(shared: Shared, answers: RoundSum) -> Shared:
            memory = shared.memory or {}
            kept = {name: memory[name] for name in ("counts", "moment", "point") if name in memory}
            return whole(shared._replace(memory=kept or None), answers)

        return forgetful


@dataclass(frozen=True, kw_only=True)
class UniformMarginals(PrivateScoring):
    """All levels, knots and outcomes of a column are taken as equally frequent."""

    def server(self, run: Run) -> Combine:
        whole = ScoringServer(self, run)

        def counts() -> np.ndarray:
            what = whole.counted
            sizes = [len(group) for group in what.groups] + [KNOTS] * len(what.numbers)
            sizes += [2] * (what.largest is not None)
            return np.concatenate([np.full(size, self.total_units / size) for size in sizes])

        return _instead(whole, run, COUNTS, counts)


@dataclass(frozen=True, kw_only=True)
class NoSecondMoment(PrivateScoring):
    """Columns are treated as independent of each other."""

    def server(self, run: Run) -> Combine:
        def isotropic() -> np.ndarray:
            rows, columns = np.triu_indices(run.model.dimension)
            return np.where(rows == columns, self.total_units / run.model.dimension, 0.0)

        return _instead(super().server(run), run, MOMENT, isotropic)


@dataclass(frozen=True, kw_only=True)
class UniformBudget(PrivateScoring):
    """All scores have the same share of the budget."""

    def budget_share(self, visit: int, visits: int, mu: float = 1.0) -> float:
        del mu
        whole = super().budget_share
        if visit < 2:
            return whole(visit, visits)
        return sum(whole(one, visits) for one in range(2, visits)) / (visits - 2)


@dataclass(frozen=True, kw_only=True)
class PlainMap(PrivateScoring):
    """All columns of x are multiplied by one number; they are not centred or scaled separately."""

    def server(self, run: Run) -> Combine:
        return _PlainServer(self, run)


class _PlainServer(ScoringServer):
    def marginals_of(self, q: Natural) -> Marginals:
        found = super().marginals_of(q)
        square = found.variance + np.where(self.scaled, found.centre, 0.0) ** 2
        return found._replace(centre=np.zeros_like(found.centre), variance=square)

    def _scale(self, found: Marginals) -> np.ndarray:
        return np.full_like(found.variance, 1.0 / np.sqrt(np.sum(found.variance)))

    def _bend(self, q: Natural) -> np.ndarray:
        return np.zeros_like(super()._bend(q))


@dataclass(frozen=True, kw_only=True)
class PlainClip(PrivateScoring):
    """A score is scaled down by its norm, which depends on the label.

    Its norm is at most C as before, so the sensitivity is the same. The server's computations do
    not change.
    """

    def party_likelihood(self, model: Model) -> ScoreLikelihood:
        del model
        return _OwnLength()


@dataclass(frozen=True)
class _OwnLength(BernoulliLikelihood):
    """Bernoulli likelihood with bound 0 over labels, so that a score is clipped by its own norm."""

    def bound(self, eta: Array, reach: Array) -> Array:
        del reach
        return namespace(eta).zeros_like(eta)


VARIANTS: dict[str, tuple[str, type[PrivateScoring]]] = {
    "whole": ("the whole recipe", PrivateScoring),
    "last-round": ("no averaging over rounds", LastRound),
    "uniform-marginals": ("uniform marginals instead of private counts", UniformMarginals),
    "uniform-budget": ("the same budget for every score", UniformBudget),
    "plain-map": ("no centring and scaling", PlainMap),
    "no-moment": ("no second moment", NoSecondMoment),
    "plain-clip": ("plain clip instead of the label-agnostic one", PlainClip),
}
"""Description and method of each variant, by name; "whole" is the baseline of the others."""


def run_job(job: Job) -> dict[str, Any]:
    """Simulate a run of the frontier without writing files; returns the columns of its row."""
    variant = job.case.get("variant")
    method = None if variant is None else VARIANTS[variant][1]()
    return columns_of(simulate(parse_config(job.config), method))


def _instead(whole: Combine, run: Run, stage: str, public: Callable[[], np.ndarray]) -> Combine:
    """Return the server's update `whole` with public numbers in place of the release of `stage`."""

    def replaced(shared: Shared, answers: RoundSum) -> Shared:
        if stage in answers.total:
            share = public() * (answers.contributors / run.parties)
            answers = answers._replace(total={stage: share})
        return whole(shared, answers)

    return replaced
