"""Ray actor that runs functions one after another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any


class Runner:
    """Runs functions in one process and reuses compiled code; paths are relative to `folder`."""

    def __init__(self, threads: int, folder: str) -> None:
        limit_threads(threads)
        with contextlib.suppress(OSError):  # functions that need the folder raise their own error
            os.chdir(folder)

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, which is imported by name and never sent as code."""
        return function(*arguments)


def limit_threads(threads: int) -> None:
    """Limit XLA's cores in this process; call before XLA starts.

    Otherwise several processes would compete for all cores.
    """
    os.environ["NPROC"] = str(threads)
    if threads == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
