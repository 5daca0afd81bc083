"""Bounds on replies: no honest reply breaks one, and what no records can lead to does."""

import math

import numpy as np
import pytest

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.engines.in_process import InProcess
from tacit.errors import ConfigError
from tacit.expfam import Gaussian
from tacit.methods import (
    DPSGD,
    Exact,
    NaturalVI,
    PrivateScoring,
    PrivateStatistics,
    PrivateUpdate,
    reply_bounds,
)
from tacit.methods.hybrid import Hybrid
from tacit.methods.reply_bounds import BrokenBound, Exchange, broken_bound, column_bounds
from tacit.methods.reply_bounds_local import Terms, score_limit
from tacit.methods.statistics.method import ExpectedStatistics
from tacit.methods.whitening import Whitened
from tacit.models import LogisticRegression, PoissonRegression, SoftmaxRegression
from tacit.models.glm.linear import LinearRegression
from tacit.models.normal_mean import NormalMean
from tacit.plan.plan import Plan, make_plan
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Asynchronous, Sequential, Synchronous

NAMES = ("intercept", "age", "dose")
LAYOUT = (INTERCEPT, Feature("numeric", "age", -3.0, 3.0), Feature("numeric", "dose", -1.0, 2.0))
SIZES = {"a": 12, "b": 40, "c": 90}
SCHEDULES = [
    Synchronous(rounds=4),
    Synchronous(rounds=4, damping=0.3),
    Sequential(rounds=3, parties_per_round=3),
    Asynchronous(rounds=3),
]


def model_of(kind, prior_sd=1.0):
    common = {"layout": LAYOUT, "prior_sd": prior_sd}
    if kind == "logistic":
        return LogisticRegression(NAMES, **common)
    if kind == "softmax":
        return SoftmaxRegression(NAMES, levels=("p", "q", "r"), **common)
    if kind == "poisson":
        return PoissonRegression(NAMES, max_count=20, **common)
    return LinearRegression(NAMES, bounds=(-9.0, 9.0), **common)


def records_of(kind, rng, rows, extreme=False):
    x = np.stack([np.ones(rows), *(rng.normal(size=(2, rows)) * [[2.0], [1.0]])], axis=1)
    low, high = np.array([1.0, -3.0, -1.0]), np.array([1.0, 3.0, 2.0])
    x = np.clip(x, low, high)
    if extreme:
        x = np.where(x > 0, high, low)
    eta = x @ rng.normal(size=3)
    y = {
        "logistic": lambda: (rng.random(rows) < 1 / (1 + np.exp(-eta))) * 1.0,
        "softmax": lambda: rng.integers(0, 3, rows) * 1.0,
        "poisson": lambda: np.minimum(rng.poisson(np.exp(np.clip(eta, -5, 3))), 20) * 1.0,
        "linear": lambda: np.clip(eta + rng.normal(size=rows), -9, 9),
    }[kind]()
    return {"x": x, "y": np.full(rows, max(y)) if extreme else y}


def exchanges(plan: Plan, counts: dict[str, float]) -> list[Exchange]:
    """Every request of a run with its reply."""
    seen: list[Exchange] = []

    class Watched(InProcess):
        def answer(self, requests):
            replies = super().answer(requests)
            for request, reply in zip(requests, replies, strict=True):
                seen.append(
                    Exchange(
                        request.q, request.factor, request.damping, request.initial, request.visit,
                        plan.read_released(request, reply.released), reply.loss,
                        counts[reply.party],
                        settled=plan.settled.get(reply.party), public=request.public,
                    )
                )  # fmt: skip
            return replies

    carry_out(plan, engine=Watched)
    return seen


def run_of(kind, seed, *, extreme=False, prior_sd=1.0, **plan) -> tuple[Plan, list[Exchange]]:
    rng = np.random.default_rng(seed)
    parties = {
        name: records_of(kind, rng, rows, extreme and name == "a") for name, rows in SIZES.items()
    }
    made = make_plan(model_of(kind, prior_sd), parties, seed=seed, **plan)
    return made, exchanges(made, SIZES)


