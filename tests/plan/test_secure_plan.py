"""Plans with secure sums: thresholds, noise in shares of q − c, and claims against whom."""

import math

import msgspec
import numpy as np
import pytest
from scipy import stats

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.methods import DPSGD, PrivateScoring, PrivateUpdate
from tacit.models import LogisticRegression
from tacit.party.agent import conclude
from tacit.party.compute import SinglePartyComputer
from tacit.plan.explain import explain
from tacit.plan.plan import first_factors, make_plan
from tacit.privacy.accounting import epsilon
from tacit.privacy.secure_sums import SecureSums
from tacit.privacy.settings import Privacy
from tacit.server.run import ServerRun
from tacit.server.schedule import Asynchronous, Synchronous
from tacit.server.state import initial_state

MODEL = LogisticRegression(("a", "b"), prior_sd=1.0)
DELTA = 1e-4


def plan_of(method=None, *, parties=5, rounds=4, model=MODEL, schedule=None, **privacy):
    rng = np.random.default_rng(0)
    records = {
        f"site-{i}": {"x": rng.normal(size=(30, 2)), "y": (rng.random(30) < 0.5).astype(float)}
        for i in range(parties)
    }
    asked = Privacy(**{"epsilon": 2.0, "delta": DELTA, "aggregation": "secure", **privacy})
    return make_plan(
        model,
        records,
        method=method or PrivateUpdate(),
        schedule=schedule or Synchronous(rounds=rounds),
        privacy=asked,
    )


class SendsFloats(PrivateUpdate):
    def integer_shapes(self, model, family, stage):
        return None


@pytest.mark.parametrize(("given", "parties", "words"), [
    ({}, 2, "a secure sum needs 3"),
    ({"colluding": 4}, 5, r"colluding = 4 with 5 parties; use a number from 1 to 3"),
    ({"threshold": 5}, 9, r"threshold = 5; .* at least 6"),
    ({"quorum": 5}, 10, r"quorum = 5; it must be from 6 \(the threshold\) to 10"),
    ({"quorum": 11}, 10, r"quorum = 11; it must be from 6 \(the threshold\) to 10"),
])  # fmt: skip
def test_thresholds_that_are_not_safe_are_refused(given, parties, words):
    with pytest.raises(ConfigError, match=words):
        SecureSums(**given).among(parties)


def test_settings_that_make_no_sense_are_refused():
    terms = {"epsilon": 1.0, "aggregation": "secure"}
    with pytest.raises(ConfigError, match="colluding"):
        SecureSums(colluding=0)
    with pytest.raises(ConfigError, match="thresholds apply only to aggregation = 'secure'"):
        Privacy(epsilon=1.0, secure=SecureSums(quorum=4))
    with pytest.raises(ConfigError, match=r"privacy\.secure has the key 'qorum'"):
        Privacy(**terms, secure={"qorum": 4})
    assert Privacy(**terms, secure={"quorum": 4}).secure == SecureSums(quorum=4)
    with pytest.raises(ConfigError, match="all parties must use the same clip"):
        Privacy(**terms, parties={"site-1": {"clip": 2.0}})


@pytest.mark.parametrize(("options", "words"), [
    ({"method": DPSGD(steps=2)}, r"steps = 2 cannot be combined with .*aggregation = 'secure'"),
    ({"schedule": Asynchronous(rounds=2)}, "use schedule.kind = 'synchronous'"),
    ({"schedule": Synchronous(rounds=4, parties_per_round=3)}, "sums are over all parties"),
    ({"method": SendsFloats()}, "sends floats at stage 'update'"),
    ({"method": PrivateUpdate(shards=1, form="log-precision"), "unit": "party",
      "secure": SecureSums(quorum=4)}, r"privacy.secure.quorum = 4; set it to 5"),
])  # fmt: skip
def test_what_cannot_be_added_up_in_secret_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        plan_of(**options)


