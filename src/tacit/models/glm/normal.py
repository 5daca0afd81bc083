"""Bayesian linear regression with unknown noise: log σ is an additional parameter.

The outcome is y ~ N(x·β, σ²), and θ consists of β and s = log σ. For a Gaussian q all expectations
have closed forms. Under q, let η = x·β have the mean m and the variance v, let s have the mean μ
and the variance w, and let c be the covariance of η and s. Then

    E[e^{−2s} (y − η)²] = k (r² + v),    E[e^{−2s} (y − η)] = k r,    E[e^{−2s}] = k,
    k = exp(−2μ + 2w),    r = y − m + 2c.

The prior depends on a public unit u of the outcome: the half-width of its bounds, or its scale. The
noise σ has a log-normal prior with median u/2, in which log σ has the standard deviation 1.5. If no
`prior_sd` is declared, u also determines the prior of the coefficients
(`tacit.models.learnt_scale`).
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
        Public location and scale of y, e.g. the middle and half-width of its bounds.
    prior_mean
        Prior mean of the coefficients. By default it is `center` for the intercept and 0 for all
        other coefficients.
    prior_sd
        Prior standard deviation of the coefficients. By default it is learned if the method
        supports this (`tacit.models.learnt_scale`), and `scale` otherwise.
    layout
        Description of each column of x, as declared in the public schema. By default the columns
        have no declared bounds.
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
            raise ConfigError(
                f"column name {LOG_NOISE!r} is reserved for the noise; rename the column"
            )
        self.layout = checked_layout(self.columns, layout)
        if not (math.isfinite(center) and 0 < scale < math.inf):
            raise ConfigError(
                f"center = {center}, scale = {scale}; both must be finite, and scale must be > 0"
            )
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
        """Return one number per coefficient, followed by `noise`, the number for log σ.

        `value` is one number, or one per coefficient. An array from a stored model has a further
        entry for log σ, which is replaced.
        """
        width, given = len(self.columns), np.asarray(value, np.float64)
        if given.shape == (width + 1,):
            given = given[:-1]
        if given.shape not in ((), (width,)):
            raise ConfigError(
                f"{name} = {value!r}; give one number, or an array of {width} numbers"
            )
        return np.append(np.broadcast_to(given, width), noise)

    @property
    def scale_unit(self) -> float | None:
        """Public scale of the outcome. None if the scale of the prior is declared instead of
        learned.
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
        return thetas[:, :-1] @ np.asarray(records["x"], np.float64).T

    def log_likelihoods(self, thetas: Array, records: Records, weights: Array) -> Array:
        xp = namespace(thetas, records["x"])
        noise = thetas[:, -1]
        residual = records["y"][:, None] - records["x"] @ thetas[:, :-1].T
        residual = residual * xp.exp(-noise)
        return weights @ (-0.5 * residual * residual - noise - 0.5 * LOG_2PI)

    def whitened_derivatives(
        self, mean: Array, root: Array, spread: Array, records: Records, weights: Array
    ) -> WhitenedDerivatives:
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
        """Return the predictive mixture of each record, with one normal component for each
        quadrature node of log σ.
        """
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
    """Prior standard deviation if `sd` is None and the method cannot learn it."""
    layout: Layout


def outcome_prior(settings: RegressionSettings, schema: ModelSchema) -> OutcomePrior:
    """Convert the declared prior of the coefficients to the scale of y.

    The declared prior refers to coefficients for the scaled outcome (y − center)/scale, where
    center is the middle and scale the half-width of the bounds of y. If y is already scaled, or has
    no bounds, the prior is not changed.

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
    """Return the public center and scale of y.

    They are the middle and the half-width of the bounds of y. Without bounds they are 0 and 1 if y
    is already scaled; otherwise an error is raised.

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
        f'outcome "{schema.outcome}" has no public scale, but a regression with unknown noise '
        f"needs one; declare low and high, or center and scale, of {column_key(schema.outcome)}, "
        "or set model.noise_sd"
    )
