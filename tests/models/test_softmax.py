"""Softmax regression: two levels are logistic regression, and averages over q are right."""

import jax
import jax.numpy as jnp
import numpy as np
import polars
import pytest
from scipy.special import log_softmax, softmax

import tacit
from tacit.data import load_federation
from tacit.data.schema.public import public_schema
from tacit.errors import ConfigError, DataError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.expfam.quadrature import normal_points
from tacit.methods.base import Task
from tacit.methods.natural.local import likelihood_site
from tacit.models import LogisticRegression, SoftmaxRegression
from tacit.plan.checks import check_parties
from tacit.results import evaluate, predict
from tacit.run.build import make_model
from tacit.run.config import parse_config
from tacit.run.run import simulate
from tacit.server.schedule import Synchronous

NAMES = ("intercept", "a")
MODEL = SoftmaxRegression(NAMES, levels=("u", "v", "w"), prior_sd=1.0)
RNG = np.random.default_rng(3)
X = np.column_stack([np.ones(30), RNG.normal(size=30)])
Y = np.arange(30) % 3.0
THETA = RNG.normal(size=6)


def drawn(count=240, seed=0, levels=3):
    """Records of two parties and held-out ones, from weights that are known."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(count), rng.normal(size=count)])
    eta = x @ rng.normal(size=(2, levels)) + rng.gumbel(size=(count, levels))
    y = np.argmax(eta, axis=1).astype(float)
    parts = [{"x": x[place::3], "y": y[place::3]} for place in range(3)]
    return {"one": parts[0], "two": parts[1]}, parts[2]


def test_the_likelihood_is_scipys_and_its_coordinates_have_names():
    assert MODEL.names == ("u: intercept", "u: a", "v: intercept", "v: a", "w: intercept", "w: a")
    eta = X @ THETA.reshape(3, 2).T
    records = {"x": X, "y": Y}
    expected = log_softmax(eta, axis=1)[np.arange(30), Y.astype(int)]
    np.testing.assert_allclose(MODEL.log_likelihood(THETA, records), expected)
    np.testing.assert_allclose(MODEL.response(THETA, records), softmax(eta, axis=1))
    far = {"x": 1e6 * X, "y": Y}
    assert np.all(np.isfinite(MODEL.log_likelihood(THETA, far)))


@pytest.mark.parametrize("levels", [3, 5])
def test_averages_over_q_are_those_of_many_draws(levels):
    model = SoftmaxRegression(NAMES, levels=tuple("uvwxyz"[:levels]), prior_sd=1.0)
    rng = np.random.default_rng(levels)
    root = 0.6 * rng.normal(size=(2 * levels, 2 * levels)) / np.sqrt(2 * levels)
    mean, x = rng.normal(size=2 * levels), X[:4]
    xi_mean, xi_covariance = model.project(mean, root @ root.T, x)
    found = jax.jit(model.expected)(xi_mean, xi_covariance, Y[:4])
    draws = mean + rng.normal(size=(40_000, 2 * levels)) @ root.T
    p = softmax(np.einsum("nd,skd->snk", x, model.rows(draws)), axis=-1)
    second = np.einsum("snk,snl->nkl", p, p) / len(p)
    curvature = np.einsum("nk,kl->nkl", p.mean(axis=0), np.eye(levels)) - second
    value = np.mean(np.log(p[:, np.arange(4), Y[:4].astype(int)]), axis=0)
    # 40,000 draws are good to ⅓ of that; an error in the covariance of η is ten times as large.
    np.testing.assert_allclose(found.probability, p.mean(axis=0), atol=0.006)
    np.testing.assert_allclose(found.curvature, curvature, atol=0.006)
    np.testing.assert_allclose(found.value, value, atol=0.03)


def test_a_diagonal_covariance_is_its_variances():
    variances = RNG.uniform(0.1, 1.0, 6)
    whole = MODEL.project(THETA, np.diag(variances), X)
    for one, other in zip(whole, MODEL.project(THETA, variances, X), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_the_site_of_a_narrow_q_is_gradient_and_hessian():
    family, records = FullGaussian(6), {"x": jnp.asarray(X), "y": jnp.asarray(Y)}
    q = family.natural(mean=THETA, covariance=1e-10 * np.eye(6))
    task = Task(records, jnp.ones(30), q, family.zero(), q, True)
    site, loss = jax.jit(lambda q: likelihood_site(MODEL, family, family.usual(q), task))(q)

    def fit(theta):
        return jnp.sum(MODEL.log_likelihood(theta, records))

    value, slope, bend = jax.jit(lambda at: (fit(at), jax.grad(fit)(at), jax.hessian(fit)(at)))(
        THETA
    )
    np.testing.assert_allclose(-2.0 * site["quadratic"], -bend, atol=1e-6)
    pull = np.asarray(site["linear"]) + 2.0 * np.asarray(site["quadratic"]) @ THETA
    np.testing.assert_allclose(pull, slope, atol=1e-6)
    assert float(loss) == pytest.approx(-float(value), abs=1e-5)


def test_two_levels_are_logistic_regression():
    """θ₁ − θ₀ has twice the prior's variance."""
    # With few records, weighted draws would replace both optima.
    parties, test = drawn(2400, levels=2)
    two = SoftmaxRegression(NAMES, levels=("no", "yes"), prior_sd=0.7)
    one = LogisticRegression(NAMES, prior_sd=0.7 * np.sqrt(2.0))
    how = {
        "method": tacit.methods.NaturalVI(dtype="float64"),
        "schedule": Synchronous(tolerance=0.0),
    }
    both = [tacit.fit(model, parties, privacy="none", test=test, **how) for model in (two, one)]
    rows = both[0].posterior.mean.reshape(2, 2)
    np.testing.assert_allclose(rows[1] - rows[0], both[1].posterior.mean, atol=1e-7)
    np.testing.assert_allclose(rows[1] + rows[0], 0.0, atol=1e-8)
    fits = [fitted.metrics["held_out"]["log_predictive_density"] for fitted in both]
    assert fits[0] == pytest.approx(fits[1], abs=1e-9)
    covariance = both[0].posterior.family.covariance(both[0].posterior.natural)
    difference = np.kron([[-1.0, 1.0]], np.eye(2))
    sd = np.sqrt(np.diagonal(difference @ covariance @ difference.T))
    np.testing.assert_allclose(sd, both[1].posterior.sd, rtol=1e-7)


