"""All charges to the records of a data set, including those through overlapping data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.overlap import Group, Overlaps
from tacit.privacy.ledger.state import Budget, Paid, State


class Charged(NamedTuple):
    """Events charged to a group of data sets, and the runs that they belong to."""

    paid: Counter[Paid]
    runs: frozenset[str]

    def plus(self, other: Charged) -> Charged:
        """Both together."""
        return Charged(self.paid + other.paid, self.runs | other.runs)

    @property
    def adaptive(self) -> bool:
        """True if a later run may have been chosen after seeing an earlier one."""
        return len(self.runs) > 1


class Exposure:
    """Groups of data sets that share records, with their charges and budgets.

    `older` maps the content of a data set of this process to its id under version 0.1.
    """

    def __init__(
        self, state: State, overlaps: Overlaps, older: Mapping[str, DatasetId] | None = None
    ) -> None:
        self.state, self.overlaps, self._older = state, overlaps, older or {}

    def groups(self, dataset: DatasetId) -> list[Group]:
        """Data sets that some record of this one was charged with, one group per kind of record."""
        return self._widened(dataset, self.overlaps.groups)

    def _widened(self, dataset: DatasetId, groups_of: Callable[[str], list[Group]]) -> list[Group]:
        """Groups of the members of a data set's family, with the families of their members."""
        family = self._family(dataset.content)
        groups = {group for own in family for group in groups_of(own)}
        wide = {frozenset().union(*(self._family(one) for one in group)) for group in groups}
        return sorted(wide, key=sorted)

    def charged(self, group: Group) -> Charged:
        """All events ever charged to the members of a group."""
        paid: Counter[Paid] = Counter()
        for content in group:
            paid.update(self.state.paid_by_content(content))
        return Charged(paid, frozenset().union(*(self.state.runs_of(one) for one in group)))

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
        """A data set's own budget; else the smallest of those that cover each of its records."""
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
