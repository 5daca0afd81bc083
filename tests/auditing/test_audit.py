"""The audit comes near every claim, exceeds none, and finds wrong mechanisms."""

import math

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import tacit.party.compute as party_side
import tacit.plan.plan as plans
import tacit.privacy.bounded as bounded
from tacit.auditing import audit
from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.methods import (
    DPSGD,
    Hybrid,
    PrivateScoring,
    PrivateStatistics,
    PrivateUpdate,
    Whitened,
)
from tacit.models import LinearRegression, LogisticRegression
from tacit.plan.plan import make_plan
from tacit.privacy.mechanisms import Gaussian
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Synchronous
from tacit.testing.local_methods import synthetic_records
from tacit.testing.neighbours import with_persons

LAYOUT = (INTERCEPT, Feature("numeric", "a", -1.0, 1.0), Feature("level", "b=u"))
SCORED = LogisticRegression(("intercept", "a", "b=u"), layout=LAYOUT)
LOGISTIC, LINEAR = LogisticRegression(("a", "b")), LinearRegression(("a",))
TABLE = {
    "x": np.array([[1, 0.2, 1], [1, -0.4, 0], [1, 0.9, 1], [1, -0.1, 0], [1, 0.5, 1], [1, 0, 0.0]]),
    "y": np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]),
}
ADDED, PERSON = {"adjacency": "add-or-remove-one"}, {"unit": "person"}
CASES = {
    "dp-sgd": (DPSGD(), LOGISTIC, {}),
    "dp-sgd, persons, added": (DPSGD(), LOGISTIC, PERSON | ADDED),
    "dp-sgd, sampled": (DPSGD(sampling_rate=0.5), LOGISTIC, {}),
    "dp-sgd, less noise at the end": (DPSGD(noise_end=0.5), LOGISTIC, {}),
    "updates, persons": (PrivateUpdate(shards=1), LINEAR, PERSON),
    "updates, party, added": (PrivateUpdate(shards=1), LINEAR, {"unit": "party"} | ADDED),
    "updates, shared noise": (PrivateUpdate(shards=1), LINEAR, {"aggregation": "trusted"}),
    "updates, party, noise of the server": (
        PrivateUpdate(shards=1),
        LINEAR,
        {"unit": "party", "aggregation": "server"},
    ),
    "statistics, persons": (PrivateStatistics(), LINEAR, PERSON),
    "statistics, added": (PrivateStatistics(), LOGISTIC, ADDED),
    "hybrid": (Hybrid(gradient_clip=0.5), LINEAR, {}),
    "scoring": (PrivateScoring(), SCORED, {}),
    "whitened": (Whitened(inner=DPSGD(), bound=1.5), LOGISTIC, {}),
}


def planned(method, model, how, epsilon=1.0):
    records = TABLE if model is SCORED else synthetic_records(model, 0, count=6)
    records = with_persons(records) if how.get("unit") == "person" else records
    return make_plan(
        model,
        {"a": records, "b": records},
        method=method,
        schedule=Synchronous(rounds=4 if model is SCORED else 2),
        privacy=Privacy(epsilon=epsilon, delta=1e-5, **how),
    )


@pytest.mark.parametrize("name", CASES)
def test_the_bound_comes_near_the_claim_and_stays_below(name):
    found = audit(planned(*CASES[name]), draws=3_000, seconds=1e4, canaries=False)
    assert found.holds, found.findings
    releases = [one for one in found.findings if one.kind == "release"]
    assert releases
    for one in releases:
        assert one.bound >= 0.8 * one.claim, one
        assert one.wrong_noise > one.claim, f"no power: {one}"
    (run,) = (one for one in found.findings if one.kind == "run")
    assert 0.8 * run.claim <= run.bound <= run.claim
    bits = [one.bound for one in found.findings if one.kind == "low bits"]
    assert all(bound == 0.0 for bound in bits)


def scaled_noise(factor):
    return lambda own: (
        lambda self, noise, bounded, *more: own(
            self, jnp.rint(noise * factor).astype(noise.dtype), bounded, *more
        )
    )


def changed_noise(change):
    return lambda own: lambda self, noise, bounded, *more: own(self, change(noise), bounded, *more)


