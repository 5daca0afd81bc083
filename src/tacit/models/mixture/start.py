"""Starting point of a mixture: components fitted to points drawn from released cells.

The server has counts, means and covariances of many small cells. It draws points from normals with
these moments and runs expectation-maximisation on them, from several starts. This costs no budget,
because the points are functions of releases.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.models.mixture.moments import Repaired

POINTS = 8000
RESTARTS, SHORT_STEPS, LONG_STEPS = 10, 15, 60
RIDGE = 1e-3
"""Number added to the variances of components; the points have variance 1 in every column."""
LOG_2PI = math.log(2.0 * math.pi)


def drawn_points(cells: Repaired, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` points from a mixture of normals with the counts, means and covariances of
    `cells`.
    """
    share = cells.count / np.sum(cells.count)
    numbers = rng.multinomial(count, share)
    parts = []
    for number, mean, covariance in zip(numbers, cells.mean, cells.covariance, strict=True):
        root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(mean)))
        parts.append(mean + rng.standard_normal((number, len(mean))) @ root.T)
    return np.concatenate(parts)


def fitted_components(points: np.ndarray, components: int, rng: np.random.Generator) -> Repaired:
    """Fit components to the points by expectation-maximisation, and return the best fit of several
    random starts. The counts of the fit add up to 1.
    """
    best: tuple[float, Repaired] | None = None
    for _ in range(RESTARTS):
        start = _spread_centres(points, components, rng)
        distance = np.stack([np.sum(np.square(points - one), axis=1) for one in start], axis=1)
        nearest = np.argmin(distance, axis=1)
        found = _components(points, np.eye(components)[nearest])
        fit, found = _improved(points, found, SHORT_STEPS)
        if best is None or fit > best[0]:
            best = (fit, found)
    assert best is not None
    return _improved(points, best[1], LONG_STEPS)[1]


def _spread_centres(points: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose centres by k-means++ seeding (Arthur and Vassilvitskii 2007) and three Lloyd steps."""
    centres = [points[rng.integers(len(points))]]
    nearest = np.sum(np.square(points - centres[0]), axis=1)
    for _ in range(count - 1):
        whole = float(np.sum(nearest))
        chance = nearest / whole if whole > 0 else None
        centres.append(points[rng.choice(len(points), p=chance)])
        nearest = np.minimum(nearest, np.sum(np.square(points - centres[-1]), axis=1))
    found = np.stack(centres)
    for _ in range(3):
        squares = np.sum(found * found, axis=1) - 2.0 * points @ found.T
        own = np.eye(count)[np.argmin(squares, axis=1)]
        sizes = np.sum(own, axis=0)
        found = np.where(
            sizes[:, None] > 0, (own.T @ points) / np.maximum(sizes, 1)[:, None], found
        )
    return found


def _improved(points: np.ndarray, found: Repaired, steps: int) -> tuple[float, Repaired]:
    """Take up to `steps` EM steps; return the mean log-likelihood and the components."""
    fit = -math.inf
    for _ in range(steps):
        logs = log_densities(points, found) + np.log(found.count)
        largest = np.max(logs, axis=1, keepdims=True)
        weights = np.exp(logs - largest)
        whole = np.sum(weights, axis=1, keepdims=True)
        before, fit = fit, float(np.mean(largest[:, 0] + np.log(whole[:, 0])))
        found = _components(points, weights / whole)
        if fit - before < 1e-5:
            break
    return fit, found


def _components(points: np.ndarray, weights: np.ndarray) -> Repaired:
    count = np.sum(weights, axis=0) + 1e-6
    mean = (weights.T @ points) / count[:, None]
    covariance = np.empty((len(count), points.shape[1], points.shape[1]))
    for place in range(len(count)):
        gap = points - mean[place]
        covariance[place] = (weights[:, place, None] * gap).T @ gap / count[place]
    covariance += RIDGE * np.eye(points.shape[1])
    return Repaired(count / np.sum(count), mean, covariance)


def log_densities(points: np.ndarray, found: Repaired) -> np.ndarray:
    """Compute log N(point; mean, covariance) for every point and component."""
    result = np.empty((len(points), len(found.mean)))
    for place, (mean, covariance) in enumerate(zip(found.mean, found.covariance, strict=True)):
        root = np.linalg.cholesky(covariance)
        turned = np.linalg.solve(root, (points - mean).T)
        size = 2.0 * np.sum(np.log(np.diagonal(root)))
        result[:, place] = -0.5 * (np.sum(turned * turned, axis=0) + size + len(mean) * LOG_2PI)
    return result
