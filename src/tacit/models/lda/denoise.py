"""Topics from noisy statistics: what may be done with a release for free, because it is one.

"zero" is the published rule: negative entries are set to zero in every step (VIPS, section 4).
What is left of the noise is positive, so that every word of every topic gets 0.4 noise_sd words
that nobody wrote. "shrink" keeps the noisy average of all steps, whose noise is known and falls,
and estimates the statistics from it afresh after each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Array = np.ndarray
DenoiseName = Literal["shrink", "zero"]
FLOOR = 0.1
"""Of an entry, in units of what it would be if topics were alike, or of the noise if that is less:
a word must not become impossible in a topic because its noise was negative."""


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """A running average of noisy statistics, and the sd of the noise in it."""

    average: Array
    noise_sd: float

    def moved(self, statistics: Array, noise_sd: float, rho: float) -> Noisy:
        """With one more release: (1 − ρ) of the average and ρ of the release."""
        return Noisy(
            average=(1.0 - rho) * self.average + rho * statistics,
            noise_sd=float(np.hypot((1.0 - rho) * self.noise_sd, rho * noise_sd)),
        )


def shrink(noisy: Noisy) -> Array:
    """Non-negative estimates of the statistics behind a noisy average, topics × words.

    μ_kw = (sum of topic k)·(share of word w) would be expected if the topics were alike; its sums
    run over many entries and have little noise. Each word is then moved towards μ by as much as its
    noise explains of its spread over the topics (James and Stein 1961, with a factor a word):

        ŝ_kw = μ_kw + b_w (s̃_kw − μ_kw),   b_w = max(0, 1 − noise_sd² / mean_k (s̃_kw − μ_kw)²).

    >>> exact = np.array([[5.0, 1.0], [0.0, 4.0]])
    >>> bool(np.allclose(shrink(Noisy(average=exact, noise_sd=0.0)), exact))
    True
    """
    average, sd = noisy.average, noisy.noise_sd
    topics, words = average.shape
    # A sum that drowned in its noise counts as half of that: neither nothing nor a negative number.
    each = np.maximum(average.sum(axis=0), 0.5 * np.sqrt(topics) * sd)
    rows = np.maximum(average.sum(axis=1, keepdims=True), np.sqrt(words) * sd)
    alike = rows * each / max(each.sum(), np.finfo(float).tiny)
    spread = np.mean(np.square(average - alike), axis=0)
    trust = np.clip(1.0 - sd**2 / np.maximum(spread, np.finfo(float).tiny), 0.0, 1.0)
    return np.maximum(alike + trust * (average - alike), FLOOR * np.minimum(alike, sd))
