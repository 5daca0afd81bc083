"""Server side of private scores: computes the request of each stage, and q, from released sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam import FullGaussian, Natural
from tacit.expfam.gaussian import Gaussian as GaussianFamily
from tacit.methods.scores.covariates import (
    Design,
    counted_at_ends,
    counted_outcome,
    described,
    design_of,
    public_scale,
    synthetic_rows,
)
from tacit.methods.scores.estimate import Estimator, History, Ratio, curvature_noise
from tacit.methods.scores.expected import Simulator
from tacit.methods.scores.party import LEVELS, RANKS, score_bound
from tacit.methods.scores.prior import Moments, PriorTerm
from tacit.methods.scoring.marginals import Marginals
from tacit.methods.scoring.synthetic import triangle
from tacit.models.capabilities import LearnsScale, SimulatesOutcomes
from tacit.models.learnt_scale import LearntScalePrior, scaled_prior
from tacit.models.outcomes import OutcomeLaw
from tacit.server.combine import RoundSum, Run, Shared

COUNTS, MOMENT, CURVATURE, SCORE, RANK = "counts", "moment", "curvature", "score", "ranks"
"""Names of the stages; each stage releases one array of the same name."""
PUBLIC = {
    MOMENT: ("centre", "scale"),
    CURVATURE: ("point", "map"),
    SCORE: ("point", "map"),
    RANK: ("point", "edges"),
}
"""Public arrays of each stage."""
UNUSABLE = (ValueError, ArithmeticError)
"""Errors that are raised if the released numbers give no estimate. NumPy's LinAlgError is a
ValueError.
"""
TURNS, LAST_TURNS = 1, 4
SIGNIFICANT = 0.01
LEAST_SHARE = 0.5
"""Below this effective share of draws, q does not describe the posterior under the exact prior
well.
"""
SETTLED = 0.5
"""In a converged run, the last iteration moves q's mean by at most this many posterior sds."""
FAR = 1.0
"""In a converged run, the last burn-in round moves θ by at most this many standard deviations of an
estimate from one record.
"""


class Staged(Protocol):
    """The attributes of a method that `ScoresServer` uses."""

    @property
    def stages(self) -> tuple[str, ...]: ...

    @property
    def total_units(self) -> int: ...


class Fit(NamedTuple):
    """Goodness of fit from the rank histogram."""

    statistic: float
    degrees: int
    p_value: float
    words: str


