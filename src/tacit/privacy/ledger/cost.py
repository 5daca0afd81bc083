"""Compute the ε of all charges for a budget, and refuse releases that would exceed the budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.epsilon_cache import EpsilonCache, EpsilonQuery
from tacit.privacy.ledger.exposure import Charged
from tacit.privacy.ledger.state import Budget, Epsilon, Paid, under

_LARGEST = 1e6


class BudgetExceededError(PrivacyBudgetError):
    """Raised if a release would exceed the budget of its data set."""


class BudgetCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a request with a budget.

    `spent` is the ε of all earlier charges and of the plans of other runs, `requested` the ε of the
    request alone, and `total` the ε of both together.
    """

    spent: float
    requested: float
    total: float
    budget: Budget
    only_run: str = ""
    """An unfinished run whose plan leaves no room for any other run; empty if there is none."""
    unfinished: tuple[str, ...] = ()
    """Other runs that have reserved a part of the budget for the rest of their plans."""

    @property
    def fits(self) -> bool:
        """True if the total ε is within the budget; False if the total is NaN."""
        return self.total <= self.budget.epsilon

    @property
    def used(self) -> float:
        """`total` divided by the ε of the budget."""
        return self.total / self.budget.epsilon


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The ε that was spent on a data set and on the data sets that are linked to it.

    Every ε is for the δ, adjacency and unit of the budget. It is None if there is no budget.
    """

    dataset: str
    epsilon: float | None
    """ε of everything that was charged."""
    budget: Budget | None
    remaining: float | None
    """budget − `committed`. Use `check` to see what fits, because ε is not additive."""
    charges: int
    releases: int
    family: int
    """Number of data sets that share the budget."""
    committed: float | None = None
    """ε that counts against the budget: charges, and the plans of runs that are not finished. It is
    `epsilon` if every run is finished.
    """
    as_one_run: float | None = None
    """ε of the same charges if they had been planned in advance as one run. `epsilon` may be
    larger, because runs may be chosen after seeing the results of earlier runs.
    """
    shared: dict[str, int | None] = {}
    """Number of records that this data set has in common with each other data set, by fingerprint
    of the other. The number is None if all records may be the same. Data sets without common
    records are left out.
    """


class CachedAccountant:
    """An accountant with a cache of its results.

    The accountant is called only if the answer does not follow from cached results.
    """

    def __init__(self, epsilon: Epsilon | None) -> None:
        self._epsilon = epsilon
        self._cache = EpsilonCache()

    def of(self, charged: Charged, budget: Budget) -> float:
        """Return an upper bound on the ε of all charges and plans, for the δ, unit and adjacency of
        the budget.

        The releases of a single run are planned in advance, and the accountant bounds them. If
        there are several runs, the settings of one may depend on the results of another. A privacy
        filter then bounds all charged and reserved events. The result is also at least the ε of the
        complete plan of every run that was closed early, because the decision to close the run may
        depend on its results.
        """
        return self._largest(charged.committed, charged, budget)

    def of_charges(self, charged: Charged, budget: Budget) -> float:
        """Return the ε of all charges so far; reserved events of open runs are not included.

        A run that was closed early counts with its complete plan, because the decision to close it
        may depend on its results.
        """
        return self._largest(charged.paid, charged, budget)

    def _largest(self, events: Counter[Paid], charged: Charged, budget: Budget) -> float:
        """Return the largest ε of `events` and of the complete plans of runs that were closed
        early.
        """
        parts = [events, *charged.unfinished.values()]
        if charged.adaptive:
            return max(self._filtered(part, budget) for part in parts)
        return max(self._value(_query(part, budget)) for part in parts)

    def _only_run(self, charged: Charged, budget: Budget, run: str) -> str:
        """Return an unfinished run other than `run` whose plan alone exceeds the budget; "" if
        there is none.
        """
        paid = charged.paid
        plans = ((one, plan) for one, plan in charged.plans.items() if one != run)
        left = ((one, plan) for one, plan in plans if not plan <= paid)
        found = (one for one, plan in left if not self._filtered(plan, budget) <= budget.epsilon)
        return next(found, "") if charged.adaptive else ""

    def as_one_run(self, charged: Charged, budget: Budget) -> float:
        """Return ε of all charges as if they had been planned in advance as one run."""
        return self._value(_query(charged.paid, budget))

    def smallest_budget(self, charged: Charged, terms: Budget) -> float:
        """Return the smallest ε of a budget that would allow all charges and plans.

        `terms` has the δ, unit and adjacency of this budget.
        """
        plans = (self._value(_query(plan, terms)) for plan in charged.unfinished.values())
        low = max([self._value(_query(charged.committed, terms)), *plans])
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
        """True if these charges and plans stay within the budget.

        Fewer events never have a larger ε. The accountant is therefore not called if the cache
        shows that these events together with others are within the budget. This is so for each
        round of a run after the whole run was compared with the budget. The result is False only if
        the ε of exactly these events was computed and exceeds the budget.
        """
        if charged.adaptive or charged.unfinished:
            return self.of(charged, budget) <= budget.epsilon
        query = _query(charged.committed, budget)
        if self._cache.at_most(query, budget.epsilon):
            return True
        return self._value(query) <= budget.epsilon

    def compare(
        self, spent: Charged, requested: Counter[Paid], total: Charged, budget: Budget, run: str
    ) -> BudgetCheck:
        """Compare a request of `run` with the budget.

        The result has the ε of all earlier charges and plans, of the request alone, and of both
        together.
        """
        return BudgetCheck(
            spent=self.of(spent, budget),
            requested=self._value(_query(requested, budget)),
            total=self.of(total, budget),
            budget=budget,
            only_run=self._only_run(total, budget, run),
            unfinished=tuple(other for other in total.reserved if other != run),
        )

    def require_budget(
        self,
        dataset: str,
        spent: Charged,
        requested: Mapping[str, Counter[Paid]],
        total: Charged,
        budget: Budget,
        shared: str = "",
    ) -> None:
        """Raise an error if the requested releases would exceed the budget.

        `requested` has the requested releases, by run. `shared` is a text about data sets with the
        same records, for the error message.
        """
        if self.fits(total, budget):
            return
        events: Counter[Paid] = Counter()
        for part in requested.values():
            events.update(part)
        check = self.compare(spent, events, total, budget, next(iter(requested), ""))
        if check.only_run:
            raise BudgetExceededError(f"data set {dataset}: {only_run_reason(check)}")
        why = (
            "" if math.isfinite(check.requested) else " (the accountant has no finite bound for it)"
        )
        raise BudgetExceededError(
            f"privacy budget exceeded for data set {dataset}: spent ε = {check.spent:.6g},"
            f" requested ε = {check.requested:.6g}{why}, together {check.total:.6g} >"
            f" {shown(budget)}{shared and f'; this data set {shared}, whose charges count too'}"
            f"{unfinished_reason(check)}; use fewer releases or more noise, or raise the budget:"
            " tacit ledger budget --raise"
        )

    def _filtered(self, paid: Counter[Paid], budget: Budget) -> float:
        """Return an ε of releases that may have been chosen adaptively, by a privacy filter."""
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
    """Return the error message that the run `check.only_run` leaves no budget for any other run."""
    return (
        f"run {check.only_run} is unfinished and was planned for all of the budget"
        f" {shown(check.budget)}; no other run fits beside it, even if it is closed: finish that"
        " run, or raise the budget: tacit ledger budget --raise"
    )


def unfinished_reason(check: BudgetCheck) -> str:
    """Return a part of an error message that names the runs in `check.unfinished` and how to end
    them.

    It is empty if there are none.
    """
    if not check.unfinished:
        return ""
    first, more = check.unfinished[0], len(check.unfinished) - 1
    others = f" and {more} more are" if more else " is"
    return (
        f"; run {first}{others} unfinished, so releases that are planned but not yet charged count"
        f" as spent: finish {first}, or close it for good: tacit ledger close {first} --reason …"
    )


def shown(budget: Budget) -> str:
    """Return a budget as text for messages."""
    return (
        f"ε = {budget.epsilon:.6g} at δ = {budget.delta:g} (per {budget.unit}, {budget.adjacency})"
    )
