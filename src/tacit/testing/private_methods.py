"""A private local method, held against what its ledger is charged.

The party's own code answers for many neighbouring data sets at once, with the q that a server
might send. Every mechanism is replaced, while the check lasts, by itself and a note of the sum that
it was given. How far that sum moves between neighbours must be within the charged event's
sensitivity, and what was added to it must be the noise that the event declares.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tacit.party.compute as party_side
from tacit.expfam import Natural
from tacit.methods import PrivateMethod
from tacit.methods.private import PERSON
from tacit.models import Model, Records
from tacit.party.compute import Update
from tacit.plan.agreement import Agreement
from tacit.plan.plan import Plan, first_factors, make_plan
from tacit.privacy.bounded import Array, Bounded
from tacit.privacy.events import GaussianEvent, Relation
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import WHOLE, Cost, Drawn, Mechanism, Release, check_released
from tacit.privacy.settings import Privacy
from tacit.server.messages import Request
from tacit.server.schedule import Synchronous
from tacit.server.state import initial_state
from tacit.testing.laws import gaussian_faults
from tacit.testing.local_methods import made_up_records

SIZES = (0.0, 1e-30, 1e-2, 1.0, 50.0, 1e9, 1e18, 1e30)
FILLS = (0.1, 1.0, 1e3, 1e9, 1e18)
PRECISIONS = (1.0, 1e-6, 1e6)
DRAWS = 2_000
PARTY, OTHER = "party", "other"


class Noted(NamedTuple):
    """A release's cost with the exact sum and what came out; wherever a cost goes, this goes."""

    cost: Cost
    exact: Array
    noised: Array


def check_private_method(
    method: PrivateMethod,
    model: Model,
    *,
    records: Records | None = None,
    unit: Unit = "record",
    relation: Relation = "substitute",
    aggregation: Aggregation = "plain",
    rounds: int = 3,
    reach: float = 0.0,
    seed: int = 0,
) -> float:
    """Assert that no unit moves a release further than is charged, and that its noise is added.

    `records` are a party's, made up for a model that takes x and y. Neighbours put records of all
    sizes, signs and labels in the place of one unit, add it or leave it out, as `relation` says;
    every visit of a run of that many `rounds` is asked with the first q and with q far from any
    data. Returns the largest movement found, as a share of the charged sensitivity, which must be
    at least `reach`: a check that cannot come near the bound proves little.

    The noise is compared with N(0, noise_sd² I), N(0, noise_sd²/M I) where M parties share it;
    its tests must reject 0.8 and 1.25 times that. With aggregation "server" a party adds none.
    """
    if not isinstance(method, PrivateMethod):
        kind = type(method).__name__
        raise TypeError(f"{kind} is not a private method: use tacit.testing.check_local_method")
    records = made_up_records(model, seed, count=6) if records is None else records
    records = _with_persons(records) if unit == "person" else records
    plan = _plan(method, model, records, unit, relation, aggregation, rounds, seed)
    sets = _neighbours(records, unit, relation, np.random.default_rng(seed))
    reached = 0.0
    with _noting():
        for pair in sets:
            reached = max(reached, _check_movement(plan, pair, relation, seed))
        _check_noise(plan, records)
    assert reached >= reach, (
        f"reach: the largest movement found is {reached:.3g} of the charged sensitivity, expected "
        f"at least {reach:g}: give records that come nearer to it"
    )
    return reached


def _plan(
    method: PrivateMethod,
    model: Model,
    records: Records,
    unit: Unit,
    relation: Relation,
    aggregation: Aggregation,
    rounds: int,
    seed: int,
) -> Plan:
    """As a run makes it: the noise multiplier is 1, so that nothing is calibrated."""
    return make_plan(
        model,
        {PARTY: records, OTHER: records},
        method=method,
        schedule=Synchronous(rounds=rounds),
        seed=seed,
        privacy=Privacy(
            noise_multiplier=1.0, delta=1e-3, unit=unit, relation=relation, aggregation=aggregation
        ),
    )


