"""Structured logs: one JSON object per line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.support.storage import writing

Line = dict[str, Any]
Watch = Callable[[Line], None]


class Journal:
    """Appends lines to a file and passes them to a callback.

    Content sent by peers is never quoted. Refusals are counted, and only the first hundred of each
    kind are written, so that no peer can fill the disk. The same limit applies to events that a
    party can repeat.
    """

    MAX_REFUSALS = 100
    LIMITED = (
        "ignored", "returned", "joined", "rejoined", "parted", "replaced", "hung up", "party error",
        "silent",
    )  # fmt: skip
    """Events that a party can cause any number of times."""

    def __init__(self, path: Path | None = None, watch: Watch | None = None) -> None:
        self._file = None
        if path is not None:
            with writing(path):
                self._file = path.open("a", encoding="utf-8", buffering=1)
        self._watch, self._path, self._unwritable = watch, str(path), False
        self.refusals: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def write(self, event: str, **fields: Any) -> None:
        """Write one line; None fields are left out."""
        if event in self.LIMITED and not self._within(f"{event} {fields.get('party')}"):
            return
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        line |= {key: value for key, value in fields.items() if value is not None}
        if self._file is not None:
            try:
                self._file.write(json.dumps(line, default=str) + "\n")
            except OSError as error:
                self._lost(error)
        if self._watch is not None:
            self._watch(line)

    def _lost(self, error: OSError) -> None:
        """Report once to the callback that the log cannot be written."""
        if not self._unwritable and self._watch is not None:
            self._watch({"event": "log not written", "path": self._path, "reason": error.strerror})
        self._unwritable = True

    def refusal(self, kind: str, reason: str, **fields: Any) -> None:
        """Log a refused connection or message."""
        seen = self.refusals[kind] = self.refusals.get(kind, 0) + 1
        if seen <= self.MAX_REFUSALS:
            self.write("refused", kind=kind, reason=reason, **fields)
        elif seen == self.MAX_REFUSALS + 1:
            self.write("refused", kind=kind, reason="further refusals are only counted")

    def _within(self, key: str) -> bool:
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        return seen <= self.MAX_REFUSALS

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # the loss was reported before
                self._file.close()
