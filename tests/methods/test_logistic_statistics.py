"""Logistic regression by Pólya–Gamma statistics: near quadrature, bounded, noised as told."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_party import OneParty

import tacit
from tacit.data.readers.download import locate
from tacit.engines.execute import carry_out
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.methods import ExpectedStatistics, NaturalVI, PrivateStatistics
from tacit.methods.base import Task
from tacit.models import LogisticRegression
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.results import evaluate
from tacit.server.messages import Request
from tacit.server.schedule import Damping, Synchronous

MODEL = LogisticRegression(("a", "b", "c"), prior_sd=1.0)
FAMILIES = {"full": FullGaussian(3), "mean-field": MeanFieldGaussian(3)}
CLIP = 0.5


def log_likelihood(model, outcome, records):
    found = evaluate(model, outcome.plan.family, outcome.posterior.natural, records)
    assert found is not None
    value = found["log_predictive_density"]
    assert value is not None
    return value


def learnt(model, parties, method, rounds=20, **more):
    schedule = Synchronous(rounds=rounds, tolerance=0.0)
    return carry_out(
        make_plan(model, parties, method=method, schedule=schedule, family="full", **more)
    )


def test_it_predicts_as_quadrature_does_and_federated_is_central(make_parties, pool):
    parties = make_parties((150, 250, 200), output="bernoulli")
    test = pool(make_parties((2000,), output="bernoulli", seed=3))
    exact = learnt(MODEL, parties, NaturalVI())
    federated = learnt(MODEL, parties, ExpectedStatistics())
    central = learnt(MODEL, {"all": pool(parties)}, ExpectedStatistics())
    for name, value in central.posterior.natural.items():
        np.testing.assert_allclose(federated.posterior.natural[name], value, rtol=1e-6)
    gap = log_likelihood(MODEL, federated, test) - log_likelihood(MODEL, exact, test)
    assert abs(gap) < 0.002


def test_adult_is_predicted_as_by_quadrature():
    if locate("adult") is None:
        pytest.skip("Adult is neither in $TACIT_DATA nor in the cache")
    data = tacit.datasets.load("adult", parties=10, seed=1)
    model = LogisticRegression(data.names, layout=data.layout, prior_sd=1.0)
    exact = learnt(model, data.parties, NaturalVI(), rounds=7)
    augmented = learnt(model, data.parties, ExpectedStatistics(), rounds=15)
    gap = log_likelihood(model, augmented, data.test) - log_likelihood(model, exact, data.test)
    assert abs(gap) < 0.002
    family, q = augmented.plan.family, augmented.posterior.natural
    records = next(iter(data.parties.values()))
    found = model.statistics(family, q, records, None)
    assert found is not None
    norms = np.asarray(found.norms())
    assert 0.7 < np.median(norms) < 1.5, "a clip of 1 is a usual record"


def plan_of(parties, *, rounds=6, **more):
    privacy = {
        "noise_multiplier": 3.0,
        "delta": 1e-3,
        "insecure_noise_seed": 1,
        "accountant": "rdp",
    } | more
    schedule = Synchronous(rounds=rounds, damping=Damping(start=1.0, end=0.3, rounds=rounds))
    return make_plan(
        MODEL, parties, method=PrivateStatistics(clip=CLIP, dtype="float64"), schedule=schedule,
        privacy=Privacy(**privacy), family="full",
    )  # fmt: skip


def test_without_noise_and_clip_the_private_answer_is_the_plain_one(make_parties):
    parties = make_parties((150, 250, 200), output="bernoulli")
    method = PrivateStatistics(clip=1e4, dtype="float64")
    privacy = Privacy(noise_multiplier=1e-10, delta=1e-3, insecure_noise_seed=1, accountant="rdp")
    found = learnt(MODEL, parties, method, privacy=privacy)
    plain = learnt(MODEL, parties, ExpectedStatistics())
    np.testing.assert_allclose(found.posterior.mean, plain.posterior.mean, rtol=1e-4)
    np.testing.assert_allclose(found.posterior.sd, plain.posterior.sd, rtol=1e-4)


def test_a_noisy_precision_makes_a_proper_q_all_the_same(make_parties):
    """Noise ten times what sixty records say: q is proper, wide, and not far from the prior."""
    plan = plan_of(make_parties((20, 20, 20), output="bernoulli"), noise_multiplier=200.0)
    posterior = carry_out(plan).posterior
    assert np.all(np.linalg.eigvalsh(-2.0 * posterior.natural["quadratic"]) > 0)
    assert np.all(posterior.sd > 0.3)
    assert np.all(np.abs(posterior.mean) < 5.0)


@functools.cache
def _clipped(kind, weight):
    family, method = FAMILIES[kind], PrivateStatistics(precision_weight=weight, dtype="float64")

    def made(x, y, mean):
        spread = {"sd": jnp.ones(3)} if kind == "mean-field" else {"covariance": jnp.eye(3)}
        q = family.natural(mean=mean, **spread)
        terms = SimpleNamespace(clips=jnp.array([CLIP]))
        task = Task({"x": x, "y": y}, jnp.ones(len(y)), q, family.zero(), q, False, terms=terms)
        return method._clipped(MODEL, family, None, task, task.records, task.weights)

    return jax.jit(made)


def bounded_of(kind, x, y, mean=(0.0, 0.0, 0.0), weight=1.0):
    found = _clipped(kind, weight)(np.array(x, float), np.array(y, float), np.array(mean, float))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found.value)])


numbers = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([0.0, 1e-3, 1e3, -1e3, 1e9, np.inf, np.nan])
)
record = st.tuples(st.lists(numbers, min_size=3, max_size=3), st.sampled_from([0.0, 1.0, np.nan]))


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(FAMILIES)),
    rest=st.lists(record, min_size=2, max_size=2),
    pair=st.tuples(record, record),
    mean=st.lists(st.floats(-10, 10), min_size=3, max_size=3),
    weight=st.sampled_from([0.1, 1.0, 7.0]),
)
def test_no_record_moves_the_sum_by_more_than_its_sensitivity(kind, rest, pair, mean, weight):
    def made(one):
        rows = [one, *rest]
        return bounded_of(kind, [row[0] for row in rows], [row[1] for row in rows], mean, weight)

    assert np.linalg.norm(made(pair[0]) - made(pair[1])) <= 2 * CLIP


def test_the_sensitivity_is_reached():
    """Where x is large but x·m is not, ω is small beside the slope: opposite labels, opposite sums.

    With q's variance the weight falls as 1/‖x‖ and the two parts grow alike; a small share of the
    precision in the norm is what is left to reach 2C by.
    """
    gap = bounded_of("full", [[1e3, 0, 0]], [1.0], weight=0.1) - bounded_of(
        "full", [[1e3, 0, 0]], [0.0], weight=0.1
    )
    assert 0.99 * 2 * CLIP <= np.linalg.norm(gap) <= 2 * CLIP


def test_the_noise_has_the_law_that_was_told(make_parties):
    """200 visits: sd within 4.5 standard errors in every coordinate, and 1.7 times is caught."""
    visits, z = 200, 3.0
    (name, records), *_ = make_parties((30,), output="bernoulli").items()
    plan = plan_of({name: records}, rounds=visits, noise_multiplier=z)
    family = plan.family
    q = MODEL.prior(family)
    asked = Request("r", name, 0, 0, q, family.zero(), 1.0, initial=True)
    seat = OneParty(plan.agreement, name, records, plan.settled[name])
    requests = [asked._replace(id=f"r{v}", visit=v) for v in range(visits)]
    deltas = [plan.read_released(one, seat.answer(one).released) for one in requests]
    error = 4.5 / np.sqrt(2 * visits)
    told = z * CLIP * MODEL.statistics_unit
    linear = np.std([one["linear"] for one in deltas], axis=0, ddof=1) / told
    spread = (-2.0 * np.array([one["quadratic"] for one in deltas])).std(axis=0, ddof=1) / told
    spread = np.append(np.diag(spread), np.sqrt(2) * spread[np.triu_indices(3, 1)])
    for found in (linear, spread):
        assert np.all(np.abs(found - 1) < error), found
        assert np.all(np.abs(1.7 * found - 1) > error), "a wrong scale is caught"
