"""Charge, then speak: a private answer is paid for before it is computed, and sent as stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tacit.errors import PrivacyError
from tacit.messages import Reply, Request, decode_reply, encode_reply
from tacit.privacy.events import Relation
from tacit.privacy.fingerprint import DatasetId
from tacit.privacy.guarantee import Unit
from tacit.privacy.ledger import Ask, Ledger
from tacit.privacy.ledger import Reply as Kept
from tacit.privacy.settle import Settled

Compute = Callable[[Sequence[Request]], dict[str, Reply]]


@dataclass(frozen=True)
class Charging:
    """The ledger behind the parties of one process, and what each of their answers costs."""

    ledger: Ledger
    run: str
    """Names this run for ever: the same request of a resumed run is the same request."""
    datasets: dict[str, DatasetId]
    settled: dict[str, Settled]
    unit: Unit
    relation: Relation

    def require_room(self) -> None:
        """Refuse the whole run now if it would pass a ceiling later. Spends nothing."""
        for party, dataset in self.datasets.items():
            settled = self.settled[party]
            budget = self.ledger.check(
                dataset, settled.all_events, unit=self.unit, relation=self.relation
            )
            if not budget.fits:
                raise PrivacyError(
                    f"party {party!r}: this run asks for ε = {budget.asked:.4g} after "
                    f"{budget.spent:.4g} was spent, together {budget.total:.4g} > ceiling "
                    f"{budget.ceiling.epsilon:.4g} (δ = {budget.ceiling.delta:g}, "
                    f"{budget.ceiling.relation} a {budget.ceiling.unit}); ask for less, or have "
                    "the operator raise it: tacit ledger ceiling CONFIG.toml --epsilon … --delta … "
                    "--reason … --raise"
                )

    def require_turn(self, request: Request) -> None:
        """Refuse a request beyond those agreed on, whatever visit a server says that it is."""
        dataset = self.datasets[request.party]
        rows = self.ledger.show(dataset)
        charged = [row for row in rows if row.kind == "charge" and row.run == self.run]
        known = {row.request for row in charged}
        visits = self.settled[request.party].visits
        taken = {row.request for row in charged if row.purpose == _purpose(request)}
        if taken - {request.id}:
            raise PrivacyError(
                f"party {request.party!r} has answered visit {request.visit} of {self.run} as "
                f"request {min(taken)}; a visit is one answer, and visits differ in their cost"
            )
        if request.id not in known and not len(known) < visits:
            raise PrivacyError(
                f"party {request.party!r} has answered {len(known)} requests of {self.run}; "
                f"{visits} were agreed on before the run, and no server may ask for more"
            )

    def answer(self, requests: Sequence[Request], compute: Compute) -> dict[str, Reply]:
        """Replies by request id: stored ones as they are, new ones charged, computed, stored."""
        stored, wanted = self.open(requests)
        return stored | (self.store(wanted, compute(wanted)) if wanted else {})

    def open(self, requests: Sequence[Request]) -> tuple[dict[str, Reply], list[Request]]:
        """Stored replies by id, and the requests that have none: what those cost is charged now."""
        for request in requests:
            visits = self.settled[request.party].visits
            if not request.visit < visits:
                raise PrivacyError(
                    f"party {request.party!r} is asked for answer {request.visit + 1}; {visits} "
                    "were agreed on before the run, and no server may ask for more"
                )
        paid = [request for request in requests if self._costs(request)]
        bodies = self.ledger.open_many([self._ask(request) for request in paid])[0] if paid else []
        stored = {
            request.id: decode_reply(body)
            for request, body in zip(paid, bodies, strict=True)
            if body is not None
        }
        return stored, [request for request in requests if request.id not in stored]

    def store(self, requests: Sequence[Request], replies: dict[str, Reply]) -> dict[str, Reply]:
        """Keep the answers to opened requests; what is sent is what was kept, by request id.

        What is made of earlier releases alone is neither charged nor stored: it can be remade.
        """
        paid = [request.id for request in requests if self._costs(request)]
        kept = [Kept(self.run, key, encode_reply(replies[key])) for key in paid]
        bodies = self.ledger.store_replies(kept) if kept else []
        same = {key: decode_reply(body) for key, body in zip(paid, bodies, strict=True)}
        return {request.id: replies[request.id] for request in requests} | same

    def _costs(self, request: Request) -> bool:
        return bool(self.settled[request.party].events_at(request.visit))

    def _ask(self, request: Request) -> Ask:
        return Ask(
            dataset=self.datasets[request.party],
            run=self.run,
            request=request.id,
            events=self.settled[request.party].events_at(request.visit),
            unit=self.unit,
            relation=self.relation,
            purpose=_purpose(request),
        )


def visits_charged(ledger: Ledger, run: str, party: str) -> set[int]:
    """Which of a party's visits of a run are paid for."""
    rows = [row for row in ledger.show() if row.kind == "charge" and row.run == run]
    parts = [row.purpose.rpartition(", visit ") for row in rows]
    return {int(visit) for name, _, visit in parts if name == party}


def _purpose(request: Request) -> str:
    return f"{request.party}, visit {request.visit}"
