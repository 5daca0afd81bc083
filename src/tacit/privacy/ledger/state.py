"""Ledger state: budgets, families of linked data sets, and charges.

The state is built only by reading the verified chain, entry by entry. This module decides how
events count under a budget; the accountant computes their total ε.

**Adjacency.** An event stores a clip and a noise, so its sensitivity under the budget's adjacency
is derived. A charge under add-or-remove-one counts under a replace-one budget (its sum moves by at
most 2C). The reverse is refused: a run under replace-one may treat the number of records as public.

**Unit.** A charge for a coarser unit (record < person < party) counts under a finer budget, but
with a different sensitivity: adding a record *changes* its person's contribution, by up to 2C,
whereas adding a person adds C. A replaced record may also move from one person to another, which
changes two contributions. So `counted` converts the event to the sensitivity for the budget's
neighbours. With sampled batches this argument fails, and the charge is refused.
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
"""Upper bound on ε of events at a δ under an adjacency; infinite if there is none."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The total ε at δ that the operator allows for one data set."""

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
        """True if the budget `other` allows everything that this budget allows."""
        same = (self.adjacency, self.unit) == (other.adjacency, other.unit)
        return same and self.epsilon <= other.epsilon and self.delta <= other.delta


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """Charged events of one request.

    `new` is true only for the call that wrote the entry, which may draw noise once. For any other
    call the noise may already have been drawn.
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
    """Digest and number of the stored record hashes of a data set, as recorded in the chain."""

    seq: int
    digest: str
    count: int
    division: str = ""
    """Name of the division that the data set is a part of: see `overlap.Overlaps`."""


class Answer(msgspec.Struct, frozen=True):
    """Digest and size of a stored reply, as recorded in the chain."""

    seq: int
    digest: str
    size: int


Paid = tuple[GaussianEvent, Unit, Adjacency]


def check_terms(unit: str, adjacency: str) -> None:
    """Refuse an unknown unit or adjacency."""
    if unit not in UNITS:
        raise ConfigError(f'unit = "{unit}"; choose from {", ".join(UNITS)}')
    if adjacency not in get_args(Adjacency):
        raise ConfigError(
            f'adjacency = "{adjacency}"; choose from {", ".join(get_args(Adjacency))}'
        )


def counted(
    event: GaussianEvent, unit: Unit, adjacency: Adjacency, budget: Budget
) -> GaussianEvent:
    """Convert an event to the budget's unit and adjacency, such that its sensitivity there bounds
    that of the given event.

    >>> person = Budget(epsilon=1, delta=1e-6, adjacency="add-or-remove-one", unit="record")
    >>> counted(GaussianEvent(clip=1, noise_sd=5), "person", "add-or-remove-one", person).clip
    2.0
    """
    if adjacency == "replace-one" and budget.adjacency == "add-or-remove-one":
        raise PrivacyBudgetError(
            "a charge under replace-one cannot count under an add-or-remove-one budget: the run may"
            " treat the number of records as public; run under add-or-remove-one, or have the"
            " operator set a replace-one budget"
        )
    if unit == budget.unit:
        return event
    if UNITS.index(unit) < UNITS.index(budget.unit):
        raise PrivacyBudgetError(
            f"a guarantee per {unit} says nothing about a {budget.unit}, which the budget"
            f" protects; run with unit = {budget.unit}"
        )
    if event.sampling is not None:
        raise PrivacyBudgetError(
            f"a charge with sampled batches of unit {unit} cannot count under a budget for a"
            f" {budget.unit}; run with unit = {budget.unit} or without sampling"
        )
    moves_two = budget.adjacency == "replace-one" and unit != "party"
    distance = event.sensitivity("replace-one") * (2.0 if moves_two else 1.0)
    clip = distance if budget.adjacency == "add-or-remove-one" else distance / 2.0
    return type(event)(clip=clip, noise_sd=event.noise_sd, count=event.count, lattice=event.lattice)


def tally(charges: Iterable[tuple[Iterable[GaussianEvent], Unit, Adjacency]]) -> Counter[Paid]:
    """Merge equal events and count them."""
    total: Counter[Paid] = Counter()
    for events, unit, adjacency in charges:
        for event in events:
            one = msgspec.structs.replace(event, count=1)
            total[one, unit, adjacency] += event.count
    return total


def under(paid: Counter[Paid], budget: Budget) -> tuple[GaussianEvent, ...]:
    """Convert charged events to the budget's unit and adjacency; merge them and put them in a fixed
    order.
    """
    merged: Counter[GaussianEvent] = Counter()
    for (event, unit, adjacency), count in paid.items():
        merged[counted(event, unit, adjacency, budget)] += count
    events = [msgspec.structs.replace(event, count=n) for event, n in merged.items()]
    return tuple(sorted(events, key=msgspec.json.encode))


@dataclass
class State:
    """State of the ledger after entry `count`, whose hash is `last`."""

    last: bytes
    count: int = 0
    datasets: dict[DatasetId, None] = field(default_factory=dict)
    charges: dict[tuple[str, str], list[Charge]] = field(default_factory=dict)
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    records: dict[str, Registered] = field(default_factory=dict)
    """Data sets whose record hashes are stored, by content (fingerprint)."""
    _paid: dict[str, dict[str, Counter[Paid]]] = field(default_factory=dict)
    """Charged events by content and run."""
    _plans: dict[str, dict[str, Counter[Paid]]] = field(default_factory=dict)
    """Planned events by content and run; runs of earlier versions have none."""
    _closed: dict[tuple[str, str], str] = field(default_factory=dict)
    """The reason why a run was closed, by run and content."""
    _budgets: dict[str, tuple[int, Budget]] = field(default_factory=dict)
    _family: dict[str, frozenset[str]] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Apply the next entry of the chain."""
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
        """Return the contents that share one budget with this one: those of linked data sets, under
        any schema.
        """
        return self._family.get(content, frozenset({content}))

    def paid_by_run(self, content: str) -> dict[str, Counter[Paid]]:
        """Return all events that were ever charged to exactly this content, by run."""
        return self._paid.get(content, {})

    def plans_by_run(self, content: str) -> dict[str, Counter[Paid]]:
        """Return the events that runs planned for exactly this content, by run."""
        return self._plans.get(content, {})

    def begun(self, run: str, content: str) -> bool:
        """True if the run has a plan or a charge for exactly this content."""
        return run in self._plans.get(content, {}) or run in self._paid.get(content, {})

    def closed(self, run: str, content: str) -> str | None:
        """Return the reason why the run may no longer charge this content; None if it still may."""
        return self._closed.get((run, content))

    def reserved(self, run: str, content: str) -> Counter[Paid]:
        """Return the planned events that a run has not yet charged to this content and still may
        charge.
        """
        if (run, content) in self._closed:
            return Counter()
        planned = self._plans.get(content, {}).get(run, Counter())
        return planned - self._paid.get(content, {}).get(run, Counter())

    def runs_of(self, content: str) -> frozenset[str]:
        """Return the runs that were charged to exactly this content."""
        return frozenset(self._paid.get(content, ()))

    def budget_of(self, family: frozenset[str]) -> Budget | None:
        """Return the budget that was set last for any content in the family."""
        found = [self._budgets[c] for c in family if c in self._budgets]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def next_attempt(self, place: tuple[str, str]) -> int:
        """Return the attempt number of the next charge for a request."""
        return len(self.charges.get(place, ())) + 1

    def lookalikes(self, dataset: DatasetId) -> Iterator[DatasetId]:
        """Yield charged data sets with the same schema that are not linked: possibly older states
        of this one.

        Data sets of one run are the records of its parties, not versions of each other. Yields the
        most recent first, lazily, because callers often need only one.
        """
        family, runs = self.family(dataset.content), self.runs_of(dataset.content)
        for other in reversed(self.datasets):
            alike = other.schema == dataset.schema and other.content not in family
            if alike and self._paid.get(other.content) and not runs & self.runs_of(other.content):
                yield other


def _add(runs: dict[str, dict[str, Counter[Paid]]], charge: Charge) -> None:
    """Add a charge (or a plan in the same form) to `runs`, which has events by content and run."""
    own = runs.setdefault(charge.dataset.content, {}).setdefault(charge.run, Counter())
    own.update(tally([(charge.events, charge.unit, charge.adjacency)]))


def as_charge(entry: Entry, dataset: DatasetId) -> Charge:
    """Decode a charge or plan entry; unknown kinds of event are refused."""
    return msgspec.convert(
        {
            **{n: getattr(entry, n) for n in ("seq", "time", "run", "request", "attempt")},
            **{n: getattr(entry, n) for n in ("unit", "adjacency", "purpose")},
            "dataset": dataset,
            "events": msgspec.json.decode(entry.body, type=prepare(tuple[Event, ...])),
        },
        prepare(Charge),
    )