@contextlib.contextmanager
def _noting() -> Iterator[None]:
    """Every mechanism notes what it is given; functions compiled meanwhile are not kept."""
    kinds = [kind for kind in _below(Mechanism) if "release" in vars(kind)]
    own = {kind: kind.release for kind in kinds}
    inside = [0]

    def noting(kind: type[Mechanism]) -> Any:
        def release(self: Mechanism, key: Array, bounded: Bounded, drawn: Drawn = WHOLE) -> Release:
            inside[0] += 1
            try:
                found = own[kind](self, key, bounded, drawn)
            finally:
                inside[0] -= 1
            if inside[0]:  # one mechanism by way of another is one release
                return found
            noted = Noted(found.cost, _flat(bounded.value), _flat(found.value))
            return found._replace(cost=noted)  # pyright: ignore[reportArgumentType]

        return release

    party_side.compiled.cache_clear()
    for kind in kinds:
        kind.release = noting(kind)
    try:
        yield
    finally:
        for kind in kinds:
            kind.release = own[kind]
        party_side.compiled.cache_clear()


def _below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _flat(tree: Any) -> Array:
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float64) for leaf in jax.tree.leaves(tree)])


def _check_movement(plan: Plan, sets: Sequence[Records], relation: Relation, seed: int) -> float:
    """The largest movement of one group of neighbours, as a share of what is charged."""
    settled, reached = plan.settled[PARTY], 0.0
    memories: list[Natural | None] = [None] * len(sets)
    seats = _Seats(plan, sets)
    for visit in range(settled.visits):
        kept = memories
        for number, q in enumerate(_questions(plan, seed)):
            updates = seats.answer(q, visit, memories, noise_seed=1)
            if number == 0:
                kept = [update.memory for update in updates]
            finite = {update.finite for update in updates}
            assert len(finite) == 1, (
                f"visit {visit}, question {number}: whether the party can answer depends on one "
                "unit: a refusal would be a release"
            )
            if finite == {False}:
                continue
            events = [event for event in settled.events_at(visit) for _ in range(event.count)]
            _expect_charged(updates, settled.events_at(visit), visit)
            for place, event in enumerate(events):
                sums = np.stack([update.cost.exact[place] for update in updates])
                if plan.privacy is not None and plan.privacy.unit == "party":
                    sums[0] = 0.0 if relation == "add-or-remove" else sums[0]  # it is not there
                moved = _furthest(sums, relation)
                allowed = event.sensitivity(relation)
                assert moved <= allowed * (1.0 + 1e-9), (
                    f"sensitivity: visit {visit}, question {number}: one unit moves the sum by "
                    f"{moved:.6g}, {allowed:.6g} is charged ({relation})"
                )
                reached = max(reached, moved / allowed)
        memories = kept
    return reached


def _furthest(sums: np.ndarray, relation: Relation) -> float:
    """Between the first and any other; under substitution all are each other's neighbours."""
    first = sums[:1] if relation == "add-or-remove" else sums
    return float(max(np.max(np.linalg.norm(sums - one, axis=1)) for one in first))


def _expect_charged(
    updates: Sequence[Update], charged: Sequence[GaussianEvent], visit: int
) -> None:
    for update in updates[:3]:
        assert isinstance(update.cost, Noted) or not charged, (
            f"cost: visit {visit} is charged {len(charged)} events, but no mechanism was used"
        )
        check_released(update.cost.cost if charged else None, charged, PARTY)


def _check_noise(plan: Plan, records: Records) -> None:
    """What a party adds, for every visit whose events differ from the first's."""
    settled = plan.settled[PARTY]
    memories: list[Natural | None] = [None] * DRAWS
    seats = _Seats(plan, [records], DRAWS)
    for visit in range(min(settled.visits, len(settled.answers))):
        updates = seats.answer(_first(plan), visit, memories)
        memories = [update.memory for update in updates]
        events = [event for event in settled.events_at(visit) for _ in range(event.count)]
        for place, event in enumerate(events[:1]):
            added = np.stack(
                [update.cost.noised[place] - update.cost.exact[place] for update in updates]
            )[:, :16]
            if plan.privacy is not None and plan.privacy.aggregation == "server":
                assert not np.any(added), f"noise: visit {visit}: the server adds it, not a party"
                continue
            sd = event.noise_sd / np.sqrt(settled.shares)
            faults = gaussian_faults(added, sd)
            assert not faults, f"noise: visit {visit}: {'; '.join(faults)}"
            for factor in (0.8, 1.25):
                faults = gaussian_faults(factor * added, sd)
                assert any(fault.startswith("variance") for fault in faults), (
                    f"power: visit {visit}: {factor} times the noise was not told from it"
                )


