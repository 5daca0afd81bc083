"""Limit BLAS to one thread, so that results do not depend on the number of cores."""

from __future__ import annotations

import functools
import sys
from typing import Any

from threadpoolctl import ThreadpoolController


def one_blas_thread() -> Any:
    """Limit BLAS and LAPACK to one thread inside a `with` block.

    A server's matrices are small, so more threads are not faster. They would change the order of
    summation, and the last bits of a posterior would then depend on the number of cores.
    """
    loaded = (len(sys.modules), next(reversed(sys.modules)))
    return _libraries(loaded).limit(limits=1, user_api="blas")


@functools.lru_cache(maxsize=1)
def _libraries(loaded: tuple[int, str]) -> ThreadpoolController:
    """Return the loaded BLAS libraries. The result is cached while `loaded`, a summary of the
    imported modules, is the same, because finding the libraries takes milliseconds.
    """
    del loaded
    return ThreadpoolController()
