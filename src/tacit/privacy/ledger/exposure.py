"""All charges to the records of a data set, including charges to other data sets with the same
records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.overlap import Group, Overlaps
from tacit.privacy.ledger.state import Budget, Paid, State

Events = Counter[Paid]


class Charged(NamedTuple):
    """Charged, planned and reserved events of a group of data sets, each by run.

    Reserved events are planned events of an open run that are not charged yet.
    """

    by_run: Mapping[str, Events]
    plans: Mapping[str, Events] = {}
    """Complete plans of these runs; runs of earlier versions have none."""
    reserved: Mapping[str, Events] = {}
    """The part of each plan that is not charged yet, except for closed runs."""

    @property
    def paid(self) -> Events:
        """All charged events."""
        return _together(self.by_run.values())

    @property
    def committed(self) -> Events:
        """All charged and all reserved events; the budget must cover them together."""
        return _together([*self.by_run.values(), *self.reserved.values()])

    def without(self, run: str) -> Charged:
        """Return the charges, plans and reserved events of all runs except `run`."""
        kept = ({r: e for r, e in part.items() if r != run} for part in self)
        return Charged(*kept)

    @property
    def adaptive(self) -> bool:
        """True if a release may have been chosen after seeing the result of an earlier one.

        This is so if there are several runs, or if a run was charged for releases that it had not
        planned.
        """
        beyond = (not paid <= self.plans.get(run, paid) for run, paid in self.by_run.items())
        return len(self.by_run.keys() | self.reserved.keys()) > 1 or any(beyond)

    @property
    def unfinished(self) -> dict[str, Events]:
        """The complete plan of each run that was closed before all planned events were charged."""
        committed = self.committed
        return {run: plan for run, plan in self.plans.items() if not plan <= committed}


ByContent = Mapping[str, Mapping[str, Events]]
"""Events by fingerprint of the data set (`DatasetId.content`) and by run."""


def _together(parts: Iterable[Events]) -> Events:
    total: Events = Counter()
    for part in parts:
        total.update(part)
    return total


def _merged(parts: Iterable[Mapping[str, Events]]) -> dict[str, Events]:
    found: dict[str, Events] = {}
    for part in parts:
        for run, events in part.items():
            found[run] = found.get(run, Counter()) + events
    return found


class Exposure:
    """Groups of data sets that contain the same records, with their charges and budgets.

    `older` maps the fingerprint (`DatasetId.content`) of a data set to its id under version 0.1,
    for data sets that this process identified.
    """

    def __init__(
        self, state: State, overlaps: Overlaps, older: Mapping[str, DatasetId] | None = None
    ) -> None:
        self.state, self.overlaps, self._older = state, overlaps, older or {}

    def groups(self, dataset: DatasetId) -> list[Group]:
        """Return the groups that contain this data set or a data set linked to it.

        A group is a set of data sets that contain the same record.
        """
        return self._widened(dataset, self.overlaps.groups)

    def _widened(self, dataset: DatasetId, groups_of: Callable[[str], list[Group]]) -> list[Group]:
        family = self._family(dataset.content)
        groups = {group for own in family for group in groups_of(own)}
        wide = {frozenset().union(*(self._family(one) for one in group)) for group in groups}
        return sorted(wide, key=sorted)

    def charged(
        self,
        group: Group,
        charges: ByContent | None = None,
        plans: ByContent | None = None,
        *,
        ended: str | None = None,
    ) -> Charged:
        """Return all events that were charged to the data sets of a group, and the plans of their
        runs.

        `charges` and `plans` are added as if they were recorded already. If a run has a recorded
        plan, only events in `plans` that exceed it are added. The run `ended` counts as closed.
        """
        paid, planned, reserved = [], [], []
        for content in sorted(group):
            own = _merged([self.state.paid_by_run(content), (charges or {}).get(content, {})])
            intended = dict(self.state.plans_by_run(content))
            for run, events in (plans or {}).get(content, {}).items():
                intended[run] = intended.get(run, Counter()) | events
            live = {
                run for run in intended if run != ended and self.state.closed(run, content) is None
            }
            left = {run: intended[run] - own.get(run, Counter()) for run in live}
            paid.append(own)
            planned.append({r: e for r, e in intended.items() if r in live or r in own})
            reserved.append({run: events for run, events in left.items() if events})
        return Charged(_merged(paid), _merged(planned), _merged(reserved))

    def largest(self, dataset: DatasetId) -> list[Charged]:
        """Return the charges to each group that contains the data set, without duplicates.

        The ε spent on the data set is the largest ε of these groups.
        """
        found = []
        for group in self.groups(dataset):
            charged = self.charged(group)
            if charged not in found:
                found.append(charged)
        return found

    def budgets(self, group: Group) -> list[Budget]:
        """Return the budgets of the data sets of a group."""
        families = {self._family(content) for content in group}
        found = (self.state.budget_of(family) for family in sorted(families, key=sorted))
        return list(dict.fromkeys(budget for budget in found if budget is not None))

    def budget(self, dataset: DatasetId) -> Budget | None:
        """Return the budget of a data set or, if it has none, the budget that it inherits. Return
        None if the data set neither has nor inherits a budget.

        A data set without a budget inherits one if each of its records is also in a data set with a
        budget. It inherits the smallest of these budgets.
        """
        own = self.state.budget_of(self._family(dataset.content))
        if own is not None:
            return own
        for covering in (self.overlaps.covering, self.overlaps.covering_rows):
            each = [self.budgets(group) for group in self._widened(dataset, covering)]
            if all(each):
                return min((one for group in each for one in group), key=lambda one: one.epsilon)
        return None

    def _family(self, content: str) -> frozenset[str]:
        family = self.state.family(content)
        older = self._older.get(content)
        return family if older is None else family | self.state.family(older.content)


def affected(exposure: Exposure, datasets: Iterable[DatasetId]) -> dict[Group, list[DatasetId]]:
    """Return all groups whose spending a charge to these data sets would increase.

    Each group is a key of the result; its value lists those of the given data sets for which the
    group counts.
    """
    found: dict[Group, list[DatasetId]] = {}
    for dataset in dict.fromkeys(datasets):
        for group in exposure.groups(dataset):
            found.setdefault(group, []).append(dataset)
    return found
