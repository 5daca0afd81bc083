"""What a private run promises, always in full."""

from __future__ import annotations

from typing import Literal

import msgspec

from tacit.privacy.events import Adjacency

Unit = Literal["record", "person", "party"]
Aggregation = Literal["plain", "trusted", "server"]

TRUST = {
    "plain": "nobody: what a party sends is already private",
    "trusted": "the server: it sees each party's message, which carries only a share of the noise, "
    "and must show nobody anything but their sum",
    "server": "the server: it is sent exact updates, and adds the noise itself",
    "central": "whoever holds all the records in one place",
}


class Guarantee(msgspec.Struct, frozen=True, kw_only=True):
    """A differential privacy guarantee: ε, δ, protected unit, adjacency and trust assumption."""

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    trust: str
    caveat: str | None = None
    """What makes it void or weaker than it looks, e.g. a known seed."""

    def __str__(self) -> str:
        text = (
            f"ε = {self.epsilon:.4g}, δ = {self.delta:g} per {self.unit} ({self.adjacency}); "
            f"trusted: {self.trust}"
        )
        return text if self.caveat is None else f"{text}. {self.caveat}"
