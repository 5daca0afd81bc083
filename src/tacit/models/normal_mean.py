"""Model of the mean of a normal distribution with known noise, the smallest conjugate model."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace
from tacit.expfam import Family, Natural
from tacit.expfam.gaussian import LOG_2PI
from tacit.models.base import GaussianPriorModel, ModelSchema, Output, Records
from tacit.models.capabilities import ConjugateGaussian, DerivativeBounds, quadratic_bounds
from tacit.models.predictive import Prediction, normal_predictive
from tacit.models.settings import NormalMeanSettings
from tacit.models.simulate import gaussian_outcomes
from tacit.models.statistics import Working
from tacit.support.validation import check_sd


class NormalMean(GaussianPriorModel, ConjugateGaussian):
    """A model of one number y per record: y ~ N(θ, noise_sd²), with the prior θ ~ N(prior_mean,
    prior_sd²).

    Parameters
    ----------
    noise_sd
        Standard deviation of each record.
    prior_mean, prior_sd
        Mean and standard deviation of the prior.
    """

    kind: ClassVar[str] = "normal-mean"
    Settings = NormalMeanSettings
    serves: ClassVar[tuple[Output, ...]] = ("gaussian",)
    output: Output = "gaussian"

    def __init__(
        self, *, noise_sd: float = 1.0, prior_mean: float = 0.0, prior_sd: float = 1.0
    ) -> None:
        super().__init__(("mean",), prior_mean, prior_sd)
        self.noise_sd = check_sd(noise_sd, "model.noise_sd")

    @classmethod
    def build(cls, settings: NormalMeanSettings, schema: ModelSchema) -> NormalMean:
        del schema
        return cls(
            noise_sd=settings.noise_sd,
            prior_mean=settings.prior_mean,
            prior_sd=settings.prior_sd,
        )

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        residual = (records["y"] - theta[0]) / self.noise_sd
        return -0.5 * residual * residual - math.log(self.noise_sd) - 0.5 * LOG_2PI

    def response(self, theta: Array, records: Records) -> Array:
        return theta[0] + namespace(theta).zeros_like(records["y"])

    def working(self, family: Family, q: Natural, records: Records) -> Working:
        del family, q
        y, scale = records["y"], 1.0 / self.noise_sd**2
        ones = namespace(y).ones_like(y)
        return Working(ones[..., None], scale * y, scale * ones)

    def predict(
        self, family: Family, natural: Natural, records: Records, *, draws: int, seed: int
    ) -> Prediction:
        del draws, seed
        x = np.ones((len(records["y"]), 1))
        return normal_predictive(self, family, natural, x, records["y"], self.noise_sd)

    def derivative_bounds(self) -> DerivativeBounds:
        return quadratic_bounds(math.inf, self.noise_sd)

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        mean = np.asarray(self.response(theta, records), np.float64)
        return gaussian_outcomes(mean, self.noise_sd, rng, bounds)

    def quadratic_form(self, records: Records, weights: Array) -> tuple[Array, Array]:
        scale = 1.0 / self.noise_sd**2
        return scale * weights.sum()[None, None], scale * (weights @ records["y"])[None]
