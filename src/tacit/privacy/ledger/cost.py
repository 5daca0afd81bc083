"""Combined ε of charges at the budget's δ, and the refusal of releases over budget."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.epsilon_cache import EpsilonCache, EpsilonQuery
from tacit.privacy.ledger.exposure import Charged
from tacit.privacy.ledger.state import Budget, Epsilon, Paid, under

_LARGEST = 1e6


class BudgetExceededError(PrivacyBudgetError):
    """A release would exceed the budget of its data set."""


class BudgetCheck(msgspec.Struct, frozen=True, kw_only=True):
    """ε already spent, ε of the request alone, and ε of both together."""

    spent: float
    requested: float
    total: float
    budget: Budget
    only_run: str = ""
    """An unfinished run whose plan exceeds the budget if another run follows; `total` is then
    the ε of that plan. Empty otherwise.
    """

    @property
    def fits(self) -> bool:
        """True if the request may be charged; False for NaN."""
        return self.total <= self.budget.epsilon

    @property
    def used(self) -> float:
        """Total as a share of the budget."""
        return self.total / self.budget.epsilon


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
    planned: float | None = None
    """ε of the same releases if they had been planned in advance as one run. The difference to
    `epsilon` is the cost of choosing each run after seeing the earlier ones.
    """
    shared: dict[str, int | None] = {}
    """Contents of other data sets with records in common, and their numbers; None means possibly
    all.
    """


class CachedAccountant:
    """An accountant with a cache, called only if cached bounds do not decide."""

    def __init__(self, epsilon: Epsilon | None) -> None:
        self._epsilon = epsilon
        self._cache = EpsilonCache()

    def of(self, charged: Charged, budget: Budget) -> float:
        """Upper bound on ε of all charges, at the budget's δ, unit and adjacency.

        Charges of one run were planned in advance. Several runs may have been chosen adaptively, so
        a filter must bound them. The filter must also bound each plan as a whole, because the
        decision not to finish a run may be adaptive, too.
        """
        if not charged.adaptive:
            return self._value(_query(charged.paid, budget))
        unfinished = self._largest_plan(charged, budget)[0]
        return max(self._filtered(charged.paid, budget), unfinished)

    def _largest_plan(self, charged: Charged, budget: Budget) -> tuple[float, str]:
        """Largest filtered ε of an unfinished plan, and its run; (0, "") without one."""
        plans = ((self._filtered(p, budget), run) for run, p in charged.unfinished.items())
        return max(plans, default=(0.0, ""))

    def planned(self, charged: Charged, budget: Budget) -> float:
        """ε of all charges as if they had been planned in advance as one run."""
        return self._value(_query(charged.paid, budget))

    def smallest_budget(self, charged: Charged, terms: Budget) -> float:
        """Smallest budget ε, in these terms, that admits all charges and each plan."""
        plans = (self._value(_query(plan, terms)) for plan in charged.unfinished.values())
        low = max([self.planned(charged, terms), *plans])
        if not charged.adaptive or not 0.0 < low < math.inf:
            return low

        def admits(epsilon: float) -> bool:
            return self.of(charged, msgspec.structs.replace(terms, epsilon=epsilon)) <= epsilon

        if admits(low):
            return low
        high = 2.0 * low
        while not admits(high):
            high *= 2.0
            if high > _LARGEST:
                return math.inf
        while high - low > 1e-7 * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if admits(middle) else (middle, high)
        return high

    def fits(self, charged: Charged, budget: Budget) -> bool:
        """True if these charges stay within the budget.

        The ε of a multiset of events bounds the ε of every subset. So if a larger cached multiset
        fits, this one fits: after `check` of a whole run, its rounds need no further evaluation.
        Cached bounds are only used to allow; a refusal evaluates exactly these events.
        """
        if charged.adaptive:
            return self.of(charged, budget) <= budget.epsilon
        query = _query(charged.paid, budget)
        if self._cache.at_most(query, budget.epsilon):
            return True
        return self._value(query) <= budget.epsilon

    def compare(self, spent: Charged, requested: Charged, budget: Budget) -> BudgetCheck:
        """ε spent, requested and in total, with the budget."""
        both = spent.plus(requested)
        largest, run = self._largest_plan(both, budget) if both.adaptive else (0.0, "")
        return BudgetCheck(
            spent=self.of(spent, budget),
            requested=self.of(requested, budget),
            total=self.of(both, budget),
            budget=budget,
            only_run="" if largest <= budget.epsilon else run,
        )

    def require_budget(
        self, dataset: str, spent: Charged, requested: Charged, budget: Budget, shared: str = ""
    ) -> None:
        """Refuse a request that would exceed the budget; `shared` names overlapping data sets."""
        if self.fits(spent.plus(requested), budget):
            return
        check = self.compare(spent, requested, budget)
        if check.only_run:
            raise BudgetExceededError(f"data set {dataset}: {only_run_reason(check)}")
        why = (
            "" if math.isfinite(check.requested) else " (the accountant has no finite bound for it)"
        )
        raise BudgetExceededError(
            f"privacy budget exceeded for data set {dataset}: spent ε = {check.spent:.6g},"
            f" requested ε = {check.requested:.6g}{why}, together {check.total:.6g} >"
            f" {shown(budget)}{shared and f'; it {shared}'}; use fewer releases or more noise, or"
            " raise the budget: tacit ledger budget --raise"
        )

    def _filtered(self, paid: Counter[Paid], budget: Budget) -> float:
        """ε of adaptively chosen runs; see `tacit.privacy.accounting.filters`."""
        from tacit.privacy.accounting.filters import filtered_epsilon

        events = under(paid, budget)
        if not events:
            return 0.0
        return filtered_epsilon(
            events,
            budget.delta,
            budget.adjacency,
            budget=budget.epsilon,
            epsilon=lambda *query: self._value(EpsilonQuery(*query)),  # pyright: ignore[reportArgumentType]
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


def only_run_reason(check: BudgetCheck) -> str:
    """Why the budget admits no run in addition to `check.only_run`, and what to do."""
    return (
        f"run {check.only_run} is unfinished and was planned for all of the budget"
        f" {shown(check.budget)}; together with another run, its plan counts as"
        f" ε = {check.total:.6g}: finish that run, or raise the budget: tacit ledger budget --raise"
    )


def shown(budget: Budget) -> str:
    """A budget as text."""
    return (
        f"ε = {budget.epsilon:.6g} at δ = {budget.delta:g} (per {budget.unit}, {budget.adjacency})"
    )
