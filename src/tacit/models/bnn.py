"""Bayesian neural network with one hidden ReLU layer (TMLR §5)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.expfam._backend import Array, namespace
from tacit.expfam.gaussian import LOG_2PI
from tacit.models.base import GaussianPriorModel, Output, Records, check_sd, gaussian_natural
from tacit.models.logistic import bernoulli_log_likelihood


class BayesianNeuralNetwork(GaussianPriorModel):
    """f(x) = w₂·relu(W₁ᵀx + b₁) + b₂, prior N(0, prior_sd²) on every weight.

    Output "bernoulli": y ~ Bernoulli(sigmoid(f)). Output "gaussian": y ~ N(f, noise_sd²).
    θ is the concatenation of W₁ (input by input), b₁, w₂ and b₂.
    """

    kind: ClassVar[str] = "bnn"

    def __init__(
        self,
        inputs: tuple[str, ...],
        *,
        hidden: int = 50,
        output: Output = "bernoulli",
        noise_sd: float = 1.0,
        prior_sd: float = 1.0,
        start_seed: int = 0,
    ) -> None:
        if hidden < 1:
            raise ConfigError(f"model.hidden = {hidden}; a hidden layer needs at least 1 unit")
        if output not in ("bernoulli", "gaussian"):
            raise ConfigError(f"model.output = {output!r}; choose 'bernoulli' or 'gaussian'")
        units = range(hidden)
        names = (
            *(f"W1[{name},{unit}]" for name in inputs for unit in units),
            *(f"b1[{unit}]" for unit in units),
            *(f"w2[{unit}]" for unit in units),
            "b2",
        )
        super().__init__(names, 0.0, prior_sd)
        self.inputs, self.hidden, self.output = len(inputs), hidden, output
        self.noise_sd, self.start_seed = check_sd(noise_sd, "model.noise_sd"), start_seed

    def network(self, theta: Array, x: Array) -> Array:
        """f(x) for each row of x."""
        split = self.inputs * self.hidden
        weights1 = theta[:split].reshape(self.inputs, self.hidden)
        bias1 = theta[split : split + self.hidden]
        weights2 = theta[split + self.hidden : split + 2 * self.hidden]
        xp = namespace(theta, x)
        return xp.maximum(x @ weights1 + bias1, 0.0) @ weights2 + theta[-1]

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        value = self.network(theta, records["x"])
        if self.output == "bernoulli":
            return bernoulli_log_likelihood(value, records["y"])
        residual = (records["y"] - value) / self.noise_sd
        return -0.5 * residual * residual - math.log(self.noise_sd) - 0.5 * LOG_2PI

    def response(self, theta: Array, records: Records) -> Array:
        value = self.network(theta, records["x"])
        if self.output == "bernoulli":
            return 0.5 * (1.0 + namespace(value).tanh(0.5 * value))
        return value

    def start(self, family: Family) -> Natural:
        """Means U(−0.1, 0.1), variance 1e−3: at the prior's mean the hidden units are equal.

        Everybody starts at the same point, so that unit k means the same thing at each party.
        """
        rng = np.random.default_rng([self.start_seed, self.dimension])
        mean = rng.uniform(-0.1, 0.1, self.dimension)
        sd = np.full(self.dimension, math.sqrt(1e-3))
        return gaussian_natural(family, mean=mean, sd=sd, model=self.kind)