@pytest.mark.parametrize("secure", [
    SecureSums(quorum=4, colluding=1), SecureSums(quorum=5, colluding=2),
])  # fmt: skip
def test_epsilon_against_the_server_and_its_colluders_is_the_claim(secure):
    """Of any sum of q parties, the noise of q − c is left, and it is that of the guarantee."""
    plan = plan_of(secure=secure)
    shares = secure.quorum - secure.colluding
    settled = plan.settled["site-0"]
    assert settled.shares == shares
    assert plan.rules.quorum == secure.quorum
    own = [
        msgspec.structs.replace(event, noise_sd=event.noise_sd / math.sqrt(shares))
        for event in settled.all_events
    ]
    left = [msgspec.structs.replace(one, noise_sd=one.noise_sd * math.sqrt(shares)) for one in own]
    assert epsilon(left, DELTA, plan.privacy.adjacency) == pytest.approx(2.0, rel=1e-3)
    rows = {row.attacker: row for row in explain(plan).rows}
    with_them = "a party" if secure.colluding == 1 else f"{secure.colluding} parties"
    assert rows[f"the server with {with_them}"].unit_epsilon == pytest.approx(2.0, rel=1e-3)
    assert rows["the server"].unit_epsilon == pytest.approx(2.0, rel=1e-3)
    more = rows[f"the server with {secure.colluding + 1} parties"]
    assert more.unit_epsilon is None or more.unit_epsilon > 2.2
    assert "more than the" in more.remark
    assert "any" in plan.guarantee.trust


def test_many_colluders_read_single_messages():
    plan = plan_of(secure=SecureSums(quorum=4))
    rows = {row.attacker: row for row in explain(plan, colluding=3).rows}
    single = [
        msgspec.structs.replace(event, noise_sd=event.noise_sd / math.sqrt(3))
        for event in plan.settled["site-0"].all_events
    ]
    found = rows["the server with 3 parties"]
    assert "single messages" in found.remark
    assert found.unit_epsilon == pytest.approx(
        epsilon(single, DELTA, plan.privacy.adjacency), rel=1e-6
    )


def released(plan, party, secret, settled=None):
    """The integers of a party's first reply, with this noise key."""
    server = ServerRun(plan.rules)
    server.begin(initial_state(plan.rules, first_factors(plan)))
    request = server.requests()[party]
    terms = settled or plan.settled[party]
    computer = SinglePartyComputer(plan.agreement, party, plan.parties[party], terms)
    update = computer.compute([request], {request.id: secret})[request.id]
    return conclude(request, update, plan.settled[party]).released


def test_the_noise_of_a_sum_is_what_was_claimed():
    """Every party adds σ²/(q − c): the sum of n has n/(q − c) times the claimed variance."""
    plan = plan_of(
        PrivateScoring(), noise_multiplier=3.0, epsilon=None, secure=SecureSums(quorum=4)
    )
    event = plan.settled["site-0"].events_at(0)[0]
    draws = []
    for number in range(60):
        first, second = (
            sum(
                released(plan, party, bytes([number, seat, turn]) + bytes(29))["counts"]
                for seat, party in enumerate(plan.parties)
            )
            for turn in (0, 1)
        )
        draws.append(event.step * (first - second) / math.sqrt(2.0))
    found = np.concatenate(draws)
    claimed = event.noise_sd**2 * 5 / 3
    statistic = float(np.sum(found**2)) / claimed
    assert 1e-4 < stats.chi2.cdf(statistic, found.size) < 1 - 1e-4
    # Noise of a fifth each, as if all five had to be there, would be caught.
    assert stats.chi2.cdf(statistic * 3 / 5, found.size) < 1e-4


@pytest.mark.parametrize("method", [PrivateScoring(), DPSGD()], ids=["scoring", "steps"])
def test_a_party_that_adds_less_noise_than_was_charged_sends_nothing(method):
    plan = plan_of(method, secure=SecureSums(quorum=4))
    wrong = msgspec.structs.replace(plan.settled["site-0"], shares=5)
    with pytest.raises(PrivacyBudgetError, match="was charged; nothing is sent"):
        released(plan, "site-0", bytes(32), wrong)
