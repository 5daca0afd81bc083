"""Synthetic covariates with the released marginals and second moment.

The synthetic rows contain no values of any record. Two private methods, `dp-scoring` and
`dp-scores`, use them to compute expectations over the covariates x: the expected information, and
the expected slope and variance of the scores.
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
LEAST_FLOOR, MOST_FLOOR = 0.002, 0.2
"""Range of the smallest eigenvalue of a correlation matrix. Noise can make eigenvalues too small or
negative. They are raised to the size of the noise in an eigenvalue, within this range.
"""
SIZES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0])
"""Standard deviations of the components of the mixture prior of correlations."""
FITS = 30
MATCHES = 8
"""Number of iterations that match the second moment of u = z/‖z‖ to the released one."""
MOST = 0.999
"""Largest correlation of z that is tried."""
MOST_GAIN = 4.0
"""Largest ratio that is used for (change of the correlations of z)/(change of those of u). For a
normal distribution with p columns of equal variance the ratio is 1 + 2/p.
"""
PROBE, PROBE_NORM = 0.1, 0.3
"""To measure this ratio, the correlations of z are changed by min(`PROBE`, `PROBE_NORM`/√p) with p
columns, and by at most half of their smallest eigenvalue.
"""


class Synthetic(NamedTuple):
    """Synthetic rows `z`, and the variance `doubt` of the error in each entry of their second
    moment.
    """

    z: np.ndarray
    doubt: np.ndarray


class Direction(NamedTuple):
    """The combination of columns whose variance over the records is known least precisely."""

    error: float
    """Relative error of this variance, which the information about the coefficients is proportional
    to.
    """
    columns: tuple[int, ...]
    """The two columns with the largest weights in the combination."""


def least_known(layout: Layout, drawn: Synthetic) -> Direction | None:
    """Return the direction of numeric columns with the largest relative error, or None if there are
    fewer than two numeric columns.

    For an eigenvector v of the correlation matrix with eigenvalue λ, an error E of the matrix
    changes the variance λ along v by vᵀEv. Levels are left out, because their indicators determine
    each other.
    """
    square = np.mean(np.square(drawn.z), axis=0)
    free = np.array([feature.kind == "numeric" for feature in layout])
    free &= square > 1e-12 * np.max(square)  # noise may hide the spread of a column completely
    if np.sum(free) < 2:
        return None
    z, inner = drawn.z[:, free], np.ix_(free, free)
    sd = np.sqrt(square[free])
    doubt = drawn.doubt[inner] / np.square(np.outer(sd, sd))
    np.fill_diagonal(doubt, 0.0)
    values, vectors = np.linalg.eigh(z.T @ z / len(z) / np.outer(sd, sd))
    square = np.square(vectors)
    errors = np.sqrt(2.0 * np.sum(square * (doubt @ square), axis=0)) / np.maximum(values, 1e-12)
    worst = int(np.argmax(errors))
    columns = np.flatnonzero(free)[np.argsort(-square[:, worst], kind="stable")[:2]]
    return Direction(float(errors[worst]), tuple(int(one) for one in columns))


def triangle(vector: np.ndarray, dimension: int) -> np.ndarray:
    """Return the symmetric matrix that `pack_symmetric` has packed into `vector`."""
    matrix = np.zeros((dimension, dimension))
    upper = np.triu_indices(dimension)
    matrix[upper] = vector / np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T


def independent(
    layout: Layout, what: Counted, found: Marginals, scale: np.ndarray, draws: int = DRAWS
) -> np.ndarray:
    """Return synthetic rows z = scale∘(x − centre), drawn from the marginals as if all variables
    were independent.
    """
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
    """Return synthetic rows z = scale∘(x − centre) such that u = z/‖z‖ has the released second
    moment `moment`, apart from its noise.

    The released correlations are shrunk towards 0, because they contain noise (`_shrunk`).
    Correlations of u are smaller than those of z, because records in which many columns are large
    together have the longest z. The correlations R of z are therefore found by iterating R ← R + S
    − U, where S are the shrunk correlations and U the correlations of the synthetic u. The R with
    the smallest ‖S − U‖ is used. Independent rows are transformed to these correlations by the
    linear map that moves the rows least (optimal transport of Gaussians). Every column keeps its
    released variance.
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
    floor = _floor(noise, int(np.sum(free)))
    moved, gain = _matched(z, free, between | between.T, shrunk, outer, sd, floor)
    doubt = gain**2 * doubt * np.square(np.outer(sd, sd)) + _count_doubt(found, scale, free)
    return Synthetic(moved, doubt)


