"""The server's half of a private method: how released updates become the next q.

A `Combine` is a pure function of what was released, in NumPy: (shared, sum of the round) ->
shared. It receives the sum of the replies and never its terms, so that secure aggregation can take
its place. What it returns is kept with the server's state, so that a resumed run goes on to the
same posterior. All of it is post-processing and costs no budget. A q that is improper is refused
by the server: q, factors, public arrays and memory stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.expfam import Family

if TYPE_CHECKING:
    from tacit.models.base import Model


class Shared(NamedTuple):
    """What the server knows; all of it is post-processing of what was released."""

    q: Natural
    public: Arrays = {}  # noqa: RUF012 - shared and never written to
    """Published with every request of the next round."""
    memory: Arrays | None = None
    """Stays at the server, from one round to the next."""
    stage: str | None = None
    """The stage of the next round, where a solver chooses it."""
    finished: str | None = None
    """Why a solver ended the run."""
    energy: float | None = None
    """Evidence lower bound at the last accepted q, up to a constant."""
    moved: float | None = None
    """Nats by which a whole step would move that q."""
    note: str = ""
    """For the log."""


class RoundSum(NamedTuple):
    """The sum of one round's releases. The server's half never sees the terms of the sum."""

    total: Arrays
    contributors: int
    number: int
    """The round: 1, 2, …"""


Combine = Callable[[Shared, RoundSum], Shared]


class Run(NamedTuple):
    """What the server knows of a private run before it begins."""

    model: Model
    family: Family
    parties: int
    asked: int
    """How many of them answer in a round."""
    rounds: int
    damping_at: Callable[[int], float]
    noise_sd: Callable[[int], float]
    """Of the noise in the sum of all that is released in that round (1, 2, …), before damping."""
    noise_rng: Callable[[int], np.random.Generator] | None = None
    """Where the server's own noise of that round comes from, if it is the server that adds it."""


def floored_step(
    floor: Callable[[Natural, int], np.ndarray | float], momentum: float = 0.0
) -> Combine:
    """Updates of a mean-field Gaussian; the precision is kept above a floor.

    With Δb and ΔΛ the sums of the updates and m the mean of q, the score is g = Δb − ΔΛ∘m:

        v ← βv + g,    Λ ← max(Λ + ΔΛ, floor(q, round)),    m ← m + v/Λ.

    Without a floor and a momentum β this is multiplication. A precision that is a noisy sum may
    come out too small or negative; the mean's step is then taken at the floor and is as short as
    it has to be (MEng §4.3.3).
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
