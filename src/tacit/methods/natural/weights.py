"""Smoothed importance weights of draws from q relative to the exact posterior, and diagnostics.

The weight of a draw θₛ is p(x, θₛ)/q(θₛ), where x are the records. The largest weights are replaced
by quantiles of a generalised Pareto distribution that is fitted to them (Vehtari et al. 2024). The
shape k̂ of this distribution measures how heavy the tail of the weights is. If k̂ ≤ 0.7, weighted
averages are usable. The effective share is the effective sample size divided by the number of
draws, and is 1 if q is the posterior. Neither number detects a posterior mode in which q has no
draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural.stages import FAILED

MAX_PARETO_K = 0.7
EVEN_SHARE = 0.99
"""Above this effective share, the draws cannot distinguish q from the posterior."""
CLOSE_SHARE = 0.9
BELIEVED_SHARE = 0.5
"""Below this effective share, q is not accepted as the posterior."""
LEAST_SHARE = 0.02
"""Below this effective share, weighted moments would be mostly noise."""
DOUBTED = "doubted"
"""Name of an entry of the server's memory. The entry is present if draws with heavier tails than q
have unusable weights. q is then not trusted, even if the draws from q have nearly equal weights.
"""
LEAST_LOG_WEIGHT = -700.0
"""Finite placeholder for the logarithm of a zero weight."""


def is_believed(pareto_k: float, effective_share: float) -> bool:
    """True if weighted draws with these diagnostics represent the posterior well.

    `pareto_k` is the fitted tail shape of the weights. It is ignored if the effective share is near
    1, because it is then mostly noise.
    """
    if effective_share >= CLOSE_SHARE:
        return True
    return pareto_k <= MAX_PARETO_K and effective_share >= BELIEVED_SHARE


class Weighed(NamedTuple):
    """Importance weights of draws, with diagnostics and weighted moments."""

    pareto_k: float
    effective_share: float
    """Effective sample size divided by the number of draws."""
    mean: np.ndarray
    """Weighted mean of the draws."""
    covariance: np.ndarray
    skewness: np.ndarray
    """Weighted skewness of each coordinate."""
    log_weights: np.ndarray
    """Smoothed and normalised log-weight of each draw."""

    @property
    def even(self) -> bool:
        """True if the weights are so equal that the fitted tail shape `pareto_k` has no meaning."""
        return self.effective_share >= EVEN_SHARE

    @property
    def uneven(self) -> bool:
        """True if draws with heavier tails may give better moments.

        This is the case if the effective share is small, or if a few weights are so large that the
        draws may not reach a tail of the posterior.
        """
        return self.heavy or not self.effective_share >= CLOSE_SHARE

    @property
    def heavy(self) -> bool:
        """True if a few weights are so large that averages with the weights are not reliable."""
        return self.pareto_k > MAX_PARETO_K and not self.even

    @property
    def sound(self) -> bool:
        """True if averages with these weights are reliable."""
        return self.pareto_k <= MAX_PARETO_K and self.effective_share >= BELIEVED_SHARE

    @property
    def believed(self) -> bool:
        """True if the weighted draws represent the posterior well (`is_believed`)."""
        return is_believed(self.pareto_k, self.effective_share)

    @property
    def usable(self) -> bool:
        """True if the weighted moments should replace the moments of q."""
        light = self.pareto_k <= MAX_PARETO_K and self.effective_share >= LEAST_SHARE
        return not self.even and light

    @property
    def facts(self) -> Arrays:
        """Diagnostics of the weights, as finite numbers that the server stores."""
        return {
            "pareto_k": np.asarray(min(self.pareto_k, 99.0)),
            "effective_share": np.asarray(self.effective_share),
            "skewness": self.skewness,
        }

    def root(self, otherwise: np.ndarray) -> np.ndarray:
        """Return the lower-triangular root of the weighted covariance. If this covariance is not
        positive definite, return `otherwise`.
        """
        scale = np.sqrt(np.diagonal(self.covariance))
        try:
            inner = np.linalg.cholesky(self.covariance / np.outer(scale, scale))
        except np.linalg.LinAlgError:
            return otherwise
        return scale[:, None] * inner


def weigh_draws(theta: np.ndarray, log_density: np.ndarray, log_joint: np.ndarray) -> Weighed:
    """Return the importance weights of draws, with diagnostics and weighted moments.

    Parameters
    ----------
    theta
        Draws, one per row.
    log_density
        Log-density, up to a constant, of the distribution that was drawn from, at each draw.
    log_joint
        Log-density of the posterior at each draw, up to a constant; FAILED where it is not finite.
    """
    count, size = theta.shape
    ratios = log_joint - log_density
    ratios = np.where((log_joint > 0.1 * FAILED) & np.isfinite(ratios), ratios, -math.inf)
    if not np.any(np.isfinite(ratios)):
        nothing = np.full(count, -math.log(count))
        mean, spread = np.mean(theta, axis=0), np.atleast_2d(np.cov(theta.T))
        return Weighed(math.inf, 0.0, mean, spread, np.zeros(size), nothing)
    log_weights, shape = smoothed(ratios)
    weights = np.exp(log_weights)
    mean = weights @ theta
    apart = theta - mean
    covariance = (apart * weights[:, None]).T @ apart
    sds = np.sqrt(np.diagonal(covariance))
    skewness = weights @ (apart / np.where(sds > 0, sds, 1.0)) ** 3
    share = 1.0 / float(count * np.sum(weights * weights))
    return Weighed(shape, share, mean, covariance, skewness, log_weights)


def smoothed(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """Return normalised log-weights whose largest values are smoothed, and the Pareto shape k̂ of
    their tail.

    >>> smoothed(np.zeros(100))[1]
    0.0
    """
    count = len(log_ratios)
    log_weights = log_ratios - np.max(log_ratios)
    tail = min(count // 5, math.ceil(3.0 * math.sqrt(count)))
    order = np.argsort(log_weights, kind="stable")
    cut = log_weights[order[-tail - 1]]
    largest = order[-tail:]
    excess = np.exp(log_weights[largest]) - math.exp(cut)
    shape = 0.0
    if cut > LEAST_LOG_WEIGHT and np.ptp(excess) > 1e-12 * np.max(excess):
        shape, scale = _pareto_fit(excess)
        levels = (np.arange(tail) + 0.5) / tail
        if abs(shape) < 1e-8:
            quantiles = -scale * np.log1p(-levels)
        else:
            quantiles = scale * np.expm1(-shape * np.log1p(-levels)) / shape
        log_weights = log_weights.copy()
        log_weights[largest] = np.minimum(np.log(quantiles + math.exp(cut)), 0.0)
    elif cut <= LEAST_LOG_WEIGHT:
        shape = math.inf  # all weight is on a few draws
    total = np.log(np.sum(np.exp(log_weights)))
    return np.maximum(log_weights - total, LEAST_LOG_WEIGHT), shape


def _pareto_fit(excess: np.ndarray) -> tuple[float, float]:
    """Return shape k and scale σ of a generalised Pareto distribution fitted to `excess`, the
    largest weights minus a threshold.

    The estimator is that of Zhang and Stephens (2009). The shape is shrunk slightly towards ½,
    which reduces its error in small samples.
    """
    values = np.sort(excess)
    count = len(values)
    grid = 30 + int(math.sqrt(count))
    quartile = values[int(count / 4 + 0.5) - 1]
    quartile = quartile if quartile > 0 else values[-1] * 1e-3
    steps = 1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    ratios = steps / (3.0 * quartile) + 1.0 / values[-1]
    shapes = np.mean(np.log1p(-ratios[:, None] * values), axis=1)
    likelihood = count * (np.log(-ratios / shapes) - shapes - 1.0)
    weights = 1.0 / np.sum(np.exp(likelihood - likelihood[:, None]), axis=1)
    weights = np.where(weights > 1e-14, weights, 0.0)
    ratio = float(weights @ ratios / np.sum(weights))
    shape = float(np.mean(np.log1p(-ratio * values)))
    scale = -shape / ratio
    return (shape * count + 5.0) / (count + 10.0), scale
