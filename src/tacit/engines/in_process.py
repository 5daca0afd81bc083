"""The in-process engine: all parties in this process, many per compiled call.

It uses the same `party` and `server` functions as every other engine. With `batch_parties=False`
each party is computed alone, exactly as over a network, so the results are identical to the last
bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tacit.engines.batching import PartyBatches
from tacit.engines.driver import Driver
from tacit.party.charge import Keys
from tacit.party.compute import Update
from tacit.server.messages import Request


@dataclass
class InProcess(Driver):
    """Runs a federation in this process."""

    _batches: PartyBatches | None = field(default=None, init=False)

    def prepare(self) -> None:
        if self._batches is None:
            batches = PartyBatches(self.agreement, self.settled)
            batches.add(
                self.parties, batch_parties=self.batch_parties, all_at_once=self.all_at_once
            )
            if self.rules.site_prior:
                batches.add_prior()
            self._batches = batches

    def compute(self, requests: Sequence[Request], keys: Keys) -> dict[str, Update]:
        assert self._batches is not None, "prepare first"
        return self._batches.compute(requests, self.memories(requests), keys)

    def rehearse(self, requests: Sequence[Request]) -> None:
        assert self._batches is not None, "prepare first"
        self._batches.rehearse(requests, self.memories(requests))
