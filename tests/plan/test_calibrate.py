"""What was asked for becomes noise, events and a guarantee, or a refusal that says why."""

import math
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest

from tacit.errors import ConfigError
from tacit.methods import DPSGD, PrivateUpdate
from tacit.models.glm.logistic import LogisticRegression
from tacit.plan.calibrate import LargeDeltaWarning, PartyShape, settle
from tacit.plan.checks import Live
from tacit.plan.explain import explain
from tacit.plan.plan import make_plan
from tacit.privacy.accounting import epsilon
from tacit.privacy.events import GaussianEvent, Poisson
from tacit.privacy.guarantee import TRUST
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Synchronous

SHAPES = {"a": PartyShape(visits=4, units=500), "b": PartyShape(visits=9, units=2000)}


@dataclass(frozen=True)
class Sums:
    """A method that releases two sums an answer, one of them from a batch if there is a rate."""

    kind: str = "sums"
    clip: float = 2.0
    unit: str = "record"
    adjacency: str = "replace-one"
    rate: float | None = None
    aggregations: tuple = field(default=("plain", "trusted"))

    def events(self, *, visit, visits, clip, noise_sd, units):
        sampling = None if self.rate is None else Poisson(rate=self.rate)
        return (
            GaussianEvent(clip=clip, noise_sd=noise_sd),
            GaussianEvent(clip=clip, noise_sd=noise_sd, count=3, sampling=sampling),
        )

    def party_clip(self, party, records):
        del party, records
        return self.clip

    def summands(self, units):
        return units


def spent(settled, privacy, delta):
    """ε recomputed from the events that a party will be charged with."""
    return epsilon(settled.all_events, delta, privacy.adjacency, accountant=privacy.accountant)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("rate", [None, 0.05])
@pytest.mark.parametrize("target", [0.5, 8.0])
def test_noise_is_calibrated_to_the_target_and_not_beyond(adjacency, rate, target):
    privacy = Privacy(epsilon=target, delta=1e-6, adjacency=adjacency)
    found = settle(privacy, Sums(rate=rate, adjacency=adjacency), SHAPES)
    assert set(found) == set(SHAPES)
    for name, party in found.items():
        own = spent(party, privacy, 1e-6)
        assert 0.995 * target <= own <= target
        assert party.guarantee.epsilon == own
        assert (party.guarantee.delta, party.guarantee.adjacency) == (1e-6, adjacency)
        assert party.guarantee.trust == TRUST["plain"]
        assert party.guarantee.caveat is None
        assert (party.clip, party.shares, party.visits) == (2.0, 1, SHAPES[name].visits)
        assert all(event.noise_sd == party.noise_sd for event in party.events_at(0))
        assert party.noise_multiplier == pytest.approx(party.noise_sd / 2.0)
    assert found["b"].noise_sd > found["a"].noise_sd, "more visits need more noise"


def test_a_party_may_ask_for_something_else():
    privacy = Privacy(
        epsilon=2.0,
        delta=1e-6,
        parties={
            "a": {"epsilon": 0.7},
            "b": {"delta": 1e-8, "clip": 0.5},
            "c": {"noise_multiplier": 11.0},
        },
    )
    found = settle(privacy, Sums(), SHAPES | {"c": PartyShape(1, 900), "d": PartyShape(1, 900)})
    for name, target, delta in (("a", 0.7, 1e-6), ("b", 2.0, 1e-8), ("d", 2.0, 1e-6)):
        assert found[name].guarantee.delta == delta
        assert 0.995 * target <= found[name].guarantee.epsilon <= target
    assert found["b"].clip == 0.5
    assert {event.clip for event in found["b"].events_at(0)} == {0.5}
    assert found["c"].noise_sd == 22.0
    assert found["c"].guarantee.epsilon == spent(found["c"], privacy, 1e-6)


def test_a_noise_multiplier_is_taken_as_it_is():
    privacy = Privacy(noise_multiplier=6.0, delta=1e-6)
    found = settle(privacy, Sums(), SHAPES)
    for party in found.values():
        assert party.noise_sd == 12.0
        assert party.guarantee.epsilon == spent(party, privacy, 1e-6)
    assert found["a"].guarantee.epsilon < found["b"].guarantee.epsilon


def test_shared_noise_is_that_of_the_neediest_party():
    parties = {"b": {"clip": 5.0}}
    plain = Privacy(epsilon=1.0, delta=1e-6, parties=parties)
    trusted = Privacy(epsilon=1.0, delta=1e-6, parties=parties, aggregation="trusted")
    alone = settle(plain, Sums(), SHAPES)
    found = settle(trusted, Sums(), SHAPES, shares=2)
    neediest = max(party.noise_sd for party in alone.values())
    assert neediest == alone["b"].noise_sd
    for name, party in found.items():
        assert party.noise_sd == pytest.approx(neediest, rel=1e-5)  # by the lattice of a share
        assert party.shares == 2
        (noise,) = {event.noise_sd for event in party.events_at(0)}
        assert noise == party.noise_sd, "of the sum, not a share"
        assert party.guarantee.epsilon == spent(party, trusted, 1e-6) <= 1.0
        assert party.guarantee.trust == TRUST["trusted"]
        assert party.clip == alone[name].clip
    assert found["a"].guarantee.epsilon < 0.5, "it needs less than it is given"


