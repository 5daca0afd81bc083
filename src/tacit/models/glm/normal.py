"""Bayesian linear regression with unknown noise: log σ is an additional parameter.

θ = (β, s) with y ~ N(x·β, e^{2s}). For a Gaussian q all expectations have closed forms: with η =
x·β of mean m and variance v, s of mean μ and variance w, and c their covariance, e^{−2s} shifts η
by −2c,

    E[e^{−2s} (y − η)²] = k (r² + v),    E[e^{−2s} (y − η)] = k r,    E[e^{−2s}] = k,
    k = exp(−2μ + 2w),    r = y − m + 2c.

β does not depend on the units of the columns. The unit u of the outcome must be public: the
half-width of its bounds, or its scale. It sets the prior of the noise, log N(u/2, 1.5²), and, if no
`prior_sd` is declared, the prior of the coefficients (`tacit.models.learnt_scale`).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tacit.arrays import Array, namespace
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.expfam.gaussian import LOG_2PI
from tacit.expfam.quadrature import hermite
from tacit.models.base import (
    GaussianPriorModel,
    ModelSchema,
    Output,
    Records,
    checked_layout,
    checked_names,
)
from tacit.models.capabilities import WhitenedDerivatives
from tacit.models.outcomes import OutcomeLaw
from tacit.models.predictive import Mixture, Prediction, project
from tacit.models.settings import LinearSettings, RegressionSettings
from tacit.models.simulate import gaussian_outcomes
from tacit.support.argument_names import column_key

LOG_NOISE = "log noise_sd"
NOISE_SHARE, NOISE_SPREAD = 0.5, 1.5
"""Prior median of the noise sd relative to the outcome's scale, and prior sd of its logarithm."""
NODES = 21
"""Number of values of s = log σ in the mixture of normals that is the predictive distribution."""


