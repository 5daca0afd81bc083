"""The requests of `WideSolver`, and the quantities that it stores about the current q and the next
step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural.stages import ROOT_COUNT
from tacit.methods.natural.subspace import Solved, Subspace
from tacit.methods.natural.wide_prior import WideTerm
from tacit.server.combine import Shared

FIRST, STEP, PROBE, RESPOND = range(4)
"""Phases of the solver."""
MOST_NUMBERS = 4_000_000
"""Largest number of array entries of all directions that are stored."""
STEPS_PER_TURN = 20
"""Smallest number of steps that are allowed after learned scales or a root are computed again."""
MAX_STEPS = 60
"""Largest number of steps if neither is computed again."""
NO_COMPARISON = 1e300
"""Allowed decrease of the evidence lower bound if it is not comparable with the previous bound."""


class Seen(NamedTuple):
    """A mean-field q = N(mean, diag(scale²)) of the coordinates φ (`wide_columns`), with its
    evidence lower bound.

    `gradient` and `diagonal` are derivatives of the expected log-likelihood in z, where φ = mean +
    scale·z.
    """

    mean: np.ndarray
    scale: np.ndarray
    energy: float
    """Evidence lower bound up to a constant."""
    gradient: np.ndarray
    diagonal: np.ndarray
    """Diagonal of −E_q[∇²]."""

    def pack(self) -> Arrays:
        return {f"place.{name}": np.asarray(value) for name, value in self._asdict().items()}

    @classmethod
    def unpack(cls, memory: Arrays) -> Seen | None:
        if "place.mean" not in memory:
            return None
        parts = {name: memory[f"place.{name}"] for name in cls._fields}
        return cls(**parts)._replace(energy=float(parts["energy"]))


class Proposal(NamedTuple):
    """A full step of the mean of q, with the precision of each coordinate and the size of the step
    in nats.
    """

    solved: Solved
    term: WideTerm
    precision: np.ndarray
    """Diagonal A_jj of the precision matrix A, including the prior's part."""
    nats: float
    """Estimate of ½ gᵀA⁻¹g for the gradient g of the objective. For the residual r of the step,
    rᵀA⁻¹r is replaced by |r|²/λ, where λ is the smallest known eigenvalue of A.
    """

    @property
    def step(self) -> np.ndarray:
        return self.solved.solution[0]

    @property
    def residual(self) -> np.ndarray:
        return self.solved.residual[0]

    def likelihood_part(self, right: np.ndarray) -> np.ndarray:
        """Return the negative Hessian of the log-likelihood times the step.

        `right` is the negative Hessian of the log-joint times the exact step.
        """
        return right - self.residual - self.term.products(self.step[None])[0]


def request(
    mean: np.ndarray,
    scale: np.ndarray,
    centre: np.ndarray,
    root: np.ndarray | None,
    directions: np.ndarray,
    *,
    spread: float,
    exact: bool,
) -> Arrays:
    """Return the public arrays of a request. The share of the prior is added later."""
    return {
        "mean": mean,
        "scale": scale,
        "centre": centre,
        "root": np.zeros((ROOT_COUNT, len(mean))) if root is None else root,
        "directions": directions,
        "spread": np.asarray(spread),
        "exact": np.asarray(float(exact)),
    }


def given_up(shared: Shared, memory: Arrays, note: str) -> Shared:
    """Return the state at the end of a run that has no result."""
    memory |= {"settled": np.asarray(0.0), "last_change": np.asarray(1e300)}
    return shared._replace(memory=memory, public={}, finished="no density", note=note)


def positive(diagonal: np.ndarray) -> np.ndarray:
    """Return absolute values of `diagonal`. Zeros (coordinates without information) are replaced by
    1.
    """
    size = np.abs(diagonal)
    return np.where(size > 0, size, 1.0)


def known_space(memory: Arrays, size: int) -> Subspace:
    """Return the stored directions and the products of the precision matrix A with them.

    Both are read from `memory`, the arrays that the server keeps between rounds.
    """
    if "space.directions" not in memory:
        return Subspace.empty(size)
    return Subspace(memory["space.directions"], memory["space.products"])
