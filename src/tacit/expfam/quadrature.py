"""Deterministic quadrature rules for normal vectors."""

from __future__ import annotations

import functools
import math

import numpy as np

MAX_PRODUCT_DIMENSION = 2
"""Up to this dimension a product of one-dimensional rules is used."""


@functools.cache
def hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Hermite nodes and weights for a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


@functools.cache
def normal_points(dimension: int, count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Return points (S, dimension) and weights (S,) of a quadrature rule for N(0, I), with S about
    `count`.

    One dimension: Gauss-Hermite with a quarter of the points. Two: a product of such rules. More: a
    Sobol sequence, shifted by half a cell and mapped to normals, with both signs of each point,
    rescaled to second moment I, so that polynomials of degree 3 are exact. The rule is
    deterministic.

    >>> points, weights = normal_points(3)
    >>> bool(np.allclose((points.T * weights) @ points, np.eye(3)))
    True
    """
    if dimension <= MAX_PRODUCT_DIMENSION:
        size = count // 4 if dimension == 1 else round(count**0.5)
        nodes, weights = hermite(size)
        grid = np.meshgrid(*[nodes] * dimension, indexing="ij")
        shares = np.meshgrid(*[weights] * dimension, indexing="ij")
        points = np.stack([axis.ravel() for axis in grid], axis=1)
        return points, np.prod([share.ravel() for share in shares], axis=0)
    from scipy.special import ndtri
    from scipy.stats import qmc  # slow to import, and needed by few models

    half = max(count // 2, 2 * dimension)
    power = int(np.ceil(np.log2(half)))
    uniform = qmc.Sobol(dimension, scramble=False).random_base2(power) + 0.5 / 2**power
    return standardised(ndtri(uniform))


RULE_POINTS = 64
MANY_FRAMES = 4
"""Number of orthogonal frames in more than 64 dimensions, where second derivatives are estimated
from gradients.
"""
WEIGHING_DRAWS, DRAWS_PER_DIMENSION, MOST_WEIGHING_DRAWS = 1024, 16, 8192


@functools.cache
def normal_rule(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (S, dimension) and weights (S,) for averages of a function and its derivatives
    over N(0, I).

    One and two dimensions: Gauss-Hermite. More: rotated orthogonal frames with both signs, whose
    lengths are quantiles of the chi distribution, rescaled to second moment I. Polynomials of
    degree 3 are exact. Nothing is random: the frames come from a fixed seed.

    >>> points, weights = normal_rule(5)
    >>> bool(np.allclose((points.T * weights) @ points, np.eye(5)))
    True
    """
    if dimension <= MAX_PRODUCT_DIMENSION:
        return normal_points(dimension)
    from scipy.special import gammaincinv

    frames = math.ceil(RULE_POINTS / (2 * dimension)) if dimension <= 64 else MANY_FRAMES
    directions = np.concatenate(_frames(dimension, frames))
    order = np.random.default_rng(dimension).permutation(len(directions))
    levels = (order + 0.5) / len(directions)
    lengths = np.sqrt(2.0 * gammaincinv(0.5 * dimension, levels))
    return standardised(directions * lengths[:, None])


@functools.cache
def weighing_draws(dimension: int) -> np.ndarray:
    """Fixed draws of N(0, I), for importance weights of q against the exact posterior.

    Both signs of each draw are used, with second moment I: if q is the posterior, averages over the
    draws give its exact mean and covariance. Their number grows with the dimension. With only four
    per dimension, their lengths would vary less than those of normal vectors, and weights would
    look too even.
    """
    wanted = min(max(WEIGHING_DRAWS, DRAWS_PER_DIMENSION * dimension), MOST_WEIGHING_DRAWS)
    half = max(wanted // 2, 2 * dimension)
    draws = np.random.default_rng([dimension, half]).standard_normal((half, dimension))
    return standardised(draws)[0]


def standardised(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both signs of each point, rescaled to second moment I if possible, and equal
    weights.
    """
    points = np.concatenate([points, -points])
    if len(points) < 2 * points.shape[1]:
        return points, np.full(len(points), 1.0 / len(points))
    root = np.linalg.cholesky(points.T @ points / len(points))
    return np.linalg.solve(root, points.T).T, np.full(len(points), 1.0 / len(points))


def _frames(dimension: int, count: int) -> list[np.ndarray]:
    """Return orthogonal matrices from a fixed seed, one direction per row."""
    rng = np.random.default_rng([dimension, 0x5EED])
    return [np.linalg.qr(rng.standard_normal((dimension, dimension)))[0].T for _ in range(count)]
