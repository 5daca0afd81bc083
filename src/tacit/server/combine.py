"""The server's half of a private method: how released updates become the next q.

A `Combine` is a pure NumPy function that takes the present `Shared` values and the sum of a round's
releases, and returns the new `Shared` values. It never sees the releases of single parties, so the
sum can be computed by secure aggregation. The returned values are stored with the server's state,
so a resumed run reaches the same posterior. The function only post-processes releases, so it costs
no budget. If the new q is improper, the server refuses it: q, factors, public arrays and memory
then stay unchanged.
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
    """Arrays that every request of the next round contains."""
    memory: Arrays | None = None
    """Arrays that only the server keeps between rounds."""
    stage: str | None = None
    """The stage of the next round, if a solver chooses it."""
    finished: str | None = None
    """Reason why a solver ended the run."""
    energy: float | None = None
    """Evidence lower bound at the last accepted q, up to a constant."""
    moved: float | None = None
    """KL divergence, in nats, between q before and after a full step from the last accepted q."""
    note: str = ""
    """Text for the log."""


class RoundSum(NamedTuple):
    """Sum of the releases of one round; a `Combine` never sees the releases of single parties."""

    total: Arrays
    contributors: int
    number: int
    """Number of the round: 1, 2, …"""


Combine = Callable[[Shared, RoundSum], Shared]


class Solver(Protocol):
    """A `Combine` that also chooses the stage of every round."""

    def __call__(self, shared: Shared, answers: RoundSum) -> Shared:
        """Return the values for the next round, given the sum of a round. If `finished` is set in
        the result, the run ends.
        """
        ...

    def site(self, stage: str, public: Arrays, released: Arrays) -> Natural | None:
        """Return a party's factor, computed from its reply `released` in `stage`; None if replies
        in this stage do not determine the factor.
        """
        ...

    def concluded(self, shared: Shared) -> Shared:
        """Return q and the public arrays that describe the result, for a run that ends early."""
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
    """Posterior given earlier records, which replaces the model's prior; None if the run has no
    earlier records.
    """

    @property
    def prior(self) -> Natural:
        """Prior of this run: the posterior of earlier records if the run continues another run,
        otherwise the model's prior.
        """
        return self.model.prior(self.family) if self.earlier is None else self.earlier


def floored_step(
    floor: Callable[[Natural, int], np.ndarray | float], momentum: float = 0.0
) -> Combine:
    """Return a `Combine` for a mean-field Gaussian q that keeps the precision of q at or above
    `floor(q, round)`.

    Let m and Λ be the mean and precision of q, Δb and ΔΛ the sums of the parties' updates of Λm and
    Λ, β = `momentum`, and v a velocity that is 0 before the first round. A round computes

        v ← βv + Δb − ΔΛ∘m,    Λ ← max(Λ + ΔΛ, floor(q, round)),    m ← m + v/Λ.

    Without floor and momentum, this multiplies q by the updates. A noisy sum of precisions may be
    too small or negative; the floor then limits the length of the step in m (MEng §4.3.3).
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
