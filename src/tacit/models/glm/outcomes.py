"""The distribution of an outcome given linear predictors η = x·θ, for private scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tacit.arrays import Array
from tacit.data.schema.layout import Layout
from tacit.expfam.gaussian import LOG_2PI
from tacit.models.base import Records
from tacit.models.outcomes import Covariates, OutcomeLaw, Proposal, Support
from tacit.support.compiler import jax, jnp

LARGEST_LOG_RATE = 30.0


class DesignMatrix(Covariates):
    """Covariates that are the columns of the matrix x."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def flat(self, records: Records) -> Array:
        return jnp.asarray(records["x"], jnp.float64)

    def records(self, rows: np.ndarray) -> Records:
        return {"x": rows, "y": np.zeros(len(rows))}


class PredictorLaw(OutcomeLaw):
    """Distribution of an outcome y that depends on `outputs` linear predictors η of its record."""

    def __init__(
        self, layout: Layout, pointwise: Callable[[Array, Array], Array], outputs: int = 1
    ) -> None:
        self.covariates, self.pointwise, self.outputs = DesignMatrix(layout), pointwise, outputs

    def parameters(self, theta: Array, record: Records) -> Array:
        eta = theta.reshape(self.outputs, -1) @ record["x"][0].astype(theta.dtype)
        return eta if self.outputs > 1 else eta[0]

    def log_prob(self, parameters: Array, outcome: Array) -> Array:
        return self.pointwise(parameters, outcome)

    def observed(self, record: Records) -> Array:
        return jnp.asarray(record["y"])[0].astype(jnp.float64)

    def number(self, parameters: Array, outcome: Array) -> Array:
        del parameters
        return outcome

    def mean(self, parameters: Array) -> Array:
        return parameters if self.outputs == 1 else jnp.zeros(())


class BernoulliLaw(PredictorLaw):
    """Distribution of an outcome y ∈ {0, 1} with log-odds η."""

    def support(self, parameters: Array) -> Support:
        up = jax.nn.sigmoid(parameters)
        return Support(jnp.array([0.0, 1.0]), jnp.stack([1.0 - up, up]))

    def sample(self, parameters: Array, key: Array) -> Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(parameters)).astype(jnp.float64)


class CategoricalLaw(PredictorLaw):
    """Distribution of an outcome that is one of K levels, with logits η."""

    def support(self, parameters: Array) -> Support:
        return Support(jnp.arange(self.outputs, dtype=jnp.float64), jax.nn.softmax(parameters))

    def sample(self, parameters: Array, key: Array) -> Array:
        return jax.random.categorical(key, parameters).astype(jnp.float64)


def category_log_prob(logits: Array, level: Array) -> Array:
    """Return log p(y), where y is the index of a level. For any other y, return −∞."""
    place = jnp.asarray(level, jnp.float64)
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.where(place == jnp.arange(len(logits)), log_probs, 0.0)
    known = (place >= 0) & (place < len(logits)) & (place == jnp.round(place))
    return jnp.where(known, jnp.sum(chosen), -jnp.inf)


class NormalLaw(PredictorLaw):
    """Distribution N(η, noise_sd²) of an outcome with predictor η."""

    def __init__(
        self, layout: Layout, pointwise: Callable[[Array, Array], Array], noise_sd: float
    ) -> None:
        super().__init__(layout, pointwise)
        self.noise_sd = noise_sd

    def quantile(self, parameters: Array, place: Array) -> Array:
        return parameters + self.noise_sd * jax.scipy.special.ndtri(place)

    def distribution(self, parameters: Array, outcome: Array) -> tuple[Array, Array]:
        end = jax.scipy.special.ndtr((outcome - parameters) / self.noise_sd)
        return end, end

    def sample(self, parameters: Array, key: Array) -> Array:
        return parameters + self.noise_sd * jax.random.normal(key, (), jnp.float64)


class UnknownNoiseLaw(OutcomeLaw):
    """Distribution N(η, σ²) of an outcome with unknown σ. θ contains the coefficients and log σ,
    and the parameters of an outcome are η and log σ.
    """

    def __init__(self, layout: Layout) -> None:
        self.covariates = DesignMatrix(layout)

    def parameters(self, theta: Array, record: Records) -> Array:
        return jnp.stack([record["x"][0].astype(theta.dtype) @ theta[:-1], theta[-1]])

    def log_prob(self, parameters: Array, outcome: Array) -> Array:
        residual = (outcome - parameters[0]) * jnp.exp(-parameters[1])
        return -0.5 * residual * residual - parameters[1] - 0.5 * LOG_2PI

    def observed(self, record: Records) -> Array:
        return jnp.asarray(record["y"])[0].astype(jnp.float64)

    def number(self, parameters: Array, outcome: Array) -> Array:
        del parameters
        return outcome

    def mean(self, parameters: Array) -> Array:
        return parameters[0]

    def quantile(self, parameters: Array, place: Array) -> Array:
        return parameters[0] + jnp.exp(parameters[1]) * jax.scipy.special.ndtri(place)

    def distribution(self, parameters: Array, outcome: Array) -> tuple[Array, Array]:
        end = jax.scipy.special.ndtr((outcome - parameters[0]) * jnp.exp(-parameters[1]))
        return end, end

    def sample(self, parameters: Array, key: Array) -> Array:
        noise = jax.random.normal(key, (), jnp.float64)
        return parameters[0] + jnp.exp(parameters[1]) * noise


