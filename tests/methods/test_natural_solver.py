"""The server's half of natural-gradient inference: steps, weights and numerically hard cases."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from tacit.expfam import FullGaussian
from tacit.expfam.quadrature import normal_rule, weighing_draws
from tacit.expfam.rooted import RootedGaussian
from tacit.methods.natural import chains
from tacit.methods.natural.curvature import absolute_eigen, lower_root
from tacit.methods.natural.move import Place
from tacit.methods.natural.solver import WEIGHTS, NaturalSolver
from tacit.methods.natural.split import (
    DONE,
    GOING,
    LOST,
    MAX_NODES,
    NEW,
    Node,
    inner_nodes,
    is_cut_off,
    more_nodes,
    needed,
)
from tacit.methods.natural.stages import (
    CANDIDATES,
    DRAWS,
    EVALUATE,
    FAILED,
    MODE,
    NODES,
    SLOPES,
    WEIGH,
)
from tacit.methods.natural.weights import DOUBTED, smoothed, weigh_draws
from tacit.results.solved import judge_solved
from tacit.server.combine import RoundSum, Shared


def gaussian_replies(shared, precision, linear):
    """Exact replies of one party whose log-likelihood is −½ θᵀPθ + b·θ."""
    public, size = shared.public, len(linear)

    def at(mean, root, spread):
        value = linear @ mean - 0.5 * mean @ precision @ mean
        inside = root.T @ precision @ root
        value -= 0.5 * spread**2 * np.trace(inside)
        return value, root.T @ (linear - precision @ mean), -inside

    if shared.stage == MODE:
        names = ("precision", "linear", "good_precision", "good_linear", "modes")
        values = (precision, linear, precision, linear, np.linalg.solve(precision, linear))
        return dict(zip(names, values, strict=True))
    if shared.stage == WEIGH:
        theta = public["mean"] + weighing_draws(size) @ public["root"].T
        inner = theta @ linear - 0.5 * np.sum((theta @ precision) * theta, axis=1)
        return {"log_likelihood": inner}
    if shared.stage == EVALUATE:
        parts = at(public["mean"], public["root"], 1.0)
    else:
        assert shared.stage == CANDIDATES
        each = [
            at(mean, root, float(public["spread"]))
            for mean, root in zip(public["mean"], public["root"], strict=True)
        ]
        parts = tuple(np.stack(part) for part in zip(*each, strict=True))
    return dict(zip(("value", "gradient", "hessian"), map(np.asarray, parts), strict=True))


def solve(solver, precision, linear, most=30, spoil=None):
    public = {"centre": np.zeros(len(linear)), "prior_share": np.asarray(1.0)}
    shared = Shared(solver.family.zero(), public, None, stage=MODE)
    for number in range(1, most):
        total = gaussian_replies(shared, precision, linear)
        if spoil is not None:
            total = spoil(number, shared, total)
        shared = solver(shared, RoundSum(total, 1, number))
        if shared.finished:
            return shared, number
    raise AssertionError("not finished")


def problem(scale=1.0):
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 4)) * np.array([1.0, scale, 1.0 / scale, 1.0])[:, None]
    precision = root @ root.T
    return precision, precision @ np.array([1.0, -2.0, 0.5, 3.0])


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_normal_likelihood_takes_four_exchanges_and_is_exact(scale):
    precision, linear = problem(scale)
    family = FullGaussian(4)
    prior = family.natural(mean=np.zeros(4), covariance=np.diag([1.0, scale**-2, scale**2, 1.0]))
    shared, rounds = solve(NaturalSolver(family, prior), precision, linear)
    whole = precision - 2.0 * prior["quadratic"]
    mean = np.linalg.solve(whole, linear)
    sd = np.sqrt(np.diagonal(np.linalg.inv(whole)))
    assert shared.finished == "converged"
    assert rounds == 4
    np.testing.assert_allclose(shared.public["mean"], mean, atol=1e-6 * np.max(sd))
    found = np.sqrt(np.sum(np.square(shared.public["root"]), axis=1))
    np.testing.assert_allclose(found, sd, rtol=1e-6)
    assert float(shared.memory["effective_share"]) == pytest.approx(1.0)
    assert not shared.public["weighted"]


def test_a_lower_bound_that_falls_shortens_the_step():
    precision, linear = problem()
    seen = []

    def spoil(number, shared, total):
        seen.append(shared.stage)
        if shared.stage == EVALUATE and seen.count(EVALUATE) == 1:
            return total | {"gradient": total["gradient"] + 3.0}  # a step that leads away
        return total

    shared, _ = solve(NaturalSolver(FullGaussian(4), None), precision, linear, spoil=spoil)
    assert seen.count(CANDIDATES) >= 2, "the bad step was not tried at other lengths"
    assert shared.finished == "converged"
    np.testing.assert_allclose(shared.public["mean"], np.linalg.solve(precision, linear), atol=1e-2)


def test_a_point_without_a_density_is_not_stepped_to():
    precision, linear = problem()

    def spoil(number, shared, total):
        if shared.stage == CANDIDATES and number == 2:
            value = np.where(np.arange(5) == 0, total["value"], FAILED)
            return total | {"value": value}
        return total

    shared, _ = solve(NaturalSolver(FullGaussian(4), None), precision, linear, spoil=spoil)
    assert shared.finished == "converged"


def test_shorter_ways_are_tried_where_no_party_has_a_mode():
    precision, linear = problem()
    solver = NaturalSolver(FullGaussian(4), None)
    public = {"centre": np.ones(4), "prior_share": np.asarray(1.0)}
    shared = Shared(solver.family.zero(), public, None, stage=MODE)
    total = gaussian_replies(shared, precision, linear)
    total |= {"good_precision": np.zeros((4, 4)), "good_linear": np.zeros(4)}
    points = solver(shared, RoundSum(total, 1, 1)).public["mean"] - 1.0
    np.testing.assert_allclose(points[2], np.linalg.solve(precision, linear) - 1.0, atol=1e-9)
    np.testing.assert_allclose(points[[1, 4]], np.outer([1 / 64, 1 / 8], points[2]), atol=1e-9)


def test_the_same_round_is_asked_again_when_a_party_has_left():
    precision, linear = problem()
    solver = NaturalSolver(FullGaussian(4), None)
    public = {"centre": np.zeros(4), "prior_share": np.asarray(0.5)}
    shared = Shared(solver.family.zero(), public, None, stage=MODE)
    again = solver(shared, RoundSum(gaussian_replies(shared, precision, linear), 1, 1))
    assert again.stage == MODE
    assert float(again.public["prior_share"]) == 1.0


def replies_of(shared, middles):
    """Sums of parties whose log-likelihoods are −½|θ − middle|²."""
    form, pull = len(middles) * np.eye(2), np.sum(middles, axis=0)
    if shared.stage != SLOPES:
        return RoundSum(gaussian_replies(shared, form, pull), len(middles), 1)
    theta = shared.public["draws"]
    value = theta @ pull - 0.5 * len(middles) * np.sum(np.square(theta), axis=1)
    total = {"log_likelihood": value, "gradient": pull - len(middles) * theta}
    return RoundSum(total, len(middles), 1)


@pytest.mark.parametrize("phase", [WEIGH, SLOPES])
def test_nothing_of_a_party_that_has_left_remains(phase):
    both, one = (np.zeros(2), np.full(2, 3.0)), (np.zeros(2),)
    solver = NaturalSolver(FullGaussian(2), None, sampling=True)
    mean, root = np.full(2, 1.5), np.eye(2) / np.sqrt(2.0)
    public = {"mean": mean, "root": root, "prior_share": np.asarray(0.5)}
    memory = {"settled": np.asarray(1.0), "last_change": np.asarray(0.0)}
    shared = Shared(
        solver.natural(mean, root), public, memory | {"phase": np.asarray(WEIGHTS)}, stage=WEIGH
    )
    if phase == SLOPES:
        ended = solver(shared, replies_of(shared, both))
        assert ended.finished == "converged"
        shared = chains.begin(solver, ended, mean, root)
        shared = shared._replace(public=shared.public | {"prior_share": np.asarray(0.5)})
        while not any(name.startswith(chains.DRAWN) for name in shared.memory):
            shared = solver(shared, replies_of(shared, both))
        assert shared.finished is None
    for _ in range(30):
        shared = solver(shared, replies_of(shared, one))
        if shared.finished is not None:
            break
    assert shared.finished == "converged"
    found, spread = RootedGaussian(2).moments(shared.public)
    np.testing.assert_allclose(found, 0.0, atol=1e-3)
    np.testing.assert_allclose(spread @ spread.T, np.eye(2), atol=1e-3)


def test_weights_of_the_posterior_itself_are_even_and_correct_a_wrong_one():
    size = 3
    target_mean, target_sd = np.array([0.3, -0.2, 0.1]), np.array([1.1, 0.9, 1.0])
    draws = weighing_draws(size)

    def weighed(mean, sd):
        theta = mean + draws * sd
        density = -0.5 * np.sum(((theta - target_mean) / target_sd) ** 2, axis=1)
        return weigh_draws(theta, -0.5 * np.sum(draws * draws, axis=1), density)

    exact = weighed(target_mean, target_sd)
    assert exact.effective_share == pytest.approx(1.0)
    near = weighed(np.zeros(size), np.ones(size))
    assert 0.5 < near.effective_share < 0.99
    np.testing.assert_allclose(near.mean, target_mean, atol=0.05)
    np.testing.assert_allclose(np.sqrt(np.diagonal(near.covariance)), target_sd, rtol=0.05)
    assert near.believed
    assert near.usable
    far = weighed(np.full(size, 6.0), np.full(size, 0.3))
    assert far.effective_share < 0.05
    assert far.pareto_k > 0.7
    assert not far.believed
    assert not far.usable


def test_draws_with_heavier_tails_find_the_moments_of_a_wider_posterior():
    """A Student-t with 5 degrees of freedom has sds of 1.29 times its scale, a normal q 1."""
    size = 3

    def log_joint(theta):
        return -0.5 * (5.0 + size) * np.log1p(np.sum(theta * theta, axis=1) / 5.0)

    solver = NaturalSolver(FullGaussian(size), None)
    draws = weighing_draws(size)
    public = {"mean": np.zeros(size), "root": np.eye(size), "prior_share": np.asarray(1.0)}
    memory = {"phase": np.asarray(5), "settled": np.asarray(1.0), "last_change": np.asarray(1e-6)}
    shared = Shared(solver.natural(np.zeros(size), np.eye(size)), public, memory, stage=WEIGH)
    first = weigh_draws(draws, -0.5 * np.sum(draws * draws, axis=1), log_joint(draws))
    sd = np.sqrt(5.0 / 3.0)
    assert np.mean(np.sqrt(np.diagonal(first.covariance))) < 0.95 * sd
    shared = solver(shared, RoundSum({"log_likelihood": log_joint(draws)}, 1, 1))
    assert shared.stage == DRAWS
    theta = shared.public["draws"]
    shared = solver(shared, RoundSum({"log_likelihood": log_joint(theta)}, 1, 2))
    assert shared.finished == "converged"
    found = RootedGaussian(size).usual(shared.q | shared.public)
    np.testing.assert_allclose(np.sqrt(np.diagonal(found["covariance"])), sd, rtol=0.04)
    np.testing.assert_allclose(found["mean"], 0.0, atol=0.02)


def asked_and_weighed(log_joint, size, most=60):
    """The solver's states from the weights of a standard normal q on; derivatives are 0."""
    solver = NaturalSolver(FullGaussian(size), None)
    public = {"mean": np.zeros(size), "root": np.eye(size), "prior_share": np.asarray(1.0)}
    memory = {"phase": np.asarray(5), "settled": np.asarray(1.0), "last_change": np.asarray(1e-6)}
    shared = Shared(solver.natural(np.zeros(size), np.eye(size)), public, memory, stage=WEIGH)
    states = [shared]
    while shared.finished is None and len(states) < most:
        if shared.stage == NODES:
            means = shared.public["mean"]
            nothing = np.zeros(means.shape), np.zeros(shared.public["root"].shape)
            reply = {"value": np.full(len(means), FAILED), "gradient": nothing[0]}
            reply |= {"hessian": nothing[1]}
        else:
            theta = shared.public.get("draws", weighing_draws(size))
            reply = {"log_likelihood": log_joint(theta)}
        shared = solver(shared, RoundSum(reply, 1, len(states)))
        states.append(shared)
    return states


