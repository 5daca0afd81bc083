"""The Ray engine: parties on the actors of one organisation's cluster.

The server, the ledger and the method memories are in this process; actors hold records and compute.
If an actor is lost, its request is repeated with the same id and noise key.
One charge covers one reply, even if an actor or this process is lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.arrays import Arrays, Natural
from tacit.data.records import len_records
from tacit.engines.batching import PartyBatches
from tacit.engines.compilations import Compilations
from tacit.engines.driver import Driver, Observer
from tacit.engines.ray.cluster import Cluster, connected
from tacit.engines.ray.host import Host
from tacit.engines.ray.pack import pack_requests, unpack_updates
from tacit.engines.ray.pool import Call, Pool, share
from tacit.errors import DataError
from tacit.models import Records
from tacit.models.prior import PRIOR_PARTY
from tacit.party.charge import Keys
from tacit.party.compute import Update, check_start
from tacit.server import state as server_state
from tacit.server.messages import Reply, Request
from tacit.server.run import ServerRun
from tacit.server.state import ServerState


@dataclass
class RayEngine(Driver):
    """Runs a federation on the actors of a Ray cluster."""

    address: str | None = None
    """A running cluster, HOST:PORT; with None a private one is started on this machine's
    loopback.
    """
    actors: int | None = None
    """Number of actors; with None one per core."""
    wall_clock: bool = False
    """True: asynchronous replies are applied as they arrive, so runs are not repeatable."""
    _cluster: Cluster | None = field(default=None, init=False)
    _pool: Any = field(default=None, init=False)
    _prior: PartyBatches | None = field(default=None, init=False)
    _place_of: dict[str, int] = field(default_factory=dict, init=False)
    _calls: dict[str, tuple[Request, Call]] = field(default_factory=dict, init=False)
    """Asynchronous requests in progress, each with its call, by request id."""
    _rehearsed: set[tuple[str, str]] = field(default_factory=set, init=False)
    _ready: dict[str, Reply] = field(default_factory=dict, init=False)
    """Asynchronous replies that are not yet applied."""

    def run(self, server: ServerRun, *, observe: Observer | None = None) -> None:
        """Run the schedule to its end on a cluster."""
        with connected(self.address) as self._cluster:
            try:
                super().run(server, observe=observe)
                self._report_actors()
            finally:
                if self._pool is not None:
                    self._pool.close()
                self._pool = None

    def prepare(self) -> None:
        """Distribute the parties over the actors by number of records, and start the actors."""
        assert self._cluster is not None
        for name, records in self.parties.items():
            if not len_records(records) > 0:
                raise DataError(f"party {name!r} has no records; leave it out, or give it records")
        count = min(self.actors or self._cluster.cores, len(self.parties))
        groups = deal(self.parties, count)
        threads = max(1, self._cluster.cores // count)
        agreement = share(self.agreement)
        self._pool = Pool(
            Host,
            [
                (
                    agreement,
                    share({name: self.parties[name] for name in names}),
                    {name: self.settled[name] for name in names if name in self.settled},
                    self.batch_parties,
                    self.all_at_once,
                    threads,
                )
                for names in groups
            ],
        )
        self._place_of = {name: place for place, names in enumerate(groups) for name in names}
        if self.rules.site_prior:
            self._prior = PartyBatches(self.agreement, {})
            self._prior.add_prior()

    def compute(self, requests: Sequence[Request], keys: Keys) -> dict[str, Update]:
        """Compute the updates on all actors in parallel; the update of the prior pseudo-party is
        computed in this process.
        """
        calls = self._ask([r for r in requests if r.party != PRIOR_PARTY], keys)
        found = self._here([r for r in requests if r.party == PRIOR_PARTY])
        for call in calls:
            found |= unpack_updates(self._pool.result(call))
        return found

    def rehearse(self, requests: Sequence[Request]) -> None:
        """Compile and test programs that the actors have not run yet, on all actors at once."""
        for request in {id(r.q): r for r in requests}.values():
            check_start(self.agreement, request)
        new = [r for r in requests if (r.party, r.stage) not in self._rehearsed]
        for call in self._ask(new, {}, what="rehearse"):
            self._pool.result(call)
        self._rehearsed |= {(r.party, r.stage) for r in new}

    def following(self, state: ServerState, clock: float) -> tuple[list[Request], float]:
        """Return the requests to answer next, and the simulated arrival time of their replies.

        In an asynchronous run, first start to compute every open request.
        """
        if self.rules.order != "asynchronous":
            return super().following(state, clock)
        under_way = self._calls.keys() | self._ready.keys()
        fresh = [r for r in server_state.open_requests(state) if r.id not in under_way]
        if fresh:
            self._send(fresh)
        if not self.wall_clock:
            return super().following(state, clock)
        return server_state.open_requests(state, only=self._first()), clock

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        if self.rules.order != "asynchronous":
            return super().answer(requests)
        for request in requests:
            if request.id not in self._ready:
                _, call = self._calls.pop(request.id)
                self._ready |= self.agent.close([request], unpack_updates(self._pool.result(call)))
        return [self._ready.pop(request.id) for request in requests]

    def _send(self, requests: Sequence[Request]) -> None:
        """Charge the requests, then start one computation per party."""
        opened = self.agent.open(requests)
        self._ready |= opened.known
        for request in opened.new:
            if request.party == PRIOR_PARTY:
                self._ready |= self.agent.close([request], self._here([request]))
            else:
                (call,) = self._ask([request], opened.keys)
                self._calls[request.id] = request, call

    def _first(self) -> str:
        """Wait for the first reply to arrive; return its request id."""
        if not self._ready:
            of = {call: request for request, call in self._calls.values()}
            call, answered = self._pool.first(list(of))
            del self._calls[of[call].id]
            self._ready |= self.agent.close([of[call]], unpack_updates(answered))
        return next(iter(self._ready))

    def _ask(self, requests: Sequence[Request], keys: Keys, what: str = "compute") -> list[Call]:
        # One call per actor and per distinct pair of q and public arrays.
        groups: dict[tuple[int, tuple[int, int]], list[Request]] = {}
        each: dict[tuple[int, int], tuple[Natural | None, Arrays]] = {}
        for request in requests:
            number = (id(request.q), id(request.public))
            each[number] = (request.q, request.public)
            groups.setdefault((self._place_of[request.party], number), []).append(request)
        # Stored once for all actors; the rest travels with the call.
        where = {number: share(one) if len(groups) > 1 else one for number, one in each.items()}
        return [
            self._pool.call(
                place,
                what,
                where[number],
                pack_requests(group, self.memories(group), keys),
            )
            for (place, number), group in groups.items()
        ]

    def _here(self, requests: Sequence[Request]) -> dict[str, Update]:
        if not requests:
            return {}
        assert self._prior is not None
        return self._prior.compute(requests, {})

    def hosts(self) -> list[dict[str, Any]]:
        """Return process id, node, memory and compilations of every actor; only valid
        during a run.
        """
        return self._pool.each("report")

    def _report_actors(self) -> None:
        assert self._cluster is not None
        lost, hosts = self._pool.lost, self.hosts()
        self.elsewhere = Compilations(
            max(host["compilations"] for host in hosts), max(host["compile_s"] for host in hosts)
        )
        self.report = {
            "nodes": self._cluster.nodes,
            "actors": len(hosts),
            "lost": lost,
            "compilations": [host["compilations"] for host in hosts],
            "memory_mb": [round(host["memory_mb"]) for host in hosts],
        }


def deal(parties: Mapping[str, Records], count: int) -> list[list[str]]:
    """Split parties into `count` groups with similar total numbers of records.

    Within a group, names are in the order of `parties`.

    >>> deal({"a": {"y": [1]}, "b": {"y": [1, 2, 3]}, "c": {"y": [1, 2]}}, 2)
    [['b'], ['a', 'c']]
    """
    sizes = {name: len_records(records) for name, records in parties.items()}
    loads = [(0, place) for place in range(count)]
    place_of = {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        load, place = heapq.heappop(loads)
        place_of[name] = place
        heapq.heappush(loads, (load + sizes[name], place))
    groups: list[list[str]] = [[] for _ in range(count)]
    for name in parties:
        groups[place_of[name]].append(name)
    return groups
