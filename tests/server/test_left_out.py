"""A party whose update breaks a bound is left out, and the run goes on without it."""

import numpy as np
import pytest

from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.server.attendance import leave_out, readmit, skip, welcome
from tacit.server.checkpoint import Checkpoint
from tacit.server.combine import floored_step
from tacit.server.messages import Reply
from tacit.server.refuse import MAX_REFUSED_IN_A_ROW
from tacit.server.schedule import SCHEDULES
from tacit.server.state import Rules, initial_state, open_requests
from tacit.server.step import begin, step

REASON = "its update breaks a bound (precision of 'age' 3e+07, at most 1.2e+03)"


NAMES = ("a", "b", "c", "d")


def started(kind, *, noisy=False, rounds=50, **options):
    """Four parties, a standard normal prior; noisy updates are summed over a floor."""
    family = MeanFieldGaussian(2) if noisy else FullGaussian(2)
    precision = -0.5 * (np.ones(2) if noisy else np.eye(2))
    rules = Rules(
        family,
        SCHEDULES[kind](rounds=rounds, damping=1.0),
        NAMES,
        seed=1,
        prior={"linear": np.zeros(2), "quadratic": precision},
        combine=floored_step(lambda _q, _number: np.full(2, 1e-3)) if noisy else None,
        **options,
    )
    return rules, begin(rules, initial_state(rules))


def good(request, size=0.5):
    quadratic = -0.5 * size * np.eye(2)
    if request.q["quadratic"].ndim == 1:
        quadratic = np.diagonal(quadratic).copy()
    delta = {"linear": np.full(2, size), "quadratic": quadratic}
    return Reply(request.id, request.party, request.version, delta, 1.0)


def bad(request):
    sign = -50.0 * np.asarray(request.q["quadratic"])
    return good(request)._replace(released={"linear": np.zeros(2), "quadratic": sign})


def answered(rules, state, *, but=()):
    """One answer of everybody who is asked."""
    for request in open_requests(state):
        if request.party not in but and not state.finished and request.id in state.open:
            state, _ = step(rules, state, good(request))
    return state


def same_product(rules, state):
    total = {name: value.copy() for name, value in rules.prior.items()}
    for factor in state.factors.values():
        for name in total:
            total[name] = total[name] + factor.natural[name]
    for name, value in total.items():
        np.testing.assert_allclose(state.q[name], value, atol=1e-12)


@pytest.mark.parametrize("kind", ["synchronous", "sequential", "asynchronous"])
def test_its_factor_is_divided_out_and_it_is_not_asked(kind):
    rules, state = started(kind)
    for _ in range(6):
        state = answered(rules, state)
    state, log = leave_out(rules, state, "b", REASON)
    assert log[0] | {"round": 0} == {
        "event": "left out", "party": "b", "round": 0, "reason": REASON, "factor": "divided out"
    }  # fmt: skip
    assert not np.any(state.factors["b"].natural["linear"])
    same_product(rules, state)
    for _ in range(12):
        assert all(request.party != "b" for request in open_requests(state))
        state = answered(rules, state)
    assert state.left_out["b"]["reason"] == REASON
    state = welcome(rules, state, "b")
    assert all(request.party != "b" for request in open_requests(state))


@pytest.mark.parametrize("kind", ["synchronous", "sequential", "asynchronous"])
def test_readmitted_it_is_asked_again(kind):
    rules, state = started(kind)
    state, _ = leave_out(rules, state, "b", REASON)
    state = answered(rules, state)
    state, log = readmit(rules, state, "b")
    assert [line["event"] for line in log] == ["readmitted"]
    asked = set()
    for _ in range(8):
        asked |= {request.party for request in open_requests(state)}
        state = answered(rules, state)
    assert asked == set(NAMES)
    same_product(rules, state)
    assert readmit(rules, state, "b") == (state, ())


def test_the_last_one_that_a_round_waits_for_ends_it():
    rules, state = started("synchronous")
    state = answered(rules, state, but="b")
    assert state.round == 0
    state, log = leave_out(rules, state, "b", REASON)
    assert [line["event"] for line in log] == ["left out", "round"]
    assert state.round == 1
    assert state.applied == 3


