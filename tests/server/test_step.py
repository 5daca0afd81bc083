"""The server's step as a state machine: what it takes, ignores, refuses, and never changes."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import ConfigError, PeerError, TacitError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.pvi import product
from tacit.server.messages import Reply
from tacit.server.refuse import MAX_REFUSED_IN_A_ROW
from tacit.server.schedule import Asynchronous, Damping, Sequential, Synchronous
from tacit.server.state import Published, Rules, initial_state, open_requests
from tacit.server.step import begin, step, step_together

FAMILY = FullGaussian(2)
PRIOR = FAMILY.natural(mean=np.zeros(2), covariance=np.eye(2))
NAMES = ("a", "b", "c", "d")
KINDS = {"sequential": Sequential, "synchronous": Synchronous, "asynchronous": Asynchronous}


def rules_for(kind, **options):
    options = {"rounds": 100, "damping": 1.0, **options}
    return Rules(FAMILY, KINDS[kind](**options), NAMES, seed=1, prior=PRIOR)


def started(rules):
    return begin(rules, initial_state(rules))


def reply_to(request, delta, **changes):
    honest = Reply(request.id, request.party, request.version, delta, loss=1.0)
    return honest._replace(**changes)


def small_delta(rng, scale=0.1):
    """Information added: keeps q proper."""
    root = scale * rng.normal(size=(2, 2))
    return {"linear": rng.normal(size=2), "quadratic": -root @ root.T}


def spoiling_delta():
    return {"linear": np.zeros(2), "quadratic": 1e6 * np.eye(2)}


def assert_identity(rules, state):
    """q = prior × ∏ factors."""
    expected = product(rules.prior, (factor.natural for factor in state.factors.values()))
    for name, value in expected.items():
        scale = 1 + np.max(np.abs(value))
        np.testing.assert_allclose(state.q[name], value, rtol=0, atol=1e-12 * scale)


def assert_equal_states(one, two):
    np.testing.assert_equal(
        {name: getattr(one, name) for name in one.__dataclass_fields__},
        {name: getattr(two, name) for name in two.__dataclass_fields__},
    )


class Frozen(dict):
    """A dictionary that cannot be changed."""

    def _no(self, *_args, **_kwargs):
        raise TypeError("the state was changed in place")

    def __deepcopy__(self, memo):
        return copy.deepcopy(dict(self), memo)

    __setitem__ = __delitem__ = pop = popitem = clear = update = setdefault = __ior__ = _no


def freeze(state):
    """The state with read-only arrays and dictionaries that refuse to be written to."""

    def natural(value):
        arrays = Frozen({name: np.array(array) for name, array in value.items()})
        for array in arrays.values():
            array.setflags(write=False)
        return arrays

    issued = state.issued.items()
    factors = {k: f._replace(natural=natural(f.natural)) for k, f in state.factors.items()}
    return replace(
        state,
        q=natural(state.q),
        previous=natural(state.previous),
        factors=Frozen(factors),
        open=Frozen(state.open),
        issued=Frozen({k: Published(natural(p.q), natural(p.public)) for k, p in issued}),
        arrived=Frozen(state.arrived),
        losses=Frozen(state.losses),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_step_leaves_its_input_as_it_was(kind):
    rules, rng = rules_for(kind), np.random.default_rng(0)
    state = started(rules)
    for turn in range(13):
        before = copy.deepcopy(state)
        state = freeze(state)
        request = open_requests(state)[0]
        delta = spoiling_delta() if turn == 5 else small_delta(rng)
        following, _ = step(rules, state, reply_to(request, delta))
        assert_equal_states(state, before)
        assert following.exchanges == turn + 1
        state = following


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[1::5])
def test_the_order_of_synchronous_replies_changes_no_bit(order):
    rules, rng = rules_for("synchronous"), np.random.default_rng(3)
    first = second = together = started(rules)
    for _ in range(3):
        deltas = {name: small_delta(rng) for name in NAMES}
        losses = {name: float(rng.normal() * 10.0 ** rng.integers(-8, 8)) for name in NAMES}

        def answer(request, deltas=deltas, losses=losses):
            return reply_to(request, deltas[request.party], loss=losses[request.party])

        for request in open_requests(first):
            first, log = step(rules, first, answer(request))
        requests = open_requests(second)
        for index in order:
            second, other_log = step(rules, second, answer(requests[index]))
        replies = [answer(requests[index]) for index in order]
        together, third_log = step_together(rules, together, replies)
        assert log == other_log == third_log
        assert_equal_states(first, second)
        assert_equal_states(first, together)
    assert first.round == 3


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_q_is_always_the_prior_times_the_factors(kind, data):
    """Whatever arrives: good updates, ruinous ones, repeats, forgeries and nonsense."""
    rules = rules_for(kind)
    state = started(rules)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    answered: list[Reply] = []
    acts = st.sampled_from(["good", "good", "good", "ruin", "repeat", "stale", "nan", "shape"])
    for act in data.draw(st.lists(acts, min_size=5, max_size=25)):
        request = open_requests(state)[data.draw(st.integers(0, len(state.open) - 1))]
        reply = reply_to(request, small_delta(rng))
        before = state
        if act == "good":
            state, _ = step(rules, state, reply)
            answered.append(reply)
        elif act == "ruin":
            state, _ = step(rules, state, reply._replace(released=spoiling_delta()))
            answered.append(reply)
        elif act == "repeat" and answered:
            state, log = step(rules, state, data.draw(st.sampled_from(answered)))
            assert [line["event"] for line in log] == ["ignored"]
            assert_equal_states(state, before)
        elif act in ("stale", "nan", "shape"):
            bad = {
                "stale": reply._replace(version=reply.version - 1),
                "nan": reply._replace(
                    released={**reply.released, "linear": np.array([np.nan, 0.0])}
                ),
                "shape": reply._replace(released={**reply.released, "linear": np.zeros(3)}),
            }[act]
            with pytest.raises(TacitError):
                step(rules, state, bad)
            assert_equal_states(state, before)
        assert_identity(rules, state)
        assert rules.family.is_proper(state.q)


NOT_FINITE = {"linear": np.zeros(2), "quadratic": np.full((2, 2), np.nan)}
TOO_LARGE = {"linear": np.array([np.inf, 0.0]), "quadratic": np.zeros((2, 2))}
TOO_WIDE = {"linear": np.zeros(3), "quadratic": np.zeros((3, 3))}
BAD_REPLIES = {
    "another version": (PeerError, "version 7", {"version": 7}),
    "another party": (PeerError, "from party 'b'", {"party": "b"}),
    "NaN": (ConfigError, "'quadratic' has a value that is not finite", {"released": NOT_FINITE}),
    "infinity": (ConfigError, "'linear' has a value that is not finite", {"released": TOO_LARGE}),
    "wrong shape": (ConfigError, r"shape \(3,\), expected \(2,\)", {"released": TOO_WIDE}),
    "missing name": (
        ConfigError,
        "found the arrays linear; it must have exactly",
        {"released": {"linear": np.ones(2)}},
    ),
    "loss is NaN": (PeerError, "loss = nan is not finite", {"loss": float("nan")}),
}


@pytest.mark.parametrize("what", BAD_REPLIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_reply_is_refused_and_its_request_stays_open(kind, what):
    error, message, changes = BAD_REPLIES[what]
    rules = rules_for(kind)
    state = freeze(started(rules))
    request = open_requests(state)[0]
    assert request.party == "a"
    with pytest.raises(error, match=message):
        step(rules, state, reply_to(request, FAMILY.zero())._replace(**changes))
    good = reply_to(request, small_delta(np.random.default_rng(0)))
    after, log = step(rules, state, good)
    assert after.exchanges == 1
    assert not any(line["event"] == "ignored" for line in log)


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_that_was_never_given_or_is_used_up_is_ignored(kind):
    rules = rules_for(kind)
    state = started(rules)
    request = open_requests(state)[0]
    reply = reply_to(request, small_delta(np.random.default_rng(0)))
    same, log = step(rules, state, reply._replace(id="r999"))
    assert log == ({"event": "ignored", "id": "r999", "party": "a"},)
    assert_equal_states(same, state)
    once, _ = step(rules, state, reply)
    twice, log = step(rules, once, reply._replace(released=spoiling_delta()))
    assert log == ({"event": "ignored", "id": request.id, "party": "a"},)
    assert_equal_states(once, twice)


@pytest.mark.parametrize("kind", KINDS)
def test_request_ids_are_never_used_twice(kind):
    rules, rng = rules_for(kind, rounds=7), np.random.default_rng(0)
    state, seen, visits = started(rules), [], []
    while not state.finished:
        request = open_requests(state)[-1]
        seen.append(request.id)
        visits.append((request.party, request.visit))
        state, _ = step(rules, state, reply_to(request, small_delta(rng, 0.01)))
    assert len(set(seen)) == len(seen) == 7 * len(NAMES)
    assert len(set(visits)) == len(visits), "two answers of one party would share their noise"


def test_a_reply_in_single_precision_is_stored_in_double():
    rules = rules_for("sequential")
    state = started(rules)
    delta = {name: value.astype(np.float32) for name, value in PRIOR.items()}
    state, _ = step(rules, state, reply_to(open_requests(state)[0], delta))
    assert state.factors["a"].natural["linear"].dtype == np.float64
    assert state.q["quadratic"].dtype == np.float64


@pytest.mark.parametrize("kind", ["sequential", "asynchronous"])
def test_an_improper_update_is_rolled_back_and_damping_halves_then_recovers(kind):
    rules, rng = rules_for(kind, damping=0.8), np.random.default_rng(0)
    state = started(rules)
    q, factors = state.q, {name: factor.natural for name, factor in state.factors.items()}
    for refusal in (1, 2):
        request = open_requests(state)[0]
        state, log = step(rules, state, reply_to(request, spoiling_delta()))
        assert log[0]["event"] == "refused"
        assert log[0]["party"] == request.party
        assert state.q is q
        assert all(state.factors[name].natural is factors[name] for name in NAMES)
        assert all(factor.version == 0 for factor in state.factors.values())
        assert open_requests(state)[-1].damping == 0.8 * 0.5**refusal
    assert (state.refused, state.refused_in_a_row) == (2, 2)
    expected = [0.4, 0.8, 0.8]
    for damping in expected:
        state, _ = step(rules, state, reply_to(open_requests(state)[-1], small_delta(rng)))
        assert open_requests(state)[-1].damping == damping
    assert (state.refused, state.refused_in_a_row) == (2, 0)


def test_a_synchronous_round_is_refused_as_a_whole():
    rules, rng = rules_for("synchronous"), np.random.default_rng(0)
    state = started(rules)
    q = state.q
    requests = open_requests(state)
    deltas = [small_delta(rng), spoiling_delta(), small_delta(rng), small_delta(rng)]
    for request, delta in zip(requests, deltas, strict=True):
        state, log = step(rules, state, reply_to(request, delta))
    assert [line["event"] for line in log] == ["refused", "round"]
    assert log[0]["party"] is None
    assert state.q is q
    assert state.refused == 4
    assert all(factor.version == 0 for factor in state.factors.values())
    assert {request.damping for request in open_requests(state)} == {0.5}


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_refusals_in_a_row_are_borne_and_the_next_is_an_error(kind):
    rules = rules_for(kind)
    state = started(rules)
    while state.refused_in_a_row < 20 or len(state.open) > (1 if kind == "synchronous" else 4):
        state, _ = step(rules, state, reply_to(open_requests(state)[0], spoiling_delta()))
    assert state.refused_in_a_row == MAX_REFUSED_IN_A_ROW
    ruinous = reply_to(open_requests(state)[0], spoiling_delta())
    with pytest.raises(ConfigError, match=r"21 updates in a row .* because of 'a'"):
        step(rules, state, ruinous)


def test_one_good_update_starts_the_count_again():
    rules, rng = rules_for("sequential"), np.random.default_rng(0)
    state = started(rules)
    for turn in range(60):
        delta = small_delta(rng) if turn % 20 == 19 else spoiling_delta()
        state, _ = step(rules, state, reply_to(open_requests(state)[0], delta))
    assert state.refused == 57


def test_a_party_is_asked_one_thing_at_a_time():
    rules, rng = rules_for("asynchronous"), np.random.default_rng(0)
    state = started(rules)
    for _ in range(20):
        index = rng.integers(len(state.open))
        state, _ = step(rules, state, reply_to(open_requests(state)[index], small_delta(rng)))
        assert sorted(request.party for request in state.open.values()) == list(NAMES)


def test_an_open_request_is_sent_again_as_it_was_first_sent():
    """Asynchronously, q moves on; the party that is still at work keeps its own base."""
    rules, rng = rules_for("asynchronous"), np.random.default_rng(0)
    state = started(rules)
    waiting = open_requests(state)[0]
    for _ in range(5):
        state, _ = step(rules, state, reply_to(open_requests(state)[-1], small_delta(rng)))
    again = open_requests(state, only=waiting.id)[0]
    np.testing.assert_equal(again._asdict(), waiting._asdict())
    assert not np.array_equal(state.q["linear"], again.q["linear"])
    assert len(state.issued) <= len(NAMES) + 1, "posteriors nobody waits for are kept"


def test_nothing_changes_after_the_end():
    rules = rules_for("synchronous", rounds=1)
    state = started(rules)
    replies = [reply_to(r, small_delta(np.random.default_rng(0))) for r in open_requests(state)]
    state, _ = step_together(rules, state, replies)
    assert state.finished == "rounds"
    after, log = step_together(rules, state, replies)
    assert_equal_states(after, state)
    assert [line["event"] for line in log] == ["ignored"] * 4


def test_one_bad_reply_of_many_changes_nothing():
    rules, rng = rules_for("synchronous"), np.random.default_rng(0)
    state = freeze(started(rules))
    replies = [reply_to(request, small_delta(rng)) for request in open_requests(state)]
    replies[2] = replies[2]._replace(version=5)
    with pytest.raises(PeerError, match="version 5"):
        step_together(rules, state, replies)


def test_an_improper_prior_is_refused_at_the_start():
    rules = replace(rules_for("sequential"), prior=FAMILY.zero())
    with pytest.raises(ConfigError, match="not a proper distribution"):
        begin(rules, initial_state(rules))


def test_the_first_requests_say_that_q_is_still_the_prior():
    rules, rng = rules_for("sequential"), np.random.default_rng(0)
    state = started(rules)
    state, _ = step(rules, state, reply_to(open_requests(state)[0], spoiling_delta()))
    assert open_requests(state)[0].initial, "a refused update left q at the prior"
    state, _ = step(rules, state, reply_to(open_requests(state)[0], small_delta(rng)))
    assert not open_requests(state)[0].initial


def test_damping_follows_its_schedule_round_by_round():
    rules = rules_for("synchronous", damping=Damping(start=1.0, end=0.2, rounds=5), rounds=7)
    state, rng, seen = started(rules), np.random.default_rng(0), []
    while not state.finished:
        requests = open_requests(state)
        seen.append({request.damping for request in requests})
        replies = [reply_to(request, small_delta(rng, 0.01)) for request in requests]
        state, _ = step_together(rules, state, replies)
    assert [round(next(iter(values)), 12) for values in seen] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]


def test_mean_field_states_obey_the_same_law():
    family = MeanFieldGaussian(2)
    prior = family.natural(mean=np.zeros(2), sd=np.ones(2))
    rules = Rules(family, Sequential(rounds=5, damping=1.0), NAMES, 1, prior)
    state, rng = started(rules), np.random.default_rng(0)
    while not state.finished:
        delta = {"linear": rng.normal(size=2), "quadratic": -rng.uniform(size=2)}
        state, _ = step(rules, state, reply_to(open_requests(state)[0], delta))
        assert_identity(rules, state)
