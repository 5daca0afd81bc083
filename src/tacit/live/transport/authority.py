"""Files of a certificate authority: atomic writes, one writer at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from cryptography import x509

from tacit.errors import DataError
from tacit.live.transport.tls import fingerprint, read_certificate, read_key
from tacit.support.type_info import prepare

AUTHORITY, KEY, REVOKED, INDEX = "ca.pem", "ca.key", "revoked.pem", "issued.json"
SECRET, PUBLIC, DIRECTORY = 0o600, 0o644, 0o755

Role = Literal["server", "party"]


class Issued(msgspec.Struct, frozen=True):
    """One certificate in the index."""

    serial: str  # hexadecimal
    name: str
    role: Role
    hosts: tuple[str, ...]
    not_after: datetime
    key_fingerprint: str
    public_key: bytes  # a renewal needs neither the old files nor the private key
    revoked: bool = False
    revoked_at: datetime | None = None
    reason: str = ""
    organisation: str = ""
    country: str = ""

    @property
    def state(self) -> Literal["live", "expired", "revoked"]:
        """State of the certificate, for lists."""
        if self.revoked:
            return "revoked"
        return "live" if self.not_after > datetime.now(UTC) else "expired"


class Index(msgspec.Struct):
    """Content of issued.json: all issued certificates."""

    issued: list[Issued] = []
    format: Literal[1] = 1


@dataclass(frozen=True)
class Authority:
    """A certificate authority with its key and index."""

    directory: Path
    certificate: x509.Certificate
    key: Any
    index: Index


def index_bytes(authority: Authority) -> bytes:
    """Return the index encoded as JSON."""
    return msgspec.json.format(msgspec.json.encode(authority.index), indent=1) + b"\n"


def read_index(directory: Path) -> Index:
    """Read the index of issued certificates."""
    path = directory / INDEX
    if not (directory / AUTHORITY).exists():
        raise DataError(
            f"{directory} is not the directory of a certificate authority; create one with: tacit "
            f"certs init --dir {directory}"
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=prepare(Index))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; restore it from a backup") from error
    except msgspec.MsgspecError as error:
        raise DataError(f"{path} is damaged ({error}); restore it from a backup") from error


@contextmanager
def opened(directory: Path) -> Iterator[Authority]:
    """Open the certificate authority in a directory, with its key. A lock admits one process at a
    time.
    """
    read_index(directory)  # report faults before locking
    with locked(directory):
        certificate, key = read_certificate(directory / AUTHORITY), read_key(directory / KEY)
        if fingerprint(certificate.public_key()) != fingerprint(key.public_key()):
            raise DataError(
                f"{directory / KEY} does not belong to {directory / AUTHORITY}; restore both "
                "from one backup"
            )
        yield Authority(directory, certificate, key, read_index(directory))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory, because two simultaneous writers could lose a revocation."""
    try:
        import fcntl
    except ImportError:  # Windows, where a directory cannot be locked
        yield
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"{directory}: {error.strerror}; fix its permissions") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create the directory."""
    try:
        path.mkdir(mode=DIRECTORY, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; choose another directory") from error


def write(*files: tuple[Path, bytes, int]) -> None:
    """Write all contents to temporary files, then rename each atomically, in the given order."""
    parts = [path.with_name(path.name + ".part") for path, _, _ in files]
    try:
        for part, (_, body, mode) in zip(parts, files, strict=True):
            part.unlink(missing_ok=True)
            # Created with its final mode, so that it is never readable by others.
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
        for part, (path, _, _) in zip(parts, files, strict=True):
            os.replace(part, path)  # noqa: PTH105 - atomic on every platform
            sync(path.parent)
    except OSError as error:
        at = error.filename or files[0][0].parent
        raise DataError(f"{at}: {error.strerror}; fix this and repeat") from error
    finally:
        for part in parts:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def sync(directory: Path) -> None:
    """Flush the directory, so that renames survive a power failure."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