def test_a_tail_that_few_draws_reach_is_looked_for_though_most_draws_are_effective():
    """A tenth of the posterior is half as wide again in one coordinate: 95 % of the draws of q are
    effective, but its sd is too small.
    """

    def log_joint(theta):
        first, second = np.square(theta).T
        wide = np.log(0.1 / 1.5) - first / 4.5
        return np.logaddexp(np.log(0.9) - 0.5 * first, wide) - 0.5 * second

    draws = weighing_draws(2)
    first = weigh_draws(draws, -0.5 * np.sum(draws * draws, axis=1), log_joint(draws))
    assert first.effective_share > 0.9
    assert first.pareto_k > 0.7
    states = asked_and_weighed(log_joint, 2)
    assert states[1].stage == DRAWS
    found = RootedGaussian(2).usual(states[-1].q | states[-1].public)
    sd = np.sqrt(np.diagonal(found["covariance"]))
    np.testing.assert_allclose(sd, [np.sqrt(0.9 + 0.1 * 2.25), 1.0], rtol=0.015)


def test_q_is_not_trusted_if_draws_with_heavier_tails_contradict_it():
    """95 % of its own draws are effective, but draws that reach further have uneven weights."""
    noise = np.random.default_rng(0).normal(size=4 * len(weighing_draws(2)))

    def log_joint(theta):
        first, second = np.square(theta).T
        near = np.array_equal(theta, weighing_draws(2))
        wide = np.log(0.1 / 1.5) - first / 4.5
        fit = np.logaddexp(np.log(0.9) - 0.5 * first, wide) - 0.5 * second
        return fit if near else fit + 4.0 * noise[: len(theta)]

    last = asked_and_weighed(log_joint, 2)[-1]
    assert last.note == "more draws were not better"
    assert DOUBTED in last.memory
    state = SimpleNamespace(
        memory=last.memory, round=9, finished=last.finished, public=last.public,
        factors={}, not_asked=(), moved_since={},
    )  # fmt: skip
    verdict = judge_solved(state, [])
    assert not verdict.converged
    assert "far from normal" in verdict.why


