"""Limit BLAS to one thread, for results that do not depend on the machine."""

from __future__ import annotations

from typing import Any

from threadpoolctl import threadpool_limits


def one_blas_thread() -> Any:
    """Limit BLAS and LAPACK to one thread inside a `with` block.

    A server's matrices are small, so more threads are not faster. They would change the order of
    summation, so that the last bits of a posterior depended on the number of cores.
    """
    return threadpool_limits(limits=1, user_api="blas")
