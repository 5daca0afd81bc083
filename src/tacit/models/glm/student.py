"""Bayesian linear regression with Student-t noise of known scale and degrees of freedom.

The outcome is y = η + σe, where e has a Student-t distribution with ν degrees of freedom. Given a
latent weight λ ~ Gamma(ν/2, rate ν/2), it is normal: y ~ N(η, σ²/λ) (West 1987). Given q(η), the
best q(λ) is a gamma distribution with the mean

    E[λ] = (ν + 1)/(ν + E[(y − η)²]/σ²),

which is small for an outlier. The quadratic s·η − ½ω·η² with s = E[λ]y/σ² and ω = E[λ]/σ² then
replaces the log-likelihood. This quadratic is the log-likelihood of a linear regression with the
weights E[λ].
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError
from tacit.expfam import Family, Gaussian, Natural
from tacit.expfam.gaussian import Free
from tacit.models.base import ModelSchema, Output, Records
from tacit.models.capabilities import DispersionSums
from tacit.models.glm.base import TINY_VARIANCE, ExplicitDerivatives
from tacit.models.glm.counts import squared_reach, unchecked
from tacit.models.glm.normal import outcome_prior
from tacit.models.glm.outcomes import StudentLaw
from tacit.models.settings import StudentSettings
from tacit.models.simulate import gaussian_outcomes
from tacit.models.statistics import Working
from tacit.support.validation import check_sd

LEAST_DF = 2.0
"""With more degrees of freedom than this, the variance exists."""


class StudentRegression(ExplicitDerivatives):
    """y = x·θ + scale·e, where e has a Student-t distribution; for data with outliers.

    θ ~ N(prior_mean, prior_sd²) in each coordinate. `scale` and `df` are known and public; if they
    are not known, use a NumPyro model with StudentT.

    Parameters
    ----------
    names
        Names of the columns of x, including the intercept.
    df
        Degrees of freedom ν of e, more than 2; 4 is a common choice.
    scale
        Scale σ of the noise; its standard deviation is σ·√(ν/(ν − 2)).
    prior_mean
        Prior mean of the coefficients: one number, or one per coefficient.
    prior_sd
        Prior standard deviation of the coefficients: one number, or one per coefficient. By default
        it is learned if the method supports this (`tacit.models.learnt_scale`), and `unit`
        otherwise.
    layout
        Description of each column of x, as declared in the public schema. By default the columns
        have no declared bounds.
    unit
        Prior standard deviation if `prior_sd` is not given and the method cannot learn it.
    """

    kind: ClassVar[str] = "student"
    Settings = StudentSettings
    serves: ClassVar[tuple[Output, ...]] = ("gaussian",)
    output: Output = "other"
    identity_link: ClassVar[bool | None] = True
    augmented: ClassVar[bool] = True
    unchecked_kind: ClassVar[str] = "noise-sd-not-checked"
    quadrature_nodes: int = 32

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        df: float = 4.0,
        scale: float = 1.0,
        prior_mean: Array | float = 0.0,
        prior_sd: Array | float | None = None,
        layout: Layout | None = None,
        unit: float = 1.0,
    ) -> None:
        super().__init__(names, prior_mean, prior_sd, layout, unit)
        if not LEAST_DF < df < math.inf:
            raise ConfigError(
                f"model.df = {df}; it must be finite and more than 2, so that the outcome has a "
                "variance"
            )
        self.df, self.scale = float(df), check_sd(scale, "model.scale")
        self.predictor_unit = self.scale

    @classmethod
    def build(cls, settings: StudentSettings, schema: ModelSchema) -> StudentRegression:
        prior = outcome_prior(settings, schema)
        return cls(
            schema.names,
            df=settings.df,
            scale=settings.scale / (schema.y_scale or 1.0),
            prior_mean=prior.mean,
            prior_sd=prior.sd,
            layout=prior.layout,
            unit=prior.unit,
        )

    def pointwise(self, eta: Array, y: Array) -> Array:
        nu, square = self.df, namespace(eta, y).square((y - eta) / self.scale)
        fixed = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu)
        fixed -= 0.5 * math.log(nu * math.pi) + math.log(self.scale)
        return fixed - 0.5 * (nu + 1.0) * namespace(eta, y).log1p(square / nu)

    def inverse_link(self, eta: Array) -> Array:
        return eta

    def expected_derivatives(
        self, mean: Array, variance: Array, y: Array
    ) -> tuple[Array, Array, Array]:
        """Return E[ℓ], E[ℓ'] and −E[ℓ''] for ℓ(η) = log p(y | η) and η ~ N(mean, variance).

        Let ν be `df`, σ be `scale`, z = (y − η)/σ and w = (ν + 1)/(ν + z²). Then ℓ' = w·z/σ and
        −ℓ'' = w(ν − z²)/((ν + z²)σ²).
        """
        xp = namespace(mean, variance)
        nodes, weights = self.rule(variance)
        eta = mean + nodes[:, None].astype(mean.dtype) * xp.sqrt(variance)
        weights, nu = weights.astype(mean.dtype), self.df
        z = (y - eta) / self.scale
        total = nu + z * z
        slope = (nu + 1.0) * z / (total * self.scale)
        curvature = (nu + 1.0) * (nu - z * z) / (total * total * self.scale**2)
        return weights @ self.pointwise(eta, y), weights @ slope, weights @ curvature

    def expected_information(self, family: Gaussian, free: Free, records: Records) -> Array:
        """Return, for each record, the mean of −E_q[∂² log p(record | θ)/∂θ_j²] over all
        coordinates j. It is negative for outliers, where the log-likelihood is convex.
        """
        x = records["x"]
        mean, variance = family.free_project(free, x)
        _, _, curvature = self.expected_derivatives(mean, variance + TINY_VARIANCE, records["y"])
        return curvature * namespace(x).sum(x * x, axis=-1) / x.shape[-1]

    def data_predictor(self, y: Array) -> Array:
        return y

    def working(self, family: Family, q: Natural, records: Records) -> Working:
        """Return two numbers s and ω per record, so that s·η − ½ω·η² replaces log p(y | η), as
        derived in the module docstring.
        """
        assert isinstance(family, Gaussian)
        x, y = records["x"], records["y"]
        mean, variance = family.free_project(family.free(q), x.astype(np.float64))
        square = (namespace(mean).square(y - mean) + variance) / self.scale**2
        weight = (self.df + 1.0) / ((self.df + square) * self.scale**2)
        return Working(x, weight * y, weight)

    @property
    def statistics_unit(self) -> float:
        """Return a typical norm of a record's statistics (s·x, ω·xxᵀ), with s and ω of the module
        docstring.

        It is the norm for a latent weight λ with E[λ] = 1, for y = `scale` and for the typical ‖x‖²
        that `squared_reach` returns.
        """
        square = squared_reach(self.layout)
        return math.sqrt(square * (1.0 + square / self.scale**2)) / self.scale

    def dispersion_sums(
        self, eta: np.ndarray, variance: np.ndarray, y: np.ndarray, weights: np.ndarray
    ) -> DispersionSums:
        """Return the sums of `DispersionSums` for the terms k = (ν + 1)u − 1, the scores of log σ.

        Here ν is `df`, σ is `scale` and u = z²/(ν + z²) with z = (y − η)/σ.
        """
        # Under the model u ~ Beta(½, ν/2), so that E[k²] = 2ν/(ν + 3) and E[k³] = 8ν(ν − 1)/((ν +
        # 3)(ν + 5)). Estimating θ changes the mean of k by −(ν + 1)(ν + 2)/((ν + 3)(ν +
        # 5))·Var[η]/σ². If the noise variance is c times the declared one, and c is near 1, the
        # mean of k is ν/(ν + 3)·(c − 1).
        nu, count = self.df, np.sum(weights)
        square = ((y - eta) / self.scale) ** 2
        excess = weights @ ((nu + 1.0) * square / (nu + square) - 1.0)
        share = (nu + 1.0) * (nu + 2.0) / ((nu + 3.0) * (nu + 5.0))
        excess = excess + share * (weights @ variance) / self.scale**2
        third = 8.0 * nu * (nu - 1.0) / ((nu + 3.0) * (nu + 5.0)) * count
        weight = nu / (nu + 3.0) * count
        return DispersionSums(excess, 2.0 * weight, third, weight)

    def dispersion_words(self, ratio: float) -> str:
        known = "narrow" if ratio > 1 else "wide"
        return (
            f"residuals vary about {max(ratio, 0.0):.3g} times as much as the declared scale and "
            f"df say, so that intervals are too {known}: declare a "
            f"{'larger' if ratio > 1 else 'smaller'} scale, or use a NumPyro model with StudentT, "
            "which infers it"
        )

    def unchecked_dispersion(self, *, private: bool) -> str:
        return unchecked("scale", "StudentT", private=private)

    def outcome_law(self) -> StudentLaw:
        return StudentLaw(self.layout, self.pointwise, self.df, self.scale)

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        means = gaussian_outcomes(records["x"] @ theta, 0.0, rng, bounds)
        return means + self.scale * rng.standard_t(self.df, len(means))

    def draw_outcomes(
        self, theta: np.ndarray, means: np.ndarray, records: Records, seed: int
    ) -> np.ndarray:
        del theta, records
        rng = np.random.default_rng([seed, 1])
        return means + self.scale * rng.standard_t(self.df, means.shape)
