"""Rounds of which only the sum is known: the same state as if every reply were."""

import numpy as np
import pytest

from tacit.methods import DPSGD, PrivateScoring, PrivateStatistics, PrivateUpdate
from tacit.models import LinearRegression, LogisticRegression
from tacit.plan.plan import first_factors, make_plan
from tacit.privacy.lattice import lattice_sum
from tacit.privacy.secure_sums import SecureSums
from tacit.privacy.settings import Privacy
from tacit.server import attendance
from tacit.server.messages import Reply
from tacit.server.requests import integer_shapes
from tacit.server.run import ServerRun
from tacit.server.schedule import Synchronous
from tacit.server.state import initial_state

LOGISTIC = LogisticRegression(("a", "b"), prior_sd=1.0)
LINEAR = LinearRegression(("a", "b"), prior_sd=1.0)
CASES = {
    "scoring": (LOGISTIC, PrivateScoring()),
    "updates": (LOGISTIC, PrivateUpdate()),
    "statistics": (LINEAR, PrivateStatistics()),
    "steps": (LOGISTIC, DPSGD(adaptive=0.5)),
}


def plan_of(case):
    model, method = CASES[case]
    rng = np.random.default_rng(0)
    records = {
        f"p{i}": {"x": rng.normal(size=(20, 2)), "y": (rng.random(20) < 0.5).astype(float)}
        for i in range(5)
    }
    secure = Privacy(
        noise_multiplier=2.0, delta=1e-3, aggregation="secure", secure=SecureSums(quorum=4)
    )
    return make_plan(model, records, method=method, schedule=Synchronous(rounds=5), privacy=secure)


def begun(plan):
    server = ServerRun(plan.rules)
    server.begin(initial_state(plan.rules, first_factors(plan)))
    return server


def replies_of(plan, server):
    """Integers of the right shapes for every request, unlike at every party and round."""
    found = {}
    for party, request in server.requests().items():
        shapes = integer_shapes(plan.rules, request.stage)
        rng = np.random.default_rng([request.visit, int(party[1:])])
        released = {name: rng.integers(1, 2**22, shape) for name, shape in sorted(shapes.items())}
        found[party] = Reply(request.id, party, request.version, released, None)
    return found


def total_of(replies, terms):
    names = replies[terms[0]].released
    return {name: lattice_sum([replies[one].released[name] for one in terms]) for name in names}


def assert_same(one, two):
    assert (one.round, one.exchanges, one.applied, one.absent) == (
        two.round, two.exchanges, two.applied, two.absent,
    )  # fmt: skip
    assert one.finished == two.finished
    for name, value in one.q.items():
        assert np.asarray(value).tobytes() == np.asarray(two.q[name]).tobytes()
    for party, factor in one.factors.items():
        other = two.factors[party]
        assert (factor.version, factor.visits) == (other.version, other.visits)
        for name, value in factor.natural.items():
            assert np.asarray(value).tobytes() == np.asarray(other.natural[name]).tobytes()


@pytest.mark.parametrize("case", CASES)
def test_a_sum_is_applied_as_its_terms_would_be(case):
    """All parties, then without one, which comes back two rounds later."""
    plan = plan_of(case)
    known, summed = begun(plan), begun(plan)
    missing = {1: "p3"}
    while not known.finished:
        replies = replies_of(plan, known)
        assert [one.visit for one in known.requests().values()] == [known.state.round] * len(
            replies
        )
        if known.state.round == 3:
            known.welcome("p3", 0.0)
            summed.welcome("p3", 0.0)
        late = missing.get(known.state.round)
        terms = [name for name in replies if name != late]
        known.take([replies[name] for name in terms], 0.0)
        if late:
            known.skip([late], 0.0)
        summed.take_sum(total_of(replies, terms), terms[::-1], 0.0)
        assert_same(known.state, summed.state)
    assert known.state.factors["p3"].visits == 5, "a visit is the round, whatever was missed"


def test_a_sum_of_too_few_or_of_others_is_no_round():
    plan = plan_of("updates")
    server = begun(plan)
    replies = replies_of(plan, server)
    for terms in (["p0", "p1", "p2"], ["p0", "p1", "p2", "nobody"]):
        with pytest.raises(ValueError, match="it must be over at least"):
            server.take_sum(total_of(replies, ["p0"]), terms, 0.0)
    assert server.state.round == 0


def test_more_parties_are_asked_or_the_run_ends_if_too_few_are_left():
    plan = plan_of("updates")
    server = begun(plan)
    replies = replies_of(plan, server)
    server.take_sum(total_of(replies, ["p0", "p1", "p2", "p4"]), ["p0", "p1", "p2", "p4"], 0.0)
    assert set(server.requests()) == {"p0", "p1", "p2", "p4"}, "p3 is away"
    state, log = attendance.leave(plan.rules, server.state, "p0")
    state, more = attendance.widen(plan.rules, state, (), 0.0)
    assert {one.party for one in state.open.values()} == {"p1", "p2", "p3", "p4"}
    assert {one.visit for one in state.open.values()} == {1}
    assert [line["event"] for line in (*log, *more)] == ["left"]
    state, _ = attendance.leave(plan.rules, state, "p1")
    state, (line,) = attendance.widen(plan.rules, state, (), 0.0)
    assert (state.finished, line["event"], line["left"]) == (
        "too few parties", "too few", ["p0", "p1"],
    )  # fmt: skip