def found_in(plan: Plan, seen: list[Exchange]) -> list[BrokenBound]:
    found = [broken_bound(plan.model, plan.family, plan.method, one) for one in seen]
    return [one for one in found if one is not None]


@pytest.mark.parametrize("kind", ["logistic", "softmax", "poisson", "linear"])
@pytest.mark.parametrize("family", ["full", "mean-field"])
def test_no_honest_reply_breaks_a_bound(kind, family):
    for number, schedule in enumerate(SCHEDULES):
        for extreme in (False, True):
            prior_sd = (1.0, 100.0)[number % 2]
            plan, seen = run_of(
                kind, number, extreme=extreme, prior_sd=prior_sd, family=family, schedule=schedule
            )
            assert len(seen) >= 9
            assert found_in(plan, seen) == []


@pytest.mark.parametrize(
    ("kind", "method", "family"),
    [
        ("logistic", NaturalVI(steps=3, step_size=0.5), "full"),
        ("softmax", NaturalVI(steps=1, step_size=0.5), "full"),
        ("linear", NaturalVI(), "mean-field"),
        ("linear", NaturalVI(), "full"),
        ("logistic", ExpectedStatistics(), "full"),
        ("logistic", ExpectedStatistics(sampling_rate=0.5), "mean-field"),
        ("linear", ExpectedStatistics(), "mean-field"),
    ],
)
def test_no_honest_reply_of_another_method_breaks_a_bound(kind, method, family):
    for seed, schedule in enumerate(SCHEDULES):
        plan, seen = run_of(kind, seed, method=method, family=family, schedule=schedule)
        assert found_in(plan, seen) == []


PRIVATE = [
    (PrivateScoring(), "auto"),
    (PrivateStatistics(), "full"),
    (PrivateStatistics(), "mean-field"),
    (PrivateStatistics(repair="truncate"), "full"),
    (PrivateStatistics(sampling_rate=0.5), "full"),
    (PrivateUpdate(), "mean-field"),
    (PrivateUpdate(shards=5, adaptive=0.5), "mean-field"),
    (PrivateStatistics(adaptive=0.5), "full"),
    (PrivateStatistics(count_clipped=True), "mean-field"),
    (PrivateUpdate(shards=3, objective="averaged"), "mean-field"),
    (DPSGD(), "mean-field"),
    (DPSGD(sampling_rate=0.4), "mean-field"),
    (DPSGD(precision="per-coordinate"), "mean-field"),
    (DPSGD(precision="fixed", step_size=0.05), "mean-field"),
    (DPSGD(adaptive=0.5), "mean-field"),
    (DPSGD(clip_end=0.5, noise_end=2.0, step_end=0.3), "mean-field"),
    (DPSGD(steps=2), "mean-field"),
    (DPSGD(steps=5, step_size=0.1), "mean-field"),
    (DPSGD(steps=3, sampling_rate=0.4, average_last=0.0), "mean-field"),
    (DPSGD(steps=3, precision="per-coordinate"), "mean-field"),
    (DPSGD(steps=4, precision="fixed", step_size=0.05), "mean-field"),
    (DPSGD(steps=2, adaptive=0.5), "mean-field"),
    (DPSGD(_prior_share=0.5), "mean-field"),
    (DPSGD(optimiser="adam"), "mean-field"),
    (DPSGD(optimiser="adam", steps=4, precision="log-sd"), "mean-field"),
    (DPSGD(optimiser="sgd", steps=3, momentum=0.5), "mean-field"),
    (DPSGD(sampling_rate=0.4, sampling="without-replacement"), "mean-field"),
    (DPSGD(steps=2, sampling_rate=0.4, sampling="without-replacement"), "mean-field"),
    (PrivateStatistics(sampling_rate=0.5, sampling="without-replacement"), "full"),
    (Hybrid(), "mean-field"),
    (Whitened(inner=DPSGD(steps=2), bound=3.0), "mean-field"),
    (Whitened(inner=DPSGD(), bound=3.0), "mean-field"),
    (Whitened(inner=PrivateUpdate(), bound=3.0), "mean-field"),
]


