"""Many canaries in one run (Steinke, Nasr and Jagielski 2023).

Each of m canaries is one of two records, chosen by a fair coin. The auditor sees the run's result
and guesses the coins of which it is most certain. If the run is (ε, δ)-private, the number of right
guesses is stochastically at most a binomial with success probability e^ε/(1 + e^ε), up to δ.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom

CONFIDENCE = 0.95
"""As in the paper: at 99.99 % the term with δ would dominate a run of this size."""
_LARGEST = 50.0


def canaries_epsilon(
    scores: np.ndarray, coins: np.ndarray, delta: float, *, confidence: float = CONFIDENCE
) -> float:
    """Lower bound on ε from the scores of m canaries, which are larger where the coin is True.

    The number of guesses must be fixed in advance: all of them, half, and an eighth are tried, each
    with a third of the error.
    """
    count = len(scores)
    certain = np.argsort(-np.abs(scores - np.median(scores)))
    guesses = scores > np.median(scores)
    best = 0.0
    for made in {count, max(1, count // 2), max(1, count // 8)}:
        chosen = certain[:made]
        right = int(np.sum(guesses[chosen] == coins[chosen]))
        error = (1.0 - confidence) / 3.0
        best = max(best, guesses_epsilon(count, made, right, delta, error=error))
    return best


def guesses_epsilon(
    canaries: int, guesses: int, right: int, delta: float, *, error: float
) -> float:
    """Largest ε that `right` of `guesses` right guesses about `canaries` coins rule out.

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
    """Bound on the probability of so many right guesses (ibid., Theorem 5.2)."""
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    beyond = float(binom.sf(right - 1, guesses, chance))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    slope = float(np.max(below / np.arange(1, right + 1))) if right else 0.0
    return min(1.0, beyond + 2.0 * canaries * delta * slope)
