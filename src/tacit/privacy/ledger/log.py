"""The verified entries in memory, synchronised with the ledger's file.

Other processes may write to the file. The state in memory changes only by reading entries from the
file and checking them. All processes therefore have the same state.
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
    records_hash,
    reply_hash,
    sealed,
)
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.records import HashedRecords, unpacked
from tacit.privacy.ledger.state import State
from tacit.privacy.ledger.store import Store, create_store


class EntryLog:
    """The entries of an open ledger.

    Several threads and processes may use a ledger at once, but an open log must not be used after a
    fork.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        """Open the file and check all entries."""
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

    def close(self) -> None:
        """Close the file, after any change that another thread is making."""
        with self._lock:
            self.store.close()

    @contextmanager
    def writing(self) -> Iterator[State]:
        """Lock the ledger against other writers and yield the current state. An error undoes all
        changes.
        """
        if os.getpid() != self._pid:
            raise DataError(
                f"{self.store.path} was opened before a fork; open it again in the new process"
            )
        with self._lock, self.store.transaction():
            yield self._catch_up()

    def append(self, state: State, drafts: Iterable[Entry]) -> int:
        """Write new entries and return the number of the first one.

        Call this at most once inside `writing`. `state` does not change until the entries are read
        back from the file.
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
        """Write the file that contains the head. Nothing may be released before this returns."""
        with self.writing() as state:
            head = self.store.head()
            if self.store.outer_head() != head:
                self.store.publish(head)
            return state

    def reply(self, state: State, place: tuple[str, str]) -> bytes | None:
        """Return the stored reply to the request `place` = (run, request); None if no reply is
        stored.

        Call this inside `writing`.
        """
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

    def records(self, state: State, content: str) -> HashedRecords:
        """Return the stored record hashes of a data set; call inside `writing`."""
        known = state.records[content]
        stored = self.store.records(known.seq)
        if stored is None or not hmac.compare_digest(
            records_hash(self.store.key, content, *stored), known.digest
        ):
            raise DataError(
                f"the record hashes of data set {content[:8]} are missing or were changed; {ADVICE}"
            )
        return unpacked(DatasetId("", content), *stored)

    def _catch_up(self) -> State:
        """Check and apply the entries that any process has written since the last call."""
        store = self.store
        # Cleared until the update is complete: an interrupted one must not be used.
        state, self._state = self._state or State(last=store.first), None
        head = store.head()
        if head.count < state.count:
            raise DataError(
                f"{store.path} has {head.count} entries but had {state.count} before; {ADVICE}"
            )
        for entry in follow(store.key, store.rows(state.count), state.count, state.last):
            state.apply(entry)
        if (state.count, state.last) != (head.count, head.hash):
            raise DataError(
                f"{store.path} has {state.count} entries, but its head records {head.count}:"
                f" entries were removed from the end or added there; {ADVICE}"
            )
        store.check_reaches(store.outer_head(), state.count)
        self._state = state
        return state


def draft(kind: Kind, dataset: DatasetId, body: Any, **fields: Any) -> Entry:
    """Make an entry without number, time and hashes, which `EntryLog.append` sets."""
    text = msgspec.json.encode(body).decode()
    return Entry(
        seq=0, time="", previous=b"", kind=kind, dataset=str(dataset), body=text, **fields
    )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
