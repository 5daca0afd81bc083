"""Privacy accounting: ε and δ of a list of releases, by one of four accountants.

| name      | bound                                                    | source               |
|-----------|----------------------------------------------------------|----------------------|
| `pld`     | privacy loss distributions: tight, the default           | Koskela et al. 2020  |
| `rdp`     | Rényi divergences at 156 orders                          | Mironov 2017         |
| `moments` | the moments accountant, λ = 1..32 (MEng eqs 2.8–2.17)    | Abadi et al. 2016    |
| `strong`  | strong composition of amplified (ε, δ) steps, a baseline | Kairouz et al. 2015  |

All results are upper bounds; `math.inf` means that the accountant has none. Events that an
accountant cannot bound raise `ConfigError`; `supported` gives the reason in advance. The proofs are
in docs/methods/accounting.md.
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

    Formal guarantee: the sequence of releases, each chosen after seeing the earlier ones but with
    noise, clip and sampling fixed in advance, is (ε, δ)-differentially private. The result does not
    depend on the order of the events or their grouping into counts, to the last bit.

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

    Formal guarantee: as for `epsilon`; a result of 1 means that there is none.

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
    """Return ε after rounds 1, 2, …, `rounds`, or after each of the given numbers of rounds.

    Each point costs one composition for any number of rounds, because equal events are composed as
    a power. For a long curve, give only the rounds to plot.

    >>> event = GaussianEvent(clip=1.0, noise_sd=10.0)
    >>> [round(e, 2) for e in epsilon_curve([event], [1, 10], 1e-5, "add-or-remove-one")]
    [0.34, 1.2]
    """
    one = Composition(adjacency=adjacency, accountant=accountant).add(*events_per_round)
    numbers = range(1, rounds + 1) if isinstance(rounds, int) else rounds
    return [one.repeat(number).epsilon(delta) for number in numbers]