class _Seats:
    """A party with each of some data sets in its place, all answering in one call."""

    def __init__(self, plan: Plan, sets: Sequence[Records], times: int = 1) -> None:
        arranged = [plan.method.arrange(PARTY, records, plan.seed) for records in sets] * times
        rows = max(one.weights.shape[plan.method.variable_axis] for one in arranged)
        self.plan, self.count = plan, len(arranged)
        self._stack = party_side.stack_records(arranged, rows, plan.method)

    def answer(
        self,
        q: Natural,
        visit: int,
        memories: Sequence[Natural | None],
        noise_seed: int | None = None,
    ) -> list[Update]:
        """The same request to all of them; without a seed each draws its own noise."""
        plan = self.plan
        agreement = Agreement(plan.model, plan.family, plan.method, plan.seed, noise_seed)
        nothing = plan.family.zero()
        request = Request("check", PARTY, visit, visit, q, nothing, 1.0, initial=visit == 0)
        settled = [plan.settled[PARTY]] * self.count
        return party_side.answer_many(
            agreement, *self._stack, [request] * self.count, settled, list(memories)
        )


def _first(plan: Plan) -> Natural:
    return initial_state(plan.rules, first_factors(plan)).q


def _questions(plan: Plan, seed: int) -> Iterator[Natural]:
    """The q that a run begins with, and such as no data lead to."""
    start, rng = _first(plan), np.random.default_rng(seed)
    yield start
    for fill, precision in itertools.product(FILLS, PRECISIONS):
        yield {
            name: precision * np.asarray(value)
            if name == "quadratic"
            else fill * rng.normal(size=np.shape(value))
            for name, value in start.items()
        }


def _neighbours(
    records: Records, unit: Unit, relation: Relation, rng: np.random.Generator
) -> list[list[Records]]:
    """Groups of data sets; in each all differ from the first in one unit, and its number is kept.

    The rest of the records are as they are given, and once all of them pull one way.
    """
    groups = []
    for rest in (records, _pulled(records, -1.0)):
        sets = [rest] if relation == "substitute" else [_without(rest, unit)]
        if relation != "substitute":
            sets.append(rest)
        for row in _rows(records, rng):
            sets.append(_replaced(rest, row, unit))
        groups.append(sets)
    return groups


def _rows(records: Records, rng: np.random.Generator) -> Iterator[Records]:
    """Single records of every size, sign and label."""
    labels = np.unique(records["y"]) if "y" in records else np.zeros(1)
    counts = set(labels) <= set(range(16))
    labels = labels if counts else np.array([0.0, 1.0, -1.0, 1e9, -1e9])
    shape = np.shape(records["x"])[1:] if "x" in records else ()
    for size, label in itertools.product(SIZES, labels):
        for sign in (np.ones(shape), rng.choice([-1.0, 1.0], size=shape)):
            row = {name: np.asarray(value[:1]).copy() for name, value in records.items()}
            if "x" in row:
                row["x"] = (size * sign)[None].astype(row["x"].dtype)
            if "y" in row:
                row["y"] = np.array([label], row["y"].dtype)
            yield row


def _pulled(records: Records, sign: float) -> Records:
    """All records alike and extreme: what one more of the other kind changes is most."""
    found = {name: np.asarray(value).copy() for name, value in records.items()}
    if "x" in found and "y" in found:
        found["x"] = np.full_like(found["x"], 1e-2)
        if not set(np.unique(found["y"])) <= set(range(16)):
            found["y"] = np.full_like(found["y"], sign * 1e9)
        else:
            found["y"] = np.full_like(found["y"], np.min(found["y"]))
    return found


def _with_persons(records: Records) -> Records:
    count = len(next(iter(records.values())))
    return {**records, PERSON: np.minimum(np.arange(count), count - 2)}


def _of_unit(records: Records, unit: Unit) -> np.ndarray:
    """Which records are those of the last unit."""
    count = len(next(iter(records.values())))
    if unit == "party":
        return np.ones(count, bool)
    if unit == "person":
        return records[PERSON] == np.max(records[PERSON])
    return np.arange(count) == count - 1


def _replaced(records: Records, row: Records, unit: Unit) -> Records:
    own = _of_unit(records, unit)
    found = {name: np.asarray(value).copy() for name, value in records.items()}
    for name in found:
        if name != PERSON:
            found[name][own] = row[name]
    return found


def _without(records: Records, unit: Unit) -> Records:
    own = _of_unit(records, unit)
    if unit == "party":  # an absent party has no records to answer with: its sum is taken for 0
        return records
    return {name: np.asarray(value)[~own] for name, value in records.items()}
