"""The phase of `NaturalSolver` that draws once more, with heavier tails than a normal q has.

Few draws of a normal q reach the tails of a posterior that is wider than it, as those of scales
with few records are: their weights correct the moments of q only in part, and say nothing of it.
Where weights are uneven, one more exchange asks for the likelihood at draws of a Student-t with the
weighted mean and covariance. What weights show does not depend on whether q is at its optimum:
where they are even enough, a fit whose steps did not settle has converged.

Draws of q that are not believed are not corrected so: 1,024 draws around them may miss a long
curved tail and not show it. A split follows it.
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
"""Degrees of freedom, besides one for each parameter."""
MAX_TAILS_K = 0.5
"""Of the weights of such draws that are the result: their variance is finite."""
SOBOL_UP_TO = 16
"""Parameters up to which draws are a Sobol sequence, which has less error than random ones."""


@functools.cache
def tail_draws(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of a standard Student-t, always the same, with both signs; and their log-density.

    >>> draws, _ = tail_draws(3)
    >>> bool(np.allclose(draws.mean(axis=0), 0.0))
    True
    """
    from scipy.special import gammaincinv, ndtri

    half = len(weighing_draws(dimension)) // 2
    degrees, rng = FREEDOM + dimension, np.random.default_rng([dimension, 0x7A11])
    if dimension <= SOBOL_UP_TO:
        from scipy.stats import qmc

        # Shifted, because the sequence begins in a corner: extreme in every coordinate at once.
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
    """Ask for the likelihood at draws around the weighted mean of the draws from q."""
    mean, root = shared.public["mean"], shared.public["root"]
    memory |= {"q.mean": mean, "q.root": root, "phase": np.asarray(TAILS_PHASE)}
    draws = found.mean + tail_draws(len(mean))[0] @ found.root(root).T
    return Shared(shared.q, {"draws": draws}, memory, stage=DRAWS, note="draws with heavier tails")


def after_tails(solver: NaturalSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """The result by the new weights, or a split where they show that there is none."""
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
