"""Find the data sets of a ledger that have records in common.

If a record is in several data sets, the charges to all of them add up for this record. A *group* is
a set of data sets that contain the same record. The ε spent on a data set is the largest ε over all
groups that contain it, and a charge must be within the budgets of all data sets of these groups.

A *division* is a set of data sets, its *parts*, that are declared to have no record in common. An
example is a table that is divided among parties. A group contains at most one part of each
division. If there are too many combinations of parts, one group contains all parts instead.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations, product

import numpy as np

from tacit.privacy.ledger.records import HashedRecords

Group = frozenset[str]
"""Fingerprints (`DatasetId.content`) of data sets that are charged together."""
SAME_VALUES = 8
"""Two columns with at least this many equal sampled values count as the same records. Of 64 sampled
values, tables with a quarter of the records in common share 16 on average. Columns of unrelated
records share a few at most, because a column is sampled only if its values do not repeat.
"""

MOST_CHOICES = 256


class Overlaps:
    """The groups of data sets that contain the same records.

    Groups are found by comparing hashes of records and of sampled column values.
    """

    def __init__(
        self, hashed: Mapping[str, HashedRecords], divisions: Mapping[str, str] | None = None
    ) -> None:
        """Compare all data sets with each other.

        Parameters
        ----------
        hashed
            Hashes of each data set's records and columns.
        divisions
            Name of the division that each data set is a part of, or "". Data sets of one division
            are declared to have no record in common, even if they have equal rows or columns.
        """
        self._hashed, self._divisions = hashed, divisions or {}
        self._sizes = {name: len(own.elements) for name, own in hashed.items()}
        self._shared = shared_records({name: own.elements for name, own in hashed.items()})
        self._alike: Counter[tuple[str, str]] = Counter()
        rows = shared_records({name: _alone(own) for name, own in hashed.items()})
        for group, count in rows.items():
            for pair in combinations(sorted(group), 2):
                self._alike[pair] += 0 if self._divided(*pair) else count
        every = self._shared.keys() | self._undivided(rows)
        self._by_rows: dict[str, list[Group]] = {}
        self._common: Counter[tuple[str, str]] = Counter()
        for group, count in self._shared.items():
            for pair in combinations(sorted(group), 2):
                self._common[pair] += count
        columns = {name: own.columns for name, own in hashed.items()}
        pairs = [pair for pair in _same_columns(columns) if not self._divided(*pair)]
        partial = [pair for pair in pairs if self.in_common(*pair) < min(map(self._size, pair))]
        rows_only = [pair for pair in self._alike if self._alike_by_rows(*pair)]
        self._groups = self._grouped(every, [*partial, *rows_only])
        fewer = [pair for pair in pairs if not self.in_common(*pair)]
        self._covering = self._grouped(self._shared, fewer)

    def groups(self, content: str) -> list[Group]:
        """Return the groups that contain a data set.

        If the record hashes of the data set are not known, the only group is the data set itself.
        """
        return sorted(self._groups.get(content, {frozenset({content})}), key=sorted)

    def covering(self, content: str) -> list[Group]:
        """Return the groups from which a data set may inherit a budget.

        Two data sets with some equal record hashes and a column of equal values may have more
        records in common than the hashes show. `groups` assumes that they do, so that charges are
        never understated. This method assumes that they do not, so that new records do not inherit
        a budget.
        """
        return sorted(self._covering.get(content, {frozenset({content})}), key=sorted)

    def covering_rows(self, content: str) -> list[Group]:
        """Return the groups from which a data set may inherit a budget, found by comparing
        `HashedRecords.rows`.

        This method finds the records of a party in a table of several parties. `covering` may not
        find them, because the table may have an additional column with one value per party, and
        other parties may have equal rows.
        """
        if content not in self._by_rows:
            own = self._hashed.get(content)
            rows = {} if own is None else {name: _alone(one) for name, one in self._hashed.items()}
            shared = shared_records(rows | {content: own.rows}) if own is not None else {}
            found = {g for group in shared if content in group for g in self._choices(group)}
            alone = [frozenset({content})]
            self._by_rows[content] = sorted((g for g in found if content in g), key=sorted) or alone
        return self._by_rows[content]

    def _grouped(
        self, groups: Iterable[Group], pairs: Iterable[tuple[str, str]]
    ) -> dict[str, set[Group]]:
        alike: dict[str, set[str]] = {}
        for one, other in pairs:
            alike.setdefault(one, set()).add(other)
            alike.setdefault(other, set()).add(one)
        found: dict[str, set[Group]] = {}
        for group in groups:
            for whole in self._with_alike(group, alike):
                for name in whole:
                    found.setdefault(name, set()).add(whole)
        return found

    def _size(self, content: str) -> int:
        return self._sizes[content]

    def in_common(self, one: str, other: str) -> int:
        """Return the number of records that two data sets have in common, by their hashes."""
        return self._common[(min(one, other), max(one, other))]

    def others(self, content: str) -> dict[str, int | None]:
        """Return the data sets that share records with this one, each with the number of common
        records.

        The number is None if only a column is equal; then all records may be the same.
        """
        found: dict[str, int | None] = {}
        for group in self.groups(content):
            for other in group - {content}:
                by_rows = self._alike[(min(content, other), max(content, other))]
                least = min(self._sizes.get(content, 0), self._sizes.get(other, 0))
                found[other] = self.in_common(content, other) or min(by_rows, least) or None
        return dict(sorted(found.items()))

    def _alike_by_rows(self, one: str, other: str) -> bool:
        """True if some records of two data sets are equal only after a constant column is
        left out.
        """
        # There are then more equal hashes than the common records explain. Each data set stores
        # several hashes per record; a common record explains at most the smaller number.
        sizes = [
            len(_alone(self._hashed[name])) / max(1, len(self._hashed[name].rows))
            for name in (one, other)
        ]
        return self._alike[(one, other)] > self.in_common(one, other) * min(sizes)

    def _divided(self, one: str, other: str) -> bool:
        division = self._divisions.get(one, "")
        return division != "" and division == self._divisions.get(other, "")

    def _with_alike(self, group: Group, pairs: Mapping[str, set[str]]) -> list[Group]:
        # Adds to the group the data sets that may hold the same records as its members, also
        # indirectly, except parts of a division of which the group contains another part. If
        # several parts of a division could be added, there is one group for each of them.
        alike, added = set[str](), set(group)
        while added:
            added = set[str]().union(*(pairs.get(one, set()) for one in added)) - group - alike
            alike |= added
        free = [one for one in alike if not any(self._divided(one, member) for member in group)]
        return [group | choice for choice in self._choices(free)]

    def _undivided(self, groups: Iterable[Group]) -> set[Group]:
        found: set[Group] = set()
        beside: dict[str, set[str]] = {}
        for group in groups:
            parts = self._parts(group)
            if len(parts) == 2:  # collected as pairs, because a division may have many parts
                for one in parts[0]:
                    beside.setdefault(one, set()).update(parts[1])
            elif len(parts) > 2:
                found.update(self._choices(group))
        return found | {frozenset({one, two}) for one in beside for two in beside[one]}

    def _parts(self, members: Iterable[str]) -> list[list[str]]:
        # Data sets by division; a data set without a division is alone.
        parts: dict[tuple[str, str], list[str]] = {}
        for one in sorted(members):
            division = self._divisions.get(one, "")
            parts.setdefault((division, "" if division else one), []).append(one)
        return list(parts.values())

    def _choices(self, members: Iterable[str]) -> list[Group]:
        """Return every group that contains one of these data sets from each division.

        If there would be too many groups, return one group with all of these data sets. Charges to
        this large group can only be overstated.
        """
        parts = self._parts(members)
        sizes = sorted(len(part) for part in parts)
        if math.prod(sizes[:-1]) > MOST_CHOICES:  # choices per part of the largest division
            return [frozenset().union(*parts)]
        return [frozenset(choice) for choice in product(*parts)]

    def size(self, content: str) -> int | None:
        """Return the number of hashes of the records and persons of a data set.

        The result is None if these hashes are not known.
        """
        return self._sizes.get(content)


def _alone(hashed: HashedRecords) -> np.ndarray:
    return np.concatenate([hashed.rows, hashed.fewer])


def division_name(contents: Iterable[str]) -> str:
    """Return the name of the division whose parts have the fingerprints `contents`."""
    return hashlib.blake2b("".join(sorted(contents)).encode(), digest_size=16).hexdigest()


def shared_records(elements: Mapping[str, np.ndarray]) -> Counter[Group]:
    """Return, for each set of data sets, the number of records that are in exactly these data sets.

    `elements` has the record hashes of each data set.

    >>> one, two = np.array([1, 2, 3], np.uint64), np.array([3, 4], np.uint64)
    >>> sorted((sorted(group), n) for group, n in shared_records({"a": one, "b": two}).items())
    [(['a'], 2), (['a', 'b'], 1), (['b'], 1)]
    """
    names = list(elements)
    found: Counter[Group] = Counter()
    if not names:
        return found
    values = np.concatenate([np.unique(elements[name]) for name in names])
    owner = np.repeat(np.arange(len(names)), [len(np.unique(elements[name])) for name in names])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]]) if len(values) else owner
    counts = np.diff(np.r_[starts, len(values)])
    for count in np.unique(counts):
        first = starts[counts == count]
        members = owner[first[:, None] + np.arange(count)]
        for row, times in zip(*np.unique(members, axis=0, return_counts=True), strict=True):
            found[frozenset(names[place] for place in row)] += int(times)
    return found


def _same_columns(columns: Mapping[str, np.ndarray]) -> set[tuple[str, str]]:
    """Return the pairs of data sets that have a column with the same sampled values."""
    holders: dict[int, list[tuple[str, int]]] = {}
    for name, rows in columns.items():
        for place, row in enumerate(rows):
            for value in row.tolist():
                holders.setdefault(value, []).append((name, place))
    shared: Counter[tuple[tuple[str, int], tuple[str, int]]] = Counter()
    for found in holders.values():
        if len(found) > 1:
            shared.update(combinations(sorted(found), 2))
    return {
        (a[0], b[0]) for (a, b), count in shared.items() if count >= SAME_VALUES and a[0] != b[0]
    }
