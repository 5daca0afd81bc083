"""Outcomes that vary more than their model says are reported, with and without privacy."""

import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats

import tacit
from tacit.models import LinearRegression, PoissonRegression
from tacit.models.capabilities import DispersionSums
from tacit.results.cautions import MisfitWarning, NotCheckedWarning
from tacit.results.dispersion import dispersion_of

POISSON = PoissonRegression(("one", "x"), max_count=1000)


def counts(shape=None, seed=0, parties=2, size=300):
    """Poisson counts, or negative binomial ones with that shape."""
    rng = np.random.default_rng(seed)
    found = {}
    for party in range(parties):
        x = np.column_stack([np.ones(size), rng.uniform(-1, 1, size)])
        rate = np.exp(x @ [1.0, 0.5])
        rate = rate if shape is None else rate * rng.gamma(shape, 1 / shape, size)
        found[f"p{party}"] = {"x": x, "y": rng.poisson(rate).astype(float)}
    return found


@pytest.mark.parametrize("rate", [0.05, 1.0, 30.0])
def test_moments_of_the_poisson_term_are_those_of_poisson_counts(rate):
    y = np.arange(400.0)
    weights = stats.poisson(rate).pmf(y)
    eta, none = np.full(400, np.log(rate)), np.zeros(400)
    k = np.array([POISSON.dispersion_sums(eta[:1], none[:1], [i], np.ones(1)).excess for i in y])
    sums = POISSON.dispersion_sums(eta, none, y, weights)
    assert weights @ k == pytest.approx(0.0, abs=1e-9)
    assert sums.variance == pytest.approx(weights @ k**2)
    assert sums.third == pytest.approx(weights @ k**3)
    assert sums.scale == pytest.approx(rate)
    assert weights @ (k * (y - rate)) == pytest.approx(0.0, abs=1e-9)  # θ may be estimated


def test_p_values_of_normal_residuals_are_those_of_chi_square():
    model, rng = LinearRegression(("one",), noise_sd=2.0), np.random.default_rng(0)
    y, none = 3.0 * rng.normal(size=40), np.zeros(40)
    found = dispersion_of(model.dispersion_sums(none, none, y, np.ones(40)))
    exact = stats.chi2(40).sf(np.sum(y**2) / 4.0)
    assert found.p_value == pytest.approx(2 * exact)
    assert found.ratio == pytest.approx(np.mean(y**2) / 4.0)
    assert dispersion_of(DispersionSums(0.0, 0.0, 0.0, 0.0)) is None


def fitted(x, y):
    """Mode and covariance of a Poisson regression, by Newton's method."""
    theta = np.zeros(x.shape[1])
    theta[0] = np.log(np.mean(y) + 0.1)
    for _ in range(20):
        rate = np.exp(x @ theta)
        form = (x.T * rate) @ x + 0.01 * np.eye(len(theta))
        step = np.linalg.solve(form, x.T @ (y - rate) - 0.01 * theta)
        theta = theta + step * min(1.0, 2.0 / np.max(np.abs(x @ step)))
    return theta, np.linalg.inv(form)


@pytest.mark.parametrize(
    ("size", "columns", "level"), [(30, 3, 1.0), (100, 5, -2.0), (500, 4, -5.0)]
)
def test_poisson_counts_are_flagged_in_less_than_one_per_cent_of_fits(size, columns, level):
    rng, flagged, repeats = np.random.default_rng(1), 0, 500
    model = PoissonRegression(tuple(map(str, range(columns))), max_count=1000)
    for _ in range(repeats):
        x = np.column_stack([np.ones(size), rng.normal(size=(size, columns - 1))])
        y = rng.poisson(np.exp(level + 0.3 * np.sum(x[:, 1:], axis=1))).astype(float)
        mean, covariance = fitted(x, y)
        variance = np.sum((x @ covariance) * x, axis=1)
        found = dispersion_of(model.dispersion_sums(x @ mean, variance, y, np.ones(size)))
        flagged += found.clear
    assert flagged <= 0.01 * repeats


def test_overdispersed_counts_are_flagged():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = tacit.fit(POISSON, counts(shape=2.0), privacy=None)
    text = next(str(one.message) for one in caught if one.category is MisfitWarning)
    assert "NegativeBinomial2" in text
    assert "overdispersion" in text
    assert any(text in line for line in str(fit).splitlines())
    assert 2.0 < fit.diagnostics["dispersion"]["ratio"] < 4.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = tacit.fit(POISSON, counts(), privacy=None)
    assert not any(one.category is MisfitWarning for one in caught)
    assert fit.diagnostics["dispersion"]["ratio"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("prior_sd", [None, 1.0])  # natural, and exact: measured afterwards
def test_a_wrong_noise_sd_is_flagged(prior_sd):
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(400), rng.normal(size=400)])
    data = {"a": {"x": x, "y": x @ [1.0, 2.0] + rng.normal(size=400)}}

    def model(noise_sd):
        return LinearRegression(("one", "x"), noise_sd=noise_sd, prior_sd=prior_sd)

    for noise_sd, word in ((0.5, "narrow"), (2.0, "wide")):
        with pytest.warns(MisfitWarning, match=f"too {word}: leave noise_sd out"):
            tacit.fit(model(noise_sd), data, privacy=None)
    fit = tacit.fit(model(1.0), data, privacy=None)
    assert not [one for one in fit._result.cautions if one.kind == "misfit"]


