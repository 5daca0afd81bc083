"""Monte-Carlo errors of weighted moments, and more draws where they are too large."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.expfam import FullGaussian
from tacit.expfam.quadrature import many_draws, weighing_draws
from tacit.expfam.rooted import RootedGaussian, stored_for
from tacit.methods.natural.adapt import fitted
from tacit.methods.natural.more import SCALES, is_trusted
from tacit.methods.natural.precision import (
    CAUTIONED_SD_ERROR,
    MOST_MEAN_ERROR,
    MOST_SD_ERROR,
    Precision,
    precision_of,
)
from tacit.methods.natural.solver import NaturalSolver
from tacit.methods.natural.stages import FAILED, MORE, NODES, WEIGH
from tacit.methods.natural.weights import weigh_draws
from tacit.results.cautions import ImpreciseWarning, MissingIndicatorWarning, precision_caution
from tacit.server.combine import RoundSum, Shared


def mirrored(rng, half=512):
    draws = rng.standard_normal((half, 2))
    return np.concatenate([draws, -draws])


def weights_of(theta, log_joint):
    return weigh_draws(theta, -0.5 * np.sum(theta * theta, axis=1), log_joint(theta)).log_weights


def narrower(theta):
    """Log-density of a normal posterior with means .4 and sds .8."""
    return -0.5 * np.sum(np.square((theta - 0.4) / 0.8), axis=1)


def test_standard_errors_are_those_of_repeated_draws():
    rng = np.random.default_rng(0)
    means, sds, errors = [], [], []
    for _ in range(200):
        theta = mirrored(rng)
        log_weights = weights_of(theta, narrower)
        weights = np.exp(log_weights)
        mean = weights @ theta
        means.append(mean)
        sds.append(np.sqrt(weights @ np.square(theta - mean)))
        errors.append(precision_of(theta, log_weights))
    mean_error = np.max(np.std(means, axis=0)) / 0.8
    sd_error = np.max(np.std(sds, axis=0)) / 0.8
    assert np.mean([one.mean_error for one in errors]) == pytest.approx(mean_error, rel=0.25)
    assert np.mean([one.sd_error for one in errors]) == pytest.approx(sd_error, rel=0.25)


def test_exact_moments_of_the_draws_make_the_errors_smaller():
    """Draws of q have its exact moments, so a posterior that equals q has no error."""
    draws = weighing_draws(2)
    even = np.full(len(draws), -np.log(len(draws)))
    assert precision_of(draws, even, exact=draws).worst < 1e-9
    assert precision_of(draws, even).sd_error > 0.015
    log_weights = weights_of(draws, narrower)
    assert (
        precision_of(draws, log_weights, exact=draws).worst < precision_of(draws, log_weights).worst
    )


def test_errors_are_those_of_the_quantities_that_users_see():
    draws = weighing_draws(1)
    even = np.full(len(draws), -np.log(len(draws)))
    found = precision_of(draws, even, lambda theta: np.exp(3.0 * theta))
    assert found.sd_error > 5 * precision_of(draws, even).sd_error
    constant = precision_of(draws, even, lambda theta: np.ones((len(theta), 1)))
    plain = precision_of(draws, even).sd_error
    assert constant.sd_error == pytest.approx(plain), "entries that do not vary have no error"


def test_a_fitted_mixture_does_not_depend_on_units():
    rng = np.random.default_rng(1)
    theta, units = rng.gamma(2.0, size=(1000, 2)), np.array([1e-4, 1e5])
    even = np.full(1000, -np.log(1000))
    one, other = fitted(theta, even, 1), fitted(theta * units, even, 1)
    np.testing.assert_allclose(one.centres * units, other.centres, rtol=1e-6)
    difference = one.log_density(theta) - other.log_density(theta * units)
    np.testing.assert_allclose(difference, np.sum(np.log(units)), rtol=1e-6)


def no_events(theta):
    """Log-rates of two groups without an event in 6 years; the prior has an sd of 10."""
    rate = -6.0 + 4.0 * theta
    return np.sum(-6.0 * np.exp(rate) - 0.5 * np.square(rate / 10.0), axis=1)


def moments_without_events():
    grid = np.linspace(-90.0, 8.0, 200_001)
    logs = -6.0 * np.exp(grid) - 0.5 * np.square(grid / 10.0)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ grid
    return (mean + 6.0) / 4.0, np.sqrt(weights @ np.square(grid - mean)) / 4.0


def solved(log_joint, size, most=20):
    """States of the solver from the weights of a standard normal q on. Splits fail."""
    solver = NaturalSolver(FullGaussian(size), None)
    public = {"mean": np.zeros(size), "root": np.eye(size), "prior_share": np.asarray(1.0)}
    memory = {"phase": np.asarray(5), "settled": np.asarray(1.0), "last_change": np.asarray(1e-6)}
    states = [Shared(solver.natural(np.zeros(size), np.eye(size)), public, memory, stage=WEIGH)]
    while states[-1].finished is None and len(states) < most:
        shared = states[-1]
        if shared.stage == NODES:
            shapes = shared.public["mean"].shape, shared.public["root"].shape
            reply = {"value": np.full(shapes[0][0], FAILED), "gradient": np.zeros(shapes[0])}
            reply |= {"hessian": np.zeros(shapes[1])}
        else:
            reply = {"log_likelihood": log_joint(shared.public.get("draws", weighing_draws(size)))}
        states.append(solver(shared, RoundSum(reply, 1, len(states))))
    return states


def test_two_weakly_determined_axes_are_found_by_adapted_draws():
    states = solved(no_events, 2)
    stages = [state.stage for state in states if state.finished is None]
    assert 2 <= stages.count(MORE) <= 4, "one more exchange has to agree"
    last = states[-1]
    assert last.finished == "converged"
    assert is_trusted(last.memory)
    assert last.memory["sd_error"] <= MOST_SD_ERROR
    mean, sd = moments_without_events()
    found = RootedGaussian(2).usual(last.q | last.public)
    np.testing.assert_allclose(found["mean"], mean, atol=0.05 * sd)
    np.testing.assert_allclose(np.sqrt(np.diagonal(found["covariance"])), sd, rtol=0.05)
    assert not any(name.startswith("more.") for name in last.memory)


def test_a_run_that_ends_among_more_draws_keeps_the_result_from_before():
    states = solved(no_events, 2)
    asked = next(state for state in states if state.stage == MORE)
    ended = NaturalSolver(FullGaussian(2), None).concluded(asked)
    assert "weighted" in ended.public
    assert not is_trusted(ended.memory)


def test_precise_results_take_no_more_exchanges():
    states = solved(lambda theta: -0.5 * np.sum(theta * theta, axis=1), 3)
    assert [state.stage for state in states[:-1]] == [WEIGH]
    assert states[-1].memory["mean_error"] == 0.0


def test_the_arrays_of_a_result_are_those_of_its_draws():
    shapes = RootedGaussian(2).stored_shapes
    more = stored_for(shapes, ("more_draws", "more_log_weights", "mean", "root", "weighted"))
    assert set(more) == {"more_draws", "more_log_weights", "mean", "root", "weighted"}
    assert more["more_draws"] == (many_draws(2), 2)
    assert set(stored_for(shapes, ("log_weights",))) == {"mean", "root", "log_weights", "weighted"}
    assert "draws" in stored_for(shapes, ("log_weights", "draws"))


def rates(group, count=None):
    a = numpyro.sample("a", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    with numpyro.plate("records", group.shape[0]):
        numpyro.sample("count", dist.Poisson(jnp.exp(a[group])), obs=count)


def test_a_fit_of_two_groups_without_events_is_right_and_can_be_loaded(tmp_path):
    group = np.repeat(np.arange(2), 6)
    records = {"group": group, "count": np.zeros(12, int)}
    model = tacit.from_numpyro(rates, records)
    parties = {f"p{k}": {name: one[k::2] for name, one in records.items()} for k in range(2)}
    fit = tacit.fit(model, parties, privacy="none")
    mean, sd = moments_without_events()
    mean, sd = 4.0 * mean - 6.0, 4.0 * sd
    assert fit.converged
    np.testing.assert_allclose(fit.posterior.mean, mean, atol=0.1 * sd)
    np.testing.assert_allclose(fit.posterior.sd, sd, rtol=0.1)
    assert fit.diagnostics["sd_error"] <= MOST_SD_ERROR
    assert "Student-t" in fit.why
    fit.save(tmp_path / "fit")
    again = tacit.load(tmp_path / "fit", model=model)
    np.testing.assert_array_equal(again.posterior.mean, fit.posterior.mean)


def test_errors_above_the_limit_are_stated_with_their_size():
    (caution,) = precision_caution(Precision(0.05, 0.18))
    assert "0.05" in caution.text
    assert "18%" in caution.text
    assert "method.sampling" in caution.text
    (caution,) = precision_caution(Precision(0.05, 0.18), sampled=True)
    assert "method.sampling" not in caution.text
    assert precision_caution(Precision(0.03, 0.03)) == []


def tail(y=None):
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("records", 2 if y is None else y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)


def test_a_standard_deviation_that_no_number_of_draws_determines_is_cautioned():
    """With one record the variance of the scale is not finite."""
    model = tacit.from_numpyro(tail, {"y": np.array([1.0, -2.0])})
    with pytest.warns(ImpreciseWarning, match="Monte-Carlo"):
        fit = tacit.fit(model, {"p0": {"y": np.array([1.0])}}, privacy="none")
    assert fit.diagnostics["sd_error"] > MOST_SD_ERROR
    assert any("Monte-Carlo" in one for one in fit.cautions)


@pytest.mark.parametrize("records", [400, 2000])
def test_errors_are_computed_with_the_default_prior(records):
    cohort = tacit.datasets.load("synthetic-cohort", parties=2, records=records, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingIndicatorWarning)
        fit = tacit.fit(tacit.models.LogisticRegression, cohort, privacy=None)
    assert 0 < fit.diagnostics["mean_error"] <= MOST_MEAN_ERROR
    assert 0 < fit.diagnostics["sd_error"] <= CAUTIONED_SD_ERROR
    assert not any("Monte-Carlo" in one for one in fit.cautions)
    memory = fit._outcome.state.memory
    assert memory is not None
    taken = float(memory["more"]) if "more" in memory else None
    assert taken == (SCALES if records == 400 else None)