def test_all_events_are_those_of_every_visit():
    found = settle(Privacy(noise_multiplier=5.0, delta=1e-6), Sums(rate=0.1), SHAPES)
    assert [event.count for event in found["b"].all_events] == [9, 27]
    alike = settle(Privacy(noise_multiplier=5.0, delta=1e-6), Sums(), SHAPES)
    assert [event.count for event in alike["b"].all_events] == [36]


@dataclass(frozen=True)
class Fading(Sums):
    """Every answer has more noise than the one before."""

    def events(self, *, visit, visits, clip, noise_sd, units):
        return (GaussianEvent(clip=clip, noise_sd=noise_sd * 2.0**visit),)


def test_answers_that_differ_by_visit_are_each_what_is_charged():
    privacy = Privacy(epsilon=1.0, delta=1e-6)
    found = settle(privacy, Fading(), SHAPES)["b"]
    sds = [found.events_at(visit)[0].noise_sd for visit in range(found.visits)]
    assert sds == [found.noise_sd * 2.0**visit for visit in range(found.visits)]
    assert [event.noise_sd for event in found.all_events] == sds
    assert 0.99 < spent(found, privacy, 1e-6) <= 1.0


def test_a_known_seed_is_said_in_the_guarantee():
    found = settle(Privacy(epsilon=1.0, delta=1e-6, insecure_noise_seed=3), Sums(), SHAPES)
    assert "Not private" in str(found["a"].guarantee)


def test_who_is_trusted_may_be_said_by_the_caller():
    found = settle(Privacy(epsilon=1.0, delta=1e-6), Sums(), SHAPES, trust=TRUST["central"])
    assert found["a"].guarantee.trust == TRUST["central"]


# Refusals.


