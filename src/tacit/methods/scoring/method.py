"""`PrivateScoring`: generalised linear models from noisy counts, one second moment and scores.

There are three kinds of answer. Each is a sum over all records of a party:

    visit 0     counts of the columns           → one public map z = scale∘(x − centre)
    visit 1     second moment of z/‖z‖          → synthetic covariates, hence expected curvature
    visit 2 …   clipped scores at the server's θ → q

The shares of the budget are fixed in advance, and the share of the t-th score grows like √t. The
server uses only the total over parties, so the division of records between the parties does not
change the distribution of the result. The derivation is in docs/methods/private-scoring.md.

Requests contain the map, the point θ and the limit k of the residual. They contain neither q nor a
factor, and a reply is the released sum alone.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import ConfigError
from tacit.expfam import Family
from tacit.expfam.gaussian import Gaussian as GaussianFamily
from tacit.methods.base import Array, Task
from tacit.methods.private import units_present
from tacit.methods.scoring.combine import ScoringServer
from tacit.methods.scoring.marginals import direction_rows
from tacit.methods.scoring.party import counts_sum, moment_sum, score_sum
from tacit.methods.scoring.stages import COUNTS, LEAST_ROUNDS, MOMENT, SCORE
from tacit.methods.scoring.units import counted_columns
from tacit.methods.summed import SummedMethod
from tacit.models import Model, Records
from tacit.models.capabilities import LearnsScale, Scores
from tacit.models.scores import ScoreLikelihood
from tacit.privacy.bounded import Bounded, Tally
from tacit.privacy.events import GaussianEvent
from tacit.privacy.sampling import summed_in_blocks
from tacit.server.combine import Combine, Run
from tacit.server.messages import Asked, Stage

PREPARATION = {"plain": (0.08, 0.04), "sum": (0.05, 0.03)}
"""Shares of the budget for the counts and for the second moment. "plain" applies if each party adds
the full noise, and "sum" if the parties share one noise, which is smaller. The scores get the
remaining budget.
"""


def scores_share(aggregation: str) -> float:
    """Return the share of the privacy budget for the scores of all rounds together."""
    return 1.0 - sum(_preparation(aggregation))


def _preparation(aggregation: str) -> tuple[float, float]:
    return PREPARATION["plain" if aggregation == "plain" else "sum"]


@functools.cache
def _round_weights(rounds: int) -> tuple[np.ndarray, np.float64]:
    """Return √t for each round t = 1 … `rounds` of scores, and the sum of these numbers."""
    weights = np.sqrt(np.arange(1, rounds + 1))
    return weights, np.sum(weights)


@dataclass(frozen=True, kw_only=True)
class PrivateScoring(SummedMethod):
    """Private regression from counts, a second moment and scores.

    Counts and second moment describe the covariates, and the scores determine the posterior. If the
    model declares no prior, the scales of the coefficients are learned from the releases and
    integrated out (`tacit.models.learnt_scale`). A declared prior is used unchanged.

    Parameters
    ----------
    empirical_bayes
        True: learn scales even if a prior is declared; only the ratios of the declared sds are then
        used. False: use N(0, 1) if no prior is declared. By default scales are learned only if no
        prior is declared.
    clip, clip_end, noise_end
        Leave these out, because this method computes the scale of its contributions itself.
    dtype
        Floating-point type of the records; only "float64".
    """

    kind: ClassVar[str] = "dp-scoring"
    usual_rounds: ClassVar[int] = 12
    least_rounds: ClassVar[int] = LEAST_ROUNDS
    empirical_bayes: bool | None = None

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(model, Scores):
            raise ConfigError(
                f"method.kind = 'dp-scoring' needs a generalised linear model (logistic, softmax, "
                f"linear or poisson), not {model.kind!r}; use method.kind = 'dp-sgd'"
            )
        if not isinstance(family, GaussianFamily):
            raise ConfigError(
                f"method.kind = 'dp-scoring' needs a Gaussian posterior, not {family.kind!r}; set "
                "posterior = 'full' or 'mean-field'"
            )
        if not any(feature.kind != "intercept" for feature in model.layout):
            raise ConfigError(
                f"method.kind = 'dp-scoring' needs a column besides the intercept, but the model "
                f"has only {', '.join(model.names)}; use method.kind = 'dp-sgd'"
            )

    def stage_at(self, visit: int) -> Stage:
        name = (COUNTS, MOMENT, SCORE)[min(visit, 2)]
        return Stage(name, needs_q=False, needs_factor=False)

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        del family
        assert isinstance(model, Scores)
        d = len(model.layout)
        sizes = {
            COUNTS: counted_columns(model).size if stage == COUNTS else 0,
            MOMENT: d * (d + 1) // 2,
            SCORE: model.dimension,
        }
        return {stage: (sizes[stage],)}

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """Convert released integers to sums.

        In these sums a record counts as 1, and the second moment or score of a record has norm at
        most 1.
        """
        del family
        unit = event.clip
        if asked.stage == COUNTS:
            assert isinstance(model, Scores)
            unit /= math.sqrt(counted_columns(model).columns)
        return {asked.stage: integers[asked.stage] * (event.step / unit)}

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        del family
        assert isinstance(model, Scores)
        d = len(model.layout)
        shapes: dict[str, tuple[int, ...]] = {}
        if stage != COUNTS:
            shapes |= {"centre": (d,), "scale": (d,)}
        if stage == SCORE:
            shapes |= {"bend": (direction_rows(d), d), "point": (model.dimension,), "reach": (1,)}
        return shapes

    def is_nonnegative(self, stage: str) -> bool:
        return stage != SCORE

    def budget_share(self, visit: int, visits: int, mu: float = 1.0) -> float:
        del mu
        if visit < 2:
            return _preparation(self.aggregation)[visit]
        weights, total = _round_weights(visits - 2)
        return float(scores_share(self.aggregation) * weights[visit - 2] / total)

    def party_likelihood(self, model: Model) -> ScoreLikelihood:
        """Return the score likelihood of the model: the score that parties sum, and the bound on
        its norm.
        """
        assert isinstance(model, Scores)
        return model.score_likelihood()

    def bounded(self, model: Model, task: Task) -> Bounded:
        assert isinstance(model, Scores)
        public, clip = task.public, task.terms.clips[0]

        def summed(records: Records, weights: Array) -> Bounded:
            if task.stage == COUNTS:
                return counts_sum(counted_columns(model), records, weights, clip)
            if task.stage == MOMENT:
                return moment_sum(records["x"], public["centre"], public["scale"], weights, clip)
            return self._scores(model, task._replace(records=records, weights=weights))

        if self.hides_lengths:
            return summed_in_blocks(summed, task.records, task.weights)
        return summed(task.records, task.weights)

    def _scores(self, model: Model, task: Task, tally: Tally | None = None) -> Bounded:
        public = task.public
        return score_sum(
            self.party_likelihood(model),
            task.records,
            task.weights,
            task.terms.clips[0],
            centre=public["centre"],
            scale=public["scale"],
            bend=public["bend"],
            point=public["point"],
            reach=public["reach"][0],
            tally=tally,
        )

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array]:
        """Return the sum of the clipped scores, and a mask that is False for padding.

        In the other stages nothing is clipped, because counts never exceed the clip and second
        moments are computed from unit vectors.
        """
        del family, key
        return self._scores(model, task, tally), units_present(task.weights)

    def learns_scale(self, model: Model) -> bool:
        """True if the scales of the prior are learned from the releases."""
        if self.empirical_bayes is not None:
            return self.empirical_bayes
        return isinstance(model, LearnsScale) and model.scale_unit is not None

    def server(self, run: Run) -> Combine:
        assert isinstance(run.model, Scores)
        return ScoringServer(self, run)
