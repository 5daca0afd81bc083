"""State directories: private to their owner, and used by one process at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tacit.errors import ConfigError
from tacit.support.locks import is_locked, locked


class InUseError(ConfigError):
    """Another process uses the directory."""


def make_private(path: Path) -> None:
    """Create the directory with access for its owner only."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)  # it holds confidential state
    except OSError as error:
        raise ConfigError(
            f"the state directory {path} cannot be created ({error.strerror}); choose another path"
        ) from None


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the directory; it is also released if the process dies."""
    make_private(path)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(path / "lock"))
        except OSError:
            raise InUseError(
                f"{path} is in use by another process; stop it, or choose another state directory"
            ) from None
        yield


def in_use(path: Path) -> bool:
    """True if a process uses the directory now. No file or directory is created."""
    return is_locked(path / "lock")
