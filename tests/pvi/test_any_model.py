"""Posteriors of NumPyro models with default settings, against exact ones and across units."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint

import tacit
from tacit.results.cautions import NotConvergedWarning, TooNarrowWarning
from tacit.results.diagnostics import modes_caution


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.ImproperUniform(dist.constraints.real, (), (x.shape[1],)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(dist.constraints.positive, (), ()))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def elementwise(x, y=None):
    """The same model with the product written out."""
    beta = numpyro.sample("beta", dist.ImproperUniform(dist.constraints.real, (), (x.shape[1],)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(dist.constraints.positive, (), ()))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal((x * beta).sum(-1), sigma), obs=y)


def mixture(y=None):
    w = numpyro.sample("w", dist.Beta(2.0, 2.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        weights = dist.Categorical(jnp.stack([w, 1.0 - w]))
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, 1.0)), obs=y)


def test_a_mixture_says_that_other_modes_are_not_seen():
    model = tacit.from_numpyro(mixture, {"y": np.zeros(3)})
    assert "several modes" in modes_caution(model)[0].text
    x = {"x": np.ones((3, 2)), "y": np.zeros(3)}
    assert modes_caution(tacit.from_numpyro(elementwise, x)) == []
    assert modes_caution(tacit.models.LogisticRegression(("one",))) == []


def raw_records(count=150):
    """An intercept, a year and an amount: columns of very different means and scales."""
    rng = np.random.default_rng(8)
    x = np.column_stack(
        [
            np.ones(count),
            2000.0 + 8.0 * rng.normal(size=count),
            1e4 * np.exp(rng.normal(size=count)),
        ]
    )
    return {"x": x, "y": 3.0 * (x[:, 1] - 2000.0) - 2e-4 * x[:, 2] + 20.0 * rng.normal(size=count)}


def split(records, parties):
    rows = np.array_split(np.arange(len(records["y"])), parties)
    return {f"p{n}": {k: v[row] for k, v in records.items()} for n, row in enumerate(rows)}


def fitted(function, records, parties=3, **options):
    model = tacit.from_numpyro(function, {k: v[:8] for k, v in records.items()})
    return tacit.fit(model, split(records, parties), privacy="none", **options)


def test_a_flat_prior_gives_the_textbook_posterior_in_raw_units():
    records = raw_records()
    fit = fitted(regression, records)
    assert fit.converged, fit.why
    x, y = records["x"], records["y"]
    count, size = x.shape
    best, *_ = np.linalg.lstsq(x, y, rcond=None)
    freedom = count - size - 1  # flat in σ, not in log σ
    scale = np.sum(np.square(y - x @ best)) / freedom
    sd = np.sqrt(scale * np.diagonal(np.linalg.inv(x.T @ x)) * freedom / (freedom - 2))
    np.testing.assert_array_less(np.abs(fit.posterior.mean[:3] - best) / sd, 0.05)
    np.testing.assert_allclose(fit.posterior.sd[:3], sd, rtol=0.05)
    assert fit._result.exchanges <= 3 * 10
    assert fit.diagnostics["effective_share"] > 0.8


@pytest.mark.parametrize("parties", [1, 7])
def test_the_division_of_the_records_does_not_matter(parties):
    records = raw_records()
    one, other = fitted(regression, records), fitted(regression, records, parties)
    gap = np.abs(one.posterior.mean - other.posterior.mean) / one.posterior.sd
    assert np.max(gap) < 1e-2


def test_units_change_the_posterior_of_the_changed_parameters_by_nothing():
    records = raw_records()
    units = np.array([1.0, 1e4, 1e-4])
    one = fitted(regression, records).posterior
    other = fitted(regression, records | {"x": records["x"] * units}).posterior
    gap = np.abs(one.mean[:3] - other.mean[:3] * units) / one.sd[:3]
    assert np.max(gap) < 1e-3
    np.testing.assert_allclose(other.sd[:3] * units, one.sd[:3], rtol=1e-3)


def test_how_a_product_is_written_does_not_matter():
    records = raw_records()
    one, other = fitted(regression, records).posterior, fitted(elementwise, records).posterior
    np.testing.assert_allclose(other.mean, one.mean, rtol=1e-6)
    np.testing.assert_allclose(other.sd, one.sd, rtol=1e-6)


def groups(school, se, y=None):
    """Three schools and one scale: far from normal along log τ."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(5.0))
    with numpyro.plate("schools", 3):
        theta = mu + tau * numpyro.sample("raw", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", school.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.asarray(theta)[school], se), obs=y)


def exact_groups(records):
    """Mean and sd of μ and τ on a grid: given both, the effects integrate out."""
    mu, tau = np.linspace(-20, 25, 451)[:, None], np.linspace(0.005, 25, 500)[None, :]
    log_p = -0.5 * (mu / 5.0) ** 2 - 0.5 * (tau / 5.0) ** 2
    for y, se in zip(records["y"], records["se"], strict=True):
        variance = se**2 + tau**2
        log_p = log_p - 0.5 * np.log(variance) - 0.5 * (y - mu) ** 2 / variance
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    means = [float(np.sum(p * part)) for part in (mu, tau)]
    return [
        (mean, float(np.sqrt(np.sum(p * (part - mean) ** 2))))
        for mean, part in zip(means, (mu, tau), strict=True)
    ]


def test_a_hierarchical_model_is_split_along_its_scale():
    records = {
        "school": np.arange(3),
        "se": np.array([2.0, 3.0, 2.5]),
        "y": np.array([9.0, 1.0, -2.0]),
    }
    fit = fitted(groups, records)
    assert fit.converged, fit.why
    assert fit.diagnostics["split_along"] in ("tau", None)
    draws = fit.posterior.draws(20_000)
    for name, (mean, sd) in zip(("mu", "tau"), exact_groups(records), strict=True):
        assert abs(np.mean(draws[name]) - mean) < 0.1 * sd, name
        assert np.std(draws[name]) == pytest.approx(sd, rel=0.12), name


def two_modes(x, y=None):
    size = numpyro.sample("size", dist.Normal(0.0, 3.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(size**2 * x, 0.5), obs=y)


def test_what_is_not_normal_is_flagged_or_described_by_weights():
    """A likelihood that does not know a sign: both modes, or a word that this is not it."""
    rng = np.random.default_rng(2)
    x = np.full(6, 1.0)
    records = {"x": x, "y": 0.05 * x + 0.5 * rng.normal(size=6)}
    model = tacit.from_numpyro(two_modes, records)
    try:
        fit = tacit.fit(model, {"a": records}, privacy="none")
    except NotConvergedWarning:
        return
    grid = np.linspace(-4, 4, 4001)
    log_p = -0.5 * (grid / 3.0) ** 2
    for y in records["y"]:
        log_p = log_p - 0.5 * ((y - grid**2) / 0.5) ** 2
    p = np.exp(log_p - log_p.max())
    sd = np.sqrt(np.sum(p * grid**2) / np.sum(p))
    assert fit.posterior.sd[0] == pytest.approx(sd, rel=0.15)


def test_a_mean_field_posterior_says_that_it_leaves_correlations_out():
    records = raw_records()
    with pytest.warns(TooNarrowWarning, match="leaves out correlations"):
        fit = fitted(regression, records, posterior="mean-field")
    full = fitted(regression, records)
    assert fit.posterior.sd[0] < 0.5 * full.posterior.sd[0]


def random_intercepts(group, y=None):
    centre = numpyro.sample("centre", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(2.0))
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0).expand([4]))
    with numpyro.plate("records", group.shape[0]):
        numpyro.sample("y", dist.Normal(centre + tau * shift[group], 1.0), obs=y)


