"""Conformance suite of private methods: compare releases with charged events.

The party's code computes replies for many neighbouring data sets at once, for various q that a
server might send. All inputs and outputs of mechanisms are recorded during the computation
(`tacit.testing.releases`). Three properties are checked:

* the sum that a mechanism receives moves between neighbours by at most the sensitivity of the
  charged event, given the same earlier releases;
* the mechanism adds the noise that the event declares;
* the reply is a function of the released values and of public values: with the same released values
  it is identical for all neighbours, and all releases that it uses are charged. The method memory,
  which stays at the party, may differ between neighbours. Its effect on later releases and replies
  is checked at later visits.

The noise of every event of every visit is compared with N(0, noise_sd² I), or with N(0, noise_sd²/M
I) if M parties share the noise. The mean and variance of all coordinates are tested with 2,000
draws. All tests of `gaussian_faults` are applied to at most 64 random coordinates. To show that the
tests have power, they must reject the sample if the noise of a single coordinate is multiplied by
0.8 or by 1.25. With aggregation "server", the reply of a party must contain only the clipped sum,
rounded to the lattice, because the server adds the noise.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from tacit.errors import PrivacyBudgetError
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
from tacit.testing.neighbours import neighbours_of, with_persons
from tacit.testing.releases import Count, Noted, Used, counted, noted

FILLS = (0.1, 1.0, 1e3, 1e9, 1e18)
PRECISIONS = (1.0, 1e-6, 1e6)
DRAWS = 2_000
FULLY_TESTED = 64
"""Largest number of coordinates whose noise is tested for shape and independence. The mean and
variance are tested for all coordinates.
"""
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

    These tests are not a proof: a leak that occurs only with other records, q or releases is not
    found.

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
    plan = _plan(method, model, records, unit, adjacency, aggregation, rounds, seed)
    sets = neighbours_of(records, unit, adjacency, np.random.default_rng(seed))
    reached = 0.0
    with noted():
        for group in sets:
            reached = max(reached, _check_group(plan, group, adjacency, seed))
        _check_noise(plan, records, seed)
    with counted() as count:
        _check_used(plan, sets[0], count)
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
    adjacency: Adjacency,
    aggregation: Aggregation,
    rounds: int,
    seed: int,
) -> Plan:
    """Return the plan of a run with two parties. The noise multiplier is 1, so no noise has to be
    calibrated.
    """
    return make_plan(
        model,
        {PARTY: records, OTHER: records},
        method=method,
        schedule=Synchronous(rounds=rounds),
        seed=seed,
        privacy=Privacy(
            noise_multiplier=1.0,
            delta=1e-3,
            unit=unit,
            adjacency=adjacency,
            aggregation=aggregation,
        ),
    )


def reply_of(update: Update) -> dict[str, np.ndarray]:
    """Return all arrays of this update that leave the party, by name."""
    released = update.released.items()
    reply = {f"released[{name!r}]": np.asarray(value) for name, value in released}
    return reply if update.loss is None else reply | {"loss": np.asarray(update.loss)}


def _check_group(plan: Plan, sets: Sequence[Records], adjacency: Adjacency, seed: int) -> float:
    """Check all visits for one group of neighbouring data sets. Return the largest movement of a
    sum, as a share of the charged sensitivity.
    """
    # Each data set is compared with the first one, computed at the same position of a batch, so
    # that both are rounded in the same way.
    reached = 0.0
    neighbours = DataSets(plan, PARTY, sets)
    firsts = DataSets(plan, PARTY, [sets[0]] * len(sets), neighbours.rows)
    memories: list[list[Natural | None]] = [[None] * len(sets)] * 2
    for visit in range(plan.settled[PARTY].visits):
        kept, answered = memories, 0
        for number, question in enumerate(_questions(plan, visit, seed)):
            where = f"visit {visit}, question {number}"
            updates = neighbours.answer(
                question, visit, memories[0], insecure_noise_seed=1 + number
            )
            expected = firsts.answer(question, visit, memories[1], insecure_noise_seed=1 + number)
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
            reached = max(reached, _check_movement(plan, updates, visit, adjacency, where))
            _check_replies(updates, expected, where)
        assert answered, f"visit {visit}: no question has a finite answer: nothing was checked"
        memories = kept
    return reached


def _check_movement(
    plan: Plan, updates: Sequence[Update], visit: int, adjacency: Adjacency, where: str
) -> float:
    """Check that one unit moves the released sums by at most the charged sensitivity. Return the
    largest movement as a share of the sensitivity.
    """
    reached = 0.0
    for place, event in enumerate(_charged(plan, updates, visit, where)):
        sums = np.stack([update.cost.exact[place] for update in updates])
        if plan.privacy is not None and plan.privacy.unit == "party":
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
    except PrivacyBudgetError as wrong:
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
            for update in data_sets.answer(first_question(plan, visit), visit, memories, 1)
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


def _check_noise(plan: Plan, records: Records, seed: int) -> None:
    """Check the noise of every event of every visit, and that the events of a visit have
    independent noise.
    """
    settled, rng = plan.settled[PARTY], np.random.default_rng(seed)
    memories: list[Natural | None] = [None] * DRAWS
    data_sets = DataSets(plan, PARTY, [records] * DRAWS)
    for visit in range(settled.visits):
        updates, scaled = data_sets.answer(first_question(plan, visit), visit, memories), []
        memories = [update.memory for update in updates]
        for place, event in enumerate(_charged(plan, updates, visit, f"visit {visit}")):
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


def _questions(plan: Plan, visit: int, seed: int) -> Iterator[Shared]:
    """Yield contents of requests: the initial q, then extreme values of q and public arrays."""
    start, rng = first_question(plan, visit), np.random.default_rng(seed)
    yield start
    for fill, precision in itertools.product(FILLS, PRECISIONS):

        def drawn(value: np.ndarray, fill: float = fill) -> np.ndarray:
            return fill * rng.normal(size=np.shape(value))

        q = {
            name: precision * np.asarray(value) if name == "quadratic" else drawn(value)
            for name, value in start.q.items()
        }
        yield Shared(q, {name: drawn(value) for name, value in start.public.items()})
