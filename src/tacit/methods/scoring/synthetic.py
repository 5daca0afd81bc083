"""Synthetic covariates with the released marginals and second moment, for both private methods
that work with scores (`dp-scoring`, `dp-scores`).

They contain no record. They give expectations over x: information, slope and variance of scores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.data.schema.layout import Layout
from tacit.methods.scoring.marginals import Marginals
from tacit.methods.scoring.party import Counted

DRAWS = 1000
SEED = 0x5C0E
"""Public fixed seed, so that every server draws the same rows."""
FLOOR = 0.2
"""Smallest eigenvalue of a correlation matrix; noise can make eigenvalues negative."""
SIZES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4])
"""Standard deviations of correlations in the mixture prior: most are small, a few large."""
FITS = 30
MATCHES = 8
"""Number of iterations in which the second moment of u = z/‖z‖ is matched."""
MOST = 0.98
"""Largest correlation of z that is tried."""


class Synthetic(NamedTuple):
    """Synthetic rows z, and the error variance of each entry of their covariance matrix."""

    z: np.ndarray
    doubt: np.ndarray


def triangle(vector: np.ndarray, dimension: int) -> np.ndarray:
    """Return the symmetric matrix that `pack_symmetric` packed into this vector."""
    matrix = np.zeros((dimension, dimension))
    upper = np.triu_indices(dimension)
    matrix[upper] = vector / np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T


def independent(
    layout: Layout, what: Counted, found: Marginals, scale: np.ndarray, draws: int = DRAWS
) -> np.ndarray:
    """Draw rows z whose columns are independent of each other."""
    rng = np.random.default_rng(SEED)
    x = np.ones((draws, len(layout)))
    for row, place in enumerate(what.numbers):
        drawn = rng.choice(found.knots[row], draws, p=found.histograms[row])
        # The smallest variance that knots resolve is above zero.
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
    draws: int = DRAWS,
) -> Synthetic:
    """Draw rows z such that u = z/‖z‖ has the released second moment, as far as that exceeds its
    noise.

    Correlations between columns are shrunk towards 0 (`_shrunk`). Correlations of u are smaller
    than correlations of z, because a record in which many columns are large together has the
    longest z. Correlations R of z are computed by R ← R + shrunk − have until the moment of the
    synthetic u is the shrunk one. Independent rows are transformed by the linear map that moves
    them least (the optimal transport of Gaussians); every column keeps its released variance.
    """
    z = independent(layout, what, found, scale, draws)
    least = 0.1 * np.square(scale) * found.variance
    spread = np.sqrt(np.maximum(np.mean(np.square(_unit(z)), axis=0), least))
    outer = np.outer(spread, spread)
    free = np.array([feature.kind != "intercept" for feature in layout])
    between = np.triu(np.outer(free, free), 1)
    for group in what.groups:
        between[np.ix_(group, group)] = False  # known: a record has at most one level
    # The correlations of independent draws are 0 up to their sampling error, which is left out.
    seen = (triangle(moment, len(layout)) / found.records / outer)[between]
    noise = (np.square(noise_sd / found.records) / 2.0 / np.square(outer))[between]
    shrunk, doubt = np.zeros((2, *outer.shape))
    shrunk[between], doubt[between] = _shrunk(seen, noise)
    shrunk, doubt = shrunk + shrunk.T, doubt + doubt.T
    sd = np.sqrt(np.maximum(np.mean(z * z, axis=0), least))
    moved, gain = _matched(z, free, between | between.T, shrunk, outer, sd)
    doubt = gain**2 * doubt * np.square(np.outer(sd, sd)) + _count_doubt(found, scale, free)
    return Synthetic(moved, doubt)


def _matched(
    z: np.ndarray,
    free: np.ndarray,
    among: np.ndarray,
    wanted: np.ndarray,
    outer: np.ndarray,
    sd: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Draw rows whose u = z/‖z‖ has the moment `wanted`·`outer` in the pairs `among`; also return
    the ratio of z's correlations to those of u.
    """
    inner = np.ix_(free, free)
    among, wanted, outer, sd = among[inner], wanted[inner], outer[inner], sd[free]
    standard, moved = z[:, free] / sd, z.copy()
    before = standard.T @ standard / len(z)
    known = np.where(among, 0.0, before)
    length = np.sqrt(np.diagonal(before))
    correlation = best = wanted
    smallest = np.inf
    for turn in range(MATCHES):
        rows = standard @ _transport(before, known + correlation)
        rows *= length / np.maximum(np.sqrt(np.mean(rows * rows, axis=0)), 1e-12)
        trial = z.copy()
        trial[:, free] = rows * sd
        unit = _unit(trial)[:, free]
        gap = np.where(among, wanted - unit.T @ unit / len(z) / outer, 0.0)
        far = float(np.sum(np.square(gap)))
        if far < smallest or not turn:
            moved, best, smallest = trial, correlation, far
        correlation = np.where(among, np.clip(correlation + gap, -MOST, MOST), 0.0)
    square = float(np.sum(np.square(wanted)))
    gain = float(np.sum(best * wanted)) / square if square > 0 else 1.0
    return moved, max(1.0, gain)


def _unit(z: np.ndarray) -> np.ndarray:
    """Return z/‖z‖ for each row z."""
    length = np.sqrt(np.sum(z * z, axis=1, keepdims=True))
    return z / np.where(length > 0, length, 1.0)


def _shrunk(seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute posterior mean and variance of each correlation, given its noisy value and noise
    variance.

    The prior is a mixture of normals with the standard deviations `SIZES`, whose shares maximise
    the likelihood (empirical Bayes, by EM): if most correlations are small, small values are shrunk
    to 0 and large values are kept.
    """
    if not len(seen):
        return seen, noise
    total = np.square(SIZES)[:, None] + noise
    fit = -0.5 * (np.square(seen) / total + np.log(total))
    fit = np.exp(fit - np.max(fit, axis=0))
    share = np.full(len(SIZES), 1.0 / len(SIZES))
    for _ in range(FITS):
        share = fit @ (1.0 / (share @ fit)) * share / len(seen)
    belongs = share[:, None] * fit / (share @ fit)
    keep = np.square(SIZES)[:, None] / total
    mean = np.sum(belongs * keep, axis=0) * seen
    square = np.sum(belongs * (keep * noise + np.square(keep * seen)), axis=0)
    return np.clip(mean, -1.0, 1.0), np.maximum(square - np.square(mean), 0.0)


def _count_doubt(found: Marginals, scale: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the error variances of the moment that noise in the counts causes.

    The counts give each column's variance, and its mean, which is its covariance with the constant.
    """
    square = np.square(scale)
    doubt = np.diag(np.where(free, np.square(square) * found.variance_error, 0.0))
    for place in np.flatnonzero(~free):
        row = np.where(free, square[place] * square * found.centre_error, 0.0)
        doubt[place] += row
        doubt[:, place] += row
    return doubt


def _transport(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return T = A^(−½)(A^½ B A^½)^½ A^(−½), which maps covariance A to B; eigenvalues of both are
    floored.
    """
    values, vectors = np.linalg.eigh(before)
    values = np.sqrt(np.maximum(values, FLOOR))
    root, inverse = (vectors * values) @ vectors.T, (vectors / values) @ vectors.T
    values, vectors = np.linalg.eigh(after)
    target = (vectors * np.maximum(values, FLOOR)) @ vectors.T
    values, vectors = np.linalg.eigh(root @ target @ root)
    return inverse @ ((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T) @ inverse
