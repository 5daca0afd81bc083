"""What a server and a party say to each other, whatever engine carries it."""

from __future__ import annotations

from typing import NamedTuple

from tacit.expfam import Natural


class Request(NamedTuple):
    """The server asks one party for one update.

    `id` is answered once. `version` is that of the party's factor: an update made against
    another one is refused. `visit` counts the requests this party has had and, with the seed and
    the party's name, is all that its random numbers depend on.
    """

    id: str
    party: str
    visit: int
    version: int
    q: Natural
    factor: Natural
    damping: float
    initial: bool
    """True while no update has been applied: q is still the prior."""


class Reply(NamedTuple):
    """A party's update Δₘ = ρ (λ_{qₘ} − λ_q), and its loss at the q it was sent."""

    id: str
    party: str
    version: int
    delta: Natural
    loss: float
