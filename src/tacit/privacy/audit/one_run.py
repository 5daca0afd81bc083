"""Audit of a single run that contains many canaries.

A canary is one of two artificial records, chosen by a fair coin. The auditor sees the result of the
run and guesses the coins of the canaries about which it is most certain. If the run is (ε,
δ)-private, each guess is correct with probability at most e^ε/(1 + e^ε), up to a term proportional
to δ. More correct guesses than this allows are evidence for a larger ε (Steinke, Nasr and Jagielski
2023).

A run of Gaussian releases without sampling has a stronger claim than one pair (ε, δ): two
neighbouring data sets are no easier to distinguish than N(0, 1) and N(μ, 1). The bound of
Mahloujifar, Melis and Chaudhuri (2024) uses this claim, and gives larger lower bounds on ε.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from tacit.privacy.audit.bounds import gaussian_epsilon

CONFIDENCE = 0.95
"""Confidence of the bound, as in Steinke, Nasr and Jagielski (2023). At 99.99 %, the permitted
error probability would be so small that one term of their bound, which is proportional to δ, could
exceed it.
"""
_LARGEST = 50.0
_LARGEST_DISTANCE = 25.0


def canaries_epsilon(
    scores: np.ndarray,
    coins: np.ndarray,
    delta: float,
    *,
    gaussian: bool = False,
    confidence: float = CONFIDENCE,
) -> float:
    """Return a lower bound on ε from one score per canary.

    A larger score means that the coin of the canary is more likely to be True. The number of
    guesses must not depend on the scores. Therefore three numbers are tried (all canaries, half of
    them and an eighth of them), each with a third of the error probability.

    Parameters
    ----------
    scores
        One score per canary.
    coins
        Coin of each canary: a boolean that determines which of its two records was used.
    delta
        δ of the claim.
    gaussian
        True if the run consists of Gaussian releases without sampling.
    confidence
        Probability that the bound holds.
    """
    count = len(scores)
    certain = np.argsort(-np.abs(scores - np.median(scores)))
    guesses = scores > np.median(scores)
    best = 0.0
    for made in {count, max(1, count // 2), max(1, count // 8)}:
        chosen = certain[:made]
        right = int(np.sum(guesses[chosen] == coins[chosen]))
        error = (1.0 - confidence) / 3.0
        bound = gaussian_guesses_epsilon if gaussian else guesses_epsilon
        best = max(best, bound(count, made, right, delta, error=error))
    return best


def gaussian_guesses_epsilon(
    canaries: int, guesses: int, right: int, delta: float, *, error: float
) -> float:
    """Return a lower bound on ε at δ for a run of Gaussian releases without sampling.

    Such a run is as private as one pair of normal distributions, N(0, 1) and N(μ, 1). The result is
    the ε of the largest μ that is ruled out, with error probability `error`, if `right` of
    `guesses` guesses about the coins of `canaries` canaries are correct.

    >>> gaussian_guesses_epsilon(1000, 100, 50, 1e-5, error=1e-4)
    0.0
    """
    if not ruled_out(canaries, guesses, right, 0.0, error):
        return 0.0
    low, high = 0.0, _LARGEST_DISTANCE
    while high - low > 1e-4:
        middle = (low + high) / 2.0
        if ruled_out(canaries, guesses, right, middle, error):
            low = middle
        else:
            high = middle
    return gaussian_epsilon(low, delta)


def ruled_out(canaries: int, guesses: int, right: int, mu: float, error: float) -> bool:
    """True if `right` or more correct guesses have a probability below `error`.

    It is assumed that neighbouring data sets are no easier to distinguish than N(0, 1) and N(μ, 1).

    Let c be the number of guesses, m the number of canaries and p_i the probability of exactly i
    correct guesses. Let F(x) = Φ(Φ⁻¹(x) − μ), where Φ is the standard normal distribution function.
    For every j, define the sums

        r = Σ_{i ≥ j} (i/m) p_i   and   h = Σ_{i ≥ j} ((c − i + 1)/m) p_{i−1}.

    Then h ≥ F(r), by Theorem 9 of Mahloujifar et al. (2024). Suppose that `right` or more correct
    guesses have the probability `error`. The inequality gives a lower bound on p_i for i = right −
    1, and then for every smaller i. If r + h becomes larger than c/m, its largest possible value,
    the supposition is false.
    """
    mass = guesses / canaries
    r, h = error * right / canaries, error * (guesses - right) / canaries
    for number in range(right - 1, -1, -1):
        more = max(h, float(ndtr(ndtri(r) - mu)))
        if more == h:
            break
        r = min(1.0, r + number / (guesses - number) * (more - h))
        h = more
    return r + h > mass


def guesses_epsilon(
    canaries: int, guesses: int, right: int, delta: float, *, error: float
) -> float:
    """Return the largest ε that is ruled out by the number of correct guesses, with error
    probability `error`.

    `right` of `guesses` guesses about the coins of `canaries` canaries are correct.

    >>> guesses_epsilon(1000, 100, 50, 1e-5, error=1e-4)
    0.0
    """
    if guess_probability(canaries, guesses, right, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, _LARGEST
    if guess_probability(canaries, guesses, right, high, delta) <= error:
        return high
    while high - low > 1e-4:
        middle = (low + high) / 2.0
        if guess_probability(canaries, guesses, right, middle, delta) <= error:
            low = middle
        else:
            high = middle
    return low


def guess_probability(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """Return an upper bound on the probability of `right` or more correct guesses in an (ε,
    δ)-private run.

    The bound is Theorem 5.2 of Steinke, Nasr and Jagielski (2023).
    """
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    beyond = float(binom.sf(right - 1, guesses, chance))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    slope = float(np.max(below / np.arange(1, right + 1))) if right else 0.0
    return min(1.0, beyond + 2.0 * canaries * delta * slope)
