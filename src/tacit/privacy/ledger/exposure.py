"""All charges to the records of a data set, including those through overlapping data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.overlap import Group, Overlaps
from tacit.privacy.ledger.state import Budget, Paid, State

Events = Counter[Paid]


class Charged(NamedTuple):
    """Events charged to a group of data sets, and the plans of their runs, by run."""

    by_run: Mapping[str, Events]
    plans: Mapping[str, Events] = {}
    """Plans of these runs; runs of earlier versions have none."""

    @property
    def paid(self) -> Events:
        """All charged events."""
        return _together(self.by_run.values())

    def plus(self, other: Charged) -> Charged:
        """Sum of both."""
        return Charged(_merged([self.by_run, other.by_run]), _merged([self.plans, other.plans]))

    @property
    def adaptive(self) -> bool:
        """True if a release may have been chosen after seeing an earlier one.

        Either there are several runs, or a run was charged for releases that it had not planned.
        """
        beyond = (not paid <= self.plans.get(run, paid) for run, paid in self.by_run.items())
        return len(self.by_run) > 1 or any(beyond)

    @property
    def unfinished(self) -> dict[str, Events]:
        """Plans that are not contained in all charges together, by run."""
        paid = self.paid
        return {run: plan for run, plan in self.plans.items() if not plan <= paid}


def _together(parts: Iterable[Events]) -> Events:
    total: Events = Counter()
    for part in parts:
        total.update(part)
    return total


def _merged(parts: Iterable[Mapping[str, Events]]) -> dict[str, Events]:
    """Events of several data sets by run."""
    found: dict[str, Events] = {}
    for part in parts:
        for run, events in part.items():
            found[run] = found.get(run, Counter()) + events
    return found


class Exposure:
    """Groups of data sets that share records, with their charges and budgets.

    `older` maps the content of a data set of this process to its id under version 0.1.
    """

    def __init__(
        self, state: State, overlaps: Overlaps, older: Mapping[str, DatasetId] | None = None
    ) -> None:
        self.state, self.overlaps, self._older = state, overlaps, older or {}

    def groups(self, dataset: DatasetId) -> list[Group]:
        """Groups of data sets that share records of this data set."""
        return self._widened(dataset, self.overlaps.groups)

    def _widened(self, dataset: DatasetId, groups_of: Callable[[str], list[Group]]) -> list[Group]:
        """Groups of all data sets linked to this one, with the data sets linked to their
        members.
        """
        family = self._family(dataset.content)
        groups = {group for own in family for group in groups_of(own)}
        wide = {frozenset().union(*(self._family(one) for one in group)) for group in groups}
        return sorted(wide, key=sorted)

    def charged(self, group: Group) -> Charged:
        """All events ever charged to the members of a group, and the plans of these runs."""
        by_run = _merged(self.state.paid_by_run(content) for content in group)
        plans = _merged(self.state.plans_by_run(content) for content in group)
        return Charged(by_run, {run: plan for run, plan in plans.items() if run in by_run})

    def largest(self, dataset: DatasetId) -> list[Charged]:
        """Distinct charges of the groups of a data set."""
        found = []
        for group in self.groups(dataset):
            charged = self.charged(group)
            if charged not in found:
                found.append(charged)
        return found

    def budgets(self, group: Group) -> list[Budget]:
        """Budgets of the members of a group."""
        families = {self._family(content) for content in group}
        found = (self.state.budget_of(family) for family in sorted(families, key=sorted))
        return list(dict.fromkeys(budget for budget in found if budget is not None))

    def budget(self, dataset: DatasetId) -> Budget | None:
        """A data set's own budget; otherwise the smallest of the budgets that cover all its
        records.
        """
        own = self.state.budget_of(self._family(dataset.content))
        if own is not None:
            return own
        covering = self._widened(dataset, self.overlaps.covering)
        each = [self.budgets(group) for group in covering]
        if not all(each):
            return None
        return min((one for budgets in each for one in budgets), key=lambda one: one.epsilon)

    def _family(self, content: str) -> frozenset[str]:
        family = self.state.family(content)
        older = self._older.get(content)
        return family if older is None else family | self.state.family(older.content)


def affected(exposure: Exposure, datasets: Iterable[DatasetId]) -> dict[Group, list[DatasetId]]:
    """Groups to which a charge of these data sets adds, with the charged members."""
    found: dict[Group, list[DatasetId]] = {}
    for dataset in dict.fromkeys(datasets):
        for group in exposure.groups(dataset):
            found.setdefault(group, []).append(dataset)
    return found
