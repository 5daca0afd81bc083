"""Bayesian linear regression with known noise: conjugate, hence exact."""

from __future__ import annotations

import math
from typing import ClassVar

from tacit.arrays import Array, namespace
from tacit.data.schema.layout import Layout
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.expfam.gaussian import LOG_2PI
from tacit.models.base import (
    ConjugateGaussian,
    GeneralisedLinear,
    ModelSchema,
    Output,
    Records,
)
from tacit.models.settings import LinearSettings
from tacit.models.statistics import Working
from tacit.support.validation import check_sd


class LinearRegression(GeneralisedLinear, ConjugateGaussian):
    """y ~ N(x·θ, noise_sd²), θ ~ N(prior_mean, prior_sd²) in each coordinate.

    `bounds` are the least and largest y, if they are public: no part of the likelihood, but a
    private method may make use of them.
    """

    kind: ClassVar[str] = "linear"
    Settings = LinearSettings
    serves: ClassVar[tuple[Output, ...]] = ("gaussian",)
    output: Output = "gaussian"

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        noise_sd: float = 1.0,
        prior_mean: Array | float = 0.0,
        prior_sd: Array | float = 1.0,
        layout: Layout | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(names, prior_mean, prior_sd, layout)
        self.noise_sd = check_sd(noise_sd, "model.noise_sd")
        if bounds is not None and not -math.inf < bounds[0] < bounds[1] < math.inf:
            raise ConfigError(f"bounds of y = {bounds}; two finite numbers, the lesser one first")
        self.bounds = bounds

    @classmethod
    def build(cls, settings: LinearSettings, schema: ModelSchema) -> LinearRegression:
        return cls(
            schema.names,
            noise_sd=settings.noise_sd,
            prior_mean=settings.prior_mean,
            prior_sd=settings.prior_sd,
            layout=schema.layout,
            bounds=schema.y_bounds,
        )

    def pointwise(self, eta: Array, y: Array) -> Array:
        residual = (y - eta) / self.noise_sd
        return -0.5 * residual * residual - math.log(self.noise_sd) - 0.5 * LOG_2PI

    def inverse_link(self, eta: Array) -> Array:
        return eta

    def expected_log_likelihood(self, mean: Array, variance: Array, y: Array) -> Array:
        return self.pointwise(mean, y) - 0.5 * variance / self.noise_sd**2

    def working(self, family: Family, q: Natural, records: Records) -> Working:
        del family, q
        y, scale = records["y"], 1.0 / self.noise_sd**2
        return Working(records["x"], scale * y, scale * namespace(y).ones_like(y))

    def quadratic_form(self, records: Records, weights: Array) -> tuple[Array, Array]:
        x, scale = records["x"], 1.0 / self.noise_sd**2
        weighted = x * weights[:, None]
        return scale * (weighted.T @ x), scale * (weighted.T @ records["y"])