def node(value, energy, status=DONE):
    place = Place(np.zeros(1), np.eye(1), energy, np.zeros(1), np.zeros((1, 1)))
    return Node(value, status, place, np.zeros(1), np.eye(1), 1.0)


def test_a_split_does_not_wait_for_nodes_far_beyond_its_ends():
    known = [node(x, -0.5 * (x - 2.0) ** 2) for x in np.linspace(-3.0, 1.0, 9)]
    low = node(6.0, -40.0, GOING)
    (new,) = inner_nodes([*known, low])
    assert (new.value, new.status) == (3.5, NEW)
    assert needed([*known, node(3.5, -20.0), low]) == [*known, node(3.5, -20.0)]
    assert inner_nodes([*known, node(6.0, -3.0, GOING)]) == [], "its density is not low"
    assert inner_nodes([*known, low, node(1.7, -30.0, GOING)]) == [], "the next one is near"
    assert inner_nodes([*known, low, node(2.0, -np.inf, NEW)]) == [], "the new one is not evaluated"
    assert inner_nodes([*known, node(1.5, -30.0), low]) == [], "the density is low at the end"


def test_a_split_that_runs_out_of_nodes_says_so():
    whole = [node(x, -0.5 * x * x) for x in np.linspace(-4.5, 4.5, MAX_NODES)]
    assert not is_cut_off(whole)
    high = [node(x, -0.5 * x * x) for x in np.linspace(-4.5, 2.0, MAX_NODES)]
    assert is_cut_off(high)
    assert more_nodes(high) == []
    lost_on_the_way = [*whole, node(30.0, -99.0, GOING), node(0.1, -1.0, GOING)]
    assert needed(lost_on_the_way) == [*whole, lost_on_the_way[-1]]
    edge = [node(x, -0.5 * x * x) for x in np.linspace(-4.5, 2.0, 14)]
    assert is_cut_off([*edge, node(3.0, -np.inf, LOST)])
    assert len(more_nodes(edge)) > 0


