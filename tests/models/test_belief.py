"""Sigmoid belief networks: what a record says, against sums over every state of z."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_party import OneParty

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.methods import DPSGD, ExpectedStatistics, PrivateStatistics
from tacit.models import BeliefNetwork, NeuralNetwork
from tacit.models.belief.statistics import Hidden, infer, lower_bound
from tacit.plan.plan import make_plan
from tacit.privacy.bounded import clip_sum
from tacit.privacy.settings import Privacy
from tacit.server.messages import Request
from tacit.server.schedule import Synchronous
from tacit.testing import check_clipping

D, K = 6, 3
MODEL = BeliefNetwork(D, hidden=K, sweeps=40)
SMALL = BeliefNetwork(16, hidden=3, prior_sd=3.0)
FAMILY = MeanFieldGaussian(MODEL.dimension)
STATES = np.array(list(itertools.product((0.0, 1.0), repeat=K)))


def some_q(seed=0, size=1.5, sd=0.2):
    rng = np.random.default_rng(seed)
    mean = size * rng.normal(size=MODEL.dimension)
    return FAMILY.natural(mean=mean, sd=sd * rng.uniform(0.5, 1.5, size=MODEL.dimension))


def some_records(count, seed=1, dtype: Any = np.float32):
    rng = np.random.default_rng(seed)
    return {"x": (rng.random((count, D)) < 0.4).astype(dtype)}


@functools.cache
def statistics_of(balance):
    def made(records, q):
        return MODEL.statistics(FAMILY, q, records, None, balance=balance)

    return made


def written_down(records, q, balance=1.0):
    """Gradient and diagonal precision of Σ_z q(z)·[quadratic], by differentiation, a row each."""
    found: Any = statistics_of(balance)(records, q)
    mean = jnp.asarray(FAMILY.usual(q)["mean"])

    def expected(theta, x, h, weight):
        layers = MODEL._layers(theta)
        eta = STATES @ layers.weights.T + layers.visible
        each = jnp.sum((x - 0.5) * eta - 0.5 * weight * eta**2, axis=1)
        each += STATES @ layers.hidden
        own = found.hidden_weight
        each += jnp.sum(-0.5 * layers.hidden - 0.5 * own * layers.hidden**2)
        return jnp.prod(jnp.where(STATES == 1, h, 1.0 - h), axis=1) @ each

    x = jnp.asarray(records["x"])
    args = (x, found.found.h, found.weight)
    first = jax.jit(jax.vmap(jax.grad(expected), (None, 0, 0, 0)))(mean, *args)
    second = jax.jit(jax.vmap(jax.hessian(expected), (None, 0, 0, 0)))(mean, *args)
    unit = MODEL.statistics_unit
    precision = -jnp.diagonal(second, axis1=1, axis2=2)
    return {"linear": first / unit, "precision": balance * precision / unit}


def test_statistics_are_gradient_and_precision_of_the_expected_log_likelihood():
    records, q = some_records(7), some_q()
    weights = np.array([1.0, 0.0, 0.5, 1.0, 1.0, 0.2, 0.0])
    rows = written_down(records, q, balance=0.7)
    found = statistics_of(0.7)(records, q)
    norms = np.sqrt(sum(np.sum(np.square(leaf), axis=1) for leaf in rows.values()))
    np.testing.assert_allclose(found.norms(), norms, rtol=1e-5)
    for name, value in found.total(jnp.asarray(weights)).items():
        np.testing.assert_allclose(value, weights @ rows[name], rtol=1e-4, atol=1e-5)


def test_clipping_in_closed_form_keeps_its_sensitivity():
    q = some_q()

    def clipped(records, clip, mask):
        found = statistics_of(1.0)(records, q)
        return clip_sum(found.norms(), clip, mask, found.total)

    check_clipping(
        clipped, lambda records: written_down(records, q), some_records(8, dtype=np.float64),
        clip=0.3,
    )  # fmt: skip


def test_hidden_units_are_where_the_bound_is_largest():
    mean, variance = MODEL._moments(some_q())
    x = some_records(20)["x"]
    found = infer(mean, variance, x, 200)

    def bound(logit):
        h = jax.nn.sigmoid(logit)
        spread = (h * (1 - h)) @ jnp.square(mean.weights).T + h @ variance.weights.T
        eta = h @ mean.weights.T + mean.visible
        made = Hidden(h, logit, eta, spread + variance.visible)
        return jnp.sum(lower_bound(mean, variance, x, made))

    slope = jax.grad(bound)(found.logit)
    assert float(jnp.max(jnp.abs(slope))) < 1e-4
    other = jax.grad(bound)(infer(mean, variance, x, 1).logit)
    assert float(jnp.max(jnp.abs(other))) > 1e-2, "one sweep is caught"


def test_bounds_are_below_the_sum_over_every_state():
    q = some_q(sd=1e-4)
    mean = FAMILY.usual(q)["mean"]
    layers, x = MODEL._layers(mean), some_records(50)["x"]
    eta = STATES @ layers.weights.T + layers.visible
    log_x = x @ eta.T - np.sum(np.logaddexp(eta, 0.0), axis=1)
    log_z = STATES @ layers.hidden - np.sum(np.logaddexp(layers.hidden, 0.0))
    exact = np.logaddexp.reduce(log_x + log_z, axis=1)
    loose, at_mean = MODEL.bound(q, {"x": x}), MODEL.log_likelihood(jnp.asarray(mean), {"x": x})
    assert np.all(loose <= exact + 1e-4)
    np.testing.assert_allclose(loose, at_mean, atol=1e-3)
    tight = MODEL.bound(q, {"x": x}, draws=500)
    assert np.all(tight <= exact + 0.1)
    assert np.mean(tight) > np.mean(loose)
    assert np.mean(exact - tight) < 0.5


@pytest.mark.full_optimisation
def test_a_record_changes_no_other_ones_numbers():
    records, q = some_records(30), some_q()
    before: Any = statistics_of(1.0)(records, q)
    other = {"x": records["x"].copy()}
    other["x"][4] = np.nan
    other["x"][9] = 1e30
    after: Any = statistics_of(1.0)(other, q)
    rest = np.delete(np.arange(30), [4, 9])
    for name in ("residual", "weight"):
        np.testing.assert_array_equal(getattr(before, name)[rest], getattr(after, name)[rest])
    np.testing.assert_array_equal(before.found.h[rest], after.found.h[rest])
    order = np.random.default_rng(2).permutation(30)
    moved: Any = statistics_of(1.0)({"x": records["x"][order]}, q)
    np.testing.assert_array_equal(before.norms()[order], moved.norms())


@pytest.fixture(scope="module")
def bars():
    """Rows of a 4 × 4 grid that are on or off together, a tenth of the pixels flipped."""
    rng = np.random.default_rng(0)
    on = rng.random((600, 4)) < 0.4
    x = np.repeat(on, 4, axis=1) ^ (rng.random((600, 16)) < 0.05)
    return {"x": x.astype(np.uint8)}


def dealt(records, parties):
    split = np.array_split(records["x"], parties)
    return {f"site-{m}": {"x": x} for m, x in enumerate(split)}


def test_federated_learning_is_central_learning_and_finds_the_bars(bars):
    model = BeliefNetwork(16, hidden=4, prior_sd=3.0, start_seed=1)
    schedule = Synchronous(rounds=200, damping=0.2, tolerance=0.0)

    def learnt(parties):
        plan = make_plan(
            model, dealt(bars, parties), method=ExpectedStatistics(), schedule=schedule
        )
        return carry_out(plan).posterior.natural

    one, three = learnt(1), learnt(3)
    np.testing.assert_allclose(three["quadratic"], one["quadratic"], rtol=1e-3)
    p = bars["x"].mean(axis=0)
    alone = np.mean(np.sum(bars["x"] * np.log(p) + (1 - bars["x"]) * np.log1p(-p), axis=1))
    assert model.bound(one, bars).mean() > alone + 2.0
    again = model.reconstruct(one, bars)
    assert np.mean((again > 0.5) == bars["x"]) > 0.93
    assert model.filters(one).shape == (4, 16)
    made = model.sample(one, 500)
    np.testing.assert_allclose(made.mean(axis=0), p, atol=0.12)


def private_plan(parties, *, noise=1e-9, rounds=60, rate=1.0, damping=0.2, **more) -> Any:
    privacy = Privacy(
        noise_multiplier=noise, delta=1e-3, insecure_noise_seed=1, accountant="rdp", **more
    )  # fmt: skip
    return make_plan(
        SMALL, parties, method=PrivateStatistics(clip=100.0, sampling_rate=rate),
        schedule=Synchronous(rounds=rounds, damping=damping), privacy=privacy,
    )  # fmt: skip


def test_without_noise_the_private_answer_is_the_plain_one(bars):
    plan = private_plan(dealt(bars, 3))
    plain = make_plan(
        plan.model, dealt(bars, 3), method=ExpectedStatistics(),
        schedule=Synchronous(rounds=60, damping=0.2, tolerance=0.0),
    )  # fmt: skip
    found, wanted = (carry_out(one).posterior for one in (plan, plain))
    np.testing.assert_allclose(found.mean, wanted.mean, atol=2e-3)


def test_noise_does_not_throw_the_means_away(bars):
    """Where the noise is larger than every precision, weights still stay within a few units."""
    plan = private_plan(dealt(bars, 1), noise=0.5, rounds=40)
    posterior = carry_out(plan).posterior
    assert np.max(np.abs(posterior.mean)) < 10.0
    assert np.isfinite(plan.model.bound(posterior.natural, bars)).all()


def test_the_noise_has_the_law_that_was_told(bars):
    """67 coordinates twice, 60 visits: the pooled sd is within 4 errors, 1.1 times is caught."""
    visits, z = 60, 2.0
    plan = private_plan(dealt(bars, 1), noise=z, rounds=visits)
    model, family = plan.model, plan.family
    q = model.start(family)
    asked = Request("r", "site-0", 0, 0, q, family.zero(), 1.0, initial=True)
    seat = OneParty(plan.agreement, "site-0", plan.parties["site-0"], plan.settled["site-0"])
    requests = [asked._replace(id=f"r{v}", visit=v) for v in range(visits)]
    deltas = [plan.read_released(one, seat.answer(one).released) for one in requests]
    mean = family_of(model).usual(q)["mean"]
    precision = -2.0 * np.array([one["quadratic"] for one in deltas])
    linear = np.array([one["linear"] for one in deltas]) - precision * mean
    for values in (linear, precision):
        centred = values - values.mean(axis=0)
        sd = np.sqrt(np.sum(centred**2) / (model.dimension * (visits - 1)))
        ratio = sd / (z * 100.0 * model.statistics_unit)
        error = 4.0 / np.sqrt(2 * model.dimension * (visits - 1))
        assert abs(ratio - 1) < error
        assert abs(1.1 * ratio - 1) > error, "a wrong scale is caught"


def family_of(model):
    return MeanFieldGaussian(model.dimension)


def test_everybody_starts_at_one_point_where_units_differ():
    model = BeliefNetwork(5, hidden=2, start_seed=3)
    family = family_of(model)
    first, second = (BeliefNetwork(5, hidden=2, start_seed=s).start(family) for s in (3, 4))
    np.testing.assert_array_equal(first["linear"], model.start(family)["linear"])
    assert not np.allclose(first["linear"], second["linear"])
    assert len(np.unique(model.filters(first))) == 10


def test_what_it_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"model\.hidden = 0"):
        BeliefNetwork(4, hidden=0)
    model = BeliefNetwork(4, hidden=2)
    with pytest.raises(ConfigError, match="mean-field"):
        model.prior(FullGaussian(model.dimension))
    for x in (np.full((2, 4), 0.5), np.full((2, 4), 255, np.uint8)):
        with pytest.raises(DataError, match="zeros and ones"):
            make_plan(model, {"site": {"x": x}}, method=ExpectedStatistics())


@pytest.mark.parametrize(
    "model", [MODEL, NeuralNetwork(("a", "b"), hidden=4)], ids=lambda model: model.kind
)
@pytest.mark.parametrize("terms", [{"adjacency": "add-or-remove-one"}, {"unit": "person"}], ids=str)
def test_a_unit_that_changes_the_shape_of_the_data_is_not_promised_to_be_hidden(model, terms):
    """Twenty pairs of units with opposite weights let ten sweeps make rounding of size 1: one
    record more, and another order of additions, moved a party's answer by 12 clips instead of 1; a
    record more of one person, and others' moved it by 11 instead of 2. A rectifier at 0 does the
    same without any iteration.
    """
    records = some_records(8) if model is MODEL else {"x": np.ones((8, 2)), "y": np.ones(8)}
    privacy = Privacy(noise_multiplier=1.0, delta=1e-3, **terms)
    with pytest.raises(ConfigError, match=r"set privacy\.unit = 'record'"):
        make_plan(
            model, {"a": records | {"person": np.arange(8)}}, method=DPSGD(step_size=0.05),
            schedule=Synchronous(rounds=2), privacy=privacy,
        )  # fmt: skip
