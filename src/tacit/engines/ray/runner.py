"""An actor that carries out whatever function it is given, one after another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any


class Runner:
    """What it has compiled stays from one call to the next; paths are relative to `folder`."""

    def __init__(self, threads: int, folder: str) -> None:
        limit_threads(threads)
        with contextlib.suppress(OSError):  # what needs a path that is not here will say so
            os.chdir(folder)

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it; the function is found by its name, never sent as code of its own."""
        return function(*arguments)


def limit_threads(threads: int) -> None:
    """How many cores XLA may use here; said before it starts.

    Several processes that each took all cores for one small product would fight for them.
    """
    os.environ["NPROC"] = str(threads)
    if threads == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
