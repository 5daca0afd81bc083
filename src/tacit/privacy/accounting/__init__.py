"""Privacy accounting: ε and δ of a list of releases, by one of four accountants.

| name      | bound                                                    | source               |
|-----------|----------------------------------------------------------|----------------------|
| `pld`     | privacy loss distributions: tight, the default           | Koskela et al. 2020  |
| `rdp`     | Rényi divergences at 156 orders                          | Mironov 2017         |
| `moments` | log moments of order 1 to 32 (MEng eqs 2.8–2.17)         | Abadi et al. 2016    |
| `strong`  | strong composition of (ε, δ), a baseline                 | Kairouz et al. 2015  |

All results are upper bounds. An infinite ε means that the accountant has no bound. An event that an
accountant does not support raises `ConfigError`; `supported` gives the reason in advance. The
proofs are in docs/methods/accounting.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from tacit.privacy.accounting.calibration import calibrate
from tacit.privacy.accounting.composition import (
    ACCOUNTANTS,
    Accountant,
    Composition,
    supported,
)
from tacit.privacy.events import Adjacency, GaussianEvent

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Composition",
    "calibrate",
    "delta",
    "epsilon",
    "epsilon_curve",
    "supported",
]


def epsilon(
    events: Sequence[GaussianEvent],
    delta: float,
    adjacency: Adjacency,
    *,
    accountant: Accountant = "pld",
) -> float:
    """Return an ε such that the composition of the events is (ε, δ)-private under the adjacency.

    Formal guarantee: all releases together are (ε, δ)-differentially private. What is released may
    depend on the results of earlier releases, but noise, clip and sampling are fixed in advance.
    Not even the last bit of the result depends on the order of the events, or on whether equal
    events are listed singly or as one event with a count.

    >>> event = GaussianEvent(clip=1.0, noise_sd=5.0, count=77)
    >>> round(epsilon([event], 1e-5, "add-or-remove-one", accountant="moments"), 3)
    9.998
    """
    return Composition(adjacency=adjacency, accountant=accountant).add(*events).epsilon(delta)


def delta(
    events: Sequence[GaussianEvent],
    epsilon: float,
    adjacency: Adjacency,
    *,
    accountant: Accountant = "pld",
) -> float:
    """Return a δ such that the composition of the events is (ε, δ)-private under the adjacency.

    The formal guarantee is the same as that of `epsilon`. A result of 1 means that the accountant
    has no bound.

    >>> event = GaussianEvent(clip=1.0, noise_sd=1.0)
    >>> round(delta([event], 1.0, "add-or-remove-one"), 6)
    0.126937
    """
    return Composition(adjacency=adjacency, accountant=accountant).add(*events).delta(epsilon)


def epsilon_curve(
    events_per_round: Sequence[GaussianEvent],
    rounds: int | Sequence[int],
    delta: float,
    adjacency: Adjacency,
    *,
    accountant: Accountant = "pld",
) -> list[float]:
    """Return ε after rounds 1, 2, …, `rounds`; if `rounds` is a sequence, return ε after each of
    these numbers of rounds.

    Every round has the events `events_per_round`. The time to compute one ε hardly depends on the
    number of rounds. For a long curve, give only the rounds to plot.

    >>> event = GaussianEvent(clip=1.0, noise_sd=10.0)
    >>> [round(e, 2) for e in epsilon_curve([event], [1, 10], 1e-5, "add-or-remove-one")]
    [0.34, 1.2]
    """
    one = Composition(adjacency=adjacency, accountant=accountant).add(*events_per_round)
    numbers = range(1, rounds + 1) if isinstance(rounds, int) else rounds
    return [one.repeat(number).epsilon(delta) for number in numbers]
