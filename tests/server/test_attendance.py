"""Who is here: late parties are passed over and taken back, others leave, and q stays whole."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.models.prior import PRIOR_PARTY
from tacit.pvi import product
from tacit.server.attendance import leave, may_skip, skip, welcome
from tacit.server.checkpoint import Checkpoint
from tacit.server.combine import floored_step
from tacit.server.messages import Reply
from tacit.server.schedule import SCHEDULES
from tacit.server.state import Rules, initial_state, open_requests
from tacit.server.step import begin, step, step_together

FULL = FullGaussian(2)
FIELD = MeanFieldGaussian(2)
NAMES = ("a", "b", "c", "d")


def standard(family):
    """Zero mean, unit variance."""
    quadratic = -0.5 * np.ones(2)
    full = family.kind == "full"
    return {"linear": np.zeros(2), "quadratic": np.diag(quadratic) if full else quadratic}


def rules_for(kind, *, quorum=None, noisy=False, site_prior=False, names=NAMES, **options):
    keys = ("rounds", "parties_per_round", "tolerance")
    schedule = {"rounds": 50, "damping": 1.0, **{k: options.pop(k) for k in keys if k in options}}
    family = FIELD if noisy else FULL
    prior = standard(family)
    return Rules(
        family,
        SCHEDULES[kind](**schedule),
        ((PRIOR_PARTY,) if site_prior else ()) + names,
        seed=1,
        prior=family.zero() if site_prior else prior,
        site_prior=site_prior,
        quorum=quorum,
        combine=floored_step(lambda _q, _number: np.full(2, 1e-3)) if noisy else None,
        **options,
    )


def started(rules, absent=()):
    """As a live run starts: those who have not joined are passed over at first."""
    factors = {}
    if rules.site_prior:
        factors = {PRIOR_PARTY: standard(rules.family)}
    state = initial_state(rules, factors)
    return begin(rules, replace(state, absent=frozenset(absent)))


def small_delta(rules, rng, scale=0.1):
    """Information added: keeps q proper."""
    if rules.family.kind == "mean-field":
        return {"linear": rng.normal(size=2), "quadratic": -rng.uniform(size=2) * scale}
    root = scale * rng.normal(size=(2, 2))
    return {"linear": rng.normal(size=2), "quadratic": -root @ root.T}


def answer(rules, state, party, rng=None, delta=None):
    request = next(one for one in open_requests(state) if one.party == party)
    delta = delta or small_delta(rules, rng or np.random.default_rng(0))
    return Reply(request.id, party, request.version, delta, 1.0)


def tell(rules, state, *parties, rng=None):
    rng = rng or np.random.default_rng(3)
    for party in parties:
        state, _ = step(rules, state, answer(rules, state, party, rng))
    return state


def asked(state):
    return sorted(request.party for request in state.open.values())


def assert_identity(rules, state):
    """q = prior × ∏ factors."""
    expected = product(rules.prior, (factor.natural for factor in state.factors.values()))
    for name, value in expected.items():
        scale = 1 + np.max(np.abs(value))
        np.testing.assert_allclose(state.q[name], value, rtol=0, atol=1e-11 * scale)


def assert_equal_states(one, two):
    np.testing.assert_equal(
        {name: getattr(one, name) for name in one.__dataclass_fields__},
        {name: getattr(two, name) for name in two.__dataclass_fields__},
    )


# Passed over.


def test_nobody_is_passed_over_without_a_quorum():
    for kind in SCHEDULES:
        rules = rules_for(kind)
        state = started(rules)
        assert not may_skip(rules, state, asked(state))
    rules = rules_for("synchronous", quorum=1)
    assert not may_skip(rules, tell(rules, started(rules), "a"), [])


@pytest.mark.parametrize("quorum", [1, 2, 3, 4])
def test_a_synchronous_round_waits_for_its_quorum(quorum):
    rules = rules_for("synchronous", quorum=quorum)
    state = started(rules)
    for number, party in enumerate(("d", "b", "a")):
        assert may_skip(rules, state, asked(state)) == (number >= quorum)
        state = tell(rules, state, party)
    assert may_skip(rules, state, ["c"]) == (quorum <= 3)


@pytest.mark.parametrize("quorum", [1, 2, 3, 4])
@pytest.mark.parametrize("site_prior", [False, True])
def test_a_sequential_round_keeps_a_quorum_of_parties(quorum, site_prior):
    """The prior is nobody: it does not count."""
    rules = rules_for("sequential", quorum=quorum, site_prior=site_prior)
    state = started(rules)
    if site_prior:
        state = tell(rules, state, PRIOR_PARTY)
    here = len(NAMES)
    while here > quorum:
        assert may_skip(rules, state, asked(state))
        state, _ = skip(rules, state, asked(state))
        here -= 1
    assert not may_skip(rules, state, asked(state))


def test_an_asynchronous_run_waits_for_nobody_and_passes_nobody_over():
    rules = rules_for("asynchronous", quorum=1)
    state = started(rules)
    assert not may_skip(rules, state, ["a"])
    assert not may_skip(rules, tell(rules, state, "a", "b", "c"), ["d"])


def test_the_prior_does_not_count_as_an_answer():
    rules = rules_for("synchronous", quorum=1, site_prior=True)
    state = tell(rules, started(rules), PRIOR_PARTY)
    assert not may_skip(rules, state, list(NAMES))
    assert may_skip(rules, tell(rules, state, "c"), ["a", "b", "d"])


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_a_late_answer_is_ignored_and_the_party_asked_again_once_it_is_back(kind):
    rules = rules_for(kind, quorum=2)
    state = started(rules)
    late = answer(rules, state, "a")
    if kind == "synchronous":
        state = tell(rules, state, "b", "c", "d")
    state, log = skip(rules, state, ["a"])
    assert log[0] == {"event": "skipped", "round": 1, "party": "a", "id": late.id}
    assert state.absent == {"a"}
    same, log = step(rules, state, late)
    assert [line["event"] for line in log] == ["ignored"]
    assert_equal_states(same, state)
    assert (state.factors["a"].version, state.factors["a"].visits) == (0, 1)
    while state.round < 2:
        state = tell(rules, state, *asked(state))
    assert state.factors["a"].visits == 1, "not asked while it is away"
    state = welcome(rules, state, "a")
    assert "a" not in asked(state), "the round has begun without it"
    while state.round < 4:
        state = tell(rules, state, *asked(state))
    assert state.factors["a"].visits >= 2
    assert state.factors["a"].version >= 1
    same, log = step(rules, state, late)
    assert [line["event"] for line in log] == ["ignored"]
    assert_identity(rules, state)


def test_a_round_that_goes_on_applies_exactly_what_has_arrived():
    rules = rules_for("synchronous", quorum=2)
    state = started(rules)
    rng = np.random.default_rng(5)
    replies = [answer(rules, state, name, rng) for name in ("c", "a")]
    state, _ = step_together(rules, state, replies)
    before = state
    state, log = skip(rules, state, ["b", "d"])
    assert [line["event"] for line in log] == ["skipped", "skipped", "round"]
    expected = product(before.q, (reply.released for reply in reversed(replies)))
    for name, value in expected.items():
        assert state.q[name].tobytes() == value.tobytes()
    assert asked(state) == ["a", "c"]
    assert {name: factor.version for name, factor in state.factors.items()} == {
        "a": 1, "b": 0, "c": 1, "d": 0,
    }  # fmt: skip


def test_too_few_are_here_so_everybody_is_asked():
    rules = rules_for("synchronous", quorum=3)
    state = started(rules, absent=("c", "d"))
    assert asked(state) == list(NAMES)
    rules = rules_for("synchronous", quorum=2)
    state = started(rules, absent=("c", "d"))
    assert asked(state) == ["a", "b"]


# Taken back.


def test_who_comes_to_an_asynchronous_run_is_asked_at_once():
    rules = rules_for("asynchronous", quorum=2)
    state = started(rules, absent=("c", "d"))
    assert asked(state) == ["a", "b"]
    state = welcome(rules, state, "c")
    assert asked(state) == ["a", "b", "c"]
    again = welcome(rules, state, "c")
    assert asked(again) == ["a", "b", "c"]
    assert again.requests == state.requests


def test_who_has_said_all_that_was_agreed_on_is_not_asked_again():
    rules = rules_for("asynchronous", most_visits=2, names=("a", "b"), rounds=4)
    state = tell(rules, started(rules), "a", "a")
    assert asked(state) == ["b"]
    assert asked(welcome(rules, state, "a")) == ["b"]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_who_has_left_is_not_taken_back(kind):
    rules = rules_for(kind, quorum=1)
    state, _ = leave(rules, started(rules), "b")
    assert "b" not in asked(welcome(rules, state, "b"))


# Gone for good.


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("divide_out", [False, True])
def test_a_factor_stays_or_is_divided_out(kind, divide_out):
    rules = rules_for(kind, divide_out=divide_out)
    state = started(rules)
    while state.factors["b"].version == 0:
        state = tell(rules, state, "b" if "b" in asked(state) else asked(state)[0])
    before = state
    state, log = leave(rules, state, "b")
    assert log[0]["event"] == "left"
    assert log[0]["factor"] == ("divided out" if divide_out else "kept")
    assert_identity(rules, state)
    assert "b" not in asked(state)
    assert "b" not in state.waiting
    factor = state.factors["b"]
    if divide_out:
        assert all(np.all(value == 0) for value in factor.natural.values())
        assert factor.version == before.factors["b"].version + 1
        assert state.q_version > before.q_version
    else:
        assert factor == before.factors["b"]
        assert state.q is before.q
    again, log = leave(rules, state, "b")
    assert again is state
    assert log == ()


def test_a_factor_without_which_q_would_be_improper_stays():
    rules = rules_for("sequential", divide_out=True, names=("a", "b"))
    state = started(rules)
    much = {"linear": np.zeros(2), "quadratic": -np.eye(2)}
    state, _ = step(rules, state, answer(rules, state, "a", delta=much))
    # More than the prior says, and taken away: proper only as long as "a" is there.
    less = {"linear": np.zeros(2), "quadratic": 0.9 * np.eye(2)}
    state, _ = step(rules, state, answer(rules, state, "b", delta=less))
    after, log = leave(rules, state, "a")
    assert log[0]["factor"] == "kept: q would not be proper without it"
    assert after.q is state.q
    assert after.factors["a"] == state.factors["a"]
    assert "a" in after.left
    assert_identity(rules, after)


def test_a_noisy_factor_is_never_divided_out():
    rules = rules_for("synchronous", divide_out=True, noisy=True)
    state = tell(rules, started(rules), *NAMES)
    after, log = leave(rules, state, "c")
    assert log[0]["factor"] == "kept"
    assert after.q is state.q
    assert_identity(rules, after)


def test_what_a_leaver_has_said_in_this_round_counts_unless_it_is_divided_out():
    for divide_out in (False, True):
        rules = rules_for("synchronous", divide_out=divide_out)
        state = tell(rules, started(rules), "a", "b", "c")
        state, _ = leave(rules, state, "a")
        assert ("a" in state.arrived) is not divide_out
        state = tell(rules, state, "d")
        assert state.round == 1
        assert (state.factors["a"].version == 1) or divide_out
        assert state.applied == (3 if divide_out else 4)
        assert_identity(rules, state)


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("site_prior", [False, True])
def test_everybody_left_is_the_end(kind, site_prior):
    rules = rules_for(kind, site_prior=site_prior)
    state = started(rules)
    for party in NAMES:
        assert not state.finished
        state, _ = leave(rules, state, party)
    for _ in range(3):  # the prior may still have to answer what it was asked
        if not state.finished:
            state = tell(rules, state, *asked(state))
    assert state.finished == "all parties left"
    assert not state.open
    assert not state.issued
    assert_identity(rules, state)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_synchronous_round_below_the_quorum_is_never_applied(noisy):
    """With shared noise a sum of fewer messages would carry less than was promised."""
    rules = rules_for("synchronous", quorum=3, noisy=noisy)
    state = tell(rules, started(rules, absent=("d",)), "a", "b")
    assert asked(state) == ["c"]
    q = state.q
    state, _ = leave(rules, state, "c")
    assert asked(state) == ["d"], "somebody who was passed over has to help out"
    assert state.q is q
    after = tell(rules, state, "d")
    assert after.round == 1
    assert after.applied == 3
    state, log = leave(rules, state, "d")
    assert state.finished == "too few parties"
    assert log[-1] == {
        "event": "too few", "round": 1, "quorum": 3, "left": sorted(state.left), "left_out": []
    }  # fmt: skip
    assert state.q is q
    assert state.applied == 0
    assert not state.arrived


# Anything, in any order.


@st.composite
def problems(draw):
    kind = draw(st.sampled_from(sorted(SCHEDULES)))
    quorum = draw(st.sampled_from([None, 1, 2, 3, 4]))
    options = {
        "rounds": draw(st.integers(1, 6)),
        "quorum": quorum,
        "divide_out": draw(st.booleans()),
        "noisy": draw(st.booleans()),
        "site_prior": draw(st.booleans()),
        "tolerance": draw(st.sampled_from([None, 0.0, 1e3])),
    }
    if options["noisy"]:
        options["site_prior"] = False
        options["most_visits"] = options["rounds"]
        options["average_last"] = draw(st.integers(0, 2))
    if kind != "asynchronous":
        least = quorum or 1
        options["parties_per_round"] = draw(st.sampled_from([None, *range(least, 5)]))
    return rules_for(kind, **options)


ACTS = st.sampled_from(["reply"] * 5 + ["ruin", "late", "skip", "skip", "leave", "welcome"])


def settled_visits(rules):
    """How often each party may be asked, as the plan tells its party before the run."""
    others = rules.parties[1:] if rules.site_prior else rules.parties
    schedule = rules.schedule
    return Counter(
        name
        for number in range(1, schedule.rounds + 1)
        for name in schedule.chosen(others, rules.seed, number)
    )


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_happens_the_run_goes_on_or_ends(data, tmp_path_factory):
    rules = data.draw(problems())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    absent = data.draw(st.sets(st.sampled_from(NAMES), max_size=3)) if rules.quorum else ()
    path = tmp_path_factory.mktemp("checkpoint") / "server.sqlite"
    writer, reader = Checkpoint(path, digest="d"), Checkpoint(path, digest="d")
    try:
        _play(data, rules, started(rules, absent), rng, writer, reader)
    finally:
        writer.close()
        reader.close()


def _play(data, rules, state, rng, writer, reader):
    writer.save(state)
    closed: list[Reply] = []
    settled = settled_visits(rules)
    for act in data.draw(st.lists(ACTS, max_size=40)):
        if state.finished:
            break
        before, log = state, ()
        present = [name for name in NAMES if name not in state.left]
        waiting = [party for party in asked(state) if party != PRIOR_PARTY]
        if act in ("reply", "ruin"):
            party = data.draw(st.sampled_from(asked(state)))
            delta = None
            if act == "ruin" and rules.combine is None:
                delta = {"linear": np.zeros(2), "quadratic": 1e6 * np.eye(2)}
            reply = answer(rules, state, party, rng, delta)
            state, log = step(rules, state, reply)
            closed.append(reply)
        elif act == "late" and closed:
            state, log = step(rules, state, data.draw(st.sampled_from(closed)))
            assert [line["event"] for line in log] == ["ignored"]
            assert_equal_states(state, before)
        elif act == "skip" and waiting:
            late = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
            if may_skip(rules, state, late):
                closed += [answer(rules, state, party, rng) for party in late]
                state, log = skip(rules, state, late)
                assert state.absent >= set(late)
        elif act == "leave" and present:
            party = data.draw(st.sampled_from(present))
            closed += [answer(rules, state, party, rng)] if party in waiting else []
            state, log = leave(rules, state, party)
            assert party in state.left
        elif act == "welcome" and present:
            state = welcome(rules, state, data.draw(st.sampled_from(present)))
        _check(rules, state, settled)
        _check_quorum(rules, before, state)
        if state is not before:
            writer.save(state, log)
        assert_equal_states(reader.load()[0], state)
    # And if from now on everybody answers, it comes to an end.
    for _ in range(rules.schedule.rounds * len(rules.parties) + 1):
        if state.finished:
            break
        state, _ = step(rules, state, answer(rules, state, asked(state)[0], rng))
        _check(rules, state, settled)
    assert state.finished


def _check(rules, state, settled):
    assert_identity(rules, state)
    assert rules.family.is_proper(state.q)
    assert len(asked(state)) == len(set(asked(state))), "one thing at a time"
    assert not set(asked(state)) & state.left
    assert not set(state.waiting) & state.left
    assert set(state.issued) == {request.posterior for request in state.open.values()}
    if state.finished:
        assert not state.open
        assert not open_requests(state)
    else:
        assert state.open, "nobody is asked, and it is not over"
        here = set(asked(state)) - state.left
        assert here, "nobody who could answer is asked"
        # Once everybody has left, only the prior may still be heard.
        assert not state.left.issuperset(NAMES) or here == {PRIOR_PARTY}
    limited = rules.schedule.kind != "asynchronous" or rules.most_visits is not None
    # Dividing out takes an answer back: a round without privacy may then ask once more.
    if limited and not (rules.divide_out and rules.combine is None):
        for name in NAMES:
            assert state.factors[name].visits <= settled[name]
    assert state.round <= rules.schedule.rounds


def _check_quorum(rules, before, state):
    """A synchronous round takes its quorum's answers, or none."""
    if rules.schedule.kind == "synchronous" and state.applied > before.applied:
        counted = state.applied - before.applied - rules.site_prior
        assert counted >= (rules.quorum or 0)
