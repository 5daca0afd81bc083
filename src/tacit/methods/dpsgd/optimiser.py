"""Adam and plain SGD on the mean and log-sd of q, from the releases of DP-SGD.

q is a mean-field Gaussian with the mean m, the standard deviation s and l = log s. A party releases
G, the gradient in m of the expected log-likelihood of its records, and K, their information about
θ. The cavity has the linear term r and the precision R. The gradient of the local ELBO is

    ∂/∂m = G + r − R∘m,        ∂/∂l = 1 − (K + R)∘s²      (MEng 4.19, with a log-sd).

Only G and K depend on records, and both are clipped, noised and charged before a step uses them. A
step is post-processing, so the choice of the optimiser changes neither sensitivity nor ε.

**Adam** (Kingma and Ba 2015, algorithm 1) has the constants of `tacit.methods.adam` and a constant
learning rate.

**SGD** makes the step v ← βv + g, φ ← φ + ρ∘v, where φ is m or l, g is the gradient, β is the
momentum and ρ is the learning rate (MEng Alg. 1 for β = 0).

Both limit the gradient in l to ±1 (the threshold of MEng §4.2.1). While s is large, this gradient
and its noise are far larger than 1, and they would stay in Adam's second moment for a thousand
steps. Near the optimum the gradient is −2 times the error of l, so the limit matters only for
errors above ½.

**Where steps are taken.** With several steps per visit, the party takes the steps, with moments
that start at zero, and the server recomputes the steps from the released integers. With one step
per visit, a party sends G and K in the form of a full natural-gradient step. The server takes one
step from the sum over parties, with moments that it stores between rounds. Let party p have
released G_p and K_p, let its factor have the linear term b_p and the precision L_p, and let q have
the precision Λ. The gradient of the global ELBO is then Σ_p (G_p − b_p + L_p∘m) in m and −Σ_p (K_p
− L_p)/Λ in l.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from tacit.arrays import Array, Arrays, namespace
from tacit.expfam.gaussian import Free
from tacit.methods.adam import EPSILON, SECOND
from tacit.server.combine import Combine, RoundSum, Run, Shared

OptimiserName = Literal["natural", "adam", "sgd"]
NAMES = ("location", "scale")
MOMENTUM: dict[OptimiserName, float] = {"natural": 0.5, "adam": 0.9, "sgd": 0.0}
"""Default momentum β of each optimiser; β₁ for Adam."""
LIMIT = 1.0
"""Gradients with respect to a log-sd are clipped to ± this value."""


def still(optimiser: OptimiserName, like: Array) -> dict[str, Array]:
    """Return the state of an optimiser before its first step: zeros with the shape of `like`."""
    parts = {"natural": ("velocity",), "sgd": NAMES, "adam": ()}[optimiser]
    if optimiser == "adam":
        parts = tuple(f"{moment}.{name}" for moment in ("first", "second") for name in NAMES)
    zero = namespace(like).zeros_like(like)
    return dict.fromkeys(parts, zero)


def stepped(
    optimiser: OptimiserName,
    momentum: float,
    gradient: Free,
    state: dict[str, Array],
    number: Array,
    rates: Free,
) -> tuple[Free, dict[str, Array]]:
    """Return the changes of mean and log-sd in step number `number` (0, 1, …), and the new state of
    the optimiser.
    """
    xp = namespace(gradient["location"])
    moves: Free = {}
    following: dict[str, Array] = {}
    for name in NAMES:
        value = gradient[name]
        value = xp.clip(value, -LIMIT, LIMIT) if name == "scale" else value
        if optimiser == "sgd":
            following[name] = momentum * state[name] + value
            moves[name] = rates[name] * following[name]
            continue
        first = momentum * state[f"first.{name}"] + (1.0 - momentum) * value
        second = SECOND * state[f"second.{name}"] + (1.0 - SECOND) * value * value
        following |= {f"first.{name}": first, f"second.{name}": second}
        mean = first / (1.0 - xp.power(momentum, number + 1.0))
        size = xp.sqrt(second / (1.0 - xp.power(SECOND, number + 1.0)))
        moves[name] = rates[name] * mean / (size + EPSILON)
    return moves, following


def largest_adam_move(momentum: float, number: int) -> float:
    """Return an upper bound on |m̂|/√v̂ in Adam's step `number` (0, 1, …).

    m̂ and v̂ are the bias-corrected first and second moments of the gradient. The bound holds for
    any gradients, by the Cauchy–Schwarz inequality.

    >>> largest_adam_move(0.9, 0)
    1.0
    """
    t = number + 1
    ratio = momentum**2 / SECOND
    total = (1.0 - ratio**t) / (1.0 - ratio)
    first = (1.0 - momentum) / (1.0 - momentum**t)
    return first * math.sqrt(total * (1.0 - SECOND**t) / (1.0 - SECOND))


def server_step(
    optimiser: OptimiserName, momentum: float, run: Run, rates: Callable[[RoundSum], Free]
) -> Combine:
    """Return the server's `Combine` function, which moves q by one step of Adam or SGD per round.

    The gradient is computed from the sum of the parties' releases, and the step is multiplied by
    the damping. The precision of q never falls below the precision of the prior.
    """
    least = -2.0 * np.asarray(run.model.prior(run.family)["quadratic"])

    def combine(shared: Shared, answers: RoundSum) -> Shared:
        damping = run.damping_at(answers.number)
        precision = -2.0 * shared.q["quadratic"]
        mean = shared.q["linear"] / precision
        change = -2.0 * answers.total["quadratic"] / damping
        score = answers.total["linear"] / damping - change * mean
        gradient = {"location": score, "scale": -change / precision}
        memory: Arrays = shared.memory or still(optimiser, mean) | {"steps": np.zeros(())}
        moves, state = stepped(
            optimiser, momentum, gradient, memory, memory["steps"], rates(answers)
        )
        mean = mean + damping * moves["location"]
        precision = np.maximum(precision * np.exp(-2.0 * damping * moves["scale"]), least)
        following = {"linear": precision * mean, "quadratic": -0.5 * precision}
        return shared._replace(q=following, memory=state | {"steps": memory["steps"] + 1.0})

    return combine
