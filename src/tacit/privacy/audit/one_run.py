"""Many canaries in one run.

Each of m canaries is one of two records, chosen by a fair coin. The auditor sees the run's result
and guesses the coins of which it is most certain. If the run is (ε, δ)-private, the number of right
guesses is stochastically at most a binomial with success probability e^ε/(1 + e^ε), up to δ
(Steinke, Nasr and Jagielski 2023). If the run consists of Gaussian releases without sampling, its
claim is stronger than one pair (ε, δ): no test distinguishes neighbours better than N(0, 1) from
N(μ, 1). Mahloujifar, Melis and Chaudhuri (2024) bound the guesses by the whole curve, which rules
out larger ε.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from tacit.privacy.audit.bounds import gaussian_epsilon

CONFIDENCE = 0.95
"""Confidence of the bound, as in the paper; at 99.99 % the term with δ would dominate a run of this
size.
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
    """Lower bound on ε from the scores of m canaries; a score tends to be larger if the canary's
    coin is True.

    The number of guesses must be fixed in advance: all of them, half, and an eighth are tried, each
    with a third of the error probability.

    Parameters
    ----------
    scores
        One score per canary.
    coins
        The coins.
    delta
        δ of the claim.
    gaussian
        Whether the claim is that of Gaussian releases without sampling.
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
    """Find the largest μ that `right` correct guesses out of `guesses` rule out, and return its ε
    at δ.

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
    """True if under μ-Gaussian privacy `right` or more correct guesses have a probability below
    `error`.

    With p_i the probability of exactly i right guesses of c, and F(x) = Φ(Φ⁻¹(x) − μ), privacy
    relates the mass r of right guesses to the mass h of wrong ones (Mahloujifar et al. 2024,
    Theorem 9): r = Σ_{i ≥ j} (i/m) p_i implies h = Σ_{i ≥ j} ((c − i + 1)/m) p_{i−1} ≥ F(r). If the
    tail from `right` on has the probability `error` or more, r and h of that tail are smallest if
    all its mass is at `right`. The smaller numbers of right guesses then have at least the mass
    that the inequality forces on them, from the largest downwards. If r + h exceeds the mass of all
    guesses, c/m, the tail cannot be that probable.
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
    """Find the largest ε that `right` correct guesses out of `guesses`, about `canaries` coins,
    rule out.

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
    """Bound on the probability of at least `right` correct guesses (ibid., Theorem 5.2)."""
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    beyond = float(binom.sf(right - 1, guesses, chance))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    slope = float(np.max(below / np.arange(1, right + 1))) if right else 0.0
    return min(1.0, beyond + 2.0 * canaries * delta * slope)
