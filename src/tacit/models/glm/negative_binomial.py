"""Bayesian negative binomial regression with known dispersion r.

A count y has the mean μ = e^η and the variance μ + μ²/r. With ψ = η − log r, its likelihood is

    p(y | η) ∝ e^{yψ}/(1 + e^ψ)^{y + r},

which is a logistic likelihood with y + r trials. Pólya–Gamma augmentation therefore applies as in
logistic regression (Polson, Scott and Windle 2013). With a latent ω ~ PG(y + r, 0), the joint
likelihood of y and ω is proportional to exp(½(y − r)ψ − ½ωψ²). Given q, the best q(ω) is PG(y + r,
c) with c² = E[ψ²], whose mean is

    E[ω] = (y + r)·tanh(c/2)/(2c).

In terms of η, the exponent is the quadratic s·η − ½E[ω]η² with s = ½(y − r) + E[ω]·log r, plus a
constant. A party therefore releases the same kind of sums as for other conjugate models.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace, softplus, special
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError
from tacit.expfam import Family, Gaussian, Natural
from tacit.models.base import ModelSchema, Output, Records
from tacit.models.capabilities import DataStart, DerivativeBounds, DispersionSums
from tacit.models.glm.base import ExplicitDerivatives
from tacit.models.glm.counts import (
    check_counts,
    checked_max_count,
    count_bounds,
    squared_reach,
    unchecked,
)
from tacit.models.glm.outcomes import NegativeBinomialLaw
from tacit.models.polya_gamma import expected_weight
from tacit.models.settings import NegativeBinomialSettings
from tacit.models.simulate import LOG_RATE_SD, at_most
from tacit.models.statistics import Working
from tacit.support.validation import check_sd

LARGEST_EXPONENT = 30.0
"""E[y | η] is computed with η between −30 and 30."""


class NegativeBinomialRegression(ExplicitDerivatives):
    """y ~ NegativeBinomial with mean exp(x·θ) and variance mean + mean²/dispersion.

    θ ~ N(prior_mean, prior_sd²) in each coordinate. `dispersion` is known and public; if it is not
    known, use a NumPyro model with NegativeBinomial2.

    Parameters
    ----------
    names
        Names of the columns of x, including the intercept.
    dispersion
        The number r in the variance μ + μ²/r of a count with mean μ. If r is large, the
        distribution is nearly Poisson.
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

    kind: ClassVar[str] = "negative-binomial"
    ratio: ClassVar[str | None] = "rate ratio"
    Settings = NegativeBinomialSettings
    serves: ClassVar[tuple[Output, ...]] = ("gaussian",)
    output: Output = "other"
    augmented: ClassVar[bool] = True
    unchecked_kind: ClassVar[str] = "dispersion-not-checked"

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        dispersion: float,
        max_count: float | None = None,
        prior_mean: Array | float = 0.0,
        prior_sd: Array | float | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(names, prior_mean, prior_sd, layout)
        self.dispersion = check_sd(dispersion, "model.dispersion")
        self.max_count = checked_max_count(max_count, type(self).__name__)

    @classmethod
    def build(
        cls, settings: NegativeBinomialSettings, schema: ModelSchema
    ) -> NegativeBinomialRegression:
        low, high = count_bounds(cls.kind, settings.max_count, schema)
        if not low >= 0:
            raise ConfigError(
                f"model {cls.kind!r}: the outcome is declared with low = {low:g}, but counts are "
                "not negative; declare low = 0, or choose model 'linear'"
            )
        return cls(
            schema.names,
            dispersion=settings.dispersion,
            max_count=high,
            prior_mean=settings.prior_mean,
            prior_sd=settings.prior_sd,
            layout=schema.layout,
        )

    def pointwise(self, eta: Array, y: Array) -> Array:
        r, sp = self.dispersion, special(eta, y)
        psi = eta - math.log(r)
        fixed = sp.gammaln(y + r) - sp.gammaln(r + 0.0 * y) - sp.gammaln(y + 1.0)
        return fixed + y * psi - (y + r) * softplus(psi)

    def inverse_link(self, eta: Array) -> Array:
        xp = namespace(eta)
        return xp.exp(xp.clip(eta, -LARGEST_EXPONENT, LARGEST_EXPONENT))

    def expected_derivatives(
        self, mean: Array, variance: Array, y: Array
    ) -> tuple[Array, Array, Array]:
        """Return E[ℓ], E[ℓ'] and −E[ℓ''] for ℓ(η) = log p(y | η) and η ~ N(mean, variance).

        With the dispersion r and π = sigmoid(η − log r), ℓ' = y − (y + r)π and −ℓ'' = (y + r)π(1 −
        π).
        """
        xp = namespace(mean, variance)
        nodes, weights = self.rule(variance)
        eta = mean + nodes[:, None].astype(mean.dtype) * xp.sqrt(variance)
        weights = weights.astype(mean.dtype)
        psi = eta - math.log(self.dispersion)
        small = xp.exp(-xp.abs(psi))
        larger = 1.0 / (1.0 + small)
        share = weights @ xp.where(psi > 0, larger, small * larger)
        trials = y + self.dispersion
        curvature = trials * (weights @ (small * xp.square(larger)))
        return weights @ self.pointwise(eta, y), y - trials * share, curvature

    def data_predictor(self, y: Array) -> Array:
        """Return log(y + 0.1), the predictor at which `data_site` computes the site."""
        return namespace(y).log(y + 0.1)

    def check_records(self, party: str, records: Records) -> None:
        check_counts(party, records["y"], self.max_count, self.kind)

    def working(self, family: Family, q: Natural, records: Records) -> Working:
        """Return two numbers for each record: s and ω. The quadratic s·η − ½ω·η² replaces
        log p(y | η), as derived in the module docstring, where ω is called E[ω].
        """
        import jax.numpy as jnp

        assert isinstance(family, Gaussian)
        x, y, r = records["x"], records["y"], self.dispersion
        mean, variance = family.free_project(family.free(q), x.astype(np.float64))
        c = jnp.sqrt(jnp.square(mean - math.log(r)) + variance)
        weight = (y + r) * expected_weight(c)
        return Working(x, 0.5 * (y - r) + weight * math.log(r), weight)

    @property
    def statistics_unit(self) -> float:
        """Return a typical norm of a record's statistics (s·x, ω·xxᵀ), with s and ω of the module
        docstring.

        It is the norm for s = max(Y, r)/4 and ω = (Y + r)/8, where Y is `max_count` and r is the
        dispersion. These values are half of the upper bounds max(Y, r)/2 on |y − r|/2 and (Y + r)/4
        on ω.
        """
        square, most = squared_reach(self.layout), self.max_count + self.dispersion
        slope, weight = 0.25 * max(self.max_count, self.dispersion), most / 8.0
        return math.sqrt(square * (slope**2 + square * weight**2))

    def derivative_bounds(self) -> DerivativeBounds:
        """Return bounds on ℓ(η) = log p(y | η) and its derivatives.

        ℓ' is between −r and y, where r is the dispersion. −ℓ'' is at most (y + r)/4, and ℓ is at
        most 0.
        """
        r, most = self.dispersion, self.max_count
        predictor = max(math.log(10.0), math.log(most + 0.1))
        share = [(y + 0.1) / (y + 0.1 + r) for y in (0.0, most)]
        least = min((y + r) * p * (1.0 - p) for y, p in zip((0.0, most), share, strict=True))
        slope = max(abs(y - (y + r) * p) for y, p in zip((0.0, most), share, strict=True))
        return DerivativeBounds(
            slope=max(r, most),
            curvature=0.25 * (most + r),
            range_at_zero=most * math.log1p(r) + r * math.log1p(1.0 / r),
            data_start=DataStart(predictor, slope, least, 0.25 * (most + r) * predictor),
            nonnegative_loss=True,
        )

    def dispersion_sums(
        self, eta: np.ndarray, variance: np.ndarray, y: np.ndarray, weights: np.ndarray
    ) -> DispersionSums:
        """Return the sums of `DispersionSums` for the terms k = (y − μ)² − y − (2y − μ)μ/r.

        Here μ = e^η is the mean of the count, and r is the dispersion.
        """
        # k is the orthogonal polynomial of degree 2 in y. E[k] = 0 and E[∂k/∂μ] = 0, so that
        # estimating θ changes only the mean of k, by −(1 + 1/r)μ² Var[η]. With V the variance of y
        # and a = 1 + 2μ/r, E[k²] = 2V²(1 + 1/r) and E[k³] = (1 + 1/r)(8V³(1 + 2/r) + 4V²a²).
        mean, r = self.inverse_link(eta), self.dispersion
        spread, slope, more = mean + mean * mean / r, 1.0 + 2.0 * mean / r, 1.0 + 1.0 / r
        excess = weights @ ((y - mean) ** 2 - y - (2.0 * y - mean) * mean / r)
        excess = excess + more * (weights * mean * mean) @ variance
        square = weights * spread * spread
        third = more * np.sum(square * (8.0 * spread * (1.0 + 2.0 / r) + 4.0 * slope**2))
        return DispersionSums(excess, 2.0 * more * np.sum(square), third, weights @ spread)

    def dispersion_words(self, ratio: float) -> str:
        known = "narrow" if ratio > 1 else "wide"
        return (
            f"counts vary {ratio:.3g} times as much as the declared dispersion says, so that "
            f"intervals are too {known}: declare a {'smaller' if ratio > 1 else 'larger'} "
            "dispersion, or use a NumPyro model with NegativeBinomial2, which infers it"
        )

    def unchecked_dispersion(self, *, private: bool) -> str:
        return unchecked("dispersion", "NegativeBinomial2", private=private)

    def outcome_law(self) -> NegativeBinomialLaw:
        return NegativeBinomialLaw(self.layout, self.pointwise, self.dispersion)

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        del bounds
        means = self.inverse_link(at_most(records["x"] @ theta, LOG_RATE_SD))
        return np.minimum(self._drawn(means, rng), self.max_count)

    def draw_outcomes(
        self, theta: np.ndarray, means: np.ndarray, records: Records, seed: int
    ) -> np.ndarray:
        del theta, records
        return self._drawn(means, np.random.default_rng([seed, 1]))

    def _drawn(self, means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        r = self.dispersion
        return rng.poisson(means * rng.gamma(r, 1.0 / r, means.shape)).astype(np.float64)