@pytest.mark.parametrize(("method", "family"), PRIVATE)
def test_honest_private_replies_are_bounded_and_inflated_ones_are_not(method, family):
    """Far more than clip, records and noise allow is noticed at every visit."""
    for number, schedule in enumerate((Synchronous(rounds=4), Sequential(rounds=3))):
        for epsilon in (0.5, 20.0):
            privacy = Privacy(epsilon=epsilon, delta=1e-5, insecure_noise_seed=number)
            try:
                plan, seen = run_of(
                    "logistic", number, method=method, family=family, schedule=schedule,
                    privacy=privacy,
                )  # fmt: skip
            except ConfigError:
                assert number == 1, "every method serves a synchronous run"
                continue
            assert found_in(plan, seen) == []
            for one in seen:
                wild = {name: 1e6 * (np.abs(value) + 1.0) for name, value in one.released.items()}
                found = broken_bound(
                    plan.model, plan.family, plan.method, one._replace(released=wild)
                )
                assert found is not None
                assert found.value > found.bound


def test_private_bounds_are_those_of_the_public_terms():
    """Scores of n records, each of norm ≤ 1, and noise: a reply of twice the bound is too long."""
    privacy = Privacy(epsilon=1.0, delta=1e-5, insecure_noise_seed=1)
    plan, seen = run_of("logistic", 0, method=PrivateScoring(), privacy=privacy)
    one = next(exchange for exchange in seen if exchange.visit == 2 and exchange.records == 12)
    event = plan.settled["a"].events_at(2)[0]
    noise = event.noise_sd * math.sqrt(3 + 2 * math.sqrt(3 * 28) + 2 * 28)
    for factor in (0.99, 1.01):
        score = np.full(3, factor * (12 + noise) / math.sqrt(3))
        wild = one._replace(released=one.released | {"score": score})
        found = broken_bound(plan.model, plan.family, plan.method, wild)
        assert (found is None) == (factor < 1)


def test_with_shared_noise_a_party_adds_its_share_only():
    privacy = Privacy(epsilon=1.0, delta=1e-5, insecure_noise_seed=1, aggregation="trusted")
    plan, seen = run_of("logistic", 0, method=PrivateScoring(), privacy=privacy)
    assert found_in(plan, seen) == []
    event = plan.settled["a"].events_at(2)[0]
    noise = event.noise_sd * math.sqrt((3 + 2 * math.sqrt(3 * 28) + 2 * 28) / 3)
    one = next(exchange for exchange in seen if exchange.visit == 2 and exchange.records == 12)
    score = np.full(3, 1.01 * (12 + noise) / math.sqrt(3))
    assert broken_bound(
        plan.model, plan.family, plan.method, one._replace(released=one.released | {"score": score})
    )


def changed(one: Exchange, plan: Plan, *, precision=0.0, linear=0.0) -> Exchange:
    """As if the party's new factor were `precision` and `linear` larger at 'age'."""
    delta = {name: value.copy() for name, value in one.released.items()}
    place = (1, 1) if delta["quadratic"].ndim == 2 else 1
    delta["quadratic"][place] -= 0.5 * one.damping * precision
    delta["linear"][1] += one.damping * linear
    return one._replace(released=delta)


@pytest.mark.parametrize("damping", [1.0, 0.3])
@pytest.mark.parametrize("kind", ["logistic", "softmax", "poisson", "linear"])
def test_what_no_records_can_lead_to_is_named(kind, damping):
    """40 records of |age| ≤ 3: precision ≤ 40·9·c and gradient ≤ 40·3·S, however damped."""
    method = Exact() if kind == "linear" else NaturalVI(steps=1)
    schedule = Synchronous(rounds=4, damping=damping)
    plan, seen = run_of(kind, 5, family="full", schedule=schedule, method=method)
    curvature = {"logistic": 0.25, "softmax": 0.25, "poisson": 2000.0, "linear": 1.0}[kind]
    for one in [exchange for exchange in seen if exchange.records == 40]:
        most = 40 * 9 * curvature
        wide = changed(one, plan, precision=1.2 * most)
        wide = broken_bound(plan.model, plan.family, plan.method, wide)
        assert wide is not None
        assert "precision of" in wide.quantity
        assert "age" in wide.quantity
        assert wide.bound == pytest.approx(most, rel=1e-3)
        far = broken_bound(plan.model, plan.family, plan.method, changed(one, plan, linear=4e6))
        assert far is not None
        assert "gradient of" in far.quantity
        assert "age" in far.quantity
        negative = changed(one, plan, precision=-1.2 * most)
        assert broken_bound(plan.model, plan.family, plan.method, negative) is not None


