"""What charges cost together, in ε at the ceiling's δ, and the words of a refusal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from tacit.errors import ConfigError, PrivacyError
from tacit.privacy.events import GaussianEvent, Relation
from tacit.privacy.ledger_budget import Ceiling, Epsilon, Paid, Unit, check_terms, tally, under

_REMEMBERED = 256


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What is spent, what is asked for alone, and what both are together: three values of ε."""

    spent: float
    asked: float
    total: float
    ceiling: Ceiling

    @property
    def fits(self) -> bool:
        """Whether it may be charged; a NaN does not fit."""
        return self.total <= self.ceiling.epsilon


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger knows of a data set and those it continues.

    `epsilon` is at the ceiling's δ, relation and unit; None while nothing gives it those.
    """

    dataset: str
    epsilon: float | None
    ceiling: Ceiling | None
    remaining: float | None
    """ceiling − ε. What fits is for `check` to say: ε does not add up by addition."""
    charges: int
    releases: int
    family: int
    """How many data sets share the budget."""


class Price:
    """The accountant, asked once for each multiset of events."""

    def __init__(self, epsilon: Epsilon | None) -> None:
        self._epsilon = epsilon
        self._known: dict[tuple, float] = {}

    def ask(self, events: Sequence[GaussianEvent], unit: Unit, relation: Relation) -> Counter[Paid]:
        """Events as they would be charged; what is not an event is refused."""
        check_terms(unit, relation)
        for event in events:
            if not isinstance(event, GaussianEvent):
                raise ConfigError(
                    f"unknown event of type {type(event).__name__}; the ledger charges"
                    " GaussianEvent only"
                )
        if not events:
            raise ConfigError("a charge without events; every private release has at least one")
        return tally([(events, unit, relation)])

    def of(self, paid: Counter[Paid], ceiling: Ceiling) -> float:
        """An upper bound of ε of all that was paid for, in the ceiling's terms."""
        events = under(paid, ceiling)
        if not events:
            return 0.0
        key = (events, ceiling.delta, ceiling.relation)
        if key not in self._known:
            value = float(self._accountant()(events, ceiling.delta, ceiling.relation))
            if not value >= 0:
                raise PrivacyError(
                    f"the accountant answered ε = {value}; nothing is charged: report this"
                )
            while len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = value
        return self._known[key]

    def budget(self, spent: Counter[Paid], asked: Counter[Paid], ceiling: Ceiling) -> Budget:
        """The three numbers and the ceiling."""
        return Budget(
            spent=self.of(spent, ceiling),
            asked=self.of(asked, ceiling),
            total=self.of(spent + asked, ceiling),
            ceiling=ceiling,
        )

    def require_room(
        self, dataset: str, spent: Counter[Paid], asked: Counter[Paid], ceiling: Ceiling
    ) -> None:
        """Refuse what would pass the ceiling."""
        if self.of(spent + asked, ceiling) <= ceiling.epsilon:
            return
        found = self.budget(spent, asked, ceiling)
        why = "" if math.isfinite(found.asked) else " (the accountant has no finite bound for it)"
        raise PrivacyError(
            f"privacy ceiling of data set {dataset}: spent ε = {found.spent:.6g}, asked"
            f" ε = {found.asked:.6g}{why}, together {found.total:.6g} > {shown(ceiling)}; ask for"
            " fewer releases or more noise, or have the operator raise it: tacit ledger ceiling"
            " --raise"
        )

    def _accountant(self) -> Epsilon:
        if self._epsilon is None:
            # Imported late: opening or showing a ledger should not wait for an accountant.
            from tacit.privacy.accounting import epsilon

            self._epsilon = epsilon
        return self._epsilon


def shown(ceiling: Ceiling) -> str:
    """A ceiling in one phrase."""
    return (
        f"ε = {ceiling.epsilon:.6g} at δ = {ceiling.delta:g} ({ceiling.relation} a {ceiling.unit})"
    )
