"""`PrivateScores`: inference from centred clipped scores, for any model with a differentiable
likelihood per record.

There are five kinds of answer. Each is a sum over all records of a party:

    counts      of the covariates           → synthetic covariates
    moment      of z/|z|, z = scale∘(x − centre)  → their correlations
    curvature   at a first θ                → how far the real curvature is from the synthetic one
    score × 7   burn-in                     → θ near the mode
    curvature   at this θ
    score × 5   with one map W              → q
    ranks       of outcomes under q's mean  → goodness of fit

The share of the budget for each answer is fixed in advance. The clip and the map W are computed
from released numbers. The server uses only the total over parties. docs/methods/dp-scores.md has
the derivation and the proof of the sensitivities, and `tacit.methods.scores.party` the formulas.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import ConfigError
from tacit.expfam import Family
from tacit.expfam.gaussian import Gaussian as GaussianFamily
from tacit.methods.base import Array, LocalMethod, RunFacts, Task
from tacit.methods.scores.covariates import Design, check_ranges, counted_outcome, design_of
from tacit.methods.scores.party import (
    LEVELS,
    RANKS,
    curvature_sum,
    draws_key,
    rank_sum,
    score_bound,
    score_sum,
    trace_bound,
)
from tacit.methods.scores.server import (
    COUNTS,
    CURVATURE,
    MOMENT,
    RANK,
    SCORE,
    ScoresServer,
)
from tacit.methods.scores.widths import WIDE, expected_widths
from tacit.methods.scoring.party import counts_sum, moment_sum
from tacit.methods.summed import SummedMethod
from tacit.models import Model, Records
from tacit.models.capabilities import LearnsScale, SimulatesOutcomes
from tacit.privacy.bounded import Bounded
from tacit.privacy.events import GaussianEvent
from tacit.privacy.sampling import BLOCK_UNITS, summed_in_blocks
from tacit.server.combine import Combine, Run
from tacit.server.messages import Asked, Stage
from tacit.support.compiler import jnp

FIRST_CURVATURE, COUNTS_SHARES = 0.04, (0.03, 0.12)
RANK_SHARES = {"plain": 0.02, "sum": 0.05}
"""Share of the budget for the rank histogram: "plain" if each party adds the full noise, "sum" if
the parties share one noise. The share for "plain" is small, because the test then has little power
with any share.
"""
SECOND_CURVATURE = 0.06
BURN_INS = 0.09, 0.3
"""Smallest and largest share of the budget for all burn-in rounds together."""
MOST_GROWING = 40
"""The shares of at most this many burn-in rounds, the last ones, grow. Earlier rounds have equal
shares.
"""
MOMENT_SHARES = (0.03, 0.12)
COUNT_ERROR, LOOSE = 14.0, 0.3
"""Noise of sd s in the share of each knot causes a relative error of `COUNT_ERROR`·s in the
variance of a numeric column whose knots cover ± 3 standard deviations. `LOOSE` is the largest
relative error that is accepted.
"""
MAIN_ROUNDS = 5
USUAL_ROUNDS, LEAST_ROUNDS = 17, 12
MOST_PARAMETERS = 100
FARTHEST = 0.5
"""Limit on how far the noise of the main rounds may move θ, in standard deviations of an estimate
from one record. A move Δ has the length √(ΔᵀIΔ), where I is the information of one record.
"""
ROUNDED = 1e-3
MOST_BLURRED = 1.0
"""Limit on how far noise may move the eigenvalues of the columns' correlation matrix. The
eigenvalues are 1 on average.
"""


@dataclass(frozen=True, kw_only=True)
class PrivateScores(SummedMethod):
    """Private inference from counts, a second moment, curvatures, centred scores and ranks.

    Counts and second moment describe the covariates. Curvatures and scores determine the posterior.
    The ranks of outcomes test the goodness of fit.

    Parameters
    ----------
    clip, clip_end, noise_end
        Leave these out, because this method computes the scale of its contributions itself.
    dtype
        Floating-point type of the records; only "float64".
    """

    kind: ClassVar[str] = "dp-scores"
    usual_rounds: ClassVar[int] = USUAL_ROUNDS
    least_rounds: ClassVar[int] = LEAST_ROUNDS
    holds_prior: ClassVar[bool] = True
    _rounds: int = USUAL_ROUNDS
    _columns: int = 2
    _dimension: int = 1
    _counted: int = 1
    _has_moment: bool = True

    def suited(self, model: Model) -> LocalMethod:
        if not isinstance(model, SimulatesOutcomes):
            return self  # `check` reports what is missing
        design = _design(model)
        return replace(
            self,
            _columns=len(design.layout),
            _dimension=model.dimension,
            _counted=design.counted.columns,
            _has_moment=design.numbers > 1,
        )

    def for_run(self, facts: RunFacts) -> LocalMethod:
        return replace(self, _rounds=facts.rounds)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages of the run, one per visit."""
        first = (COUNTS, MOMENT, CURVATURE) if self._has_moment else (COUNTS, CURVATURE)
        burn_in = max(0, self._rounds - len(first) - MAIN_ROUNDS - 2)
        return (*first, *(SCORE,) * burn_in, CURVATURE, *(SCORE,) * MAIN_ROUNDS, RANK)

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(model, SimulatesOutcomes):
            raise ConfigError(
                f"method.kind = 'dp-scores' cannot be combined with model {model.kind!r}, because "
                "this model cannot simulate outcomes: use method.kind = 'dp-sgd'"
            )
        if not isinstance(family, GaussianFamily):
            raise ConfigError(
                f"method.kind = 'dp-scores' needs a Gaussian posterior, not {family.kind!r}; set "
                "posterior = 'full' or 'mean-field'"
            )
        if model.dimension > MOST_PARAMETERS:
            raise ConfigError(
                f"the model has {model.dimension} parameters, but method.kind = 'dp-scores' "
                f"supports at most {MOST_PARAMETERS}, because the released curvature of more "
                "parameters would be mostly noise: use method.kind = 'dp-sgd'"
            )

    def check_settled(self, model: Model, settled: Mapping[str, Any]) -> None:
        """Raise a ConfigError if noise would move θ too far, or would hide the correlations of the
        columns.

        With n records and d parameters, noise of sd σ in the sum of scores moves θ by about
        σ√d/(0.75n), in standard deviations of an estimate from one record. With D columns, noise of
        sd σ in their second moment moves the eigenvalues of their correlation matrix by up to
        2√D·(σ/√2)·D/n.
        """
        if not self.total_units:
            return
        given = f"{self.total_units} records in {len(settled)} parties and this ε"
        helps = (
            "use privacy.aggregation = 'secure' or 'trusted', a larger epsilon, more records or "
            "fewer {}"
        ).format
        blurred = 0.0
        if self._has_moment:
            noise = _summed_noise(settled, self.stages.index(MOMENT)) / self.total_units
            blurred = noise * self._columns * math.sqrt(2.0 * self._columns)
        if blurred > MOST_BLURRED:
            raise ConfigError(
                f"{self._columns} columns, {given}: the noise is too large, because it would "
                f"change eigenvalues of the columns' correlations by {blurred:.2g} instead of at "
                f"most {MOST_BLURRED:g}; {helps('columns')}"
            )
        moved = max(self._moved(self._main_noise(model, settled)), self._burn_in_moves(settled)[-1])
        if moved > FARTHEST * (1.0 + ROUNDED):
            raise ConfigError(
                f"{model.dimension} parameters, {given}: the noise is too large, because noise "
                f"alone would move θ by {moved:.2g} instead of at most {FARTHEST:g} standard "
                f"deviations of an estimate from one record; {helps('parameters')}"
            )

    def _main_noise(self, model: Model, settled: Mapping[str, Any]) -> float:
        """Return the sd of the noise in the weighted mean of the score sums after the burn-in.

        The weights are the inverse variances of the noise.
        """
        main = range(self._rounds - 1 - MAIN_ROUNDS, self._rounds - 1)
        precision = sum(_summed_noise(settled, visit) ** -2.0 for visit in main)
        return score_bound(model.dimension) / math.sqrt(precision)

    def _moved(self, noise: float) -> float:
        """Return how far noise of sd `noise` in a sum of scores moves θ, in standard deviations of
        an estimate from one record.
        """
        return noise * math.sqrt(self._dimension) / (0.75 * self.total_units)

    def _burn_in_moves(self, settled: Mapping[str, Any]) -> list[float]:
        """Return how far the noise of each burn-in round moves θ, in standard deviations of an
        estimate from one record.
        """
        rounds = range(self.stages.index(CURVATURE) + 1, self._rounds - 2 - MAIN_ROUNDS)
        bound = score_bound(self._dimension)
        return [self._moved(bound * _summed_noise(settled, visit)) for visit in rounds] or [0.0]

    def settling_risk(self, model: Model, settled: Mapping[str, Any]) -> str | None:
        """Return a warning if the burn-in needs more than its smallest share of the budget;
        otherwise return None.

        With the smallest share, noise would move θ by more than `check_settled` allows. Such a
        burn-in may not converge, and whether it does is known only after the budget is spent.
        """
        if not self.total_units:
            return None
        moves = self._burn_in_moves(settled)
        moved = moves[0]
        if moves[-1] <= FARTHEST * (1.0 - ROUNDED):  # with the usual share of the budget
            return None
        return (
            f"Some fits with {self.total_units} records in {len(settled)} parties and this ε do "
            "not converge, which is reported only after the budget is spent: in an early round "
            f"noise moves θ by {moved:.2g} standard deviations of an estimate from one record; use "
            "privacy.aggregation = 'secure' or 'trusted', a larger epsilon, more records or fewer "
            "parameters."
        )

    def known_limits(self, model: Model, settled: Mapping[str, Any]) -> str | None:
        """Return a warning if some intervals will be more than `WIDE` times as wide as without
        privacy; otherwise return None.
        """
        if not self.total_units:
            return None
        assert isinstance(model, SimulatesOutcomes)
        levels = Counter(one.source for one in _design(model).layout if one.kind == "level")
        noise = self._main_noise(model, settled)
        found = expected_widths(model.dimension, noise, self.total_units)
        # A level with a quarter of the average number of records is common.
        rare = bool(levels) and found.rare > 0.25 / max(levels.values())
        if found.usual <= WIDE and not rare:
            return None
        few = f", and more than {WIDE:g} times for levels with under {found.rare:.0%} of records"
        return (
            f"Expect intervals about {found.usual:.1f} times as wide as without privacy"
            f"{few if rare and found.rare < 1.0 else ''} ({model.dimension} "
            f"parameters, {self.total_units} records in {len(settled)} parties); to narrow them "
            "use privacy.aggregation = 'secure' or 'trusted', a larger epsilon, more records or "
            "fewer parameters."
        )

    def check_ranges(self, model: Model, parties: Mapping[str, Records]) -> None:
        """Raise a DataError if the values of a column do not fit the range in which they are
        counted.

        The check is made only in simulations, in which one process has the records of all parties.
        """
        assert isinstance(model, SimulatesOutcomes)
        covariates = model.outcome_law().covariates
        check_ranges(_design(model), [np.asarray(covariates.flat(one)) for one in parties.values()])

    def stage_at(self, visit: int) -> Stage:
        stages = self.stages
        return Stage(stages[min(visit, len(stages) - 1)], needs_q=False, needs_factor=False)

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        del family
        assert isinstance(model, SimulatesOutcomes)
        d = model.dimension
        sizes = {
            COUNTS: _design(model).counted.size if stage == COUNTS else 0,
            MOMENT: self._columns * (self._columns + 1) // 2,
            CURVATURE: d * (d + 1) // 2,
            SCORE: d,
            RANK: LEVELS * RANKS,
        }
        return {stage: (sizes[stage],)}

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """Convert released integers to sums in which the contribution of one record has norm at
        most `bound_of`.
        """
        del family
        unit = event.step * self.bound_of(model, asked.stage) / event.clip
        return {asked.stage: integers[asked.stage] * unit}

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        del family
        d = model.dimension
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            COUNTS: {},
            MOMENT: {"centre": (self._columns,), "scale": (self._columns,)},
            CURVATURE: {"point": (d,), "map": (d, d)},
            SCORE: {"point": (d,), "map": (d, d)},
            RANK: {"point": (d,), "edges": (LEVELS - 1,)},
        }
        return shapes[stage]

    def is_nonnegative(self, stage: str) -> bool:
        return stage != SCORE

    def budget_share(self, visit: int, visits: int, mu: float = 1.0) -> float:
        del visits
        return self.budget_shares(mu)[visit]

    def budget_shares(self, mu: float) -> tuple[float, ...]:
        """Return each visit's share of the budget; the shares add up to 1.

        The budget is Σ μₜ² = `mu`², where μₜ is the sensitivity of visit t divided by its noise sd.
        """
        sizes = self._columns, self._dimension, self._counted
        return _budget_shares(
            self.stages, mu, sizes, self.total_units, self.parties, self.aggregation
        )

    def bound_of(self, model: Model, stage: str) -> float:
        """Return the largest norm of one record's contribution to the sum of `stage`, before the
        contribution is scaled to the clip.
        """
        assert isinstance(model, SimulatesOutcomes)
        if stage == COUNTS:
            return math.sqrt(_design(model).counted.columns)
        bounds = {CURVATURE: trace_bound, SCORE: score_bound}
        return bounds[stage](model.dimension) if stage in bounds else 1.0

    def bounded(self, model: Model, task: Task) -> Bounded:
        """Return the clipped sum for the stage of the task. The contribution of each record is
        scaled to a norm of at most the clip.
        """
        assert isinstance(model, SimulatesOutcomes)
        law, public = model.outcome_law(), task.public
        records, weights, clip = task.records, task.weights, task.terms.clips[0]
        if task.stage in (COUNTS, MOMENT):
            design = functools.partial(self._design_sum, model, task)
            if self.hides_lengths:
                return summed_in_blocks(design, records, weights)
            return design(records, weights)
        given = {
            "point": public["point"],
            "key": draws_key(task.secret),
            "chunk": BLOCK_UNITS if self.hides_lengths else None,
        }
        if task.stage == RANK:
            return rank_sum(law, records, weights, clip, edges=public["edges"], **given)
        summed = curvature_sum if task.stage == CURVATURE else score_sum
        return summed(law, records, weights, clip, mapping=public["map"], **given)

    def _design_sum(self, model: Model, task: Task, records: Records, weights: Array) -> Bounded:
        """Return the clipped sum of counts or of second moments of the covariates."""
        assert isinstance(model, SimulatesOutcomes)
        public, clip = task.public, task.terms.clips[0]
        x = model.outcome_law().covariates.flat(records)
        if self._columns > x.shape[1]:
            x = jnp.concatenate([x, jnp.ones((x.shape[0], 1))], axis=1)
        if task.stage == MOMENT:
            return moment_sum(x, public["centre"], public["scale"], weights, clip)
        counted = {"x": x} | ({"y": records["y"]} if counted_outcome(model) else {})
        return counts_sum(_design(model).counted, counted, weights, clip)

    def learns_scale(self, model: Model) -> bool:
        """True if the model declares no prior.

        The prior's scales, relative to the released scales of the columns, are then integrated out.
        """
        return isinstance(model, LearnsScale) and model.scale_unit is not None

    def server(self, run: Run) -> Combine:
        return ScoresServer(self, run)


