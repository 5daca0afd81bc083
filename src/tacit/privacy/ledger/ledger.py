"""The party's privacy ledger: charges are recorded before a release can leave the process.

Charges add up per data set, across runs. A release that would exceed the operator's budget is
refused before anything is computed. A noise key is stored with the charge and erased
when the reply is stored. If the process stops between the two, the same reply is computed again
with the stored key, without a second charge.
docs/ledger.md describes which attacks the ledger detects.

    with Ledger(path) as ledger:
        dataset = ledger.identify(schema, records)
        body = ledger.answer(
            dataset, run, request, events, unit="record", adjacency="add-or-remove-one",
            compute=noised
        )  # noised(key) draws its noise with that key

`charge_many`, `store_replies`, `recall_many` and `answer_many` handle many data sets in one
transaction. The other methods are their one-element forms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.privacy.events import Adjacency, GaussianEvent
from tacit.privacy.ledger.chain import Entry, records_hash, reply_hash
from tacit.privacy.ledger.charges import (
    ChargedRequest,
    ReleaseRequest,
    Reply,
    RunPlan,
    check_distinct,
    check_release,
    check_text,
)
from tacit.privacy.ledger.cost import (
    BudgetCheck,
    BudgetExceededError,
    Spent,
    shown,
)
from tacit.privacy.ledger.exposure import Charged, affected
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.log import draft
from tacit.privacy.ledger.noise import lost_secret, new_secret, opened
from tacit.privacy.ledger.reader import LedgerReader
from tacit.privacy.ledger.rules import (
    LineageWarning,
    answerable,
    check_open,
    check_same_release,
    required_budget,
    shared_records,
    warn_of_lookalikes,
)
from tacit.privacy.ledger.state import Budget, Charge, Paid, State, Unit, tally, under
from tacit.privacy.ledger.verify import Report, Row, audit

__all__ = [
    "Budget",
    "BudgetCheck",
    "BudgetExceededError",
    "Charge",
    "DatasetId",
    "Ledger",
    "ReleaseRequest",
    "RunPlan",
]
__all__ += ["ChargedRequest", "LineageWarning", "Reply", "Report", "Row", "Spent", "audit"]


SAME_RECORDS = "the same records under version 0.1"


class Ledger(LedgerReader):
    """A party's privacy ledger: budgets, charges and stored replies. A context manager.

    Several threads and processes may use a ledger at once, but it must not be used after a fork.
    Opening a ledger checks every entry.

    Parameters
    ----------
    path
        The ledger's file; by default the user's ledger.
    create
        Create an empty ledger if there is none.
    epsilon
        The accountant; `tacit.privacy.accounting.epsilon` by default. It belongs to the ledger, so
        that runs cannot choose it.
    """

    def set_budget(
        self, dataset: DatasetId, budget: Budget, *, reason: str, raising: bool = False
    ) -> None:
        """Set the budget of one data set: see `set_budgets`.

        Parameters
        ----------
        dataset
            The data set, as returned by `identify`.
        budget
            The total that may be spent.
        reason
            Reason for this entry, for readers of the ledger.
        raising
            Accept a budget that allows more than before.
        """
        self.set_budgets({dataset: budget}, reason=reason, raising=raising)

    def set_budgets(
        self, budgets: Mapping[DatasetId, Budget], *, reason: str, raising: bool = False
    ) -> None:
        """Set the budgets of data sets and of the data sets that they continue.

        Only the operator calls this, never a run or a server. A budget that allows anything that
        the present budget does not allow needs `raising`. Earlier charges must be convertible to
        the new budget's unit and adjacency. Either all budgets are set or none. If `budgets`
        contains several linked data sets, the last one counts for all of them.

        Parameters
        ----------
        budgets
            Budget of each data set.
        reason
            Reason for this entry, for readers of the ledger.
        raising
            Accept budgets that allow more than before.
        """
        check_text("reason", reason, needed=True)
        said: dict[frozenset[str], Budget] = {}
        with self._log.writing() as state:
            exposure = self._exposure(state)
            for dataset, budget in budgets.items():
                family = state.family(dataset.content)
                present = said.get(family) or state.budget_of(family)
                if present is not None and not raising and not budget.within(present):
                    raise PrivacyBudgetError(
                        f"the budget of data set {dataset.short} is {shown(present)}; the new"
                        f" budget {shown(budget)} is not within it: to raise the budget, add"
                        " --raise to tacit ledger budget"
                    )
                for charged in exposure.largest(dataset):
                    under(charged.committed, budget)
                if present is None:
                    warn_of_lookalikes(exposure, dataset)
                said[family] = budget
            drafts = [
                draft("budget", d, c, unit=c.unit, adjacency=c.adjacency, purpose=reason)
                for d, c in budgets.items()
            ]
            self._append(state, budgets, drafts)
        self._log.publish()

    def link(self, newer: DatasetId, older: DatasetId, *, reason: str) -> None:
        """Declare that `newer` continues `older`, so that they share one budget.

        This cannot be undone. A link must not raise a budget, so two different budgets are refused.

        Parameters
        ----------
        newer, older
            A data set and the one that it continues.
        reason
            Reason for this entry, for readers of the ledger.
        """
        check_text("reason", reason, needed=True)
        with self._log.writing() as state:
            if older not in state.datasets:
                raise ConfigError(
                    f"{older} is not in the ledger; choose from: tacit ledger show --all"
                )
            if newer.content in state.family(older.content):
                return
            mine, theirs = (state.budget_of(state.family(one.content)) for one in (newer, older))
            if mine is not None and theirs is not None and mine != theirs:
                raise PrivacyBudgetError(
                    f"data set {newer.short} has the budget {shown(mine)}, and data set"
                    f" {older.short} has {shown(theirs)}; a link must not raise a budget: set"
                    " equal budgets first (tacit ledger budget)"
                )
            budget = mine or theirs
            if budget is not None:
                exposure = self._exposure(state)
                for charged in (*exposure.largest(newer), *exposure.largest(older)):
                    under(charged.committed, budget)
            self._log.append(state, [draft("link", newer, str(older), purpose=reason)])
        self._log.publish()

    def check(
        self,
        dataset: DatasetId,
        events: Sequence[GaussianEvent],
        *,
        unit: Unit,
        adjacency: Adjacency,
        run: str = "",
    ) -> BudgetCheck:
        """Compare the ε of earlier charges, of `events` and of both with the budget. Charge
        nothing.

        If records are in several data sets, the comparison with the least remaining budget is
        returned.

        Call it with the events of a whole run before the first round. The charges of the run then
        need no further evaluation of ε (see `CachedAccountant.fits`), so each locks the file only
        briefly.

        Parameters
        ----------
        dataset
            The data set, as returned by `identify`.
        events
            All releases of the run with their clip, noise and sampling. Releases that the run has
            already charged or planned are not counted twice.
        unit, adjacency
            Protected unit of the release, and adjacency.
        run
            The run that the events belong to; by default a new one.
        """
        return self.check_many({dataset: events}, unit=unit, adjacency=adjacency, run=run)[dataset]

    def check_many(
        self,
        wanted: Mapping[DatasetId, Sequence[GaussianEvent]],
        *,
        unit: Unit,
        adjacency: Adjacency,
        run: str = "",
        ended: str | None = None,
        budget_required: bool = True,
    ) -> dict[DatasetId, BudgetCheck]:
        """Return the result of `check` for each data set of a run.

        Events of data sets that share records are added up. Data sets whose records have no budget
        are left out of the result.

        Parameters
        ----------
        wanted
            Dict from data sets to all releases of the run, including those that are charged
            already.
        unit, adjacency
            Protected unit of the releases, and adjacency.
        run
            The run that the events belong to; by default a new one.
        ended
            A run that will be closed before the first charge.
        budget_required
            Refuse a data set that has no budget.
        """
        for events in wanted.values():
            check_release(events, unit, adjacency)
        worst: dict[DatasetId, BudgetCheck] = {}
        with self._log.writing() as state:
            exposure = self._exposure(state)
            for dataset in wanted if budget_required else ():
                required_budget(exposure, dataset)
            plans = _as_plans(wanted, unit, adjacency, run)
            for group, members in affected(exposure, wanted).items():
                events = tally((wanted[one], unit, adjacency) for one in members)
                before = exposure.charged(group, ended=ended).without(run)
                total = exposure.charged(group, plans=plans, ended=ended)
                for budget in exposure.budgets(group):
                    found = self._accountant.compare(before, events, total, budget, run)
                    for one in members:
                        if one not in worst or not found.used <= worst[one].used:
                            worst[one] = found
        return worst

    def price(
        self,
        dataset: DatasetId,
        events: Sequence[GaussianEvent],
        *,
        unit: Unit,
        adjacency: Adjacency,
        delta: float,
        run: str = "",
    ) -> float:
        """Return the smallest ε of a budget that allows `events` in addition to all earlier
        charges.

        The budget has the given unit, adjacency and δ. Nothing is charged. Without events, the
        result is ε of all charges so far together with the plans of unfinished runs.

        Parameters
        ----------
        dataset
            The data set, as returned by `identify`.
        events
            Gaussian releases with their clip, noise and sampling.
        unit, adjacency
            Protected unit of the release, and adjacency.
        delta
            δ of the budget.
        run
            The run that the events belong to; by default a new one.
        """
        return self.price_many(
            {dataset: events},
            unit=unit,
            adjacency=adjacency,
            delta={dataset: delta},
            run=run,
        )[dataset]

    def price_many(
        self,
        wanted: Mapping[DatasetId, Sequence[GaussianEvent]],
        *,
        unit: Unit,
        adjacency: Adjacency,
        delta: Mapping[DatasetId, float],
        run: str = "",
        under: tuple[Unit, Adjacency] | None = None,
    ) -> dict[DatasetId, float]:
        """Return the result of `price` for each data set of a run.

        Events of data sets that share records are added up.

        Parameters
        ----------
        wanted
            Dict from data sets to Gaussian releases of the run.
        unit, adjacency
            Protected unit of the releases, and adjacency.
        delta
            δ of each data set's budget.
        run
            The run that the events belong to; by default a new one.
        under
            Unit and adjacency of the budgets; by default those of the releases.
        """
        of_budget, adjacent = (unit, adjacency) if under is None else under
        for events in wanted.values():
            if events:
                check_release(events, unit, adjacency)
        prices = dict.fromkeys(wanted, 0.0)
        with self._log.writing() as state:
            exposure = self._exposure(state)
            seen: dict[DatasetId, list[Charged]] = {}
            plans = _as_plans(wanted, unit, adjacency, run)
            for group, members in affected(exposure, wanted).items():
                total = exposure.charged(group, plans=plans)
                for one in members:
                    if total in seen.setdefault(one, []):
                        continue
                    seen[one].append(total)
                    terms = Budget(
                        epsilon=1.0, delta=delta[one], adjacency=adjacent, unit=of_budget
                    )
                    price = self._accountant.smallest_budget(total, terms)
                    prices[one] = max(prices[one], price)
        return prices

    def charge(
        self,
        dataset: DatasetId,
        run: str,
        request: str,
        events: Sequence[GaussianEvent],
        *,
        unit: Unit,
        adjacency: Adjacency,
        purpose: str = "",
    ) -> Charge:
        """Charge one release: see `charge_many`.

        Parameters
        ----------
        dataset
            The data set, as returned by `identify`.
        run, request
            Ids of the run and of the request.
        events
            Gaussian releases with their clip, noise and sampling.
        unit, adjacency
            Protected unit of the release, and adjacency.
        purpose
            A short description for readers of the ledger.
        """
        release = ReleaseRequest(
            dataset=dataset, run=run, request=request, events=events,
            unit=unit, adjacency=adjacency, purpose=purpose,
        )  # fmt: skip
        return self.charge_many([release])[0]

    def charge_many(self, releases: Sequence[ReleaseRequest]) -> list[Charge]:
        """Charge releases durably before they are computed: all of them or none.

        They are refused if together they would exceed a budget. Repeating a release returns the
        stored charge with `new` false, which does not cover a second draw of noise. Only a charge
        with `new` true allows noise to be drawn, once. This method stores no noise key, so a reply
        lost in a crash cannot be recovered. Use `answer_many` or `open_many` to make it
        recoverable.

        Parameters
        ----------
        releases
            Releases to charge, each with a different request id.
        """
        check_distinct(releases)
        with self._log.writing() as state:
            new = [not check_same_release(state, release) for release in releases]
            self._charge(
                state, [release for release, fresh in zip(releases, new, strict=True) if fresh]
            )
        state = self._log.publish()
        return [
            msgspec.structs.replace(state.charges[release.place][-1], new=fresh)
            for release, fresh in zip(releases, new, strict=True)
        ]

    def _charge(
        self,
        state: State,
        wanted: Sequence[ReleaseRequest],
        *,
        budget_required: bool = True,
        plans: Sequence[RunPlan] = (),
    ) -> list[Entry]:
        """Write a charge for each of the `wanted` releases; return the entries without hashes.

        Before anything is written, the charges are compared with the budgets, and an error is
        raised if a budget is exceeded. `state` includes a charge only after its entry has been read
        back from the file. Releases that share a budget are therefore added up first, and their sum
        is compared with the budget.

        A plan has the releases that a run intends to make. The plan is compared with the budget,
        and written, only together with the first charge of its run. If `budget_required` is true,
        every data set must have a budget.
        """
        check_open(state, wanted)
        plans = [
            plan for plan in plans if wanted and not state.begun(plan.run, plan.dataset.content)
        ]
        exposure = self._exposure(state)
        datasets = list(dict.fromkeys(one.dataset for one in (*wanted, *plans)))
        for dataset in datasets if budget_required else ():
            required_budget(exposure, dataset)
        charges, intended = _by_content(wanted), _by_content(plans)
        for group, members in affected(exposure, datasets).items():
            before, after = (
                exposure.charged(group),
                exposure.charged(group, charges, intended),
            )
            inside = [release for release in wanted if release.dataset.content in group]
            for budget in exposure.budgets(group):
                self._accountant.require_budget(
                    members[0].short,
                    before,
                    _by_run(inside),
                    after,
                    budget,
                    shared_records(exposure, members[0]),
                )
        drafts = [
            draft(
                "charge", release.dataset, release.events, run=release.run, request=release.request,
                attempt=state.next_attempt(release.place), unit=release.unit,
                adjacency=release.adjacency, purpose=release.purpose,
            )
            for release in wanted
        ]  # fmt: skip
        planned = [
            draft(
                "plan", plan.dataset, plan.events, run=plan.run, unit=plan.unit,
                adjacency=plan.adjacency, purpose=plan.purpose,
            )
            for plan in plans
        ]  # fmt: skip
        first = self._append(state, datasets, [*planned, *drafts]) + len(planned)
        return [msgspec.structs.replace(one, seq=first + i) for i, one in enumerate(drafts)]

    def _append(self, state: State, datasets: Iterable[DatasetId], drafts: Sequence[Entry]) -> int:
        """Write entries, preceded by the record hashes of data sets that are new in the ledger.

        Returns the number of the first entry of `drafts`.
        """
        new, kept = [], []
        for dataset in dict.fromkeys(datasets):
            hashed = self._hashed.get(dataset.content)
            if hashed is None:
                continue
            packed = hashed.packed()
            digest = records_hash(self._log.store.key, dataset.content, *packed)
            known = state.records.get(dataset.content)
            if known is not None and known.digest == digest:
                continue  # hashes of earlier versions have another digest and are replaced
            kept.append((len(new), *packed))
            said = {"purpose": self._divisions.get(dataset.content, "")}
            new.append(draft("records", dataset, (digest, len(hashed.elements)), **said))
            older = self._older.get(dataset.content)
            if older is not None and older.content not in state.family(dataset.content):
                new.append(draft("link", dataset, str(older), purpose=SAME_RECORDS))
        first = self._log.append(state, [*new, *drafts])
        self._log.store.keep_records([(first + place, *packed) for place, *packed in kept])
        return first + len(new)

    def close_run(
        self, run: str, *, reason: str, datasets: Iterable[DatasetId] | None = None
    ) -> list[DatasetId]:
        """End a run permanently, so that its remaining planned releases no longer use the budget.

        This cannot be undone. No further release of the run can be charged. Its charges stay in the
        ledger, and its stored replies can still be sent. Returns the data sets for which a part of
        the budget was reserved.

        Parameters
        ----------
        run
            Id of the run.
        reason
            Reason for this entry, for readers of the ledger.
        datasets
            Data sets for which the run ends; by default all data sets of the run.
        """
        check_text("reason", reason, needed=True)
        with self._log.writing() as state:
            if not any(state.begun(run, one.content) for one in state.datasets):
                raise ConfigError(
                    f"run {run[:40]!r} is not in {self.path}; list its runs with: tacit ledger show"
                )
            among = state.datasets if datasets is None else dict.fromkeys(datasets)
            found = [one for one in among if state.reserved(run, one.content)]
            drafts = [draft("close", one, None, run=run, purpose=reason) for one in found]
            self._log.append(state, drafts)
        if found:
            self._log.publish()
        return found

    def store_reply(self, run: str, request: str, body: bytes) -> bytes:
        """Store one reply: see `store_replies`.

        Parameters
        ----------
        run, request
            Ids of the run and of the request.
        body
            The reply as it is sent.
        """
        return self.store_replies([Reply(run, request, body)])[0]

    def store_replies(self, replies: Sequence[Reply]) -> list[bytes]:
        """Store replies to charged requests before they are sent: all of them or none.

        Returns the stored replies. A request has one reply; a second, different one is refused and
        must not be sent. The noise keys are erased in the same transaction.

        Parameters
        ----------
        replies
            Replies to charged requests.
        """
        check_distinct(replies)
        digests = [reply_hash(self._log.store.key, *reply) for reply in replies]
        with self._log.writing() as state:
            drafts, bodies, answered = [], [], []
            for reply, digest in zip(replies, digests, strict=True):
                charge = answerable(state, reply, digest)
                if charge is not None:
                    said = {"run": reply.run, "request": reply.request, "attempt": charge.attempt}
                    drafts.append(draft("reply", charge.dataset, (digest, len(reply.body)), **said))
                    bodies.append(reply.body)
                    answered += [one.seq for one in state.charges[reply.place]]
            first = self._log.append(state, drafts)
            self._log.store.keep(first, bodies)
            self._log.store.erase_secrets(answered)
        self._log.publish()
        return [reply.body for reply in replies]

    def answer(
        self,
        dataset: DatasetId,
        run: str,
        request: str,
        events: Sequence[GaussianEvent],
        *,
        unit: Unit,
        adjacency: Adjacency,
        compute: Callable[[bytes], bytes],
        purpose: str = "",
        content: str = "",
    ) -> bytes:
        """Return the reply to one request. If no reply is stored, the request is charged: see
        `answer_many`.

        Parameters
        ----------
        dataset
            The data set, as returned by `identify`.
        run, request
            Ids of the run and of the request.
        events
            Gaussian releases with their clip, noise and sampling.
        unit, adjacency
            Protected unit of the release, and adjacency.
        compute
            A function of the noise key that returns the reply.
        purpose
            A short description for readers of the ledger.
        content
            Digest of everything that the server chooses and on which the reply depends.
        """
        release = ReleaseRequest(
            dataset=dataset, run=run, request=request, events=events,
            unit=unit, adjacency=adjacency, purpose=purpose, content=content,
        )  # fmt: skip
        return self.answer_many([release], lambda opened: [compute(opened[0].key)])[0]

    def answer_many(
        self,
        releases: Sequence[ReleaseRequest],
        compute: Callable[[list[ChargedRequest]], Sequence[bytes]],
    ) -> list[bytes]:
        """Return the replies to all releases, in order.

        Releases without a stored reply are charged, and `compute` is called with them, in order,
        each with its noise key. The replies that it returns are stored. `compute` is not called if
        every release has a stored reply. The charges are one transaction and the replies another.
        If `compute` fails, the releases stay charged; a repeated call gets the same keys.

        Parameters
        ----------
        releases
            Releases that are requested.
        compute
            A function of the charged requests that returns their replies in order.
        """
        replies, wanted = self.open_many(releases)
        if not wanted:
            return [reply for reply in replies if reply is not None]
        bodies = compute(wanted)
        if len(bodies) != len(wanted):
            raise ValueError(f"compute returned {len(bodies)} replies for {len(wanted)} requests")
        pairs = zip(wanted, bodies, strict=True)
        stored = iter(self.store_replies([Reply(*one.release.place, body) for one, body in pairs]))
        return [next(stored) if reply is None else reply for reply in replies]

    def open_many(
        self,
        releases: Sequence[ReleaseRequest],
        *,
        budget_required: bool = True,
        plans: Sequence[RunPlan] = (),
    ) -> tuple[list[bytes | None], list[ChargedRequest]]:
        """Charge releases whose replies are computed elsewhere: the first half of `answer_many`.

        Returns the stored replies (None for a release that has no reply yet) and the charged
        releases without a reply, each with its noise key. A release whose reply was lost is not
        charged again: if the content of the request is the same, its stored key is returned.
        `store_replies` is the second half.

        Parameters
        ----------
        releases
            Releases that are requested.
        budget_required
            Refuse a data set that has no budget. If False, it is charged without a limit, so that
            later runs on the same records see what was spent.
        plans
            All planned releases of the run, from all its data sets. They are recorded once, with
            the run's first charge. As soon as another run is charged to the same records, the whole
            plan counts as spent.
        """
        check_distinct(releases)
        with self._log.writing() as state:
            for release in releases:
                check_same_release(state, release)
            replies = [self._log.reply(state, release.place) for release in releases]
            wanted = [
                release for release, reply in zip(releases, replies, strict=True) if reply is None
            ]
            store = self._log.store
            found = {release.place: lost_secret(store, state, release) for release in wanted}
            fresh = [release for release in wanted if found[release.place] is None]
            entries = self._charge(state, fresh, budget_required=budget_required, plans=plans)
            new = [new_secret(store, *pair) for pair in zip(fresh, entries, strict=True)]
            store.keep_secrets(new)
        if wanted:
            self._log.publish()
        keys = found | {release.place: one for release, one in zip(fresh, new, strict=True)}
        return replies, [opened(release, one) for release in wanted if (one := keys[release.place])]


def _as_plans(
    wanted: Mapping[DatasetId, Sequence[GaussianEvent]],
    unit: Unit,
    adjacency: Adjacency,
    run: str,
) -> dict[str, dict[str, Counter[Paid]]]:
    """Return the events of a run by data set, in the form of `_by_content`."""
    found: dict[str, dict[str, Counter[Paid]]] = {}
    for dataset, events in wanted.items():
        if events:
            own = found.setdefault(dataset.content, {}).setdefault(run, Counter())
            own.update(tally([(events, unit, adjacency)]))
    return found


def _by_content(
    parts: Sequence[ReleaseRequest] | Sequence[RunPlan],
) -> dict[str, dict[str, Counter[Paid]]]:
    """Return the events by data set and run. Keys of the outer dict are fingerprints of data sets,
    and keys of the inner dicts are runs.
    """
    contents = dict.fromkeys(part.dataset.content for part in parts)
    return {
        content: _by_run(part for part in parts if part.dataset.content == content)
        for content in contents
    }


def _by_run(parts: Iterable[ReleaseRequest | RunPlan]) -> dict[str, Counter[Paid]]:
    """Return all events of these releases or plans, by run."""
    found: dict[str, Counter[Paid]] = {}
    for part in parts:
        own = found.setdefault(part.run, Counter())
        own.update(tally([(part.events, part.unit, part.adjacency)]))
    return found