def test_predictions_are_averages_over_the_posterior():
    rng = np.random.default_rng(0)
    family = FullGaussian(6)
    root = 0.8 * rng.normal(size=(6, 6))
    q = family.natural(mean=THETA, covariance=root @ root.T + 0.1 * np.eye(6))
    records = {"x": X[:5], "y": Y[:5]}
    found = predict(MODEL, family, q, records)
    spread = np.linalg.cholesky(family.covariance(q))
    draws = THETA + rng.normal(size=(40_000, 6)) @ spread.T
    p = softmax(np.einsum("nd,skd->snk", X[:5], MODEL.rows(draws)), axis=-1).mean(axis=0)
    np.testing.assert_allclose(found.mean, p, atol=0.01)
    np.testing.assert_allclose(found.mean.sum(axis=1), 1.0)
    own = found.mean[np.arange(5), Y[:5].astype(int)]
    np.testing.assert_allclose(found.log_density, np.log(own))
    metrics = evaluate(MODEL, family, q, records)
    assert metrics is not None
    assert metrics["accuracy"] == np.mean(np.argmax(p, axis=1) == Y[:5])
    assert set(metrics) == {"log_predictive_density", "accuracy", "brier", "calibration_error"}


@pytest.mark.parametrize("dimension", [1, 2, 3, 9])
def test_a_rule_has_the_moments_of_a_normal(dimension):
    points, weights = normal_points(dimension)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights @ points, 0.0, atol=1e-12)
    np.testing.assert_allclose((points.T * weights) @ points, np.eye(dimension), atol=1e-9)
    assert weights @ points[:, 0] ** 4 == pytest.approx(3.0, rel=0.25)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A file whose target is one of four levels, of which one never occurs."""
    rng = np.random.default_rng(1)
    age = rng.uniform(0, 100, 600)
    eta = np.stack([0 * age, (age - 50) / 25, 0.5 - (age - 50) / 50], axis=1)
    level = np.argmax(eta + rng.gumbel(size=eta.shape), axis=1)
    path = tmp_path_factory.mktemp("clinic") / "clinic.csv"
    ward = np.array(["home", "ward", "icu"])[level]
    polars.DataFrame({"age": age, "ward": ward}).write_csv(path)
    return str(path)


def asked(path, levels=("home", "ward", "icu", "moon"), *, privacy="none", **more):
    raw = {
        "privacy": privacy,
        "outcome": "ward",
        "data": {"path": path},
        "columns": {"age": {"low": 0, "high": 100}, "ward": {"levels": list(levels)}},
        "partition": {"parties": 2},
    }
    return parse_config(raw | more)


def test_a_declared_file_of_levels_is_learnt_from(clinic):
    result = simulate(asked(clinic))
    model = result.model
    assert (model.kind, model.dimension, model.output) == ("softmax", 8, "categorical")
    assert model.settings["levels"] == ["home", "ward", "icu", "moon"]
    assert result.posterior.names[:2] == ["home: intercept", "home: age"]
    means = dict(zip(result.posterior.names, result.posterior.mean, strict=True))
    assert means["ward: age"] - means["home: age"] == pytest.approx(2.0, abs=0.4)
    assert means["moon: intercept"] < min(
        means[f"{level}: intercept"] for level in ("home", "ward", "icu")
    )
    assert result.metrics["held_out"]["accuracy"] > 0.5
    assert result.parties[0].positive_fraction is None
    schema = public_schema(asked(clinic).data)
    assert (schema.output, schema.levels) == ("categorical", ("home", "ward", "icu", "moon"))
    assert isinstance(make_model(asked(clinic), schema), SoftmaxRegression)


def test_a_notebooks_class_is_told_the_levels(clinic):
    config = asked(clinic)
    federation = load_federation(config.data, config.partition, 0)
    fitted = tacit.fit(SoftmaxRegression, federation, privacy="none")
    probabilities = fitted.predict(federation.test)
    assert probabilities.shape == (len(federation.test["y"]), 4)
    assert "moon vs home: age" in str(fitted)
    with pytest.raises(ConfigError, match="is for a bernoulli outcome, but outcome 'ward'"):
        tacit.fit(LogisticRegression, federation, privacy="none")


def test_what_does_not_fit_is_told_in_one_line(clinic):
    with pytest.raises(DataError, match='"icu" is not a declared level; the levels are home, ward'):
        simulate(asked(clinic, levels=("home", "ward")))
    with pytest.raises(ConfigError, match="declare all levels of the outcome, two or more"):
        asked(clinic, levels=("home",))
    for kind in ("logistic", "linear", "neural-network"):
        with pytest.raises(ConfigError, match="is one of several levels; use model"):
            simulate(asked(clinic, model={"kind": kind}))
    cohort = {"source": "synthetic-cohort"}
    with pytest.raises(ConfigError, match=r"model\.kind = 'softmax', but outcome .* is yes/no"):
        simulate(parse_config({"privacy": "none", "data": cohort, "model": {"kind": "softmax"}}))
    with pytest.raises(ConfigError, match="needs at least two"):
        SoftmaxRegression(NAMES, levels=("one",), prior_sd=1.0)
    with pytest.raises(DataError, match="y holds values other than 0 … 2"):
        check_parties(MODEL, {"one": {"x": X, "y": Y + 0.5}}, 0, None)


def test_the_family_of_a_small_model_is_full_and_of_a_large_one_mean_field():
    parties, _ = drawn()
    small = tacit.plan.plan.make_plan(MODEL, parties)
    assert isinstance(small.family, FullGaussian)
    wide = {"p": {"x": np.ones((4, 60)), "y": np.zeros(4)}}
    columns, levels = (tuple(str(i) for i in range(size)) for size in (60, 20))
    many = SoftmaxRegression(columns, levels=levels, prior_sd=1.0)
    assert isinstance(tacit.plan.plan.make_plan(many, wide).family, MeanFieldGaussian)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (tacit.models.PoissonRegression, r"PoissonRegression\(names, max_count=20\)"),
        (SoftmaxRegression, r"SoftmaxRegression\(columns, levels="),
    ],
)
def test_what_a_model_needs_is_said_with_what_to_write(model, message):
    with pytest.raises(ConfigError, match=message):
        model(("a", "b"))


def test_a_learnt_prior_is_not_taken_for_rounding():
    """What all levels share has the variance of the learnt prior, not that of prior_sd = 1."""
    parties, _ = drawn()
    fit = tacit.fit(SoftmaxRegression(NAMES, levels=("u", "v", "w")), parties, privacy=None)
    assert fit.converged, fit.why
