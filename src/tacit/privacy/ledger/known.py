"""What the accountant has said, and what follows from it without asking again.

Leaving releases out is a function of the rest, so it cannot reveal more. The answer for a multiset
of events is therefore an upper bound for every multiset that it contains, at the same δ and under
the same adjacency.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from tacit.privacy.events import Adjacency, GaussianEvent

_REMEMBERED = 16_384
"""Enough for thousands of data sets of different sizes, whose events therefore differ."""

_Kind = tuple[GaussianEvent, float, Adjacency]


class Question(NamedTuple):
    """What an accountant is asked: merged events in a fixed order, δ and the adjacency."""

    events: tuple[GaussianEvent, ...]
    delta: float
    adjacency: Adjacency

    def counts(self) -> dict[_Kind, int]:
        """How often there is each kind of event, in these terms."""
        return {
            (msgspec.structs.replace(event, count=1), self.delta, self.adjacency): event.count
            for event in self.events
        }


class Known:
    """Answers by question; what was not used for longest is forgotten first."""

    def __init__(self, size: int = _REMEMBERED) -> None:
        self._size = size
        self._values: dict[Question, float] = {}
        self._counts: dict[Question, dict[_Kind, int]] = {}
        self._holding: dict[_Kind, dict[Question, None]] = {}
        """The questions with an answer that a kind of event is in."""
        self._larger: dict[Question, Question] = {}
        """A larger question with a small answer: found once, as many data sets ask the same."""

    def value(self, question: Question) -> float | None:
        """What was answered to exactly this."""
        return self._use(question) if question in self._values else None

    def at_most(self, question: Question, limit: float) -> bool:
        """Whether an answer to this or to a larger question shows that ε ≤ limit.

        False says nothing: then the accountant has to be asked.
        """
        if question in self._values:
            return self._use(question) <= limit
        larger = self._larger.get(question)
        if larger is None or self._values.get(larger, math.inf) > limit:
            larger = self._search(question)
            if larger is None:
                return False
            self._larger[question] = larger
            while len(self._larger) > self._size:
                del self._larger[next(iter(self._larger))]
        return self._use(larger) <= limit

    def learn(self, question: Question, value: float) -> None:
        """Keep an answer."""
        while len(self._values) >= self._size:
            self._forget(next(iter(self._values)))
        self._values[question] = value
        self._counts[question] = question.counts()
        for kind in self._counts[question]:
            self._holding.setdefault(kind, {})[question] = None

    def _search(self, question: Question) -> Question | None:
        wanted = question.counts()
        if not wanted:
            return None
        rarest = min((self._holding.get(kind, {}) for kind in wanted), key=len)
        larger = [other for other in rarest if _contains(self._counts[other], wanted)]
        return min(larger, key=self._values.__getitem__, default=None)

    def _use(self, question: Question) -> float:
        value = self._values[question] = self._values.pop(question)
        return value

    def _forget(self, question: Question) -> None:
        del self._values[question]
        for kind in self._counts.pop(question):
            del self._holding[kind][question]
            if not self._holding[kind]:
                del self._holding[kind]


def _contains(larger: dict[_Kind, int], wanted: dict[_Kind, int]) -> bool:
    return all(larger.get(kind, 0) >= count for kind, count in wanted.items())
