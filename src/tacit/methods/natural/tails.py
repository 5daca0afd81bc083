"""The phase of `NaturalSolver` that draws from a distribution with heavier tails than q.

If the posterior is wider than q, as for a scale with few records, few draws of q reach its tails.
Weights of these draws correct the moments of q only in part, and do not show what is missing.
If weights are uneven, one more exchange requests the likelihood at draws of a Student-t with the
weighted mean and covariance. Weights are valid whether or not q is at its optimum: if they are even
enough, a fit whose steps did not settle has converged.

If the weights of the draws from q are too uneven to be used (`weights.is_believed`), the posterior
is split instead: 1,024 draws around them may miss a long curved tail without showing it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam.quadrature import weighing_draws
from tacit.methods.natural import split_phases
from tacit.methods.natural.stages import DRAWS
from tacit.methods.natural.weights import Weighed, weigh_draws
from tacit.server.combine import RoundSum, Shared

if TYPE_CHECKING:
    from tacit.methods.natural.solver import NaturalSolver

TAILS_PHASE = 9
FREEDOM = 3.0
"""Degrees of freedom of the Student-t, in addition to one per parameter."""
MAX_TAILS_K = 0.5
"""Largest Pareto shape k̂ of accepted importance weights; their variance is then finite."""
SOBOL_UP_TO = 16
"""Largest number of parameters for which draws are a Sobol sequence, which has a smaller error."""


@functools.cache
def tail_draws(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return fixed draws of a standard Student-t, each with both signs, and their log-density.

    >>> draws, _ = tail_draws(3)
    >>> bool(np.allclose(draws.mean(axis=0), 0.0))
    True
    """
    from scipy.special import gammaincinv, ndtri

    half = len(weighing_draws(dimension)) // 2
    degrees, rng = FREEDOM + dimension, np.random.default_rng([dimension, 0x7A11])
    if dimension <= SOBOL_UP_TO:
        from scipy.stats import qmc

        # Shifted, because the sequence begins in a corner, which is extreme in every coordinate.
        power = int(np.ceil(np.log2(half)))
        uniform = qmc.Sobol(dimension + 1, scramble=False).random_base2(power)[:half]
        uniform = (uniform + rng.random(dimension + 1)) % 1.0
    else:
        uniform = rng.random((half, dimension + 1))
    radius = np.sqrt(0.5 * degrees / gammaincinv(0.5 * degrees, uniform[:, -1:]))
    points = ndtri(uniform[:, :-1]) * radius
    points = np.concatenate([points, -points])
    square = np.sum(points * points, axis=1)
    return points, -0.5 * (degrees + dimension) * np.log1p(square / degrees)


def begin(shared: Shared, memory: Arrays, found: Weighed) -> Shared:
    """Request the likelihood at draws around the weighted mean of the draws from q."""
    mean, root = shared.public["mean"], shared.public["root"]
    memory |= {"q.mean": mean, "q.root": root, "phase": np.asarray(TAILS_PHASE)}
    draws = found.mean + tail_draws(len(mean))[0] @ found.root(root).T
    return Shared(shared.q, {"draws": draws}, memory, stage=DRAWS, note="draws with heavier tails")


def after_tails(solver: NaturalSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Return the result from the new weights, or begin a split if these are not good enough."""
    theta = shared.public["draws"]
    log_density = tail_draws(theta.shape[1])[1]
    found = weigh_draws(theta, log_density, solver.log_joint(theta, answers))
    memory |= found.facts
    if not (found.believed and found.pareto_k <= MAX_TAILS_K):
        public = {"mean": memory["q.mean"], "root": memory["q.root"]}
        return split_phases.begin(solver, shared._replace(public=public), memory)
    root = found.root(memory["q.root"])
    public = {
        "mean": found.mean,
        "root": root,
        "log_weights": found.log_weights,
        "weighted": np.asarray(1.0),
        "draws": theta,
    }
    memory |= {"settled": np.asarray(1.0)}
    return Shared(solver.natural(found.mean, root), public, memory, finished="converged")
