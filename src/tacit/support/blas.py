"""Limit BLAS to one thread, for results that do not depend on the machine."""

from __future__ import annotations

import functools
import sys
from typing import Any

from threadpoolctl import ThreadpoolController


def one_blas_thread() -> Any:
    """Limit BLAS and LAPACK to one thread inside a `with` block.

    A server's matrices are small, so more threads are not faster. They would change the order of
    summation, so that the last bits of a posterior depended on the number of cores.
    """
    loaded = (len(sys.modules), next(reversed(sys.modules)))
    return _libraries(loaded).limit(limits=1, user_api="blas")


@functools.lru_cache(maxsize=1)
def _libraries(loaded: tuple[int, str]) -> ThreadpoolController:
    """Return the loaded BLAS libraries. Finding them takes milliseconds, so it is repeated only if
    `loaded` changes.
    """
    del loaded
    return ThreadpoolController()
