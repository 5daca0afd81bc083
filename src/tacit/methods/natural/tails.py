"""The phase of `NaturalSolver` that draws from a distribution with heavier tails than q.

The posterior may be wider than q, for example for a scale parameter with few records. Few draws
from q are then in the tails of the posterior. Weights of these draws correct the moments of q only
in part, and do not show how much is missing. If weights are uneven, the solver therefore requests
the log-likelihood at draws from a Student-t distribution with the weighted mean and covariance.

Weights are valid for any q, optimal or not. If the weights of the new draws are even enough, the
run therefore counts as converged, even if the steps had not converged.

If the new weights are not good enough, the posterior is split. If the split is not better, the
result is the weighted draws with heavier tails, provided that their Pareto shape k̂ is at most
`weights.MAX_PARETO_K`. Otherwise the result is q, marked as not trusted. If a few of the draws from
the split have very large weights, draws with heavier tails are taken around the weighted mean of
the draws from the split.

If the weights of the draws from q are too uneven to be used (`weights.is_believed`), the posterior
is split immediately. The reason is that 1,024 draws around the weighted mean may miss a long curved
tail, and the weights would not show this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural import heavy, split_phases
from tacit.methods.natural.weights import DOUBTED, Weighed, weigh_draws
from tacit.server.combine import RoundSum, Shared

if TYPE_CHECKING:
    from tacit.methods.natural.solver import NaturalSolver

MAX_TAILS_K = 0.5
"""Largest Pareto shape k̂ of accepted importance weights; their variance is then finite."""


def begin(shared: Shared, memory: Arrays, found: Weighed) -> Shared:
    """Return a request for the log-likelihood at draws from a Student-t distribution.

    Its centre and covariance are the weighted mean and covariance in `found`.
    """
    mean, root = shared.public["mean"], shared.public["root"]
    memory |= {"q.mean": mean, "q.root": root}
    return heavy.request(shared, memory, found.mean, found.root(root))


def after_tails(solver: NaturalSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Compute importance weights of the draws with heavy tails.

    Return the final result or, if the weights are not good enough, the first request of a split.
    """
    theta = shared.public["draws"]
    log_density = heavy.tail_draws(theta.shape[1])[1]
    found = weigh_draws(theta, log_density, solver.log_joint(theta, answers))
    kept = {name: one for name, one in found.facts.items() if name != "skewness"}
    memory |= {"skewness": found.skewness, "tails.log_weights": found.log_weights}
    memory |= {f"tails.{name}": one for name, one in kept.items()}
    if found.believed and found.pareto_k <= MAX_TAILS_K:
        return heavy.finished(solver, memory)
    if any(name.startswith(split_phases.KEPT) for name in memory):
        return split_phases.finish_kept(solver, memory)
    if not found.sound:
        memory = heavy.dropped(memory) | {DOUBTED: np.asarray(1.0)}
    public = {"mean": memory["q.mean"], "root": memory["q.root"]}
    return split_phases.begin(solver, shared._replace(public=public), memory)
