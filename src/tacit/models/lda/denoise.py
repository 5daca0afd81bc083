"""Post-processing of noisy topic statistics, which costs no budget.

There are two rules. The rule "zero", which is published, sets negative entries to zero in every
step (VIPS, section 4). The noise that remains is positive, so every word of every topic gains 0.4
noise_sd on average. The rule "shrink" averages the noisy statistics over all steps. The noise of
the average is known and decreases. After each step, the exact statistics are estimated from this
average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Array = np.ndarray
DenoiseName = Literal["shrink", "zero"]
FLOOR = 0.1
"""A shrunk entry is at least this multiple of min(μ_kw, noise_sd), in the notation of `shrink`.
Otherwise negative noise could make a word impossible in a topic.
"""


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """A running average of noisy statistics, and the standard deviation of its noise."""

    average: Array
    noise_sd: float

    def moved(self, statistics: Array, noise_sd: float, rho: float) -> Noisy:
        """Return the average after a step of size `rho`, (1 − rho)·average + rho·statistics, with
        the standard deviation of its noise.
        """
        return Noisy(
            average=(1.0 - rho) * self.average + rho * statistics,
            noise_sd=float(np.hypot((1.0 - rho) * self.noise_sd, rho * noise_sd)),
        )


def shrink(noisy: Noisy) -> Array:
    """Return a non-negative shrinkage estimate ŝ of the exact statistics, of shape topics × words.

    The noisy statistics s̃ are `noisy.average`. They are shrunk towards μ, where μ_kw = (sum of
    topic k)·(share of word w) is their value if all topics were equal. μ has little noise because
    it contains sums over many entries. Each word w has a shrinkage factor b_w (James and Stein
    1961), which is small if noise explains most of the variance of the word over topics:

        ŝ_kw = μ_kw + b_w (s̃_kw − μ_kw),   b_w = max(0, 1 − noise_sd² / mean_k (s̃_kw − μ_kw)²).

    >>> exact = np.array([[5.0, 1.0], [0.0, 4.0]])
    >>> bool(np.allclose(shrink(Noisy(average=exact, noise_sd=0.0)), exact))
    True
    """
    average, sd = noisy.average, noisy.noise_sd
    topics, words = average.shape
    # A sum below half of its noise is raised to half of its noise, so that it stays positive.
    each = np.maximum(average.sum(axis=0), 0.5 * np.sqrt(topics) * sd)
    rows = np.maximum(average.sum(axis=1, keepdims=True), np.sqrt(words) * sd)
    alike = rows * each / max(each.sum(), np.finfo(float).tiny)
    spread = np.mean(np.square(average - alike), axis=0)
    trust = np.clip(1.0 - sd**2 / np.maximum(spread, np.finfo(float).tiny), 0.0, 1.0)
    return np.maximum(alike + trust * (average - alike), FLOOR * np.minimum(alike, sd))
