"""What charges cost together, in ε at the ceiling's δ, and the words of a refusal."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from tacit.errors import PrivacyError
from tacit.privacy.ledger.known import Known, Question
from tacit.privacy.ledger.state import Ceiling, Epsilon, Paid, under


class CeilingError(PrivacyError):
    """A release would pass the ceiling of its data set."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What is spent, what is asked for alone, and what both are together: three values of ε."""

    spent: float
    asked: float
    total: float
    ceiling: Ceiling

    @property
    def fits(self) -> bool:
        """Whether it may be charged; a NaN does not fit."""
        return self.total <= self.ceiling.epsilon


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of a data set and those it continues.

    `epsilon` is at the ceiling's δ, relation and unit; None while nothing gives it those.
    """

    dataset: str
    epsilon: float | None
    ceiling: Ceiling | None
    remaining: float | None
    """ceiling − ε. What fits is for `check` to say: ε does not add up by addition."""
    charges: int
    releases: int
    family: int
    """How many data sets share the budget."""


class Price:
    """The accountant, asked once for each multiset of events, and not at all where a bound does."""

    def __init__(self, epsilon: Epsilon | None) -> None:
        self._epsilon = epsilon
        self._known = Known()

    def of(self, paid: Counter[Paid], ceiling: Ceiling) -> float:
        """An upper bound of ε of all that was paid for, in the ceiling's terms."""
        return self._value(_question(paid, ceiling))

    def fits(self, paid: Counter[Paid], ceiling: Ceiling) -> bool:
        """Whether all this stays within the ceiling.

        More of the same releases reveal no less. So what is known of a larger multiset bounds this
        one, and when that fits, this fits: after `check` of a whole run its rounds cost no more
        evaluations. A bound only ever allows; to refuse, and to say a number, the accountant is
        asked about exactly these events.
        """
        question = _question(paid, ceiling)
        if self._known.at_most(question, ceiling.epsilon):
            return True
        return self._value(question) <= ceiling.epsilon

    def budget(self, spent: Counter[Paid], asked: Counter[Paid], ceiling: Ceiling) -> Budget:
        """The three numbers and the ceiling."""
        return Budget(
            spent=self.of(spent, ceiling),
            asked=self.of(asked, ceiling),
            total=self.of(spent + asked, ceiling),
            ceiling=ceiling,
        )

    def require_room(
        self, dataset: str, spent: Counter[Paid], asked: Counter[Paid], ceiling: Ceiling
    ) -> None:
        """Refuse what would pass the ceiling."""
        if self.fits(spent + asked, ceiling):
            return
        found = self.budget(spent, asked, ceiling)
        why = "" if math.isfinite(found.asked) else " (the accountant has no finite bound for it)"
        raise CeilingError(
            f"privacy ceiling of data set {dataset}: spent ε = {found.spent:.6g}, asked"
            f" ε = {found.asked:.6g}{why}, together {found.total:.6g} > {shown(ceiling)}; ask for"
            " fewer releases or more noise, or have the operator raise it: tacit ledger ceiling"
            " --raise"
        )

    def _value(self, question: Question) -> float:
        if not question.events:
            return 0.0
        value = self._known.value(question)
        if value is None:
            value = float(self._accountant()(*question))
            if not value >= 0:
                raise PrivacyError(
                    f"the accountant answered ε = {value}; nothing is charged: report this"
                )
            self._known.learn(question, value)
        return value

    def _accountant(self) -> Epsilon:
        if self._epsilon is None:
            # Imported late: opening or showing a ledger should not wait for an accountant.
            from tacit.privacy.accounting import epsilon

            self._epsilon = epsilon
        return self._epsilon


def _question(paid: Counter[Paid], ceiling: Ceiling) -> Question:
    return Question(under(paid, ceiling), ceiling.delta, ceiling.relation)


def shown(ceiling: Ceiling) -> str:
    """A ceiling in one phrase."""
    return (
        f"ε = {ceiling.epsilon:.6g} at δ = {ceiling.delta:g} ({ceiling.relation} a {ceiling.unit})"
    )
