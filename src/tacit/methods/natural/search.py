"""Search for the mode of a density by Levenberg–Marquardt steps, one evaluation at a time.

The search works in diagonally scaled coordinates and uses the absolute eigenvalues of the Hessian.
Every step is therefore in an ascent direction, and the search does not depend on the scales of
coordinates. If the search does not converge, the result is the point with the largest merit. The
merit is the Laplace approximation f − ½ log|P|, where f is the log-density and P the negative
Hessian with absolute eigenvalues. A singularity of the density has a small merit, because log|P|
grows faster than f there.
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
"""The search ends if the merit falls this many nats below the best one, because there is then no
mode in this direction.
"""
FIRST_DAMPING = 1e-2
MOST_DAMPING = 1e12


class Search(NamedTuple):
    """State of a search for the mode of a density.

    `theta` is the current point, with value and derivatives `at_theta`. The merit of a point is the
    log-density minus half the log-determinant of the negative Hessian with absolute eigenvalues.
    """

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
        """True if the search has not ended. `proposal` should then be evaluated."""
        more = (self.steps < MAX_MODE_STEPS) & (self.damping < MOST_DAMPING)
        return more & ~self.settled

    @property
    def result(self) -> Array:
        """The mode if one was found, otherwise the point with the largest merit."""
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
    """Return the next state of the search.

    `seen` are value and derivatives at `now.proposal`. `finite` is true if all of them are finite.
    """
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
    """Return the mode of a function, starting the search at `centre`.

    `look` returns value, gradient and Hessian of the function at a point.
    """

    def step(now: Search) -> Search:
        return searched(now, *only_finite(look(now.proposal)))

    return jax.lax.while_loop(lambda now: now.goes_on, step, first_search(centre)).result


def only_finite(found: WhitenedDerivatives) -> tuple[WhitenedDerivatives, Array]:
    """Return `found` with its Hessian made symmetric, and True.

    If a number in `found` is not finite, the value FAILED, zero derivatives and False are returned
    instead.
    """
    xp = namespace(found.value)
    finite = xp.isfinite(found.value)
    for part in found[1:]:
        finite = finite & xp.all(xp.isfinite(part))
    hessian = xp.where(finite, 0.5 * (found.hessian + found.hessian.T), 0.0)
    gradient = xp.where(finite, found.gradient, 0.0)
    return WhitenedDerivatives(xp.where(finite, found.value, FAILED), gradient, hessian), finite