def test_a_private_poisson_fit_says_that_it_does_not_check():
    schema = tacit.Schema(bounds={"x": (-1, 1), "y": (0, 1000)})
    frame = pd.concat(
        pd.DataFrame({"x": one["x"][:, 1], "y": one["y"], "party": name})
        for name, one in counts(shape=2.0).items()
    )
    privacy = tacit.Privacy(epsilon=2.0, insecure_noise_seed=1)
    arguments = ("y ~ x", frame)
    options = {"party": "party", "schema": schema, "family": "poisson", "privacy": privacy}
    assert "overdispersion" not in str(tacit.check(*arguments, **options))  # dp-scores checks it
    options["method"] = "dp-scoring"
    check = tacit.check(*arguments, **options)
    assert "overdispersion" in str(check)
    assert "dp-scores" in str(check)
    with pytest.warns(NotCheckedWarning, match="dp-scores"):
        fit = tacit.fit(*arguments, **options)
    assert "overdispersion" in str(fit)


def log_linear(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(np.e ** (x @ b)), obs=y)


def test_counts_of_a_numpyro_model_are_compared():
    with pytest.warns(MisfitWarning, match="NegativeBinomial2"):
        wrong = tacit.fit(log_linear, counts(shape=1.0), privacy="none")
    assert wrong.diagnostics["dispersion"]["ratio"] > 2.0
    fit, every = tacit.fit(POISSON, counts(), privacy="none"), counts().values()
    joined = {name: np.concatenate([one[name] for one in every]) for name in ("x", "y")}
    found = dispersion_of(wrong._outcome.plan.model.count_sums(fit.posterior.sample(128), joined))
    assert found.ratio == pytest.approx(fit.diagnostics["dispersion"]["ratio"], abs=0.01)
    assert not found.clear


def effects(place, y=None):
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([1000]).to_event(1))
    with numpyro.plate("records", place.shape[0]):
        numpyro.sample("y", dist.Poisson(np.e ** (1.0 + effect[place])), obs=y)


def test_counts_with_an_effect_each_are_as_the_model_says():
    """With one parameter per record, residuals at the posterior mean would be far too small."""
    rng, place = np.random.default_rng(0), np.arange(1000)
    y = rng.poisson(np.exp(1.0 + rng.normal(size=1000))).astype(float)
    grid = np.linspace(-4.0, 4.0, 801)
    chance = np.exp(y[:, None] * grid - np.exp(1.0 + grid) - 0.5 * grid**2)
    steps = np.cumsum(chance / chance.sum(axis=1, keepdims=True), axis=1)
    thetas = np.stack([grid[(steps < rng.random((1000, 1))).sum(axis=1)] for _ in range(40)])
    model = tacit.from_numpyro(effects, {"place": place[:4], "y": y[:4]})
    found = dispersion_of(model.count_sums(thetas, {"place": place, "y": y}))
    assert 0.8 < found.ratio < 1.25
    assert found.p_value > 0.05
    middle = model.count_sums(thetas.mean(axis=0)[None], {"place": place, "y": y})
    assert dispersion_of(middle).ratio < 0.6


@pytest.mark.parametrize("kind", ["scaled", "masked", "negative binomial"])
def test_only_plain_poisson_counts_are_compared(kind):
    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
        law = dist.Poisson(np.e ** (x * b))
        if kind == "negative binomial":
            law = dist.NegativeBinomial2(np.e ** (x * b), 2.0)
        law = law.mask(x > 0) if kind == "masked" else law
        with numpyro.plate("records", x.shape[0]):
            if kind == "scaled":
                with numpyro.handlers.scale(scale=2.0):
                    numpyro.sample("y", law, obs=y)
            else:
                numpyro.sample("y", law, obs=y)

    x, y = np.array([1.0, 2.0, -1.0]), np.array([1.0, 4.0, 900.0])
    adapted = tacit.from_numpyro(model, {"x": x, "y": y})
    assert adapted.observes_counts == (kind == "masked")
    if kind == "masked":
        sums = adapted.count_sums(np.zeros((1, 1)), {"x": x, "y": y})
        assert sums == pytest.approx((0.0 - 1.0 + 9.0 - 4.0, 4.0, 24.0, 2.0))
