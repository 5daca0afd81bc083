"""The moments accountant, by numerical integration (Abadi et al. 2016; MEng eqs 2.8–2.17).

The log moment of a release is α(λ) = ln E[e^{λL}], where L is its privacy loss and λ = 1, 2, …, 32.
Log moments of adaptive releases add up (eq. 2.8), and a tail bound converts the sum to ε (eq. 2.9).
This accountant gives a larger ε than `rdp` and `pld`. It exists to reproduce published figures.

Formal guarantee: α(λ) is the larger of the log moments for the two directions, a unit that is added
or removed. The error of the numerical integration decreases exponentially with the number of
points, and 1e-12 per release is added for rounding.
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
    """Return the reason why this accountant cannot bound the privacy loss of `step`. Return None if
    the accountant can bound it.

    Sampling under replace-one is not supported.
    """
    # The integrals compare a mixture with a Gaussian; replace-one would compare two mixtures.
    if step.scheme == "all" or (step.scheme == "poisson" and step.one_way):
        return None
    return (
        f"the moments accountant has no bound for {step.scheme} sampling under replace-one: "
        "use 'pld'"
    )


def epsilon(steps: Steps, delta: float) -> float:
    """Return ε at δ: the smallest (α(λ) − ln δ)/λ over λ = 1, …, 32 (MEng eq. 2.11).

    α(λ) is the sum of the log moments of all releases.
    """
    return float(np.min((_compose(steps) - math.log(delta)) / LAMBDAS))


def delta(steps: Steps, epsilon: float) -> float:
    """Return δ at ε: the smallest exp(α(λ) − λε) over λ = 1, …, 32 (MEng eq. 2.10).

    α(λ) is the sum of the log moments of all releases.
    """
    return math.exp(min(0.0, float(np.min(_compose(steps) - LAMBDAS * epsilon))))


def _compose(steps: Steps) -> np.ndarray:
    return np.sum([count * _log_moments(step) for step, count in steps], axis=0)


@functools.lru_cache(maxsize=256)
def _log_moments(step: Step) -> np.ndarray:
    """Return the log moments ln E[e^{λL}] of one release with privacy loss L, for λ = 1, …, 32
    (MEng eq. 2.15).
    """
    with np.errstate(over="ignore"):
        unsampled = LAMBDAS * (LAMBDAS + 1) * np.float64(step.far) ** 2 / 2
    sigma = 1 / step.far
    if step.scheme == "all" or sigma < _SMALLEST_NOISE:
        return unsampled
    first = [_log_e1(sigma, step.rate, int(moment)) for moment in LAMBDAS]
    second = [_log_e2(sigma, step.rate, int(moment)) for moment in LAMBDAS]
    return np.minimum(np.maximum(np.maximum(first, second), 0.0) + _ROUNDING, unsampled)


def _log_e1(sigma: float, rate: float, moment: int) -> float:
    # ln ∫ μ₀ (μ₀/μ₁)^moment (MEng eq. 2.16), where μ₀ = N(0, σ²), q = `rate` and
    # μ₁ = (1 − q) N(0, σ²) + q N(1, σ²). The poles of the integrand are πσ² off the real axis,
    # which determines the spacing.
    spacing = min(sigma, sigma**2) / 16
    x = np.arange(-12 * sigma, 12 * sigma + spacing, spacing)
    return _log_integral(x, spacing, sigma, -moment * _log_ratio(x, sigma, rate))


def _log_e2(sigma: float, rate: float, moment: int) -> float:
    # ln ∫ μ₁ (μ₁/μ₀)^moment (MEng eq. 2.17): a mixture of normals of sd σ at 0, …, moment + 1.
    spacing = sigma / 8
    x = np.arange(-12 * sigma, moment + 1 + 12 * sigma + spacing, spacing)
    return _log_integral(x, spacing, sigma, (moment + 1) * _log_ratio(x, sigma, rate))


def _log_ratio(x: np.ndarray, sigma: float, rate: float) -> np.ndarray:
    # ln μ₁(x)/μ₀(x) (MEng eqs 2.13 and 2.14).
    return np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))


def _log_integral(x: np.ndarray, spacing: float, sigma: float, factor: np.ndarray) -> float:
    # ln ∫ μ₀(x) e^factor(x) dx by the trapezoidal rule.
    log_density = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    terms = log_density + factor
    highest = float(terms.max())
    return highest + math.log(float(np.exp(terms - highest).sum())) + math.log(spacing)
