"""A state directory: private to its owner, and used by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from tacit.errors import ConfigError


class InUseError(ConfigError):
    """Another process holds the directory."""


def make_private(path: Path) -> None:
    """Make the directory, for its owner only."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)  # what is said in confidence is kept here
    except OSError as error:
        raise ConfigError(
            f"the state directory {path} cannot be made ({error.strerror}); choose another"
        ) from None


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """The directory for oneself, until the end or until the process dies."""
    make_private(path)
    with (path / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUseError(
                f"{path} is in use by another process; end that one, or choose another state "
                "directory"
            ) from None
        yield


def in_use(path: Path) -> bool:
    """Whether a process holds the directory now; nothing is made or kept."""
    try:
        with (path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
