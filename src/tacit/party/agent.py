"""How a party answers requests: recall, check, charge, compute, conclude, store.

`PartyAgent` answers the requests of one or several parties. The in-process engine, the Ray engine
and a party of a live federation all use it. They differ in how updates are computed, and where
replies and method memories are stored.

The order of the steps makes a crash harmless:

1. recall: a request that was answered before gets the stored reply, and nothing is computed;
2. check: an invalid request is refused, and the computation is compiled and tested on artificial
   records;
3. charge: all requests are charged in one transaction of the ledger, each with a noise key;
4. compute: this is the only step that reads records;
5. conclude: an error is raised if a number is not finite, or if the privacy cost differs from the
   charge;
6. store: the method's memory is stored, and then the reply. Only a stored reply is sent.

After a crash between steps 3 and 6, the noise key is still in the ledger. The request is then
answered with the same noise, without a new charge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tacit.arrays import Natural
from tacit.errors import DataError
from tacit.party.charge import Charging, Keys
from tacit.party.compute import Update, require_memory
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled
from tacit.privacy.mechanisms import check_released
from tacit.server.messages import Reply, Request
from tacit.support.tracing import span


class Computer(Protocol):
    """Computes updates from records, without sending them."""

    def rehearse(self, requests: Sequence[Request]) -> None:
        """Compile the programs for these requests and test them on artificial records.

        This is called before the requests are charged.
        """
        ...

    def compute(self, requests: Sequence[Request], keys: Keys) -> Mapping[str, Update]:
        """Return the updates for these requests, by request id.

        `keys` has the noise keys of the charged requests, by request id.
        """
        ...


class Store(Protocol):
    """Stores the replies and method memories of parties."""

    def recall(self, request: Request) -> Reply | None:
        """Return the stored reply to this request; None if no reply is stored."""
        ...

    def memory_at(self, party: str, visit: int) -> Natural | None:
        """Return the method memory of a party as it was before this visit.

        This also holds if the visit is answered a second time.
        """
        ...

    def keep_memories(self, memories: Mapping[str, tuple[int, Natural]]) -> None:
        """Store, for each party, the number of a visit and the method memory after this visit.

        A store on disk must have written them when this returns.
        """
        ...

    def keep_reply(self, request: Request, reply: Reply) -> None:
        """Store a reply that is not stored in a ledger."""
        ...


class OpenedRequests(NamedTuple):
    """Requests, divided into those with a stored reply and those that were checked and charged."""

    known: dict[str, Reply]
    """Stored replies, by request id."""
    new: list[Request]
    """Requests to compute."""
    keys: Keys
    """Noise keys of the charged requests, by request id."""


class PartyAgent:
    """Answers the requests of one or several parties: charges them, computes the replies and stores
    them.
    """

    def __init__(
        self,
        agreement: Agreement,
        computer: Computer,
        store: Store,
        settled: Mapping[str, Settled] | None = None,
        charging: Charging | None = None,
        check: Callable[[Request], None] | None = None,
    ) -> None:
        """Make an agent.

        Parameters
        ----------
        agreement
            The part of the plan that all parties share.
        computer
            Computes updates from records.
        store
            Stores replies and method memories.
        settled
            Clip, noise and events of each party; a party without an entry is not private.
        charging
            The ledger. If None, nothing is charged, as in a simulation.
        check
            Function that raises an error for a request that must not be answered. Called before
            anything is charged.
        """
        self.agreement, self.computer, self.store = agreement, computer, store
        self.settled, self.charging, self.check = settled or {}, charging, check

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Return the replies to these requests, in the same order."""
        with span("charge", requests=len(requests)):
            opened = self.open(requests)
        replies = opened.known
        if opened.new:
            with span("compute", requests=len(opened.new)):
                updates = self.computer.compute(opened.new, opened.keys)
            with span("keep", requests=len(opened.new)):
                replies |= self.close(opened.new, updates)
        return [replies[request.id] for request in requests]

    def open(self, requests: Sequence[Request]) -> OpenedRequests:
        """Find stored replies, then check and charge all other requests.

        The charges are on disk when this returns.
        """
        known: dict[str, Reply] = {}
        charged: list[Request] = []
        free: list[Request] = []
        for request in requests:
            stored = None if self._is_charged(request) else self.store.recall(request)
            if stored is not None:
                known[request.id] = stored
                continue
            if self.check is not None:
                self.check(request)
            (charged if self._is_charged(request) else free).append(request)
        keys: Keys = {}
        if self.charging is not None and charged:
            stored, charged, keys = self.charging.open(charged, self._rehearse)
            known |= stored
        wanted = {request.id for request in (*charged, *free)}
        return OpenedRequests(
            known, [request for request in requests if request.id in wanted], keys
        )

    def close(self, requests: Sequence[Request], updates: Mapping[str, Update]) -> dict[str, Reply]:
        """Make the replies to requests from their updates, store the replies, and return them by
        request id.

        `requests` are those that `open` returned as new. An error is raised, and nothing is stored,
        if one of them has no update.
        """
        _check_complete(requests, updates)
        replies = {r.id: conclude(r, updates[r.id], self.settled.get(r.party)) for r in requests}
        memories = {}
        for request in requests:
            memory = updates[request.id].memory
            if memory is not None:
                memories[request.party] = (request.visit, memory)
        if memories:
            self.store.keep_memories(memories)
        charged = [request for request in requests if self._is_charged(request)]
        if self.charging is not None and charged:
            replies |= self.charging.store(charged, replies)
        for request in requests:
            if not self._is_charged(request):
                self.store.keep_reply(request, replies[request.id])
        return replies

    def _rehearse(self, requests: Sequence[Request]) -> None:
        """Check method memories and test the computation, so that errors occur before the
        charge.
        """
        for request in requests:
            memory = self.store.memory_at(request.party, request.visit)
            require_memory(self.agreement, request, memory)
        self.computer.rehearse(requests)

    def _is_charged(self, request: Request) -> bool:
        return self.charging is not None and request.party in self.settled


def _check_complete(requests: Sequence[Request], updates: Mapping[str, Update]) -> None:
    missing = [request for request in requests if request.id not in updates]
    if missing:
        first = missing[0]
        raise DataError(
            f"no update for request {first.id!r} of party {first.party!r}, visit {first.visit} "
            f"({len(missing)} of {len(requests)} requests have none): `compute` of the engine must "
            "return an update for every request id; correct it and resume the run, which does not "
            "charge again"
        )


def conclude(request: Request, update: Update, settled: Settled | None = None) -> Reply:
    """Make the reply to a request from its update.

    An error is raised if a number is not finite, or if the privacy cost of the update differs from
    what was charged for this visit (`settled`).
    """
    if not update.finite:
        raise DataError(
            f"party {request.party!r}, visit {request.visit}: the update is not finite; lower "
            "method.learning_rate or method.step_size, or look for extreme values in the party's "
            "records"
        )
    if settled is not None:
        check_released(update.cost, settled.events_at(request.visit), request.party)
    return Reply(request.id, request.party, request.version, update.released, update.loss)
