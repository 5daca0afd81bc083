"""The party's side of every exchange: recall, check, charge, compute, conclude, keep.

`PartyAgent` is the only implementation, for one party or for many at once. The in-process engine,
the Ray engine and a party of a live federation use it; they differ in what computes the updates and
where replies and memories are kept.

The order makes a crash harmless:

1. recall: a request that was answered before gets the stored reply, and nothing is computed;
2. check: an invalid request is refused, and the computation is compiled and run on rows of zeros,
   before anything is charged;
3. charge: all requests in one ledger transaction, each with its noise key;
4. compute: the only step that reads records;
5. conclude: refused if a number is not finite, or if the cost differs from what was charged;
6. keep: store the method's memory, then the reply. Only a stored reply is returned.

A crash after the charge leaves the noise key in the ledger: the request is answered again with the
same noise, under the same charge.
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
    """Computes updates from records. The returned updates have not left the party yet."""

    def rehearse(self, requests: Sequence[Request]) -> None:
        """Compile and test the programs for these requests, without records."""
        ...

    def compute(self, requests: Sequence[Request], keys: Keys) -> Mapping[str, Update]:
        """Compute the updates, by request id; `keys` are the noise keys of charged requests."""
        ...


class Store(Protocol):
    """Storage for replies and method memories between requests."""

    def recall(self, request: Request) -> Reply | None:
        """Return the stored reply, or None if this request was not answered before."""
        ...

    def memory_at(self, party: str, visit: int) -> Natural | None:
        """Return the method memory from before that visit, even if the visit is answered again."""
        ...

    def keep_memories(self, memories: Mapping[str, tuple[int, Natural]]) -> None:
        """Store each party's visit and method memory; durable on return."""
        ...

    def keep_reply(self, request: Request, reply: Reply) -> None:
        """Store a reply that is in no ledger; durable on return."""
        ...


class OpenedRequests(NamedTuple):
    """Requests after recall, check and charge."""

    known: dict[str, Reply]
    """Stored replies by request id."""
    new: list[Request]
    """Requests to compute."""
    keys: Keys
    """Noise keys of charged requests, by request id."""


class PartyAgent:
    """Answers requests for one or many parties."""

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
            The parties' side of the plan.
        computer
            Computes updates from records.
        store
            Keeps replies and memories between requests.
        settled
            Privacy terms per party; a party without terms is not private.
        charging
            The ledger. With None nothing is charged, as in a simulation.
        check
            Raises for a request that must not be answered, before anything is charged.
        """
        self.agreement, self.computer, self.store = agreement, computer, store
        self.settled, self.charging, self.check = settled or {}, charging, check

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer requests; the replies are in the order of the requests."""
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
        """Recall, check and charge. Charges are durable on return."""
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
        """Make and store the replies to opened requests; return them by request id."""
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
        """Check method memories and rehearse the computation, so that errors occur before the
        charge.
        """
        for request in requests:
            memory = self.store.memory_at(request.party, request.visit)
            require_memory(self.agreement, request, memory)
        self.computer.rehearse(requests)

    def _is_charged(self, request: Request) -> bool:
        return self.charging is not None and request.party in self.settled


def conclude(request: Request, update: Update, settled: Settled | None = None) -> Reply:
    """Make the reply to a request from its update.

    Refused if a number is not finite, or if the cost differs from what was settled and charged.
    """
    if not update.finite:
        raise DataError(
            f"party {request.party!r}, visit {request.visit}: its update is not finite; lower "
            "method.learning_rate or method.step_size, or look for extreme values in its data"
        )
    if settled is not None:
        check_released(update.cost, settled.events_at(request.visit), request.party)
    return Reply(request.id, request.party, request.version, update.released, update.loss)
