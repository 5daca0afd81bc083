"""Server side of private scoring: computes the next request and q from the released sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam import FullGaussian, Natural
from tacit.methods.scoring.marginals import (
    Marginals,
    apart,
    flattened,
    marginals,
    scales,
)
from tacit.methods.scoring.party import Counted
from tacit.methods.scoring.server import (
    History,
    Prior,
    Public,
    Solved,
    choose_scale,
    coordinates,
    solve,
)
from tacit.methods.scoring.stages import (
    COUNTS,
    COUNTS_ROUND,
    KEPT,
    LEAST_ROUNDS,
    MOMENT,
    MOMENT_ROUND,
    PUBLIC,
)
from tacit.methods.scoring.synthetic import Direction, Synthetic, correlated, least_known
from tacit.methods.scoring.units import counted_columns
from tacit.models.capabilities import LearnsScale, Scores
from tacit.models.learnt_scale import LearntScalePrior, column_numbers, scale_transform
from tacit.models.scores import ScoreLikelihood
from tacit.server.combine import RoundSum, Run, Shared

if TYPE_CHECKING:
    from tacit.methods.scoring.method import PrivateScoring


class ScoringServer:
    """Computes the next request and q from the released sums alone. Intermediate results are
    cached.
    """

    def __init__(self, method: PrivateScoring, run: Run) -> None:
        model = run.model
        assert isinstance(model, Scores)
        likelihood = model.score_likelihood()
        self.method, self.run, self.layout = method, run, model.layout
        self.likelihood: ScoreLikelihood = likelihood
        self.counted: Counted = counted_columns(model)
        places = [i for i, feature in enumerate(self.layout) if feature.kind == "intercept"]
        self.bias = places[0] if places else None
        scaled = np.array([feature.kind != "intercept" for feature in self.layout])
        self.scaled = scaled
        self.prior = Prior(model.prior_mean, model.prior_sd)
        unit = model.scale_unit if isinstance(model, LearnsScale) else None
        self._autoscaled = unit is not None and method.learns_scale(run.model)
        """True if the prior is in the units of the columns."""
        self._unit = unit or 1.0
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
            self.prior_of(known),
            known["width"],
        )
        known |= {"width": solved.width, "point": solved.mean}
        return self._shared(shared.q | self._gaussian(solved), known, PUBLIC, KEPT)

    @staticmethod
    def _shared(q: Natural, known: Arrays, public: Sequence[str], kept: Sequence[str]) -> Shared:
        return Shared(q, {name: known[name] for name in public}, {n: known[n] for n in kept})

    def _no_width(self, public: Public) -> np.ndarray:
        return self.likelihood.no_width(len(public.synthetic.z))

    @property
    def _score_sd(self) -> float:
        """Standard deviation of the noise in the weighted mean of the scores of all rounds.

        The weights are the inverse variances of the noise.
        """
        rounds = range(LEAST_ROUNDS, self.run.rounds + 1)
        return 1.0 / math.sqrt(sum(self.run.noise_sd(number) ** -2.0 for number in rounds))

    @property
    def count_noise_sd(self) -> float:
        """Standard deviation of the noise in each count of the sum over parties."""
        return math.sqrt(self.counted.columns) * self.run.noise_sd(COUNTS_ROUND)

    def marginals_of(self, q: Arrays) -> Marginals:
        """Return the marginal distributions of the columns, estimated from the released counts."""
        records = float(self.method.total_units)
        return marginals(self.layout, self.counted, q["counts"], self.count_noise_sd, records)

    def last_move(self, known: Arrays) -> float:
        """Return how far the last round moved the predictors η = x·θ, divided by the longest
        allowed move.

        Both distances are root mean squares over synthetic records.
        """
        public = self._public(known)
        move = public.to_z @ (known["point"] - known["points"][-1])
        far = self.likelihood.rms_change(public.synthetic.z, move)
        return far / self.likelihood.step(public.reach)

    def predictor_sd(self, known: Arrays, theta: np.ndarray) -> float:
        """Return the standard deviation of the predictor η = x·θ over synthetic records.

        The model must have a single predictor.
        """
        _, scale, drawn = self._synthetic(known)
        return float(np.std(drawn.z @ (theta / scale)))

    def least_known(self, known: Arrays) -> Direction | None:
        """Return the combination of columns whose variance is known least precisely."""
        return least_known(self.layout, self._synthetic(known)[2])

    def _mapped(self, q: Natural) -> Natural:
        found = self.marginals_of(q)
        scale = self._scale(found)
        point = self.prior.mean.copy()
        if self.bias is not None and found.outcome is not None:
            rows = point.reshape(self.likelihood.outputs, -1)
            rows[:, self.bias] += self._start(found) - rows @ np.where(
                self.scaled, found.centre, 1.0
            )
        return q | {"centre": found.centre, "scale": scale, "point": point}

    def _scale(self, found: Marginals) -> np.ndarray:
        widest = np.max(self._prior_sd(found).reshape(self.likelihood.outputs, -1), axis=0)
        return scales(found, widest, self._score_sd)

    def _prior_sd(self, found: Marginals) -> np.ndarray:
        """Return the prior sd of each coefficient of x. If scales are learned, their largest likely
        values are used.
        """
        if not self._autoscaled:
            return self.prior.sd
        sd = self._unit / np.where(self.scaled, self._column_scale(found), 0.1)
        return np.tile(sd, self.likelihood.outputs)

    def prior_of(self, known: Natural) -> Prior | LearntScalePrior:
        """Return the declared prior, or the prior with learned scales."""
        if not self.method.learns_scale(self.run.model):
            return self.prior
        outputs = self.likelihood.outputs
        if self._autoscaled:
            found = self.marginals_of(known)
            centre = np.where(self.scaled, found.centre, 0.0)
            scale = self._column_scale(found)
            transform = scale_transform(self.layout, scale, centre, outputs)
        else:
            transform = np.diag(self._unit / self.prior.sd)
        column = column_numbers(self.layout, outputs)
        return LearntScalePrior(self.prior.mean, transform, column, self._unit)

    def _column_scale(self, found: Marginals) -> np.ndarray:
        """Return the standard deviation of each numeric column, and 1 for levels and the
        constant.
        """
        number = np.array([feature.kind == "numeric" for feature in self.layout])
        return np.where(number, np.sqrt(found.variance), 1.0)

    def _bend(self, q: Natural) -> np.ndarray:
        found, _, drawn = self._synthetic(q)
        # Symmetric noise with sd s off the diagonal has eigenvalues up to about 2s√d.
        entry = self.run.noise_sd(MOMENT_ROUND) / math.sqrt(2.0) / found.records
        return flattened(drawn.z, self.scaled, 2.0 * entry * math.sqrt(len(self.layout)))

    def _start(self, found: Marginals) -> Any:
        return 0.0 if found.outcome is None else self.likelihood.link(found.outcome)

    def _scaled(self, q: Natural) -> Natural:
        """Return the known arrays `q`, extended by the public arrays "bend", "scale" and "reach" of
        the score requests.

        "bend" is the matrix that `flattened` returns. "scale" is divided by the norm bound of a
        score, so the bound becomes 1. "reach" is the bound on a record's residual.
        """
        q = q | {"bend": self._bend(q)}
        public = self._public(q)
        prior = public.to_x / self._prior_sd(self.marginals_of(q))[:, None]
        factor, reach = choose_scale(
            self.likelihood,
            public.synthetic.z,
            public.records,
            prior.T @ prior,
            self._score_sd,
            self._start(self.marginals_of(q)),
        )
        return q | {"scale": factor * q["scale"], "reach": np.array([reach])}

    def _synthetic(self, q: Natural) -> tuple[Marginals, np.ndarray, Synthetic]:
        """Return the estimated marginals, the vector `scale`, and synthetic rows z = scale∘(x −
        centre).

        The second moment of this z was released.
        """
        key = q["counts"].tobytes() + q["moment"].tobytes()
        if self._drawn is None or self._drawn[0] != key:
            found = self.marginals_of(q)
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
        """Return the natural parameters of q in the run's family.

        A mean-field q has the marginal variances of the full posterior, so its intervals are the
        same.
        """
        if isinstance(self.run.family, FullGaussian):
            precision = found.precision
            return {"linear": precision @ found.mean, "quadratic": -0.5 * precision}
        precision = 1.0 / np.diagonal(np.linalg.inv(found.precision))
        return {"linear": precision * found.mean, "quadratic": -0.5 * precision}