MUTANTS = {
    "half of the noise": (scaled_noise(0.5), "release"),
    "noise too small by a fifth": (scaled_noise(0.8), "release"),
    "no noise": (scaled_noise(0.0), "release"),
    "no noise on one number": (changed_noise(lambda n: n.at[0].set(0)), "release"),
    "no noise on all but one number": (changed_noise(lambda n: n.at[1:].set(0)), "release"),
    "one noise for all numbers": (changed_noise(lambda n: jnp.full_like(n, n[0])), "release"),
    "noise of two numbers in common": (changed_noise(lambda n: n.at[1].set(n[0])), "release"),
    "the same noise every time": (changed_noise(lambda n: jnp.full_like(n, 12_345)), "reply"),
    "noise without low bits": (changed_noise(lambda n: n // 256 * 256), "low bits"),
}


CLIPS = {
    "twice the clip": lambda own: lambda *of: 2.0 * own(*of),
    "a clip too large by a fifth": lambda own: lambda *of: 1.2 * own(*of),
    "no clip": lambda _: lambda norms, clip, mask: jnp.where(mask, 1.0, 0.0 * norms * clip),
}


@pytest.fixture
def mutate(monkeypatch):
    """Change the mechanism, and forget compiled programs before and after."""

    def change(mutant):
        party_side.compiled.cache_clear()
        monkeypatch.setattr(Gaussian, "release", mutant(Gaussian.release))

    yield change
    party_side.compiled.cache_clear()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_mechanism_is_found(name, mutate):
    mutant, where = MUTANTS[name]
    mutate(mutant)
    plan = planned(PrivateStatistics(), LINEAR, {}, epsilon=0.5)
    found = audit(plan, draws=3_000, seconds=1e4, canaries=False)
    assert not found.holds
    assert where in {one.kind for one in found.findings if not one.holds}, found.findings


@pytest.mark.parametrize("name", CLIPS)
def test_a_wrong_clip_is_found(name, monkeypatch, mutate):
    mutate(lambda own: own)
    monkeypatch.setattr(bounded, "clip_weights", CLIPS[name](bounded.clip_weights))
    plan = planned(PrivateStatistics(), LINEAR, {}, epsilon=0.5)
    found = audit(plan, draws=3_000, seconds=1e4, canaries=False)
    assert {"release", "run"} <= {one.kind for one in found.findings if not one.holds}


def test_half_of_shared_noise_is_found(mutate):
    mutate(scaled_noise(0.5))
    plan = planned(PrivateUpdate(shards=1), LINEAR, {"aggregation": "trusted"})
    assert not audit(plan, draws=3_000, seconds=1e4, canaries=False).holds


def test_noise_that_the_server_forgets_is_found(monkeypatch):
    """Or has too little of, in the last round."""
    how = {"unit": "party", "aggregation": "server"}
    plan = planned(PrivateUpdate(shards=1), LINEAR, how)
    own = plans.DiscreteGaussian.draw
    for factor in (0.0, 0.5):
        monkeypatch.setattr(
            plans.DiscreteGaussian, "draw",
            lambda self, count, factor=factor: (factor * own(self, count)).astype(np.int64),
        )  # fmt: skip
        found = audit(plan, draws=1_024, seconds=1e4, canaries=False)
        assert "release" in {one.kind for one in found.findings if not one.holds}


def test_noise_that_is_missing_at_the_end_is_found(monkeypatch, mutate):
    """Charged as planned, but added with half of the scale that the last visit needs."""
    mutate(lambda own: own)
    plan = planned(DPSGD(noise_end=2.0), LOGISTIC, {})
    private = party_side._private_parts

    def weak(agreement, requests, settled, keys):
        terms, secrets, noise = private(agreement, requests, settled, keys)
        return terms, secrets, noise // (1 + (requests[0].visit > 0))

    monkeypatch.setattr(party_side, "_private_parts", weak)
    found = audit(plan, draws=1_024, seconds=1e4, canaries=False)
    wrong = [one.what for one in found.findings if not one.holds and one.kind == "release"]
    assert wrong == ["update at visit 2, release 1"]


def test_an_exact_number_in_the_reply_is_found(monkeypatch):
    own = party_side.answer_many

    def leaking(agreement, stack, *more):
        sums = np.asarray(stack["y"]).reshape(len(more[1]), -1).sum(axis=1)
        return [
            one._replace(loss=float(total))
            for one, total in zip(own(agreement, stack, *more), sums, strict=True)
        ]

    monkeypatch.setattr(party_side, "answer_many", leaking)
    plan = planned(PrivateStatistics(), LINEAR, {}, epsilon=0.5)
    found = audit(plan, draws=1_024, seconds=1e4, canaries=False)
    assert {one.kind for one in found.findings if not one.holds} == {"reply"}


def test_a_wrong_charge_is_found():
    """Charged as if the sum had half of its clip: the claim is lower, the release the same."""
    plan = planned(PrivateStatistics(), LINEAR, {})
    settled = plan.settled["a"]
    guarantee = msgspec.structs.replace(settled.guarantee, epsilon=settled.guarantee.epsilon / 2)
    plan.settled["a"] = msgspec.structs.replace(settled, guarantee=guarantee)
    found = audit(plan, draws=1_024, seconds=1e4, canaries=False)
    assert {one.kind for one in found.findings if not one.holds} == {"run"}


def test_canaries_of_a_run_without_enough_noise_are_guessed():
    rng = np.random.default_rng(0)
    x = np.eye(40)[rng.permutation(np.arange(400) % 40)][:, :4] + 0.05 * rng.normal(size=(400, 4))
    records = {"x": np.clip(x, -1, 1), "y": (rng.random(400) < 0.5).astype(float)}
    model = LogisticRegression(tuple("abcd"))
    for multiplier, guessed in ((1e-4, True), (50.0, False)):
        plan = make_plan(
            model,
            {"a": {name: value[:12] for name, value in records.items()}},
            method=PrivateStatistics(),
            schedule=Synchronous(rounds=1),
            privacy=Privacy(noise_multiplier=multiplier, delta=1e-7),
        )
        found = audit(plan, draws=128, seconds=0.0)
        (one,) = (f for f in found.findings if f.kind == "canaries")
        assert one.bound is not None
        assert one.holds
        if not guessed:
            assert one.bound == 0.0
        assert math.isfinite(one.bound)
