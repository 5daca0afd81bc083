"""Locks on files for every platform. One process at a time holds a lock; it is released at the
latest when the process ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created if needed and never removed.

    If another process holds the lock, wait for it if `wait` is true; otherwise raise
    BlockingIOError.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=-1 if wait else 0, mode=0o644)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is locked by another process") from None
    try:
        yield
    finally:
        lock.release()