def test_lengths_of_many_dimensional_draws_vary_like_those_of_normal_vectors():
    """A group's scale is seen by the sum of many squares: draws of too even a length hide it."""
    for size in (64, 300):
        lengths = np.sum(np.square(weighing_draws(size)), axis=1)
        assert 0.8 < np.var(lengths) / (2 * size) < 1.1, size


def test_the_shape_of_a_pareto_tail_is_found():
    rng = np.random.default_rng(0)
    for shape in (0.3, 0.9):
        ratios = stats.genpareto(shape).rvs(size=20_000, random_state=rng)
        assert smoothed(np.log(ratios + 1.0))[1] == pytest.approx(shape, abs=0.15)


def test_draws_by_weights_have_the_moments_that_a_result_shows():
    natural = {
        "linear": np.zeros(2),
        "quadratic": -0.5 * np.eye(2),
        "mean": np.array([1.0, 2.0]),
        "root": np.array([[1.0, 0.0], [0.5, 0.2]]),
        "log_weights": -0.3 * weighing_draws(2)[:, 0],
        "weighted": np.asarray(1.0),
    }
    natural["log_weights"] -= np.log(np.sum(np.exp(natural["log_weights"])))
    family = RootedGaussian(2)
    theta, weights = family.draws(natural)
    mean, sd = family.location_scale(natural)
    np.testing.assert_allclose(weights @ theta, mean)
    np.testing.assert_allclose(np.sqrt(weights @ np.square(theta - mean)), sd)
    import jax

    sample = family.sample(jax.random.key(0), natural, (20_000,))
    np.testing.assert_allclose(np.mean(sample, axis=0), mean, atol=0.05)


