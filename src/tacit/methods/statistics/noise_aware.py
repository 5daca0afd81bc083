"""Posteriors q from noisy sums, ignoring or including the noise.

**Sums.** The likelihood has the linear term b and the precision P. The released sums are b̃ = b + n
and P̃ = P + N. The noise n has standard deviation τ in every coordinate. The noise N is symmetric,
with standard deviation t on the diagonal and t/√2 off it, where t = τ/κ and κ is the weight of
second moments in the clip. For a conjugate Gaussian model b | P, θ ~ N(Pθ, P). The prior has mean
m₀ and precision Λ₀.

**One coordinate.** With a flat prior of P on P > 0, p(θ | b̃, P̃) is a mixture over P of Gaussians.
Given P, b̃ ~ N(Pθ, v) with v = P + τ², so θ has precision Λ₀ + P²/v. The weight of P in the mixture
is N(P̃ | P, t²)·N(b̃ | Pm₀, v + P²/Λ₀). The mixture is summed on a grid of P, and q has the mean
and variance of the mixture.

**Several coordinates.** b̃ − P̃θ = (b − Pθ) + n − Nθ has mean 0 and covariance V(θ) = P + τ²I +
½t²(‖θ‖²I + θθᵀ). P in V is replaced by the positive part of P̃, and θ in V by the mean of q, which
is found by iteration. Then q has precision Λ = Λ₀ + P̃V⁻¹P̃ and mean Λ⁻¹(Λ₀m₀ + P̃V⁻¹b̃). This q is
proper for any noise. It is accurate if the noise is smaller than P, and overconfident if the noise
is larger (docs/methods/statistics.md has the coverage).

**Counts.** For Dirichlet distributions the sums are noisy counts. Negative counts are set to zero.
If the noise is included, every word's counts are shrunk towards equal topics
(`tacit.models.lda.denoise`).

None of these methods accounts for clipping, whose effect on b and P is unknown.
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
    """Return the product of the prior and the likelihood in `sums`, after setting negative counts
    or precisions to 0.

    For a precision matrix, the negative eigenvalues are set to 0. The noise is ignored.
    """
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
    """Return the product of the prior and the likelihood in `sums`.

    No repair is needed, because each release was repaired before the summation.
    """
    del family, noise_sd, precision_sd
    return multiply(prior, sums)


def stepped_q(
    prior: Natural, sums: Natural, q: Natural, change: Natural, precision_sd: float
) -> Natural:
    """Return a mean-field q after one step from its last mean m.

    Let P̃ be the noisy precision in `sums`, t = `precision_sd` the sd of its noise, and Λ₀ the
    prior's precision. Let Δb and ΔP be the changes of linear term and precision in `change`. The
    step is

        Λ = Λ₀ + max(P̃, t),    m ← m + (Δb − ΔP∘m)/Λ.

    The releases were made at m, so Δb − ΔP∘m is the damping times the gradient at m, including the
    prior's gradient. The noise of P̃ does not affect it. If P̃ is above t, the result is prior ×
    `sums`. Otherwise P̃ may be near zero or negative, and dividing by it would move m too far.
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
    """Return a normal distribution with the mean and variance of the posterior of a single
    parameter θ.

    `sums` has the natural parameters of the likelihood with privacy noise: the linear term has
    noise of sd `noise_sd`, and the precision has noise of sd `precision_sd`. The precision without
    noise is unknown. The posterior of θ is therefore computed for each precision on a grid, and
    these posteriors are averaged with the probability of each precision given `prior` and `sums`.
    """
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
