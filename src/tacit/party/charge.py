"""Charge the ledger before a private reply is computed; send stored replies unchanged.

If a reply is lost after the charge and before it is stored, it is computed again with the noise key
that was stored with the charge. The result is the same reply, and nothing more is charged.
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
"""Dict from request ids to noise keys."""
Rehearse = Callable[[Sequence[Request]], None]


@dataclass(frozen=True)
class Charging:
    """Charges the releases of one run to a ledger, for the parties of one process."""

    ledger: Ledger
    run: str
    """Permanent id of the run, the same after a resume."""
    datasets: dict[str, DatasetId]
    settled: dict[str, Settled]
    unit: Unit
    adjacency: Adjacency
    budget_required: bool = field(default=True, kw_only=True)
    """If False, data sets without a budget may be charged too, as in a notebook."""

    @property
    def requested(self) -> dict[DatasetId, list[GaussianEvent]]:
        """All privacy events of the run, by data set.

        Parties with equal records have the same data set.
        """
        found: dict[DatasetId, list[GaussianEvent]] = {}
        for party, dataset in self.datasets.items():
            found.setdefault(dataset, []).extend(self.settled[party].all_events)
        return found

    @cached_property
    def plans(self) -> list[RunPlan]:
        """Plans for the ledger, one per data set; a plan reserves budget for all events of
        the run.
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

    def prices(
        self, *, before: bool = False, under: tuple[Unit, Adjacency] | None = None
    ) -> dict[DatasetId, float]:
        """Return, for each data set, the smallest ε of a budget that covers all earlier charges and
        this run.

        If `before` is True, this run is not included. `under` is the pair of unit and adjacency of
        the budget, by default those of this run.
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
            under=under,
        )

    def require_budget(self, *, ended: str | None = None) -> BudgetCheck | None:
        """Raise a PrivacyBudgetError if the rest of the run would exceed a budget. Nothing is
        charged.

        Budget that other unfinished runs have reserved counts as spent, except that of the run
        `ended`. Returns the comparison for the budget of which the largest share is used. The
        result is None if there is no budget, or if the whole run is charged already.
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
                    "lower privacy.epsilon, or raise the budget with `tacit ledger budget "
                    f"CONFIG.toml --ledger {shlex.quote(str(self.ledger.path))} --epsilon … "
                    "--delta … --reason … --raise`"
                )
        return max(checks.values(), key=lambda check: check.used, default=None)

    def require_planned_visit(self, request: Request) -> None:
        """Raise a PrivacyBudgetError if the request does not fit the earlier charges of the run.

        This is the case if the visit was charged for another request, if the request id was used
        for another party or visit, or if all agreed visits are charged already.
        """
        charged = self.ledger.charges(self.run)
        charged = [charge for charge in charged if charge.dataset == self.datasets[request.party]]
        requests = {charge.request for charge in charged}
        visits = self.settled[request.party].visits
        taken = {charge.request for charge in charged if charge.purpose == _purpose(request)}
        if taken - {request.id}:
            raise PrivacyBudgetError(
                f"party {request.party!r} has answered visit {request.visit} of run {self.run} "
                f"already, for request {min(taken)}; a visit is answered only once, so the server "
                "must send that request again"
            )
        other = {one.purpose for one in charged if one.request == request.id} - {_purpose(request)}
        if other:
            raise PrivacyBudgetError(
                f"request {request.id} of run {self.run} was already used for party {min(other)}, "
                f"but is now sent to party {_purpose(request)}; the server must use a new id"
            )
        if request.id not in requests and not len(requests) < visits:
            raise PrivacyBudgetError(
                f"party {request.party!r} has answered {len(requests)} requests of run {self.run}, "
                f"but only {visits} were agreed before the run; the server must not send more"
            )

    def _charged_and_unpaid(self) -> dict[DatasetId, list[GaussianEvent]] | None:
        """Return all events of the run, both charged and not yet charged, by data set.

        The result is None if every visit is charged. It usually equals `requested`. It has more
        events if a reply of version 0.1 was lost, because its visit is charged a second time.
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
        """Mark the run as ended in the ledger, so that budget reserved for it becomes available."""
        if self.ledger.charges(self.run):
            datasets = list(self.datasets.values())
            self.ledger.close_run(self.run, reason=reason, datasets=datasets)

    def open(
        self, requests: Sequence[Request], rehearse: Rehearse | None = None
    ) -> tuple[dict[str, Reply], list[Request], dict[str, bytes]]:
        """Charge the requests that have no stored reply.

        A request that was charged before is not charged again, and a visit without privacy events
        is not charged. Before anything is charged, `rehearse` is called with the list of all
        requests that have no stored reply. Three values are returned:

        * the stored replies, by request id;
        * the requests that have no stored reply;
        * the noise keys of the charged requests, by request id.
        """
        for request in requests:
            visits = self.settled[request.party].visits
            if not request.visit < visits:
                raise PrivacyBudgetError(
                    f"party {request.party!r} received request number {request.visit + 1}, but "
                    f"only {visits} were agreed before the run; the server must not send more"
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
        """Store the replies to charged requests in the ledger, and return the replies to send, by
        request id.

        Replies of visits without privacy events are not stored, because they can be computed again.
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
    """Open the ledger of a run without a run directory; yield None if `privacy.ledger` is not set.

    The run is closed at the end. `run` is the beginning of the run id. The rest of the id is
    random, because such a run cannot be resumed.
    """
    if privacy is None or privacy.ledger is None:
        yield None
        return
    if privacy.insecure_noise_seed is not None:
        raise ConfigError(
            f"privacy.insecure_noise_seed = {privacy.insecure_noise_seed} and privacy.ledger are "
            "both set, but a run with a known noise seed has no privacy guarantee and cannot be "
            "charged; remove one of the two"
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
    """Mark the run as ended in the ledger when the context ends, also after an error.

    The run cannot be resumed afterwards, and its reserved budget becomes available. If the ledger
    cannot be written, the budget stays reserved.
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
