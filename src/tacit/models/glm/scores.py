"""What private scoring needs of a likelihood: a bounded score and its moments under the model.

A record's score in θ is ψ(y, η)·z with η = z·θ, or ψ ⊗ z where η is several numbers. ψ must be
bounded whatever y is, and have expectation zero where the model is right, or the clipped sum would
be biased:

* Bernoulli: ψ = y − p, |ψ| ≤ max(p, 1 − p);
* Poisson with y ≤ Y declared: ψ = y − μ, |ψ| ≤ max(μ, Y − μ);
* categorical of K levels: ψ = e_y − p, K numbers, ‖ψ‖² = 1 − 2p_y + ‖p‖² ≤ 1 − 2 min p + ‖p‖²;
* Gaussian of known sd σ: ψ = clip((y − η)/σ, ±k)/σ, |ψ| ≤ k/σ (Huber 1964); the normal density is
  even, so that clipping does not move the expectation from zero. k is the server's choice. Where
  y has public bounds they bound ψ too.

Everything is written once for NumPy (the server) and JAX (the parties).
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array, namespace, special
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    Model,
    PoissonRegression,
    SoftmaxRegression,
)


class Slopes(NamedTuple):
    """What the server expects of scores at its last θ, over synthetic records."""

    curvature: Array
    """H, the expected slope,"""
    sampling: Array
    """V, the sampling variance,"""
    widened: Array
    """r, what the width of q adds to scores,"""
    change: Array
    """and how scores change from each θₜ to the last, a row a round."""


class Likelihood(abc.ABC):
    """ψ, its bound, and its expectation, slope and variance under the model."""

    reaches: tuple[float, ...] = (1.0,)
    """Values of k that the server may choose from; one where ψ has none."""
    largest: float | None = None
    """The largest y where it is public: y is then counted too. None: y has no bounds."""
    smallest: float = 0.0
    """The least y, where the largest is public."""
    levels: int = 0
    """K where y is one of K levels: η and ψ then have a last axis of that length, slope and
    variance two; 0 where y is a number."""

    @abc.abstractmethod
    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        """ψ(y, η)."""

    @abc.abstractmethod
    def bound(self, eta: Array, reach: Array) -> Array:
        """sup over y of |ψ(y, η)|: what makes the clip blind to the label."""

    @abc.abstractmethod
    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        """E[ψ(y, η)] for y from the model at η = `truth`; 0 for truth = η."""

    @abc.abstractmethod
    def slope(self, eta: Array, reach: Array) -> Array:
        """∂ expected / ∂ truth at truth = η: the information that ψ carries about η."""

    @abc.abstractmethod
    def variance(self, eta: Array, reach: Array) -> Array:
        """Var ψ for y from the model at η."""

    @property
    def outputs(self) -> int:
        """How many numbers η is."""
        return max(1, self.levels)

    def link(self, mean: Any) -> Any:
        """η for which E[y] is that; asked for only where y is counted."""
        raise NotImplementedError

    def step(self, reach: float) -> float:
        """How far, in root mean square of η, one round may move."""
        del reach
        return 1.0


@dataclass(frozen=True)
class BernoulliLikelihood(Likelihood):
    """y ∈ {0, 1} with log-odds η."""

    largest = 1.0

    def link(self, mean: float) -> float:
        return math.log(mean / (1.0 - mean))

    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        return y - _sigmoid(eta)

    def bound(self, eta: Array, reach: Array) -> Array:
        return _sigmoid(namespace(eta).abs(eta))

    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        return _sigmoid(truth) - _sigmoid(eta)

    def slope(self, eta: Array, reach: Array) -> Array:
        p = _sigmoid(eta)
        return p * (1.0 - p)

    def variance(self, eta: Array, reach: Array) -> Array:
        return self.slope(eta, reach)


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """y ∈ {0, …, largest} with log-rate η; rates beyond `largest` count as that."""

    largest: float  # pyright: ignore[reportGeneralTypeIssues]

    def link(self, mean: float) -> float:
        return math.log(mean)

    def _rate(self, eta: Array) -> Array:
        xp = namespace(eta)
        return xp.exp(xp.clip(eta, -30.0, math.log(self.largest)))

    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        return namespace(eta, y).clip(y, 0.0, self.largest) - self._rate(eta)

    def bound(self, eta: Array, reach: Array) -> Array:
        rate = self._rate(eta)
        return namespace(eta).maximum(rate, self.largest - rate)

    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        return self._rate(truth) - self._rate(eta)

    def slope(self, eta: Array, reach: Array) -> Array:
        return self._rate(eta)

    def variance(self, eta: Array, reach: Array) -> Array:
        return self._rate(eta)


@dataclass(frozen=True)
class GaussianLikelihood(Likelihood):
    """y ~ N(η, noise_sd²), the residual clipped to ±k standard deviations.

    With public bounds of y, |ψ| ≤ max(η − smallest, largest − η)/σ² too, whichever is less.
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
        """E clip(X, ±k)/σ for X ~ N(δ, 1) with δ = (truth − η)/σ."""
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


@dataclass(frozen=True)
class CategoricalLikelihood(Likelihood):
    """y ∈ {0 … K − 1} with probabilities softmax η."""

    levels: int  # pyright: ignore[reportGeneralTypeIssues]

    def link(self, mean: Any) -> Any:
        return np.log(mean)

    def probabilities(self, eta: Array) -> Array:
        """p, without overflow."""
        xp = namespace(eta)
        p = xp.exp(eta - xp.max(eta, axis=-1, keepdims=True))
        return p / xp.sum(p, axis=-1, keepdims=True)

    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        return (y[..., None] == np.arange(self.levels)) - self.probabilities(eta)

    def bound(self, eta: Array, reach: Array) -> Array:
        return self.bound_of(self.probabilities(eta))

    def bound_of(self, p: Array) -> Array:
        """√(1 − 2 min p + ‖p‖²): the residual's length at the least probable level."""
        xp = namespace(p)
        return xp.sqrt(1.0 - 2.0 * xp.min(p, axis=-1) + xp.sum(p * p, axis=-1))

    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        return self.probabilities(truth) - self.probabilities(eta)

    def slope(self, eta: Array, reach: Array) -> Array:
        p = self.probabilities(eta)
        return np.eye(self.levels) * p[..., None] - p[..., None] * p[..., None, :]

    def variance(self, eta: Array, reach: Array) -> Array:
        return self.slope(eta, reach)


def likelihood_of(model: Model) -> Likelihood | None:
    """The likelihood of a model that private scoring can serve; None for any other."""
    if isinstance(model, LogisticRegression):
        return BernoulliLikelihood()
    if isinstance(model, SoftmaxRegression):
        return CategoricalLikelihood(len(model.levels))
    if isinstance(model, PoissonRegression):
        return PoissonLikelihood(model.largest)
    if isinstance(model, LinearRegression):
        if model.bounds is None:
            return GaussianLikelihood(model.noise_sd)
        return GaussianLikelihood(model.noise_sd, *model.bounds)
    return None


def _sigmoid(eta: Array) -> Array:
    return 0.5 * (1.0 + namespace(eta).tanh(0.5 * eta))


def _normal_cdf(value: Array) -> Array:
    return special(value).ndtr(value)


def _normal_density(value: Array) -> Array:
    return namespace(value).exp(-0.5 * value * value) / math.sqrt(2.0 * math.pi)
