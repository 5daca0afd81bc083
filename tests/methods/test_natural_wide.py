"""Natural gradients for more parameters than a full covariance serves."""

from __future__ import annotations

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.errors import ConfigError
from tacit.expfam import MeanFieldGaussian
from tacit.methods import GradientVI, NaturalVI
from tacit.methods.natural import wide_party
from tacit.methods.natural.stages import DIRECTION_COUNT, WIDE
from tacit.methods.natural.subspace import Subspace
from tacit.methods.natural.wide import WideSolver
from tacit.methods.reply_bounds import Exchange, broken_bound
from tacit.plan.auto import choose_method
from tacit.plan.plan import make_plan
from tacit.server.combine import RoundSum, Shared

FEW = 30
"""Stands for the 1,024 parameters of a full covariance, so that tests are small."""


@pytest.fixture
def few(monkeypatch):
    for module in ("tacit.methods.natural.method", "tacit.plan.auto"):
        monkeypatch.setattr(f"{module}.SOLVED_UP_TO", FEW)


def solve(x, y, prior_sd, parties=3):
    """A linear regression with noise 1, answered by hand; the last state and the rounds."""
    size = x.shape[1]
    family = MeanFieldGaussian(size)
    prior = family.natural(mean=np.zeros(size), sd=prior_sd)
    solver = WideSolver(family, prior, free_diagonal=True)
    share = {"prior_share": np.asarray(1.0 / parties)}
    shared = Shared(prior, solver.first(np.zeros(size), prior_sd) | share, None, stage=WIDE)
    for number in range(1, 100):
        public = shared.public
        mean, scale = public["mean"], public["scale"]
        reach, rest = x * scale, y - x @ mean
        spread = float(public["spread"])
        total = {
            "value": np.asarray(-0.5 * (rest @ rest + spread**2 * np.sum(reach * reach))),
            "gradient": reach.T @ rest,
            "diagonal": -np.sum(reach * reach, axis=0),
            "products": -(public["directions"] @ reach.T) @ reach,
        }
        shared = solver(shared, RoundSum(total, parties, number))
        if shared.finished:
            return family.usual(shared.q), shared, number
    raise AssertionError("not finished")


def regression(correlation, units, size=120, count=300):
    rng = np.random.default_rng(4)
    common = rng.normal(size=(count, 1))
    white = np.sqrt(1 - correlation) * rng.normal(size=(count, size))
    x = (white + np.sqrt(correlation) * common) * units
    return x, x @ (0.1 * rng.normal(size=size) / units) + rng.normal(size=count)


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_a_normal_posterior_is_found_in_any_units(correlation):
    units = np.exp(3.0 * np.random.default_rng(0).normal(size=120))
    x, y = regression(correlation, units)
    covariance = np.linalg.inv(x.T @ x + np.diag(units**2.0))
    mean, sd = covariance @ (x.T @ y), np.sqrt(np.diagonal(covariance))
    usual, shared, rounds = solve(x, y, 1.0 / units)
    assert shared.finished == "converged"
    assert rounds < 25
    assert np.max(np.abs(usual["mean"] - mean) / sd) < 0.05
    assert np.max(shared.memory["narrow"]) < 0.9, "those of a mean-field q are too narrow"
    assert np.all(np.abs(usual["sd"] / sd - 1.0) < 0.08)
    assert abs(np.mean(usual["sd"] / sd) - 1.0) < 0.02


def test_the_diagonal_of_an_inverse_is_known_once_the_space_is_exhausted():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(12, 12))
    matrix = root @ root.T + np.eye(12)
    directions = Subspace.empty(12).new_directions(np.zeros((0, 12)), 64, 0)
    assert np.sum(np.any(directions != 0, axis=1)) == 12
    space = Subspace.empty(12).joined(directions, directions @ matrix)
    signs = rng.choice([-1.0, 1.0], (5, 12))
    basis = space.basis()
    found = space.solved(basis, np.zeros_like, signs)
    np.testing.assert_allclose(found.solution @ matrix, signs, atol=1e-9)
    inverse, _ = space.diagonal_of_inverse(basis, np.zeros_like, signs, found.solution)
    np.testing.assert_allclose(inverse, np.diagonal(np.linalg.inv(matrix)), rtol=1e-9)


