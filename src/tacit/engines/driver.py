"""Base class of engines, for parties that all belong to one organisation.

An engine prepares the parties and computes their updates. This class does the rest: it sends
requests, charges them, applies the replies and stores the state. Charges and method memories stay
in this process, so a party can move to another process during a run.

Asynchronous runs happen on a simulated clock: each party has a seeded speed and each reply
has a seeded delay, so that a run is repeatable and can be resumed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.engines.compilations import Compilations
from tacit.expfam import Natural
from tacit.models import Records
from tacit.party import compute as party_side
from tacit.party.agent import PartyAgent
from tacit.party.charge import Charging, Keys
from tacit.party.compute import Update
from tacit.party.store import ProcessStore
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled
from tacit.server import state as server_state
from tacit.server.messages import Reply, Request
from tacit.server.run import ServerRun
from tacit.server.state import Log, Open, Rules, ServerState

Observer = Callable[[ServerState, Log], None]


@dataclass
class Driver(abc.ABC):
    """Runs a federation; subclasses prepare the parties and compute updates."""

    agreement: Agreement
    rules: Rules
    parties: dict[str, Records]
    batch_parties: bool = True
    settled: dict[str, Settled] = field(default_factory=dict)
    """Privacy terms of every party of a private run."""
    charging: Charging | None = None
    """Charges the ledger before anything is computed; with None nothing is charged."""
    store: ProcessStore = field(default_factory=ProcessStore, init=False)
    agent: PartyAgent = field(init=False)
    elsewhere: Compilations = field(default=Compilations(0, 0.0), init=False)
    """The largest number of compilations in any other process of this run."""
    report: dict[str, Any] = field(default_factory=dict, init=False)
    """Engine-specific facts about the run."""
    _arrivals: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.agent = PartyAgent(
            self.agreement, self, self.store, settled=self.settled, charging=self.charging
        )

    @abc.abstractmethod
    def prepare(self) -> None:
        """Set up the parties to compute updates."""

    @abc.abstractmethod
    def compute(self, requests: Sequence[Request], keys: Keys) -> Mapping[str, Update]:
        """Return the updates for these requests. Both the result and the noise keys `keys` are
        dicts with request ids as keys.
        """

    def rehearse(self, requests: Sequence[Request]) -> None:  # noqa: B027 - optional
        """Compile and test the programs for these requests, before anything is charged."""

    def run(self, server: ServerRun, *, observe: Observer | None = None) -> None:
        """Run the schedule to its end from the server's state, which may come from a checkpoint."""
        assert server.state is not None
        self.prepare()
        if server.checkpoint is not None and self._remembers:
            self.store.use(server.checkpoint)
        clock = max((request.issued_at for request in server.state.open.values()), default=0.0)
        server.begin(server.state)
        while not server.finished:
            batch, clock = self.following(server.state, clock)
            log = server.take(self.answer(batch), clock)
            if observe is not None:
                observe(server.state, log)

    def following(self, state: ServerState, clock: float) -> tuple[list[Request], float]:
        """Return the requests to answer next, and the simulated arrival time of their replies."""
        if self.rules.order != "asynchronous":
            return server_state.open_requests(state), clock
        for key, request in state.open.items():
            if key not in self._arrivals:
                self._arrivals[key] = self._arrival(request)
        first = min(state.open, key=self._arrivals.__getitem__)
        return server_state.open_requests(state, only=first), self._arrivals.pop(first)

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Return the replies in the order of the requests."""
        return self.agent.answer(requests)

    @property
    def all_at_once(self) -> bool:
        """True if all parties get requests at the same time; batching is then faster."""
        everyone = self.rules.schedule.parties_per_round is None
        return self.rules.order == "synchronous" and everyone

    def memories(self, requests: Sequence[Request]) -> Mapping[str, Natural | None]:
        """Return the arrays that the method stored at the previous visits, by party."""
        return {r.party: self.store.memory_at(r.party, r.visit) for r in requests}

    @property
    def _remembers(self) -> bool:
        agreement = self.agreement
        return agreement.method.memory(agreement.model, agreement.family) is not None

    def _arrival(self, request: Open) -> float:
        """Return the simulated arrival time of the reply: the issue time plus a seeded lognormal
        delay.
        """
        word = party_side.party_word(request.party)
        pace = np.random.default_rng([self.rules.seed, word, 0xA5]).lognormal(0.0, 0.5)
        rng = np.random.default_rng([self.rules.seed, word, request.visit, 0xA6])
        return request.issued_at + pace * rng.lognormal(0.0, 0.25)
