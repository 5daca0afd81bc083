"""The verified chain in memory, kept in step with the file that other processes write too.

The state changes in one way only: by reading checked entries back from the disk. What a process
believes is therefore what the next one will find.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tacit.errors import DataError
from tacit.privacy.fingerprint import DatasetId
from tacit.privacy.ledger_budget import Answer, State
from tacit.privacy.ledger_chain import ADVICE, Entry, Kind, follow, reply_hash
from tacit.privacy.ledger_store import Store, create_store


class Book:
    """One open ledger without its rules; safe between threads and processes, not across a fork."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """Open and check the whole chain."""
        if create:
            create_store(path, _now())
        self.store = Store(path)
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._state: State | None = None
        try:
            self.store.unlock()
            with self.writing():
                self.store.check_structure()
            self.publish()
        except BaseException:
            self.store.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[State]:
        """The present state, and nobody else writes until the end; an error undoes everything."""
        if os.getpid() != self._pid:
            raise DataError(
                f"{self.store.path} was opened before a fork; open it again in the new process"
            )
        with self._lock, self.store.transaction():
            yield self._catch_up()

    def append(
        self,
        state: State,
        kind: Kind,
        dataset: DatasetId,
        body: str,
        *,
        run: str = "",
        request: str = "",
        attempt: int = 0,
        unit: str = "",
        relation: str = "",
        purpose: str = "",
    ) -> int:
        """Write the next entry, inside `writing`, at most one each time; returns its number."""
        seq = state.count + 1
        entry = Entry(
            seq=seq, time=_now(), kind=kind, dataset=str(dataset), run=run, request=request,
            attempt=attempt, unit=unit, relation=relation, purpose=purpose, body=body,
            previous=state.last,
        )  # fmt: skip
        self.store.append(entry)
        return seq

    def publish(self) -> State:
        """Show the head outside the database; until this returns nothing may be released."""
        with self.writing() as state:
            head = self.store.head()
            if self.store.outer_head() != head:
                self.store.publish(head)
            return state

    def reply(self, run: str, request: str, answer: Answer) -> bytes:
        """A stored reply, or a refusal if it is not what was stored; inside `writing`."""
        body = self.store.reply(answer.seq)
        if body is None or not hmac.compare_digest(
            reply_hash(self.store.key, run, request, body), answer.digest
        ):
            raise DataError(
                f"the stored reply to request {request} of run {run} is missing or was changed;"
                f" {ADVICE}"
            )
        return body

    def _catch_up(self) -> State:
        """Check and take in what was written since the last time, by whomever."""
        store = self.store
        # Forgotten until it is whole again: an interrupted update must not be half believed.
        state, self._state = self._state or State(last=store.first), None
        head = store.head()
        if head.count < state.count:
            raise DataError(
                f"{store.path} went back from {state.count} entries to {head.count}; {ADVICE}"
            )
        for entry in follow(store.key, store.rows(state.count), state.count, state.last):
            state.apply(entry)
        if (state.count, state.last) != (head.count, head.hash):
            raise DataError(
                f"{store.path} has {state.count} entries but its head says {head.count}: the last"
                f" ones were removed or added by hand; {ADVICE}"
            )
        store.check_reaches(store.outer_head(), state.count)
        self._state = state
        return state


def _now() -> str:
    """UTC after RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