def logistic(units, prior_sd, size=50, count=400, middle=1.0):
    rng = np.random.default_rng(2)
    white = 0.8 * rng.normal(size=(count, size)) + 0.6 * rng.normal(size=(count, 1))
    x = np.column_stack([np.ones(count), (white + middle) * units])
    y = (rng.random(count) < 1 / (1 + np.exp(-white @ (0.3 * rng.normal(size=size))))) * 1.0
    names = ("intercept", *(f"x{j}" for j in range(size)))
    sd = None if prior_sd is None else np.r_[5.0, prior_sd / units]
    model = tacit.models.LogisticRegression(names, prior_sd=sd)
    return model, {f"p{k}": {"x": x[k::3], "y": y[k::3]} for k in range(3)}


def test_a_logistic_regression_is_that_of_the_full_covariance(few, monkeypatch):
    model, parties = logistic(np.ones(50), 0.5)
    wide = tacit.fit(model, parties, privacy="none")
    assert isinstance(wide._outcome.plan.rules.solver, WideSolver)
    assert wide.converged, wide.why
    assert wide._result.rounds < 40
    assert "independent" in wide._result.intervals.warning
    assert wide.diagnostics["independent_sd"][1] < 0.9
    assert "noise of sds" in str(wide)
    units = np.exp(3.0 * np.random.default_rng(0).normal(size=50))
    other = tacit.fit(*logistic(units, 0.5), privacy="none")
    scaled = other.posterior.mean * np.r_[1.0, units]
    assert np.max(np.abs(scaled - wide.posterior.mean) / wide.posterior.sd) < 1e-3
    monkeypatch.undo()
    full = tacit.fit(model, parties, privacy="none", posterior="full")
    apart = (wide.posterior.mean - full.posterior.mean) / full.posterior.sd
    assert np.sqrt(np.mean(apart**2)) < 0.1
    assert np.max(np.abs(apart)) < 0.3
    assert np.all(np.abs(wide.posterior.sd / full.posterior.sd - 1.0) < 0.1)


def test_learnt_scales_do_not_depend_on_units_and_use_corrected_variances(few, monkeypatch):
    units = np.exp(3.0 * np.random.default_rng(0).normal(size=50))
    wide = tacit.fit(*logistic(np.ones(50), None), privacy="none")
    other = tacit.fit(*logistic(units, None), privacy="none")
    assert "scales learned from the records" in wide.summary()["prior"][0]
    assert wide.converged, wide.why
    scaled = other.posterior.mean * np.r_[1.0, units]
    assert np.max(np.abs(scaled - wide.posterior.mean) / wide.posterior.sd) < 1e-3
    assert 0.0 <= min(wide.learned.values()) <= max(wide.learned.values()) < 1.0
    monkeypatch.undo()
    model, parties = logistic(np.ones(50), None)
    full = tacit.fit(model, parties, privacy="none")
    apart = (wide.posterior.mean - full.posterior.mean) / full.posterior.sd
    assert np.sqrt(np.mean(apart**2)) < 0.25
    # Large coefficients have wider tails than a normal prior of the same scale gives them.
    assert np.all(np.abs(wide.posterior.sd / full.posterior.sd - 1.0) < 0.2)


def test_the_means_of_columns_do_not_matter(few):
    near = tacit.fit(*logistic(np.ones(50), None, middle=0.0), privacy="none")
    far = tacit.fit(*logistic(np.ones(50), None, middle=9.0), privacy="none")
    assert far.converged, far.why
    assert not far.cautions
    found, sd = far.posterior.mean, near.posterior.sd
    assert np.max(np.abs(found - near.posterior.mean)[1:] / sd[1:]) < 1e-3
    assert abs(found[0] + 9.0 * np.sum(found[1:]) - near.posterior.mean[0]) < 1e-3 * sd[0]
    np.testing.assert_allclose(far.posterior.sd[1:], sd[1:], rtol=1e-3)
    assert far.posterior.sd[0] > 5.0 * sd[0], "the constant is far from the records"


GROUPS, EACH, NOISE = 90, 3, 120.0


def effects(group, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2000.0))
    tau = numpyro.sample("tau", dist.HalfNormal(300.0))
    effect = numpyro.sample("effect", dist.Normal(np.zeros(GROUPS), tau).to_event(1))
    with numpyro.plate("records", group.shape[0]):
        numpyro.sample("y", dist.Normal(mean + effect[group], NOISE), obs=y)