def test_a_repaired_matrix_is_equivariant_and_leaves_good_ones_alone():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(3, 3))
    good, right = root @ root.T, rng.normal(size=3)
    np.testing.assert_allclose(absolute_eigen(good).solve(right), np.linalg.solve(good, right))
    bad = good - 3.0 * np.eye(3)
    units = np.array([1e-4, 1.0, 1e4])
    one = absolute_eigen(bad).solve(right)
    two = absolute_eigen(bad * np.outer(units, units)).solve(right * units)
    np.testing.assert_allclose(two * units, one, rtol=1e-8)
    assert not absolute_eigen(bad).definite


def test_a_lower_root_has_the_same_covariance():
    root = np.random.default_rng(2).normal(size=(3, 3))
    lower = lower_root(root)
    np.testing.assert_allclose(lower @ lower.T, root @ root.T)
    assert np.all(np.triu(lower, 1) == 0)
    assert np.all(np.diagonal(lower) > 0)


@pytest.mark.parametrize("dimension", [1, 2, 3, 20, 70])
def test_the_rule_integrates_cubic_polynomials(dimension):
    points, weights = normal_rule(dimension)
    np.testing.assert_allclose(weights @ points, 0.0, atol=1e-12)
    np.testing.assert_allclose((points.T * weights) @ points, np.eye(dimension), atol=1e-10)
    np.testing.assert_allclose(weights @ points**3, 0.0, atol=1e-10)
