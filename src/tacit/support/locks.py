"""Locks on files for every platform. One process at a time holds a lock; it is released at the
latest when the process ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

BRIEFLY_S = 0.5
"""Time to wait for a lock that another process may hold only while it looks whether it is held."""


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created if needed and never removed.

    If another process holds the lock, wait for it if `wait` is true; otherwise raise
    BlockingIOError.
    """
    with _lock(path, timeout=-1.0 if wait else 0.0):
        yield


@contextlib.contextmanager
def locked_for_now(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file that contains the process id and is removed at the end.

    If another process holds the lock, raise BlockingIOError. The file of a process that was killed
    stays, without a lock.
    """
    with _lock(path, timeout=BRIEFLY_S):
        # On Windows a locked file cannot be written or removed; releasing the lock removes it.
        with contextlib.suppress(OSError):
            path.write_text(f"{os.getpid()}\n", encoding="utf-8")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def is_locked(path: Path) -> bool:
    """True if another process holds the lock. No file is created."""
    if not path.is_file():
        return False
    try:
        with _lock(path, timeout=0.0):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def holder(path: Path) -> int | None:
    """Return the process id in the file of `locked_for_now`; None if it cannot be read."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _lock(path: Path, *, timeout: float) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=timeout, mode=0o644)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is locked by another process") from None
    try:
        yield
    finally:
        lock.release()