@pytest.mark.parametrize("bad", [0, 0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["epsilon", "noise_multiplier"])
def test_no_noise_and_no_bound_are_refused(key, bad):
    with pytest.raises(ConfigError, match=rf"privacy\.{key} = .*finite number > 0"):
        Privacy(**{key: bad})
    with pytest.raises(ConfigError, match=rf'privacy\.parties\."a"\.{key} = .*finite number > 0'):
        Privacy(epsilon=1.0, parties={"a": {key: bad}})


def test_both_and_neither_are_refused():
    with pytest.raises(ConfigError, match="give only one"):
        Privacy(epsilon=1.0, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="neither epsilon nor noise_multiplier"):
        Privacy()
    with pytest.raises(ConfigError, match="give only one"):
        Privacy(epsilon=1.0, parties={"a": {"epsilon": 1.0, "noise_multiplier": 1.0}})


@pytest.mark.parametrize("delta", [1.0, -1e-5, 2.0, math.nan])
def test_a_delta_outside_of_its_range_is_refused(delta):
    with pytest.raises(ConfigError, match=r"privacy\.delta = "):
        Privacy(epsilon=1.0, delta=delta)
    with pytest.raises(ConfigError, match=r'privacy\.parties\."a"\.delta = '):
        Privacy(epsilon=1.0, parties={"a": {"delta": delta}})


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_that_is_no_norm_is_refused(clip):
    with pytest.raises(ConfigError, match="norm bound"):
        Privacy(epsilon=1.0, parties={"a": {"clip": clip}})


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_outside_of_its_range_is_refused(seed):
    with pytest.raises(ConfigError, match="insecure_noise_seed"):
        Privacy(epsilon=1.0, insecure_noise_seed=seed)


@pytest.mark.parametrize(
    ("asked", "method", "shapes", "shares", "said"),
    [
        ({"parties": {"z": {}}}, Sums(), SHAPES, 1, "'z', which is not a party"),
        ({"aggregation": "trusted"}, Sums(), SHAPES, 1, "a round has 1 party"),
        (
            {"aggregation": "trusted"},
            Sums(aggregations=("plain",)),
            SHAPES,
            2,
            "'trusted' is not supported by method.kind = 'sums'; choose one of plain",
        ),
        ({}, Sums(unit="party"), SHAPES, 1, "the method has unit 'party'"),
        ({}, Sums(), {"a": PartyShape(0, 10)}, 1, "party 'a' is never visited"),
        ({"accountant": "guess"}, Sums(), SHAPES, 1, "accountant = 'guess'; choose from 'pld'"),
        (
            {"adjacency": "similar"},
            Sums(adjacency="similar"),
            SHAPES,
            1,
            "adjacency = 'similar'; choose from",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(asked, method, shapes, shares, said):
    with pytest.raises(ConfigError, match=said):
        settle(Privacy(epsilon=1.0, delta=1e-6, **asked), method, shapes, shares=shares)


def test_an_accountant_that_has_no_answer_is_refused():
    asked = {"noise_multiplier": 1e-4, "delta": 1e-6, "adjacency": "add-or-remove-one"}
    with pytest.raises(ConfigError, match=r"party 'a': .* no finite ε for noise of sd 0\.0002"):
        settle(Privacy(**asked), Sums(rate=0.1, adjacency="add-or-remove-one"), SHAPES)
    with pytest.raises(ConfigError, match=r"moments accountant has no bound .* use 'pld'"):
        settle(Privacy(epsilon=1.0, delta=1e-6, accountant="moments"), Sums(rate=0.1), SHAPES)


def test_a_delta_that_one_record_at_random_would_meet_is_warned_about():
    with pytest.warns(LargeDeltaWarning, match=r"1/n"):
        settle(Privacy(epsilon=1.0, delta=1 / 500), Sums(), SHAPES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settle(Privacy(epsilon=1.0, delta=1e-6), Sums(), SHAPES)
        settle(Privacy(epsilon=1.0, delta=0.01, unit="party"), Sums(unit="party"), SHAPES)


def test_noise_without_replacement_is_the_same_for_every_number_of_records():
    """A server derives the step of the lattice from the plan; each ε is that of the own batches."""
    method = DPSGD(sampling_rate=1 / 3, sampling="without-replacement")
    privacy = Privacy(epsilon=1.0, delta=1e-6)
    shapes = {str(n): PartyShape(visits=5, units=n) for n in (3, 4, 100, 1_001)}
    found = settle(privacy, method, shapes, total_units=1_108)
    assert len({(one.noise_sd, one.events_at(0)[0].step) for one in found.values()}) == 1
    for name, one in found.items():
        sampling = one.events_at(0)[0].sampling
        assert (sampling.batch, sampling.total) == (int(name) // 3, int(name))
        assert one.guarantee.epsilon == spent(one, privacy, 1e-6) <= 1.0
    assert found["3"].guarantee.epsilon > 0.99
    with pytest.raises(ConfigError, match="'2' has only 2 units: a batch of one unit exceeds"):
        settle(privacy, method, {"2": PartyShape(visits=5, units=2)}, total_units=2)
    given = Privacy(noise_multiplier=3.0, delta=1e-6)
    alone = settle(given, method, {"2": PartyShape(visits=5, units=2)}, total_units=2)["2"]
    assert alone.events_at(0)[0].sampling.rate == 0.5, "which its ε counts"


@pytest.mark.parametrize("target", [{"epsilon": 1.0}, {"noise_multiplier": 2.0}])
def test_a_live_server_states_no_smaller_epsilon_than_any_party(target):
    """The average party of 19 has batches of 1 in 19, one of 20 has 2 in 20."""
    method = DPSGD(sampling_rate=0.1, sampling="without-replacement", steps=1)
    names = [f"p{number}" for number in range(10)]

    def plan(own):
        return make_plan(
            LogisticRegression(("c", "a")), {name: {} for name in names} | own, method=method,
            schedule=Synchronous(rounds=20), privacy=Privacy(delta=1e-6, **target),
            live=Live(total_units=190),
        )  # fmt: skip

    def records(count):
        return {"p0": {"x": np.ones((count, 2)), "y": np.zeros(count)}}

    server = plan({})
    stated = server.guarantee.epsilon
    assert stated == pytest.approx(target.get("epsilon", stated), rel=1e-3)
    assert max(row.unit_epsilon for row in explain(server).rows) >= 0.999 * stated
    for count in (10, 19, 20, 100):
        own = plan(records(count))
        assert own.settled["p0"].guarantee.epsilon <= stated == own.guarantee.epsilon
        assert own.settled["p0"].noise_sd == server.settled["p0"].noise_sd
    with pytest.raises(ConfigError, match="'p0' has only 9 units"):
        plan(records(9))


def test_rounding_is_charged_for_as_many_contributions_as_are_added_up():
    privacy = Privacy(noise_multiplier=3.0, delta=1e-6)
    sharded = PrivateUpdate(shards=70_000)
    with pytest.raises(ConfigError, match=r"adds up 70000 contributions, .* at most 65536"):
        settle(privacy, sharded, {"a": PartyShape(visits=2, units=50)}, total_units=50)
    hidden = Privacy(noise_multiplier=3.0, delta=1e-8, adjacency="add-or-remove-one")
    many = {"a": PartyShape(visits=2, units=1 << 21)}
    for parts in (1.0, 8.0):
        with pytest.raises(ConfigError, match="adds up 2097152 contributions"):
            settle(hidden, Sums(adjacency="add-or-remove-one"), many, summed_parts=parts)