LOCAL = [
    ("full", Sequential(rounds=3, parties_per_round=3)),
    ("full", Synchronous(rounds=4, parties_per_round=2)),
    ("mean-field", Synchronous(rounds=4, parties_per_round=2)),
    ("mean-field", Synchronous(rounds=4, damping=0.3, parties_per_round=2)),
    ("mean-field", Sequential(rounds=3, parties_per_round=3)),
]


@pytest.mark.parametrize(("family", "schedule"), LOCAL)
@pytest.mark.parametrize("kind", ["logistic", "softmax", "poisson", "linear"])
def test_a_party_that_optimises_alone_cannot_choose_the_mean(kind, family, schedule):
    """A precision that records could have, around a mean that they could not lead to."""
    plan, seen = run_of(kind, 5, family=family, schedule=schedule, method=NaturalVI())
    assert plan.rules.solver is None
    for one in seen:
        limit = _mean_limit(plan, one)
        assert np.all(np.isfinite(limit))
        far = broken_bound(
            plan.model, plan.family, plan.method, changed(one, plan, linear=2.1 * limit[1])
        )
        assert far is not None
        assert far.quantity.startswith("gradient at the cavity's mean of")


def _mean_limit(plan: Plan, one: Exchange) -> np.ndarray:
    curve = reply_bounds._derivatives(plan.model)
    assert curve is not None
    assert isinstance(plan.family, Gaussian)
    bounds, rounding = column_bounds(plan.model), 1e-6
    terms = Terms(one.records, bounds, curve, rounding)
    found = score_limit(plan.family, terms, one.q, one.factor, one.visit)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("family", ["full", "mean-field"])
@pytest.mark.parametrize("kind", ["logistic", "softmax", "poisson", "linear"])
def test_no_honest_local_optimisation_breaks_a_bound(kind, family):
    """Over seeds, priors and schedules, also with records at the corner of their bounds."""
    for seed in range(2):
        for number, schedule in enumerate(SCHEDULES):
            plan, seen = run_of(
                kind, 10 * seed + number, extreme=seed == 1, family=family, schedule=schedule,
                prior_sd=(0.1, 3.0, 1000.0)[(seed + number) % 3], method=NaturalVI(),
            )  # fmt: skip
            assert found_in(plan, seen) == []


@pytest.mark.parametrize("family", ["full", "mean-field"])
def test_no_honest_reply_of_many_records_breaks_a_bound(family, monkeypatch):
    """Near the bound on precision and with sums of 100 000 terms."""
    monkeypatch.setitem(SIZES, "c", 100_000)
    schedule = Sequential(rounds=2, parties_per_round=3)  # each party optimises alone
    plan, seen = run_of("logistic", 3, family=family, schedule=schedule, prior_sd=10.0)
    assert len(seen) == 6
    assert found_in(plan, seen) == []
    for one in seen:
        wrong = one._replace(released={name: 30.0 * value for name, value in one.released.items()})
        if one.visit == 0:
            assert broken_bound(plan.model, plan.family, plan.method, wrong) is not None


