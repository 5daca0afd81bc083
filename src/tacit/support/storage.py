"""Files that must be right or not be used: durable writing, checksums, and errors that name a file.

A disk that is full, read-only or broken is not a bug: whoever reads the error needs the path, the
reason and the next step.
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
"""A disk that is full, broken or read-only, or a file that we may not write."""
_FULL = ("full", "disk i/o", "readonly", "unable to open")


def cannot_write(path: Path | str, reason: str) -> DataError:
    """What a user is told of a file that could not be written."""
    return DataError(
        f"{path} cannot be written ({reason}); make room or mend its rights, then give the same "
        "command again: what was written before is whole"
    )


def is_storage_trouble(error: sqlite3.OperationalError) -> bool:
    """Whether SQLite could not write because of the disk, not because of what is in the file."""
    return any(word in str(error).lower() for word in _FULL)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system or SQLite says of a disk into an error that names the file."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error.strerror or type(error).__name__) from error
    except sqlite3.OperationalError as error:
        if not is_storage_trouble(error):
            raise
        raise cannot_write(path, str(error)) from error


def sealed(body: bytes) -> bytes:
    """The body after its SHA-256."""
    return MAGIC + hashlib.sha256(body).digest() + body


def unsealed(raw: bytes) -> bytes:
    """The inverse of `sealed`; a ValueError if a bit of it is another one."""
    start = len(MAGIC) + hashlib.sha256().digest_size
    if not raw.startswith(MAGIC):
        raise ValueError("it has no checksum: damaged, or written by an older version")
    body = raw[start:]
    if hashlib.sha256(body).digest() != raw[len(MAGIC) : start]:
        raise ValueError("checksum mismatch: the file was damaged")
    return body


def write_durably(path: Path, body: bytes) -> None:
    """The whole file or the old one, on the disk when this returns, readable by its owner only."""
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
    """Write a text file whole or not at all; it is on the disk when this returns."""
    part = path.with_name(path.name + ".part")
    with writing(path):
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)  # noqa: PTH105 - atomic on every platform
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename in a directory survive a power cut (where directories can be synced)."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
