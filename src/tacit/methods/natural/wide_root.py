"""The phase of `WideSolver` in which expectations account for correlations.

The expectations of a generalised linear model depend on q only through the mean and variance of
each record's linear predictor x·θ. Let A be the negative expected Hessian of the log-joint. With
the standard deviations s_j of a mean-field q, the predictor has the variance Σ x_j² s_j². With the
covariance A⁻¹ of linear response it has the variance xᵀA⁻¹x. The ratio of these variances differs
between records. With few records per parameter, the means of a mean-field q are therefore wrong.
The standard deviations are wrong too, because A depends on the variances.

The server publishes a root: a matrix R of a few rows with RᵀR ≈ A⁻¹. A party computes the variances
|R x|². With R fixed, the objective is the expected log-likelihood plus the log-prior at the mean.
For a log-concave likelihood this objective is a concave function of the mean, and steps are
computed as without a root. R is in multiples of the scales of q, which are adjusted to the diagonal
of A once steps are small.

1. The mean-field q converges roughly. Linear systems with random signs as right-hand sides are
   solved for its standard deviations. The rows of the first root are A^(−½) times these signs.
2. Steps lead to the optimum with this root, and the systems are solved again at the new q.
3. New random signs give a second root, and steps lead to its optimum. The result is the average of
   both optima. Half of their difference estimates the error of the result, because the errors of
   the two optima are nearly independent.

If the first root changes neither mean nor diagonal, no second root is computed. If learned scales
of the default prior change with the variances, step 2 is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural.stages import DIRECTION_COUNT, ROOT_COUNT
from tacit.methods.natural.subspace import Subspace
from tacit.methods.natural.wide_place import (
    MAX_STEPS,
    NO_COMPARISON,
    STEP,
    STEPS_PER_TURN,
    Seen,
    positive,
)
from tacit.methods.natural.wide_prior import FIXED, ScalesPrior
from tacit.server.combine import Shared

if TYPE_CHECKING:
    from tacit.methods.natural.wide import WideSolver

ROOT = "root"
"""Name of the root in the server's memory and in a request."""
LAST = "root.last"
"""Name of a flag in the server's memory. It is 1 if standard deviations are known and the current
root is the last one.
"""
SEEDS = 2_000
"""First seed of the random vectors; it differs from the seeds of directions."""


def renew(
    solver: WideSolver,
    shared: Shared,
    memory: Arrays,
    place: Seen,
    space: Subspace,
    *,
    last: bool,
) -> Shared:
    """Compute a new root of the approximate covariance of θ, and return a request that evaluates q
    with it.

    The coordinates are rescaled so that the negative Hessian has the diagonal 1. The array `right`
    in `memory` has the random signs for which linear systems were solved.
    """
    prior = ScalesPrior.known(solver.scale_facts, memory)
    if prior is not None and prior.learnt:
        memory |= {FIXED: prior.precisions(place.mean, place.scale)}
    term = solver.prior_of(memory).term(place.mean, place.scale)
    number = int(memory.get("root.number", np.asarray(0)))
    draws = _draws(memory["right"], len(space.directions), SEEDS + number)
    found = space.root_of_inverse(space.basis(), term.products, draws)
    precision = positive(place.diagonal + term.diagonal)
    unit = np.sqrt(precision)
    place = place._replace(
        scale=place.scale / unit, gradient=place.gradient / unit, diagonal=place.diagonal / unit**2
    )
    space = space.rescaled(unit)
    memory |= place.pack() | {
        ROOT: found * unit,
        LAST: np.asarray(float(last)),
        "root.number": np.asarray(number + 1),
        "root.mean": place.mean,
        "root.rescaled": np.asarray(0.0),
        "renewed": np.asarray(1.0),
        "variance": memory["variance"] * precision,
        "precision": np.ones(len(precision)),
        "space.directions": space.directions,
        "space.products": space.products,
        "steps": np.minimum(memory["steps"], MAX_STEPS - STEPS_PER_TURN),
        "step": np.zeros(len(place.mean)),
        "bend": np.zeros(len(place.mean)),
        "length": np.asarray(1.0),
        "limit": np.asarray(1.0),
        "allowed": np.asarray(NO_COMPARISON),
        "phase": np.asarray(STEP),
    }
    wanted = space.products[-DIRECTION_COUNT:]
    directions = space.new_directions(wanted, DIRECTION_COUNT, SEEDS + number)
    return solver.ask(shared, memory, place.mean, place.scale, directions, exact=True)


def _draws(right: np.ndarray, known: int, seed: int) -> np.ndarray:
    """Return `ROOT_COUNT` random rows ξ. The expectation of the sum of their outer products ξξᵀ is
    the identity matrix.

    The last rows may be zeros. If all directions are known, which is the case with few parameters,
    the rows are orthogonal, and variances computed from them are exact.
    """
    size = right.shape[1]
    if known >= size:
        random = np.random.default_rng([size, seed]).standard_normal((size, min(ROOT_COUNT, size)))
        rows = np.sqrt(size) * np.linalg.qr(random)[0].T
    else:
        rows = right[np.all(np.abs(right) == 1.0, axis=1)][:ROOT_COUNT]
    return np.concatenate([rows / np.sqrt(len(rows)), np.zeros((ROOT_COUNT - len(rows), size))])
