"""Bayesian Poisson regression of counts up to a declared bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace, special
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError
from tacit.models.base import ModelSchema, Output, Records
from tacit.models.capabilities import DataStart, DerivativeBounds, DispersionSums
from tacit.models.counts import PoissonVariance, poisson_sums
from tacit.models.glm.base import ExplicitDerivatives
from tacit.models.glm.counts import check_counts, checked_max_count, count_bounds
from tacit.models.glm.outcomes import PoissonLaw
from tacit.models.scores import ScoreLikelihood
from tacit.models.settings import PoissonSettings
from tacit.models.simulate import LOG_RATE_SD, at_most

LARGEST_EXPONENT = 30.0
"""Rates below exp(−30) are raised to exp(−30)."""
RATE_FACTOR = 100.0
"""The likelihood is Poisson for rates up to this multiple of the largest count."""


class PoissonRegression(PoissonVariance, ExplicitDerivatives):
    """y ~ Poisson(exp(x·θ)), θ ~ N(prior_mean, prior_sd²) in each coordinate.

    `max_count` is a public upper bound on the counts; it does not limit the rates. For rates above
    `largest_rate`, a multiple of `max_count`, log p(y | η) is replaced by its tangent at that rate.
    The log-likelihood is then still concave, its slope is bounded, and rates cannot overflow.

    Parameters
    ----------
    names
        Names of the columns of x, including the intercept.
    max_count
        Public upper bound on the counts.
    prior_mean
        Prior mean of the coefficients: one number, or one per coefficient.
    prior_sd
        Prior standard deviation of the coefficients: one number, or one per coefficient. By default
        it is learned if the method supports this (`tacit.models.learnt_scale`), and 1 otherwise.
    layout
        Description of each column of x, as declared in the public schema. By default the columns
        have no declared bounds.
    """

    kind: ClassVar[str] = "poisson"
    ratio: ClassVar[str | None] = "rate ratio"
    Settings = PoissonSettings
    serves: ClassVar[tuple[Output, ...]] = ("gaussian",)
    output: Output = "other"

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        max_count: float | None = None,
        prior_mean: Array | float = 0.0,
        prior_sd: Array | float | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(names, prior_mean, prior_sd, layout)
        self.max_count = checked_max_count(max_count, type(self).__name__)

    @property
    def largest_rate(self) -> float:
        """Largest rate at which the likelihood is Poisson. For larger rates, log p(y | η) is linear
        in η.
        """
        return RATE_FACTOR * self.max_count

    @classmethod
    def build(cls, settings: PoissonSettings, schema: ModelSchema) -> PoissonRegression:
        low, high = count_bounds(cls.kind, settings.max_count, schema)
        if not low >= 0:
            raise ConfigError(
                f"model 'poisson': the outcome is declared with low = {low:g}, but counts are not "
                "negative; declare low = 0, or choose model 'linear'"
            )
        return cls(
            schema.names,
            max_count=high,
            prior_mean=settings.prior_mean,
            prior_sd=settings.prior_sd,
            layout=schema.layout,
        )

    def pointwise(self, eta: Array, y: Array) -> Array:
        xp = namespace(eta, y)
        inside = xp.clip(eta, -LARGEST_EXPONENT, math.log(self.largest_rate))
        beyond = xp.maximum(eta - math.log(self.largest_rate), 0.0)
        rate = xp.exp(inside) + self.largest_rate * beyond
        return y * eta - rate - special(eta, y).gammaln(y + 1.0)

    def expected_derivatives(
        self, mean: Array, variance: Array, y: Array
    ) -> tuple[Array, Array, Array]:
        xp = namespace(mean, variance)
        nodes, weights = self.rule(variance)
        eta = mean + nodes[:, None].astype(mean.dtype) * xp.sqrt(variance)
        weights = weights.astype(mean.dtype)
        rate = xp.where(eta > -LARGEST_EXPONENT, self.inverse_link(eta), 0.0)
        curvature = xp.where(eta < math.log(self.largest_rate), rate, 0.0)
        return weights @ self.pointwise(eta, y), y - weights @ rate, weights @ curvature

    def data_predictor(self, y: Array) -> Array:
        return namespace(y).log(y + 0.1)

    def check_records(self, party: str, records: Records) -> None:
        check_counts(party, records["y"], self.max_count, self.kind)

    def derivative_bounds(self) -> DerivativeBounds:
        """Return bounds on the derivatives of ℓ(η) = log p(y | η): ℓ' = y − μ and −ℓ'' = μ for
        rates μ up to `largest_rate`.

        At the starting predictor η₀ = log(y + 0.1), the rate is μ = y + 0.1.
        """
        rate, largest = self.largest_rate, self.max_count
        predictor = max(math.log(10.0), math.log(largest + 0.1))
        slope = max(0.1, 0.01 * largest)
        least = 0.1 * math.exp(-0.01)
        return DerivativeBounds(
            slope=rate,
            curvature=rate,
            range_at_zero=1.0 + rate * max(1.0, math.log(max(rate, 1.0))),
            data_start=DataStart(predictor, slope, least, rate * predictor),
        )

    def dispersion_sums(
        self, eta: np.ndarray, variance: np.ndarray, y: np.ndarray, weights: np.ndarray
    ) -> DispersionSums:
        """Return `poisson_sums` at the mean of q, corrected for the uncertainty of θ.

        The term k of a record has the expectation 0 at the true θ. At an estimated θ, the
        expectation is about −μ² Var[η], where μ is the rate of the record. The correction adds
        μ² Var[η] to each term.
        """
        rate = self.inverse_link(eta)
        found = poisson_sums(rate, y, weights)
        return found._replace(excess=found.excess + (weights * rate * rate) @ variance)

    def score_likelihood(self) -> ScoreLikelihood:
        return PoissonLikelihood(self.max_count)

    def outcome_law(self) -> PoissonLaw:
        return PoissonLaw(self.layout, self.pointwise)

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        del bounds
        log_rate = at_most(records["x"] @ theta, LOG_RATE_SD)
        return rng.poisson(self.inverse_link(log_rate)).astype(np.float64)

    def draw_outcomes(
        self, theta: np.ndarray, means: np.ndarray, records: Records, seed: int
    ) -> np.ndarray:
        del theta, records
        rng = np.random.default_rng([seed, 1])
        return rng.poisson(means).astype(np.float64)

    def inverse_link(self, eta: Array) -> Array:
        xp = namespace(eta)
        return xp.exp(xp.clip(eta, -LARGEST_EXPONENT, math.log(self.largest_rate)))


@dataclass(frozen=True)
class PoissonLikelihood(ScoreLikelihood):
    """Score of a count y with log-rate η, with its bound and moments. Counts and rates above
    `largest` are replaced by `largest`.
    """

    largest: float  # pyright: ignore[reportGeneralTypeIssues]

    @property
    def least_bound(self) -> float:
        """The minimum of max(μ, Y − μ)/√μ over all rates μ, which is at μ = Y/2. Here Y is the
        largest count, max(μ, Y − μ) the bound on the score, and √μ the standard deviation of the
        score.
        """
        return math.sqrt(0.5 * self.largest)

    def link(self, mean: float) -> float:
        return math.log(mean)

    def _rate(self, eta: Array) -> Array:
        xp = namespace(eta)
        return xp.exp(xp.clip(eta, -30.0, math.log(self.largest)))

    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        return namespace(eta, y).clip(y, 0.0, self.largest) - self._rate(eta)

    def bound(self, eta: Array, reach: Array) -> Array:
        rate = self._rate(eta)
        return namespace(eta).maximum(rate, self.largest - rate)

    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        return self._rate(truth) - self._rate(eta)

    def slope(self, eta: Array, reach: Array) -> Array:
        return self._rate(eta)

    def variance(self, eta: Array, reach: Array) -> Array:
        return self._rate(eta)
