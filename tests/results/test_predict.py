"""Predictions against adaptive quadrature and Monte Carlo, and the number of compilations."""

import itertools
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from tacit.errors import ConfigError, DataError
from tacit.expfam import Dirichlet, FullGaussian, MeanFieldGaussian
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    NormalMean,
    SoftmaxRegression,
)
from tacit.models.predictive import CHUNK, _kernel, draw_parameters
from tacit.results import predict

COVARIANCE = np.array([[1.0, 0.8], [0.8, 2.0]])


def one_logit(mean, sd, y):
    family = MeanFieldGaussian(1)
    q = family.natural(mean=np.array([mean]), sd=np.array([sd]))
    records = {"x": np.ones((1, 1)), "y": np.array([y])}
    return predict(LogisticRegression(("a",), prior_sd=1.0), family, q, records)


def integral(mean, sd, sign):
    """E[sigmoid(sign·η)], split at the sigmoid's step and at the normal's middle."""
    reach = 12 * sd
    ends = sorted({mean - reach, mean + reach, *np.clip([0.0, mean], mean - reach, mean + reach)})
    return sum(
        quad(lambda e: expit(sign * e) * norm.pdf(e, mean, sd), low, high, epsabs=1e-14, limit=200)[
            0
        ]
        for low, high in itertools.pairwise(ends)
    )


@pytest.mark.parametrize("sd", [0.01, 0.5, 2.0, 5.0, 10.0, 30.0])
@pytest.mark.parametrize("mean", [-20.0, -1.0, 0.0, 0.3, 7.0])
def test_logistic_equals_adaptive_quadrature(mean, sd):
    for y, sign in ((1.0, 1), (0.0, -1)):
        got = one_logit(mean, sd, y)
        expected = integral(mean, sd, sign)
        assert np.exp(got.log_density[0]) == pytest.approx(expected, rel=1e-9)
    assert got.mean[0] == pytest.approx(integral(mean, sd, 1), abs=1e-10)


def test_few_hermite_nodes_would_not_do():
    """Power: the check above fails on the textbook rule at sd 10."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    rough = np.sum(weights * expit(0.3 + 10 * nodes)) / weights.sum()
    assert abs(rough - integral(0.3, 10.0, 1)) > 1e-4


def test_a_hopeless_record_has_a_finite_log_density():
    assert -800 < one_logit(800.0, 1e-3, 0.0).log_density[0] + 0.5 < -798
    assert np.isfinite(one_logit(1e4, 100.0, 0.0).log_density[0])


@pytest.mark.parametrize("full", [False, True])
def test_logistic_equals_monte_carlo(full):
    mean = np.array([0.5, -1.0])
    family = FullGaussian(2) if full else MeanFieldGaussian(2)
    sd = np.sqrt(np.diagonal(COVARIANCE))
    q = family.natural(mean=mean, **({"covariance": COVARIANCE} if full else {"sd": sd}))
    x = np.array([[1.0, 2.0], [-1.0, 0.5], [3.0, -2.0]])
    got = predict(
        LogisticRegression(("a", "b"), prior_sd=1.0), family, q, {"x": x, "y": np.ones(3)}
    )
    spread = COVARIANCE if full else np.diag(sd**2)
    theta = np.random.default_rng(1).multivariate_normal(mean, spread, 200_000)
    probability = expit(theta @ x.T)
    error = probability.std(0) / np.sqrt(len(theta))
    assert np.all(np.abs(got.mean - probability.mean(0)) < 5 * error)
    np.testing.assert_allclose(np.exp(got.log_density), got.mean, rtol=1e-8)


@pytest.mark.parametrize("full", [False, True])
def test_linear_is_the_closed_form(full):
    model = LinearRegression(("a", "b"), noise_sd=0.5, prior_sd=1.0)
    family = FullGaussian(2) if full else MeanFieldGaussian(2)
    spread = COVARIANCE if full else np.diag(np.diagonal(COVARIANCE))
    usual = {"covariance": spread} if full else {"sd": np.sqrt(np.diagonal(spread))}
    q = family.natural(mean=np.array([0.5, -1.0]), **usual)
    x, y = np.array([[1.0, 2.0], [-1.0, 0.5]]), np.array([0.3, -4.0])
    got = predict(model, family, q, {"x": x, "y": y})
    sd = np.sqrt(np.diagonal(x @ spread @ x.T) + 0.25)
    np.testing.assert_allclose(got.mean, x @ [0.5, -1.0])
    np.testing.assert_allclose(got.sd, sd)
    np.testing.assert_allclose(got.log_density, norm.logpdf(y, got.mean, sd))


def test_gaussian_mean_is_the_closed_form():
    family = MeanFieldGaussian(1)
    q = family.natural(mean=np.array([1.0]), sd=np.array([2.0]))
    y = np.array([0.0, 5.0])
    got = predict(NormalMean(noise_sd=1.5), family, q, {"y": y})
    np.testing.assert_allclose(got.log_density, norm.logpdf(y, 1.0, 2.5))
    np.testing.assert_allclose(got.mean, [1.0, 1.0])


def network(output):
    rng = np.random.default_rng(3)
    model = NeuralNetwork(("a", "b"), hidden=3, output=output, noise_sd=0.5)
    family = MeanFieldGaussian(model.dimension)
    q = family.natural(mean=rng.normal(size=model.dimension), sd=np.full(model.dimension, 0.3))
    return model, family, q


@pytest.mark.parametrize("output", ["bernoulli", "gaussian"])
def test_draws_equal_a_plain_loop(output):
    model, family, q = network(output)
    rng = np.random.default_rng(4)
    records = {"x": rng.normal(size=(7, 2)), "y": (rng.random(7) < 0.5).astype(float)}
    got = predict(model, family, q, records, draws=20, seed=5)
    theta = draw_parameters(family, q, 20, 5)
    likelihood = np.mean([np.exp(model.log_likelihood(t, records)) for t in theta], axis=0)
    responses = np.array([model.response(t, records) for t in theta])
    np.testing.assert_allclose(got.log_density, np.log(likelihood))
    np.testing.assert_allclose(got.mean, responses.mean(0))
    if output == "gaussian":
        np.testing.assert_allclose(got.sd, np.sqrt(responses.var(0) + 0.25))
    else:
        assert got.sd is None


def test_train_and_test_of_any_size_share_one_compilation():
    model, family, q = network("bernoulli")
    kernel = _kernel(model.compiled_as)  # other tests' networks share it, with other draws
    rng, before = np.random.default_rng(6), kernel._cache_size()
    for count, dtype in ((5, np.float64), (CHUNK, np.float32), (2 * CHUNK + 1, np.float64)):
        x = rng.normal(size=(count, 2)).astype(dtype)
        got = predict(model, family, q, {"x": x, "y": np.zeros(count, dtype)}, draws=4)
        assert got.mean.shape == got.log_density.shape == (count,)
    assert kernel._cache_size() == before + 1


def test_a_linear_model_compiles_nothing():
    compiled = []

    def listen(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        one_logit(0.0, 1.0, 1.0)
        assert not compiled
        jax.jit(lambda a: a * 1.25 + 3.5)(np.arange(7.0))
        assert compiled, "the listener no longer hears compilations: mend this test"
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_importing_evaluate_adds_neither_jax_nor_numpyro():
    code = """