def exact_effects(y):
    """Mean and sd of log τ on a grid, with effects and the mean integrated out."""
    means = y.reshape(GROUPS, EACH).mean(axis=1)
    logs = np.linspace(2.5, 6.0, 2000)
    variance = np.exp(2.0 * logs) + NOISE**2 / EACH
    apart = np.sum(np.square(means - means.mean()))
    fit = -0.5 * (GROUPS - 1) * np.log(variance) - 0.5 * apart / variance
    fit += logs - 0.5 * np.square(np.exp(logs) / 300.0)
    weights = np.exp(fit - fit.max())
    weights /= weights.sum()
    mean = weights @ logs
    return mean, np.sqrt(weights @ np.square(logs - mean))


def test_the_scale_of_many_effects_has_its_marginal_standard_deviation(few):
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(GROUPS), EACH)
    y = 900.0 + 90.0 * rng.normal(size=GROUPS)[group] + NOISE * rng.normal(size=len(group))
    data = {"group": group, "y": y}
    parties = {f"p{k}": {name: one[k::2] for name, one in data.items()} for k in range(2)}
    fitted = tacit.fit(effects, parties, privacy="none")
    assert fitted.converged, fitted.why
    mean, sd = exact_effects(y)
    place = fitted.posterior.names.index("tau")
    assert abs(fitted.posterior.mean[place] - mean) < 0.2 * sd
    # With effects fixed it is 0.4, with normal effects that ignore their variances 0.7 of it.
    assert 0.93 < fitted.posterior.sd[place] / sd < 1.07
    assert "not compared with the exact one" in " ".join(fitted.cautions)


def test_a_request_and_its_reply_have_the_declared_shapes(few):
    model, parties = logistic(np.ones(50), 0.5)
    plan = make_plan(model, parties)
    public = plan.method.first_public(model, plan.family)
    shapes = {name: np.shape(value) for name, value in public.items()}
    assert shapes == plan.method.public_shapes(model, plan.family, WIDE)
    released = honest(model, public, parties["p0"])
    found = {name: np.shape(value) for name, value in released.items()}
    assert found == plan.method.released_shapes(model, plan.family, WIDE)


def honest(model, public, records):
    class Task:
        weights = np.ones(len(records["y"]))

    task = Task()
    task.records, task.public = records, public
    return wide_party.in_numpy(model, task)


@pytest.mark.parametrize("part", ["gradient", "diagonal", "products", "value"])
def test_a_reply_beyond_its_bounds_is_refused(few, part):
    model, parties = logistic(np.ones(50), 0.5)
    layout = tuple(one._replace(low=-6.0, high=8.0) for one in model.layout)
    model = tacit.models.LogisticRegression(model.names, prior_sd=1.0, layout=layout)
    plan = make_plan(model, parties)
    rng = np.random.default_rng(0)
    public = plan.method.first_public(model, plan.family) | {
        "mean": 0.1 * rng.normal(size=51),
        "scale": np.full(51, 0.1),
        "directions": rng.normal(size=(DIRECTION_COUNT, 51)),
        "spread": np.asarray(1.0),
    }
    released = honest(model, public, parties["p0"])

    def broken(released):
        count = float(len(parties["p0"]["y"]))
        exchange = Exchange(
            None, None, 1.0, True, 0, released=released, records=count, public=public
        )
        return broken_bound(model, plan.family, plan.method, exchange)

    assert broken(released) is None
    spoiled = np.full_like(released[part], 1e9)
    assert broken(released | {part: spoiled}) is not None
    if part == "diagonal":
        assert broken(released | {part: -spoiled}) is not None


def test_auto_takes_it_where_all_parties_answer(few):
    records = {"group": np.arange(8), "y": np.ones(8)}
    model = tacit.from_numpyro(effects, records)
    method, why = choose_method(model)
    assert isinstance(method, NaturalVI)
    assert "linear response" in why
    some = tacit.schedules.Synchronous(parties_per_round=1)
    assert isinstance(choose_method(model, schedule=some)[0], GradientVI)
    assert isinstance(choose_method(model, full=True)[0], GradientVI)
    parties = {"a": records, "b": records}
    with pytest.raises(ConfigError, match="needs all parties in every round"):
        make_plan(model, parties, method=NaturalVI(), schedule=some, family="mean-field")
    with pytest.raises(ConfigError, match="leave posterior out"):
        make_plan(model, parties, method=NaturalVI(), family="full")
