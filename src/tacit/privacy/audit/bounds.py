"""Lower bounds on ε from samples of the releases of two neighbouring data sets."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, log_ndtr, ndtr
from scipy.stats import chi2, normaltest

CONFIDENCE = 1.0 - 1e-4
"""Probability with which a lower bound is at most the true ε."""
_LARGEST = 60.0
_CUTS = 199
_NOT_NORMAL = 1e-6


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the smallest δ for which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable.

    The formula is that of Balle and Wang (2018).
    """
    above = float(ndtr(mu / 2 - epsilon / mu))
    return above - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε for which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable.

    The result is infinite if this ε is above 60.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    if not mu > 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    if not mu < 30 or gaussian_delta(_LARGEST, mu) > delta:
        return math.inf
    found = brentq(lambda one: gaussian_delta(one, mu) - delta, 0.0, _LARGEST)
    return float(found)  # pyright: ignore[reportArgumentType]


class _Test(NamedTuple):
    bound: float
    cut: float
    sign: float
    swapped: bool


def threshold_epsilon(
    scores: np.ndarray, others: np.ndarray, delta: float, *, confidence: float = CONFIDENCE
) -> float:
    """Return a lower bound on ε from scores of releases of two neighbouring data sets.

    The bound is valid for any distribution of the scores. One half of the scores is used to choose
    a threshold, and the other half to test it. Let p be the probability that a score of the first
    data set is beyond the threshold, and q the same probability for the second data set. (ε,
    δ)-privacy implies p ≤ e^ε·q + δ. The result is this bound on ε, with p and q replaced by
    Clopper–Pearson bounds.

    Parameters
    ----------
    scores, others
        Scores of independent releases of the two data sets.
    delta
        δ of the claim.
    confidence
        Probability that the bound holds.
    """
    error = (1.0 - confidence) / 2.0
    first, second = (np.asarray(one, float) for one in (scores, others))
    if min(len(first), len(second)) < 20:
        return 0.0
    pooled = np.concatenate([first[::2], second[::2]])
    cuts = np.unique(np.quantile(pooled, np.linspace(0.0, 1.0, _CUTS)))
    tests = [
        _Test(_bound(first[::2], second[::2], delta, error, *choice), *choice)
        for choice in ((cut, sign, swapped) for cut in cuts for sign in (1.0, -1.0)
                       for swapped in (False, True))
    ]  # fmt: skip
    best = max(tests)
    return _bound(first[1::2], second[1::2], delta, error, best.cut, best.sign, best.swapped)


def _bound(
    first: np.ndarray,
    second: np.ndarray,
    delta: float,
    error: float,
    cut: float,
    sign: float,
    swapped: bool,
) -> float:
    there, absent = (second, first) if swapped else (first, second)
    hits, false = int(np.sum(sign * there >= sign * cut)), int(np.sum(sign * absent >= sign * cut))
    low, high = lower_rate(hits, len(there), error), upper_rate(false, len(absent), error)
    return math.log((low - delta) / high) if low - delta > high else 0.0


def lower_rate(hits: int, of: int, error: float) -> float:
    """Return the Clopper–Pearson lower bound of a probability, from `hits` successes in `of`
    trials.

    The bound is above the true probability with probability at most `error`.
    """
    return 0.0 if hits == 0 else float(betaincinv(hits, of - hits + 1, error))


def upper_rate(hits: int, of: int, error: float) -> float:
    """Return the Clopper–Pearson upper bound of a probability, from `hits` successes in `of`
    trials.

    The bound is below the true probability with probability at most `error`.
    """
    return 1.0 if hits == of else float(betaincinv(hits + 1, of - hits, 1.0 - error))


def projected_distance(
    difference: np.ndarray, noise: np.ndarray, *, confidence: float = CONFIDENCE
) -> float | None:
    """Return a μ such that two neighbouring data sets are at least as distinguishable as N(0, 1)
    and N(μ, 1).

    The auditor knows the difference of the two exact sums, and has a sample of the noise. Along a
    unit vector w, the releases differ by w·difference. With an upper bound s on the standard
    deviation of w·noise, from a χ² distribution, |w·difference|/s is a lower bound on μ. Half of
    the sample is used to choose several vectors w, and the other half to compute these bounds. The
    result is the largest lower bound. It is None if the noise is not normal along any of the
    vectors; then use `threshold_epsilon`.

    Parameters
    ----------
    difference
        Difference of the exact sums, (d,).
    noise
        Noise of independent releases, (draws, d).
    confidence
        Probability that the bound holds.
    """
    train, test = noise[::2], noise[1::2]
    directions = _directions(difference, train)
    error = (1.0 - confidence) / max(1, len(directions))
    found = []
    for place, direction in enumerate(directions):
        moved = abs(float(direction @ difference))
        # The first direction is known before the noise is seen.
        projected = (noise if place == 0 and len(directions) > 1 else test) @ direction
        power = float(np.sum(projected**2))
        if moved > 0 and power == 0.0:
            return math.inf
        if len(np.unique(projected)) > 8 and normaltest(projected).pvalue < _NOT_NORMAL:
            continue
        found.append(moved / math.sqrt(power / float(chi2.ppf(error, len(projected)))))
    return max(found) if found else None


def _directions(difference: np.ndarray, noise: np.ndarray) -> list[np.ndarray]:
    """Return unit vectors along which the difference may be large relative to the noise."""
    size = float(np.linalg.norm(difference))
    if size == 0.0:
        return []
    unit = difference / size
    variance = np.mean(noise**2, axis=0)
    still = (variance == 0.0) & (difference != 0.0)
    if still.any():
        return [np.where(still, difference, 0.0)]
    found = [unit, unit / np.where(variance > 0, variance, 1.0)]
    if 1 < len(unit) <= len(noise) // 8:
        covariance = noise.T @ noise / len(noise)
        values, vectors = np.linalg.eigh(covariance)
        floor = 1e-12 * values[-1]
        found.append(vectors @ ((vectors.T @ unit) / np.maximum(values, floor)))
    return [one / np.linalg.norm(one) for one in found]