def test_of_a_noisy_sum_nothing_can_be_taken_out_and_the_log_says_so():
    rules, state = started("synchronous", noisy=True)
    _, log = leave_out(rules, state, "b", REASON)
    assert log[0]["factor"] == "nothing yet"
    state = answered(rules, state)
    q = state.q
    state, log = leave_out(rules, state, "b", REASON)
    assert "only the noisy sum" in log[0]["factor"]
    assert state.q is q


def test_too_few_are_named():
    rules, state = started("synchronous", quorum=3)
    state, _ = leave_out(rules, state, "b", REASON)
    state = answered(rules, state, but="c")
    assert state.round == 0
    state, log = leave_out(rules, state, "c", REASON)
    assert state.finished == "too few parties"
    assert log[-1]["left_out"] == ["b", "c"]
    assert log[-1]["quorum"] == 3


def test_everybody_left_out_ends_the_run():
    for kind in ("synchronous", "sequential", "asynchronous"):
        rules, state = started(kind)
        for name in NAMES:
            state, _ = leave_out(rules, state, name, REASON)
        assert state.finished == "all parties left"


@pytest.mark.parametrize("kind", ["synchronous", "sequential", "asynchronous"])
def test_a_party_that_alone_makes_q_improper_round_after_round_does_not_end_a_live_run(kind):
    rules, state = started(kind, leave_out=True, rounds=200)
    lines = []
    for _ in range(40 * (MAX_REFUSED_IN_A_ROW + 2)):
        if "b" in state.left_out:
            break
        request = open_requests(state)[0]
        # Alone it spoils the round; in turn, the others do not get to speak in between.
        spoils = request.party == "b" or kind != "synchronous"
        reply = bad(request) if spoils and request.party == "b" else good(request, 1e-6)
        if kind != "synchronous" and request.party != "b":
            state, _ = leave_out(rules, state, request.party, "to have b alone here")
            continue
        state, log = step(rules, state, reply)
        lines += log
    found = [line for line in lines if line["event"] == "left out"]
    assert [line["party"] for line in found] == ["b"]
    assert "because of this party" in found[0]["reason"]
    if kind == "synchronous":
        assert not state.finished
        state = answered(rules, state)
        assert state.applied >= 3


def test_a_party_whose_update_is_proper_but_absurd_is_left_out_at_once():
    """|mean| = 10²⁰: refused with the others' before, and the party was not named."""
    rules, state = started("synchronous", leave_out=True, quorum=2)
    lines = []
    for request in open_requests(state):
        reply = good(request)
        if request.party == "b":
            reply = reply._replace(released=reply.released | {"linear": np.full(2, 1e20)})
        state, log = step(rules, state, reply)
        lines += log
    assert [line["party"] for line in lines if line["event"] == "left out"] == ["b"]
    for _ in range(3):
        state = answered(rules, state)
    assert state.applied == 9
    assert not state.finished


def test_two_parties_that_are_improper_only_together_are_both_named():
    """Each takes 0.6 of the prior's precision away: without either one q would be proper."""
    rules, state = started("synchronous", leave_out=True, rounds=60)
    lines = []
    while not state.left_out and state.round < 40:
        for request in open_requests(state):
            reply = good(request, 1e-9)
            if request.party in ("b", "c"):
                away = {"linear": np.zeros(2), "quadratic": 0.3 * np.eye(2)}
                reply = reply._replace(released=away)
            state, log = step(rules, state, reply)
            lines += log
    assert set(state.left_out) == {"b", "c"}
    assert any(line.get("improper_alone") == ["b", "c"] for line in lines)


def test_it_survives_a_restart(tmp_path):
    rules, state = started("synchronous")
    state, log = leave_out(rules, state, "b", REASON)
    checkpoint = Checkpoint(tmp_path / "server.sqlite", digest="d")
    checkpoint.save(state, log)
    checkpoint.close()
    again = Checkpoint(tmp_path / "server.sqlite", digest="d")
    loaded = again.load()
    again.close()
    assert loaded is not None
    assert loaded[0].left_out == state.left_out
    assert loaded[0].not_asked == {"b"}
    assert loaded[1] == log


def test_a_late_party_and_one_left_out_do_not_count_for_a_quorum():
    rules, state = started("sequential", quorum=2)
    state, _ = leave_out(rules, state, "b", REASON)
    state, _ = skip(rules, state, ["a"])
    assert {request.party for request in open_requests(state)} == {"c"}
