"""The verified chain in memory, kept in step with the file that other processes write too.

The state changes in one way only: by reading checked entries back from the disk. What a process
believes is therefore what the next one will find.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tacit.errors import DataError
from tacit.privacy.ledger.chain import (
    ADVICE,
    Entry,
    Kind,
    follow,
    reply_hash,
    sealed,
)
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.state import State
from tacit.privacy.ledger.store import Store, create_store


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
                self.store.upgrade()
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

    def append(self, state: State, drafts: Iterable[Entry]) -> int:
        """Write the next entries, inside `writing`, at most once each time.

        Returns the number of the first. The state stays as it was: it will read them from the disk.
        """
        time, last, entries = _now(), state.last, []
        for seq, draft in enumerate(drafts, state.count + 1):
            entry = msgspec.structs.replace(draft, seq=seq, time=time, previous=last)
            entries.append(sealed(self.store.key, entry))
            last = entries[-1].hash
        if entries:
            self.store.append(entries)
        return state.count + 1

    def publish(self) -> State:
        """Show the head outside the database; until this returns nothing may be released."""
        with self.writing() as state:
            head = self.store.head()
            if self.store.outer_head() != head:
                self.store.publish(head)
            return state

    def reply(self, state: State, place: tuple[str, str]) -> bytes | None:
        """The reply to a run's request, if there is one, as it was stored; inside `writing`."""
        answer = state.answers.get(place)
        if answer is None:
            return None
        run, request = place
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


def draft(kind: Kind, dataset: DatasetId, body: Any, **fields: Any) -> Entry:
    """An entry without its place in the chain, which `Book.append` gives it."""
    text = msgspec.json.encode(body).decode()
    return Entry(
        seq=0, time="", previous=b"", kind=kind, dataset=str(dataset), body=text, **fields
    )  # fmt: skip


def _now() -> str:
    """UTC after RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