def _summed_noise(settled: Mapping[str, Any], visit: int) -> float:
    """Return the sd of the noise in the sum over all parties, divided by the norm bound of one
    record's contribution.
    """
    each = (
        event.noise_sd**2 / one.shares / event.clip**2
        for one in settled.values()
        for event in one.events_at(visit)
    )
    return math.sqrt(sum(each))


def _design(model: Model) -> Design:
    assert isinstance(model, SimulatesOutcomes)
    return design_of(model.outcome_law().covariates, counted_outcome(model))


def main_share(aggregation: str) -> float:
    """Return the share of the budget for the scores after the burn-in.

    This share remains if every other release gets its smallest share.
    """
    rank = RANK_SHARES["plain" if aggregation == "plain" else "sum"]
    first = COUNTS_SHARES[0] + MOMENT_SHARES[0] + FIRST_CURVATURE
    return 1.0 - first - BURN_INS[0] - SECOND_CURVATURE - rank


@functools.lru_cache(maxsize=256)
def _budget_shares(
    stages: tuple[str, ...],
    mu: float,
    sizes: tuple[int, int, int],
    total_units: int,
    parties: int,
    aggregation: str,
) -> tuple[float, ...]:
    """Return each visit's share of the budget Σ μₜ² = `mu`², where μₜ is the sensitivity of visit t
    divided by its noise sd.

    Three kinds of release get more than their smallest share, within limits, if their noise would
    otherwise be too large:

    - the counts, if the variance of a numeric column would have a relative error above `LOOSE`;
    - the second moment, if noise would hide correlations of 0.3;
    - the burn-in, if the noise of its last round would move θ by more than `FARTHEST`.

    The scores after the burn-in get the remaining budget, the t-th of them in proportion to t.
    `sizes` are the numbers of columns, of parameters and of counted columns.
    """
    columns, dimension, counted = sizes
    summed = math.sqrt(parties) if aggregation == "plain" else 1.0
    loudness = summed / (total_units * mu) if total_units else 0.0

    def enough(needed: float, limits: tuple[float, float]) -> float:
        return min(max(needed, limits[0]), limits[1])

    second = len(stages) - 2 - MAIN_ROUNDS
    first = stages.index(CURVATURE)
    shares = np.zeros(len(stages))
    error = COUNT_ERROR * math.sqrt(2.0 * counted) * loudness / LOOSE
    shares[stages.index(COUNTS)] = enough(error**2, COUNTS_SHARES)
    if MOMENT in stages:
        hidden = 2.0 * columns**1.5 * loudness / 0.3
        shares[stages.index(MOMENT)] = enough(hidden**2, MOMENT_SHARES)
    shares[first], shares[second] = FIRST_CURVATURE, SECOND_CURVATURE
    shares[-1] = RANK_SHARES["plain" if aggregation == "plain" else "sum"]
    burn_in = np.arange(second - first - 1)
    if len(burn_in):
        growth = 1.25 ** np.maximum(burn_in - max(0, len(burn_in) - MOST_GROWING), 0)
        growth = growth / np.sum(growth)
        moved = 2.0 * score_bound(dimension) * math.sqrt(dimension) * loudness / 0.75
        shares[first + 1 : second] = enough((moved / FARTHEST) ** 2 / growth[-1], BURN_INS) * growth
    main = np.arange(1.0, MAIN_ROUNDS + 1.0)
    shares[second + 1 : -1] = (1.0 - np.sum(shares)) * main / np.sum(main)
    return tuple(float(share) for share in shares)
