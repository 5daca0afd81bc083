"""Structured logs: one JSON object a line, for people's tools and for `tacit status`."""

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
    """Appends to a file, and shows each line to whoever watches.

    What strangers send is never quoted; how often one kind of refusal happens is counted, and
    only the first hundred of a kind are written, so that no stranger can fill the disk; likewise
    of what a party can repeat without end.
    """

    MOST_REFUSALS = 100
    LIMITED = (
        "ignored", "returned", "joined", "rejoined", "parted", "replaced", "hung up", "party error",
        "silent",
    )  # fmt: skip
    """What a party can make us write as often as it likes."""

    def __init__(self, path: Path | None = None, watch: Watch | None = None) -> None:
        self._file = None
        if path is not None:
            with writing(path):
                self._file = path.open("a", encoding="utf-8", buffering=1)
        self._watch, self._path, self._unwritable = watch, str(path), False
        self.refusals: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def write(self, event: str, **fields: Any) -> None:
        """One line; None fields are left out."""
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
        """A log that cannot be written ends nothing; whoever watches is told once."""
        if not self._unwritable and self._watch is not None:
            self._watch({"event": "log not written", "path": self._path, "reason": error.strerror})
        self._unwritable = True

    def refusal(self, kind: str, reason: str, **fields: Any) -> None:
        """Somebody was turned away."""
        seen = self.refusals[kind] = self.refusals.get(kind, 0) + 1
        if seen <= self.MOST_REFUSALS:
            self.write("refused", kind=kind, reason=reason, **fields)
        elif seen == self.MOST_REFUSALS + 1:
            self.write("refused", kind=kind, reason="more of these are only counted from now on")

    def _within(self, key: str) -> bool:
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        return seen <= self.MOST_REFUSALS

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what could not be flushed is lost, as was said
                self._file.close()
