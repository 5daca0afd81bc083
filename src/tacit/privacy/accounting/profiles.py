r"""The worst-case pair of a sampled Gaussian release and its privacy profile.

Let q be the sampling rate. Positions are in standard deviations of the noise: the sum over a batch
with the unit is at 0, the sum over a batch without it at `near`, and the sum over a batch with its
replacement at `far`. The released sum then has one of two distributions:

    P = (1−q) N(near, 1) + q N(0, 1)     if the data set contains the unit,
    Q = (1−q) N(near, 1) + q N(far, 1)   if it contains the replacement.

For α = e^ε ≥ 1 the hockey-stick divergence of this pair is H_α(P‖Q) = ∫ max(P − αQ, 0). No pair of
neighbouring data sets has a larger divergence, in any dimension (docs/methods/accounting.md, Lemma
1). For the reversed pair, Q against P, replace `near` by far − near.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr, ndtr

_NEWTON_STEPS = 60

# Where the profile is cut off: Φ(−10) ≈ 8e-24 of the mass goes to an infinite loss.
_TAIL = 10.0


def hockey_stick(epsilon: np.ndarray, rate: float, far: float, near: float) -> np.ndarray:
    """Return the hockey-stick divergence ∫ max(P − e^ε·Q, 0) for every ε ≥ 0 in `epsilon`.

    Let q = `rate`, and N(m) the normal distribution with mean m and sd 1. Then P = (1−q) N(near) +
    q N(0) and Q = (1−q) N(near) + q N(far).

    With κ = (1−q)(e^ε − 1)/q, let t be the solution of e^{ε + far·t − far²/2} + κ e^{near·t −
    near²/2} = 1. P ≥ e^ε·Q holds exactly for x ≤ t. The divergence is therefore q·[Φ(t) − e^ε
    Φ(t−far) − κ Φ(t−near)], where Φ is the standard normal distribution function.
    """
    with np.errstate(divide="ignore"):
        log_kappa = epsilon + np.log(-np.expm1(-epsilon)) + np.log1p(-rate) - np.log(rate)
    t = _threshold(epsilon, log_kappa, far, near)
    taken = np.exp(epsilon + log_ndtr(t - far)) + np.exp(log_kappa + log_ndtr(t - near))
    return rate * np.clip(ndtr(t) - taken, 0.0, 1.0)


def _threshold(epsilon: np.ndarray, log_kappa: np.ndarray, far: float, near: float) -> np.ndarray:
    """Return, for every ε, the threshold t that `hockey_stick` defines, by Newton's method."""
    first = epsilon - far**2 / 2
    if near == 0:  # the second term is the constant κ; for κ ≥ 1 the set is empty
        with np.errstate(divide="ignore"):
            return (np.log1p(-np.exp(np.minimum(log_kappa, 0.0))) - first) / far
    second = log_kappa - near**2 / 2
    # The logarithm of the left side of the equation is convex and increasing in t, so that Newton's
    # method converges from the right of the root.
    # At this start one of the two terms alone is 1, so the root is here or to the left.
    t = np.minimum(-first / far, -second / near)
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
    """Return the privacy loss ln P(x)/Q(x), with P and Q as in `hockey_stick`; it decreases in x.

    Let e₁ and e₂ be the densities at x of N(far, 1) and N(near, 1), each divided by that of N(0,
    1), and r = (1 − rate)/rate. The loss is ln(1 + r·e₂) − ln(e₁ + r·e₂).
    """
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(divide="ignore"):
        second = np.log1p(-rate) - np.log(rate) + near * x - near**2 / 2
    return np.logaddexp(0.0, second) - np.logaddexp(far * x - far**2 / 2, second)


def largest_loss(rate: float, far: float, near: float) -> float:
    """Return an ε beyond which the divergence of `hockey_stick` is below 8e-24·rate."""
    return float(loss(-_TAIL, rate, far, near))


def loss_moments(rate: float, far: float, near: float) -> tuple[float, float]:
    """Return approximations of E|L| and Var L, where L = `loss`(x) is the privacy loss and x ~ P.

    P is defined in `hockey_stick`. The values are used to choose a grid, and are not bounds.
    """
    x = np.linspace(-_TAIL, near + _TAIL, 4001)
    density = rate * np.exp(-(x**2) / 2) + (1 - rate) * np.exp(-((x - near) ** 2) / 2)
    density /= density.sum()
    losses = loss(x, rate, far, near)
    mean = float(density @ losses)
    return float(density @ np.abs(losses)), float(density @ (losses - mean) ** 2)
