"""Adam (Kingma and Ba 2015, algorithm 1) with a cosine learning-rate schedule.

Step t = 1, 2, … changes the parameters θ with the gradient g of the loss and the learning rate αₜ.
m and v are running averages of g and g². β₁ = 0.9, β₂ = 0.999 and ε (by default 10⁻⁸) are
constants.

    m ← β₁m + (1 − β₁)g,   v ← β₂v + (1 − β₂)g²,   θ ← θ − αₜ·(m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε)

The numbers αₜ, 1 − β₁ᵗ and 1 − β₂ᵗ of all steps are computed in advance with NumPy, because
compiling scalar powers and cosines would take longer than compiling the rest of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.methods.base import Array
from tacit.support.compiler import jax, jnp

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8


class Pace(NamedTuple):
    """Learning rates αₜ and Adam's bias corrections 1 − β₁ᵗ and 1 − β₂ᵗ, one entry per step t."""

    rate: Array
    first: Array
    second: Array


class Moments(NamedTuple):
    """Adam's estimates m and v of the first and second moments of the gradient."""

    first: dict[str, Array]
    second: dict[str, Array]


def paces(rate: float, steps: int, *, least: float, dtype: str) -> Pace:
    """Return the learning rates and bias corrections of `steps` Adam steps.

    The learning rate decreases from `rate` towards `least`·`rate` on a cosine curve.
    """
    done = np.arange(steps)
    falling = 0.5 * (1.0 + np.cos(np.pi * done / steps))
    table = Pace(
        rate * ((1.0 - least) * falling + least),
        1.0 - FIRST ** (done + 1.0),
        1.0 - SECOND ** (done + 1.0),
    )
    return Pace(*(column.astype(dtype) for column in table))


def at_rest(values: dict[str, Array]) -> Moments:
    """Return Adam's moments before the first step: zeros, with the shapes of `values`."""
    zeros = {name: jnp.zeros_like(value) for name, value in values.items()}
    return Moments(zeros, zeros)


def moved(
    values: dict[str, Array],
    moments: Moments,
    gradient: dict[str, Array],
    pace: Pace,
    epsilon: float = EPSILON,
) -> tuple[dict[str, Array], Moments]:
    """Return the parameters `values` and Adam's moments after one step.

    `pace` has the learning rate and bias corrections of this step, and `epsilon` is Adam's ε.
    """

    def average(old: Array, new: Array, decay: float) -> Array:
        return (1.0 - decay) * new + decay * old

    def step(value: Array, first: Array, second: Array) -> Array:
        down = (first / pace.first) / (jnp.sqrt(second / pace.second) + epsilon)
        return value - pace.rate * down

    first = jax.tree.map(lambda m, g: average(m, g, FIRST), moments.first, gradient)
    second = jax.tree.map(lambda v, g: average(v, g * g, SECOND), moments.second, gradient)
    return jax.tree.map(step, values, first, second), Moments(first, second)
