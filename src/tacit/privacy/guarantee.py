"""Differential privacy guarantees with their unit, adjacency and trust assumption."""

from __future__ import annotations

from typing import Literal

import msgspec

from tacit.privacy.events import Adjacency
from tacit.support.notebook import notebook_html

Unit = Literal["record", "person", "party"]
Aggregation = Literal["plain", "secure", "trusted", "server"]

TRUST = {
    "plain": "No trusted server: each party adds its own noise",
    "secure": "No trusted server: it sees only sums over the parties",
    "trusted": "Trusted server: it sees each party's message, which carries only a share of the "
    "noise, and must reveal only the sum",
    "server": "Trusted server: it receives exact updates and adds the noise",
    "central": "Trusted data holder: all records are in one place",
}


class Guarantee(msgspec.Struct, frozen=True, kw_only=True):
    """A differential privacy guarantee: ε, δ, protected unit, adjacency and trust assumption."""

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    trust: str
    caveat: str | None = None
    """Condition that weakens or voids the guarantee, e.g. a known seed."""

    def __str__(self) -> str:
        text = (
            f"ε = {self.epsilon:.4g}, δ = {self.delta:g} per {self.unit} ({self.adjacency}). "
            f"{self.trust}"
        )
        return text if self.caveat is None else f"{text}. {self.caveat}"

    def _repr_html_(self) -> str:
        return notebook_html(
            "Differential privacy",
            [
                ("ε", f"{self.epsilon:.4g}"),
                ("δ", f"{self.delta:g}"),
                ("protects", f"one {self.unit}"),
                ("adjacency", self.adjacency),
                ("trust", self.trust),
            ],
            warnings=[] if self.caveat is None else [self.caveat],
        )
