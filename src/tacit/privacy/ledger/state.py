"""Ledger state: budgets, links between data sets, and charges.

The state is built by reading the verified entries one by one. This module also decides how a
charged event counts under a budget with another adjacency or unit. C is the clip of the event.

**Adjacency.** The sensitivity of an event is computed for the adjacency of the budget. A charge
under add-or-remove-one counts under a replace-one budget, where one unit moves the sum by at most
2C. A charge under replace-one is refused under an add-or-remove-one budget, because its run may
have treated the number of records as public.

**Unit.** Units are ordered: record < person < party. A charge for a larger unit counts under a
budget for a smaller unit, with a different sensitivity. For example, adding a person adds a
contribution of norm C, but adding a record changes the contribution of its person, by up to 2C.
Replacing a record may change the contributions of two persons. `counted` returns an event with the
sensitivity for the budget. If batches are sampled, a charge for a larger unit is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

from tacit.errors import ConfigError, DataError, PrivacyBudgetError
from tacit.privacy.events import Adjacency, Event, GaussianEvent
from tacit.privacy.ledger.chain import ADVICE, Entry
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.support.type_info import prepare

Unit = Literal["record", "person", "party"]
UNITS: tuple[Unit, ...] = get_args(Unit)
Epsilon = Callable[[Sequence[GaussianEvent], float, Adjacency], float]
"""Function from events, δ and adjacency to an upper bound on ε, which may be infinite."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The total ε that the operator allows for one data set, at the given δ."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    unit: Unit

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ConfigError(f"budget epsilon = {self.epsilon}; it must be a finite number > 0")
        if not 0 <= self.delta < 1:
            raise ConfigError(f"budget delta = {self.delta}; it must be 0 or more and below 1")
        check_terms(self.unit, self.adjacency)

    def within(self, other: Budget) -> bool:
        """True if `other` allows everything that this budget allows."""
        same = (self.adjacency, self.unit) == (other.adjacency, other.unit)
        return same and self.epsilon <= other.epsilon and self.delta <= other.delta


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """Charged events of one request.

    `new` is True only in the result of the call that wrote the charge. The caller may then draw the
    noise, once. If `new` is False, the noise may have been drawn already.
    """

    seq: int
    time: str
    dataset: DatasetId
    run: str
    request: str
    attempt: int
    unit: Unit
    adjacency: Adjacency
    events: tuple[Event, ...]
    purpose: str = ""
    new: bool = False


class Registered(msgspec.Struct, frozen=True):
    """A data set's number of stored record hashes and a keyed digest of them, as stated in an
    entry.
    """

    seq: int
    digest: str
    count: int
    division: str = ""
    """Name of the division (see `tacit.privacy.ledger.overlap`) that the data set is a part of; ""
    if there is none.
    """


class Answer(msgspec.Struct, frozen=True):
    """Keyed hash and size of a stored reply, as an entry states them."""

    seq: int
    digest: str
    size: int


Paid = tuple[GaussianEvent, Unit, Adjacency]


def check_terms(unit: str, adjacency: str) -> None:
    """Raise an error for an unknown unit or adjacency."""
    if unit not in UNITS:
        raise ConfigError(f'unit = "{unit}"; choose from {", ".join(UNITS)}')
    if adjacency not in get_args(Adjacency):
        raise ConfigError(
            f'adjacency = "{adjacency}"; choose from {", ".join(get_args(Adjacency))}'
        )


def counting_terms(unit: Unit, adjacency: Adjacency) -> list[tuple[Unit, Adjacency]]:
    """Return the units and adjacencies of the budgets under which a charge with these terms counts.

    The first element is the charge's unit and adjacency. If batches are sampled, the charge counts
    only under budgets for the same unit (see `counted`).

    >>> counting_terms("record", "add-or-remove-one")
    [('record', 'add-or-remove-one'), ('record', 'replace-one')]
    """
    weaker: tuple[Adjacency, ...] = ("replace-one",)
    adjacencies = weaker if adjacency in weaker else (adjacency, *weaker)
    finer = UNITS[: UNITS.index(unit) + 1]
    return [(one, other) for one in reversed(finer) for other in adjacencies]