import sys, tacit
before = "jax" in sys.modules
import tacit.results
sys.exit(("jax" in sys.modules) != before or "numpyro" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_draws_of_both_families_have_their_moments():
    mean = np.array([1.0, -1.0])
    full, diagonal = FullGaussian(2), MeanFieldGaussian(2)
    theta = draw_parameters(full, full.natural(mean=mean, covariance=COVARIANCE), 40_000, 0)
    np.testing.assert_allclose(np.cov(theta.T), COVARIANCE, atol=0.06)
    np.testing.assert_allclose(theta.mean(0), mean, atol=0.04)
    theta = draw_parameters(diagonal, diagonal.natural(mean=mean, sd=np.array([1, 3])), 40_000, 0)
    np.testing.assert_allclose(theta.std(0), [1.0, 3.0], rtol=0.02)


def test_draws_of_another_family():
    family = Dirichlet(3)
    theta = draw_parameters(family, family.natural(concentration=np.ones(3)), 5, 0)
    np.testing.assert_allclose(theta.sum(1), 1.0)


def test_what_is_refused():
    model, family, q = network("bernoulli")
    records = {"x": np.zeros((1, 2)), "y": np.zeros(1)}
    with pytest.raises(ConfigError, match="not a proper"):
        predict(model, family, family.zero(), records)
    with pytest.raises(ConfigError, match="draws = 0"):
        predict(model, family, q, records, draws=0)
    with pytest.raises(DataError, match="different lengths"):
        predict(model, family, q, {"x": np.zeros((2, 2)), "y": np.zeros(1)})
    family = Dirichlet(1)
    with pytest.raises(ConfigError, match="Gaussian posterior"):
        predict(NormalMean(), family, family.zero(), {"y": np.zeros(1)})


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_records_without_y_are_predicted_too(kind):
    model = (
        LogisticRegression(("a", "b"), prior_sd=1.0)
        if kind == "logistic"
        else SoftmaxRegression(("a", "b"), levels=("u", "v", "w"), prior_sd=1.0)
    )
    family = FullGaussian(model.dimension)
    natural = model.prior(family)
    x = np.array([[0.5, -1.0], [2.0, 0.0]])
    known = predict(model, family, natural, {"x": x, "y": np.array([1.0, 0.0])})
    found = predict(model, family, natural, {"x": x})
    np.testing.assert_array_equal(found.mean, known.mean)
    assert np.all(np.isnan(found.log_density))