class PoissonLaw(PredictorLaw):
    """Poisson distribution of a count with log-rate η."""

    def proposal(self, parameters: Array) -> Proposal:
        rate = jnp.exp(jnp.clip(parameters, -LARGEST_LOG_RATE, LARGEST_LOG_RATE))
        return Proposal(rate + 0.5, 1.2 * jnp.sqrt(rate) + 0.05, "count")

    def distribution(self, parameters: Array, outcome: Array) -> tuple[Array, Array]:
        rate = jnp.exp(jnp.clip(parameters, -LARGEST_LOG_RATE, LARGEST_LOG_RATE))
        above = jax.scipy.special.gammaincc(jnp.maximum(outcome, 0.0) + 1.0, rate)
        mass = jnp.exp(outcome * jnp.log(rate) - rate - jax.scipy.special.gammaln(outcome + 1.0))
        return jnp.maximum(above - mass, 0.0), above

    def sample(self, parameters: Array, key: Array) -> Array:
        rate = jnp.exp(jnp.clip(parameters, -LARGEST_LOG_RATE, math.log(1e9)))
        return jax.random.poisson(key, rate).astype(jnp.float64)


class NegativeBinomialLaw(PredictorLaw):
    """Negative binomial distribution of a count with mean μ = e^η and variance μ + μ²/r, where r is
    the dispersion.
    """

    def __init__(
        self, layout: Layout, pointwise: Callable[[Array, Array], Array], dispersion: float
    ) -> None:
        super().__init__(layout, pointwise)
        self.dispersion = dispersion

    def _mean(self, parameters: Array) -> Array:
        return jnp.exp(jnp.clip(parameters, -LARGEST_LOG_RATE, LARGEST_LOG_RATE))

    def proposal(self, parameters: Array) -> Proposal:
        mean = self._mean(parameters)
        sd = jnp.sqrt(mean + mean * mean / self.dispersion)
        return Proposal(mean + 0.5, 1.2 * sd + 0.05, "count")

    def distribution(self, parameters: Array, outcome: Array) -> tuple[Array, Array]:
        """Return P(Y < y) and P(Y ≤ y) for each outcome y.

        P(Y ≤ y) = I_p(r, y + 1), where I is the regularised incomplete beta function, r the
        dispersion, μ the mean and p = r/(r + μ).
        """
        place = self.dispersion / (self.dispersion + self._mean(parameters))
        within = jax.scipy.special.betainc(self.dispersion, jnp.maximum(outcome, 0.0) + 1.0, place)
        mass = jnp.exp(self.pointwise(parameters, outcome))
        return jnp.maximum(within - mass, 0.0), within

    def sample(self, parameters: Array, key: Array) -> Array:
        first, second = jax.random.split(key)
        weight = jax.random.gamma(first, self.dispersion, (), jnp.float64) / self.dispersion
        rate = jnp.minimum(self._mean(parameters) * weight, 1e9)
        return jax.random.poisson(second, rate).astype(jnp.float64)


class StudentLaw(PredictorLaw):
    """Distribution of y = η + scale·e, where e has a Student-t distribution with `df` degrees of
    freedom.
    """

    def __init__(
        self,
        layout: Layout,
        pointwise: Callable[[Array, Array], Array],
        df: float,
        scale: float,
    ) -> None:
        super().__init__(layout, pointwise)
        self.df, self.scale = df, scale

    def proposal(self, parameters: Array) -> Proposal:
        """Return a proposal with a Student-t distribution of 2 degrees of freedom, whose tails are
        heavier than those of y.
        """
        return Proposal(parameters, jnp.full_like(parameters, self.scale), "real")

    def distribution(self, parameters: Array, outcome: Array) -> tuple[Array, Array]:
        """Return P(Y < y) and P(Y ≤ y), which are equal, for each outcome y.

        With z = (y − η)/scale, they are 1 − ½I for z > 0 and ½I otherwise. I is the regularised
        incomplete beta function with the parameters ν/2 and ½ at ν/(ν + z²), where ν is `df`.
        """
        z = (outcome - parameters) / self.scale
        tail = 0.5 * jax.scipy.special.betainc(0.5 * self.df, 0.5, self.df / (self.df + z * z))
        end = jnp.where(z > 0, 1.0 - tail, tail)
        return end, end

    def sample(self, parameters: Array, key: Array) -> Array:
        return parameters + self.scale * jax.random.t(key, self.df, (), jnp.float64)
