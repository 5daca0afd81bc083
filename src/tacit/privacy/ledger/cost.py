"""Combined ε of charges at the budget's δ, and the refusal of releases over budget."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.epsilon_cache import EpsilonCache, EpsilonQuery
from tacit.privacy.ledger.state import Budget, Epsilon, Paid, under


class BudgetExceededError(PrivacyBudgetError):
    """A release would exceed the budget of its data set."""


class BudgetCheck(msgspec.Struct, frozen=True, kw_only=True):
    """ε already spent, ε of the request alone, and ε of both together."""

    spent: float
    requested: float
    total: float
    budget: Budget

    @property
    def fits(self) -> bool:
        """True if the request may be charged; False for NaN."""
        return self.total <= self.budget.epsilon


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Spending on a data set and on those that it continues.

    `epsilon` is at the budget's δ, adjacency and unit; None without a budget.
    """

    dataset: str
    epsilon: float | None
    budget: Budget | None
    remaining: float | None
    """budget − ε. Use `check` to see what fits, because ε is not additive."""
    charges: int
    releases: int
    family: int
    """Number of data sets that share the budget."""


class CachedAccountant:
    """An accountant with a cache, called only where cached bounds do not decide."""

    def __init__(self, epsilon: Epsilon | None) -> None:
        self._epsilon = epsilon
        self._cache = EpsilonCache()

    def of(self, paid: Counter[Paid], budget: Budget) -> float:
        """Upper bound on ε of all charges, at the budget's δ, unit and adjacency."""
        return self._value(_query(paid, budget))

    def fits(self, paid: Counter[Paid], budget: Budget) -> bool:
        """True if these charges stay within the budget.

        ε of a multiset of events bounds ε of every subset. So if a larger cached multiset fits,
        this one fits: after `check` of a whole run, its rounds need no further evaluation. Cached
        bounds only allow; a refusal evaluates exactly these events.
        """
        query = _query(paid, budget)
        if self._cache.at_most(query, budget.epsilon):
            return True
        return self._value(query) <= budget.epsilon

    def compare(
        self, spent: Counter[Paid], requested: Counter[Paid], budget: Budget
    ) -> BudgetCheck:
        """ε spent, requested and in total, with the budget."""
        return BudgetCheck(
            spent=self.of(spent, budget),
            requested=self.of(requested, budget),
            total=self.of(spent + requested, budget),
            budget=budget,
        )

    def require_budget(
        self, dataset: str, spent: Counter[Paid], requested: Counter[Paid], budget: Budget
    ) -> None:
        """Refuse a request that would exceed the budget."""
        if self.fits(spent + requested, budget):
            return
        check = self.compare(spent, requested, budget)
        why = (
            "" if math.isfinite(check.requested) else " (the accountant has no finite bound for it)"
        )
        raise BudgetExceededError(
            f"privacy budget exceeded for data set {dataset}: spent ε = {check.spent:.6g},"
            f" requested ε = {check.requested:.6g}{why}, together {check.total:.6g} >"
            f" {shown(budget)}; use fewer releases or more noise, or raise the budget:"
            " tacit ledger budget --raise"
        )

    def _value(self, query: EpsilonQuery) -> float:
        if not query.events:
            return 0.0
        value = self._cache.value(query)
        if value is None:
            value = float(self._accountant()(*query))
            if not value >= 0:
                raise PrivacyBudgetError(
                    f"the accountant returned ε = {value}; nothing is charged: report this as a bug"
                )
            self._cache.learn(query, value)
        return value

    def _accountant(self) -> Epsilon:
        if self._epsilon is None:
            # Imported late, because opening or showing a ledger needs no accountant.
            from tacit.privacy.accounting import epsilon

            self._epsilon = epsilon
        return self._epsilon


def _query(paid: Counter[Paid], budget: Budget) -> EpsilonQuery:
    return EpsilonQuery(under(paid, budget), budget.delta, budget.adjacency)


def shown(budget: Budget) -> str:
    """A budget as text."""
    return (
        f"ε = {budget.epsilon:.6g} at δ = {budget.delta:g} (per {budget.unit}, {budget.adjacency})"
    )
