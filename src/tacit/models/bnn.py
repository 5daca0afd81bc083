"""Bayesian neural network with one hidden ReLU layer (TMLR §5)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from tacit.arrays import Array, computed_once, namespace, unit_rows
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.expfam.gaussian import LOG_2PI
from tacit.models.base import (
    OUTCOMES,
    GaussianPriorModel,
    ModelSchema,
    Output,
    Records,
    checked_names,
    gaussian_natural,
)
from tacit.models.glm.logistic import bernoulli_log_likelihood
from tacit.models.settings import NeuralNetworkSettings
from tacit.models.simulate import bernoulli_outcomes, gaussian_outcomes, logit_of
from tacit.support.validation import check_sd


class NeuralNetwork(GaussianPriorModel):
    """A network with one hidden layer: f(x) = w₂·relu(W₁ᵀx + b₁) + b₂, with prior N(0, prior_sd²)
    on every weight and bias.

    For output "bernoulli", y ~ Bernoulli(sigmoid(f(x))). For output "gaussian", y ~ N(f(x),
    noise_sd²). θ is the concatenation of W₁ (row by row, one row per input), b₁, w₂ and b₂.

    Parameters
    ----------
    inputs
        Names of the columns of x.
    hidden
        Number of hidden units.
    output
        "bernoulli" or "gaussian".
    noise_sd
        Standard deviation of y around f(x), for output "gaussian".
    prior_sd
        Prior standard deviation of every weight and bias.
    start_seed
        Seed of the starting point, which all parties share.
    """

    kind: ClassVar[str] = "neural-network"
    Settings = NeuralNetworkSettings
    serves: ClassVar[tuple[Output, ...]] = ("bernoulli", "gaussian")
    seeded: ClassVar[bool] = True
    rounding_grows: ClassVar[bool] = True
    multimodal: ClassVar[bool] = True

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
        inputs = checked_names(inputs, "inputs")
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
        self.inputs, self._sd = tuple(inputs), prior_sd
        self._constant = [i for i, name in enumerate(inputs) if name == "intercept"]
        self._graded = [
            i for i, name in enumerate(inputs) if name != "intercept" and "=" not in name
        ]
        self.hidden, self.output = hidden, output
        self.noise_sd, self.start_seed = check_sd(noise_sd, "model.noise_sd"), start_seed

    @classmethod
    def build(cls, settings: NeuralNetworkSettings, schema: ModelSchema) -> NeuralNetwork:
        if schema.output != "gaussian" and settings.noise_sd != 1.0:
            raise ConfigError(
                f"model.noise_sd = {settings.noise_sd} is for numeric outcomes, but outcome "
                f"{schema.outcome!r} is {OUTCOMES[schema.output]}; leave noise_sd out"
            )
        return cls(
            schema.names,
            hidden=settings.hidden,
            output=schema.output,
            noise_sd=settings.noise_sd,
            prior_sd=settings.prior_sd,
            start_seed=schema.seed,
        )

    @property
    def x_columns(self) -> int | None:
        return len(self.inputs)

    @property
    def compiled_as(self) -> NeuralNetwork:
        if type(self) is not NeuralNetwork:  # a subclass may add fields
            return self
        if not isinstance(self._sd, int | float):
            return self
        return _with_any_start(self.inputs, self.hidden, self.output, self.noise_sd, self._sd)

    def network(self, theta: Array, x: Array) -> Array:
        """Return the network's output f(x) for each row of x."""
        weights1, bias1, weights2, bias2 = self._layers(theta)
        return namespace(theta, x).maximum(x @ weights1 + bias1, 0.0) @ weights2 + bias2

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        value = self.network(theta, records["x"])
        if self.output == "bernoulli":
            return bernoulli_log_likelihood(value, records["y"])
        residual = (records["y"] - value) / self.noise_sd
        return -0.5 * residual * residual - math.log(self.noise_sd) - 0.5 * LOG_2PI

    def clip_scales(self) -> Array:
        """Return the weight of each coordinate in the norm that is clipped: above 1 for weights of
        numeric inputs, and below 1 for weights of constant inputs, hidden biases and output
        weights.

        The gradients of constant inputs and hidden biases are rarely zero but contain little
        information. With weight 1 they would make up most of the norm. The kind of an input follows
        from its name: "intercept" is constant, "column=level" is an indicator, and any other name
        is numeric. The weights were chosen on a subset of the training records of the Adult data
        (docs/decisions.md).
        """
        scales = np.ones(self.dimension)
        weights1, bias1, weights2, _ = self._layers(scales)  # views of `scales`
        weights1[self._constant] = 0.1
        weights1[self._graded] = 1.5
        bias1[:] = 0.3
        weights2[:] = 0.7
        return scales

    def score_parts(
        self, theta: Array, records: Records, squares: Array, *, label_agnostic: bool
    ) -> tuple[Array, Array, Callable[[Array], Array]]:
        """Compute the norms and weighted sums that `Model.score_parts` describes, by explicit
        backpropagation.

        The gradient of a layer is an outer product, so its norm is a product of two norms. Norms
        are computed in float64, and each row of x is scaled before its entries are squared.
        Otherwise a square could underflow to 0 and the norm would be too small.
        """
        x, (w1, b1, w2, b2) = records["x"], self._layers(theta)
        xp = namespace(theta, x)
        before = x @ w1 + b1
        hidden = xp.maximum(before, 0.0)
        value = hidden @ w2 + b2
        if self.output == "bernoulli":
            probability = 0.5 * (1.0 + xp.tanh(0.5 * value))
            slope = records["y"] - probability
            most = xp.abs(slope)
            if label_agnostic:  # a label other than 0 and 1 has a larger gradient than both
                most = xp.maximum(most, xp.maximum(probability, 1.0 - probability))
        else:
            slope = (records["y"] - value) / self.noise_sd**2
            most = xp.abs(slope)
        hidden, active, slope, most = computed_once((hidden, before > 0, slope, most))
        reach, plain = self._reaches(x, hidden, active, w2, squares)
        norms = most.astype(np.float64) * xp.sqrt(reach)
        own = xp.abs(slope).astype(np.float64) * xp.sqrt(plain)

        def score_sum(weights: Array) -> Array:
            # In float64, like all sums of clipped contributions.
            top = xp.where(weights > 0, weights * slope, 0.0).astype(np.float64)
            kept = xp.where((weights > 0)[:, None], x, 0.0).astype(np.float64)
            units = xp.where((weights > 0)[:, None], hidden, 0.0).astype(np.float64)
            back = xp.where((weights > 0)[:, None] & active, w2, 0.0) * top[:, None]
            parts = ((kept.T @ back).ravel(), xp.sum(back, axis=0), top @ units, xp.sum(top)[None])
            return xp.concatenate(parts)

        return norms, own, score_sum

    def _reaches(
        self, x: Array, hidden: Array, active: Array, w2: Array, squares: Array
    ) -> tuple[Array, Array]:
        xp = namespace(x, squares)
        u1, ub1, u2, ub2 = self._layers(squares.astype(np.float64))
        (direction, largest), outer = unit_rows(x), w2.astype(np.float64)
        direction, largest = xp.square(direction), largest[:, None]
        above = xp.square(hidden.astype(np.float64))
        inner = xp.where(active, xp.square(outer * largest), 0.0)
        bias = xp.where(active, xp.square(outer), 0.0)
        weighted = above @ u2 + ub2 + xp.sum(inner * (direction @ u1) + bias * ub1, axis=1)
        plain = xp.sum(above, axis=1) + 1.0 + xp.sum(bias, axis=1)
        return weighted, plain + xp.sum(inner, axis=1) * xp.sum(direction, axis=1)

    def _layers(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        split = len(self.inputs) * self.hidden
        return (
            theta[:split].reshape(len(self.inputs), self.hidden),
            theta[split : split + self.hidden],
            theta[split + self.hidden : split + 2 * self.hidden],
            theta[-1],
        )

    def response(self, theta: Array, records: Records) -> Array:
        value = self.network(theta, records["x"])
        if self.output == "bernoulli":
            return 0.5 * (1.0 + namespace(value).tanh(0.5 * value))
        return value

    def simulate(
        self,
        theta: np.ndarray,
        records: Records,
        rng: np.random.Generator,
        bounds: tuple[float, float] | None = None,
    ) -> np.ndarray:
        mean = np.asarray(self.response(theta, records), np.float64)
        if self.output == "bernoulli":
            return bernoulli_outcomes(logit_of(mean), rng)
        return gaussian_outcomes(mean, self.noise_sd, rng, bounds)

    def start(self, family: Family) -> Natural:
        """Return the natural parameters of a starting point with means drawn from U(−0.1, 0.1) and
        variances 1e−3.

        At the prior mean all hidden units would be equal and stay equal. All parties use the same
        seed, so that hidden unit k has the same role at every party.
        """
        rng = np.random.default_rng([self.start_seed, self.dimension])
        mean = rng.uniform(-0.1, 0.1, self.dimension)
        sd = np.full(self.dimension, math.sqrt(1e-3))
        return gaussian_natural(family, mean=mean, sd=sd, model=self.kind)


@functools.lru_cache(maxsize=32)
def _with_any_start(
    inputs: tuple[str, ...], hidden: int, output: Output, noise_sd: float, prior_sd: float
) -> NeuralNetwork:
    return NeuralNetwork(inputs, hidden=hidden, output=output, noise_sd=noise_sd, prior_sd=prior_sd)
