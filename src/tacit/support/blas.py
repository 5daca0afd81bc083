"""One BLAS thread: the same numbers wherever they are computed."""

from __future__ import annotations

from typing import Any

from threadpoolctl import threadpool_limits


def one_blas_thread() -> Any:
    """Limit BLAS and LAPACK to one thread inside a `with` block.

    A server's matrices are small, so a second thread would mostly spin, and a sum that is shared
    between threads is rounded in another order: the last bits of a posterior would depend on the
    number of cores.
    """
    return threadpool_limits(limits=1, user_api="blas")