class ScoresServer:
    """Computes the next request and q from the released sums alone. Simulations are cached."""

    def __init__(self, method: Staged, run: Run) -> None:
        assert isinstance(run.model, SimulatesOutcomes)
        assert isinstance(run.family, GaussianFamily)
        self.method, self.run = method, run
        self.law: OutcomeLaw = run.model.outcome_law()
        self.outcome = counted_outcome(run.model)
        self.design: Design = design_of(self.law.covariates, self.outcome)
        start = run.model.start(run.family)
        prior = run.model.prior(run.family)
        mean, sd = (np.asarray(one, np.float64) for one in run.family.location_scale(prior))
        self.declared = PriorTerm(run.model, mean, sd**-2.0)
        self.start = mean if start is None else np.asarray(run.family.location_scale(start)[0])
        self._made: tuple[bytes, Estimator] | None = None

    def __call__(self, shared: Shared, answers: RoundSum) -> Shared:
        number, stages = answers.number, self.method.stages
        stage, following = stages[number - 1], stages[number : number + 1]
        # A late party may have answered an earlier stage: its part of this sum is missing.
        missing = self.run.parties / answers.contributors
        total = answers.total[stage] * missing
        noise_sd = self.run.noise_sd(number) * math.sqrt(missing)
        known = (shared.memory or {}) | shared.public
        known |= self._released(known, stage, total, noise_sd, number)
        try:
            known |= checked(self._estimated(known, stage, total, noise_sd, number))
        except UNUSABLE:  # keep the released values and the earlier estimates
            known |= _failed(known, number)
        try:
            known |= checked(self._published(known, following))
        except UNUSABLE:
            known |= _failed(known, number) | self._fallback(known, following)
        q = self._gaussian(known) if "mean" in known else {}
        return Shared(shared.q | q, *self._kept(known, following))

    def _released(
        self, known: Arrays, stage: str, total: np.ndarray, noise_sd: float, number: int
    ) -> Arrays:
        """Return the arrays of this round's release that the server stores.

        They are stored even if no estimate can be computed from them.
        """
        if stage in (COUNTS, MOMENT):
            return {stage: total}
        if stage == RANK:
            return {RANK: total, "rank_noise": np.array([noise_sd])}
        if stage == CURVATURE or self._burns_in(number):
            return {}
        size = self.declared.mean.size
        empty = {"points": np.zeros((0, size)), "scores": np.zeros((0, size))}
        before = empty | {"noise": np.zeros(0)} | known
        return {
            "points": np.vstack([before["points"], known["point"]]),
            "scores": np.vstack([before["scores"], total]),
            "noise": np.append(before["noise"], noise_sd * score_bound(size)),
        }

    def _estimated(
        self, known: Arrays, stage: str, total: np.ndarray, noise_sd: float, number: int
    ) -> Arrays:
        if stage == CURVATURE:
            return self._with_curvature(known, total, noise_sd, number)
        if stage == SCORE and self._burns_in(number):
            return self._with_burn_in(known, total, noise_sd)
        return self._with_score(known, number) if stage == SCORE else {}

    def _fallback(self, known: Arrays, following: Sequence[str]) -> Arrays:
        """Return default values of the arrays that the server publishes for the next stage and that
        are not in `known`.

        The server uses these defaults if the arrays could not be computed from the releases.
        `following` contains the next stage, or nothing after the last stage.
        """
        columns = len(self.design.layout)
        usable = {
            "centre": np.zeros(columns),
            "scale": np.ones(columns),
            "point": self.start,
            "map": np.diag(self.declared.precision**-0.5),
            "edges": np.zeros(LEVELS - 1),
        }
        names = PUBLIC.get(following[0], ()) if following else ()
        return {name: usable[name] for name in names if name not in known}

    def _published(self, known: Arrays, following: Sequence[str]) -> Arrays:
        """Return the arrays that the server publishes for the next stage."""
        if following == (MOMENT,):
            found = self._marginals(known)
            return {"centre": found.centre, "scale": public_scale(self.design, found)}
        if following and following[0] in (CURVATURE, SCORE) and "map" not in known:
            point = known.get("point", self._first_point(known))
            identity = Ratio(np.eye(len(point)), np.zeros((len(point), len(point))))
            return {"point": point, "map": self.estimator(known).mapping(point, identity)}
        if following == (RANK,):
            estimator, point = self.estimator(known), known["point"]
            level = estimator.simulator.expected(point, known["map"], point, point).level
            level = level[np.isfinite(level)]
            places = np.arange(1, LEVELS) / LEVELS
            edges = np.quantile(level, places) if len(level) else np.zeros(LEVELS - 1)
            return {"edges": edges}
        return {}

    def _kept(self, known: Arrays, following: Sequence[str]) -> tuple[Arrays, Arrays]:
        names = PUBLIC.get(following[0], ()) if following else ()
        memory = {name: value for name, value in known.items() if name not in names}
        return {name: known[name] for name in names}, memory

    def _burns_in(self, number: int) -> bool:
        """True if the burn-in continues after round `number`, that is, if a later round releases a
        curvature.
        """
        return CURVATURE in self.method.stages[number:]

    def _with_curvature(
        self, known: Arrays, total: np.ndarray, noise_sd: float, number: int
    ) -> Arrays:
        """Return the ratio of released to simulated curvature, updated by the new release, and the
        matrix by which the next scores are transformed.
        """
        estimator, point = self.estimator(known), known["point"]
        before = self._ratio(known) if "ratio" in known else None
        noise = curvature_noise(noise_sd, estimator.dimension)
        released = triangle(total, estimator.dimension)
        ratio = estimator.updated_ratio(before, released, noise, point, known["map"])
        found = {"ratio": ratio.mean, "ratio_variance": ratio.variance}
        if self._burns_in(number):
            return found | {"map": estimator.mapping(point, ratio)}
        mapping = estimator.narrowest(point, ratio, self._main_noise(number))
        return found | {"map": mapping, "made_at": point}

    def _main_noise(self, number: int) -> float:
        """Return the sd of the noise in the weighted mean of all score sums after round `number`.

        The weights are the inverse variances of the noise.
        """
        following = enumerate(self.method.stages[number:], number + 1)
        noise = np.array([self.run.noise_sd(one) for one, stage in following if stage == SCORE])
        return score_bound(self.declared.mean.size) / math.sqrt(float(np.sum(noise**-2.0)))

    def _with_burn_in(self, known: Arrays, total: np.ndarray, noise_sd: float) -> Arrays:
        """Return the θ to which a burn-in round moves, and the matrix by which scores at this θ are
        transformed.
        """
        estimator, ratio = self.estimator(known), self._ratio(known)
        noise = noise_sd * score_bound(estimator.dimension)
        found = estimator.walked(
            known["point"], known["map"], ratio, total, noise, known.get("walked")
        )
        ways = np.append(known.get("ways", np.zeros(0)), found.way)
        mapping = estimator.mapping(found.point, ratio)
        return {"point": found.point, "map": mapping, "ways": ways, "walked": found.information}

    def _with_score(self, known: Arrays, number: int) -> Arrays:
        """Return q computed from all main rounds so far. The mean of q is the θ of the next
        round.
        """
        history = History(known["points"], known["scores"], known["noise"])
        last = SCORE not in self.method.stages[number:]
        turns = LAST_TURNS if last else TURNS
        q = self.estimator(known).posterior(
            history, known["map"], self._ratio(known), known["point"], turns
        )
        found = {"point": q.mean, "mean": q.mean, "precision": q.precision}
        if not last:
            return found | self._renewed(known, q.mean, number)
        prior = self.estimator(known).prior
        try:
            moments = prior.moments(q.information, q.linear, q.mean, q.precision)
            checked({"mean": moments.mean, "precision": moments.precision})
        except UNUSABLE:
            moments = Moments(q.mean, q.precision, 0.0)
        found |= {"mean": moments.mean, "precision": moments.precision}
        return found | {"effective_share": np.array([moments.share]), "moved": np.array([q.moved])}

    def _renewed(self, known: Arrays, mean: np.ndarray, number: int) -> Arrays:
        """Return a new map W and an empty history of releases, or {} if the current map is kept.

        W is the matrix by which the parties transform a record's score before clipping. `mean` is
        the current estimate of θ, and `number` is the number of the round. Scores that were
        released with the current map cannot be used with a new map. Main rounds are those after the
        burn-in. A new map is returned only if the remaining main rounds with the new map give more
        information about θ than all main rounds with the current map.
        """
        left = self._main_noise(number)
        noise = (left**-2.0 + float(np.sum(known["noise"] ** -2.0))) ** -0.5
        made_at, ratio = known.get("made_at", self.start), self._ratio(known)
        try:
            found = self.estimator(known).renewed(mean, known["map"], made_at, ratio, (noise, left))
        except UNUSABLE:  # keep the present map
            found = None
        if found is None:
            return {}
        none = {name: known[name][:0] for name in ("points", "scores", "noise")}
        return none | {"map": found, "made_at": mean}

    @staticmethod
    def _ratio(known: Arrays) -> Ratio:
        size = len(known["point"])
        nothing = {"ratio": np.eye(size), "ratio_variance": np.ones((size, size))}
        known = nothing | known
        return Ratio(known["ratio"], known["ratio_variance"])

    @property
    def count_noise_sd(self) -> float:
        """Standard deviation of the noise in each count of the sum over parties."""
        number = self.method.stages.index(COUNTS) + 1
        return math.sqrt(self.design.counted.columns) * self.run.noise_sd(number)

    def _marginals(self, known: Arrays) -> Marginals:
        records = float(self.method.total_units)
        return described(self.design, known["counts"], self.count_noise_sd, records)

    def estimator(self, known: Arrays) -> Estimator:
        """Return the estimator for the released counts and second moment.

        The estimator is computed again only if these arrays change.
        """
        names = [name for name in (COUNTS, MOMENT) if name in known]
        key = b"".join(known[name].tobytes() for name in names)
        if self._made is None or self._made[0] != key:
            self._made = key, self._estimator(known)
        return self._made[1]

    def _estimator(self, known: Arrays) -> Estimator:
        found, moment, noise_sd = self._marginals(known), known.get(MOMENT), 0.0
        if moment is not None:
            noise_sd = self.run.noise_sd(self.method.stages.index(MOMENT) + 1)
        rows = synthetic_rows(self.design, found, moment, noise_sd)
        return Estimator(Simulator(self.law, rows), self._prior(found), found.records)

    def _first_point(self, known: Arrays) -> np.ndarray:
        """Return the model's starting point. If the outcome was counted, the intercept is set such
        that the prediction at the mean covariates is the mean of the counted outcomes.
        """
        found = self._marginals(known)
        places = [i for i, one in enumerate(self.law.covariates.layout) if one.kind == "intercept"]
        if self.outcome is None or found.outcome is None or not places:
            return self.start
        point, x = self.start.copy(), found.centre[: self.design.own].copy()
        x[places[0]] = 1.0
        point[places[0]] += self.outcome.link(found.outcome) - x @ point[: len(x)]
        return point

    def scale_prior(self, known: Arrays) -> LearntScalePrior | None:
        """Return the prior of a model that learns the scales of its prior, or None for other
        models.

        The prior depends on the means and standard deviations of the columns, which are estimated
        from the releases in `known`.
        """
        return self._scale_prior(self._marginals(known))

    def _scale_prior(self, found: Marginals) -> LearntScalePrior | None:
        model, own = self.run.model, self.design.own
        if not isinstance(model, LearnsScale) or model.scale_unit is None:
            return None
        numeric = np.array([feature.kind == "numeric" for feature in model.layout])
        scale = np.where(numeric, np.sqrt(found.variance[:own]), 1.0)
        constant = np.array([feature.kind == "intercept" for feature in model.layout])
        centre = np.where(constant, 0.0, found.centre[:own])
        return scaled_prior(
            model.prior_mean, model.layout, scale, centre, model.scale_unit, model.prior_sd
        )

    def _prior(self, found: Marginals) -> PriorTerm:
        """Return the prior of θ.

        If the scales of the prior are learned, its Gaussian approximation uses their largest likely
        values.
        """
        learnt = self._scale_prior(found)
        if learnt is None:
            return self.declared
        sd = learnt.widest_sd
        return PriorTerm(self.run.model, learnt.mean, sd**-2.0, learnt.log_density)

    def _gaussian(self, known: Arrays) -> Natural:
        """Return the natural parameters of q in the run's family.

        A mean-field q has the marginal variances of the full q, so its intervals are the same.
        """
        mean, precision = known["mean"], known["precision"]
        if isinstance(self.run.family, FullGaussian):
            return {"linear": precision @ mean, "quadratic": -0.5 * precision}
        precision = 1.0 / np.diagonal(np.linalg.inv(precision))
        return {"linear": precision * mean, "quadratic": -0.5 * precision}


