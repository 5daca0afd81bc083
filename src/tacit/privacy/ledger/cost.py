"""What charges cost together, in ε at the budget's δ, and the words of a refusal."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.known import Known, Question
from tacit.privacy.ledger.state import Budget, Epsilon, Paid, under


class BudgetExceededError(PrivacyBudgetError):
    """A release would pass the budget of its data set."""


class BudgetCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What is spent, what is asked for alone, and what both are together: three values of ε."""

    spent: float
    requested: float
    total: float
    budget: Budget

    @property
    def fits(self) -> bool:
        """Whether it may be charged; a NaN does not fit."""
        return self.total <= self.budget.epsilon


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of a data set and those it continues.

    `epsilon` is at the budget's δ, adjacency and unit; None while nothing gives it those.
    """

    dataset: str
    epsilon: float | None
    budget: Budget | None
    remaining: float | None
    """budget − ε. What fits is for `check` to say: ε does not add up by addition."""
    charges: int
    releases: int
    family: int
    """How many data sets share the budget."""


class Price:
    """The accountant, asked once for each multiset of events, and not at all where a bound does."""

    def __init__(self, epsilon: Epsilon | None) -> None:
        self._epsilon = epsilon
        self._known = Known()

    def of(self, paid: Counter[Paid], budget: Budget) -> float:
        """An upper bound of ε of all that was paid for, in the budget's terms."""
        return self._value(_question(paid, budget))

    def fits(self, paid: Counter[Paid], budget: Budget) -> bool:
        """Whether all this stays within the budget.

        More of the same releases reveal no less. So what is known of a larger multiset bounds this
        one, and when that fits, this fits: after `check` of a whole run its rounds cost no more
        evaluations. A bound only ever allows; to refuse, and to say a number, the accountant is
        asked about exactly these events.
        """
        question = _question(paid, budget)
        if self._known.at_most(question, budget.epsilon):
            return True
        return self._value(question) <= budget.epsilon

    def compare(self, spent: Counter[Paid], asked: Counter[Paid], budget: Budget) -> BudgetCheck:
        """The three numbers and the budget."""
        return BudgetCheck(
            spent=self.of(spent, budget),
            requested=self.of(asked, budget),
            total=self.of(spent + asked, budget),
            budget=budget,
        )

    def require_budget(
        self, dataset: str, spent: Counter[Paid], asked: Counter[Paid], budget: Budget
    ) -> None:
        """Refuse what would pass the budget."""
        if self.fits(spent + asked, budget):
            return
        found = self.compare(spent, asked, budget)
        why = (
            "" if math.isfinite(found.requested) else " (the accountant has no finite bound for it)"
        )
        raise BudgetExceededError(
            f"privacy budget of data set {dataset}: spent ε = {found.spent:.6g}, asked"
            f" ε = {found.requested:.6g}{why}, together {found.total:.6g} > {shown(budget)}; use"
            " fewer releases or more noise, or have the operator raise the budget: tacit ledger"
            " budget --raise"
        )

    def _value(self, question: Question) -> float:
        if not question.events:
            return 0.0
        value = self._known.value(question)
        if value is None:
            value = float(self._accountant()(*question))
            if not value >= 0:
                raise PrivacyBudgetError(
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


def _question(paid: Counter[Paid], budget: Budget) -> Question:
    return Question(under(paid, budget), budget.delta, budget.adjacency)


def shown(budget: Budget) -> str:
    """A budget in one phrase."""
    return (
        f"ε = {budget.epsilon:.6g} at δ = {budget.delta:g} (per {budget.unit}, {budget.adjacency})"
    )
