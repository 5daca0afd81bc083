"""Charge the ledger before computing a private reply; send stored replies unchanged.

A reply that is lost between charge and storage is recomputed with the noise key that was stored
with the charge. It is the same reply and costs nothing more.
"""

from __future__ import annotations

import secrets
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tacit.errors import ConfigError, PrivacyBudgetError, TacitError
from tacit.plan.calibrate import Settled
from tacit.privacy.events import Adjacency, GaussianEvent
from tacit.privacy.guarantee import Unit
from tacit.privacy.ledger.cost import only_run_reason, unfinished_reason
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.ledger import BudgetCheck, Ledger, ReleaseRequest, RunPlan
from tacit.privacy.ledger.ledger import Reply as Kept
from tacit.privacy.settings import Privacy
from tacit.server.messages import Reply, Request, decode_reply, encode_reply

Datasets = Callable[[Ledger], dict[str, DatasetId]]
"""Function from a ledger to the data set id of each party's records."""
Keys = Mapping[str, bytes]
"""Noise keys by request id."""
Rehearse = Callable[[Sequence[Request]], None]


@dataclass(frozen=True)
class Charging:
    """The ledger used by the parties of one process, and the cost of each reply."""

    ledger: Ledger
    run: str
    """Permanent id of the run, the same after a resume."""
    datasets: dict[str, DatasetId]
    settled: dict[str, Settled]
    unit: Unit
    adjacency: Adjacency
    budget_required: bool = field(default=True, kw_only=True)
    """False: data sets without a budget may be charged too, as in a notebook."""

    @property
    def requested(self) -> dict[DatasetId, list[GaussianEvent]]:
        """All events of the run, by data set. Parties with equal records share one data set."""
        found: dict[DatasetId, list[GaussianEvent]] = {}
        for party, dataset in self.datasets.items():
            found.setdefault(dataset, []).extend(self.settled[party].all_events)
        return found

    @cached_property
    def plans(self) -> list[RunPlan]:
        """The plan recorded in the ledger for each data set: everything that the whole run
        releases.
        """
        names: dict[DatasetId, list[str]] = {}
        for party, dataset in self.datasets.items():
            names.setdefault(dataset, []).append(party)
        return [
            RunPlan(
                dataset=dataset,
                run=self.run,
                events=events,
                unit=self.unit,
                adjacency=self.adjacency,
                purpose=names[dataset][0],
            )
            for dataset, events in self.requested.items()
            if events
        ]

    def prices(self, *, before: bool = False) -> dict[DatasetId, float]:
        """Return, for each data set, the smallest ε of a budget that allows the run; with `before`,
        the smallest that allows the earlier spending.
        """
        requested = self.requested
        delta: dict[DatasetId, float] = {}
        for party, dataset in self.datasets.items():
            own = self.settled[party].guarantee.delta
            delta[dataset] = min(own, delta.get(dataset, own))
        return self.ledger.price_many(
            dict.fromkeys(requested, ()) if before else requested,
            unit=self.unit,
            adjacency=self.adjacency,
            delta=delta,
            run=self.run,
        )

    def require_budget(self, *, ended: str | None = None) -> BudgetCheck | None:
        """Refuse the run if the rest of it would exceed a budget. Charges nothing.

        What the run has charged already counts as spent, and what other unfinished runs have
        planned counts too, except for the run `ended`. Returns the check of the budget of which the
        largest share is used; None without budgets, or if the whole run is charged already.
        """
        wanted = self._charged_and_unpaid()
        if wanted is None:
            return None
        checks = self.ledger.check_many(
            wanted,
            unit=self.unit,
            adjacency=self.adjacency,
            run=self.run,
            ended=ended,
            budget_required=self.budget_required,
        )
        for party, dataset in self.datasets.items():
            check = checks.get(dataset)
            if check is not None and not check.fits and check.only_run:
                raise PrivacyBudgetError(f"party {party!r}: {only_run_reason(check)}")
            if check is not None and not check.fits:
                raise PrivacyBudgetError(
                    f"party {party!r}: privacy budget exceeded: spent ε = {check.spent:.4g}, this "
                    f"run ε = {check.requested:.4g}, together {check.total:.4g} > budget "
                    f"{check.budget.epsilon:.4g} (δ = {check.budget.delta:g}, per "
                    f"{check.budget.unit}, {check.budget.adjacency}){unfinished_reason(check)}; "
                    "lower epsilon, or raise the budget: tacit ledger budget CONFIG.toml --ledger "
                    f"{shlex.quote(str(self.ledger.path))} --epsilon … --delta … --reason … --raise"
                )
        return max(checks.values(), key=lambda check: check.used, default=None)

    def require_planned_visit(self, request: Request) -> None:
        """Refuse a request that is not in the plan, whatever visit number it claims."""
        charged = self.ledger.charges(self.run)
        charged = [charge for charge in charged if charge.dataset == self.datasets[request.party]]
        requests = {charge.request for charge in charged}
        visits = self.settled[request.party].visits
        taken = {charge.request for charge in charged if charge.purpose == _purpose(request)}
        if taken - {request.id}:
            raise PrivacyBudgetError(
                f"party {request.party!r} has answered visit {request.visit} of {self.run} as "
                f"request {min(taken)}; a visit is answered once: resend that request"
            )
        other = {one.purpose for one in charged if one.request == request.id} - {_purpose(request)}
        if other:
            raise PrivacyBudgetError(
                f"request {request.id} of {self.run} was answered as {min(other)}, not as "
                f"{_purpose(request)}; a reply is for one visit: the server must use another id"
            )
        if request.id not in requests and not len(requests) < visits:
            raise PrivacyBudgetError(
                f"party {request.party!r} has answered {len(requests)} requests of {self.run}; "
                f"{visits} were agreed before the run: the server must not request more"
            )

    def _charged_and_unpaid(self) -> dict[DatasetId, list[GaussianEvent]] | None:
        """Return all charges of the run, and the events of the visits that are still to be charged.

        Usually `requested`. A reply of version 0.1 that was lost is charged again, in addition.
        None if no visit is left.
        """
        charges = self.ledger.charges(self.run)
        if not charges:
            return {one: events for one, events in self.requested.items() if events} or None
        paid = {one.purpose for one in self.ledger.paid_for(self.run)}
        found: dict[DatasetId, list[GaussianEvent]] = {}
        for party, dataset in self.datasets.items():
            settled = self.settled[party]
            for visit in range(settled.visits):
                if _label(party, visit) not in paid:
                    found.setdefault(dataset, []).extend(settled.events_at(visit))
        if not any(found.values()):
            return None
        for charge in charges:
            if charge.dataset in found:
                found[charge.dataset].extend(charge.events)
        return {dataset: events for dataset, events in found.items() if events}

    def close(self, reason: str) -> None:
        """End the run in the ledger; the budget reserved for the rest of its plan becomes
        available.
        """
        if self.ledger.charges(self.run):
            datasets = list(self.datasets.values())
            self.ledger.close_run(self.run, reason=reason, datasets=datasets)

    def open(
        self, requests: Sequence[Request], rehearse: Rehearse | None = None
    ) -> tuple[dict[str, Reply], list[Request], dict[str, bytes]]:
        """Return stored replies by id, the requests without a stored reply, and noise keys of the
        latter.

        The other requests are charged, unless they were charged before and their replies were lost.
        `rehearse` is called with them before the charge.
        """
        for request in requests:
            visits = self.settled[request.party].visits
            if not request.visit < visits:
                raise PrivacyBudgetError(
                    f"party {request.party!r} received request {request.visit + 1}, but {visits} "
                    "were agreed before the run: the server must not request more"
                )
        paid = [request for request in requests if self._costs(request)]
        if rehearse is not None:
            known = self.ledger.recall_many([(self.run, request.id) for request in paid])
            there = {one.id for one, body in zip(paid, known, strict=True) if body is not None}
            rehearse([request for request in requests if request.id not in there])
        releases = [self._release_request(request) for request in paid]
        bodies, opened = (
            self.ledger.open_many(releases, budget_required=self.budget_required, plans=self.plans)
            if releases
            else ([], [])
        )
        stored = {
            request.id: decode_reply(body)
            for request, body in zip(paid, bodies, strict=True)
            if body is not None
        }
        wanted = [request for request in requests if request.id not in stored]
        return stored, wanted, {one.release.request: one.key for one in opened}

    def store(self, requests: Sequence[Request], replies: dict[str, Reply]) -> dict[str, Reply]:
        """Store the replies to opened requests; return the replies to send, by request id.

        Post-processing of earlier releases is neither charged nor stored: it can be recomputed.
        """
        paid = [request.id for request in requests if self._costs(request)]
        kept = [Kept(self.run, key, encode_reply(replies[key])) for key in paid]
        bodies = self.ledger.store_replies(kept) if kept else []
        same = {key: decode_reply(body) for key, body in zip(paid, bodies, strict=True)}
        return {request.id: replies[request.id] for request in requests} | same

    def _costs(self, request: Request) -> bool:
        return bool(self.settled[request.party].events_at(request.visit))

    def _release_request(self, request: Request) -> ReleaseRequest:
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
    """Charge a run without a run directory to `privacy.ledger`, if one is set.

    `run` is a prefix of the run id. The rest is random, because the run cannot be resumed.
    """
    if privacy is None or privacy.ledger is None:
        yield None
        return
    if privacy.insecure_noise_seed is not None:
        raise ConfigError(
            f"privacy.insecure_noise_seed = {privacy.insecure_noise_seed} with "
            "privacy.ledger; noise from a known seed has no guarantee and is not charged: remove "
            "one of the two"
        )
    with Ledger(Path(privacy.ledger).expanduser()) as ledger:
        name = f"{run}-{secrets.token_hex(12)}"
        terms = privacy.unit, privacy.adjacency
        charging = Charging(ledger, name, datasets(ledger), settled, *terms)
        charging.require_budget()
        with closing(charging):
            yield charging


@contextmanager
def closing(charging: Charging) -> Iterator[None]:
    """Close the run when the context ends, even by an error, because it cannot be resumed. This
    frees the budget reserved for the rest of its plan.

    If the ledger cannot be written then, the reservation is kept, which overstates the spending.
    """
    reason = "interrupted"
    try:
        yield
        reason = "finished"
    finally:
        with suppress(TacitError, OSError, sqlite3.Error):  # results were paid for
            charging.close(reason)


def _purpose(request: Request) -> str:
    return _label(request.party, request.visit)


def _label(party: str, visit: int) -> str:
    return f"{party}, visit {visit}"
