"""A clip that walks to a quantile: what it costs is charged, and it arrives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_party import OneParty

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.methods import DPSGD
from tacit.models import LogisticRegression
from tacit.plan.plan import make_plan
from tacit.privacy.bounded import Tally, clip_units
from tacit.privacy.settings import Privacy
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Request
from tacit.server.schedule import Synchronous

MODEL = LogisticRegression(("a", "b", "c"), prior_sd=1.0)


@pytest.fixture(scope="module")
def parties(make_parties):
    return make_parties((400, 600), output="bernoulli")


def plan_of(parties, method, *, rounds=30, **privacy) -> Any:
    asked = {"epsilon": 4.0, "delta": 1e-5, "insecure_noise_seed": 1, "accountant": "rdp"} | privacy
    schedule = Synchronous(rounds=rounds)
    return make_plan(MODEL, parties, method=method, schedule=schedule, privacy=Privacy(**asked))


@pytest.mark.parametrize("target", [0.3, 0.8])
def test_it_walks_to_the_same_clip_from_anywhere(parties, target):
    ends = []
    for clip in (0.01, 30.0):
        state = carry_out(plan_of(parties, DPSGD(clip=clip, adaptive=target), rounds=40)).state
        ends.append(clip * float(np.exp(state.public["log_scale"])))
    assert ends[0] == pytest.approx(ends[1], rel=0.25)
    # Norms of logistic scores are of the order of |x|, here about √3.
    assert 0.1 < ends[0] < 5.0


def test_a_larger_quantile_is_a_larger_clip(parties):
    ends = [
        float(carry_out(plan_of(parties, DPSGD(adaptive=share))).state.public["log_scale"])
        for share in (0.2, 0.9)
    ]
    assert ends[0] < ends[1] - 0.2


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_what_it_costs_is_what_was_settled(parties, rate):
    """The run would be refused otherwise; the count has its own part in the clip."""
    method = DPSGD(clip=2.0, adaptive=0.5, sampling_rate=rate)
    plan = plan_of(parties, method, rounds=2, accountant="pld")
    assert carry_out(plan).state.finished == "rounds"
    (event,) = plan.settled["site-0"].events_at(0)
    assert event.clip == pytest.approx(np.hypot(2.0, 0.5))


BOUND = float(np.hypot(3.0, 0.75))
TALLY = Tally(jnp.asarray(1.5), jnp.asarray(BOUND))
numbers = st.one_of(st.floats(-1e3, 1e3), st.sampled_from([np.nan, np.inf, 1e30]))
vector = st.lists(numbers, min_size=2, max_size=2)


@jax.jit
def tallied(rows):
    found = clip_units(rows, 3.0, tally=TALLY)
    return *found.value, found.clip


@settings(max_examples=60, deadline=None)
@given(rest=st.lists(vector, min_size=2, max_size=2), pair=st.tuples(vector, vector))
def test_sum_and_count_together_are_within_the_clip(rest, pair):
    def made(one):
        *sums, clip = tallied(np.array([one, *rest]))
        assert float(clip) == BOUND
        return np.append(*sums), float(clip)

    (first, clip), (second, _) = made(pair[0]), made(pair[1])
    assert np.linalg.norm(first - second) <= 2 * clip


def test_a_bound_that_is_too_small_is_no_bound():
    found = clip_units(jnp.ones((1, 2)), 3.0, tally=TALLY._replace(bound=jnp.asarray(3.05)))
    assert np.isnan(found.clip)


@pytest.mark.parametrize("clip", [0.35, 0.77, 1.1, 3.3])
def test_any_clip_costs_what_was_settled_to_the_last_bit(parties, clip):
    plan = plan_of(parties, DPSGD(clip=clip, clip_end=0.3, adaptive=0.5), rounds=3)
    assert carry_out(plan).state.finished == "rounds"


@pytest.mark.parametrize("far", [45.0, 1e30, -1e30])
def test_a_hostile_scale_goes_no_farther_than_the_server_s_own(parties, far):
    """Beyond it float32 squares vanish, and with them the norm that is clipped."""
    plan = plan_of(parties, DPSGD(adaptive=0.5), rounds=2)
    settled = plan.settled["site-0"]
    seat = OneParty(plan.agreement, "site-0", parties["site-0"], settled)
    deltas = []
    for at in (far, np.sign(far) * 30.0):
        q, public = plan.model.prior(plan.family), {"log_scale": np.asarray(at)}
        request = Request(
            "r0", "site-0", 0, 0, q, plan.family.zero(), 1.0, initial=True, public=public
        )
        deltas.append(plan.read_released(request, seat.answer(request).released))
    np.testing.assert_allclose(deltas[0]["linear"], deltas[1]["linear"])


def test_the_bound_of_sum_and_count_is_reached():
    def made(scale):
        found = clip_units(jnp.asarray([[scale, 0.0]]), 3.0, tally=TALLY)
        return np.append(found.value[0], found.value[1]), float(found.clip)

    # One just within the clip, one far beyond it on the other side: both parts are at their ends.
    (first, clip), (second, _) = made(3.0 * (1 - 2e-6)), made(-1e6)
    assert np.linalg.norm(first - second) >= 0.99 * 2 * clip


def test_a_resumed_run_is_the_same(parties, tmp_path):
    plan = plan_of(parties, DPSGD(adaptive=0.5), rounds=6)
    whole = carry_out(plan).state.q

    class StopError(Exception):
        pass

    def stop(state, _log):
        if state.round == 3:
            raise StopError

    path = tmp_path / "state.sqlite"
    with pytest.raises(StopError):
        carry_out(plan, checkpoint=Checkpoint(path, digest="it"), observe=stop)
    resumed = carry_out(plan, checkpoint=Checkpoint(path, digest="it")).state.q
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value)


def test_a_share_of_a_secret_number_is_refused(parties):
    with pytest.raises(ConfigError, match="keeps the number of records secret"):
        plan_of(parties, DPSGD(adaptive=0.5), adjacency="add-or-remove-one")
    with pytest.raises(ConfigError, match=r"method\.adaptive = 1\.0"):
        DPSGD(adaptive=1.0)