def slope_only(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def test_rounds_without_some_parties_say_that_nothing_was_weighed():
    rng = np.random.default_rng(4)
    x = rng.normal(size=60)
    records = {"x": x, "y": 0.5 * x + rng.normal(size=60)}
    some = fitted(slope_only, records, schedule=tacit.schedules.Synchronous(parties_per_round=2))
    assert any("not compared with the exact one" in text for text in some.cautions)
    assert not any("not compared" in text for text in fitted(slope_only, records).cautions)


@pytest.mark.parametrize("function", [regression, random_intercepts])
def test_every_schedule_gives_the_same_posterior(function):
    """Flat priors, and a hierarchical model whose posterior is corrected or split."""
    if function is regression:
        records = raw_records(60)
    else:
        rng = np.random.default_rng(1)
        group = np.repeat(np.arange(4), (3, 5, 9, 13))
        records = {"group": group, "y": rng.normal(size=4)[group] + rng.normal(size=30)}
    fits = [
        fitted(function, records, schedule=kind)
        for kind in ("synchronous", "sequential", "asynchronous")
    ]
    first = fits[0]
    assert first.converged, first.why
    for other in fits[1:]:
        assert (other.converged, other.why) == (first.converged, first.why)
        gap = np.abs(other.posterior.mean - first.posterior.mean) / first.posterior.sd
        assert np.max(gap) < 1e-6
        assert other.posterior.sd == pytest.approx(first.posterior.sd, rel=1e-6)
        assert other.diagnostics["pareto_k"] == pytest.approx(first.diagnostics["pareto_k"])


def decay(t, y=None):
    """A differential equation: `odeint` has only a reverse derivative."""
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    level = odeint(lambda at, _, k: -k * at, jnp.ones(()), jnp.arange(9.0), rate)
    with numpyro.plate("records", t.shape[0]):
        numpyro.sample("y", dist.LogNormal(jnp.log(level[t]), sigma), obs=y)


def decay_in_closed_form(t, y=None):
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("records", t.shape[0]):
        numpyro.sample("y", dist.LogNormal(-rate * t, sigma), obs=y)


def test_a_differential_equation_has_the_posterior_of_its_solution():
    t = np.repeat(np.arange(1, 9), 8)
    y = np.exp(-0.3 * t + 0.2 * np.random.default_rng(5).normal(size=len(t)))
    one, other = (fitted(function, {"t": t, "y": y}) for function in (decay, decay_in_closed_form))
    assert one.converged, one.why
    np.testing.assert_allclose(one.posterior.mean, other.posterior.mean, rtol=1e-3)
    np.testing.assert_allclose(one.posterior.sd, other.posterior.sd, rtol=1e-2)


def gompertz(t, died):
    """The hazard at a slope of exactly 0, the median of its prior, divides by 0."""
    level = numpyro.sample("level", dist.Normal(-4.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 0.5))
    with numpyro.plate("records", t.shape[0]):
        hazard = jnp.exp(level) * jnp.expm1(slope * t) / slope
        numpyro.factor("y", died * (level + slope * t) - hazard)


def test_a_density_that_is_undefined_at_the_median_of_the_prior_has_a_mode():
    rng = np.random.default_rng(0)
    t = np.log1p(-0.15 * np.log(rng.random(60)) / 0.02) / 0.15
    died = (t < 15.0) * 1.0
    records = {"t": np.minimum(t, 15.0), "died": died}
    parties = {str(k): {name: one[k::2] for name, one in records.items()} for k in range(2)}
    fit = tacit.fit(gompertz, parties, privacy=None)
    assert fit.converged
    draws = fit.posterior.draws(2000)
    assert abs(np.mean(draws["slope"]) - 0.15) < 3 * np.std(draws["slope"])


def no_prior(x, y=None):
    b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real, (2,), ()))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 0.3), obs=y)


def test_records_that_do_not_determine_all_parameters_end_in_a_verdict(recwarn):
    x = np.linspace(-2.0, 2.0, 20)
    y = x + 0.3 * np.random.default_rng(21).normal(size=20)
    fit = tacit.fit(no_prior, {"a": {"x": np.column_stack([x, x]), "y": y}}, privacy=None)
    assert not fit.converged
