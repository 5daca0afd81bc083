"""The party's privacy ledger: charge, then speak.

Every release is written here before it can leave the process, for the data set and across runs. A
release that would pass the ceiling the operator has set is refused before anything is computed; a
crash costs budget, never privacy. docs/ledger.md says what an attacker can and cannot hide.

    with Ledger.open(path) as ledger:
        dataset = ledger.identify(schema, records)
        body = ledger.answer(
            dataset, run, request, events, unit="record", relation="add-or-remove", compute=noised
        )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from tacit.errors import ConfigError, PrivacyError
from tacit.privacy.events import GaussianEvent, Relation
from tacit.privacy.fingerprint import DatasetId, fingerprint
from tacit.privacy.ledger_audit import Report, Row, as_row, audit, write_export
from tacit.privacy.ledger_book import Book
from tacit.privacy.ledger_budget import Ceiling, Charge, Epsilon, Unit, under
from tacit.privacy.ledger_chain import follow, reply_hash
from tacit.privacy.ledger_price import Budget, Price, Spent, shown
from tacit.privacy.ledger_rules import (
    LineageWarning,
    check_id,
    check_text,
    known_charge,
    needed_ceiling,
    warn_of_lookalikes,
)

__all__ = ["Budget", "Ceiling", "Charge", "DatasetId", "Ledger", "LineageWarning"]
__all__ += ["Report", "Row", "Spent", "audit"]


class Ledger:
    """One open ledger; safe between threads and between processes, not across a fork."""

    def __init__(self, book: Book, price: Price) -> None:
        self._book, self._price = book, price

    @classmethod
    def open(
        cls, path: str | Path, *, create: bool = False, epsilon: Epsilon | None = None
    ) -> Ledger:
        """Open and check the whole ledger; `create` makes an empty one where there is none.

        `epsilon` is the accountant, `tacit.privacy.accounting.epsilon` unless given. It belongs to
        the ledger and not to a charge: no run may choose the rule it is measured by.
        """
        return cls(Book(Path(path), create=create), Price(epsilon))

    def close(self) -> None:
        """Close the file."""
        self._book.store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def identify(self, schema: Any, records: Mapping[str, np.ndarray]) -> DatasetId:
        """The name of a data set under this party's key: see `fingerprint`."""
        return fingerprint(schema, records, self._book.store.key)

    def set_ceiling(
        self, dataset: DatasetId, ceiling: Ceiling, *, reason: str, raising: bool = False
    ) -> None:
        """The operator's word on what may be spent on a data set and on those it continues.

        No run and no server may lead here. A ceiling that is not plainly below the present one has
        to be asked for with `raising`. What was charged must have a meaning in its terms.
        """
        check_text("reason", reason, needed=True)
        with self._book.writing() as state:
            present = state.ceiling(dataset)
            if present is not None and not raising and not ceiling.within(present):
                raise PrivacyError(
                    f"the ceiling of {dataset.short} is {shown(present)}; {shown(ceiling)} is not"
                    " below it: to raise it say so (tacit ledger ceiling --raise)"
                )
            under(state.paid(dataset), ceiling)
            if present is None:
                warn_of_lookalikes(state, dataset)
            body = msgspec.json.encode(ceiling).decode()
            self._book.append(
                state, "ceiling", dataset, body,
                unit=ceiling.unit, relation=ceiling.relation, purpose=reason,
            )  # fmt: skip
        self._book.publish()

    def ceiling(self, dataset: DatasetId) -> Ceiling | None:
        """What the operator allows, if anything was said."""
        with self._book.writing() as state:
            return state.ceiling(dataset)

    def link(self, newer: DatasetId, older: DatasetId, *, reason: str) -> None:
        """The operator declares that `newer` continues `older`: they share one budget from now on.

        It cannot be undone. It may not raise a ceiling, so two different ones are refused.
        """
        check_text("reason", reason, needed=True)
        with self._book.writing() as state:
            if older not in state.datasets:
                raise ConfigError(f"{older} is not in the ledger; choose from: tacit ledger show")
            if newer.content in state.family(older):
                return
            mine, theirs = state.ceiling(newer), state.ceiling(older)
            if mine is not None and theirs is not None and mine != theirs:
                raise PrivacyError(
                    f"{newer.short} has ceiling {shown(mine)}, {older.short} has {shown(theirs)};"
                    " a link must not raise one: set both alike first (tacit ledger ceiling)"
                )
            ceiling = mine or theirs
            if ceiling is not None:
                under(state.paid(newer) + state.paid(older), ceiling)
            body = msgspec.json.encode(str(older)).decode()
            self._book.append(state, "link", newer, body, purpose=reason)
        self._book.publish()

    def check(
        self, dataset: DatasetId, events: Sequence[GaussianEvent], *, unit: Unit, relation: Relation
    ) -> Budget:
        """Whether `events`, say those of a whole run, would fit. Spends nothing."""
        paid = self._price.ask(events, unit, relation)
        with self._book.writing() as state:
            ceiling = needed_ceiling(state, dataset)
            return self._price.budget(state.paid(dataset), paid, ceiling)

    def charge(
        self,
        dataset: DatasetId,
        run: str,
        request: str,
        events: Sequence[GaussianEvent],
        *,
        unit: Unit,
        relation: Relation,
        attempt: int = 1,
        purpose: str = "",
    ) -> Charge:
        """Pay for a release, durably, before it is computed; refused if it would pass the ceiling.

        The same attempt again returns the stored charge with `new` false: it pays for no second
        draw of noise. After a crash between charge and `store_reply` the next attempt is charged
        anew. Only a charge with `new` true allows noise to be drawn. `answer` keeps to all this.
        """
        asked = self._price.ask(events, unit, relation)
        check_id("run", run)
        check_id("request", request)
        check_text("purpose", purpose)
        wanted = Charge(
            seq=0, time="", dataset=dataset, run=run, request=request, attempt=attempt,
            unit=unit, relation=relation, events=tuple(events), purpose=purpose,
        )  # fmt: skip
        with self._book.writing() as state:
            known = known_charge(state, wanted)
            if known is None:
                ceiling = needed_ceiling(state, dataset)
                self._price.require_room(dataset.short, state.paid(dataset), asked, ceiling)
                body = msgspec.json.encode(wanted.events).decode()
                self._book.append(
                    state, "charge", dataset, body, run=run, request=request, attempt=attempt,
                    unit=unit, relation=relation, purpose=purpose,
                )  # fmt: skip
        state = self._book.publish()
        stored = state.charges[run, request][attempt - 1]
        return msgspec.structs.replace(stored, new=known is None)

    def next_attempt(self, run: str, request: str) -> int:
        """The number under which a request would now be charged."""
        with self._book.writing() as state:
            return len(state.charges.get((run, request), ())) + 1

    def store_reply(self, run: str, request: str, body: bytes) -> bytes:
        """Keep what a charged release has become, before it is sent; returns what was kept.

        A request has one reply: a second, different one is refused and must not be sent.
        """
        digest = reply_hash(self._book.store.key, run, request, body)
        with self._book.writing() as state:
            charges = state.charges.get((run, request))
            if not charges:
                raise PrivacyError(f"request {request} of run {run} was not charged; charge first")
            answer = state.answers.get((run, request))
            if answer is not None and answer.digest != digest:
                raise PrivacyError(
                    f"request {request} of run {run} has been answered otherwise; send the stored"
                    " reply (recall), not a second one"
                )
            if answer is None:
                text = msgspec.json.encode((digest, len(body))).decode()
                seq = self._book.append(
                    state, "reply", charges[-1].dataset, text,
                    run=run, request=request, attempt=charges[-1].attempt,
                )  # fmt: skip
                self._book.store.db.execute("INSERT INTO replies VALUES (?, ?)", (seq, body))
        self._book.publish()
        return body

    def recall(self, run: str, request: str) -> bytes | None:
        """The stored reply, to be sent again as it is; None if there is none."""
        with self._book.writing() as state:
            answer = state.answers.get((run, request))
            if answer is None:
                return None
            return self._book.reply(run, request, answer)

    def answer(
        self,
        dataset: DatasetId,
        run: str,
        request: str,
        events: Sequence[GaussianEvent],
        *,
        unit: Unit,
        relation: Relation,
        compute: Callable[[], bytes],
        purpose: str = "",
    ) -> bytes:
        """Replay the stored reply, or charge, compute (draw the noise) and store, in that order."""
        stored = self.recall(run, request)
        if stored is not None:
            return stored
        attempt = self.next_attempt(run, request)
        charge = self.charge(
            dataset, run, request, events,
            unit=unit, relation=relation, attempt=attempt, purpose=purpose,
        )  # fmt: skip
        if not charge.new:
            raise PrivacyError(
                f"request {request} of run {run} is being answered by another process; ask again"
            )
        return self.store_reply(run, request, compute())

    def spent(self, dataset: DatasetId) -> Spent:
        """The guarantee that still holds for a data set, after all that was charged."""
        with self._book.writing() as state:
            ceiling, paid = state.ceiling(dataset), state.paid(dataset)
            family = state.family(dataset)
            epsilon = None if ceiling is None else self._price.of(paid, ceiling)
            charges = [c for cs in state.charges.values() for c in cs]
            return Spent(
                dataset=str(dataset),
                epsilon=epsilon,
                ceiling=ceiling,
                remaining=None if ceiling is None or epsilon is None else ceiling.epsilon - epsilon,
                charges=sum(charge.dataset.content in family for charge in charges),
                releases=sum(paid.values()),
                family=len(family),
            )

    def datasets(self) -> list[DatasetId]:
        """All that the ledger has heard of, in the order in which it did."""
        with self._book.writing() as state:
            return list(state.datasets)

    def lookalikes(self, dataset: DatasetId) -> list[DatasetId]:
        """Charged data sets of the same schema that it is not linked with."""
        with self._book.writing() as state:
            return state.lookalikes(dataset)

    def show(self, dataset: DatasetId | None = None) -> list[Row]:
        """The entries, checked once more on the way, of one data set's family or of all."""
        store = self._book.store
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
        """Check everything on disk: see `ledger_audit.audit`, which needs no open ledger."""
        return audit(self._book.store.path, receipt)

    def export(self, path: str | Path, format: Literal["json", "csv"] = "json") -> None:
        """Write all entries, and in JSON what is spent, for a reader who may see neither key."""
        if format not in ("json", "csv"):
            raise ConfigError(f'format = "{format}"; choose json or csv')
        spent = [self.spent(dataset) for dataset in self.datasets()]
        write_export(Path(path), format, self.show(), spent, self.receipt())
