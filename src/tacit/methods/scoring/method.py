"""`PrivateScoring`: generalised linear models from noisy counts, one second moment and scores.

Three kinds of answer, all of them sums over the whole of a party's records:

    visit 0     counts of the columns           → one public map z = scale∘(x − centre)
    visit 1     second moment of z/‖z‖          → synthetic covariates, hence expected curvature
    visit 2 …   clipped scores at the server's θ → q

The shares of the budget are fixed in advance; that of the t-th score grows as √t. Parties release
sums only and the server uses nothing but their total: how records are divided between the parties
does not change the law of the result. docs/methods/private-scoring.md has the derivation.

Requests publish what a party needs to know: the map, the point θ and the limit k of the residual.
They carry neither q nor a factor, and a reply is the released sum alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, FullGaussian, Natural
from tacit.expfam.gaussian import Gaussian as GaussianFamily
from tacit.methods.base import Answer, Arranged, Array, Task
from tacit.methods.private import PrivateMethod, by_unit, units_present
from tacit.methods.scoring.marginals import (
    DIRECTIONS,
    MISSING,
    Marginals,
    apart,
    flattened,
    marginals,
    scales,
)
from tacit.methods.scoring.party import KNOTS, Counted, counted, counts_sum, moment_sum, score_sum
from tacit.methods.scoring.server import (
    History,
    Prior,
    Public,
    Solved,
    choose_scale,
    coordinates,
    solve,
)
from tacit.methods.scoring.synthetic import Synthetic, correlated
from tacit.models import Model, Records
from tacit.models.capabilities import Scores
from tacit.models.scores import ScoreLikelihood
from tacit.privacy.bounded import Bounded, Tally
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import Gaussian
from tacit.server.combine import Combine, RoundSum, Run, Shared
from tacit.server.messages import Stage
from tacit.server.schedule import Schedule
from tacit.support.compiler import jax, jnp

COUNTS_SHARE, MOMENT_SHARE = 0.08, 0.04
LEAST_ROUNDS = 3
COUNTS, MOMENT, SCORE = "counts", "moment", "score"
"""The stages; each releases one array of the same name."""
COUNTS_ROUND, MOMENT_ROUND = 1, 2
PUBLIC = ("centre", "scale", "bend", "point", "reach")
"""What requests for a score publish."""
KEPT = ("counts", "moment", "points", "scores", "noise", "width")
"""What the server keeps of earlier rounds."""
MOST_OUTSIDE = 0.05
"""Of the values of a column that may lie outside of the range in which it is counted,"""
LEAST_SPREAD = 0.01
"""how much of that range its standard deviation must be,"""
MOST_AT_END = 0.25
"""and how many values released counts may show at an end that is not a declared bound."""


@dataclass(frozen=True, kw_only=True)
class PrivateScoring(PrivateMethod):
    """Counts, second moment and scores; see the module.

    `empirical_bayes` takes the prior's sd for a shape only and learns its scale, column by column,
    from the releases: better predictions where the declared prior is far too wide or too narrow,
    but q is then no longer the posterior under the prior that was declared.

    Parameters
    ----------
    empirical_bayes
        Learn the scale of the prior from the releases.
    clip, clip_end, noise_end
        Not settings of this method, which finds its own scale: leave them out.
    dtype
        Floating-point type of the records, "float32" or "float64".
    """

    kind: ClassVar[str] = "dp-scoring"
    units: ClassVar[tuple[Unit, ...]] = ("record",)
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain", "trusted")
    damping: ClassVar[float | None] = 1.0
    usual_rounds: ClassVar[int] = 12
    wants_full: ClassVar[bool] = True
    clip: float = 1.0
    empirical_bayes: bool = False
    dtype: str = "float64"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("clip", "clip_end", "noise_end"):
            if getattr(self, key) != 1.0:
                raise ConfigError(
                    f"method.{key} = {getattr(self, key)} with method.kind = 'dp-scoring', "
                    "which finds its own scale from what it releases: leave the key out"
                )

        if self.dtype != "float64":
            # A finite number beyond float32 would be infinite, and 0 times it none at all.
            raise ConfigError(
                f"method.dtype = {self.dtype!r} with method.kind = 'dp-scoring', whose bounds "
                "are those of float64: leave the key out"
            )

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(model, Scores):
            raise ConfigError(
                f"method.kind = 'dp-scoring' with model {model.kind!r}, which has no score "
                "likelihood (logistic, softmax, linear and poisson have one): use method.kind = "
                "'dp-sgd'"
            )
        if not isinstance(family, GaussianFamily):
            raise ConfigError(
                f"method.kind = 'dp-scoring' needs a Gaussian family, not {family.kind!r}"
            )
        if not any(feature.kind != "intercept" for feature in model.layout):
            raise ConfigError(
                f"method.kind = 'dp-scoring' with the columns {', '.join(model.names)}; "
                "there is nothing to count: use method.kind = 'dp-sgd'"
            )

    def check_schedule(self, schedule: Schedule, parties: int) -> None:
        if schedule.kind != "synchronous":
            raise ConfigError(
                f"schedule.kind = {schedule.kind!r} with method.kind = 'dp-scoring', which "
                "adds up everybody's answers: use 'synchronous', or method.kind = 'dp-sgd'"
            )
        if schedule.rounds < LEAST_ROUNDS:
            raise ConfigError(
                f"schedule.rounds = {schedule.rounds} with method.kind = 'dp-scoring'; counts "
                f"and second moment take one each: at least {LEAST_ROUNDS} are needed, "
                f"{self.usual_rounds} are usual"
            )
        if (schedule.parties_per_round or parties) != parties:
            raise ConfigError(
                f"schedule.parties_per_round = {schedule.parties_per_round} with method.kind = "
                "'dp-scoring', which asks everybody in every round: leave the key out"
            )
        if schedule.damping is not None and schedule.damping != 1.0:
            raise ConfigError(
                f"schedule.damping = {schedule.damping} with method.kind = 'dp-scoring', "
                "whose server knows the noise and takes the right step: leave the key out"
            )

    def knows_noise(self, family: Family) -> bool:
        del family
        return True

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        del seed
        return by_unit(party, records, self.unit)

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
            COUNTS: _counted(model).size if stage == COUNTS else 0,
            MOMENT: d * (d + 1) // 2,
            SCORE: model.dimension,
        }
        return {stage: (sizes[stage],)}

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        del family
        assert isinstance(model, Scores)
        d = len(model.layout)
        shapes: dict[str, tuple[int, ...]] = {}
        if stage != COUNTS:
            shapes |= {"centre": (d,), "scale": (d,)}
        if stage == SCORE:
            shapes |= {"bend": (DIRECTIONS, d), "point": (model.dimension,), "reach": (1,)}
        return shapes

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        del units
        return (GaussianEvent(clip=clip, noise_sd=noise_sd),)

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """(sensitivity/noise)² is `noise_sd`⁻² times this visit's share, and shares add up to 1."""
        stage = self.stage_at(visit).name
        event = GaussianEvent(clip=clip, noise_sd=noise_sd, nonnegative=stage != SCORE)
        ratio = event.sensitivity(self.adjacency) / clip
        share = self.budget_share(visit, visits)
        return (
            GaussianEvent(
                clip=clip,
                noise_sd=noise_sd * ratio / math.sqrt(share),
                nonnegative=event.nonnegative,
            ),
        )

    def budget_share(self, visit: int, visits: int) -> float:
        """What that visit spends of Σ μ²; over all visits they add up to 1."""
        return _budget_share(visit, visits)

    def party_likelihood(self, model: Model) -> ScoreLikelihood:
        """The score that parties add up and its bound, which decides how it is clipped."""
        assert isinstance(model, Scores)
        return model.score_likelihood()

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        del key
        assert isinstance(model, Scores)
        public, clip = task.public, task.terms.clips[0]
        unit = clip
        if task.stage == COUNTS:
            what = _counted(model)
            bounded = counts_sum(what, task.records, task.weights, clip)
            unit = clip / math.sqrt(what.columns)
        elif task.stage == MOMENT:
            bounded = moment_sum(
                task.records["x"], public["centre"], public["scale"], task.weights, clip
            )
        else:
            bounded = self._scores(model, task)
        mechanism = Gaussian(noise_sd=task.terms.noise_sds[0], shares=task.terms.shares)
        release = mechanism.release(task.secret, bounded)
        costs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], release.cost)
        return Answer(None, None, costs, released={task.stage: release.value / unit})

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
        """The scores: counts are never longer than the clip, and moments are directions only."""
        del family, key
        return self._scores(model, task, tally), units_present(task.weights)

    def clipping_biases(self, model: Model, stage: str) -> bool:
        """False: a shortened score still has expectation 0 at the true θ."""
        del model, stage
        return False

    def server(self, run: Run) -> Combine:
        assert isinstance(run.model, Scores)
        return ScoringServer(self, run)


