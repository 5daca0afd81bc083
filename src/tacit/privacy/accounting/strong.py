"""Strong composition of (ε, δ) steps, a baseline for the other accountants.

1. A release without sampling is (ε₀, δ₀)-private, by the exact profile of the Gaussian mechanism
   (gaussian.py).
2. Sampling at a rate q makes the release (ln(1 + q(e^ε₀ − 1)), qδ₀)-private (Balle, Barthe and
   Gaboardi 2018; the corollary in docs/methods/accounting.md).
3. The releases are composed by Theorem 3.5 of Kairouz, Oh and Viswanath (2015), in which the ε of
   the releases may differ.

Formal guarantee: half of δ is divided equally among the releases, so that release i has δᵢ, and the
other half is used by the composition. The total 1 − (1 − δ/2)·Π(1 − δᵢ) is at most δ.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from scipy.optimize import brentq

from tacit.privacy.accounting import gaussian
from tacit.privacy.accounting.composition import Steps
from tacit.privacy.accounting.steps import Step

_SMALLEST_LOG_DELTA = math.log(1e-300)


def refusal(step: Step) -> str | None:  # noqa: ARG001
    """Return None: this accountant supports every step."""
    return None


def epsilon(steps: Steps, delta: float) -> float:
    """Return the smallest of three bounds on the ε of all steps together at the given δ.

    Let εᵢ be the ε of step i, D = Σεᵢ·tanh(εᵢ/2) and V = Σεᵢ². The bounds are Σεᵢ (basic
    composition), D + √(2V·ln(2/δ)) and D + √(2V·ln(e + 2√V/δ)). The last two are from Theorem 3.5
    of Kairouz, Oh and Viswanath (2015).
    """
    return _compose(steps, math.log(delta))


def delta(steps: Steps, epsilon: float) -> float:
    """Return the smallest δ ≥ 1e-300, rounded up, at which the bound on ε is at most `epsilon`."""

    def excess(log_delta: float) -> float:
        return min(_compose(steps, log_delta), 1e300) - epsilon

    if excess(_SMALLEST_LOG_DELTA) <= 0:
        return math.exp(_SMALLEST_LOG_DELTA)
    if excess(0.0) > 0:
        return 1.0
    answer = cast(float, brentq(excess, _SMALLEST_LOG_DELTA, 0.0, xtol=1e-9))
    return math.exp(min(0.0, answer + 2e-9))


def _compose(steps: Steps, log_delta: float) -> float:
    log_slack = log_delta - math.log(2)
    log_share = log_slack - math.log(sum(count for _, count in steps))
    parts = [(count, _amplified(step, log_share)) for step, count in steps]
    if any(math.isinf(e) for _, e in parts):
        return math.inf
    total = sum(n * e for n, e in parts)
    drift = sum(n * e * math.tanh(e / 2) for n, e in parts)
    square = sum(n * e**2 for n, e in parts)
    if not square > 0:
        return 0.0
    other = float(np.logaddexp(1.0, math.log(square) / 2 - log_slack))  # ln(e + √Σε²/δ̃)
    return min(total, drift + math.sqrt(2 * square * min(-log_slack, other)))


def _amplified(step: Step, log_share: float) -> float:
    """Return ε of one release with sampling rate q at δ = e^log_share.

    It is ln(1 − q + q·e^ε₀), where ε₀ is the ε of the same release without sampling at δ/q.
    """
    log_rate = math.log(step.rate)
    if log_share >= log_rate:  # leaving the unit out of the batch is private enough
        return 0.0
    base = gaussian.epsilon(step.far, math.exp(log_share - log_rate))
    if step.rate == 1 or math.isinf(base):
        return base
    return float(np.logaddexp(math.log1p(-step.rate), log_rate + base))
