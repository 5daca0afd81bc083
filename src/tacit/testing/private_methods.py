"""Conformance suite of private methods: compare releases with charged events.

The party's code computes replies for many neighbouring data sets at once, for various q that a
server might send. All inputs and outputs of mechanisms are recorded during the computation
(`tacit.testing.releases`). Three properties are checked:

* the sum that a mechanism receives moves between neighbours by at most the sensitivity of the
  charged event, given the same earlier releases;
* the mechanism adds the noise that the event declares;
* the reply is a function of the released values and of public numbers: with the same released
  values it is identical for all neighbours, and all releases used in it are charged. The released
  values are about as large as the noise, and also 1,000 times as large with both signs. The method
  memory, which stays at the party, may differ; its effect on later releases and replies is checked
  at later visits.

Rows of padding must not change a sum.

The noise of every event of every visit is compared with N(0, noise_sd² I), or with N(0, noise_sd²/M
I) if M parties share the noise. The mean and variance of all coordinates are tested with 2,000
draws. All tests of `gaussian_faults` are applied to at most 64 random coordinates. To show that the
tests have power, they must reject the sample if the noise of a single coordinate is multiplied by
0.8 or by 1.25. With aggregation "server", the reply of a party must contain only the clipped sum,
rounded to the lattice, because the server adds the noise.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from tacit.errors import TacitError
from tacit.expfam import Natural
from tacit.methods import PrivateMethod
from tacit.models import Model, Records
from tacit.party.compute import Update
from tacit.plan.plan import Plan, make_plan
from tacit.privacy.events import Adjacency, GaussianEvent
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import check_released
from tacit.privacy.settings import Privacy
from tacit.server.combine import Shared
from tacit.server.schedule import Synchronous
from tacit.support.trees import unstacked
from tacit.testing.data_sets import DataSets, first_question, furthest_pair
from tacit.testing.laws import gaussian_faults, moment_faults
from tacit.testing.local_methods import synthetic_records
from tacit.testing.neighbours import (
    ALIGNED,
    aligned_neighbours,
    neighbours_of,
    repeated,
    with_persons,
)
from tacit.testing.releases import Count, Noted, Used, counted, magnified, noted

FILLS = (0.1, 1.0, 1e3, 1e9, 1e18)
PRECISIONS = (1.0, 1e-6, 1e6)
DRAWS = 2_000
FULLY_TESTED = 64
"""Largest number of coordinates whose noise is tested for shape and independence. The mean and
variance are tested for all coordinates.
"""
MAGNIFIED = 1_000
"""Factor by which released values are multiplied in some requests."""
ALIGNED_QUESTIONS = 4
"""Number of requests per visit for the group of large, aligned records."""
PARTY, OTHER = "party", "other"


def check_private_method(
    method: PrivateMethod,
    model: Model,
    *,
    records: Records | None = None,
    unit: Unit = "record",
    adjacency: Adjacency = "replace-one",
    aggregation: Aggregation = "plain",
    rounds: int = 3,
    reach: float = 0.0,
    seed: int = 0,
) -> float:
    """Assert that a method's replies have the charged sensitivity and noise.

    In a neighbouring data set, one unit is replaced by records of various sizes, signs and labels,
    or is added or removed, depending on `adjacency`. Every visit of a run of `rounds` rounds is
    tested with the initial q and with extreme values of q. The function returns the largest
    movement of a sum that one unit causes, as a share of the charged sensitivity. It must be at
    least `reach`, because a check that does not come close to the sensitivity has little power.

    Some neighbours are filled with numbers that often represent a missing value, such as 999. These
    tests are not a proof: a leak that occurs only with other records, q or releases is not found.

    Parameters
    ----------
    method
        The method to check.
    model
        A model that the method supports.
    records
        Records of one party. By default they are generated, which requires a model with columns x
        and y.
    unit, adjacency, aggregation
        Terms of the guarantee, as in `tacit.Privacy`.
    rounds
        Number of rounds of the run.
    reach
        Share of the charged sensitivity by which at least one pair of neighbours must move a sum.
    seed
        Seed of everything random.
    """
    if not isinstance(method, PrivateMethod):
        kind = type(method).__name__
        raise TypeError(f"{kind} is not a private method: use tacit.testing.check_local_method")
    records = synthetic_records(model, seed, count=6) if records is None else records
    records = with_persons(records) if unit == "person" else records
    terms = {"unit": unit, "adjacency": adjacency, "aggregation": aggregation}
    make = functools.partial(_plan, method, model, terms=terms, rounds=rounds, seed=seed)
    reached = _largest_movement(make, records, unit, adjacency, seed)
    assert reached >= reach, (
        f"reach: the largest movement found is {reached:.3g} of the charged sensitivity, expected "
        f"at least {reach:g}: give records that come nearer to it"
    )
    return reached


def _largest_movement(
    make: Callable[[Records], Plan], records: Records, unit: Unit, adjacency: Adjacency, seed: int
) -> float:
    """Check all groups of neighbours, the noise and the charges. Return the largest movement of a
    sum, as a share of the charged sensitivity. The function `make` makes the plan of a run.
    """
    plan, rng = make(records), np.random.default_rng(seed)
    sets = neighbours_of(records, unit, adjacency, rng)
    aligned = aligned_neighbours(records, unit, adjacency, rng)
    many = repeated(records, ALIGNED)
    wide = make(with_persons(many) if unit == "person" else many)
    # All groups are padded to the same number of rows, so that they share compiled programs.
    rows = DataSets(wide, PARTY, aligned).rows
    with noted():
        reached = [_check_group(plan, group, rows, seed) for group in sets]
        reached.append(_check_group(wide, aligned, rows, seed, most=ALIGNED_QUESTIONS))
        _check_noise(plan, records, len(sets[0]), rows, seed)
    with counted() as count:
        _check_used(plan, sets[0], count)
    return max(reached)


def _plan(
    method: PrivateMethod,
    model: Model,
    records: Records,
    *,
    terms: dict[str, Any],
    rounds: int,
    seed: int,
) -> Plan:
    """Return the plan of a run with two parties. The noise multiplier is 1, so no noise has to be
    calibrated.
    """
    plan = make_plan(
        model,
        {PARTY: records, OTHER: records},
        method=method,
        schedule=Synchronous(rounds=rounds),
        seed=seed,
        privacy=Privacy(noise_multiplier=1.0, delta=1e-3, **terms),
    )
    settled = plan.settled[PARTY]
    assert any(settled.events_at(visit) for visit in range(settled.visits)), (
        "cost: `release` returns no event: nothing would be charged"
    )
    return plan


def reply_of(update: Update) -> dict[str, np.ndarray]:
    """Return all arrays of this update that leave the party, by name."""
    released = update.released.items()
    reply = {f"released[{name!r}]": np.asarray(value) for name, value in released}
    return reply if update.loss is None else reply | {"loss": np.asarray(update.loss)}


def _check_group(
    plan: Plan, sets: Sequence[Records], rows: int, seed: int, *, most: int | None = None
) -> float:
    """Check all visits for one group of neighbouring data sets. Return the largest movement of a
    sum, as a share of the charged sensitivity. `most` is the largest number of requests per visit.
    """
    # Each data set is compared with the first one, computed at the same position of a batch, so
    # that both are rounded in the same way.
    reached = 0.0
    neighbours = DataSets(plan, PARTY, sets, rows)
    firsts = DataSets(plan, PARTY, [sets[0]] * len(sets), neighbours.rows)
    memories: list[list[Natural | None]] = [[None] * len(sets)] * 2
    for visit in range(plan.settled[PARTY].visits):
        kept, answered = memories, 0
        for number, (question, factor) in enumerate(_questions(plan, visit, seed)):
            if number == most:
                break
            times = "" if factor == 1 else f", releases times {factor}"
            where = f"visit {visit}, question {number}{times}"
            with magnified(factor):
                updates, expected = (
                    _answers(each, where, question, visit, memory, 1 + number)
                    for each, memory in zip((neighbours, firsts), memories, strict=True)
                )
            if number == 0:
                kept = [[update.memory for update in each] for each in (updates, expected)]
            finite = {update.finite for update in (*updates, *expected)}
            assert len(finite) == 1, (
                f"{where}: whether the party can answer depends on one unit: a refusal would be a "
                "release"
            )
            if finite == {False}:
                continue
            answered += 1
            reached = max(reached, _check_movement(plan, updates, visit, where))
            _check_replies(updates, expected, where)
        assert answered, f"visit {visit}: no question has a finite answer: nothing was checked"
        memories = kept
    return reached


def _answers(data_sets: DataSets, where: str, *request: Any) -> list[Update]:
    """Return the replies of all data sets, or raise an AssertionError if the method fails."""
    try:
        return data_sets.answer(*request)
    except AssertionError:
        raise
    except Exception as error:
        line = " ".join(str(error).split())[:300]
        raise AssertionError(
            f"answer: {where}: the method raised {type(error).__name__}: {line}"
        ) from error


def _check_movement(plan: Plan, updates: Sequence[Update], visit: int, where: str) -> float:
    """Check that one unit moves the released sums by at most the charged sensitivity. Return the
    largest movement as a share of the sensitivity.
    """
    assert plan.privacy is not None
    reached, adjacency = 0.0, plan.privacy.adjacency
    for place, event in enumerate(_charged(plan, updates, visit, where)):
        sums = np.stack([update.cost.exact[place] for update in updates])
        if plan.privacy.unit == "party":
            sums[0] = 0.0 if adjacency == "add-or-remove-one" else sums[0]  # an absent party
        first, second = furthest_pair(sums, adjacency)
        moved = float(np.linalg.norm(sums[second] - sums[first]))
        allowed = event.sensitivity(adjacency)
        assert moved <= allowed * (1.0 + 1e-9), (
            f"sensitivity: {where}: one unit moves the sum by {moved:.6g}, {allowed:.6g} is "
            f"charged ({adjacency})"
        )
        reached = max(reached, moved / allowed)
    return reached


def _charged(
    plan: Plan, updates: Sequence[Update], visit: int, where: str
) -> tuple[GaussianEvent, ...]:
    """Check that all releases of the replies are charged. Return their events."""
    charged = plan.settled[PARTY].events_at(visit)
    if not charged:
        assert all(update.cost is None for update in updates), (
            f"cost: {where}: an answer without a charge has a cost"
        )
        return ()
    assert all(isinstance(update.cost, Noted) for update in updates), (
        f"cost: {where}: {len(charged)} events are charged, but no mechanism was used"
    )
    leaves = [jax.tree.leaves(update.cost.cost) for update in updates]
    same = {tuple(np.asarray(leaf).tobytes() for leaf in each) for each in leaves}
    assert len(same) == 1, f"cost: {where}: the cost of an answer depends on one unit"
    cost = jax.tree.map(np.asarray, updates[0].cost.cost)
    try:
        check_released(cost, charged, PARTY)
    except TacitError as wrong:
        raise AssertionError(f"cost: {where}: {wrong}") from None
    return tuple(one.event() for one in unstacked(cost, len(np.atleast_1d(cost.clip))))


def _check_used(plan: Plan, sets: Sequence[Records], count: Count) -> None:
    """Check that all releases that a reply uses are charged."""
    memories: list[Natural | None] = [None] * len(sets)
    data_sets = DataSets(plan, PARTY, sets)
    for visit in range(plan.settled[PARTY].visits):
        count.take()
        memories = [
            update.memory
            for update in _answers(
                data_sets, f"visit {visit}", first_question(plan, visit), visit, memories, 1
            )
        ]
        used, allowed = count.take(), Counter[Used]()
        for event in plan.settled[PARTY].events_at(visit):
            allowed[Used(event.clip, event.noise_sd)] += event.count * len(sets)
        for one, more in (used - allowed).items():
            raise AssertionError(
                f"releases: visit {visit}: {used[one]} releases of clip {one.clip:g} and noise sd "
                f"{one.noise_sd:g} are used in {len(sets)} answers, but only {allowed[one]} are "
                f"charged; charge the other {more}"
            )


def _check_replies(updates: Sequence[Update], expected: Sequence[Update], where: str) -> None:
    """Check that the replies of all neighbours are equal, bit for bit, if all released values are
    the same.
    """
    for neighbour, (update, first) in enumerate(zip(updates, expected, strict=True)):
        reply, other = reply_of(update), reply_of(first)
        assert reply.keys() == other.keys(), (
            f"reply: {where}: which arrays are sent depends on one unit: {sorted(reply)} or "
            f"{sorted(other)}"
        )
        for name, value in reply.items():
            same = (value.shape, value.tobytes()) == (other[name].shape, other[name].tobytes())
            assert same, (
                f"reply: {where}, neighbour {neighbour}: {name} differs between two data sets for "
                "which all released values are the same: it bypasses the mechanism"
            )


def _check_noise(plan: Plan, records: Records, batch: int, rows: int, seed: int) -> None:
    """Check the noise of every event of every visit, and that no two events have the same noise.

    The exact sums are compared with those of a data set that is padded to `rows` rows, computed in
    a batch of size `batch`.
    """
    settled, rng = plan.settled[PARTY], np.random.default_rng(seed)
    memories: list[Natural | None] = [None] * DRAWS
    data_sets = DataSets(plan, PARTY, [records] * DRAWS)
    padded = DataSets(plan, PARTY, [records] * batch, rows)
    for visit in range(settled.visits):
        question = first_question(plan, visit)
        updates, scaled = _answers(data_sets, f"visit {visit}", question, visit, memories), []
        charged = _charged(plan, updates, visit, f"visit {visit}")
        if charged and memories[0] is None:
            longer = _answers(padded, f"visit {visit}", question, visit, [None] * batch, 1)
            _check_padding(plan, updates, longer[0], f"visit {visit}")
        memories = [update.memory for update in updates]
        for place, event in enumerate(charged):
            where = f"visit {visit}, event {place}"
            added = np.stack([one.cost.noised[place] - one.cost.exact[place] for one in updates])
            if plan.privacy is not None and plan.privacy.aggregation == "server":
                rounded = np.abs(added) <= 0.5001 * event.step
                assert np.all(rounded), f"noise: {where}: the server adds it, not a party"
                continue
            sd = event.noise_sd / np.sqrt(settled.shares)
            _check_law(added, sd, where, rng)
            scaled.append(added / sd)
        if len(scaled) > 1:
            _check_law(np.hstack(scaled), 1.0, f"visit {visit}, all its events", rng)


def _check_padding(plan: Plan, updates: Sequence[Update], padded: Update, where: str) -> None:
    """Check that rows of padding do not change the first sum of a visit.

    Nothing is checked if the sum differs between replies of the same data set, because a random
    choice, such as that of a batch, may depend on the number of rows.
    """
    # Later sums of a visit may depend on the noise of the first one.
    sums = np.stack([one.cost.exact[0] for one in updates])
    tolerance = 1e-6 if plan.method.dtype == "float64" else 1e-3
    allowed = tolerance * max(1.0, float(np.linalg.norm(sums[0])))
    moved = float(np.linalg.norm(padded.cost.exact[0] - sums[0]))
    random = np.max(np.linalg.norm(sums - sums[0], axis=1)) > allowed
    assert random or moved <= allowed, (
        f"padding: {where}: rows of weight 0 move the sum by {moved:.3g}, expected no movement: "
        "pass `task.weights > 0` to the clipping"
    )


def _check_law(added: np.ndarray, sd: float, where: str, rng: np.random.Generator) -> None:
    """Check that the noise `added` is N(0, sd² I), and that the tests have power."""
    width = added.shape[1]
    chosen = np.sort(rng.permutation(width)[:FULLY_TESTED])
    faults = [*moment_faults(added, sd), *gaussian_faults(added[:, chosen], sd)]
    assert not faults, f"noise: {where}: {'; '.join(faults)}"
    changed = rng.integers(width)
    for factor in (0.8, 1.25):
        wrong = added.copy()
        wrong[:, changed] *= factor
        faults = moment_faults(wrong, sd)
        assert any(fault.startswith("variance") for fault in faults), (
            f"power: {where}: {factor} times the noise in coordinate {changed} was not detected"
        )


def _questions(plan: Plan, visit: int, seed: int) -> Iterator[tuple[Shared, int]]:
    """Yield requests with the initial q, and with extreme values of q and of the public arrays,
    each with the factor by which the released values are multiplied.
    """
    start, rng = first_question(plan, visit), np.random.default_rng(seed)
    yield start, 1
    yield start, MAGNIFIED
    yield start, -MAGNIFIED
    sign = 1
    for fill, precision in itertools.product(FILLS, PRECISIONS):

        def drawn(value: np.ndarray, fill: float = fill) -> np.ndarray:
            return fill * rng.normal(size=np.shape(value))

        q = {
            name: precision * np.asarray(value) if name == "quadratic" else drawn(value)
            for name, value in start.q.items()
        }
        question = Shared(q, {name: drawn(value) for name, value in start.public.items()})
        yield question, 1
        if precision == 1.0:
            sign = -sign
            yield question, sign * MAGNIFIED
