"""Copy a folder at every file operation, in the state in which a killed process would leave it.

Inside the context `kill_points`, the folder is copied before and after every call from Python to
the operating system, to a file object or to SQLite, if a file has changed since the last copy. A
copy is the state that a process killed at this point would leave. It contains everything written
before this point, and nothing written later. No copies are made during a single call to SQLite,
such as COMMIT.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_MODULES = {"posix", "nt", "_io", "io", "fcntl", "msvcrt", "sqlite3", "_sqlite3"}


class Snapshots:
    """Copies of a folder, each with the call at which it was made."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder, self._place = folder, place
        self._seen: set[str] = set()
        self.made: list[tuple[str, Path]] = []

    def take(self, where: str) -> None:
        """Copy the folder unless an equal copy exists."""
        digest = _digest(self.folder)
        if digest not in self._seen:
            self._seen.add(digest)
            copy = self._place / str(len(self.made))
            shutil.copytree(self.folder, copy)
            self.made.append((where, copy))


@contextmanager
def kill_points(folder: Path, place: Path) -> Iterator[Snapshots]:
    """Context manager that copies the folder at every point at which this thread could be
    killed.
    """
    snapshots, before = Snapshots(folder, place), sys.getprofile()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        del frame
        if event in ("c_call", "c_return", "c_exception") and _touches_files(argument):
            when = "before" if event == "c_call" else "after"
            snapshots.take(f"{when} {getattr(argument, '__name__', argument)}")

    sys.setprofile(watch)
    try:
        yield snapshots
    finally:
        sys.setprofile(before)


def _touches_files(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    module = getattr(type(owner), "__module__", "")
    return module in _MODULES or getattr(function, "__module__", None) in _MODULES


def _digest(folder: Path) -> str:
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            body = path.read_bytes()
            state.update(f"{path.name}:{len(body)}:".encode())
            state.update(body)
    return state.hexdigest()
