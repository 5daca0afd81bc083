"""Private scoring with several levels: bounds of the releases, and what the server expects."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, softmax

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD, PrivateScoring
from tacit.methods.scoring.marginals import marginals
from tacit.methods.scoring.party import KNOTS, counted, counts_sum, moment_sum, score_sum
from tacit.models import SoftmaxRegression
from tacit.models.glm.softmax import MAX_LEVELS, contrasts
from tacit.models.glm.softmax_scores import (
    CategoricalLikelihood,
)
from tacit.plan.auto import MAX_COLUMNS, choose_method
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Synchronous

LAYOUT = (INTERCEPT, Feature("numeric", "a", -1.0, 1.0), *(Feature("level", "c"),) * 2)
NAMES = ("intercept", "a", "c=1", "c=2")
LEVELS = ("u", "v", "w")
MODEL = SoftmaxRegression(NAMES, levels=LEVELS, layout=LAYOUT, prior_sd=1.0)
LIKELIHOOD = CategoricalLikelihood(3)
COUNTED = counted(LAYOUT, None, levels=3)


def rows(rng, n):
    x = np.column_stack([np.ones(n), rng.uniform(-1, 1, n), np.zeros((n, 2))])
    x[np.arange(n), 2 + rng.integers(2, size=n)] = 1.0
    return x


def drawn(n, parties, seed=6):
    """Records of a known θ, dealt to parties, and as many to be held out."""
    rng = np.random.default_rng(seed)
    x, truth = rows(rng, 2 * n), rng.normal(size=(4, 3))
    y = np.argmax(x @ truth + rng.gumbel(size=(2 * n, 3)), axis=1).astype(float)
    held = {str(part): {"x": x[part:n:parties], "y": y[part:n:parties]} for part in range(parties)}
    return held, {"x": x[n:], "y": y[n:]}


def fit(model, parties, *, epsilon=1.0, insecure_noise_seed=3, rounds=8, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # δ is not small against parties of a few records
        plan = make_plan(
            model,
            parties,
            schedule=Synchronous(rounds=rounds),
            privacy=Privacy(epsilon=epsilon, delta=1e-5, insecure_noise_seed=insecure_noise_seed),
            **how,
        )
    return carry_out(plan)


@jax.jit
def released(x, y, centre, scale, bend, point):
    records, mask, clip = {"x": x, "y": y}, jnp.ones(len(x)), jnp.asarray(1.0)
    public = {"centre": centre, "scale": scale, "bend": bend, "point": point, "reach": 1.0}
    return (
        counts_sum(COUNTED, records, mask, clip),
        moment_sum(x, centre, scale, mask, clip),
        score_sum(LIKELIHOOD, records, mask, clip, **public),
    )


number = st.one_of(st.floats(-3.0, 3.0), st.floats(-1e6, 1e6), st.sampled_from([0.0, 1e6, -1e6]))
record = st.tuples(st.lists(number, min_size=4, max_size=4), st.sampled_from([0, 1, 2, 7, 0.5]))


@settings(max_examples=100, deadline=None)
@given(one=record, other=record, seed=st.integers(0, 1000), wide=st.sampled_from([0.1, 1.0, 30.0]))
def test_no_substitution_moves_a_release_by_more_than_its_sensitivity(one, other, seed, wide):
    rng = np.random.default_rng(seed)
    rest, labels = rows(rng, 3), np.array([0.0, 1.0, 2.0])
    public = (
        rng.standard_normal(4),
        rng.uniform(0.01, 3.0, 4),
        wide * rng.standard_normal((2, 4)),
        wide * rng.standard_normal(12),
    )
    found = [
        released(np.vstack([[x], rest]), np.append(float(y), labels), *public)
        for x, y in (one, other)
    ]
    for first, second in zip(*found, strict=True):
        moved = np.linalg.norm(np.asarray(first.value) - np.asarray(second.value))
        assert moved <= first.sensitivity("replace-one") * (1 + 1e-9)
    assert [bounded.nonnegative for bounded in found[0]] == [True, True, False]


def test_the_claimed_sensitivity_of_scores_is_reached():
    """Opposite x with one label, where all levels are as probable."""
    zero, one = np.zeros(4), np.ones(4)
    ends = [
        released(np.array([[1.0, x, 0, 0]]), np.array([2.0]), zero, one, zero[None], np.zeros(12))
        for x in (1e5, -1e5)
    ]
    moved = np.linalg.norm(np.asarray(ends[0][2].value) - np.asarray(ends[1][2].value))
    assert moved == pytest.approx(2.0, rel=1e-5)


def test_the_bound_of_a_residual_is_that_of_its_worst_level():
    eta = np.random.default_rng(0).normal(size=(50, 3))
    lengths = [
        np.linalg.norm(LIKELIHOOD.residual(np.full(50, level), eta, 1.0), axis=1)
        for level in range(3)
    ]
    np.testing.assert_allclose(np.max(lengths, axis=0), LIKELIHOOD.bound(eta, 1.0), rtol=1e-12)


def test_the_weight_of_a_score_does_not_know_the_label():
    x, centre, scale = np.array([[1.0, 2.0, 1.0, 0.0]]), np.zeros(4), np.full(4, 3.0)
    point = np.random.default_rng(1).normal(size=12)
    p = softmax(x @ point.reshape(3, 4).T)
    weights = []
    for level in range(3):
        sums = released(x, np.array([float(level)]), centre, scale, np.zeros((1, 4)), point)
        plain = np.outer(np.eye(3)[level] - p, scale * x[0]).ravel()
        weights.append(np.asarray(sums[2].value) @ plain / (plain @ plain))
    np.testing.assert_allclose(weights, weights[0], rtol=1e-9)
    assert weights[0] < 0.5


def test_the_residual_has_the_moments_that_the_server_expects():
    eta = np.array([0.5, -1.0, 0.2])
    p = softmax(eta)
    y = np.random.default_rng(2).choice(3, 100_000, p=p).astype(float)
    residual = LIKELIHOOD.residual(y, np.broadcast_to(eta, (len(y), 3)), 1.0)
    # Three means and nine covariances, each within 5 sd: a false alarm in 1e5.
    assert np.all(np.abs(residual.mean(axis=0)) < 5 * 0.5 / math.sqrt(len(y)))
    covariance = residual.T @ residual / len(y)
    np.testing.assert_allclose(covariance, LIKELIHOOD.variance(eta, 1.0), atol=5 * 0.5 / 316)
    steps = 1e-5 * np.eye(3)
    ahead, behind = (LIKELIHOOD.expected(eta + step, eta, 1.0) for step in (steps, -steps))
    np.testing.assert_allclose((ahead - behind) / 2e-5, LIKELIHOOD.slope(eta, 1.0), atol=1e-9)
    np.testing.assert_allclose(softmax(LIKELIHOOD.link(p)), p)


def test_slopes_are_those_of_autodiff_where_nothing_is_clipped():
    rng = np.random.default_rng(3)
    z = 0.1 * rng.normal(size=(40, 4))
    points = rng.normal(size=(2, 12))
    nothing = np.zeros((40, 2, 2))
    found = LIKELIHOOD.expected_scores(z, 40.0, points, nothing, 1.0)

    def mean_score(theta, softmax=jax.nn.softmax):
        return (softmax(z @ theta.reshape(3, 4).T, axis=1).T @ z).ravel()

    slope = jax.jit(jax.jacobian(mean_score))(points[1])
    np.testing.assert_allclose(found.curvature, slope, atol=1e-9)
    np.testing.assert_allclose(found.sampling, slope, atol=1e-9)
    np.testing.assert_allclose(found.widened, 0.0, atol=1e-9)
    change = mean_score(points[1], softmax) - mean_score(points[0], softmax)
    np.testing.assert_allclose(found.change, np.stack([change, np.zeros(12)]), atol=1e-12)
    long = LIKELIHOOD.expected_scores(100.0 * z, 40.0, points, nothing, 1.0)
    length = 100.0 * np.linalg.norm(z, axis=1)
    p = softmax(100.0 * z @ points[1].reshape(3, 4).T, axis=1)
    bound = np.sqrt(1.0 - 2.0 * p.min(axis=1) + np.sum(p * p, axis=1))
    weight = np.minimum(1.0, 1.0 / (bound * length))
    blocks = np.eye(3) * p[:, None] - p[:, :, None] * p[:, None]
    expected = np.einsum("n,nkl,ni,nj->kilj", weight, blocks, 100 * z, 100 * z).reshape(12, 12)
    np.testing.assert_allclose(long.curvature, expected, rtol=1e-6, atol=1e-9)


def test_the_width_of_q_is_averaged_over_as_by_many_draws():
    rng = np.random.default_rng(4)
    z, mean, root = rng.normal(size=(3, 4)), rng.normal(size=12), 0.3 * rng.normal(size=(12, 12))
    width = LIKELIHOOD.predictor_width(z, root @ root.T)
    draws = mean + rng.normal(size=(40_000, 12)) @ root.T
    eta = np.einsum("nd,skd->snk", z, draws.reshape(-1, 3, 4))
    xi = eta @ contrasts(3)
    for row in range(3):
        np.testing.assert_allclose(width[row], np.cov(xi[:, row].T), rtol=0.06, atol=0.02)
    found = LIKELIHOOD.expected_scores(1e-3 * z, 3.0, 1e3 * mean[None], width, 1.0)
    p, now = softmax(eta, axis=-1), softmax(z @ mean.reshape(3, 4).T, axis=1)
    expected = ((p.mean(axis=0) - now).T @ (1e-3 * z)).ravel()
    np.testing.assert_allclose(found.widened, expected, atol=0.03e-3)
    assert np.linalg.norm(expected) > 0.2e-3
    step = rng.normal(size=12)
    change = z @ step.reshape(3, 4).T
    pairs = [change[:, k] - change[:, other] for k, other in ((0, 1), (0, 2), (1, 2))]
    assert LIKELIHOOD.rms_change(z, step) == pytest.approx(np.sqrt(np.mean(np.square(pairs))))


def test_doubt_about_the_second_moment_is_that_of_drawn_errors():
    rng = np.random.default_rng(5)
    z, bend = rng.normal(size=(6, 4)), np.diag([1.0, 0.5, 0.8, 1.0])
    doubt = rng.uniform(0.1, 1.0, (4, 4))
    doubt = doubt + doubt.T
    mean = np.array([[0.2, -0.1, -0.1], [-0.1, 0.2, -0.1], [-0.1, -0.1, 0.2]])
    curvature, gap = 6.0 * np.kron(mean, z.T @ z / 6.0), rng.normal(size=12)
    found = LIKELIHOOD.curvature_doubt(z, bend, bend, doubt, curvature, np.zeros((12, 12)), gap)
    draws = rng.standard_normal((40_000, 4, 4)) * np.sqrt(doubt)  # of each entry on its own
    errors = np.einsum("kl,ai,sij,jm,lm->ska", 6.0 * mean, bend, draws, bend, gap.reshape(3, 4))
    seen = errors.reshape(len(draws), 12)
    np.testing.assert_allclose(seen.T @ seen / len(draws), found, atol=0.05 * np.abs(found).max())


def test_a_y_of_levels_is_counted_one_by_one():
    assert (COUNTED.columns, COUNTED.size) == (3, 2 + KNOTS + 3)
    y = np.array([0.0, 0.0, 2.0, 7.0])
    nothing = (np.zeros(4), np.ones(4), np.zeros((2, 4)), np.zeros(12))
    total = released(rows(np.random.default_rng(0), 4), y, *nothing)[0].value * math.sqrt(3.0)
    np.testing.assert_allclose(total[-3:], [2.0, 0.0, 1.0], atol=1e-4)
    found = marginals(LAYOUT, COUNTED, np.asarray(total), 1e-9, 3.0)
    assert found.outcome.sum() == pytest.approx(1.0)
    assert 0 < found.outcome[1] < 0.2, "a level that never occurs is not impossible"


def test_auto_is_private_scoring_up_to_as_many_weights_as_it_can_hear():
    privacy = Privacy(epsilon=1.0, delta=1e-5)
    method, why = choose_method(MODEL, privacy=privacy)
    assert isinstance(method, PrivateScoring)
    assert "'softmax' is a generalised linear model" in why
    levels = tuple(map(str, range(MAX_LEVELS)))
    numbers = [f"v{i}" for i in range(MAX_COLUMNS // MAX_LEVELS)]
    layout = (INTERCEPT, *(Feature("numeric", name, -1.0, 1.0) for name in numbers))
    many = SoftmaxRegression(("intercept", *numbers), levels=levels, layout=layout, prior_sd=1.0)
    method, why = choose_method(many, privacy=privacy)
    assert isinstance(method, DPSGD)
    assert f"{many.dimension} columns (of x, times the levels of y)" in why
    with pytest.raises(ConfigError, match=f"21 levels, but supports at most {MAX_LEVELS}"):
        SoftmaxRegression(NAMES, levels=(*levels, "more"), prior_sd=1.0)


def test_low_noise_is_close_to_the_posterior_without_privacy():
    parties, test = drawn(3000, 3)
    x, y = (np.concatenate([one[key] for one in parties.values()]) for key in ("x", "y"))
    mean = np.zeros(12)
    for _ in range(12):
        p = softmax(x @ mean.reshape(3, 4).T, axis=1)
        pull = ((np.eye(3)[y.astype(int)] - p).T @ x).ravel() - mean
        blocks = np.eye(3) * p[:, None] - p[:, :, None] * p[:, None]
        precision = np.einsum("nkl,ni,nj->kilj", blocks, x, x).reshape(12, 12) + np.eye(12)
        mean = mean + np.linalg.solve(precision, pull)
    found = fit(MODEL, parties, epsilon=100.0, rounds=12).posterior
    fits = [
        np.mean(np.log(softmax(test["x"] @ mean.reshape(3, 4).T, axis=1)[
            np.arange(3000), test["y"].astype(int)
        ]))
        for mean in (mean, found.mean)
    ]  # fmt: skip
    assert abs(fits[0] - fits[1]) < 1e-3  # nats a record
    gap = found.mean - mean
    assert 0.5 * gap @ precision @ gap / 3000 < 1e-3
    np.testing.assert_allclose(found.sd, np.sqrt(np.diagonal(np.linalg.inv(precision))), rtol=0.2)


def test_two_levels_are_a_logistic_posterior():
    """θ₁ − θ₀ of prior variance 2σ², found by Newton's steps; Σ θ says nothing and stays 0."""
    parties, _ = drawn(3000, 3)
    for records in parties.values():
        records["y"] = np.minimum(records["y"], 1.0)
    x, y = (np.concatenate([one[key] for one in parties.values()]) for key in ("x", "y"))
    mean = np.zeros(4)
    for _ in range(12):
        p = expit(x @ mean)
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(4) / (2 * 0.7**2)
        mean = mean + np.linalg.solve(precision, x.T @ (y - p) - mean / (2 * 0.7**2))
    two = SoftmaxRegression(NAMES, levels=("no", "yes"), prior_sd=0.7, layout=LAYOUT)
    weights = fit(two, parties, epsilon=100.0, rounds=10).posterior.mean.reshape(2, 4)
    np.testing.assert_allclose(weights[1] - weights[0], mean, atol=0.05)
    np.testing.assert_allclose(weights[1] + weights[0], 0.0, atol=1e-8)


