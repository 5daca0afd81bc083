"""Cache of accountant results, and bounds that follow from them.

The ε of some events is also an upper bound for any part of these events, at the same δ and
adjacency, because leaving out releases cannot increase ε.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from tacit.privacy.events import Adjacency, GaussianEvent

_CACHE_SIZE = 16_384
"""Number of cached queries: enough for thousands of data sets whose events differ because their
sizes do.
"""

_Kind = tuple[GaussianEvent, float, Adjacency]


class EpsilonQuery(NamedTuple):
    """Arguments of an accountant: δ, the adjacency, and the events in a fixed order with counts."""

    events: tuple[GaussianEvent, ...]
    delta: float
    adjacency: Adjacency

    def counts(self) -> dict[_Kind, int]:
        """Return how often each event occurs in the query."""
        return {
            (msgspec.structs.replace(event, count=1), self.delta, self.adjacency): event.count
            for event in self.events
        }


class EpsilonCache:
    """Cache from queries to ε. If it is full, the least recently used entry is removed."""

    def __init__(self, size: int = _CACHE_SIZE) -> None:
        self._size = size
        self._values: dict[EpsilonQuery, float] = {}
        self._counts: dict[EpsilonQuery, dict[_Kind, int]] = {}
        self._holding: dict[_Kind, dict[EpsilonQuery, None]] = {}
        """Cached queries that contain a kind of event."""
        self._larger: dict[EpsilonQuery, EpsilonQuery] = {}
        """For queries that are not cached: a cached query with at least the same events."""

    def value(self, query: EpsilonQuery) -> float | None:
        """Return the cached ε of exactly this query, or None."""
        return self._use(query) if query in self._values else None

    def at_most(self, query: EpsilonQuery, limit: float) -> bool:
        """True if the cache shows that the ε of the query is at most `limit`.

        This follows from the cached ε of the same query, or of a query with the same and further
        events. If the result is False, the ε may still be at most `limit`; the accountant must
        compute it.
        """
        if query in self._values:
            return self._use(query) <= limit
        larger = self._larger.get(query)
        if larger is None or self._values.get(larger, math.inf) > limit:
            larger = self._search(query)
            if larger is None:
                return False
            self._larger[query] = larger
            while len(self._larger) > self._size:
                del self._larger[next(iter(self._larger))]
        return self._use(larger) <= limit

    def learn(self, query: EpsilonQuery, value: float) -> None:
        """Store the ε of a query."""
        while len(self._values) >= self._size:
            self._evict(next(iter(self._values)))
        self._values[query] = value
        self._counts[query] = query.counts()
        for kind in self._counts[query]:
            self._holding.setdefault(kind, {})[query] = None

    def _search(self, query: EpsilonQuery) -> EpsilonQuery | None:
        wanted = query.counts()
        if not wanted:
            return None
        rarest = min((self._holding.get(kind, {}) for kind in wanted), key=len)
        larger = [other for other in rarest if _contains(self._counts[other], wanted)]
        return min(larger, key=self._values.__getitem__, default=None)

    def _use(self, query: EpsilonQuery) -> float:
        value = self._values[query] = self._values.pop(query)
        return value

    def _evict(self, query: EpsilonQuery) -> None:
        del self._values[query]
        for kind in self._counts.pop(query):
            del self._holding[kind][query]
            if not self._holding[kind]:
                del self._holding[kind]


def _contains(larger: dict[_Kind, int], wanted: dict[_Kind, int]) -> bool:
    return all(larger.get(kind, 0) >= count for kind, count in wanted.items())
