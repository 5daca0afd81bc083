"""Posteriors q from noisy sums, ignoring or including the noise.

The sums are b̃ = b + n and P̃ = P + N, where b and P are the likelihood's natural parameters, n has
standard deviation τ in every coordinate and N is symmetric with κ-scaled noise: t on the diagonal
and t/√2 off it, t = τ/κ. For a conjugate Gaussian model b | P, θ ~ N(Pθ, P).

**One coordinate.** With P flat on P > 0, p(θ | b̃, P̃) is a mixture over P of Gaussians: given P,
b̃ ~ N(Pθ, v), v = P + τ², so that θ has precision Λ₀ + P²/v and weight N(P̃ | P, t²)·N(b̃ | Pm₀, v +
P²/Λ₀). It is summed on a grid, and q has its mean and variance.

**Several coordinates.** b̃ − P̃θ = (b − Pθ) + n − Nθ has mean 0 and covariance V(θ) = P + τ²I +
½t²(‖θ‖²I + θθᵀ). With P in V replaced by the positive part of P̃ and V taken at the mean, which is
iterated, θ has precision Λ₀ + P̃V⁻¹P̃ and mean from Λ₀m₀ + P̃V⁻¹b̃. This is proper for any noise.
It is accurate if the noise is smaller than P, and overconfident if it is larger
(docs/methods/statistics.md has the coverage).

**Counts.** For Dirichlet distributions the sums are noisy counts. Negative counts are set to zero;
if the noise is included, every word's counts are shrunk towards equal topics
(`tacit.models.lda.denoise`).

None of these accounts for clipping, whose effect on b and P is unknown.
"""

from __future__ import annotations

import numpy as np

from tacit.expfam import Dirichlets, Family, FullGaussian, Natural
from tacit.models.lda.denoise import Noisy, shrink
from tacit.pvi import multiply

GRID_POINTS, GRID_SDS = 401, 7.0
FIXED_POINT_STEPS = 30


def plain_q(
    family: Family, prior: Natural, sums: Natural, noise_sd: float, precision_sd: float
) -> Natural:
    """Return prior times sums, with the sums' precision replaced by its positive part."""
    del noise_sd, precision_sd
    if isinstance(family, Dirichlets):
        return multiply(prior, {"log": np.maximum(sums["log"], 0.0)})
    if isinstance(family, FullGaussian):
        positive = {**sums, "quadratic": -0.5 * _positive(-2.0 * sums["quadratic"])}
    else:
        positive = {**sums, "quadratic": np.minimum(sums["quadratic"], 0.0)}
    return multiply(prior, positive)


def summed_q(
    family: Family, prior: Natural, sums: Natural, noise_sd: float, precision_sd: float
) -> Natural:
    """Return prior times sums; each release was made proper before it was added."""
    del family, noise_sd, precision_sd
    return multiply(prior, sums)


def stepped_q(
    prior: Natural, sums: Natural, q: Natural, change: Natural, precision_sd: float
) -> Natural:
    """Return a mean-field q: a step from the last mean m, with at least the precision of its noise.

    The releases were made at m, so Δb − ΔP∘m is ρ times the gradient at m, including the prior,
    without the precision's noise:

        Λ = Λ₀ + max(P̃, t),    m ← m + (Δb − ΔP∘m)/Λ.

    If P̃ is above its noise t this is prior times sums. Otherwise P̃ may be near zero or negative,
    and dividing by it would move m too far.
    """
    mean = q["linear"] / (-2.0 * q["quadratic"])
    step = change["linear"] + 2.0 * change["quadratic"] * mean
    found = np.maximum(-2.0 * sums["quadratic"], precision_sd)
    precision = -2.0 * prior["quadratic"] + found
    return {"linear": precision * mean + step, "quadratic": -0.5 * precision}


def aware_q(
    family: Family, prior: Natural, sums: Natural, noise_sd: float, precision_sd: float
) -> Natural:
    """Return a posterior q whose uncertainty includes the noise in the sums."""
    if isinstance(family, Dirichlets):
        return multiply(prior, {"log": shrink(Noisy(average=sums["log"], noise_sd=noise_sd))})
    if family.dimension == 1:
        return _mixed(prior, sums, noise_sd, precision_sd)
    assert isinstance(family, FullGaussian)
    known, start = -2.0 * prior["quadratic"], prior["linear"]
    matrix, linear = -2.0 * sums["quadratic"], sums["linear"]
    identity = np.eye(family.dimension)
    base = _positive(matrix) + noise_sd**2 * identity
    mean = np.linalg.solve(known, start)
    for _ in range(FIXED_POINT_STEPS):
        spread = np.outer(mean, mean) + (mean @ mean) * identity
        gain = np.linalg.solve(base + 0.5 * precision_sd**2 * spread, matrix).T
        precision = known + _symmetric(gain @ matrix)
        # Half steps, because the covariance V grows with the mean.
        mean = 0.5 * (mean + np.linalg.solve(precision, start + gain @ linear))
    return {"linear": precision @ mean, "quadratic": -0.5 * precision}


def _mixed(prior: Natural, sums: Natural, noise_sd: float, precision_sd: float) -> Natural:
    """Return a normal q with mean and variance of the mixture over P, computed on a grid."""
    shape = np.shape(prior["quadratic"])
    known = -2.0 * float(np.squeeze(prior["quadratic"]))
    start = float(prior["linear"][0]) / known
    found = -2.0 * float(np.squeeze(sums["quadratic"]))
    linear = float(sums["linear"][0])
    low = max(found - GRID_SDS * precision_sd, 0.0)
    high = max(found, 0.0) + GRID_SDS * precision_sd
    grid = low + (high - low) * (np.arange(GRID_POINTS) + 0.5) / GRID_POINTS
    v = grid + noise_sd**2
    precision = known + grid**2 / v
    means = (known * start + grid * linear / v) / precision
    wide = v + grid**2 / known
    score = (
        -0.5 * ((found - grid) / precision_sd) ** 2
        - 0.5 * (linear - grid * start) ** 2 / wide
        - 0.5 * np.log(wide)
    )
    weight = np.exp(score - score.max())
    weight /= weight.sum()
    mean = weight @ means
    variance = weight @ (1.0 / precision + (means - mean) ** 2)
    return {
        "linear": np.array([mean / variance]),
        "quadratic": np.full(shape, -0.5 / variance),
    }


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)


def _positive(matrix: np.ndarray) -> np.ndarray:
    sizes, axes = np.linalg.eigh(_symmetric(matrix))
    return _symmetric((axes * np.maximum(sizes, 0.0)) @ axes.T)
