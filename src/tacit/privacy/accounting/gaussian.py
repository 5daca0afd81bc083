"""The Gaussian mechanism without sampling: its privacy profile in closed form.

The distance μ of a release is its sensitivity divided by the standard deviation of its noise. Any
number of Gaussian releases without sampling, chosen adaptively, is exactly as private as one
release whose μ² is the sum of their squared distances (Dong, Roth and Su 2022).
"""

from __future__ import annotations

import math
from typing import cast

from scipy.optimize import brentq
from scipy.special import log_ndtr

# A few units in the last place, added wherever rounding could understate δ.
_ROUNDING = 4e-16


def log_delta(mu: float, epsilon: float) -> float:
    """Return ln δ for the smallest δ at which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable.

    δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), where Φ is the standard normal distribution function
    (Balle and Wang 2018, Theorem 8). A bound on the rounding error is added, so that the result is
    an upper bound.

    >>> round(math.exp(log_delta(1.0, 1.0)), 6)
    0.126937
    """
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    rounding = _ROUNDING * (1 + epsilon + abs(first))
    return first + math.log(min(1.0, max(0.0, -math.expm1(second - first)) + rounding))


def delta(mu: float, epsilon: float) -> float:
    """Return the smallest δ, rounded up, at which N(0, 1) and N(μ, 1) are (ε,
    δ)-indistinguishable.
    """
    return math.exp(log_delta(mu, epsilon))


def epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε ≥ 0 at which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable, rounded
    up.

    Formal guarantee: the returned ε satisfies log_delta(mu, ε) ≤ ln δ in floating point.

    >>> round(epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if not math.isfinite(mu):
        return math.inf
    target = math.log(delta)
    if log_delta(mu, 0.0) <= target:
        return 0.0
    # δ(ε) < Φ(μ/2 − ε/μ) ≤ exp(−(ε/μ − μ/2)²/2): a bracket from the Gaussian tail.
    high = mu * (mu / 2 + math.sqrt(-2 * target)) + mu
    if not math.isfinite(high):
        return math.inf
    answer = cast(float, brentq(lambda e: log_delta(mu, e) - target, 0.0, high, xtol=1e-14 * mu))
    margin = 1e-14
    while log_delta(mu, answer) > target:
        answer, margin = answer * (1 + margin), 2 * margin
    return answer