def test_the_bounds_are_reached_by_extreme_records():
    """Power: records at the corner come near the bounds, so that n and b are right."""
    rows = SIZES["b"]
    x = np.tile([1.0, 3.0, 2.0], (rows, 1))
    parties = {"b": {"x": x, "y": np.ones(rows)}, "c": {"x": -x, "y": np.ones(rows)}}
    parties["c"]["x"][:, 0] = 1.0
    plan = make_plan(
        model_of("logistic"), parties, family="full", schedule=Synchronous(rounds=1),
        method=NaturalVI(steps=1),
    )  # fmt: skip
    one = exchanges(plan, SIZES)[0]
    assert broken_bound(plan.model, plan.family, plan.method, one) is None
    for records in (0.45 * rows, 0.3 * rows):
        fewer = one._replace(records=records, loss=None)
        assert broken_bound(plan.model, plan.family, plan.method, fewer) is not None


def test_an_update_that_alone_makes_q_improper_is_named_for_any_model():
    parties = {name: {"y": np.full(rows, 2.0)} for name, rows in SIZES.items()}
    plan = make_plan(NormalMean(), parties, schedule=Synchronous(rounds=2))
    seen = exchanges(plan, SIZES)
    assert found_in(plan, seen) == []
    one = seen[-1]
    flipped = one._replace(released={name: -2.0 * value for name, value in one.q.items()})
    found = broken_bound(plan.model, plan.family, plan.method, flipped)
    assert found is not None
    assert "of q times its update" in found.quantity


def test_a_loss_that_no_probability_has():
    plan, seen = run_of("logistic", 1, method=NaturalVI(steps=1))
    for loss in (-1.0, 1e6):
        found = broken_bound(plan.model, plan.family, plan.method, seen[0]._replace(loss=loss))
        assert found is not None
        assert found.quantity == "loss"


def test_the_words():
    broken = BrokenBound("precision of 'age'", 3.1e7, 1204.0)
    assert str(broken) == "precision of 'age' 3.1e+07, at most 1.2e+03"


@pytest.mark.parametrize(
    "method",
    [
        DPSGD(steps=2),
        DPSGD(steps=5, step_size=0.1),
        DPSGD(_prior_share=0.5),
        DPSGD(optimiser="adam", steps=4),
        DPSGD(steps=2, sampling_rate=0.4, sampling="without-replacement"),
    ],
)
def test_several_noisy_steps_cannot_make_q_improper_or_far(method):
    """More negative precision than noise can bring, and a mean of 10¹⁰, are named."""
    privacy = Privacy(epsilon=3.0, delta=1e-5, insecure_noise_seed=1)
    plan, seen = run_of("logistic", 2, method=method, family="mean-field", privacy=privacy)
    for one in seen:
        improper = one._replace(
            released={name: -1e4 * np.abs(value) for name, value in one.q.items()}
        )
        improper.released["quadratic"] = np.full(3, 1e4)
        far = one._replace(released=one.released | {"linear": np.full(3, 1e10)})
        for wild in (improper, far):
            found = broken_bound(plan.model, plan.family, plan.method, wild)
            assert found is not None
            assert "of '" in found.quantity


@pytest.mark.parametrize("kind", ["logistic", "softmax", "poisson"])
def test_sums_that_no_records_can_lead_to_are_named(kind):
    """Every number of a reply to a server that controls the steps, far beyond what n records do."""
    plan, seen = run_of(kind, 6, family="full", schedule=Synchronous(rounds=12))
    assert plan.rules.solver is not None
    assert found_in(plan, seen) == []
    checked = set()
    for one in seen:
        names = [n for n in ("precision", "gradient", "hessian") if n in one.released]
        for name in names:
            size = one.records * (1.0 + float(np.max(np.abs(one.released[name]))))
            sign = -1.0 if name == "hessian" else 1.0
            wrong = one.released[name] + sign * 1e7 * size
            if name != "gradient":
                wrong = one.released[name] + sign * 1e7 * size * np.eye(plan.model.dimension)
            broken = one._replace(released=one.released | {name: wrong})
            assert broken_bound(plan.model, plan.family, plan.method, broken) is not None, name
            checked.add(name)
        for name in [n for n in ("precision", "hessian") if n in one.released]:
            flipped = one._replace(released=one.released | {name: -one.released[name]})
            assert broken_bound(plan.model, plan.family, plan.method, flipped) is not None, name
    assert checked == {"precision", "gradient", "hessian"}
