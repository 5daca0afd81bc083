"""A state directory: private to its owner, and used by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tacit.errors import ConfigError

POLL_S = 0.2


def make_private(path: Path) -> None:
    """Make the directory, for its owner only."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"the state directory {path} cannot be made ({error.strerror}); choose another"
        ) from None


@contextlib.contextmanager
def held(path: Path, *, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """The directory for oneself, until the end or until the process dies.

    With `wait`, which is called once, another holder is waited for; otherwise it is an error.
    """
    make_private(path)
    with (path / "lock").open("a") as lock:
        waited = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if wait is None:
                    raise ConfigError(
                        f"{path} is in use by another process; end that one, or choose another "
                        "state directory"
                    ) from None
                if not waited:
                    wait()
                    waited = True
                time.sleep(POLL_S)
        yield
