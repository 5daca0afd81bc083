"""DPSGD: what it declares is what it releases, and with little noise it finds the posterior."""

from typing import Any

import numpy as np
import pytest
from one_party import OneParty, answer_once

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.methods import DPSGD, NaturalVI
from tacit.models import LinearRegression, LogisticRegression, Model, NeuralNetwork
from tacit.plan.agreement import Agreement
from tacit.plan.plan import _terms, make_plan
from tacit.privacy.events import Poisson, WithoutReplacement
from tacit.privacy.settings import Privacy
from tacit.pvi import product
from tacit.server.messages import Asked, Request
from tacit.server.schedule import Sequential, Synchronous

MODEL, FAMILY = LogisticRegression(("a", "b", "c"), prior_sd=1.0), MeanFieldGaussian(3)
SAMPLED = {
    "poisson": {"sampling_rate": 0.3, "steps": 2},
    "subset": {"sampling_rate": 0.3, "sampling": "without-replacement"},
}


@pytest.fixture(scope="module")
def parties(make_parties):
    return make_parties((20, 31), output="bernoulli")


def plan_of(parties, method, *, rounds=2, model: Model = MODEL, **privacy) -> Any:
    asked = Privacy(
        **({"noise_multiplier": 5.0, "delta": 1e-3, "insecure_noise_seed": 1} | privacy)
    )
    schedule = Synchronous(rounds=rounds)
    return make_plan(model, parties, method=method, schedule=schedule, privacy=asked)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "method.steps = 0"),
        ({"sampling_rate": 0.0}, "method.sampling_rate = 0.0"),
        ({"sampling_rate": 1.5}, "method.sampling_rate = 1.5"),
        ({"sampling_rate": np.nan}, "method.sampling_rate = nan"),
        ({"clip": 0.0}, "method.clip = 0.0"),
        ({"clip": np.inf}, "method.clip = inf"),
        ({"precision_weight": 0.0}, "method.precision_weight = 0.0"),
        ({"step_size": 0.0}, "method.step_size = 0.0"),
        ({"step_size": np.nan}, "method.step_size = nan"),
        ({"momentum": 1.0}, "method.momentum = 1.0"),
        ({"max_noise": 0.0}, "method.max_noise = 0.0"),
        ({"average_last": 2.0}, "method.average_last = 2.0"),
    ],
    ids=str,
)
def test_a_value_without_a_meaning_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        DPSGD(**options)


def test_a_family_or_a_relation_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="mean-field"):
        DPSGD().check(MODEL, FullGaussian(3))
    subset = DPSGD(sampling_rate=0.5, sampling="without-replacement").bind(
        adjacency="add-or-remove-one"
    )
    with pytest.raises(ConfigError, match="reveals the number of records"):
        subset.check(MODEL, FAMILY)


@pytest.mark.parametrize("how", SAMPLED)
def test_an_answer_costs_what_was_declared_for_it(parties, how):
    """Also with batches of parties of different sizes in one compiled shape."""
    plan = plan_of(parties, DPSGD(**SAMPLED[how]))
    agreement = Agreement(plan.model, plan.family, plan.method, seed=0, insecure_noise_seed=1)
    q = MODEL.prior(FAMILY)
    for party, records in parties.items():
        settled = plan.settled[party]
        (event,) = settled.events_at(0)
        assert event.count == plan.method.steps
        if how == "poisson":
            assert event.sampling == Poisson(rate=0.3)
        if how == "subset":
            size = len(records["y"])
            assert event.sampling == WithoutReplacement(batch=int(0.3 * size), total=size)
        request = Request("r0", party, 0, 0, q, FAMILY.zero(), 1.0, initial=True)
        alone = OneParty(agreement, party, records, settled)
        reply = alone.answer(request)
        assert reply.loss is None, "a loss would be one more release"
        assert np.all(np.isfinite(plan.read_released(request, reply.released)["linear"]))
        assert alone.answer(request) is reply
        again = answer_once(agreement, records, request, settled)
        np.testing.assert_equal(again.released, reply.released)
        other = answer_once(agreement, records, request._replace(visit=1), settled)
        (name, *_) = sorted(reply.released.keys() & {"linear", "location"})
        assert np.all(other.released[name] != reply.released[name]), "a visit has its own noise"