class NormalRegression(GaussianPriorModel):
    """y ~ N(x·β, σ²) with unknown σ; θ is β and log σ.

    Parameters
    ----------
    columns
        Names of the columns of x, including the intercept.
    center, scale
        Public location and unit u of y, e.g. the middle and half-width of its bounds.
    prior_mean
        Prior mean of the coefficients; by default `center` for the intercept and 0 for others.
    prior_sd
        Prior standard deviation of the coefficients. By default learned if the method supports it
        (`tacit.models.learnt_scale`), and `scale` otherwise.
    layout
        Description of each column of x by the public schema; by default nothing is declared.
    bounds
        Smallest and largest y, if they are public.
    """

    kind: ClassVar[str] = "linear-unknown-noise"
    Settings = LinearSettings
    serves: ClassVar[tuple[Output, ...]] = ("gaussian",)
    output: Output = "gaussian"
    levels: tuple[str, ...] = ()
    ratio: ClassVar[str | None] = None

    def __init__(
        self,
        columns: tuple[str, ...],
        *,
        center: float = 0.0,
        scale: float = 1.0,
        prior_mean: Array | float | None = None,
        prior_sd: Array | float | None = None,
        layout: Layout | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> None:
        self.columns = checked_names(columns)
        if LOG_NOISE in self.columns:
            raise ConfigError(f"column name {LOG_NOISE!r} is reserved for the noise; rename it")
        self.layout = checked_layout(self.columns, layout)
        if not (math.isfinite(center) and 0 < scale < math.inf):
            raise ConfigError(f"center = {center}, scale = {scale}; both must be finite, scale > 0")
        self.center, self.scale, self.bounds = float(center), float(scale), bounds
        constant = np.array([feature.kind == "intercept" for feature in self.layout])
        mean = np.where(constant, center, 0.0) if prior_mean is None else prior_mean
        sd = scale if prior_sd is None else prior_sd
        super().__init__(
            (*self.columns, LOG_NOISE),
            self._with_noise(mean, math.log(NOISE_SHARE * scale), "prior_mean"),
            self._with_noise(sd, NOISE_SPREAD, "prior_sd"),
        )
        self.undeclared = tuple(
            name
            for name, value in (("prior_mean", prior_mean), ("prior_sd", prior_sd))
            if value is None
        )

    def _with_noise(self, value: Array | float, noise: float, name: str) -> np.ndarray:
        """Return one number per coefficient, followed by the number for the noise; values of a
        stored model already contain the latter.
        """
        width, given = len(self.columns), np.asarray(value, np.float64)
        if given.shape == (width + 1,):
            given = given[:-1]
        if given.shape not in ((), (width,)):
            raise ConfigError(f"{name} = {value!r}; give one number, or an array of {width}")
        return np.append(np.broadcast_to(given, width), noise)

    @property
    def scale_unit(self) -> float | None:
        """Unit u of the predictor if the scale of the prior is learned; None if the prior is
        declared.
        """
        return self.scale if "prior_sd" in self.undeclared else None

    @property
    def x_columns(self) -> int | None:
        return len(self.columns)

    @property
    def scale_coordinates(self) -> tuple[int, ...]:
        return (len(self.columns),)

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        xp = namespace(theta, records["x"])
        residual = (records["y"] - records["x"] @ theta[:-1]) * xp.exp(-theta[-1])
        return -0.5 * residual * residual - theta[-1] - 0.5 * LOG_2PI

    def response(self, theta: Array, records: Records) -> Array:
        return records["x"] @ theta[:-1]

    def responses(self, thetas: np.ndarray, records: Records) -> np.ndarray:
        """See `tacit.models.capabilities.NumPyResponses`."""
        return thetas[:, :-1] @ np.asarray(records["x"], np.float64).T

    def log_likelihoods(self, thetas: Array, records: Records, weights: Array) -> Array:
        """See `tacit.models.capabilities.InNumPy`."""
        xp = namespace(thetas, records["x"])
        noise = thetas[:, -1]
        residual = records["y"][:, None] - records["x"] @ thetas[:, :-1].T
        residual = residual * xp.exp(-noise)
        return weights @ (-0.5 * residual * residual - noise - 0.5 * LOG_2PI)

    def whitened_derivatives(
        self, mean: Array, root: Array, spread: Array, records: Records, weights: Array
    ) -> WhitenedDerivatives:
        """See `tacit.models.capabilities.WhitenedExpectations`, and the module docstring."""
        x, y = records["x"], records["y"]
        xp = namespace(mean, x)
        reach = x @ root[:-1].astype(x.dtype)
        bend = root[-1].astype(x.dtype)
        square = xp.square(spread)
        variance = square * xp.sum(xp.square(reach), axis=1)
        scaled = xp.exp(-2.0 * mean[-1] + 2.0 * square * xp.sum(xp.square(root[-1])))
        shifted = y - x @ mean[:-1].astype(x.dtype) + 2.0 * square * (reach @ bend)
        slope = weights * scaled * shifted
        fit = weights * scaled * (xp.square(shifted) + variance)
        value = -xp.sum(weights) * (mean[-1] + 0.5 * LOG_2PI) - 0.5 * xp.sum(fit)
        gradient = reach.T @ slope + bend * (xp.sum(fit) - xp.sum(weights))
        cross = (reach.T @ slope)[:, None] * bend
        hessian = -(reach.T * (weights * scaled)) @ reach
        hessian = hessian - 2.0 * (cross + cross.T) - 2.0 * xp.sum(fit) * bend[:, None] * bend
        return WhitenedDerivatives(
            value.astype(np.float64), gradient.astype(np.float64), hessian.astype(np.float64)
        )

    def mixture(self, family: Family, natural: Natural, x: Array) -> Mixture:
        """See `tacit.models.capabilities.MixturePredictive`; one normal for each value of s."""
        x = np.asarray(x, np.float64)
        zero, one = np.zeros((len(x), 1)), np.ones((len(x), 1))
        mean, variance = project(self, family, natural, np.hstack([x, zero]))
        middle, width = project(self, family, natural, np.hstack([np.zeros_like(x), one]))
        _, both = project(self, family, natural, np.hstack([x, one]))
        nodes, weights = hermite(NODES)
        slope = 0.5 * (both - variance - width) / np.sqrt(width)
        noise = np.exp(2.0 * (middle[:, None] + np.sqrt(width)[:, None] * nodes))
        left = np.maximum(variance - np.square(slope), 0.0)[:, None]
        return Mixture(mean[:, None] + slope[:, None] * nodes, np.sqrt(left + noise), weights)

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        del draws, seed
        found = self.mixture(family, natural, records["x"])
        return found.prediction(np.asarray(records["y"], np.float64))

    def draw_outcomes(
        self, theta: np.ndarray, means: np.ndarray, records: Records, seed: int
    ) -> np.ndarray:
        del records
        rng = np.random.default_rng([seed, 1])
        return means + np.exp(theta[:, -1:]) * rng.standard_normal(means.shape)

    def outcome_law(self) -> OutcomeLaw:
        """Return the distribution p(y | x, θ), for private scores."""
        from tacit.models.glm.outcomes import UnknownNoiseLaw

        return UnknownNoiseLaw(self.layout)

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        noise = float(np.exp(theta[-1]))
        return gaussian_outcomes(records["x"] @ theta[:-1], noise, rng, bounds)


class OutcomePrior(NamedTuple):
    """The prior of the coefficients, on the scale of y."""

    mean: np.ndarray
    sd: float | None
    """Prior standard deviation; None if it is not declared."""
    unit: float
    """Prior standard deviation used by methods that cannot learn an undeclared one."""
    layout: Layout


def outcome_prior(settings: RegressionSettings, schema: ModelSchema) -> OutcomePrior:
    """Convert the declared prior, which refers to the prepared outcome, to the scale of y.

    The prepared outcome is (y − center)/scale, with the centre and scale that bounds imply, as for
    columns. If y is prepared already, or has no bounds, the prior is kept as it is.

    Parameters
    ----------
    settings
        The `[model]` table, with `prior_mean` and `prior_sd`.
    schema
        The public facts about the records.
    """
    origin, unit = 0.0, 1.0
    if schema.y_scale is None and schema.y_bounds is not None:
        low, high = schema.y_bounds
        origin, unit = (low + high) / 2.0, (high - low) / 2.0
    layout = checked_layout(schema.names, schema.layout)
    constant = np.array([feature.kind == "intercept" for feature in layout])
    mean = unit * settings.prior_mean + np.where(constant, origin, 0.0)
    sd = None if settings.prior_sd is None else unit * settings.prior_sd
    return OutcomePrior(mean, sd, unit, layout)


def public_unit(schema: Any) -> tuple[float, float]:
    """Return (center, scale) of y as the model sees it, from public facts alone.

    Parameters
    ----------
    schema
        The `ModelSchema` of the records.
    """
    if schema.y_bounds is not None:
        low, high = schema.y_bounds
        return (low + high) / 2.0, (high - low) / 2.0
    if schema.y_scale is not None:
        return 0.0, 1.0
    raise ConfigError(
        f'outcome "{schema.outcome}" has no public scale, which a regression with unknown noise '
        f"needs; declare {column_key(schema.outcome)}.low and high, or center and scale; or a "
        "known model.noise_sd"
    )