def counted(
    event: GaussianEvent, unit: Unit, adjacency: Adjacency, budget: Budget
) -> GaussianEvent:
    """Convert an event to the budget's unit and adjacency.

    The sensitivity of the result is at least the distance by which one unit of the budget can move
    the released sum.

    >>> budget = Budget(epsilon=1, delta=1e-6, adjacency="add-or-remove-one", unit="record")
    >>> counted(GaussianEvent(clip=1, noise_sd=5), "person", "add-or-remove-one", budget).clip
    2.0
    """
    if adjacency == "replace-one" and budget.adjacency == "add-or-remove-one":
        raise PrivacyBudgetError(
            "a charge under replace-one cannot count under an add-or-remove-one budget, because the"
            " run may treat the number of records as public; set privacy.adjacency ="
            " 'add-or-remove-one', or ask the operator for a replace-one budget"
        )
    if unit == budget.unit:
        return event
    if UNITS.index(unit) < UNITS.index(budget.unit):
        raise PrivacyBudgetError(
            f"a charge with unit = {unit} cannot count under a budget with unit = {budget.unit};"
            f" run with unit = {budget.unit}, or set a budget with unit = {unit}"
        )
    if event.sampling is not None:
        raise PrivacyBudgetError(
            f"a charge with unit = {unit} and sampled batches cannot count under a budget with"
            f" unit = {budget.unit}; run with unit = {budget.unit}, or without sampling of batches"
        )
    moves_two = budget.adjacency == "replace-one" and unit != "party"
    distance = event.sensitivity("replace-one") * (2.0 if moves_two else 1.0)
    clip = distance if budget.adjacency == "add-or-remove-one" else distance / 2.0
    return type(event)(clip=clip, noise_sd=event.noise_sd, count=event.count, lattice=event.lattice)


def tally(charges: Iterable[tuple[Iterable[GaussianEvent], Unit, Adjacency]]) -> Counter[Paid]:
    """Count how often each combination of event, unit and adjacency occurs in the charges."""
    total: Counter[Paid] = Counter()
    for events, unit, adjacency in charges:
        for event in events:
            one = msgspec.structs.replace(event, count=1)
            total[one, unit, adjacency] += event.count
    return total


def under(paid: Counter[Paid], budget: Budget) -> tuple[GaussianEvent, ...]:
    """Convert charged events to the budget's unit and adjacency. Merge equal events, and sort the
    result.
    """
    merged: Counter[GaussianEvent] = Counter()
    for (event, unit, adjacency), count in paid.items():
        merged[counted(event, unit, adjacency, budget)] += count
    events = [msgspec.structs.replace(event, count=n) for event, n in merged.items()]
    return tuple(sorted(events, key=msgspec.json.encode))


