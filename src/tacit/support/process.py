"""Facts about this process."""

from __future__ import annotations

import sys


def peak_memory_bytes() -> int:
    """Return the peak resident memory in bytes, or 0 if the system does not provide it
    (Windows).
    """
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
