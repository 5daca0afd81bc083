"""Bayesian logistic regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace, softplus
from tacit.data.schema.layout import Layout
from tacit.expfam import Family, Gaussian, Natural
from tacit.models.base import Output, Records
from tacit.models.capabilities import DataStart, DerivativeBounds
from tacit.models.glm.base import ExplicitDerivatives
from tacit.models.glm.counts import squared_reach
from tacit.models.glm.outcomes import BernoulliLaw
from tacit.models.polya_gamma import expected_weight
from tacit.models.scores import ScoreLikelihood
from tacit.models.settings import LogisticSettings
from tacit.models.simulate import bernoulli_outcomes
from tacit.models.statistics import Working


class LogisticRegression(ExplicitDerivatives):
    """y ~ Bernoulli(sigmoid(x·θ)), θ ~ N(prior_mean, prior_sd²) in each coordinate.

    Parameters
    ----------
    names
        Names of the columns of x, including the intercept.
    prior_mean
        Prior mean of the coefficients: one number, or one per coefficient.
    prior_sd
        Prior standard deviation of the coefficients: one number, or one per coefficient. By default
        it is learned if the method supports this (`tacit.models.learnt_scale`), and 1 otherwise.
    layout
        Description of each column of x, as declared in the public schema. By default the columns
        have no declared bounds.
    """

    kind: ClassVar[str] = "logistic"
    ratio: ClassVar[str | None] = "odds ratio"
    Settings = LogisticSettings
    serves: ClassVar[tuple[Output, ...]] = ("bernoulli",)
    output: Output = "bernoulli"
    augmented: ClassVar[bool] = True

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        prior_mean: Array | float = 0.0,
        prior_sd: Array | float | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(names, prior_mean, prior_sd, layout)

    def pointwise(self, eta: Array, y: Array) -> Array:
        return bernoulli_log_likelihood(eta, y)

    def data_predictor(self, y: Array) -> Array:
        """Return the logit of ¾ for y = 1 and of ¼ for y = 0."""
        return math.log(3.0) * (2.0 * y - 1.0)

    def largest_slope(self, mean: Array, variance: Array) -> Array:
        """Return max(π, 1 − π) with π = E[sigmoid(η)], the largest |E[ℓ'(η)]| over both labels.

        ℓ(η) is log p(y | η). E[ℓ'] is 1 − π for y = 1, and −π for y = 0.
        """
        xp = namespace(mean, variance)
        _, slope, _ = self.expected_derivatives(mean, variance, xp.ones_like(mean))
        return xp.maximum(slope, 1.0 - slope)

    def largest_curvature(self, mean: Array, variance: Array) -> None:
        """Return None, because the curvature of the log-likelihood is the same for both labels."""
        del mean, variance

    def expected_derivatives(
        self, mean: Array, variance: Array, y: Array
    ) -> tuple[Array, Array, Array]:
        """Return E[ℓ], E[ℓ'] and −E[ℓ''] for ℓ(η) = log p(y | η) and η ~ N(mean, variance).

        With π = sigmoid(η), ℓ' = y − π and −ℓ'' = π(1 − π). Both π and π(1 − π) have a small
        relative error even if they are small.
        """
        xp = namespace(mean, variance)
        nodes, weights = self.rule(variance)
        eta = mean + nodes[:, None].astype(mean.dtype) * xp.sqrt(variance)
        weights = weights.astype(mean.dtype)
        small = xp.exp(-xp.abs(eta))
        larger = 1.0 / (1.0 + small)
        probability = xp.where(eta > 0, larger, small * larger)
        curvature = weights @ (small * xp.square(larger))
        return weights @ self.pointwise(eta, y), y - weights @ probability, curvature

    @property
    def statistics_unit(self) -> float:
        """Return a typical norm of a record's statistics (s·x, ω·xxᵀ), where `working` computes s
        and ω.

        It is the norm for |s| = ½, for ω = ⅛, which is half of the largest ω, and for the typical
        ‖x‖² that `squared_reach` returns.
        """
        square = squared_reach(self.layout)
        return math.sqrt(0.25 * square * (1.0 + square / 16.0))

    def working(self, family: Family, q: Natural, records: Records) -> Working:
        """Return two numbers s and ω per record, so that s·η − ½ω·η² replaces log p(y | η), by
        Pólya–Gamma augmentation.

        With a latent variable ω ~ PG(1, 0), p(y, ω | η) ∝ exp((y − ½)η − ½ωη²), so that s = y − ½.
        Given q(θ), the best q(ω) is PG(1, c) with c² = E_q[η²]. Its mean tanh(c/2)/(2c) is returned
        as ω (Polson, Scott and Windle 2013; VIPS, full paper). The resulting lower bound on E_q[log
        p(y | η)] is that of Jaakkola and Jordan.
        """
        import jax.numpy as jnp

        assert isinstance(family, Gaussian)
        x, y = records["x"], records["y"]
        mean, variance = family.free_project(family.free(q), x.astype(np.float64))
        c = jnp.sqrt(jnp.square(mean) + variance)
        return Working(x, y - 0.5, expected_weight(c))

    def inverse_link(self, eta: Array) -> Array:
        return 0.5 * (1.0 + namespace(eta).tanh(0.5 * eta))

    def derivative_bounds(self) -> DerivativeBounds:
        """Return bounds on the derivatives of ℓ(η) = log p(y | η).

        With π = sigmoid(η), ℓ' = y − π and −ℓ'' = π(1 − π). At the predictors ±log 3 of
        `data_predictor`, π is ¼ or ¾.
        """
        predictor = math.log(3.0)
        return DerivativeBounds(
            slope=1.0,
            curvature=0.25,
            range_at_zero=math.log(2.0),
            data_start=DataStart(predictor, 0.25, 3.0 / 16.0, 0.25 * predictor),
            nonnegative_loss=True,
            loss_at_zero=math.log(2.0),
        )

    def score_likelihood(self) -> ScoreLikelihood:
        return BernoulliLikelihood()

    def outcome_law(self) -> BernoulliLaw:
        return BernoulliLaw(self.layout, self.pointwise)

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        del bounds
        return bernoulli_outcomes(records["x"] @ theta, rng)


@dataclass(frozen=True)
class BernoulliLikelihood(ScoreLikelihood):
    """Score of an outcome y ∈ {0, 1} with log-odds η, with its bound and moments."""

    largest = 1.0

    def link(self, mean: float) -> float:
        return math.log(mean / (1.0 - mean))

    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        return y - _sigmoid(eta)

    def bound(self, eta: Array, reach: Array) -> Array:
        return _sigmoid(namespace(eta).abs(eta))

    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        return _sigmoid(truth) - _sigmoid(eta)

    def slope(self, eta: Array, reach: Array) -> Array:
        p = _sigmoid(eta)
        return p * (1.0 - p)

    def variance(self, eta: Array, reach: Array) -> Array:
        return self.slope(eta, reach)


def bernoulli_log_likelihood(logit: Array, y: Array) -> Array:
    """Return log p(y | logit) = y·logit − log(1 + e^logit) without overflow."""
    return y * logit - softplus(logit)


def _sigmoid(eta: Array) -> Array:
    return 0.5 * (1.0 + namespace(eta).tanh(0.5 * eta))
