"""The embedded engine: all parties in this process, many answered by one compiled call.

It drives the same `party` and `server` functions as every other engine. With
`batch_parties=False` each party is answered alone, exactly as it would answer over a network, so
that the two agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tacit.engines.batching import Benches
from tacit.engines.driver import Driver
from tacit.party.charge import Keys
from tacit.party.compute import Update
from tacit.server.messages import Request


@dataclass
class InProcess(Driver):
    """Runs a federation in this process."""

    _benches: Benches | None = field(default=None, init=False)

    def seat(self) -> None:
        if self._benches is None:
            benches = Benches(self.agreement, self.settled)
            benches.seat(self.parties, batch_parties=self.batch_parties, everybody=self.everybody)
            if self.rules.site_prior:
                benches.seat_prior()
            self._benches = benches

    def compute(self, requests: Sequence[Request], keys: Keys) -> dict[str, Update]:
        assert self._benches is not None, "seat first"
        return self._benches.compute(requests, self.memories(requests), keys)

    def rehearse(self, requests: Sequence[Request]) -> None:
        assert self._benches is not None, "seat first"
        self._benches.rehearse(requests, self.memories(requests))
