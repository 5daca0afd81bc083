"""Footnote 3 of the TMLR paper: clip a shard's parameters instead of their change.

A party has N shards, and shard k computes the parameters λ*ₖ from the parameters λ of q. Here λ*ₖ
is clipped to a ball of radius C around the origin, in place of the change λ*ₖ − λ. The party
releases Σ clip(λ*ₖ/N) + ξ for local averaging and Σ clip(λ*ₖ) + ξ for virtual parties, with noise
ξ. λ is public, and the receiver subtracts it: without clipping, the applied change is the same. A
unit is in one shard, whose vector has norm ≤ C in both neighbours: sensitivity 2C, as for changes.

The norm of λ*ₖ grows with all parties' records and does not shrink as q converges, unlike the norm
of the change. A ball that contains λ*ₖ needs a clip, and thus noise, many times as large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.arrays import Array, Arrays
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.methods import PrivateUpdate
from tacit.methods.base import Task
from tacit.methods.update.forms import Even
from tacit.models import Model
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Aggregation
from tacit.pvi import multiply, power
from tacit.server.messages import Asked


class Plain(Even):
    """Clips natural parameters as they are, neither centred at q nor scaled."""

    centred: ClassVar[bool] = False

    def scales(self, q: Natural) -> dict[str, Array]:
        del q
        return {"score": 1.0, "precision": 1.0}


@dataclass(frozen=True, kw_only=True)
class ClippedParameters(PrivateUpdate):
    """`PrivateUpdate` with shards whose parameters are clipped, not their changes."""

    kind: ClassVar[str] = "dp-parameters"
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain",)

    def check(self, model: Model, family: Family) -> None:
        super().check(model, family)
        if self.unit == "party" or self.shards is None or self.adaptive is not None:
            raise ConfigError(
                "dp-parameters is for shards of records: set method.shards, and leave adaptive out"
            )

    @property
    def _form(self) -> Plain:
        return Plain(self.precision_weight)

    def _changes(self, model: Model, family: Family, key: Array, task: Task) -> Natural:
        """Return each shard's parameters (virtual) or 1/N of them (averaged), not their change."""
        changes = super()._changes(model, family, key, task)
        return multiply(changes, power(task.q, self._share))

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        found = super().from_integers(model, family, event, asked, integers)
        assert asked.q is not None
        whole = self.shards_of(0) * self._share * asked.damping
        return multiply(found, power(asked.q, -whole))

    @property
    def _share(self) -> float:
        return 1.0 / self.shards_of(0) if self.objective == "averaged" else 1.0