def checked(found: Arrays) -> Arrays:
    """Return `found`. Raise an error if an array is not finite, or if "precision" is not positive
    definite.
    """
    wrong = [name for name, one in found.items() if name != "ways" and not np.isfinite(one).all()]
    if wrong:
        raise FloatingPointError(f"estimates that are not finite: {', '.join(wrong)}")
    if "precision" in found:
        np.linalg.cholesky(found["precision"])
    return found


def _failed(known: Arrays, number: int) -> Arrays:
    return {"failed": np.union1d(known.get("failed", np.zeros(0)), [number])}


def trouble(server: ScoresServer, memory: Arrays) -> str | None:
    """Return the reason why q may not be the posterior, or None if the releases show no problem.

    The counts show whether columns are on the assumed scale. The last burn-in round shows whether θ
    had converged before the main rounds, and the last estimate shows whether q has converged.
    """
    if "failed" in memory:
        rounds = ", ".join(f"{number:.0f}" for number in memory["failed"])
        return (
            f"the releases of round {rounds} gave no estimate (a matrix was singular or not "
            "finite), and estimates from the other rounds were kept; give weakly determined "
            "parameters a narrower prior, or use a larger epsilon or more records"
        )
    if COUNTS in memory:
        ends = counted_at_ends(server.design, memory[COUNTS], server.count_noise_sd)
        if ends is not None:
            return ends
    ways = memory.get("ways", np.zeros(0))
    if len(ways) and not ways[-1] <= FAR:
        return (
            f"the last burn-in round still moved θ by {ways[-1]:.2g} standard deviations of an "
            f"estimate from one record (at most {FAR:g} after convergence); use more "
            "schedule.rounds, columns of a similar scale, or a prior nearer to the records"
        )
    moved = float(memory.get("moved", np.zeros(1))[0])
    if not moved <= SETTLED:
        return (
            f"the last iteration of the server's estimate moved q's mean by {moved:.2g} posterior "
            f"sds (at most {SETTLED:g} after convergence); give weakly determined parameters a "
            "narrower prior, or use a larger epsilon or more records"
        )
    share = float(memory.get("effective_share", np.ones(1))[0])
    if share < LEAST_SHARE:
        return (
            f"{share:.0%} of the draws of the normal posterior are effective under the exact prior "
            f"(at least {LEAST_SHARE:.0%} for an accurate posterior): intervals may be too narrow; "
            "use fewer weakly determined scales, or give them a narrower prior"
        )
    return None


