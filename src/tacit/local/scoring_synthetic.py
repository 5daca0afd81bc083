"""Synthetic covariates: made-up z with the released marginals and second moment.

No record is in them. They are for expectations over x, the curvature and the variance of scores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.data.layout import Layout
from tacit.local.scoring_map import Marginals
from tacit.local.scoring_party import Counted

DRAWS = 1500
SEED = 0x5C0E
"""Public and fixed: every server draws the same ones."""
FLOOR = 0.2
"""Of the eigenvalues of a correlation matrix: a noisy one has negative ones."""
MOST_SIGNAL = 0.05


class Synthetic(NamedTuple):
    """Rows of z, and how uncertain the second moment behind them is.

    `doubt` is the variance of the error of each correlation, `spread` the sd of each coordinate of
    u = z/‖z‖.
    """

    z: np.ndarray
    doubt: np.ndarray
    spread: np.ndarray


def triangle(vector: np.ndarray, dimension: int) -> np.ndarray:
    """The symmetric matrix of `pack_symmetric`'s vector."""
    matrix = np.zeros((dimension, dimension))
    upper = np.triu_indices(dimension)
    matrix[upper] = vector / np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T


def independent(
    layout: Layout, what: Counted, found: Marginals, scale: np.ndarray, draws: int = DRAWS
) -> np.ndarray:
    """Rows of z whose columns are independent of each other."""
    rng = np.random.default_rng(SEED)
    x = np.ones((draws, len(layout)))
    for row, place in enumerate(what.numbers):
        drawn = rng.choice(found.knots[row], draws, p=found.histograms[row])
        # The finest variance that knots can tell is more than none.
        deviation = np.std(drawn) or 1.0
        x[:, place] = found.centre[place] + (drawn - drawn.mean()) * np.sqrt(
            found.variance[place]
        ) / max(deviation, 1e-3 * np.sqrt(found.variance[place]))
    for group, share in zip(what.groups, found.frequencies, strict=True):
        rest = np.append(share, max(0.0, 1.0 - share.sum()))
        level = rng.choice(len(rest), draws, p=rest / rest.sum())
        x[:, group] = level[:, None] == np.arange(len(group))
    return scale * (x - found.centre)


def correlated(
    layout: Layout,
    what: Counted,
    found: Marginals,
    scale: np.ndarray,
    moment: np.ndarray,
    noise_sd: float,
) -> Synthetic:
    """Rows of z with the released second moment, as far as it stands out of its noise.

    Correlations between columns are shrunk towards none: with signal variance s² (estimated from
    all of them) and noise variance v each, by s²/(s² + v). Independent rows are then carried over
    by the linear map that moves them least (the optimal transport of Gaussians).
    """
    z = independent(layout, what, found, scale)
    dimension = len(layout)
    length = np.sqrt(np.sum(z * z, axis=1, keepdims=True))
    unit = z / np.where(length > 0, length, 1.0)
    expected = unit.T @ unit / len(z)
    least = 0.1 * np.square(scale) * found.variance
    spread = np.sqrt(np.maximum(np.diagonal(expected), least))
    outer = np.outer(spread, spread)
    between = np.ones((dimension, dimension), dtype=bool)
    np.fill_diagonal(between, False)
    for group in what.groups:
        between[np.ix_(group, group)] = False  # known: at most one level at a time
    for place, feature in enumerate(layout):
        if feature.kind == "bias":
            between[place, :] = between[:, place] = False
    # Independent columns have no correlation; that of so many draws is an accident.
    change = triangle(moment, dimension) / found.records / outer
    noise = np.square(noise_sd / found.records) / 2.0 / np.square(outer)
    signal = _signal(change[between], noise[between])
    shrink = signal / (signal + noise)
    change = np.where(between, np.clip(change * shrink, -1.0, 1.0), 0.0)
    doubt = np.where(between, shrink * noise, 0.0)
    free = np.array([feature.kind != "bias" for feature in layout])
    moved = z.copy()
    sd = np.sqrt(np.maximum(np.mean(z * z, axis=0), least))[free]
    before = (z[:, free] / sd).T @ (z[:, free] / sd) / len(z)
    known = np.where(between[np.ix_(free, free)], 0.0, before)
    after = known + change[np.ix_(free, free)]
    moved[:, free] = (z[:, free] / sd) @ _transport(before, after) * sd
    return Synthetic(moved, doubt, spread)


def _signal(change: np.ndarray, noise: np.ndarray) -> float:
    """Variance of the true correlations: E[change²] − noise, weighted by what each one tells."""
    if not len(change):
        return 0.0
    weight = 1.0 / np.square(noise)
    found = np.sum(weight * (np.square(change) - noise)) / np.sum(weight)
    return float(np.clip(found, 0.0, MOST_SIGNAL))


def _transport(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """T = A^(−½)(A^½ B A^½)^½ A^(−½) takes covariance A to B; both floored."""
    values, vectors = np.linalg.eigh(before)
    values = np.sqrt(np.maximum(values, FLOOR))
    root, inverse = (vectors * values) @ vectors.T, (vectors / values) @ vectors.T
    values, vectors = np.linalg.eigh(after)
    target = (vectors * np.maximum(values, FLOOR)) @ vectors.T
    values, vectors = np.linalg.eigh(root @ target @ root)
    return inverse @ ((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T) @ inverse
