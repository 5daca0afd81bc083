"""Charge, then speak: a private answer is paid for before it is computed, and sent as stored.

An answer that is lost between its charge and its reply is made again with the noise key that was
stored with the charge: it is the same answer, and costs nothing more.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.plan.calibrate import Settled
from tacit.privacy.events import Adjacency
from tacit.privacy.guarantee import Unit
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.ledger import Ledger, ReleaseRequest
from tacit.privacy.ledger.ledger import Reply as Kept
from tacit.privacy.settings import Privacy
from tacit.server.messages import Reply, Request, decode_reply, encode_reply

Datasets = Callable[[Ledger], dict[str, DatasetId]]
"""The names of the parties' records under a ledger's key."""
Keys = Mapping[str, bytes]
"""Noise keys by request id."""
Rehearse = Callable[[Sequence[Request]], None]


@dataclass(frozen=True)
class Charging:
    """The ledger behind the parties of one process, and what each of their answers costs."""

    ledger: Ledger
    run: str
    """Names this run for ever: the same request of a resumed run is the same request."""
    datasets: dict[str, DatasetId]
    settled: dict[str, Settled]
    unit: Unit
    adjacency: Adjacency

    def require_budget(self) -> None:
        """Refuse the whole run now if it would pass a budget later. Spends nothing."""
        for party, dataset in self.datasets.items():
            settled = self.settled[party]
            found = self.ledger.check(
                dataset, settled.all_events, unit=self.unit, adjacency=self.adjacency
            )
            if not found.fits:
                raise PrivacyBudgetError(
                    f"party {party!r}: this run asks for ε = {found.requested:.4g} after "
                    f"{found.spent:.4g} was spent, together {found.total:.4g} > budget "
                    f"{found.budget.epsilon:.4g} (δ = {found.budget.delta:g}, "
                    f"per {found.budget.unit}, {found.budget.adjacency}); ask for less, or have "
                    "the operator raise it: tacit ledger budget CONFIG.toml --ledger "
                    f"{shlex.quote(str(self.ledger.path))} --epsilon … --delta … --reason … --raise"
                )

    def require_turn(self, request: Request) -> None:
        """Refuse a request beyond those agreed on, whatever visit a server says that it is."""
        charged = self.ledger.charges(self.run)
        charged = [one for one in charged if one.dataset == self.datasets[request.party]]
        known = {one.request for one in charged}
        visits = self.settled[request.party].visits
        taken = {one.request for one in charged if one.purpose == _purpose(request)}
        if taken - {request.id}:
            raise PrivacyBudgetError(
                f"party {request.party!r} has answered visit {request.visit} of {self.run} as "
                f"request {min(taken)}; a visit is one answer, and visits differ in their cost"
            )
        if request.id not in known and not len(known) < visits:
            raise PrivacyBudgetError(
                f"party {request.party!r} has answered {len(known)} requests of {self.run}; "
                f"{visits} were agreed on before the run, and no server may ask for more"
            )

    def unpaid(self, party: str) -> Settled:
        """What the run still costs a party: answers that are stored or can be drawn again are paid.

        Without any visits if that is nothing.
        """
        settled = self.settled[party]
        paid = {one.purpose for one in self.ledger.paid_for(self.run)}
        left = [visit for visit in range(settled.visits) if _label(party, visit) not in paid]
        answers = tuple(settled.events_at(visit) for visit in left)
        return msgspec.structs.replace(settled, visits=len(left), answers=answers or ((),))

    def open(
        self, requests: Sequence[Request], rehearse: Rehearse | None = None
    ) -> tuple[dict[str, Reply], list[Request], dict[str, bytes]]:
        """Stored replies by id, the requests that have none, and the noise keys of these.

        What they cost is charged now, unless it was before and their answers were lost. `rehearse`
        is given them first: what it raises costs nothing.
        """
        for request in requests:
            visits = self.settled[request.party].visits
            if not request.visit < visits:
                raise PrivacyBudgetError(
                    f"party {request.party!r} is asked for answer {request.visit + 1}; {visits} "
                    "were agreed on before the run, and no server may ask for more"
                )
        paid = [request for request in requests if self._costs(request)]
        if rehearse is not None:
            known = self.ledger.recall_many([(self.run, request.id) for request in paid])
            there = {one.id for one, body in zip(paid, known, strict=True) if body is not None}
            rehearse([request for request in requests if request.id not in there])
        asks = [self._ask(request) for request in paid]
        bodies, opened = self.ledger.open_many(asks) if asks else ([], [])
        stored = {
            request.id: decode_reply(body)
            for request, body in zip(paid, bodies, strict=True)
            if body is not None
        }
        wanted = [request for request in requests if request.id not in stored]
        return stored, wanted, {one.release.request: one.key for one in opened}

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

    def _ask(self, request: Request) -> ReleaseRequest:
        return ReleaseRequest(
            dataset=self.datasets[request.party],
            run=self.run,
            request=request.id,
            events=self.settled[request.party].events_at(request.visit),
            unit=self.unit,
            adjacency=self.adjacency,
            purpose=_purpose(request),
            content=request.content,
        )


@contextmanager
def ledger_charging(
    privacy: Privacy | None, settled: dict[str, Settled], datasets: Datasets, *, run: str
) -> Iterator[Charging | None]:
    """Charge a run without a directory to `privacy.ledger`, if that is given and has room for it.

    `run` is how its name begins; the rest is drawn, since no later run can resume it.
    """
    if privacy is None or privacy.ledger is None:
        yield None
        return
    if privacy.insecure_noise_seed is not None:
        raise ConfigError(
            f"privacy.insecure_noise_seed = {privacy.insecure_noise_seed} with "
            "privacy.ledger; noise from a known "
            "seed guarantees nothing and is charged nowhere: leave out one of the two"
        )
    with Ledger(Path(privacy.ledger).expanduser()) as ledger:
        name = f"{run}-{secrets.token_hex(12)}"
        terms = privacy.unit, privacy.adjacency
        charging = Charging(ledger, name, datasets(ledger), settled, *terms)
        charging.require_budget()
        yield charging


def _purpose(request: Request) -> str:
    return _label(request.party, request.visit)


def _label(party: str, visit: int) -> str:
    return f"{party}, visit {visit}"