def rank_fit(ranks: np.ndarray, noise_sd: float) -> Fit:
    """Test whether the records' outcomes agree with the model, given a noisy histogram of their
    ranks.

    The rank of a record is the position of its outcome among outcomes that are simulated from the
    model. Records are grouped into levels by their predicted mean. If the model is correct, all K
    ranks are equally frequent at each level. `ranks` has one count for each level and rank, and the
    noise in each count has the standard deviation σ = `noise_sd`.

    If a level has N records, the expected count of each rank is N/K, and its variance is about N/K
    + σ². The scaled deviation (count − N/K)/√(N/K + σ²) then has a variance of about 1. From the
    scaled deviations of each level two numbers are computed: their slope over the ranks, and the
    excess at the lowest and highest ranks. Four statistics are compared with χ² distributions:

    - the sum of the squares of all scaled deviations;
    - the sum of the squares of all slopes and excesses;
    - the square of the difference of the slopes between outer and inner levels, which is large if
      the model has a wrong link function;
    - the square of the sum of the excesses, which is large if the model has a wrong spread.

    The p-value of the result is 4 times the smallest of the four p-values, but at most 1.
    """
    from scipy import stats

    table = ranks.reshape(LEVELS, RANKS)
    residual = table - np.mean(table, axis=1, keepdims=True)
    variance = np.maximum(np.mean(table, axis=1), 0.0) + noise_sd**2
    scaled = residual / np.sqrt(variance)[:, None]
    statistic, degrees = float(np.sum(np.square(scaled))), LEVELS * (RANKS - 1)
    (slope, ends), (_, outer) = _contrasts(RANKS), _contrasts(LEVELS)
    slopes, spreads = scaled @ slope, scaled @ ends
    tested = (
        (statistic, degrees),
        (float(np.sum(np.square(slopes)) + np.sum(np.square(spreads))), 2 * LEVELS),
        (float(outer @ slopes) ** 2, 1),
        (float(np.sum(spreads)) ** 2 / LEVELS, 1),
    )
    smallest = min(float(stats.chi2.sf(value, freedom)) for value, freedom in tested)
    return Fit(statistic, degrees, min(1.0, len(tested) * smallest), _misfit(slopes, spreads))


