"""A posterior that accounts for its noise, and the coverage of its intervals.

The released statistic is a = A + n₁, b = B + n₂ with n ~ N(0, τ²I), A = Σx², B = Σxy. Given A,
B ~ N(θA, σ_e²A), hence b ~ N(θA, v) with v = σ_e²A + τ². With θ ~ N(0, 1/λ) and A flat on A > 0

    p(θ | a, b) ∝ ∫ N(a | A, τ²) N(b | θA, v) N(θ | 0, 1/λ) dA,

and for every A the integrand is a Gaussian in θ: precision λ + A²/v, mean (Ab/v)/precision, weight
N(a | A, τ²)·N(b | 0, v + A²/λ). So the posterior is a mixture over A, here on a grid. It is not
Gaussian, but its moments and probabilities are sums. The plain q is the component A = a with τ = 0.
Clipping is not part of the model: it changes A and B by unknown amounts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr
from scipy.stats import norm

from tacit_studies.meng_kernel import PRIOR_SD

POINTS, REACH = 201, 7.0


class Mixture(NamedTuple):
    """Mixtures of Gaussians in θ: each array is (cases, grid), with one mixture per row."""

    weight: np.ndarray
    mean: np.ndarray
    sd: np.ndarray

    def below(self, theta: np.ndarray) -> np.ndarray:
        """P(θ' ≤ θ) of every case."""
        return np.sum(self.weight * ndtr((theta[:, None] - self.mean) / self.sd), axis=1)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation."""
        mean = np.sum(self.weight * self.mean, axis=1)
        square = np.sum(self.weight * (self.sd**2 + (self.mean - mean[:, None]) ** 2), axis=1)
        return mean, np.sqrt(square)


def noise_aware(
    statistic: np.ndarray, noise_sd: np.ndarray, tau: float, prior_sd: float = PRIOR_SD
) -> Mixture:
    """Return the posterior of θ for each released statistic, as a mixture.

    `statistic` has one row (a, b) per case, `noise_sd` is σ_e, and `tau` is the sd τ of the privacy
    noise; the module's docstring has the formula.
    """
    a, b = statistic[:, :1], statistic[:, 1:]
    low = np.maximum(a - REACH * tau, 0.0)
    high = np.maximum(a, 0.0) + REACH * tau
    grid = low + (high - low) * (np.arange(POINTS) + 0.5) / POINTS
    known = prior_sd**-2
    v = noise_sd[:, None] ** 2 * grid + tau**2
    precision = known + grid**2 / v
    wide = v + grid**2 / known
    score = -0.5 * ((a - grid) / tau) ** 2 - 0.5 * b**2 / wide - 0.5 * np.log(wide)
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    return Mixture(weight, grid * b / v / precision, precision**-0.5)


def plain_q(
    statistic: np.ndarray, noise_sd: np.ndarray, prior_sd: float = PRIOR_SD
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the q that treats (a, b) as the exact sums, made proper (`proper`)."""
    precision = np.maximum(statistic[:, 0], 0.0) / noise_sd**2 + prior_sd**-2
    return statistic[:, 1] / noise_sd**2 / precision, precision**-0.5


def coverage(chance: np.ndarray, level: float) -> float:
    """The share of cases whose central interval contains θ, from the posterior's P(θ' ≤ θ)."""
    return float(np.mean(np.abs(chance - 0.5) <= level / 2))


def plain_chance(mean: np.ndarray, sd: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """P(θ' ≤ θ) under N(mean, sd²)."""
    return np.asarray(norm.cdf(theta, mean, sd))