def test_levels_that_never_occur_and_a_party_of_one_level():
    parties, _ = drawn(200, 2)
    for records in parties.values():
        records["y"] = np.minimum(records["y"], 1.0)  # "w" never occurs
    parties["0"]["y"][:] = 0.0
    found = fit(MODEL, parties, epsilon=100.0).posterior
    assert found.family.is_proper(found.natural)
    assert np.all(np.isfinite(found.mean))


@pytest.mark.parametrize(("key", "bad"), [("x", math.nan), ("x", math.inf), ("y", math.nan)])
def test_numbers_that_are_not_finite_are_refused(key, bad):
    parties, _ = drawn(60, 2)
    parties["1"][key][3] = bad
    with pytest.raises(DataError, match="not finite"):
        fit(MODEL, parties)


def test_the_noise_of_each_release_has_the_law_that_was_charged():
    """Two runs that differ in their noise, next to which the sums hardly count."""
    parties, _ = drawn(200, 2)
    one, two = (fit(MODEL, parties, epsilon=0.02, insecure_noise_seed=seed) for seed in (1, 2))
    square, numbers = 0.0, 0
    for name, visit, unit in (("counts", 0, math.sqrt(3.0)), ("moment", 1, 1.0)):
        noise_sd = unit * one.plan.settled["0"].answers[visit][0].noise_sd
        gap = (one.state.memory[name] - two.state.memory[name]) / (math.sqrt(2.0 * 2) * noise_sd)
        square, numbers = square + gap @ gap, numbers + len(gap)
    for run in (one, two):
        noise_sd = run.plan.settled["0"].answers[2][0].noise_sd * math.sqrt(2.0)
        first = run.state.memory["scores"][0] / noise_sd
        square, numbers = square + first @ first, numbers + len(first)
    law = stats.chi2(numbers)
    assert law.ppf(1e-5) < square < law.isf(1e-5)  # a false alarm in 50,000
    assert not law.ppf(1e-5) < 0.25 * square  # half of the noise would be noticed,
    assert not 4.0 * square < law.isf(1e-5)  # and so would twice as much
