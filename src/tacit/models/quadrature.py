"""Deterministic quadrature rules for normal vectors."""

from __future__ import annotations

import functools

import numpy as np

MAX_PRODUCT_DIMENSION = 2
"""Up to this dimension a product of one-dimensional rules is used."""


@functools.cache
def hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Hermite nodes and weights for a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


@functools.cache
def normal_points(dimension: int, count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """(points (S, dimension), weights (S,)) of a rule for N(0, I), S about `count`.

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
    points = ndtri(uniform)
    points = np.concatenate([points, -points])
    root = np.linalg.cholesky(points.T @ points / len(points))
    return np.linalg.solve(root, points.T).T, np.full(len(points), 1.0 / len(points))
