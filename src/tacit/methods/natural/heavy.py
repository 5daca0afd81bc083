"""Draws with heavier tails than q, and the result of a run that consists of such weighted draws."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam.quadrature import weighing_draws
from tacit.methods.natural.curvature import lower_root
from tacit.methods.natural.stages import DRAWS
from tacit.server.combine import Shared

if TYPE_CHECKING:
    from tacit.methods.natural.solver import NaturalSolver

TAILS_PHASE = 9
TAILS = "tails"
"""Name of an entry of the server's memory, present if the result consists of `tail_draws`."""
FREEDOM = 3.0
"""Degrees of freedom of the Student-t, in addition to one per parameter."""
SOBOL_UP_TO = 16
"""Largest number of parameters for which a Sobol sequence replaces random draws; its error is
smaller.
"""


@functools.cache
def tail_draws(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return fixed draws from a standard Student-t distribution, and their log-densities up to a
    constant. For each draw x, −x is also a draw.

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


def request(shared: Shared, memory: Arrays, centre: np.ndarray, root: np.ndarray) -> Shared:
    """Return a request for the log-likelihood at draws with this centre and covariance root."""
    memory |= {"tails.centre": centre, "tails.root": root, "phase": np.asarray(TAILS_PHASE)}
    public = {"draws": theta_of(memory)}
    return Shared(shared.q, public, memory, stage=DRAWS, note="draws with heavier tails")


def share(memory: Arrays) -> float | None:
    """Return the effective share of the draws with heavy tails, or None if `memory` has no such
    draws with usable weights.
    """
    found = memory.get("tails.effective_share")
    return None if found is None else float(found)


def dropped(memory: Arrays) -> Arrays:
    """Return the server's memory without the draws with heavy tails."""
    return {name: one for name, one in memory.items() if not name.startswith("tails.")}


def finished(solver: NaturalSolver, memory: Arrays) -> Shared:
    """End the run. Its result is the weighted heavy-tailed draws in the server's memory."""
    theta, log_weights = theta_of(memory), memory["tails.log_weights"]
    weights = np.exp(log_weights)
    mean = weights @ theta
    spread = (theta - mean) * np.sqrt(weights)[:, None]
    root = lower_root(spread.T)
    facts = {name: memory[f"tails.{name}"] for name in ("pareto_k", "effective_share")}
    public = {
        "mean": mean,
        "root": root,
        "log_weights": log_weights,
        "weighted": np.asarray(1.0),
        "draws": theta,
    }
    others = ("tails.", "split.", "kept.")
    memory = {name: one for name, one in memory.items() if not name.startswith(others)}
    memory |= facts | {"settled": np.asarray(1.0), TAILS: np.asarray(1.0)}
    return Shared(solver.natural(mean, root), public, memory, finished="converged")


def theta_of(memory: Arrays) -> np.ndarray:
    """Return the draws of θ that have the centre and root stored in the server's memory."""
    points = tail_draws(len(memory["tails.centre"]))[0]
    return memory["tails.centre"] + points @ memory["tails.root"].T
