"""Lower bounds of δ and ε that share no code with `tacit.privacy.accounting`.

Each release is described by two mixtures of normals with standard deviation 1. They are the
distributions of one coordinate of the release, divided by the sd of its noise, for two neighbouring
data sets. The privacy loss is integrated over a fine partition of the real line. In every cell it
is replaced by the smaller of the losses at the two ends, rounded down to a grid. The losses of
several releases are added by a fast Fourier transform. All rounding errors make the bound smaller,
so an accountant that reports less than this bound is wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from tacit.privacy.events import Adjacency, GaussianEvent, Poisson, WithoutReplacement

Mixture = tuple[tuple[float, float], ...]
"""A mixture of normals with sd 1, as pairs of weight and mean."""
Pair = tuple[Mixture, Mixture]

_CELLS = 20_001
_TAIL = 8.0


class LossBelow:
    """A lower bound of the privacy loss L of several releases: L = `losses[i]` with probability
    `masses[i]`.
    """

    def __init__(self, losses: np.ndarray, masses: np.ndarray) -> None:
        positive = losses > 0
        self.losses, masses = losses[positive], masses[positive]
        # δ(ε) = P(L > ε) − e^ε E[e^−L; L > ε], summed from the small end.
        self._above = np.cumsum(masses[::-1])[::-1]
        self._weighted = np.cumsum((masses * np.exp(-self.losses))[::-1])[::-1]

    def delta(self, epsilon: float) -> float:
        """Return a lower bound of δ(ε) = E[max(0, 1 − e^{ε−L})], where L is the privacy loss."""
        place = int(np.searchsorted(self.losses, epsilon, side="right"))
        if place == len(self.losses):
            return 0.0
        return float(self._above[place] - math.exp(epsilon) * self._weighted[place])

    def epsilon(self, delta: float) -> float:
        """Return a lower bound of the smallest ε ≥ 0 at which δ is at most `delta`."""
        if self.delta(0.0) <= delta:
            return 0.0
        high = float(self.losses[-1])
        answer = cast(float, brentq(lambda e: self.delta(e) - delta, 0.0, high, xtol=1e-9))
        return max(0.0, answer - 2e-9)


@dataclass(frozen=True)
class ExactGaussian:
    """The privacy loss of one Gaussian release without sampling.

    `mu` is the distance between the neighbours' sums, divided by the noise sd. Several such
    releases are equivalent to one with a larger `mu`.
    """

    mu: float

    def delta(self, epsilon: float) -> float:
        """Return a lower bound of δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle and Wang 2018).

        μ is `mu` and Φ the standard normal distribution function.
        """
        reached = float(ndtr(self.mu / 2 - epsilon / self.mu))
        allowed = math.exp(epsilon + float(log_ndtr(-self.mu / 2 - epsilon / self.mu)))
        return max(0.0, reached - allowed - 1e-13 * reached)

    def epsilon(self, delta: float) -> float:
        """Return a lower bound of the smallest ε ≥ 0 at which δ is at most `delta`, with a relative
        error of 1e-9.
        """
        if self.delta(0.0) <= delta:
            return 0.0
        high = self.mu**2 / 2 + self.mu * (1 + math.sqrt(-2 * math.log(delta)))
        answer = cast(float, brentq(lambda e: self.delta(e) - delta, 0.0, high, xtol=1e-12))
        return answer * (1 - 1e-9)


def compose_below(
    pairs: Sequence[tuple[Pair, int]], *, grid: float = 4e-4, size: int = 2**17
) -> LossBelow:
    """Return a lower bound of the privacy loss of several independent releases.

    `pairs` lists pairs of distributions, each with its number of releases. The loss of a pair must
    be monotone in the released value. The composition is computed by a Fourier transform of `size`
    points with distance `grid`, centred on the mean of the total loss. These points must cover
    nearly all of the probability of the total loss.
    """
    spectrum, offset, mean = np.ones(size // 2 + 1, dtype=complex), 0, 0.0
    for (p, q), count in pairs:
        cells, weights = _cells(p, q, grid)
        first = int(cells.min())
        mass = np.bincount(cells - first, weights=weights, minlength=size)
        if mass.size > size:
            raise ValueError(
                f"the range of a privacy loss, {mass.size * grid:g}, needs more than {size} "
                f"points; use a grid step larger than {grid:g}"
            )
        spectrum = spectrum * np.fft.rfft(mass) ** count
        offset += count * first
        mean += count * float(weights @ cells)
    start = int(mean) - size // 2
    numbers = np.arange(start, start + size)
    return LossBelow(numbers * grid, np.fft.irfft(spectrum, size)[(numbers - offset) % size])


def oracles(
    events: Sequence[GaussianEvent], adjacency: Adjacency
) -> list[ExactGaussian | LossBelow]:
    """Return lower bounds of the privacy loss of the events.

    There is one bound per order of the two neighbours. If no event is sampled, both orders have the
    same bound, which is returned once.
    """
    mu = math.sqrt(sum(e.count * distance(e, adjacency) ** 2 for e in events if not e.sampling))
    sampled = [event for event in events if event.sampling]
    if not sampled:
        return [ExactGaussian(mu)]
    return [_composed(tuple(sampled), mu, adjacency, reverse) for reverse in (False, True)]


@functools.lru_cache(maxsize=64)
def _composed(
    sampled: tuple[GaussianEvent, ...], mu: float, adjacency: Adjacency, reverse: bool
) -> LossBelow:
    pairs = [(worst_pair(event, adjacency), event.count) for event in sampled]
    if mu > 0:
        pairs.append(((((1.0, 0.0),), ((1.0, mu),)), 1))
    return compose_below([((q, p) if reverse else (p, q), count) for (p, q), count in pairs])


def worst_pair(event: GaussianEvent, adjacency: Adjacency) -> Pair:
    """Return the distributions of one coordinate of a release for the worst-case pair of
    neighbours.

    With the clip C, the pairs are:

    * Poisson sampling, add-or-remove-one: the unit contributes C, or is absent.
    * Poisson sampling, replace-one: the unit contributes C to one data set and −C to the other. If
      the event is `nonnegative`, the two contributions are orthogonal vectors of norm C, projected
      onto their difference.
    * Sampling without replacement, replace-one: in one data set, all units make the same
      contribution. In the other one, the contribution of the replaced unit differs by the full
      sensitivity.
    """
    assert event.sampling is not None, "an event without sampling has a closed form"
    rate, clip = event.sampling.rate, event.clip / event.noise_sd
    if isinstance(event.sampling, WithoutReplacement):
        return ((1 - rate, 0.0), (rate, distance(event, adjacency))), ((1.0, 0.0),)
    assert isinstance(event.sampling, Poisson)
    if adjacency == "add-or-remove-one":
        return ((1 - rate, 0.0), (rate, clip)), ((1.0, 0.0),)
    half = distance(event, adjacency) / 2
    return ((1 - rate, 0.0), (rate, half)), ((1 - rate, 0.0), (rate, -half))


def distance(event: GaussianEvent, adjacency: Adjacency) -> float:
    """Return the event's sensitivity divided by its noise sd.

    With the clip C, the sensitivity is C for add-or-remove-one; for replace-one it is 2C, or √2·C
    if the event is `nonnegative`.
    """
    if adjacency == "add-or-remove-one":
        return event.clip / event.noise_sd
    apart = math.hypot(event.clip, event.clip) if event.nonnegative else 2 * event.clip
    return apart / event.noise_sd


def density(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    """Compute the density of a mixture of normals with standard deviation 1."""
    return sum(w * np.exp(-((x - m) ** 2) / 2) for w, m in mixture) / np.sqrt(2 * np.pi)


def _cells(p: Mixture, q: Mixture, grid: float) -> tuple[np.ndarray, np.ndarray]:
    # For each cell of the line: a lower bound of the privacy loss ln p/q, in multiples of `grid`,
    # and the probability of the cell under p.
    means = [mean for _, mean in (*p, *q)]
    x = np.linspace(min(means) - _TAIL, max(means) + _TAIL, _CELLS)
    losses = np.log(density(p, x)) - np.log(density(q, x))
    below = np.floor(np.minimum(losses[1:], losses[:-1]) / grid).astype(int)
    reached = sum(weight * ndtr(x - mean) for weight, mean in p)
    return below, np.diff(reached)