def _budget_share(visit: int, visits: int) -> float:
    """What that visit spends of Σ μ²."""
    if visit < 2:
        return (COUNTS_SHARE, MOMENT_SHARE)[visit]
    weights = np.sqrt(np.arange(1, visits - 1))
    return float((1.0 - COUNTS_SHARE - MOMENT_SHARE) * weights[visit - 2] / np.sum(weights))


def _counted(model: Scores) -> Counted:
    likelihood = model.score_likelihood()
    return counted(model.layout, likelihood.largest, likelihood.smallest, likelihood.levels)


def check_units(model: Model, parties: Mapping[str, Records]) -> None:
    """Refuse plain records in units that the counts of private scoring cannot describe.

    A private method takes no range from the data. Where none is declared, columns are taken for
    standardised ones. Values far outside would be counted at the ends of that range and values
    close together between two knots: curvature and posterior would be wrong. This check reads the
    records of a simulation, before anything is released: its error is the only thing that depends
    on them.
    """
    if not isinstance(model, Scores):
        return
    what = _counted(model)
    bias = any(feature.kind == "intercept" for feature in model.layout)
    for place, low, high in zip(what.numbers, what.low, what.high, strict=True):
        x = np.concatenate([np.asarray(one["x"], np.float64)[:, place] for one in parties.values()])
        outside = float(np.mean((x < low) | (x > high)))
        spread = math.sqrt(np.mean(np.square(x - (np.mean(x) if bias else 0.0))))
        constant = np.ptp(x) == 0
        if outside <= MOST_OUTSIDE and (constant or spread >= LEAST_SPREAD * (high - low)):
            continue
        name = model.layout[place].source
        seen = (
            f"{outside:.0%} of its values are outside"
            if outside > MOST_OUTSIDE
            else f"its values vary by {spread:.2g} only"
        )
        raise DataError(
            f"column {name!r}: private scoring counts it in [{low:g}, {high:g}], but {seen}; "
            "declare public bounds in the model's layout, tacit.data.schema.layout.Feature("
            f"'numeric', {name!r}, low, high), or scale the column with public constants, e.g. "
            "(x − 60)/15"
        )