@dataclass
class State:
    """State of a ledger after `count` entries; `last` is the hash of the last entry."""

    last: bytes
    count: int = 0
    datasets: dict[DatasetId, None] = field(default_factory=dict)
    charges: dict[tuple[str, str], list[Charge]] = field(default_factory=dict)
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    records: dict[str, Registered] = field(default_factory=dict)
    """Dict from the fingerprint of a data set to a description of its stored record hashes."""
    _paid: dict[str, dict[str, Counter[Paid]]] = field(default_factory=dict)
    """Number of times that each event was charged, by fingerprint of the data set and by run."""
    _plans: dict[str, dict[str, Counter[Paid]]] = field(default_factory=dict)
    """Like `_paid`, but for planned events; runs of earlier versions have no plans."""
    _closed: dict[tuple[str, str], str] = field(default_factory=dict)
    """Dict from (run, fingerprint) to the reason why the run was closed."""
    _budgets: dict[str, tuple[int, Budget]] = field(default_factory=dict)
    _family: dict[str, frozenset[str]] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Update the state by the next entry of the ledger."""
        try:
            self._apply(entry, DatasetId.parse(entry.dataset))
        except (msgspec.MsgspecError, ConfigError) as error:
            raise DataError(f"ledger entry {entry.seq} is invalid ({error}); {ADVICE}") from error
        self.count, self.last = entry.seq, entry.hash

    def _apply(self, entry: Entry, dataset: DatasetId) -> None:
        self.datasets[dataset] = None
        place = (entry.run, entry.request)
        if entry.kind == "budget":
            budget = msgspec.json.decode(entry.body, type=prepare(Budget))
            self._budgets[dataset.content] = (entry.seq, budget)
        elif entry.kind == "link":
            older = DatasetId.parse(msgspec.json.decode(entry.body, type=str))
            family = self.family(dataset.content) | self.family(older.content)
            self.datasets[older] = None
            self._family.update(dict.fromkeys(family, family))
        elif entry.kind == "charge":
            charge = as_charge(entry, dataset)
            self.charges.setdefault(place, []).append(charge)
            _add(self._paid, charge)
        elif entry.kind == "plan":
            _add(self._plans, as_charge(entry, dataset))
        elif entry.kind == "close":
            self._closed[entry.run, dataset.content] = entry.purpose
        elif entry.kind == "records":
            digest, count = msgspec.json.decode(entry.body, type=tuple[str, int])
            self.records[dataset.content] = Registered(entry.seq, digest, count, entry.purpose)
        else:
            digest, size = msgspec.json.decode(entry.body, type=tuple[str, int])
            self.answers[place] = Answer(entry.seq, digest, size)

    def family(self, content: str) -> frozenset[str]:
        """Return the fingerprint `content` and those of all data sets linked with it.

        These data sets share one budget, even if their schemas differ.
        """
        return self._family.get(content, frozenset({content}))

    def paid_by_run(self, content: str) -> dict[str, Counter[Paid]]:
        """Return the events charged to the data set with the fingerprint `content`, by run.

        Charges to linked data sets are not included.
        """
        return self._paid.get(content, {})

    def plans_by_run(self, content: str) -> dict[str, Counter[Paid]]:
        """Return the events planned for the data set with the fingerprint `content`, by run."""
        return self._plans.get(content, {})

    def begun(self, run: str, content: str) -> bool:
        """True if the run has a plan or a charge for the data set with the fingerprint
        `content`.
        """
        return run in self._plans.get(content, {}) or run in self._paid.get(content, {})

    def closed(self, run: str, content: str) -> str | None:
        """Return the reason why the run was closed; None if the run is open.

        `content` is the fingerprint of the data set.
        """
        return self._closed.get((run, content))

    def reserved(self, run: str, content: str) -> Counter[Paid]:
        """Return the events that a run planned for a data set and has not charged yet.

        `content` is the fingerprint of the data set. The result is empty if the run is closed.
        """
        if (run, content) in self._closed:
            return Counter()
        planned = self._plans.get(content, {}).get(run, Counter())
        return planned - self._paid.get(content, {}).get(run, Counter())

    def runs_of(self, content: str) -> frozenset[str]:
        """Return the runs that were charged to the data set with the fingerprint `content`."""
        return frozenset(self._paid.get(content, ()))

    def budget_of(self, family: frozenset[str]) -> Budget | None:
        """Return the budget that was set last for any of these fingerprints; None if no budget was
        set.
        """
        found = [self._budgets[c] for c in family if c in self._budgets]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def next_attempt(self, place: tuple[str, str]) -> int:
        """Return the number of the next charge for the request (run, request), counted from 1."""
        return len(self.charges.get(place, ())) + 1

    def lookalikes(self, dataset: DatasetId) -> Iterator[DatasetId]:
        """Yield charged data sets that may be earlier versions of this one, the most recent first.

        They have the same schema and are not linked with this data set. Data sets that were charged
        by the same run are left out, because they belong to different parties.
        """
        family, runs = self.family(dataset.content), self.runs_of(dataset.content)
        for other in reversed(self.datasets):
            alike = other.schema == dataset.schema and other.content not in family
            if alike and self._paid.get(other.content) and not runs & self.runs_of(other.content):
                yield other


def _add(runs: dict[str, dict[str, Counter[Paid]]], charge: Charge) -> None:
    """Add the events of a charge or plan to `runs`, which has events by fingerprint and run."""
    own = runs.setdefault(charge.dataset.content, {}).setdefault(charge.run, Counter())
    own.update(tally([(charge.events, charge.unit, charge.adjacency)]))


def as_charge(entry: Entry, dataset: DatasetId) -> Charge:
    """Make a `Charge` from the entry of a charge or a plan. Unknown events raise an error."""
    return msgspec.convert(
        {
            **{n: getattr(entry, n) for n in ("seq", "time", "run", "request", "attempt")},
            **{n: getattr(entry, n) for n in ("unit", "adjacency", "purpose")},
            "dataset": dataset,
            "events": msgspec.json.decode(entry.body, type=prepare(tuple[Event, ...])),
        },
        prepare(Charge),
    )
