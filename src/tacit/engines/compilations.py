"""Count XLA compilations and their duration by JAX's monitoring events.

A program that was read from the compilation cache is not counted.
"""

from __future__ import annotations

import sys
import threading
from typing import NamedTuple

_EVENT = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_lock = threading.Lock()
_total = [0, 0.0]
_listening = False


class Compilations(NamedTuple):
    """Number and total duration of compilations."""

    count: int
    seconds: float

    def since(self, earlier: Compilations) -> Compilations:
        """Return the compilations since an `earlier` call of `compilations`."""
        return Compilations(self.count - earlier.count, self.seconds - earlier.seconds)

    def plus(self, other: Compilations) -> Compilations:
        """Return the sums of both numbers and both durations."""
        return Compilations(self.count + other.count, self.seconds + other.seconds)


def compilations() -> Compilations:
    """Return the number and total duration of compilations in this process.

    Counting starts at the first call of this function after JAX was imported.
    """
    global _listening
    if "jax" not in sys.modules:
        return Compilations(0, 0.0)
    with _lock:
        if not _listening:
            from jax import monitoring

            monitoring.register_event_duration_secs_listener(_listen)
            monitoring.register_event_listener(_subtract_cached)
            _listening = True
        return Compilations(_total[0], _total[1])


def _listen(event: str, duration_secs: float, **_: object) -> None:
    if event == _EVENT:
        with _lock:
            _total[0] += 1
            _total[1] += duration_secs


def _subtract_cached(event: str, **_: object) -> None:
    """Subtract cache hits, which JAX also reports as compilations."""
    if event == _CACHE_HIT:
        with _lock:
            _total[0] -= 1
