"""The default prior of regressions: its density, its bound under a normal q, its units."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats

import tacit
from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.methods import DPSGD, NaturalVI, PrivateScoring
from tacit.methods.natural.scale_prior import ScaleFacts
from tacit.models import LinearRegression, LogisticRegression, SoftmaxRegression
from tacit.models.learnt_scale import (
    CONSTANT_SCALE,
    FREEDOM,
    GRID,
    LearntScalePrior,
    column_numbers,
    learnt_scale_prior,
    scale_transform,
    units_of_columns,
)
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.results.saved import model_settings
from tacit.results.statements import prior_statement

NAMES = ("intercept", "a")


def test_the_density_is_that_of_the_hierarchy():
    """Student-t given τ, and τ half-normal, by an independent integral; the ratio of two points."""
    prior = LearntScalePrior(np.zeros(3), np.diag([1.0, 2.0, 2.0]), np.array([-1, 0, 1]), 2.0)
    points = np.array([[0.3, 0.1, -0.4], [4.0, 1.5, 0.2]])

    def direct(theta):
        phi = 2.0 * theta[1:]

        def at(scale):
            t = stats.t.pdf(phi, FREEDOM, scale=2.0 * scale)
            return np.prod(t) * stats.halfnorm.pdf(scale)

        middle = integrate.quad(at, GRID[0], 8.0, limit=200)[0]
        return np.log(middle) + stats.t.logpdf(theta[0], FREEDOM, scale=2.0 * CONSTANT_SCALE)

    found = prior.log_density(points)
    np.testing.assert_allclose(prior.log_density(points[1]), found[1])
    assert found[0] - found[1] == pytest.approx(direct(points[0]) - direct(points[1]), abs=2e-3)


def test_a_normal_q_has_a_lower_bound_and_its_slope():
    rng = np.random.default_rng(1)
    prior = LearntScalePrior(np.zeros(5), np.eye(5), np.array([-1, 0, 0, 1, 2]), 1.0)
    mean, root = rng.standard_normal(5), 0.3 * np.tril(rng.standard_normal((5, 5)))
    draws = mean + rng.standard_normal((200_000, 5)) @ root.T
    value, precision = prior.term(mean, root)
    exact = float(np.mean(prior.log_density(draws)))
    assert exact - 0.5 < value < exact
    square = np.square(mean) + np.sum(root * root, axis=1)
    for place in range(5):
        moved = square + 1e-5 * (np.arange(5) == place)
        slope = (prior.term_of(moved).value - value) / 1e-5
        assert precision[place] == pytest.approx(-2.0 * slope, rel=1e-3)


def test_variances_without_records_need_no_dense_inverse(monkeypatch):
    rng = np.random.default_rng(6)
    layout = (INTERCEPT, *(Feature("numeric", f"c{j}", -np.inf, np.inf) for j in range(40)))
    scale, centre = rng.uniform(0.5, 2.0, 41), rng.standard_normal(41)
    transform = scale_transform(layout, np.where(np.arange(41), scale, 1.0), centre, outputs=2)
    prior = LearntScalePrior(rng.standard_normal(82), transform, column_numbers(layout, 2), 1.5)
    root = 0.1 * rng.standard_normal((82, 82))
    mean, covariance, variance = rng.standard_normal(82), root @ root.T, np.diagonal(root @ root.T)
    inverse = np.linalg.inv(transform)
    widest = np.sqrt(np.square(inverse) @ np.square(np.where(prior.column >= 0, 1.5, 15.0)))

    def small(matrix, invert=np.linalg.inv):
        assert len(matrix) <= 2, "the cost is cubic in the number of columns"
        return invert(matrix)

    monkeypatch.setattr(np.linalg, "inv", small)
    np.testing.assert_allclose(prior.widest_sd, widest)
    for given, whole in ((covariance, covariance), (variance, np.diag(variance))):
        square = np.square(transform @ (mean - prior.mean))
        square += np.diagonal(transform @ whole @ transform.T)
        expected = np.square(inverse) @ (1.0 / prior.term_of(square).precision)
        found = prior.variance_without_records(mean, given, exact=False)
        np.testing.assert_allclose(found, expected)


def test_units_are_those_of_the_columns():
    rng = np.random.default_rng(2)
    layout = (
        INTERCEPT,
        Feature("numeric", "age", -np.inf, np.inf),
        Feature("numeric", "flag", -np.inf, np.inf),
        *(Feature("level", "ward"),) * 2,
    )
    chances = rng.random((500, 3)) < np.array([0.02, 0.5, 0.1])
    x = np.column_stack([np.ones(500), 60.0 + 1e4 * rng.standard_normal(500), chances])
    scale, centre = units_of_columns(layout, 0.25 * x.T @ x)
    np.testing.assert_allclose(scale / np.array([1.0, np.std(x[:, 1]), 1.0, 1.0, 1.0]), 1.0)
    np.testing.assert_allclose(centre[1:], np.mean(x[:, 1:], axis=0))
    np.testing.assert_array_equal(column_numbers(layout, 2), [-1, 0, 1, 2, 2] * 2)
    # Without a constant ratios of scales are known.
    scale, centre = units_of_columns(layout[1:3], np.diag([1e8, 1.0]))
    assert scale[0] / scale[1] == pytest.approx(1e4)
    assert not np.any(centre)


def test_rounding_is_no_scale_of_a_column():
    """A centred constant is 0 for all records, and its information is 0 but for rounding."""
    facts = ScaleFacts.of(LinearRegression(("intercept", "a", "b"), noise_sd=1.0))
    root = np.diag([0.02, 0.02, 1.0])
    for information, scale in ((1.4e-48, 1.0), (2_000 * 1e-8, 1e-4)):
        hessian = -(root @ np.diag([2_000.0, 2_000.0, information]) @ root)
        found = facts.with_units({"root": root[None]}, hessian[None])
        np.testing.assert_allclose(np.diagonal(found), [1.0, 1.0, scale])


@pytest.mark.parametrize("seed", range(4))
def test_a_constant_column_changes_no_other_coefficient(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=400)
    frame = pd.DataFrame({"x": x, "k": 1.0, "y": 3.0 + 5.0 * x + 0.3 * rng.normal(size=400)})
    frame["party"] = np.where(rng.random(400) < 0.5, "a", "b")
    with pytest.warns(UserWarning, match="one value"):
        fit = tacit.fit("y ~ x + k", frame, party="party", privacy=None)
    found = fit.summary().set_index("term")
    alone = tacit.fit("y ~ x", frame, party="party", privacy=None).summary().set_index("term")
    assert found["mean"]["x"] == pytest.approx(alone["mean"]["x"], abs=1e-3 * alone["sd"]["x"])
    assert found["sd"]["x"] == pytest.approx(alone["sd"]["x"], rel=0.02)
    # Only the sum of the intercept and the constant column is determined by the records.
    assert np.all(np.abs(found["mean"][["intercept", "k"]]) < 20.0)
    assert np.all(found["sd"][["intercept", "k"]] < 20.0)


def records(count, seed, unit=1.0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(count), 3.0 + rng.standard_normal(count)])
    y = (rng.random(count) < 1.0 / (1.0 + np.exp(2.0 - 0.7 * x[:, 1]))) * 1.0
    x[:, 1] *= unit
    return {str(i): {"x": x[i::3], "y": y[i::3]} for i in range(3)}


def on_a_grid(parties):
    """Mean and sd of the exact posterior of intercept and slope."""
    x = np.concatenate([one["x"] for one in parties.values()])
    y = np.concatenate([one["y"] for one in parties.values()])
    model = LogisticRegression(NAMES)
    prior = learnt_scale_prior(np.zeros(2), model.layout, x.T @ x, 1.0)
    middle, slope = np.meshgrid(np.linspace(-4, 4, 300), np.linspace(-2, 3, 300), indexing="ij")
    theta = np.stack([middle - slope * np.mean(x[:, 1]), slope], axis=-1).reshape(-1, 2)
    fits = prior.log_density(theta)
    for row, outcome in zip(x, y, strict=True):
        eta = theta @ row
        fits = fits + outcome * eta - np.logaddexp(0.0, eta)
    weights = np.exp(fits - np.max(fits))
    weights /= np.sum(weights)
    mean = weights @ theta
    return mean, np.sqrt(weights @ np.square(theta - mean))


@pytest.mark.parametrize("count", [30, 600])
def test_a_fit_without_a_declared_prior_is_the_posterior_of_the_hierarchy(count):
    """Also with few records, where the scale is hardly known; and whatever the unit."""
    parties = records(count, 5)
    mean, sd = on_a_grid(parties)
    found = carry_out(make_plan(LogisticRegression(NAMES), parties))
    assert found.state.finished == "converged"
    np.testing.assert_allclose((found.posterior.mean - mean) / sd, 0.0, atol=0.1)
    np.testing.assert_allclose(found.posterior.sd / sd, 1.0, atol=0.08)
    other = carry_out(make_plan(LogisticRegression(NAMES), records(count, 5, 1e4))).posterior
    np.testing.assert_allclose(other.mean[1] * 1e4, found.posterior.mean[1], atol=1e-3 * sd[1])
    declared = carry_out(make_plan(LogisticRegression(NAMES, prior_sd=0.05), parties)).posterior
    assert abs(declared.mean[1]) < 0.7 * abs(mean[1])


def test_what_a_prior_is_is_stated_and_stored():
    parties = {"a": records(60, 1)["0"], "b": records(60, 1)["1"]}
    model, declared = LogisticRegression(NAMES), LogisticRegression(NAMES, prior_sd=2.0)
    assert model_settings(model) == {
        "names": ["intercept", "a"],
        "prior_mean": 0.0,
        "layout": [["intercept", "intercept", 1.0, 1.0], ["numeric", "a", "-inf", "inf"]],
    }
    assert "prior_sd" in (model_settings(declared) or {})
    private = Privacy(epsilon=50.0, delta=1e-3, insecure_noise_seed=1)
    for asked, method, privacy, words in (
        (model, NaturalVI(), None, "scales learned from the records"),
        (declared, NaturalVI(), None, "N(0, 2²) for each coefficient, as declared"),
        (model, PrivateScoring(), private, "scales learned from the releases"),
        (declared, PrivateScoring(), private, "as declared"),
        (model, DPSGD(), private, "'dp-sgd' does not learn its scale"),
    ):
        plan = make_plan(asked, parties, method=method, privacy=privacy)
        assert words in (prior_statement(plan) or "")
    assert LinearRegression(NAMES, noise_sd=5.0).scale_unit == 5.0
    assert SoftmaxRegression(NAMES, levels=("u", "v", "w"), prior_sd=1.0).scale_unit is None


def test_scales_of_many_columns_are_drawn():
    """The number of draws need not be a multiple of the number of drawn scales."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(160), rng.normal(size=(160, 70))])
    y = (x[:, 1] + rng.logistic(size=160) > 0).astype(float)
    names = ("intercept", *(f"x{j}" for j in range(70)))
    found = carry_out(make_plan(LogisticRegression(names), {"a": {"x": x, "y": y}}))
    assert any(event.get("note") == "scales drawn" for event in found.log)
    assert found.posterior.mean[1] / found.posterior.sd[1] > 1.0