def _contrasts(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two orthonormal contrasts over `count` ordered bins: one for a slope, and one for an
    excess at both ends.
    """
    place = np.arange(count) - 0.5 * (count - 1)
    ends = np.square(place) - np.mean(np.square(place))
    return place / np.linalg.norm(place), ends / np.linalg.norm(ends)


def _misfit(slopes: np.ndarray, spreads: np.ndarray) -> str:
    """Return a description of the misfit that the rank histogram shows most clearly.

    Three deviations from equal counts are compared: a common slope of all levels over the ranks,
    differences of the slopes between levels, and an excess at the lowest and highest ranks. For a
    correct model, the square of each deviation is about its degrees of freedom.
    """
    spread = float(np.sum(spreads)) / math.sqrt(LEVELS)
    named = {
        "spread": spread**2 - 1.0,
        "levels": float(np.sum(np.square(slopes - np.mean(slopes)))) - (LEVELS - 1.0),
        "shift": float(np.sum(slopes)) ** 2 / LEVELS - 1.0,
    }
    most = max(named, key=lambda name: named[name])
    if most == "spread" and spread > 0:
        return "outcomes are more extreme than the model allows: overdispersion or heavier tails"
    if most == "spread":
        return (
            "outcomes lie closer to the centre than the model says: underdispersion, or tails that "
            "are too light in the model, for which its scale was increased to compensate"
        )
    if most == "levels":
        return "outcomes are too high at some predicted levels and too low at others: a wrong link"
    return "outcomes are skewed against the model's distribution"


def fit_of(memory: Arrays) -> Fit | None:
    """Return the goodness of fit from the rank histogram, or None if it is not released yet."""
    if RANK not in memory:
        return None
    return rank_fit(memory[RANK], float(memory["rank_noise"][0]))
