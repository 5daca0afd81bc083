"""The party's privacy ledger: charge, then speak.

Every release is written here before it can leave the process, for the data set and across runs. A
release that would pass the budget the operator has set is refused before anything is computed. A
noise key is stored with the charge and erased with the reply, so that an answer lost in between is
made again, the same, for the same charge. docs/ledger.md says what an attacker can and cannot hide.

    with Ledger(path) as ledger:
        dataset = ledger.identify(schema, records)
        body = ledger.answer(
            dataset, run, request, events, unit="record", adjacency="add-or-remove-one",
            compute=noised
        )  # noised(key) draws its noise with that key

What is asked of many data sets at once goes through `charge_many`, `store_replies`, `recall_many`
and `answer_many`: one wait for the disk, and all or nothing. The others are those with one element.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.privacy.events import Adjacency, GaussianEvent
from tacit.privacy.ledger.chain import Entry, follow, reply_hash
from tacit.privacy.ledger.charges import (
    Ask,
    Opened,
    Reply,
    check_distinct,
    check_release,
    check_text,
)
from tacit.privacy.ledger.cost import BudgetCheck, BudgetExceededError, Price, Spent, shown
from tacit.privacy.ledger.fingerprint import DatasetId, fingerprint
from tacit.privacy.ledger.log import Book, draft
from tacit.privacy.ledger.noise import lost_secret, new_secret, opened, stored_secret
from tacit.privacy.ledger.paths import own_ledger
from tacit.privacy.ledger.rules import (
    LineageWarning,
    answerable,
    check_same_release,
    required_budget,
    warn_of_lookalikes,
)
from tacit.privacy.ledger.state import Budget, Charge, Epsilon, State, Unit, tally, under
from tacit.privacy.ledger.verify import Report, Row, as_row, audit, write_export

__all__ = ["Ask", "Budget", "BudgetCheck", "BudgetExceededError", "Charge", "DatasetId", "Ledger"]
__all__ += ["LineageWarning", "Opened", "Reply", "Report", "Row", "Spent", "audit"]


class Ledger:
    """A party's privacy ledger: budgets, charges and stored replies. A context manager.

    It is safe between threads and between processes, not across a fork. Opening it checks every
    entry.

    Parameters
    ----------
    path
        The ledger's file; the user's own ledger if left out.
    create
        Make an empty ledger where there is none.
    epsilon
        The accountant, `tacit.privacy.accounting.epsilon` unless given. It belongs to the ledger
        and not to a charge: no run may choose the rule it is measured by.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        create: bool = False,
        epsilon: Epsilon | None = None,
    ) -> None:
        self._book = Book(own_ledger() if path is None else Path(path), create=create)
        self._price = Price(epsilon)

    @property
    def path(self) -> Path:
        """The file that holds it."""
        return self._book.store.path

    def close(self) -> None:
        """Close the file."""
        self._book.store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def identify(self, schema: Any, records: Mapping[str, np.ndarray]) -> DatasetId:
        """The name of a data set under this party's key: see `fingerprint`.

        Parameters
        ----------
        schema
            What is public about the records' form.
        records
            The records, by column.
        """
        return fingerprint(schema, records, self._book.store.key)

    def derived_key(self, use: str) -> bytes:
        """A key for one use outside of the ledger, made from its own: always the same.

        Parameters
        ----------
        use
            What the key is for.
        """
        state = hashlib.blake2b(key=self._book.store.key, person=b"tacit.derived", digest_size=32)
        state.update(use.encode())
        return state.digest()

    def set_budget(
        self, dataset: DatasetId, budget: Budget, *, reason: str, raising: bool = False
    ) -> None:
        """The operator's word on one data set: see `set_budgets`.

        Parameters
        ----------
        dataset
            The data set, as `identify` names it.
        budget
            What may be spent.
        reason
            Why, for readers of the ledger.
        raising
            Allow more than before.
        """
        self.set_budgets({dataset: budget}, reason=reason, raising=raising)

    def set_budgets(
        self, budgets: Mapping[DatasetId, Budget], *, reason: str, raising: bool = False
    ) -> None:
        """The operator's word on what may be spent on data sets and on those they continue.

        No run and no server may lead here. A budget that is not plainly below the present one has
        to be asked for with `raising`. What was charged must have a meaning in its terms. All are
        set, or none; as if one after the other, so that of a family the last one counts.

        Parameters
        ----------
        budgets
            What may be spent on each data set.
        reason
            Why, for readers of the ledger.
        raising
            Allow more than before.
        """
        check_text("reason", reason, needed=True)
        said: dict[frozenset[str], Budget] = {}
        with self._book.writing() as state:
            for dataset, budget in budgets.items():
                family = state.family(dataset)
                present = said.get(family) or state.budget(dataset)
                if present is not None and not raising and not budget.within(present):
                    raise PrivacyBudgetError(
                        f"the budget of {dataset.short} is {shown(present)}; {shown(budget)} is"
                        " not below it: to raise it, add --raise to tacit ledger budget"
                    )
                under(state.paid(dataset), budget)
                if present is None:
                    warn_of_lookalikes(state, dataset)
                said[family] = budget
            drafts = (
                draft("budget", d, c, unit=c.unit, adjacency=c.adjacency, purpose=reason)
                for d, c in budgets.items()
            )
            self._book.append(state, drafts)
        self._book.publish()

    def budget(self, data: DatasetId | str) -> Budget | None:
        """What the operator allows to be spent on a data set; None if no budget was set.

        Parameters
        ----------
        data
            A data set of `datasets()`, or its id as `tacit ledger show --all` prints it.
        """
        with self._book.writing() as state:
            return state.budget(_as_dataset(data))

    def link(self, newer: DatasetId, older: DatasetId, *, reason: str) -> None:
        """The operator declares that `newer` continues `older`: they share one budget from now on.

        It cannot be undone. It may not raise a budget, so two different ones are refused.

        Parameters
        ----------
        newer, older
            A data set and the one that it continues.
        reason
            Why, for readers of the ledger.
        """
        check_text("reason", reason, needed=True)
        with self._book.writing() as state:
            if older not in state.datasets:
                raise ConfigError(
                    f"{older} is not in the ledger; choose from: tacit ledger show --all"
                )
            if newer.content in state.family(older):
                return
            mine, theirs = state.budget(newer), state.budget(older)
            if mine is not None and theirs is not None and mine != theirs:
                raise PrivacyBudgetError(
                    f"{newer.short} has budget {shown(mine)}, {older.short} has {shown(theirs)};"
                    " a link must not raise one: set both alike first (tacit ledger budget)"
                )
            budget = mine or theirs
            if budget is not None:
                under(state.paid(newer) + state.paid(older), budget)
            self._book.append(state, [draft("link", newer, str(older), purpose=reason)])
        self._book.publish()

    def check(
        self,
        dataset: DatasetId,
        events: Sequence[GaussianEvent],
        *,
        unit: Unit,
        adjacency: Adjacency,
    ) -> BudgetCheck:
        """Whether `events`, say those of a whole run, would fit. Spends nothing.

        Worth asking before the first round: while the run keeps to these events, its charges then
        need no further evaluation (see `Price.fits`), so that none of them holds the file for long.

        Parameters
        ----------
        dataset
            The data set, as `identify` names it.
        events
            Gaussian releases with their clip, noise and sampling.
        unit, adjacency
            What the release protects, and against which neighbours.
        """
        check_release(events, unit, adjacency)
        asked = tally([(events, unit, adjacency)])
        with self._book.writing() as state:
            budget = required_budget(state, dataset)
            return self._price.compare(state.paid(dataset), asked, budget)

    def price(
        self,
        dataset: DatasetId,
        events: Sequence[GaussianEvent],
        *,
        unit: Unit,
        adjacency: Adjacency,
        delta: float,
    ) -> float:
        """The lowest ε of a budget in these terms under which `events` fit. Spends nothing.

        Parameters
        ----------
        dataset
            The data set, as `identify` names it.
        events
            Gaussian releases with their clip, noise and sampling.
        unit, adjacency
            What the release protects, and against which neighbours.
        delta
            δ of the budget.
        """
        check_release(events, unit, adjacency)
        terms = Budget(epsilon=1.0, delta=delta, adjacency=adjacency, unit=unit)
        with self._book.writing() as state:
            return self._price.of(state.paid(dataset) + tally([(events, unit, adjacency)]), terms)

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
        """Pay for one release: see `charge_many`.

        Parameters
        ----------
        dataset
            The data set, as `identify` names it.
        run, request
            Ids of the run and of the request.
        events
            Gaussian releases with their clip, noise and sampling.
        unit, adjacency
            What the release protects, and against which neighbours.
        purpose
            A few words for readers of the ledger.
        """
        ask = Ask(
            dataset=dataset, run=run, request=request, events=events,
            unit=unit, adjacency=adjacency, purpose=purpose,
        )  # fmt: skip
        return self.charge_many([ask])[0]

    def charge_many(self, asks: Sequence[Ask]) -> list[Charge]:
        """Pay for releases, durably, before they are computed: for all of them or for none.

        Refused if together they would pass a budget. The same ask again returns the stored charge
        with `new` false: it pays for no second draw of noise. Only a charge with `new` true allows
        noise to be drawn, once: no noise key is stored, so that what is lost in a crash is lost.
        `answer_many` and `open_many` lose nothing.

        Parameters
        ----------
        asks
            Releases to charge, each for a request of its own.
        """
        check_distinct(asks)
        with self._book.writing() as state:
            new = [not check_same_release(state, ask) for ask in asks]
            self._charge(state, [ask for ask, fresh in zip(asks, new, strict=True) if fresh])
        state = self._book.publish()
        return [
            msgspec.structs.replace(state.charges[ask.place][-1], new=fresh)
            for ask, fresh in zip(asks, new, strict=True)
        ]

    def _charge(self, state: State, wanted: Sequence[Ask]) -> list[Entry]:
        """Write charges for all of these; their entries, as far as they are known before sealing.

        The state does not move while it is written from, so whatever shares a budget is added up
        here before it is held against the budget.
        """
        together: dict[frozenset[str], list[Ask]] = {}
        for ask in wanted:
            together.setdefault(state.family(ask.dataset), []).append(ask)
        for shared in together.values():
            dataset = shared[0].dataset
            budget = required_budget(state, dataset)
            asked = tally([(ask.events, ask.unit, ask.adjacency) for ask in shared])
            self._price.require_budget(dataset.short, state.paid(dataset), asked, budget)
        drafts = [
            draft(
                "charge", ask.dataset, ask.events, run=ask.run, request=ask.request,
                attempt=state.next_attempt(ask.place), unit=ask.unit, adjacency=ask.adjacency,
                purpose=ask.purpose,
            )
            for ask in wanted
        ]  # fmt: skip
        first = self._book.append(state, drafts)
        return [msgspec.structs.replace(one, seq=first + i) for i, one in enumerate(drafts)]

    def store_reply(self, run: str, request: str, body: bytes) -> bytes:
        """Keep one reply: see `store_replies`.

        Parameters
        ----------
        run, request
            Ids of the run and of the request.
        body
            The reply as it is sent.
        """
        return self.store_replies([Reply(run, request, body)])[0]

    def store_replies(self, replies: Sequence[Reply]) -> list[bytes]:
        """Keep what charged releases have become, before they are sent: all of them or none.

        Returns what was kept. A request has one reply: a second, different one is refused and must
        not be sent. The noise keys of these answers are erased in the same transaction.

        Parameters
        ----------
        replies
            Replies to charged requests.
        """
        check_distinct(replies)
        digests = [reply_hash(self._book.store.key, *reply) for reply in replies]
        with self._book.writing() as state:
            drafts, bodies, answered = [], [], []
            for reply, digest in zip(replies, digests, strict=True):
                charge = answerable(state, reply, digest)
                if charge is not None:
                    said = {"run": reply.run, "request": reply.request, "attempt": charge.attempt}
                    drafts.append(draft("reply", charge.dataset, (digest, len(reply.body)), **said))
                    bodies.append(reply.body)
                    answered += [one.seq for one in state.charges[reply.place]]
            first = self._book.append(state, drafts)
            self._book.store.keep(first, bodies)
            self._book.store.erase_secrets(answered)
        self._book.publish()
        return [reply.body for reply in replies]

    def recall(self, run: str, request: str) -> bytes | None:
        """One stored reply: see `recall_many`.

        Parameters
        ----------
        run, request
            Ids of the run and of the request.
        """
        return self.recall_many([(run, request)])[0]

    def recall_many(self, requests: Sequence[tuple[str, str]]) -> list[bytes | None]:
        """The stored replies to (run, request), to be sent again as they are; None for no reply.

        Parameters
        ----------
        requests
            Pairs of a run and a request.
        """
        with self._book.writing() as state:
            return [self._book.reply(state, place) for place in requests]

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
        """Answer one request: see `answer_many`; `compute` is given the noise key.

        Parameters
        ----------
        dataset
            The data set, as `identify` names it.
        run, request
            Ids of the run and of the request.
        events
            Gaussian releases with their clip, noise and sampling.
        unit, adjacency
            What the release protects, and against which neighbours.
        compute
            A function of the noise key that returns the reply.
        purpose
            A few words for readers of the ledger.
        content
            Digest of everything that the reply is computed from and a server chooses.
        """
        ask = Ask(
            dataset=dataset, run=run, request=request, events=events,
            unit=unit, adjacency=adjacency, purpose=purpose, content=content,
        )  # fmt: skip
        return self.answer_many([ask], lambda opened: [compute(opened[0].key)])[0]

    def answer_many(
        self, asks: Sequence[Ask], compute: Callable[[list[Opened]], Sequence[bytes]]
    ) -> list[bytes]:
        """Replay stored replies; charge, compute (draw the noise) and store the others, in order.

        `compute` is given the asks that have no reply yet, in their order, each with its noise key,
        and answers each; it is not called when there are none. All are charged in one transaction,
        and stored in one. If it fails they are paid for: asked again, each gets the same key.

        Parameters
        ----------
        asks
            Releases that are requested.
        compute
            A function of the charged requests that returns their replies in order.
        """
        replies, wanted = self.open_many(asks)
        if not wanted:
            return [reply for reply in replies if reply is not None]
        bodies = compute(wanted)
        if len(bodies) != len(wanted):
            raise ValueError(f"{len(wanted)} requests were to be answered, not {len(bodies)}")
        pairs = zip(wanted, bodies, strict=True)
        stored = iter(self.store_replies([Reply(*one.ask.place, body) for one, body in pairs]))
        return [next(stored) if reply is None else reply for reply in replies]

    def open_many(self, asks: Sequence[Ask]) -> tuple[list[bytes | None], list[Opened]]:
        """The first half of `answer_many`, for answers that are computed elsewhere meanwhile.

        Stored replies, None where there is none yet; and those asks, charged, each with its noise
        key. A charge whose answer was lost is not made again: its key is still there, and is given
        for the content that was charged and for no other. `store_replies` is the second half.

        Parameters
        ----------
        asks
            Releases that are requested.
        """
        check_distinct(asks)
        with self._book.writing() as state:
            for ask in asks:
                check_same_release(state, ask)
            replies = [self._book.reply(state, ask.place) for ask in asks]
            wanted = [ask for ask, reply in zip(asks, replies, strict=True) if reply is None]
            store = self._book.store
            found = {ask.place: lost_secret(store, state, ask) for ask in wanted}
            fresh = [ask for ask in wanted if found[ask.place] is None]
            entries = self._charge(state, fresh)
            new = [new_secret(store, *pair) for pair in zip(fresh, entries, strict=True)]
            store.keep_secrets(new)
        if wanted:
            self._book.publish()
        keys = found | {ask.place: one for ask, one in zip(fresh, new, strict=True)}
        return replies, [opened(ask, one) for ask in wanted if (one := keys[ask.place])]

    def charges(self, run: str) -> list[Charge]:
        """What was charged for a run, in order.

        Parameters
        ----------
        run
            Id of the run.
        """
        with self._book.writing() as state:
            found = [c for cs in state.charges.values() for c in cs if c.run == run]
        return sorted(found, key=lambda charge: charge.seq)

    def paid_for(self, run: str) -> list[Charge]:
        """The charges of a run whose answers cost nothing more: stored, or to be drawn again.

        Parameters
        ----------
        run
            Id of the run.
        """
        with self._book.writing() as state:
            return [
                charges[-1]
                for place, charges in state.charges.items()
                if place[0] == run
                and (place in state.answers or stored_secret(self._book.store, charges[-1]))
            ]

    def spent(self, data: DatasetId | str) -> Spent:
        """What was spent on a data set, and the guarantee that still holds for it.

        Parameters
        ----------
        data
            A data set of `datasets()`, or its id.
        """
        dataset = _as_dataset(data)
        with self._book.writing() as state:
            budget, paid = state.budget(dataset), state.paid(dataset)
            family = state.family(dataset)
            epsilon = None if budget is None else self._price.of(paid, budget)
            charges = [c for cs in state.charges.values() for c in cs]
            return Spent(
                dataset=str(dataset),
                epsilon=epsilon,
                budget=budget,
                remaining=None if budget is None or epsilon is None else budget.epsilon - epsilon,
                charges=sum(charge.dataset.content in family for charge in charges),
                releases=sum(paid.values()),
                family=len(family),
            )

    def remaining(self, data: DatasetId | str) -> float | None:
        """Budget minus spent ε of a data set; None without a budget.

        ε does not add up by addition: whether a run fits is for `check` to say.

        Parameters
        ----------
        data
            A data set of `datasets()`, or its id.
        """
        return self.spent(data).remaining

    def datasets(self) -> list[DatasetId]:
        """All that the ledger has heard of, in the order in which it did."""
        with self._book.writing() as state:
            return list(state.datasets)

    def lookalikes(self, dataset: DatasetId) -> list[DatasetId]:
        """Charged data sets of the same schema that it is not linked with.

        Parameters
        ----------
        dataset
            The data set, as `identify` names it.
        """
        with self._book.writing() as state:
            return list(state.lookalikes(dataset))[::-1]

    def entries(self, data: DatasetId | str | None = None) -> list[Row]:
        """All entries in order, each checked once more.

        Parameters
        ----------
        data
            Only the entries of this data set and of those that it is linked with.
        """
        store, dataset = self._book.store, None if data is None else _as_dataset(data)
        with self._book.writing() as state:
            entries = list(follow(store.key, store.rows(), 0, store.first))
            family = None if dataset is None else state.family(dataset)
            return [
                as_row(entry, state)
                for entry in entries
                if family is None or DatasetId.parse(entry.dataset).content in family
            ]

    def receipt(self) -> str:
        """Number and hash of the last entry: kept elsewhere, it shows any later going back."""
        with self._book.writing() as state:
            return f"{state.count}:{state.last.hex()}"

    def verify(self, receipt: str | None = None) -> Report:
        """Check every entry and stored reply on disk; the report lists all that is wrong.

        Parameters
        ----------
        receipt
            A receipt from an earlier report or export that was kept elsewhere. Only with it can a
            ledger be recognised that was put back to an older state as a whole.
        """
        return audit(self._book.store.path, receipt)

    def export(self, path: str | Path, format: Literal["json", "csv"] = "json") -> None:
        """Write all entries, and in JSON what is spent, for a reader who may see neither key.

        Parameters
        ----------
        path
            The file to write.
        format
            "json" or "csv".
        """
        if format not in ("json", "csv"):
            raise ConfigError(f'format = "{format}"; choose json or csv')
        spent = [self.spent(dataset) for dataset in self.datasets()]
        write_export(Path(path), format, self.entries(), spent, self.receipt())


def _as_dataset(data: DatasetId | str) -> DatasetId:
    return data if isinstance(data, DatasetId) else DatasetId.parse(data)
