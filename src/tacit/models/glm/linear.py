"""Bayesian linear regression with known noise (conjugate)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace, special
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.expfam.gaussian import LOG_2PI
from tacit.models.base import Model, ModelSchema, Output, Records
from tacit.models.capabilities import (
    ConjugateGaussian,
    DerivativeBounds,
    DispersionSums,
    quadratic_bounds,
)
from tacit.models.glm.base import ExplicitDerivatives
from tacit.models.glm.normal import NormalRegression, outcome_prior, public_unit
from tacit.models.glm.outcomes import NormalLaw
from tacit.models.predictive import Prediction, normal_predictive
from tacit.models.scores import ScoreLikelihood
from tacit.models.settings import LinearSettings
from tacit.models.simulate import gaussian_outcomes
from tacit.models.statistics import Working
from tacit.support.validation import check_sd


class LinearRegression(ExplicitDerivatives, ConjugateGaussian):
    """y ~ N(x·θ, noise_sd²), θ ~ N(prior_mean, prior_sd²) in each coordinate.

    `bounds` are the smallest and largest y, if public. The likelihood ignores them, but private
    methods may use them.

    Parameters
    ----------
    names
        Names of the columns of x, including the intercept.
    noise_sd
        Standard deviation of y given x.
    prior_mean
        Prior mean of the coefficients: one number, or one per coefficient.
    prior_sd
        Prior standard deviation of the coefficients: one number, or one per coefficient. By default
        it is learned if the method supports this (`tacit.models.learnt_scale`), and `unit`
        otherwise.
    layout
        Description of each column of x, as declared in the public schema. By default the columns
        have no declared bounds.
    bounds
        Smallest and largest y, if they are public.
    unit
        Prior standard deviation if `prior_sd` is not given and the method cannot learn it.
    """

    kind: ClassVar[str] = "linear"
    Settings = LinearSettings
    unchecked_kind: ClassVar[str] = "noise-sd-not-checked"
    serves: ClassVar[tuple[Output, ...]] = ("gaussian",)
    output: Output = "gaussian"

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        noise_sd: float = 1.0,
        prior_mean: Array | float = 0.0,
        prior_sd: Array | float | None = None,
        layout: Layout | None = None,
        bounds: tuple[float, float] | None = None,
        unit: float = 1.0,
    ) -> None:
        super().__init__(names, prior_mean, prior_sd, layout, unit)
        self.noise_sd = check_sd(noise_sd, "model.noise_sd")
        self.predictor_unit = self.noise_sd
        if bounds is not None and not -math.inf < bounds[0] < bounds[1] < math.inf:
            raise ConfigError(
                f"bounds of y = {bounds}; give two finite numbers, the smaller one first"
            )
        self.bounds = bounds

    @classmethod
    def build(cls, settings: LinearSettings, schema: ModelSchema) -> Model:
        prior = outcome_prior(settings, schema)
        if settings.noise_sd is None:
            center, scale = public_unit(schema)
            declared = settings.prior_sd is not None or settings.prior_mean != 0.0
            return NormalRegression(
                schema.names,
                center=center,
                scale=scale,
                prior_mean=prior.mean if declared else None,
                prior_sd=prior.sd,
                layout=prior.layout,
                bounds=schema.y_bounds,
            )
        return cls(
            schema.names,
            noise_sd=settings.noise_sd / (schema.y_scale or 1.0),
            prior_mean=prior.mean,
            prior_sd=prior.sd,
            layout=prior.layout,
            bounds=schema.y_bounds,
            unit=prior.unit,
        )

    def pointwise(self, eta: Array, y: Array) -> Array:
        residual = (y - eta) / self.noise_sd
        return -0.5 * residual * residual - math.log(self.noise_sd) - 0.5 * LOG_2PI

    def inverse_link(self, eta: Array) -> Array:
        return eta

    def expected_log_likelihood(self, mean: Array, variance: Array, y: Array) -> Array:
        return self.pointwise(mean, y) - 0.5 * variance / self.noise_sd**2

    def expected_derivatives(
        self, mean: Array, variance: Array, y: Array
    ) -> tuple[Array, Array, Array]:
        scale = 1.0 / self.noise_sd**2
        value = self.expected_log_likelihood(mean, variance, y)
        return value, scale * (y - mean), scale * namespace(mean).ones_like(mean)

    def working(self, family: Family, q: Natural, records: Records) -> Working:
        del family, q
        y, scale = records["y"], 1.0 / self.noise_sd**2
        return Working(records["x"], scale * y, scale * namespace(y).ones_like(y))

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        del draws, seed
        return normal_predictive(self, family, natural, records["x"], records["y"], self.noise_sd)

    def derivative_bounds(self) -> DerivativeBounds:
        bounds = self.bounds
        largest = math.inf if bounds is None else max(abs(bounds[0]), abs(bounds[1]))
        return quadratic_bounds(largest, self.noise_sd)

    def dispersion_sums(
        self, eta: np.ndarray, variance: np.ndarray, y: np.ndarray, weights: np.ndarray
    ) -> DispersionSums:
        """Return the sums of `DispersionSums` for the terms k = (y − η)²/σ² − 1, where σ is
        `noise_sd`.

        Under the model, k + 1 has a χ² distribution with one degree of freedom.
        """
        square = self.noise_sd**2
        count = np.sum(weights)
        excess = weights @ (((y - eta) ** 2 + variance) / square - 1.0)
        return DispersionSums(excess, 2.0 * count, 8.0 * count, count)

    def dispersion_words(self, ratio: float) -> str:
        sd, known = math.sqrt(ratio), "narrow" if ratio > 1 else "wide"
        return (
            f"the sd of residuals is {sd:.3g} times the declared noise_sd, so that intervals are "
            f"too {known}: leave noise_sd out, so that it is inferred"
        )

    def unchecked_dispersion(self, *, private: bool) -> str:
        del private
        return (
            "The declared noise_sd is not compared with the records, but the width of intervals "
            "depends on it; leave noise_sd out, so that it is inferred."
        )

    def score_likelihood(self) -> ScoreLikelihood:
        if self.bounds is None:
            return GaussianLikelihood(self.noise_sd)
        return GaussianLikelihood(self.noise_sd, *self.bounds)

    def outcome_law(self) -> NormalLaw:
        return NormalLaw(self.layout, self.pointwise, self.noise_sd)

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        return gaussian_outcomes(records["x"] @ theta, self.noise_sd, rng, bounds)

    def quadratic_form(self, records: Records, weights: Array) -> tuple[Array, Array]:
        x, scale = records["x"], 1.0 / self.noise_sd**2
        weighted = x * weights[:, None]
        return scale * (weighted.T @ x), scale * (weighted.T @ records["y"])


@dataclass(frozen=True)
class GaussianLikelihood(ScoreLikelihood):
    """Score ψ of y ~ N(η, noise_sd²), with the residual clipped to ±`reach` standard deviations.

    If y has the public bounds `smallest` and `largest`, |ψ| is also at most max(η − smallest,
    largest − η)/noise_sd².
    """

    noise_sd: float
    smallest: float = 0.0
    largest: float | None = None
    reaches = (1.5, 3.0, 10.0)

    def link(self, mean: float) -> float:
        return mean

    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        xp = namespace(y, eta, reach)
        if self.largest is not None:
            y = xp.clip(y, self.smallest, self.largest)
        return xp.clip((y - eta) / self.noise_sd, -reach, reach) / self.noise_sd

    def bound(self, eta: Array, reach: Array) -> Array:
        xp = namespace(eta, reach)
        most = xp.zeros_like(eta) + reach / self.noise_sd
        if self.largest is None:
            return most
        farthest = xp.maximum(eta - self.smallest, self.largest - eta)
        return xp.minimum(most, farthest / self.noise_sd**2)

    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        """Return the expected score at η if the mean of the outcome is `truth`.

        It is E[clip(X, −k, k)]/σ for X ~ N((truth − η)/σ, 1), where k is `reach` and σ is
        `noise_sd`.
        """
        shift = (truth - eta) / self.noise_sd
        above, below = reach - shift, -reach - shift
        inside = _normal_cdf(above) - _normal_cdf(below)
        clipped = reach * (1.0 - _normal_cdf(above)) - reach * _normal_cdf(below)
        value = shift * inside + _normal_density(below) - _normal_density(above) + clipped
        return value / self.noise_sd

    def slope(self, eta: Array, reach: Array) -> Array:
        return np.zeros_like(eta) + (2.0 * _normal_cdf(reach) - 1.0) / self.noise_sd**2

    def variance(self, eta: Array, reach: Array) -> Array:
        inside = 2.0 * _normal_cdf(reach) - 1.0 - 2.0 * reach * _normal_density(reach)
        outside = 2.0 * reach**2 * (1.0 - _normal_cdf(reach))
        return np.zeros_like(eta) + (inside + outside) / self.noise_sd**2

    def step(self, reach: float) -> float:
        return reach * self.noise_sd


def _normal_cdf(value: Array) -> Array:
    return special(value).ndtr(value)


def _normal_density(value: Array) -> Array:
    return namespace(value).exp(-0.5 * value * value) / math.sqrt(2.0 * math.pi)
