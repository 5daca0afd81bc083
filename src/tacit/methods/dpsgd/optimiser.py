"""Adam and plain SGD on the free parameters of q, from the releases of DP-SGD.

With the released gradient G of E_q[log p(xₘ|θ)] in the mean m and the released information K, and
(r, R) the natural parameters (linear, precision) of the cavity, the gradient of the local ELBO in m
and in the log-sd l, s = eˡ, is

    ∂/∂m = G + r − R∘m,        ∂/∂l = 1 − (K + R)∘s²      (MEng 4.19, with a log-sd).

Only G and K depend on records, and both are clipped, noised and charged before a step uses them. A
step is post-processing, so the optimiser changes neither sensitivity nor ε.

**Adam** (Kingma and Ba 2015, algorithm 1) is implemented in `tacit.methods.adam`; its rate is
constant here.
**SGD** is v ← βv + g, φ ← φ + ρ∘v (MEng Alg. 1 for β = 0). The gradient in l is limited to ±1
before it is used (the threshold of MEng §4.2.1): while s is still large, this gradient and its
noise are far larger than 1, and Adam's second moment would remember them for a thousand steps. Near
the optimum the curvature in l is 2.

**Where the steps are made.** With several steps per visit the party makes them, from moments that
start at zero; the server repeats them from the released integers. With one step per visit a party
sends G and K as a whole step in natural parameters, and the server makes one step from their sum
over the parties, with moments that it keeps. With factors (bₘ, Lₘ), Σₘ (Gₘ − bₘ + Lₘ∘m) is the
gradient of the global ELBO in m, and −Σₘ (Kₘ − Lₘ)/Λ is its gradient in l.
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
"""Gradients with respect to a log-sd are limited to this absolute value."""


def still(optimiser: OptimiserName, like: Array) -> dict[str, Array]:
    """Return the state of an optimiser before its first step."""
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
    """Return the move of the free parameters at step `number` (0, 1, …), and the new state."""
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
    """Return an upper bound on |m̂|/√v̂ in Adam's step `number` (0, 1, …), by Cauchy and Schwarz.

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
    """Return the server's half: one step from the sum of a round, shortened by damping.

    The precision stays at or above the prior's.
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