def test_noise_of_the_operating_system_is_never_the_same(parties):
    plan = plan_of(parties, DPSGD(), insecure_noise_seed=None)
    agreement = Agreement(plan.model, plan.family, plan.method, seed=0)
    request = Request("r0", "site-0", 0, 0, MODEL.prior(FAMILY), FAMILY.zero(), 1.0, initial=True)
    arguments = (agreement, parties["site-0"], request, plan.settled["site-0"])
    first, second = answer_once(*arguments), answer_once(*arguments)
    assert np.all(first.released["location"] != second.released["location"])


@pytest.fixture(scope="module")
def many(make_parties):
    return make_parties((400, 300), output="bernoulli")


def test_with_little_noise_it_finds_the_posterior(many):
    """A clip that cuts nothing and hardly any noise: what is left is the optimiser."""
    exact = carry_out(
        make_plan(
            MODEL, many, family="mean-field", method=NaturalVI(), schedule=Synchronous(rounds=30)
        )
    ).state.result
    wanted = exact["linear"] / (-2.0 * exact["quadratic"])
    sd = np.sqrt(1.0 / (-2.0 * exact["quadratic"]))
    for aggregation in ("plain", "trusted"):
        little = {"noise_multiplier": 1e-4, "aggregation": aggregation}
        careful = plan_of(many, DPSGD(clip=60.0), rounds=60, **little)
        assert np.all(np.abs(carry_out(careful).posterior.mean - wanted) < 0.25 * sd), aggregation


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "isotropic"},
        {"precision": "per-coordinate"},
        {"precision": "fixed"},
        {"precision": "isotropic", "optimiser": "adam"},
    ],
    ids=str,
)
def test_a_step_from_the_sum_is_the_sum_of_the_steps(parties, options):
    """The server of secure sums reads one sum, with the product of the parties' factors."""
    plan = plan_of(parties, DPSGD(step_size=0.1, **options), aggregation="trusted")
    method, rng = plan.method, np.random.default_rng(0)
    event = plan.settled["site-0"].events_at(1)[0]
    shapes = method.integer_shapes(MODEL, FAMILY, "update")
    factors = {
        name: {"linear": rng.normal(size=3), "quadratic": -rng.random(3)} for name in parties
    }
    q = product(MODEL.prior(FAMILY), factors.values())
    terms = _terms(plan.settled["site-0"], event, 1)

    def step(factor, integers):
        asked = Asked("site-0", 1, "update", q, factor, 1.0, {}, terms)
        return method.from_integers(MODEL, FAMILY, event, asked, integers)

    sent = {
        name: {part: rng.integers(-(2**30), 2**30, shape) for part, shape in shapes.items()}
        for name in parties
    }
    single = [step(factors[name], sent[name]) for name in parties]
    total = {part: sum(one[part] for one in sent.values()) for part in shapes}
    together = step(product(FAMILY.zero(), factors.values()), total)
    for name, value in product(single[0], single[1:]).items():
        np.testing.assert_allclose(together[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("precision", ["per-coordinate", "fixed"])
def test_every_kind_of_precision_moves_q(many, precision):
    found = carry_out(plan_of(many, DPSGD(precision=precision), rounds=10, noise_multiplier=1e-3))
    assert np.max(np.abs(found.posterior.mean)) > 0.1
    assert np.all(found.posterior.sd > 0)


def test_a_step_that_needs_the_number_of_records_is_refused_where_that_is_secret():
    class SmoothNetwork(NeuralNetwork):
        rounding_grows = False

    model = SmoothNetwork(tuple("abcdefghi"), hidden=25)
    assert model.dimension > 256, "a network this large keeps its precision"
    records = {"x": np.zeros((6, 9)), "y": np.ones(6)}
    with pytest.raises(ConfigError, match=r"method\.step_size is not set"):
        plan_of({"a": records}, DPSGD(), model=model, adjacency="add-or-remove-one")
    plan_of({"a": records}, DPSGD(step_size=0.05), model=model, adjacency="add-or-remove-one")


def test_the_number_of_records_is_not_used_under_add_or_remove(parties):
    fewer = {**parties, "site-0": {k: v[1:] for k, v in parties["site-0"].items()}}
    methods = [
        plan_of(one, DPSGD(), adjacency="add-or-remove-one").method for one in (parties, fewer)
    ]
    assert methods[0] == methods[1]


def steep_parties(rng, columns=8):
    """Columns that are almost one and the same: one direction has all the curvature."""
    common = rng.normal(size=(400, 1))
    x = common + 0.05 * rng.normal(size=(400, columns))
    y = x @ np.full(columns, 0.3) + rng.normal(size=400)
    return {name: {"x": x[i::2], "y": y[i::2]} for i, name in enumerate(("a", "b"))}


def farthest(step_size):
    """The largest coordinate of the last θ, not averaged, of a run with next to no noise."""
    parties = steep_parties(np.random.default_rng(4))
    model = LinearRegression(tuple("abcdefgh"), prior_sd=1.0)
    privacy = Privacy(noise_multiplier=0.01, delta=1e-5, insecure_noise_seed=1)
    plan = make_plan(
        model,
        parties,
        method=DPSGD(clip=100.0, step_size=step_size, average_last=0.0),
        schedule=Synchronous(rounds=15),
        privacy=privacy,
    )
    return float(np.max(np.abs(carry_out(plan).posterior.mean)))


def test_the_default_step_does_not_diverge_where_one_direction_has_all_the_curvature():
    assert farthest(None) < 1.0
    assert farthest(4.4 / 8) > 2.0, "steps beyond 2(1 + momentum)/d diverge here"


def skewed_parties(count=400, seed=3):
    """Two parties of which one has nearly all of the ones."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(count), rng.uniform(-1, 1, (count, 2))])
    y = (rng.random(count) < 1 / (1 + np.exp(-x @ [0.3, 1.5, -1.0]))).astype(float)
    order = np.argsort(y + rng.normal(0, 0.2, count))
    return {
        name: {"x": x[rows], "y": y[rows]}
        for name, rows in (("zeros", order[: count // 2]), ("ones", order[count // 2 :]))
    }


def mean_after(parties, method, *, rounds=15):
    asked = Privacy(epsilon=1e6, delta=1e-5, insecure_noise_seed=1)
    schedule = Sequential(rounds=rounds)
    plan = make_plan(MODEL, parties, method=method, schedule=schedule, privacy=asked)
    return carry_out(plan).posterior


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_many_steps_per_visit_find_the_posterior_of_skewed_parties(monkeypatch):
    """From its own factor a party stays at the posterior; from an equal share it leaves it."""
    parties = skewed_parties()
    plan = make_plan(MODEL, parties, family="mean-field", method=NaturalVI())
    exact = carry_out(plan).posterior
    method = DPSGD(clip=5.0, steps=20)
    assert method.own_releases
    assert not DPSGD().own_releases

    def off(found):
        return float(np.max(np.abs(found.mean - exact.mean) / exact.sd))

    assert off(mean_after(parties, method)) < 0.35
    monkeypatch.setattr(DPSGD, "own_releases", property(lambda _: False))
    assert off(mean_after(parties, method)) > 1.0


FREE = {
    "adam": {"optimiser": "adam", "step_size": 0.1, "step_end": 0.1},
    "adam, several steps": {"optimiser": "adam", "step_size": 0.1, "step_end": 0.1, "steps": 5},
    "adam, log-sd": {"optimiser": "adam", "step_size": 0.1, "step_end": 0.1, "precision": "log-sd"},
    "sgd": {"optimiser": "sgd", "step_size": 0.5, "precision": "per-coordinate", "momentum": 0.8},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FREE)
def test_adam_and_sgd_find_mean_and_sd_with_little_noise(many, name):
    """A clip that cuts nothing: what is left is the optimiser, whose answer is the posterior."""
    plan = make_plan(MODEL, many, family="mean-field", method=NaturalVI())
    exact = carry_out(plan).posterior
    method = DPSGD(clip=4.0 if name == "sgd" else 60.0, **FREE[name])
    rounds = 150 // method.steps
    found = carry_out(plan_of(many, method, rounds=rounds, noise_multiplier=1e-5)).posterior
    assert np.all(np.abs(found.mean - exact.mean) < 0.25 * exact.sd)
    np.testing.assert_allclose(found.sd, exact.sd, rtol=0.3)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_the_optimiser_changes_neither_events_nor_guarantee(parties, optimiser):
    """Its steps are post-processing of the releases that natural-gradient steps are made of."""
    plans = [
        plan_of(parties, DPSGD(optimiser=one, steps=2, sampling_rate=0.3))
        for one in ("natural", optimiser)
    ]
    for party in parties:
        first, second = (plan.settled[party] for plan in plans)
        assert first.events_at(0) == second.events_at(0)
        assert first.guarantee == second.guarantee


def test_settings_that_do_not_fit_an_optimiser_are_refused(parties):
    with pytest.raises(ConfigError, match="divides its steps by the number of records"):
        plan_of(parties, DPSGD(optimiser="sgd"), adjacency="add-or-remove-one")
    with pytest.raises(ConfigError, match=r"'log-sd' cannot be combined with method\.optimiser"):
        DPSGD(precision="log-sd")
