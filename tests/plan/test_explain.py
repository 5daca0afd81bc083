"""Who is protected from whom: the table says what the accountant says about what each one sees."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.errors import ConfigError
from tacit.methods import DPSGD, PrivateUpdate
from tacit.models import LogisticRegression
from tacit.plan.explain import explain
from tacit.plan.plan import make_plan
from tacit.privacy.accounting import epsilon
from tacit.privacy.guarantee import TRUST
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Synchronous

PARTIES = 5
DELTA = 1e-4
MODEL = LogisticRegression(("a", "b"), prior_sd=1.0)
OUTSIDE = ("reads the final model", "reads the model of every round")


def plan_of(method, *, parties=PARTIES, trust=None, **privacy) -> Any:
    rng = np.random.default_rng(0)
    records = {
        f"site-{i}": {"x": rng.normal(size=(30, 2)), "y": (rng.random(30) < 0.5).astype(float)}
        for i in range(parties)
    }
    asked = Privacy(**{"epsilon": 2.0, "delta": DELTA, **privacy})
    return make_plan(
        MODEL, records, method=method, schedule=Synchronous(rounds=4), privacy=asked, trust=trust
    )


@pytest.fixture(scope="module")
def plain():
    return plan_of(DPSGD())


@pytest.fixture(scope="module")
def trusted():
    return plan_of(PrivateUpdate(shards=1), aggregation="trusted")


def rows_of(plan, **how):
    return {row.attacker: row for row in explain(plan, **how).rows}


def cost(plan, share):
    """ε of a run whose noise has only that share of its standard deviation."""
    settled = next(iter(plan.settled.values()))
    events = [
        msgspec.structs.replace(event, noise_sd=event.noise_sd * share)
        for event in settled.all_events
    ]
    return epsilon(events, DELTA, plan.privacy.adjacency)


def test_private_messages_protect_from_everybody_alike(plain):
    found = explain(plain)
    assert found.party in plain.parties
    assert (found.unit, found.adjacency, found.delta) == ("record", "replace-one", DELTA)
    assert {row.attacker for row in found.rows} == {
        *OUTSIDE, "eavesdrops", "one curious party", "4 colluding parties", "the server",
    }  # fmt: skip
    values = {row.unit_epsilon for row in found.rows}
    assert len(values) == 1
    assert values.pop() == pytest.approx(plain.guarantee.epsilon, rel=1e-9)


def test_the_party_with_the_weakest_guarantee_is_shown():
    plan = plan_of(DPSGD(), parties=3, epsilon=1.0)
    asked = msgspec.structs.replace(plan.privacy, parties={"site-1": {"epsilon": 3.0}})
    plan = make_plan(MODEL, plan.parties, schedule=Synchronous(rounds=2), privacy=asked)
    found = explain(plan)
    assert found.party == "site-1"
    assert found.rows[0].unit_epsilon == pytest.approx(3.0, rel=1e-3)


def test_shared_noise_protects_less_from_who_sees_single_messages(trusted):
    rows = rows_of(trusted)
    for name in OUTSIDE:
        assert rows[name].unit_epsilon == pytest.approx(trusted.guarantee.epsilon, rel=1e-9)
    seen = cost(trusted, 1.0 / math.sqrt(PARTIES))
    assert seen > 1.5 * trusted.guarantee.epsilon
    for name in ("eavesdrops", "the server"):
        assert rows[name].unit_epsilon == pytest.approx(seen, rel=1e-6)
        assert rows[name].remark
    assert rows["one curious party"].unit_epsilon == pytest.approx(
        cost(trusted, math.sqrt((PARTIES - 1) / PARTIES)), rel=1e-6
    )


def test_exact_messages_protect_from_neither_the_server_nor_the_channel():
    rows = rows_of(plan_of(PrivateUpdate(shards=1), aggregation="server", unit="party"))
    for name in ("eavesdrops", "the server"):
        assert rows[name].unit_epsilon is None
        assert "messages are exact" in rows[name].remark
    assert rows["one curious party"].unit_epsilon == rows[OUTSIDE[0]].unit_epsilon


@pytest.mark.parametrize("method", [DPSGD(), PrivateUpdate(shards=4, adaptive=0.5)])
def test_a_common_noise_that_is_divided_by_the_clip_needs_one_clip(method):
    asked = Privacy(
        epsilon=2.0, delta=DELTA, aggregation="trusted", parties={"site-1": {"clip": 0.01}}
    )
    records = {f"site-{i}": {"x": np.ones((9, 2)), "y": np.ones(9)} for i in range(3)}
    with pytest.raises(ConfigError, match=r"all parties must have the clip method\.clip"):
        make_plan(MODEL, records, method=method, schedule=Synchronous(rounds=4), privacy=asked)


def test_more_colluding_parties_see_more(trusted):
    found = []
    for k in range(1, PARTIES):
        rows = rows_of(trusted, colluding=k)
        name = "one curious party" if k == 1 else f"{k} colluding parties"
        found.append(rows[name].unit_epsilon)
        share = math.sqrt((PARTIES - k) / PARTIES)
        assert found[-1] == pytest.approx(cost(trusted, share), rel=1e-6)
    assert found == sorted(found)
    assert found[0] < found[-1]
    # All but one know as much as the server; there are no more of them than that.
    assert found[-1] == pytest.approx(rows_of(trusted)["the server"].unit_epsilon, rel=1e-9)
    assert explain(trusted, colluding=99) == explain(trusted, colluding=PARTIES - 1)


def test_whoever_holds_the_records_is_not_protected_from():
    plan = plan_of(DPSGD(), parties=1, trust=TRUST["central"])
    rows = rows_of(plan, central=True)
    server = rows["the server"]
    assert (server.unit_epsilon, server.party_epsilon) == (None, None)
    assert "trusted" in server.remark
    assert rows["reads the final model"].unit_epsilon == pytest.approx(plan.guarantee.epsilon)
    assert not any("party" in name for name in rows), "there is nobody else"


def test_groups_are_told_by_their_releases_and_by_the_general_rule(plain):
    found: dict[int, Any] = {
        size: (direct, general) for size, direct, general in explain(plain).groups
    }
    assert list(found) == [2, 5, 10]
    one = plain.guarantee.epsilon
    settled = next(iter(plain.settled.values()))
    for size, (direct, general) in found.items():
        # MEng eq. 3.8: (tε, δ Σ_{i<t} e^{iε}).
        total = DELTA * sum(math.exp(i * one) for i in range(size))
        assert general[0] == pytest.approx(size * one)
        assert general[1] == pytest.approx(min(1.0, total))
        # Without sampling t records move a sum t times as far.
        moved = [
            msgspec.structs.replace(event, clip=event.clip * size) for event in settled.all_events
        ]
        assert direct == pytest.approx(epsilon(moved, DELTA, "replace-one"), rel=1e-9)
    assert found[2][0] < found[5][0] < found[10][0]


def test_a_group_larger_than_the_party_is_not_told():
    rng = np.random.default_rng(0)
    few = {"x": rng.normal(size=(4, 2)), "y": np.array([0.0, 1.0, 0.0, 1.0])}
    plan = make_plan(
        MODEL, {"a": few, "b": few}, schedule=Synchronous(rounds=1), privacy=Privacy(epsilon=1.0)
    )
    assert [size for size, *_ in explain(plan).groups] == [2]
    # Four records exchanged are the whole party.
    whole, pair = explain(plan).rows[0].party_epsilon, explain(plan).groups[0][1]
    assert whole is not None
    assert pair is not None
    assert whole > pair


def test_a_party_as_the_unit_has_no_groups():
    plan = plan_of(PrivateUpdate(shards=1), unit="party")
    found = explain(plan)
    assert found.groups == ()
    assert all(row.party_epsilon == pytest.approx(row.unit_epsilon) for row in found.rows)


def test_one_shard_bounds_the_whole_party():
    """What is released is one clipped change: exchanging all records moves it no further."""
    plan = plan_of(PrivateUpdate(shards=1))
    found = explain(plan)
    for row in found.rows:
        assert row.party_epsilon == pytest.approx(row.unit_epsilon)
    assert all(direct == pytest.approx(found.rows[0].unit_epsilon) for _, direct, _ in found.groups)


def test_without_privacy_nobody_is_protected():
    plan = plan_of(DPSGD())
    bare = make_plan(MODEL, plan.parties, schedule=Synchronous(rounds=1))
    rows = explain(bare).rows
    assert rows
    assert all(row.unit_epsilon is None and row.party_epsilon is None for row in rows)
