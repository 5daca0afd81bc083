"""Cache of accountant results, and the bounds that follow from them.

Dropping releases is post-processing, so it cannot increase ε. The ε of a multiset of events is
therefore an upper bound for every sub-multiset, at the same δ and adjacency.
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
    """Arguments of an accountant call: merged events in a fixed order, δ and the adjacency."""

    events: tuple[GaussianEvent, ...]
    delta: float
    adjacency: Adjacency

    def counts(self) -> dict[_Kind, int]:
        """Return the number of occurrences of each kind of event."""
        return {
            (msgspec.structs.replace(event, count=1), self.delta, self.adjacency): event.count
            for event in self.events
        }


class EpsilonCache:
    """Cache of ε by query; the least recently used entry is evicted first."""

    def __init__(self, size: int = _CACHE_SIZE) -> None:
        self._size = size
        self._values: dict[EpsilonQuery, float] = {}
        self._counts: dict[EpsilonQuery, dict[_Kind, int]] = {}
        self._holding: dict[_Kind, dict[EpsilonQuery, None]] = {}
        """Cached queries that contain a kind of event."""
        self._larger: dict[EpsilonQuery, EpsilonQuery] = {}
        """A larger cached query with a small ε, remembered because many data sets share it."""

    def value(self, query: EpsilonQuery) -> float | None:
        """Return the cached ε of exactly this query, or None."""
        return self._use(query) if query in self._values else None

    def at_most(self, query: EpsilonQuery, limit: float) -> bool:
        """True if the cached ε of this or a larger query shows that ε ≤ limit.

        False means that the cache does not decide: call the accountant.
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
        """Store ε of a query."""
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
