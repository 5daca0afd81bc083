"""Rate limit for messages that do not advance the run."""

from __future__ import annotations

SURPLUS_BURST = 100.0
"""Largest number of surplus messages that a peer may send at once."""
SURPLUS_PER_S = 5.0
"""Number of further surplus messages that a peer may send per second."""


class TokenBucket:
    """Token bucket with a constant refill rate.

    >>> bucket = TokenBucket(burst=2.0, per_s=1.0, now=0.0)
    >>> [bucket.take(0.0), bucket.take(0.0), bucket.take(0.5), bucket.take(1.5)]
    [True, True, False, True]
    """

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._tokens, self._at = burst, now

    def take(self, now: float) -> bool:
        """Take one token at time `now` (monotonic seconds); False if there is none."""
        self._tokens = min(self._burst, self._tokens + self._per_s * (now - self._at))
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
