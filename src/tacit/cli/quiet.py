"""Whether a command was called with --quiet, which discards standard output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_state = {"discarded": False}


def output_is_discarded() -> bool:
    """True inside `discarding_output`: warnings must then be printed on standard error."""
    return _state["discarded"]


@contextlib.contextmanager
def discarding_output(wanted: bool) -> Iterator[None]:
    """Context manager that discards standard output if `wanted`."""
    if not wanted:
        yield
        return
    _state["discarded"] = True
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        _state["discarded"] = False
