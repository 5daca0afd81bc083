r"""The worst-case pair of a sampled Gaussian release and its privacy profile.

In units of the noise, the pair of a step with rate q is
    P = (1−q) N(near, 1) + q N(0, 1)     against     Q = (1−q) N(near, 1) + q N(far, 1):
a batch without the unit is at `near`, one with the unit at 0, one with its replacement at `far`.
For α = e^ε ≥ 1 the hockey stick H_α(P‖Q) = ∫ [P − αQ]₊ bounds the hockey stick of every pair of
neighbours, in any dimension (docs/methods/accounting.md, Lemma 1). Its reversal (Q against P) is
the same pair mirrored, with near' = far − near.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr, ndtr

_NEWTON_STEPS = 60

# Where the profile is cut off: Φ(−10) ≈ 8e-24 of the mass goes to an infinite loss.
_TAIL = 10.0


def hockey_stick(epsilon: np.ndarray, rate: float, far: float, near: float) -> np.ndarray:
    """Return the hockey-stick divergence H_{e^ε}(P‖Q) for every ε ≥ 0.

    With κ = (1−q)(e^ε − 1)/q it is q·[Φ(t) − e^ε Φ(t−far) − κ Φ(t−near)], where the threshold t
    solves e^{ε + far·t − far²/2} + κ e^{near·t − near²/2} = 1: P ≥ e^ε Q exactly on (−∞, t].
    """
    with np.errstate(divide="ignore"):
        log_kappa = epsilon + np.log(-np.expm1(-epsilon)) + np.log1p(-rate) - np.log(rate)
    t = _threshold(epsilon, log_kappa, far, near)
    taken = np.exp(epsilon + log_ndtr(t - far)) + np.exp(log_kappa + log_ndtr(t - near))
    return rate * np.clip(ndtr(t) - taken, 0.0, 1.0)


def _threshold(epsilon: np.ndarray, log_kappa: np.ndarray, far: float, near: float) -> np.ndarray:
    """Return the t of `hockey_stick`, by Newton's method on a convex increasing function, from the
    right.
    """
    first = epsilon - far**2 / 2
    if near == 0:  # the second term is the constant κ; for κ ≥ 1 the set is empty
        with np.errstate(divide="ignore"):
            return (np.log1p(-np.exp(np.minimum(log_kappa, 0.0))) - first) / far
    second = log_kappa - near**2 / 2
    t = np.minimum(-first / far, -second / near)  # here one term alone is 1: at or right of t
    for _ in range(_NEWTON_STEPS):
        x, y = first + far * t, second + near * t
        value = np.logaddexp(x, y)
        weight = np.exp(x - value)
        move = value / (weight * far + (1 - weight) * near)
        t = t - move
        if np.all(np.abs(move) <= 1e-13 * (1 + np.abs(t))):
            break
    return t


def loss(x: np.ndarray | float, rate: float, far: float, near: float) -> np.ndarray:
    """Return ln P(x)/Q(x) = ln [1 + r e₂(x)] − ln [e₁(x) + r e₂(x)], which decreases in x.

    e₁ = N(far)/N(0), e₂ = N(near)/N(0) and r = (1−q)/q.
    """
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(divide="ignore"):
        second = np.log1p(-rate) - np.log(rate) + near * x - near**2 / 2
    return np.logaddexp(0.0, second) - np.logaddexp(far * x - far**2 / 2, second)


def largest_loss(rate: float, far: float, near: float) -> float:
    """Return an ε beyond which the hockey-stick divergence is below 8e-24·rate."""
    return float(loss(-_TAIL, rate, far, near))


def loss_moments(rate: float, far: float, near: float) -> tuple[float, float]:
    """Return E|L| and Var L of the privacy loss L under P, used to choose a grid (not a bound)."""
    x = np.linspace(-_TAIL, near + _TAIL, 4001)
    density = rate * np.exp(-(x**2) / 2) + (1 - rate) * np.exp(-((x - near) ** 2) / 2)
    density /= density.sum()
    losses = loss(x, rate, far, near)
    mean = float(density @ losses)
    return float(density @ np.abs(losses)), float(density @ (losses - mean) ** 2)
