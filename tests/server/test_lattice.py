"""Integers at the server: read by the agreed step, summed exactly, floats refused."""

from typing import Any

import numpy as np
import pytest

from tacit.engines.execute import carry_out
from tacit.engines.in_process import InProcess
from tacit.errors import ConfigError, TacitError
from tacit.methods import PrivateStatistics, PrivateUpdate
from tacit.models import LinearRegression
from tacit.plan.plan import first_factors, make_plan
from tacit.privacy.settings import Privacy
from tacit.server.messages import Reply, decode_reply, encode_reply, pack_natural, unpack_natural
from tacit.server.schedule import Synchronous
from tacit.server.state import initial_state, open_requests
from tacit.server.step import begin, step_together

MODEL = LinearRegression(("a", "b"))


def plan_of(method, aggregation: Any = "plain", rounds=2) -> Any:
    rng = np.random.default_rng(1)
    parties = {
        name: {"x": rng.normal(size=(count, 2)), "y": rng.normal(size=count)}
        for name, count in (("north", 20), ("south", 30), ("west", 25))
    }
    return make_plan(
        MODEL, parties, method=method, schedule=Synchronous(rounds=rounds),
        privacy=Privacy(
            noise_multiplier=1.0, delta=1e-3, insecure_noise_seed=4, aggregation=aggregation
        ),
    )  # fmt: skip


def replies_of(plan, state):
    rng = np.random.default_rng(2)
    shapes = plan.rules.lattice.shapes("update")
    return [
        Reply(
            request.id, request.party, request.version,
            {name: rng.integers(-(2**40), 2**40, shape) for name, shape in shapes.items()}, None,
        )
        for request in open_requests(state)
    ]  # fmt: skip


@pytest.mark.parametrize("method", [PrivateStatistics(), PrivateUpdate(shards=5)])
def test_a_sum_is_the_same_in_any_order_to_the_last_bit(method):
    plan = plan_of(method, "trusted")
    start = begin(plan.rules, initial_state(plan.rules, first_factors(plan)))
    replies = replies_of(plan, start)
    found = [step_together(plan.rules, start, order)[0].q for order in (replies, replies[::-1])]
    for name, value in found[0].items():
        assert value.tobytes() == found[1][name].tobytes()


def test_integers_are_read_by_the_step_of_the_plan():
    plan = plan_of(PrivateUpdate(shards=5))
    start = begin(plan.rules, initial_state(plan.rules, first_factors(plan)))
    (request, *_), (reply, *_) = open_requests(start), replies_of(plan, start)
    event = plan.settled[request.party].events_at(0)[0]
    found = plan.read_released(request, reply.released)
    value = {name: event.step * one for name, one in reply.released.items()}
    change = plan.method._form.natural(request.q, value)
    for name, one in found.items():
        np.testing.assert_allclose(one, request.damping * change[name], rtol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.astype(float),
        lambda value: value.astype(np.int32),
        lambda value: value[:-1],
        lambda value: np.full_like(value, 2**62 + 1),
    ],
    ids=["floats", "short integers", "another shape", "beyond the ring"],
)
@pytest.mark.parametrize("aggregation", ["plain", "trusted"])
def test_anything_but_integers_of_the_stage_is_refused(change, aggregation):
    plan = plan_of(PrivateUpdate(shards=5), aggregation)
    start = begin(plan.rules, initial_state(plan.rules, first_factors(plan)))
    replies = replies_of(plan, start)
    wrong = {name: change(value) for name, value in replies[0].released.items()}
    with pytest.raises(TacitError, match="update of party"):
        step_together(plan.rules, start, [replies[0]._replace(released=wrong), *replies[1:]])


def test_stored_replies_keep_their_type():
    released = {"score": np.array([1, -(2**61)]), "none": np.zeros(3, np.int64)}
    reply = Reply("r1", "north", 2, released, None)
    back = decode_reply(encode_reply(reply)).released
    assert {name: (one.dtype, one.tolist()) for name, one in back.items()} == {
        "score": (np.dtype(np.int64), [1, -(2**61)]),
        "none": (np.dtype(np.int64), [0, 0, 0]),
    }
    floats = {"linear": np.array([0.5, 0.0]), "zero": np.zeros(2)}
    assert all(one.dtype == float for one in unpack_natural(pack_natural(floats)).values())


def test_every_private_reply_of_a_run_is_integers_of_its_own_step():
    seen = []

    class Watched(InProcess):
        def answer(self, requests):
            replies = super().answer(requests)
            seen.extend(zip(requests, replies, strict=True))
            return replies

    plan = plan_of(PrivateStatistics(one_shot=True), rounds=3)
    carry_out(plan, engine=Watched)
    assert len(seen) == 9
    assert all(one.dtype == np.int64 for _, reply in seen for one in reply.released.values())
    first, _, third = ([r for q, r in seen if q.visit == visit] for visit in range(3))
    for one, again in zip(first, third, strict=True):
        for name, value in one.released.items():
            assert np.array_equal(value, again.released[name]), "a repeated release is the same"


def test_sums_that_could_leave_the_ring_are_refused_when_planned():
    rng = np.random.default_rng(1)
    parties = {"a": {"x": rng.normal(size=(9, 2)), "y": rng.normal(size=9)}}
    privacy = Privacy(noise_multiplier=1e-12, delta=1e-3)
    with pytest.raises(ConfigError, match="more than the limit of 2"):
        make_plan(MODEL, parties, method=PrivateStatistics(), privacy=privacy)
