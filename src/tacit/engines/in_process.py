"""The embedded engine: all parties in this process, many answered by one compiled call.

It drives the same `party` and `server` functions as every other engine. Parties are padded to a
few lengths and answered a bench at a time; with `batch_parties=False` each is answered alone,
exactly as it would answer over a network, so that the two agree to the last bit.

Asynchronous runs happen on a simulated clock: each party has a seeded speed and each of its
answers a seeded delay, so that a run is repeatable and can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import threadpool_limits

from tacit import party as party_side
from tacit import server as server_side
from tacit.charging import Charging
from tacit.engines.buckets import bench_size, bucket_lengths
from tacit.errors import DataError
from tacit.local import Arranged, GradientVI
from tacit.messages import Reply, Request
from tacit.models import Records
from tacit.models.prior import PRIOR_PARTY, PriorAsLikelihood, prior_records
from tacit.party import Agreement, PartyState
from tacit.privacy.settle import Settled
from tacit.server import Checkpoint, Rules, ServerState
from tacit.server.state import Log, Open

MOST_LENGTHS = 3
CHEAP_ROWS = 32_768

Observer = Callable[[ServerState, Log], None]


@dataclass(frozen=True, eq=False)
class _Bench:
    """Parties that answer together: their records in one array, padded to one length."""

    agreement: Agreement
    names: tuple[str, ...]
    stack: Records
    weights: np.ndarray


@dataclass
class InProcess:
    """Runs a federation in this process."""

    agreement: Agreement
    rules: Rules
    parties: dict[str, Records]
    batch_parties: bool = True
    settled: dict[str, Settled] = field(default_factory=dict)
    """The terms of every party of a private run."""
    charging: Charging | None = None
    """Who pays, before anything is computed; None: nobody keeps count (a notebook)."""
    _bench_of: dict[str, _Bench] = field(default_factory=dict, init=False)
    _states: dict[str, PartyState] = field(default_factory=dict, init=False)
    _arrivals: dict[str, float] = field(default_factory=dict, init=False)
    _checkpoint: Checkpoint | None = field(default=None, init=False)

    def run(
        self,
        state: ServerState,
        *,
        checkpoint: Checkpoint | None = None,
        observe: Observer | None = None,
    ) -> ServerState:
        """Drive the schedule to its end from `state`, which may be one that was resumed."""
        # The server's matrices are small: a second BLAS thread would only spin.
        with threadpool_limits(limits=1, user_api="blas"):
            self._seat_parties()
            self._checkpoint = checkpoint
            if checkpoint is not None and self._remembers:
                kept = checkpoint.kept()
                self._states |= {name: PartyState(memory=one) for name, one in kept.items()}
            clock = max((request.issued_at for request in state.open.values()), default=0.0)
            if not state.open and not state.finished:
                state = server_side.begin(self.rules, state)
                _save(checkpoint, state, ())
            while not state.finished:
                batch, clock = self._next(state, clock)
                replies = self._answer(batch)
                state, log = server_side.step_together(self.rules, state, replies, clock)
                _save(checkpoint, state, log)
                if observe is not None:
                    observe(state, log)
        return state

    def _next(self, state: ServerState, clock: float) -> tuple[list[Request], float]:
        """The requests answered next, and the simulated time at which their answers arrive."""
        if self.rules.schedule.kind != "asynchronous":
            return server_side.open_requests(state), clock
        for key, request in state.open.items():
            if key not in self._arrivals:
                self._arrivals[key] = self._arrival(request)
        first = min(state.open, key=self._arrivals.__getitem__)
        return server_side.open_requests(state, only=first), self._arrivals.pop(first)

    def _arrival(self, request: Open) -> float:
        """Issue time plus a seeded delay: lognormal, around a speed of the party's own."""
        word = party_side.party_word(request.party)
        pace = np.random.default_rng([self.rules.seed, word, 0xA5]).lognormal(0.0, 0.5)
        rng = np.random.default_rng([self.rules.seed, word, request.visit, 0xA6])
        return request.issued_at + pace * rng.lognormal(0.0, 0.25)

    def _answer(self, requests: Sequence[Request]) -> list[Reply]:
        """Replies in the order of the requests."""
        replies: dict[str, Reply] = {}
        waiting: list[Request] = []
        for request in requests:
            known = party_side.recall(self._states.get(request.party, PartyState()), request)
            if known is not None:
                replies[request.id] = known
            else:
                waiting.append(request)
        charged = [request for request in waiting if request.party in self.settled]
        if self.charging is None:
            charged = []
        else:
            replies |= self.charging.answer(charged, self._compute)
        replies |= self._compute([request for request in waiting if request not in charged])
        return [replies[request.id] for request in requests]

    def _compute(self, requests: Sequence[Request]) -> dict[str, Reply]:
        """New answers, those of one stage together."""
        stage = self.agreement.method.stage
        found: dict[str, tuple[Reply, PartyState]] = {}
        for one in dict.fromkeys(stage(request.visit) for request in requests):
            found |= self._compute_stage([r for r in requests if stage(r.visit) == one])
        self._states |= {reply.party: state for reply, state in found.values()}
        if self._checkpoint is not None and self._remembers:
            self._checkpoint.keep(
                {r.party: s.memory for r, s in found.values() if s.memory is not None}
            )
        return {key: reply for key, (reply, _) in found.items()}

    @property
    def _remembers(self) -> bool:
        agreement = self.agreement
        return agreement.method.memory(agreement.model, agreement.family) is not None

    def _compute_stage(self, requests: Sequence[Request]) -> dict[str, tuple[Reply, PartyState]]:
        """A bench at a time."""
        replies: dict[str, tuple[Reply, PartyState]] = {}
        waiting = {request.party: request for request in requests}
        for bench in dict.fromkeys(self._bench_of[name] for name in waiting):
            asked = [waiting[name] for name in bench.names if name in waiting]
            # A seat that is empty or was not asked repeats a request: one shape, one program.
            full = [waiting.get(name, asked[0]) for name in bench.names]
            terms = [self.settled.get(request.party) for request in full]
            memories = [self._states.get(r.party, PartyState()).memory for r in full]
            updates = party_side.answer_many(
                bench.agreement, bench.stack, bench.weights, full, terms, memories
            )
            for name, request, update in zip(bench.names, full, updates, strict=True):
                if request.party == name and request.id not in replies:
                    replies[request.id] = party_side.conclude(
                        request, update, self.settled.get(name)
                    )
        return replies

    def _seat_parties(self) -> None:
        if self._bench_of:
            return
        method = self.agreement.method
        arranged = {}
        for name, records in self.parties.items():
            if not party_side.len_records(records) > 0:
                raise DataError(f"party {name!r} has no records; leave it out or give it some")
            arranged[name] = method.arrange(name, records, self.agreement.seed)
        sizes = {name: one.weights.shape[method.variable_axis] for name, one in arranged.items()}
        if self.batch_parties:
            lengths = bucket_lengths(list(sizes.values()), MOST_LENGTHS, cheap_rows=CHEAP_ROWS)
        else:
            lengths = sorted({party_side.padded_rows(size) for size in sizes.values()})
        schedule = self.rules.schedule
        everybody = schedule.kind == "synchronous" and schedule.parties_per_round is None
        for below, length in zip([0, *lengths], lengths, strict=False):
            names = [name for name, size in sizes.items() if below < size <= length]
            seats = bench_size(len(names), length) if self.batch_parties and everybody else 1
            for start in range(0, len(names), seats):
                group = {name: arranged[name] for name in names[start : start + seats]}
                self._seat(self.agreement, group, length, seats)
        if self.rules.site_prior:
            self._seat_prior()

    def _seat(
        self, agreement: Agreement, group: dict[str, Arranged], length: int, seats: int
    ) -> None:
        names = [*group, *([next(iter(group))] * (seats - len(group)))]
        arranged = [group[name] for name in names]
        stack, weights = party_side.stack_records(arranged, length, agreement.method)
        bench = _Bench(agreement, tuple(names), stack, weights)
        self._bench_of.update(dict.fromkeys(names, bench))

    def _seat_prior(self) -> None:
        agreement = prior_agreement(self.agreement)
        arranged = agreement.method.arrange(PRIOR_PARTY, prior_records(), agreement.seed)
        self._seat(agreement, {PRIOR_PARTY: arranged}, 1, 1)


def prior_agreement(agreement: Agreement) -> Agreement:
    """The prior is a party too: it sits with the server and its likelihood is log p(θ)."""
    method = agreement.method
    return Agreement(
        PriorAsLikelihood(agreement.model),
        agreement.family,
        method if isinstance(method, GradientVI) else GradientVI(),
        agreement.seed,
    )


def _save(checkpoint: Checkpoint | None, state: ServerState, log: Log) -> None:
    if checkpoint is not None:
        checkpoint.save(state, log)
