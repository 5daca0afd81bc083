"""Durable writing, checksums, and storage errors.

Errors of a full, read-only or broken disk name the path, the reason and the next step.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tacit.errors import DataError

MAGIC = b"tacit-state-1\n"
OWNER_ONLY = 0o600
UNUSABLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG
}  # fmt: skip
"""Error numbers of a full, broken or read-only disk, or of missing permissions."""
_FULL = ("full", "disk i/o", "readonly", "unable to open")


def cannot_write(path: Path | str, reason: str) -> DataError:
    """Return the error for a file that could not be written."""
    return DataError(
        f"{path} cannot be written ({reason}); free disk space or fix its permissions, then repeat "
        "the command: earlier files are intact"
    )


def is_storage_trouble(error: sqlite3.OperationalError) -> bool:
    """True if SQLite failed because of the disk, not because of the file's content."""
    return any(word in str(error).lower() for word in _FULL)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert storage errors of the system or SQLite to errors that name the file."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error.strerror or type(error).__name__) from error
    except sqlite3.OperationalError as error:
        if not is_storage_trouble(error):
            raise
        raise cannot_write(path, str(error)) from error


def sealed(body: bytes) -> bytes:
    """Return the SHA-256 of the body followed by the body."""
    return MAGIC + hashlib.sha256(body).digest() + body


def unsealed(raw: bytes) -> bytes:
    """Return the body of an output of `sealed`; raise ValueError if the checksum does not match."""
    start = len(MAGIC) + hashlib.sha256().digest_size
    if not raw.startswith(MAGIC):
        raise ValueError("it has no checksum: it is damaged, or was written by an older version")
    body = raw[start:]
    if hashlib.sha256(body).digest() != raw[len(MAGIC) : start]:
        raise ValueError("checksum mismatch: the file was damaged")
    return body


def write_durably(path: Path, body: bytes) -> None:
    """Write a file atomically and durably, readable by its owner only."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)  # noqa: PTH105 - atomic on every platform
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically and durably."""
    part = path.with_name(path.name + ".part")
    with writing(path):
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)  # noqa: PTH105 - atomic on every platform
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory, so that renames survive a power failure."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
