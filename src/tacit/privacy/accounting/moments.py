"""The moments accountant, by numerical integration (Abadi et al. 2016; MEng eqs 2.8–2.17).

The log moments α(λ) of the privacy loss add over adaptive steps (2.8) and give ε by the tail bound
(2.9) for whole λ = 1..32, as in the sources. It is looser than `rdp` and `pld`; it exists to
reproduce published figures.

Formal guarantee: α(λ) = ln max(E₁, E₂) bounds both directions; the quadrature converges
exponentially, and 1e-12 per step is added for rounding.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from tacit.privacy.accounting.composition import Steps
from tacit.privacy.accounting.steps import Step

LAMBDAS = np.arange(1, 33)

_ROUNDING = 1e-12

# Below this noise multiplier the integrals would need too many points. The moments without sampling
# bound them, by quasi-convexity.
_SMALLEST_NOISE = 0.02


def refusal(step: Step) -> str | None:
    """Refuse sampling under replace-one, which compares two mixtures.

    The integrals compare one mixture with a Gaussian.
    """
    if step.scheme == "all" or (step.scheme == "poisson" and step.one_way):
        return None
    return (
        f"the moments accountant has no bound for {step.scheme} sampling under replace-one: "
        "use 'pld'"
    )


def epsilon(steps: Steps, delta: float) -> float:
    """Return ε = min over λ of (α(λ) − ln δ) / λ (MEng eq. 2.11)."""
    return float(np.min((_compose(steps) - math.log(delta)) / LAMBDAS))


def delta(steps: Steps, epsilon: float) -> float:
    """Return δ = min over λ of exp(α(λ) − λε) (MEng eq. 2.10)."""
    return math.exp(min(0.0, float(np.min(_compose(steps) - LAMBDAS * epsilon))))


def _compose(steps: Steps) -> np.ndarray:
    return np.sum([count * _log_moments(step) for step, count in steps], axis=0)


@functools.lru_cache(maxsize=256)
def _log_moments(step: Step) -> np.ndarray:
    """Return α(λ) of one step: λ(λ+1)/(2σ²) without sampling, else ln max(E₁, E₂) (2.15)."""
    with np.errstate(over="ignore"):
        unsampled = LAMBDAS * (LAMBDAS + 1) * np.float64(step.far) ** 2 / 2
    sigma = 1 / step.far
    if step.scheme == "all" or sigma < _SMALLEST_NOISE:
        return unsampled
    first = [_log_e1(sigma, step.rate, int(moment)) for moment in LAMBDAS]
    second = [_log_e2(sigma, step.rate, int(moment)) for moment in LAMBDAS]
    return np.minimum(np.maximum(np.maximum(first, second), 0.0) + _ROUNDING, unsampled)


def _log_e1(sigma: float, rate: float, moment: int) -> float:
    """Return ln E₁ = ln ∫ μ₀ (μ₀/μ₁)^λ (2.16); the integrand's poles are πσ² off the real axis."""
    spacing = min(sigma, sigma**2) / 16
    x = np.arange(-12 * sigma, 12 * sigma + spacing, spacing)
    return _log_integral(x, spacing, sigma, -moment * _log_ratio(x, sigma, rate))


def _log_e2(sigma: float, rate: float, moment: int) -> float:
    """Return ln E₂ = ln ∫ μ₁ (μ₁/μ₀)^λ (2.17): Gaussians of sd σ at 0, 1, …, λ + 1."""
    spacing = sigma / 8
    x = np.arange(-12 * sigma, moment + 1 + 12 * sigma + spacing, spacing)
    return _log_integral(x, spacing, sigma, (moment + 1) * _log_ratio(x, sigma, rate))


def _log_ratio(x: np.ndarray, sigma: float, rate: float) -> np.ndarray:
    """Return ln μ₁(x)/μ₀(x) = ln (1 − q + q e^{(2x−1)/(2σ²)}) (2.13, 2.14, with Δ = 1)."""
    return np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))


def _log_integral(x: np.ndarray, spacing: float, sigma: float, factor: np.ndarray) -> float:
    """Return ln ∫ μ₀(x) e^{factor(x)} dx by the trapezoidal rule, in logarithms."""
    log_density = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    terms = log_density + factor
    highest = float(terms.max())
    return highest + math.log(float(np.exp(terms - highest).sum())) + math.log(spacing)