def counted_outside(model: Model, counts: np.ndarray, noise_sd: float) -> str | None:
    """Why released counts show a column in other units than its counts assume, if they do.

    Of an end that is not a declared bound, the last knot holds everything beyond it.
    """
    assert isinstance(model, Scores)
    what = _counted(model)
    first = sum(len(group) for group in what.groups)
    hats = counts[first : first + KNOTS * len(what.numbers)].reshape(-1, KNOTS)
    for row, place in enumerate(what.numbers):
        feature, total = model.layout[place], max(float(np.sum(hats[row])), 1.0)
        for knot, end, bound in (
            (0, what.low[row], feature.low),
            (-1, what.high[row], feature.high),
        ):
            share = (hats[row, knot] - MISSING * noise_sd) / total
            if end != bound and share > MOST_AT_END:
                return (
                    f"about {hats[row, knot] / total:.0%} of the values of {feature.source!r} are "
                    f"counted at {end:g}, the end of what private scoring takes for the column's "
                    "range; declare low and high without center and scale, or other ones"
                )
    return None


class ScoringServer:
    """A pure function of what was released; what it has worked out it need not work out again."""

    def __init__(self, method: PrivateScoring, run: Run) -> None:
        model = run.model
        assert isinstance(model, Scores)
        likelihood = model.score_likelihood()
        self.method, self.run, self.layout = method, run, model.layout
        self.likelihood: ScoreLikelihood = likelihood
        self.counted: Counted = _counted(model)
        places = [i for i, feature in enumerate(self.layout) if feature.kind == "intercept"]
        self.bias = places[0] if places else None
        scaled = np.array([feature.kind != "intercept" for feature in self.layout])
        self.scaled = scaled
        sources = list(dict.fromkeys(f.source for f in self.layout if f.kind != "intercept"))
        column = [-1 if f.kind == "intercept" else sources.index(f.source) for f in self.layout]
        self.prior = Prior(model.prior_mean, model.prior_sd, np.tile(column, likelihood.outputs))
        self._known: tuple[bytes, Public] | None = None
        self._drawn: tuple[bytes, tuple[Marginals, np.ndarray, Synthetic]] | None = None

    def __call__(self, shared: Shared, answers: RoundSum) -> Shared:
        number = answers.number
        stage = self.method.stage_at(number - 1).name
        # A late party may have answered an earlier stage: its part of this sum is missing.
        total = answers.total[stage] * (self.run.parties / answers.contributors)
        missing = math.sqrt(self.run.parties / answers.contributors)
        known = shared.public | (shared.memory or {})
        if stage == COUNTS:
            found = self._mapped(known | {"counts": total})
            return self._shared(shared.q, found, ("centre", "scale"), ("counts", "point"))
        if stage == MOMENT:
            found = self._scaled(known | {"moment": total, "reach": np.zeros(1)})
            return self._shared(shared.q, found, PUBLIC, ("counts", "moment"))
        empty = np.zeros((0, len(self.prior.mean)))
        known = {"points": empty, "scores": empty, "noise": np.zeros(0)} | known
        context = self._public(known)
        known = {"width": self._no_width(context)} | known
        known |= {
            "points": np.vstack([known["points"], known["point"]]),
            "scores": np.vstack([known["scores"], total]),
            "noise": np.append(known["noise"], missing * self.run.noise_sd(number)),
        }
        solved = solve(
            context,
            History(known["points"], known["scores"], known["noise"]),
            self.prior,
            known["width"],
            learn_scale=self.method.empirical_bayes,
        )
        known |= {"width": solved.width, "point": solved.mean}
        return self._shared(shared.q | self._gaussian(solved), known, PUBLIC, KEPT)

    @staticmethod
    def _shared(q: Natural, known: Arrays, public: Sequence[str], kept: Sequence[str]) -> Shared:
        """What is published with the next requests, and what stays at the server."""
        return Shared(q, {name: known[name] for name in public}, {n: known[n] for n in kept})

    def _no_width(self, public: Public) -> np.ndarray:
        return self.likelihood.no_width(len(public.synthetic.z))

    @property
    def _score_sd(self) -> float:
        """Of the noise in all scores put together."""
        rounds = range(LEAST_ROUNDS, self.run.rounds + 1)
        return 1.0 / math.sqrt(sum(self.run.noise_sd(number) ** -2.0 for number in rounds))

    @property
    def count_noise_sd(self) -> float:
        """Of the noise in each count."""
        return math.sqrt(self.counted.columns) * self.run.noise_sd(COUNTS_ROUND)

    def _marginals(self, q: Natural) -> Marginals:
        records = float(self.method.total_units)
        return marginals(self.layout, self.counted, q["counts"], self.count_noise_sd, records)

    def _mapped(self, q: Natural) -> Natural:
        found = self._marginals(q)
        scale = self._scale(found)
        point = self.prior.mean.copy()
        if self.bias is not None and found.outcome is not None:
            rows = point.reshape(self.likelihood.outputs, -1)
            rows[:, self.bias] += self._start(found) - rows @ np.where(
                self.scaled, found.centre, 1.0
            )
        return q | {"centre": found.centre, "scale": scale, "point": point}

    def _scale(self, found: Marginals) -> np.ndarray:
        widest = np.max(self.prior.sd.reshape(self.likelihood.outputs, -1), axis=0)
        return scales(found, widest, self._score_sd)

    def _bend(self, q: Natural) -> np.ndarray:
        return flattened(self._synthetic(q)[2].z, self.scaled)

    def _start(self, found: Marginals) -> Any:
        """η of a record about which nothing is known."""
        return 0.0 if found.outcome is None else self.likelihood.link(found.outcome)

    def _scaled(self, q: Natural) -> Natural:
        """Shorten what is long, and fold C into the map: what is clipped at 1 was at C before."""
        q = q | {"bend": self._bend(q)}
        public = self._public(q)
        prior = public.to_x / self.prior.sd[:, None]
        factor, reach = choose_scale(
            self.likelihood,
            public.synthetic.z,
            public.records,
            prior.T @ prior,
            self._score_sd,
            self._start(self._marginals(q)),
        )
        return q | {"scale": factor * q["scale"], "reach": np.array([reach])}

    def _synthetic(self, q: Natural) -> tuple[Marginals, np.ndarray, Synthetic]:
        """What counts and second moment say, in the scale of the second moment."""
        key = q["counts"].tobytes() + q["moment"].tobytes()
        if self._drawn is None or self._drawn[0] != key:
            found = self._marginals(q)
            scale = self._scale(found)
            noise_sd = self.run.noise_sd(MOMENT_ROUND)
            drawn = correlated(self.layout, self.counted, found, scale, q["moment"], noise_sd)
            self._drawn = key, (found, scale, drawn)
        return self._drawn[1]

    def _public(self, q: Natural) -> Public:
        names = ("counts", "moment", "scale", "bend", "reach")
        key = b"".join(q[name].tobytes() for name in names)
        if self._known is None or self._known[0] != key:
            found, scale, drawn = self._synthetic(q)
            factor = q["scale"] / scale
            bend = np.eye(len(self.layout)) - q["bend"].T @ q["bend"]
            doubt = np.square(np.outer(factor, factor)) * drawn.doubt
            synthetic = Synthetic((drawn.z * factor) @ bend, doubt)
            to_x, to_z = (
                np.kron(np.eye(self.likelihood.outputs), one)
                for one in coordinates(q["centre"], q["scale"], bend, self.bias)
            )
            reach = float(q["reach"][0])
            told = apart(self.counted, found, q["scale"])
            known = Public(self.likelihood, reach, synthetic, found.records, bend, told, to_x, to_z)
            self._known = key, known
        return self._known[1]

    def _gaussian(self, found: Solved) -> Natural:
        """q in its family; mean-field keeps the marginals, so that intervals stay what they are."""
        if isinstance(self.run.family, FullGaussian):
            precision = found.precision
            return {"linear": precision @ found.mean, "quadratic": -0.5 * precision}
        precision = 1.0 / np.diagonal(np.linalg.inv(found.precision))
        return {"linear": precision * found.mean, "quadratic": -0.5 * precision}