def _matched(
    z: np.ndarray,
    free: np.ndarray,
    among: np.ndarray,
    wanted: np.ndarray,
    outer: np.ndarray,
    sd: np.ndarray,
    floor: float,
) -> tuple[np.ndarray, float]:
    """Transform the rows z so that u = z/‖z‖ has the second moment `wanted`·`outer` for the pairs
    of columns in the mask `among`.

    Return the rows, and the ratio (change of the correlations of z)/(change of those of u), which
    is at least 1.
    """
    inner = np.ix_(free, free)
    among, wanted, outer, sd = among[inner], wanted[inner], outer[inner], sd[free]
    standard, moved = z[:, free] / sd, z.copy()
    before = standard.T @ standard / len(z)
    known = np.where(among, 0.0, before)
    length = np.sqrt(np.diagonal(before))

    def rows_with(correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = standard @ _transport(before, known + correlation, floor)
        rows *= length / np.maximum(np.sqrt(np.mean(rows * rows, axis=0)), 1e-12)
        trial = z.copy()
        trial[:, free] = rows * sd
        unit = _unit(trial)[:, free]
        return trial, np.where(among, unit.T @ unit / len(z) / outer, 0.0)

    correlation = best = wanted
    smallest = np.inf
    for turn in range(MATCHES):
        trial, found = rows_with(correlation)
        gap = np.where(among, wanted - found, 0.0)
        far = float(np.sum(np.square(gap)))
        if far < smallest or not turn:
            moved, best, smallest = trial, correlation, far
        correlation = np.where(among, np.clip(correlation + gap, -MOST, MOST), 0.0)
    least = max(float(np.linalg.eigvalsh(known + best)[0]), floor)
    step = min(PROBE, PROBE_NORM / np.sqrt(len(sd)), 0.5 * least)
    change = np.where(among, _signs(len(sd)) * step, 0.0)
    # Both sides use the same draws, so that the draws' own correlations cancel.
    response = rows_with(best + change)[1] - rows_with(best - change)[1]
    return moved, _ratio_of_changes(2.0 * change, response)


def _floor(noise: np.ndarray, columns: int) -> float:
    """Return the smallest eigenvalue of the correlation matrix of z that noise leaves visible.

    `noise` are the variances of the noise in the correlations of u. Symmetric noise of sd s off the
    diagonal has eigenvalues up to about 2s(√p − 1) with p = `columns`. Correlations of z change by
    about 1 + 2/p times as much as those of u.
    """
    if not len(noise):
        return MOST_FLOOR
    entry = (1.0 + 2.0 / columns) * float(np.sqrt(np.median(noise)))
    return float(np.clip(2.0 * entry * (np.sqrt(columns) - 1.0), LEAST_FLOOR, MOST_FLOOR))


def _ratio_of_changes(change: np.ndarray, response: np.ndarray) -> float:
    """Return ‖change‖²/⟨change, response⟩, clipped to [1, `MOST_GAIN`], or 1 if `change` is 0."""
    square, along = float(np.sum(np.square(change))), float(np.sum(change * response))
    if square == 0:
        return 1.0
    return max(1.0, square / along) if along * MOST_GAIN > square else MOST_GAIN


def _signs(size: int) -> np.ndarray:
    """Return a fixed symmetric matrix of random signs."""
    upper = np.triu(np.random.default_rng(SEED).choice([-1.0, 1.0], (size, size)))
    return upper + np.triu(upper, 1).T


def _unit(z: np.ndarray) -> np.ndarray:
    """Return z/‖z‖ for each row z."""
    length = np.sqrt(np.sum(z * z, axis=1, keepdims=True))
    return z / np.where(length > 0, length, 1.0)


def _shrunk(seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return posterior mean and variance of each correlation, given its noisy value in `seen` and
    the variance of this noise in `noise`.

    The prior is a mixture of centred normals with the standard deviations `SIZES`. The weights of
    the mixture are estimated by maximum likelihood (empirical Bayes) with the EM algorithm. If most
    correlations are small, small values are shrunk to 0 and large values are kept.
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
    """Return the variance of the error that noise in the counts causes in each entry of the second
    moment of z.

    The counts determine the mean and the variance of each column. The mean is the second moment of
    the column with the constant.
    """
    square = np.square(scale)
    doubt = np.diag(np.where(free, np.square(square) * found.variance_error, 0.0))
    for place in np.flatnonzero(~free):
        row = np.where(free, square[place] * square * found.centre_error, 0.0)
        doubt[place] += row
        doubt[:, place] += row
    return doubt


def _transport(before: np.ndarray, after: np.ndarray, floor: float) -> np.ndarray:
    """Return the matrix T that maps vectors of covariance A = `before` to covariance B = `after`.

    T is A^(−½)(A^½ B A^½)^½ A^(−½). Eigenvalues of A and B below `floor` are raised to `floor`.
    """
    values, vectors = np.linalg.eigh(before)
    values = np.sqrt(np.maximum(values, floor))
    root, inverse = (vectors * values) @ vectors.T, (vectors / values) @ vectors.T
    values, vectors = np.linalg.eigh(after)
    target = (vectors * np.maximum(values, floor)) @ vectors.T
    values, vectors = np.linalg.eigh(root @ target @ root)
    return inverse @ ((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T) @ inverse
