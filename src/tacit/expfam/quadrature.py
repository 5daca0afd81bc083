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
    """Return the points (S, dimension) and weights (S,) of a fixed quadrature rule for N(0, I).

    S is the number of points. In one dimension, the rule is Gauss-Hermite with S = `count`/4. In
    two dimensions, it is a product of two Gauss-Hermite rules, and S is about `count`. In more
    dimensions, the points of a Sobol sequence are mapped to normal values, the negatives of these
    values are added, and all points are rescaled so that their second moment is I. The rule is then
    exact for polynomials of degree 3 or less.

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
MANY = 4
"""Factor by which the number of draws grows where results need more draws."""


@functools.cache
def normal_rule(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (S, dimension) and weights (S,) for averages of a function and its derivatives
    over N(0, I).

    In one and two dimensions the rule is Gauss-Hermite. In more dimensions, the directions of the
    points are the rows of orthogonal matrices from a fixed seed, and their lengths are quantiles of
    the chi distribution. The negatives of the points are added, and all points are rescaled so that
    their second moment is I. Polynomials of degree 3 are then exact.

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
    """Return fixed draws of N(0, I), for importance weights of q against the exact posterior.

    With every draw the set contains its negative, and the second moment is I. If q is the
    posterior, averages over the draws therefore give its exact mean and covariance. The number of
    draws grows with the dimension: with only four draws per dimension, their lengths would vary
    less than those of normal vectors, and the importance weights would be too uniform.
    """
    wanted = min(max(WEIGHING_DRAWS, DRAWS_PER_DIMENSION * dimension), MOST_WEIGHING_DRAWS)
    half = max(wanted // 2, 2 * dimension)
    draws = np.random.default_rng([dimension, half]).standard_normal((half, dimension))
    return standardised(draws)[0]


def many_draws(dimension: int) -> int:
    """Return the number of draws of a request for more draws: `MANY` times those of
    `weighing_draws`, but at most `MOST_WEIGHING_DRAWS`.

    >>> many_draws(3)
    4096
    """
    return min(MANY * len(weighing_draws(dimension)), MOST_WEIGHING_DRAWS)


def standardised(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points and their negatives, rescaled so that their second moment is I, and equal
    weights.

    If there are fewer points than dimensions, they are not rescaled.
    """
    points = np.concatenate([points, -points])
    if len(points) < 2 * points.shape[1]:
        return points, np.full(len(points), 1.0 / len(points))
    root = np.linalg.cholesky(points.T @ points / len(points))
    return np.linalg.solve(root, points.T).T, np.full(len(points), 1.0 / len(points))


def _frames(dimension: int, count: int) -> list[np.ndarray]:
    """Return `count` orthogonal matrices from a fixed seed."""
    rng = np.random.default_rng([dimension, 0x5EED])
    return [np.linalg.qr(rng.standard_normal((dimension, dimension)))[0].T for _ in range(count)]
