"""Importance weights of draws from q against the exact posterior, smoothed, and what they show.

For draws zₛ ~ N(0, I) and θₛ = mean + root·zₛ, the weight of a draw is p(x, θₛ)/q(θₛ). The largest
weights are replaced by quantiles of a generalised Pareto distribution fitted to them (Vehtari et
al. 2024). Its shape k̂ says how heavy their tail is: up to 0.7 averages with these weights are
usable. The effective share ESS/S is 1 where q is the posterior. Neither sees a mode of the
posterior in which q has no draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tacit.expfam.quadrature import weighing_draws
from tacit.methods.natural.curvature import lower_root
from tacit.methods.natural.stages import FAILED

LEAST_LOG_WEIGHT = -700.0
"""Stands for a draw without weight: numbers of a result are finite."""


class Weighed(NamedTuple):
    """What the weights show of q."""

    pareto_k: float
    effective_share: float
    """ESS/S."""
    mean: np.ndarray
    """Of the posterior, by the weights; in θ."""
    root: np.ndarray
    """Lower-triangular root of the covariance by the weights."""
    skewness: np.ndarray
    """Of each coordinate of θ, by the weights."""
    log_weights: np.ndarray
    """Smoothed and normalised, one for each of `weighing_draws`."""


def weigh_draws(
    mean: np.ndarray,
    root: np.ndarray,
    log_likelihood: np.ndarray,
    log_prior: Callable[[np.ndarray], np.ndarray],
) -> Weighed:
    """Weights of the draws of q, and the moments that they give.

    Parameters
    ----------
    mean, root
        q = N(mean, root·rootᵀ).
    log_likelihood
        Of all records, at each draw.
    log_prior
        Log-density of the prior for rows of θ, up to a constant.
    """
    draws = weighing_draws(len(mean))
    theta = mean + draws @ root.T
    ratios = log_likelihood + log_prior(theta) + 0.5 * np.sum(draws * draws, axis=1)
    ratios = np.where((log_likelihood > 0.1 * FAILED) & np.isfinite(ratios), ratios, -math.inf)
    if not np.any(np.isfinite(ratios)):
        size = len(mean)
        nothing = np.full(len(draws), -math.log(len(draws)))
        return Weighed(math.inf, 0.0, mean, root, np.zeros(size), nothing)
    log_weights, shape = smoothed(ratios)
    weights = np.exp(log_weights)
    centre = weights @ draws
    apart = draws - centre
    covariance = (apart * weights[:, None]).T @ apart
    whole = root @ covariance @ root.T
    sds = np.sqrt(np.diagonal(whole))
    skewness = weights @ ((apart @ root.T) / np.where(sds > 0, sds, 1.0)) ** 3
    return Weighed(
        shape,
        1.0 / float(len(draws) * np.sum(weights * weights)),
        mean + root @ centre,
        _root(root, covariance),
        skewness,
        log_weights,
    )


def _root(root: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The lower-triangular root of root·C·rootᵀ; of a C without one, the old root."""
    try:
        return lower_root(root @ np.linalg.cholesky(covariance))
    except np.linalg.LinAlgError:
        return root


def smoothed(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """Normalised log-weights with a smoothed tail, and the shape k̂ of that tail.

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
    """Shape and scale of a generalised Pareto distribution of sorted excesses.

    The estimate of Zhang and Stephens (2009): a mean over a grid of b = k/σ with weights from the
    profile likelihood. The shape is drawn a little towards ½, as for small samples it should be.
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
