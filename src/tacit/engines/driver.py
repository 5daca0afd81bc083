"""What drives a run whose parties all belong to one organisation, wherever they compute.

An engine seats the parties and gives their answers; asking, charging, applying and keeping are the
same for all of them. Charging and what parties remember stay in this process: a party that has to
be seated elsewhere in the middle of a run has lost nothing.

Asynchronous runs happen on a simulated clock: each party has a seeded speed and each of its
answers a seeded delay, so that a run is repeatable and can be resumed.
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
    """Runs a federation; its engines say how parties are seated and how they answer."""

    agreement: Agreement
    rules: Rules
    parties: dict[str, Records]
    batch_parties: bool = True
    settled: dict[str, Settled] = field(default_factory=dict)
    """The terms of every party of a private run."""
    charging: Charging | None = None
    """Who pays, before anything is computed; None: nobody keeps count (a notebook)."""
    store: ProcessStore = field(default_factory=ProcessStore, init=False)
    agent: PartyAgent = field(init=False)
    elsewhere: Compilations = field(default=Compilations(0, 0.0), init=False)
    """The most that any other process has compiled for this run."""
    report: dict[str, Any] = field(default_factory=dict, init=False)
    """What an engine has to say about itself after a run."""
    _arrivals: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.agent = PartyAgent(
            self.agreement, self, self.store, settled=self.settled, charging=self.charging
        )

    @abc.abstractmethod
    def seat(self) -> None:
        """Make the parties ready to answer."""

    @abc.abstractmethod
    def compute(self, requests: Sequence[Request], keys: Keys) -> Mapping[str, Update]:
        """Updates by request id, with the noise keys of the requests that have one."""

    def rehearse(self, requests: Sequence[Request]) -> None:  # noqa: B027 - not every engine has to
        """Compile and try out what these requests need, before anything is charged."""

    def run(self, server: ServerRun, *, observe: Observer | None = None) -> None:
        """Drive the schedule to its end from the server's state, which may be one of before."""
        assert server.state is not None
        self.seat()
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
        """The requests answered next, and the simulated time at which their answers arrive."""
        if self.rules.schedule.kind != "asynchronous":
            return server_state.open_requests(state), clock
        for key, request in state.open.items():
            if key not in self._arrivals:
                self._arrivals[key] = self._arrival(request)
        first = min(state.open, key=self._arrivals.__getitem__)
        return server_state.open_requests(state, only=first), self._arrivals.pop(first)

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Replies in the order of the requests."""
        return self.agent.answer(requests)

    @property
    def everybody(self) -> bool:
        """Whether all parties are asked at once, so that it pays to answer them together."""
        schedule = self.rules.schedule
        return schedule.kind == "synchronous" and schedule.parties_per_round is None

    def memories(self, requests: Sequence[Request]) -> Mapping[str, Natural | None]:
        """What the parties of these requests had kept before them."""
        return {r.party: self.store.memory_at(r.party, r.visit) for r in requests}

    @property
    def _remembers(self) -> bool:
        agreement = self.agreement
        return agreement.method.memory(agreement.model, agreement.family) is not None

    def _arrival(self, request: Open) -> float:
        """Issue time plus a seeded delay: lognormal, around a speed of the party's own."""
        word = party_side.party_word(request.party)
        pace = np.random.default_rng([self.rules.seed, word, 0xA5]).lognormal(0.0, 0.5)
        rng = np.random.default_rng([self.rules.seed, word, request.visit, 0xA6])
        return request.issued_at + pace * rng.lognormal(0.0, 0.25)
