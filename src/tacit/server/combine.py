"""The server's half of a private method: how released updates become the next q.

A `Combine` is a pure NumPy function of the releases: (shared, sum of the round) -> shared. It
receives the sum of the replies and never its terms, so that secure aggregation can replace the
summation. The returned values are stored with the server's state, so that a resumed run reaches the
same posterior. All of it is post-processing and costs no budget. The server refuses an improper q:
q, factors, public arrays and memory then stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.expfam import Family

if TYPE_CHECKING:
    from tacit.models.base import Model


class Shared(NamedTuple):
    """The values that the server keeps between rounds; all are computed from releases only."""

    q: Natural
    public: Arrays = {}  # noqa: RUF012 - shared and never written to
    """Arrays that are published with every request of the next round."""
    memory: Arrays | None = None
    """Arrays that only the server keeps between rounds."""
    stage: str | None = None
    """The stage of the next round, if a solver chooses it."""
    finished: str | None = None
    """Reason why a solver ended the run."""
    energy: float | None = None
    """Evidence lower bound at the last accepted q, up to a constant."""
    moved: float | None = None
    """How far a full step would move that q, in nats."""
    note: str = ""
    """Text for the log."""


class RoundSum(NamedTuple):
    """Sum of one round's releases; the server half of a method never sees the single releases."""

    total: Arrays
    contributors: int
    number: int
    """Number of the round: 1, 2, …"""


Combine = Callable[[Shared, RoundSum], Shared]


class Solver(Protocol):
    """A `Combine` that also chooses the stage of every round."""

    def __call__(self, shared: Shared, answers: RoundSum) -> Shared:
        """Compute the next request, or end the run, given the sum of a round."""
        ...

    def site(self, stage: str, public: Arrays, released: Arrays) -> Natural | None:
        """Compute one party's factor from its reply; None if a reply of that stage does not
        determine it.
        """
        ...

    def concluded(self, shared: Shared) -> Shared:
        """Return q and public arrays in the form of a result, for a run that ends early."""
        ...


class Run(NamedTuple):
    """Facts of a private run that are fixed before it starts."""

    model: Model
    family: Family
    parties: int
    asked: int
    """Number of parties per round."""
    rounds: int
    damping_at: Callable[[int], float]
    noise_sd: Callable[[int], float]
    """Standard deviation of the noise in the sum of round 1, 2, …, before damping."""
    earlier: Natural | None = None
    """Posterior of earlier records, which replaces the model's prior."""

    @property
    def prior(self) -> Natural:
        """The distribution that the factors of this run multiply."""
        return self.model.prior(self.family) if self.earlier is None else self.earlier


def floored_step(
    floor: Callable[[Natural, int], np.ndarray | float], momentum: float = 0.0
) -> Combine:
    """Return a rule that combines updates of a mean-field Gaussian and keeps the precision above a
    floor.

    With Δb and ΔΛ the sums of the updates and m the mean of q, the score is g = Δb − ΔΛ∘m:

        v ← βv + g,    Λ ← max(Λ + ΔΛ, floor(q, round)),    m ← m + v/Λ.

    Without floor and momentum β this multiplies the factors. A noisy sum of precisions may be too
    small or negative; the step of the mean then uses the floor, which limits its length (MEng
    §4.3.3).
    """

    def combine(shared: Shared, answers: RoundSum) -> Shared:
        q, memory, total = shared.q, shared.memory, answers.total
        precision = -2.0 * q["quadratic"]
        mean = q["linear"] / precision
        change = -2.0 * total["quadratic"]
        score = total["linear"] - change * mean
        if momentum and memory is not None:
            score = score + momentum * memory["velocity"]
        precision = np.maximum(precision + change, floor(q, answers.number))
        following = {"linear": precision * mean + score, "quadratic": -0.5 * precision}
        return shared._replace(q=following, memory={"velocity": score} if momentum else None)

    return combine
