"""Natural gradients for more parameters than a full covariance serves."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.expfam import MeanFieldGaussian
from tacit.expfam.quadrature import hermite
from tacit.methods import GradientVI, NaturalVI
from tacit.methods.natural import wide_party, wide_variances
from tacit.methods.natural.stages import DIRECTION_COUNT, ROOT_COUNT, WIDE
from tacit.methods.natural.subspace import Solved, Subspace
from tacit.methods.natural.wide import WideSolver
from tacit.methods.reply_bounds import Exchange, broken_bound
from tacit.plan.auto import choose_method
from tacit.plan.plan import make_plan
from tacit.results.solved import judge_wide
from tacit.server.checkpoint import Checkpoint
from tacit.server.combine import RoundSum, Shared
from tacit.server.state import Published

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


def test_a_root_of_an_inverse_needs_directions_for_its_rows():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(200, 80))
    matrix = root.T @ root / 200 + 0.2 * np.eye(80)
    values, vectors = np.linalg.eigh(matrix)
    rows = rng.choice([-1.0, 1.0], (8, 80))
    right = (rows @ vectors / np.sqrt(values)) @ vectors.T
    space = Subspace.empty(80)
    for number in range(5):
        found = space.solved(space.basis(), np.zeros_like, rows)
        directions = space.new_directions(found.residual, 8, number)
        space = space.joined(directions, directions @ matrix)
    found = space.root_of_inverse(space.basis(), np.zeros_like, rows)
    assert np.max(np.linalg.norm(found - right, axis=1) / np.linalg.norm(right, axis=1)) < 0.02
    other = rng.choice([-1.0, 1.0], (8, 80))
    short = space.root_of_inverse(space.basis(), np.zeros_like, other)
    assert np.linalg.norm(short) < 0.9 * np.linalg.norm(other @ vectors / np.sqrt(values))


def test_the_missing_part_of_a_solution_uses_the_smallest_known_eigenvalue():
    values = np.r_[0.01, np.ones(39)]
    space = Subspace.empty(40)
    rows = np.eye(40)[:2]
    space = space.joined(rows, rows * values)
    found = space.solved(space.basis(), np.zeros_like, np.ones((1, 40)))
    assert found.least == pytest.approx(0.01)
    assert found.missing(0) == pytest.approx(38 / 0.01)  # with the diagonal it would be 38


def test_the_gradient_replaces_the_best_solved_system_only_if_it_matters():
    rng = np.random.default_rng(0)
    right = rng.normal(size=(5, 20))
    residual = right * np.array([0.3, 0.1, 0.2, 0.4, 1e-6])[:, None]
    small = Solved(right, residual, True, 0.5)
    np.testing.assert_array_equal(wide_variances._wanted(small, right), residual[:4])
    large = small._replace(residual=right * np.array([0.3, 0.1, 0.2, 0.4, 0.5])[:, None])
    np.testing.assert_array_equal(
        wide_variances._wanted(large, right), large.residual[[4, 3, 0, 2, 1]]
    )


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


def full_normal(parties, sd):
    """The best normal approximation with a full covariance: mean and sds."""
    x, y = (np.concatenate([one[name] for one in parties.values()]) for name in ("x", "y"))
    nodes, weights = hermite(16)
    mean, spread, form = np.zeros(len(sd)), np.zeros(len(x)), np.zeros((len(sd), len(sd)))
    for number in range(60):
        length = 1.0 if number < 8 else 0.7
        chance = 1.0 / (1.0 + np.exp(-((x @ mean)[:, None] + spread[:, None] * nodes)))
        new = (x * ((chance * (1.0 - chance)) @ weights)[:, None]).T @ x + np.diag(sd**-2.0)
        form = (1.0 - length) * form + length * new
        covariance = np.linalg.inv(form)
        mean = mean + length * covariance @ (x.T @ (y - chance @ weights) - mean / sd**2)
        spread = np.sqrt(np.sum((x @ covariance) * x, axis=1))
    return mean, np.sqrt(np.diagonal(covariance))


@pytest.mark.parametrize("middle", [0.0, 2.0])
def test_few_records_per_column_are_fitted_like_the_full_covariance(few, middle):
    model, parties = logistic(np.ones(150), 0.5, size=150, count=450, middle=middle)
    wide = tacit.fit(model, parties, privacy="none")
    assert wide.converged, wide.why
    assert wide._result.rounds < 45
    mean, sd = full_normal(parties, np.r_[5.0, np.full(150, 0.5)])
    apart = np.abs(wide.posterior.mean - mean) / sd
    assert np.sqrt(np.mean(apart**2)) < 0.03  # the mean-field optimum: .06 and .09
    assert np.max(apart) < 0.1  # .16 and .32
    assert 0.3 * np.max(apart) < wide.diagnostics["mean_error"] < 0.3
    assert "error of means" in str(wide)
    assert np.all(np.abs(wide.posterior.sd / sd - 1.0) < 0.01)  # .03 and .05


def test_a_run_that_ends_before_its_last_root_has_not_converged(few):
    model, parties = logistic(np.ones(50), 0.5, count=150)
    whole = tacit.fit(model, parties, privacy="none")
    assert whole.converged, whole.why
    rounds = whole._result.rounds - 1
    schedule = tacit.schedules.Synchronous(rounds=rounds)
    assert not tacit.fit(model, parties, privacy="none", schedule=schedule).converged


def test_a_large_error_of_the_means_is_reported(few):
    model, parties = logistic(np.ones(50), 0.5, count=150)
    fitted = tacit.fit(model, parties, privacy="none")
    state, log = fitted._outcome.state, []
    assert judge_wide(state, log).converged
    state.memory["mean_error"] = np.asarray(0.4)
    verdict = judge_wide(state, log)
    assert not verdict.converged
    assert "0.4 sd" in verdict.why


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
    early = tacit.schedules.Synchronous(rounds=fitted._result.rounds - 1)
    assert not tacit.fit(effects, parties, privacy="none", schedule=early).converged


def test_a_request_and_its_reply_have_the_declared_shapes(few):
    model, parties = logistic(np.ones(50), 0.5)
    plan = make_plan(model, parties)
    public = plan.method.first_public(model, plan.family)
    shapes = {name: np.shape(value) for name, value in public.items()}
    assert shapes == plan.method.public_shapes(model, plan.family, WIDE)
    released = honest(model, public, parties["p0"])
    found = {name: np.shape(value) for name, value in released.items()}
    assert found == plan.method.released_shapes(model, plan.family, WIDE)


def test_a_checkpoint_without_roots_is_refused_in_one_line(few, tmp_path):
    model, parties = logistic(np.ones(50), 0.5)
    plan = make_plan(model, parties)

    def interrupt(state, log):
        raise KeyboardInterrupt

    def checkpoint():
        return closing(Checkpoint(tmp_path / "server.sqlite", digest="d"))

    with checkpoint() as stored, pytest.raises(KeyboardInterrupt):
        carry_out(plan, checkpoint=stored, observe=interrupt)
    with checkpoint() as stored:
        found = stored.load()
        assert found is not None
        state = found[0]
        assert any("root" in one.public for one in state.issued.values())
        old = {
            number: Published(one.q, {k: v for k, v in one.public.items() if k != "root"})
            for number, one in state.issued.items()
        }
        stored._saved = None
        stored.save(replace(state, issued=old))
    with checkpoint() as stored, pytest.raises(DataError) as refused:
        carry_out(plan, checkpoint=stored)
    assert "server.sqlite was written by an earlier version of tacit" in str(refused.value)
    assert "start again with another --out" in str(refused.value)
    assert refused.value.exit_code == 4


def test_a_reply_with_a_root_is_the_same_in_numpy_and_compiled(few):
    model, parties = logistic(np.ones(50), 0.5)
    plan = make_plan(model, parties)
    rng = np.random.default_rng(1)
    public = plan.method.first_public(model, plan.family) | {
        "scale": np.full(51, 0.1),
        "directions": rng.normal(size=(DIRECTION_COUNT, 51)),
        "spread": np.asarray(1.0),
    }
    roots = [np.zeros((ROOT_COUNT, 51)), rng.normal(size=(ROOT_COUNT, 51)) / 8.0]
    found = [honest(model, public | {"root": root}, parties["p0"]) for root in roots]
    task = SimpleNamespace(weights=np.ones(len(parties["p0"]["y"])), records=parties["p0"])
    for root, reply in zip(roots, found, strict=True):
        task.public = public | {"root": root}
        for name, value in wide_party.derivatives(model, task).items():
            np.testing.assert_allclose(reply[name], value, rtol=1e-9, atol=1e-9, err_msg=name)
    assert abs(found[1]["value"] - found[0]["value"]) > 0.1


def honest(model, public, records):
    class Task:
        weights = np.ones(len(records["y"]))

    task = Task()
    task.records, task.public = records, public
    return wide_party.in_numpy(model, task)


@pytest.mark.parametrize("rooted", [False, True])
@pytest.mark.parametrize("part", ["gradient", "diagonal", "products", "value"])
def test_a_reply_beyond_its_bounds_is_refused(few, part, rooted):
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
    if rooted:
        public["root"] = 3.0 * rng.normal(size=(ROOT_COUNT, 51))
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
