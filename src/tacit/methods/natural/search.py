"""The search for a mode by Levenberg–Marquardt steps, one evaluation at a time.

Absolute eigenvalues of the Hessian in diagonally scaled coordinates make every step an ascent
direction, and the search independent of units. If the search does not converge, the result is the
point with the best merit, the Laplace approximation f − ½ log|P|, where f is the log-density and P
the negative Hessian with absolute eigenvalues. At a singularity of the density, log|P| grows faster
than f.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tacit.arrays import Array, namespace
from tacit.methods.natural.curvature import absolute_eigen
from tacit.methods.natural.stages import FAILED
from tacit.models.capabilities import WhitenedDerivatives
from tacit.support.compiler import jax

MAX_MODE_STEPS = 60
SETTLED_DECREMENT = 1e-3
MERIT_DROP = 10.0
"""The search ends if the merit falls this many nats below the best: the density has no mode
there.
"""
FIRST_DAMPING = 1e-2
MOST_DAMPING = 1e12


class Search(NamedTuple):
    """State of a search for a mode; `at_theta` holds the derivatives at `theta`."""

    theta: Array
    proposal: Array
    """The next point to evaluate."""
    at_theta: WhitenedDerivatives
    damping: Array
    steps: Array
    settled: Array
    best: Array
    """The point with the best merit so far."""
    best_merit: Array

    @property
    def goes_on(self) -> Array:
        """True if the proposal should be evaluated."""
        more = (self.steps < MAX_MODE_STEPS) & (self.damping < MOST_DAMPING)
        return more & ~self.settled

    @property
    def result(self) -> Array:
        """The mode or, if none was found, the point of best merit."""
        return namespace(self.theta).where(self.settled, self.theta, self.best)


def first_search(centre: Array) -> Search:
    """Return the state of a search that starts at `centre`."""
    xp, size = namespace(centre), len(centre)
    nothing = WhitenedDerivatives(xp.asarray(-np.inf), xp.zeros(size), xp.zeros((size, size)))
    return Search(
        centre,
        centre,
        nothing,
        xp.asarray(FIRST_DAMPING),
        xp.asarray(0),
        xp.asarray(False),
        centre,
        xp.asarray(-np.inf),
    )


def searched(now: Search, seen: WhitenedDerivatives, finite: Array) -> Search:
    """Return the state of the search after its proposal was evaluated."""
    xp = namespace(now.theta, seen.value)
    first = now.steps == 0
    better = first | (finite & (seen.value >= now.at_theta.value))
    pick = WhitenedDerivatives(
        *(xp.where(better, new, old) for new, old in zip(seen, now.at_theta, strict=True))
    )
    theta = xp.where(better, now.proposal, now.theta)
    eigen = absolute_eigen(-pick.hessian)
    merit = pick.value - 0.5 * eigen.log_determinant
    merit = xp.where(xp.isfinite(merit), merit, -np.inf)
    lost = merit < now.best_merit - MERIT_DROP
    damping = xp.where(better, 0.1 * now.damping, 10.0 * now.damping)
    damping = xp.where(lost | (first & ~finite), np.inf, damping)
    decrement = pick.gradient @ eigen.solve(pick.gradient)
    return Search(
        theta,
        theta + eigen.solve(pick.gradient, damping=damping),
        pick,
        damping,
        now.steps + 1,
        (decrement < SETTLED_DECREMENT) & eigen.definite & ~lost,
        xp.where(first | (merit > now.best_merit), theta, now.best),
        xp.maximum(merit, now.best_merit),
    )


def find_mode(look: Callable[[Array], WhitenedDerivatives], centre: Array) -> Array:
    """Find a mode of a function with these derivatives, from a starting point."""

    def step(now: Search) -> Search:
        return searched(now, *only_finite(look(now.proposal)))

    return jax.lax.while_loop(lambda now: now.goes_on, step, first_search(centre)).result


def only_finite(found: WhitenedDerivatives) -> tuple[WhitenedDerivatives, Array]:
    """Replace the values by FAILED and zeros unless all are finite; also return whether they
    were.
    """
    xp = namespace(found.value)
    finite = xp.isfinite(found.value)
    for part in found[1:]:
        finite = finite & xp.all(xp.isfinite(part))
    hessian = xp.where(finite, 0.5 * (found.hessian + found.hessian.T), 0.0)
    gradient = xp.where(finite, found.gradient, 0.0)
    return WhitenedDerivatives(xp.where(finite, found.value, FAILED), gradient, hessian), finite
