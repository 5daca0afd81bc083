"""Likelihoods against SciPy, quadrature against `scipy.integrate.quad`, and what is refused."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import expit

from tacit.errors import ConfigError
from tacit.expfam import Dirichlet, FullGaussian, MeanFieldGaussian
from tacit.models import (
    ConjugateGaussian,
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    NormalMean,
)
from tacit.models.prior import PriorAsLikelihood, prior_records

RNG = np.random.default_rng(2)
X = RNG.normal(size=(6, 2))
REAL = RNG.normal(size=6)
LABEL = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
THETA = np.array([0.7, -1.2])
LOGISTIC = LogisticRegression(("a", "b"), prior_sd=1.0)
LINEAR = LinearRegression(("a", "b"), noise_sd=0.6, prior_sd=1.0)
MEAN = NormalMean(noise_sd=0.6)


def test_log_likelihoods_are_scipys():
    np.testing.assert_allclose(
        LOGISTIC.log_likelihood(THETA, {"x": X, "y": LABEL}),
        stats.bernoulli.logpmf(LABEL, expit(X @ THETA)),
    )
    np.testing.assert_allclose(
        LINEAR.log_likelihood(THETA, {"x": X, "y": REAL}), stats.norm.logpdf(REAL, X @ THETA, 0.6)
    )
    np.testing.assert_allclose(
        MEAN.log_likelihood(THETA[:1], {"y": REAL}), stats.norm.logpdf(REAL, 0.7, 0.6)
    )


def test_responses_are_expectations():
    np.testing.assert_allclose(LOGISTIC.response(THETA, {"x": X}), expit(X @ THETA))
    np.testing.assert_allclose(LINEAR.response(THETA, {"x": X}), X @ THETA)
    np.testing.assert_allclose(MEAN.response(THETA[:1], {"y": REAL}), np.full(6, 0.7))


def test_a_logit_of_a_thousand_does_not_overflow():
    values = LOGISTIC.pointwise(np.array([1e3, -1e3, 1e3]), np.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(values, [0.0, -1e3, -1e3])


def averaged(function, mean, sd):
    def integrand(eta):
        return function(eta) * stats.norm.pdf(eta, mean, sd)

    reach = (mean - 12 * sd, mean + 12 * sd)
    ends = sorted({*reach, mean, float(np.clip(0.0, *reach))})
    return sum(
        quad(integrand, low, high, epsabs=1e-13, limit=300)[0]
        for low, high in itertools.pairwise(ends)
    )


# 16 Gauss-Hermite nodes: sharp where a posterior is, coarse for a q as wide as a vague prior.
TOLERANCE = {0.05: 1e-12, 0.5: 1e-9, 1.0: 1e-5, 3.0: 2e-2}


@pytest.mark.parametrize("sd", TOLERANCE)
@pytest.mark.parametrize("mean", [-6.0, 0.0, 2.5])
def test_logistic_quadrature_equals_adaptive_quadrature(mean, sd):
    at = jnp.array([mean, mean]), jnp.array([sd**2, sd**2]), jnp.array([0.0, 1.0])
    value, slope, curvature = LOGISTIC.expected_derivatives(*at)
    direct = LOGISTIC.expected_log_likelihood(*(np.asarray(part) for part in at))
    np.testing.assert_allclose(direct, value, rtol=1e-12)
    for i, y in enumerate((0.0, 1.0)):
        expected = averaged(lambda eta, y=y: y * eta - np.logaddexp(eta, 0), mean, sd)
        assert value[i] == pytest.approx(expected, abs=TOLERANCE[sd])
        assert slope[i] == pytest.approx(
            averaged(lambda eta, y=y: y - expit(eta), mean, sd), abs=TOLERANCE[sd]
        )
        assert curvature[i] == pytest.approx(
            averaged(lambda eta: expit(eta) * expit(-eta), mean, sd), abs=TOLERANCE[sd]
        )


def test_the_quadrature_test_would_notice_too_few_nodes(monkeypatch):
    """Power: four nodes fail the tolerance at sd 1."""
    few = LogisticRegression(("a",), prior_sd=1.0)
    monkeypatch.setattr(few, "quadrature_nodes", 4)
    value, *_ = few.expected_derivatives(jnp.zeros(1), jnp.ones(1), jnp.ones(1))
    expected = averaged(lambda eta: eta - np.logaddexp(eta, 0), 0.0, 1.0)
    assert abs(value[0] - expected) > 3 * TOLERANCE[1.0]


def test_linear_expectations_have_a_closed_form():
    mean, variance = X @ THETA, np.full(6, 0.3)
    value, slope, curvature = LINEAR.expected_derivatives(*map(jnp.asarray, (mean, variance, REAL)))
    np.testing.assert_allclose(value, LINEAR.expected_log_likelihood(mean, variance, REAL))
    np.testing.assert_allclose(slope, (REAL - mean) / 0.36)
    np.testing.assert_allclose(curvature, np.full(6, 1 / 0.36))


@pytest.mark.parametrize(("model", "theta"), [(LINEAR, THETA), (MEAN, THETA[:1])])
def test_a_quadratic_form_is_the_likelihood_but_for_a_constant(model, theta):
    assert isinstance(model, ConjugateGaussian)
    records = {"x": X, "y": REAL}
    weights = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    form, linear = model.quadratic_form(records, weights)

    def quadratic(at):
        return linear @ at - 0.5 * at @ form @ at

    def likelihood(at):
        return weights @ model.log_likelihood(at, records)

    other = theta + 0.37
    assert quadratic(theta) - quadratic(other) == pytest.approx(
        likelihood(theta) - likelihood(other)
    )


@pytest.mark.parametrize("output", ["bernoulli", "gaussian"])
def test_a_network_is_its_layers(output):
    model = NeuralNetwork(("a", "b"), hidden=3, output=output, noise_sd=0.5)
    assert model.dimension == 2 * 3 + 3 + 3 + 1 == len(set(model.names))
    theta = RNG.normal(size=model.dimension)
    hidden = np.maximum(X @ theta[:6].reshape(2, 3) + theta[6:9], 0.0)
    value = hidden @ theta[9:12] + theta[12]
    np.testing.assert_allclose(model.network(theta, X), value)
    y = LABEL if output == "bernoulli" else REAL
    expected = (
        stats.bernoulli.logpmf(y, expit(value))
        if output == "bernoulli"
        else stats.norm.logpdf(y, value, 0.5)
    )
    np.testing.assert_allclose(model.log_likelihood(theta, {"x": X, "y": y}), expected)
    np.testing.assert_allclose(jax.jit(model.network)(theta, X), value)


def test_every_party_starts_a_network_at_the_same_asymmetric_point():
    family = MeanFieldGaussian(13)
    one, two = (NeuralNetwork(("a", "b"), hidden=3).start(family) for _ in range(2))
    other = NeuralNetwork(("a", "b"), hidden=3, start_seed=1).start(family)
    mean, sd = family.location_scale(one)
    np.testing.assert_array_equal(mean, family.location_scale(two)[0])
    assert not np.array_equal(mean, family.location_scale(other)[0])
    assert len(set(mean)) == 13
    assert np.max(np.abs(mean)) <= 0.1
    np.testing.assert_allclose(sd**2, 1e-3)


@pytest.mark.parametrize("family", [MeanFieldGaussian(2), FullGaussian(2)])
def test_a_prior_is_what_was_asked_for(family):
    model = LogisticRegression(("a", "b"), prior_mean=[1.0, -1.0], prior_sd=[0.5, 20.0])
    mean, sd = family.location_scale(model.prior(family))
    np.testing.assert_allclose(mean, [1.0, -1.0])
    np.testing.assert_allclose(sd, [0.5, 20.0])
    start_mean, start_sd = family.location_scale(model.start(family))
    np.testing.assert_allclose(start_mean, mean)
    assert np.all(start_sd <= sd)
    assert start_sd[1] < 3.0


def test_a_gaussian_model_refuses_another_family():
    with pytest.raises(ConfigError, match="'mean-field' or 'full'"):
        LOGISTIC.prior(Dirichlet(2))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 1e300, 1e-300])
def test_a_scale_outside_reason_is_refused_with_its_value(bad):
    for make in (
        lambda: LogisticRegression(("a",), prior_sd=bad),
        lambda: LinearRegression(("a",), noise_sd=bad, prior_sd=1.0),
        lambda: NormalMean(noise_sd=bad),
        lambda: NeuralNetwork(("a",), noise_sd=bad),
    ):
        with pytest.raises(
            ConfigError, match=rf"model\.(prior|noise)_sd = {re.escape(str(bad))}; it"
        ):
            make()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_prior_mean_that_is_no_number_is_refused(bad):
    with pytest.raises(ConfigError, match=r"model\.prior_mean"):
        LogisticRegression(("a",), prior_mean=bad, prior_sd=1.0)


def test_a_network_without_units_or_with_an_unknown_output_is_refused():
    with pytest.raises(ConfigError, match=r"model\.hidden = 0"):
        NeuralNetwork(("a",), hidden=0)
    with pytest.raises(ConfigError, match=r"model\.output = 'other'"):
        NeuralNetwork(("a",), output="other")


class _Tilted(LogisticRegression):
    def log_prior(self, theta):
        return -jnp.sum(jnp.abs(theta))


def test_a_prior_can_stand_in_the_place_of_a_likelihood():
    model = _Tilted(("a", "b"))
    stand_in = PriorAsLikelihood(model)
    assert stand_in == PriorAsLikelihood(model)
    assert stand_in != PriorAsLikelihood(_Tilted(("a", "b")))
    assert len({stand_in, PriorAsLikelihood(model)}) == 1
    np.testing.assert_allclose(stand_in.log_likelihood(jnp.asarray(THETA), prior_records()), [-1.9])
    assert not np.any(stand_in.prior(FullGaussian(2))["quadratic"])
    with pytest.raises(NotImplementedError, match="has no outcome; predict"):
        stand_in.response(THETA, prior_records())


def test_networks_that_differ_in_their_start_alone_are_compiled_once():
    options = {"hidden": 3, "noise_sd": 0.5, "prior_sd": 2.0}
    one, other = (NeuralNetwork(("a", "b"), start_seed=s, **options) for s in (1, 2))
    family = MeanFieldGaussian(one.dimension)
    assert not np.array_equal(one.start(family)["linear"], other.start(family)["linear"])
    assert one.compiled_as is other.compiled_as
    assert one.compiled_as.compiled_as is one.compiled_as
    theta = np.linspace(-1.0, 1.0, one.dimension)
    records = {"x": np.array([[0.3, -2.0]]), "y": np.array([1.0])}
    assert one.compiled_as.log_likelihood(theta, records) == one.log_likelihood(theta, records)
    for key, value in {"hidden": 4, "noise_sd": 0.6, "prior_sd": 1.0, "output": "gaussian"}.items():
        changed = NeuralNetwork(("a", "b"), **{**options, key: value})
        assert changed.compiled_as is not one.compiled_as
    own = type("Own", (NeuralNetwork,), {})(("a", "b"), **options)
    assert own.compiled_as is own
