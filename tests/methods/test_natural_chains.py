"""Hamiltonian Monte Carlo over exchanges: `NaturalVI(sampling=True)`."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.errors import ConfigError
from tacit.expfam import FullGaussian
from tacit.expfam.rooted import RootedGaussian
from tacit.methods import NaturalVI
from tacit.methods.natural import chains, party, plain
from tacit.methods.natural.solver import NaturalSolver
from tacit.methods.natural.stages import FAILED, SLOPES, chain_count
from tacit.models.learnt_scale import LearntScalePrior
from tacit.results.cautions import NotConvergedWarning
from tacit.results.solved import _judge_sampled
from tacit.server.combine import RoundSum, Shared


def sampled(log_joint, size=2, start=1.0, most=20_000, kept=None):
    """Run the chains against a log-joint of one row of coordinates; no party is involved. With
    `kept`, stop after this many trajectories and conclude.
    """
    both = jax.jit(jax.vmap(jax.value_and_grad(log_joint)))
    solver = NaturalSolver(FullGaussian(size), None)
    begun = {"mean": np.zeros(size), "root": start * np.eye(size), "weighted": np.asarray(0.0)}
    begun["log_weights"] = np.zeros(1)
    ended = Shared({}, begun, {"last_change": np.asarray(0.0)}, finished="rounds")
    shared = chains.begin(solver, ended, begun["mean"], begun["root"])
    for number in range(most):
        assert shared.stage == SLOPES
        assert shared.public["draws"].shape == (chain_count(size), size)
        released = party.finite_slopes(*(np.asarray(one) for one in both(shared.public["draws"])))
        answers = RoundSum(released, 3, number)
        shared = chains.after_chains(solver, shared, dict(shared.memory), answers)
        if shared.finished is not None:
            return shared, number
        if kept and sum(name.startswith(chains.DRAWN) for name in shared.memory) == kept:
            return solver.concluded(shared), number
    raise AssertionError("the chains did not end")


def draws_of(shared):
    return shared.public["more_draws"]


def test_a_normal_is_sampled_from_a_start_with_other_scales():
    scale = jnp.asarray([0.1, 5.0])
    shared, exchanges = sampled(lambda x: -0.5 * jnp.sum(jnp.square((x - 2.0) / scale)))
    assert shared.finished == "converged"
    assert exchanges < 1500
    sd = np.std(draws_of(shared), axis=0)
    np.testing.assert_allclose(np.mean(draws_of(shared), axis=0), 2.0, atol=0.5)
    np.testing.assert_allclose(sd, scale, rtol=0.1)
    errors = [float(shared.memory[name]) for name in ("mean_error", "sd_error")]
    assert 0.003 < errors[0] <= 0.033
    assert 0.003 < errors[1] <= 0.04


@pytest.mark.parametrize("size", [65, 90])
def test_any_number_of_parameters_has_as_many_draws_as_a_result(size, monkeypatch):
    """The number of draws need not be a multiple of the number of chains."""
    monkeypatch.setattr(chains, "MOST_EXCHANGES", 200)
    shared, _ = sampled(lambda x: -0.5 * jnp.sum(jnp.square(x)), size=size)
    assert draws_of(shared).shape == RootedGaussian(size).stored_shapes["more_draws"]
    assert len(np.unique(draws_of(shared)[:, 0])) > 1000
    np.testing.assert_allclose(np.std(draws_of(shared), axis=0), 1.0, rtol=0.15)


def bent(x):
    return -0.5 * x[0] ** 2 - 0.5 * (x[1] - x[0] ** 2) ** 2 / 0.25


def test_a_bent_posterior_has_its_exact_moments():
    shared, _ = sampled(bent)
    theta = draws_of(shared)
    assert shared.finished == "converged"
    np.testing.assert_allclose(np.mean(theta, axis=0), [0.0, 1.0], atol=0.15)
    np.testing.assert_allclose(np.std(theta, axis=0), [1.0, np.sqrt(2.25)], rtol=0.1)
    assert float(shared.memory["skewness"][1]) > 1.0


def test_a_region_without_density_is_never_entered(monkeypatch):
    monkeypatch.setattr(chains, "MOST_EXCHANGES", 2000)
    shared, _ = sampled(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x * x), -jnp.inf))
    theta = draws_of(shared)
    assert np.min(theta[:, 0]) > 0
    assert np.mean(theta[:, 0]) == pytest.approx(np.sqrt(2 / np.pi), abs=0.05)
    assert not bool(shared.memory["settled"]), "trajectories end at the edge"
    assert "divergent" in _judge_sampled(shared.memory, "9 rounds").why


def test_chains_in_different_modes_are_not_believed(monkeypatch):
    monkeypatch.setattr(chains, "MOST_EXCHANGES", 800)

    def two(x):
        return jnp.logaddexp(-0.5 * jnp.sum((x - 8) ** 2), -0.5 * jnp.sum((x + 8) ** 2))

    shared, _ = sampled(two, start=8.0)
    assert shared.finished == "rounds"
    verdict = _judge_sampled(shared.memory, "9 rounds")
    assert not verdict.converged
    assert "do not agree" in verdict.why


def test_a_density_that_is_nowhere_finite_keeps_the_result_before():
    shared, exchanges = sampled(lambda x: jnp.sum(x) * jnp.nan)
    assert exchanges == 0
    assert shared.finished == "rounds"
    assert "more_draws" not in shared.public


def test_chains_that_accept_every_trajectory_would_be_noticed(monkeypatch):
    """The moments of the bent posterior depend on the acceptance of trajectories."""

    def accepting(state, purpose):
        rng = np.random.default_rng([int(state.number), purpose])
        return Accepting() if purpose == 1 else rng

    class Accepting:
        def random(self, count):
            return np.full(count, 1e-300)

    monkeypatch.setattr(chains, "_generator", accepting)
    shared, _ = sampled(bent)
    assert abs(np.std(draws_of(shared)[:, 1]) / 1.5 - 1.0) > 0.1


def test_the_slope_of_the_learned_prior_is_its_derivative():
    rng = np.random.default_rng(1)
    transform = np.diag([1.0, 2.0, 0.5, 3.0]) + 0.1
    prior = LearntScalePrior(np.arange(4.0), transform, np.array([-1, 0, 1, 1]), 1.5)
    theta = rng.normal(size=(5, 4)) + np.arange(4.0)
    expected = jax.vmap(jax.grad(prior.log_density))(jnp.asarray(theta))
    np.testing.assert_allclose(prior.log_density_slope(theta), expected, rtol=1e-9)


def test_both_ways_to_compute_slopes_agree(make_parties):
    from tacit.methods.base import Task
    from tacit.models import LogisticRegression

    (records,) = make_parties((30,), output="bernoulli").values()
    model = LogisticRegression(("a", "b", "c"), prior_sd=1.0)
    draws = np.random.default_rng(0).normal(size=(4, model.dimension))
    public = {"draws": draws, "prior_share": np.asarray(1.0)}
    task = Task.__new__(Task, *[None] * len(Task._fields))._replace(
        records=records, weights=np.ones(30), public=public
    )
    one, other = plain.at_slopes(model, task), party.at_slopes(model, task)
    for name in ("log_likelihood", "gradient"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6, atol=1e-9)


def test_slopes_that_are_not_finite_are_marked():
    found = party.finite_slopes(np.array([1.0, np.nan, 2.0]), np.array([[1.0], [1.0], [np.inf]]))
    np.testing.assert_array_equal(found["log_likelihood"], [1.0, FAILED, FAILED])
    np.testing.assert_array_equal(found["gradient"], [[1.0], [0.0], [0.0]])


RATERS, ITEMS = 4, 5


def crossed(rater, item, y=None):
    """Effects of raters and of items at once: two weakly determined scales."""
    scales = numpyro.sample("scales", dist.HalfNormal(2.0).expand([2]).to_event(1))
    of_rater = numpyro.sample("of_rater", dist.Normal(0, scales[0]).expand([RATERS]).to_event(1))
    of_item = numpyro.sample("of_item", dist.Normal(0, scales[1]).expand([ITEMS]).to_event(1))
    with numpyro.plate("records", rater.shape[0]):
        numpyro.sample("y", dist.Normal(of_rater[rater] + of_item[item], 1.0), obs=y)


def crossed_records():
    rater, item = (one.ravel() for one in np.mgrid[:RATERS, :ITEMS])
    rng = np.random.default_rng(4)
    y = rng.normal(size=RATERS)[rater] + 0.7 * rng.normal(size=ITEMS)[item]
    return {"rater": rater, "item": item, "y": y + rng.normal(size=len(y))}


def crossed_moments(records):
    """Exact moments: the effects are normal given the scales, which are integrated on a grid."""
    design = np.hstack([np.eye(RATERS)[records["rater"]], np.eye(ITEMS)[records["item"]]])
    grid = np.exp(np.linspace(-7, 2.5, 160))
    logs, means, squares, pairs = [], [], [], []
    for first in grid:
        for second in grid:
            sd = np.r_[np.full(RATERS, first), np.full(ITEMS, second)]
            scaled = design * sd
            inner = np.eye(len(sd)) + scaled.T @ scaled
            inverse = np.linalg.inv(inner)
            pull = scaled.T @ records["y"]
            log = 0.5 * pull @ inverse @ pull - 0.5 * np.linalg.slogdet(inner)[1]
            log += -(first**2 + second**2) / 8.0 + np.log(first) + np.log(second)
            logs.append(log)
            mean = sd * (inverse @ pull)
            means.append(mean)
            squares.append(np.square(mean) + np.square(sd) * np.diagonal(inverse))
            pairs.append([first, second])
    weights = np.exp(np.array(logs) - max(logs))
    weights /= np.sum(weights)
    values = np.hstack([np.array(pairs), np.array(means)])
    second = np.hstack([np.square(pairs), np.array(squares)])
    mean = weights @ values
    return mean, np.sqrt(weights @ second - np.square(mean))


@pytest.fixture(scope="module")
def crossed_parties():
    records = crossed_records()
    order = np.random.default_rng(0).permutation(len(records["y"]))
    shares = np.array_split(order, 3)
    return {
        f"party-{n}": {name: one[share] for name, one in records.items()}
        for n, share in enumerate(shares)
    }


@pytest.fixture(scope="module")
def crossed_model():
    return tacit.from_numpyro(crossed, {n: one[:4] for n, one in crossed_records().items()})


def test_two_weak_scales_are_sampled_where_the_default_is_flagged(crossed_model, crossed_parties):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = tacit.fit(crossed_model, crossed_parties, privacy="none")
        fit = tacit.fit(
            crossed_model, crossed_parties, privacy="none", method=NaturalVI(sampling=True)
        )
    assert not default.converged
    assert "method.sampling = true" in default.why
    assert fit.converged, fit.why
    assert "Hamiltonian Monte Carlo, 256 chains" in fit.why
    mean, sd = crossed_moments(crossed_records())
    draws = fit.posterior.draws(40_000, seed=0)
    found = np.hstack([np.asarray(draws[name]) for name in ("scales", "of_rater", "of_item")])
    np.testing.assert_allclose((np.mean(found, axis=0) - mean) / sd, 0.0, atol=0.1)
    np.testing.assert_allclose(np.std(found, axis=0) / sd, 1.0, atol=0.1)
    diagnostics = fit.diagnostics
    assert diagnostics["nested_r_hat"] <= chains.MAX_NESTED_R_HAT
    assert diagnostics["mean_error"] <= 0.033
    assert "nested R̂" in str(fit)


def test_slowly_mixing_chains_agree_once_they_have_enough_draws():
    """A window of fixed length would never be long enough."""
    rng = np.random.default_rng(6)
    position, draws = rng.normal(size=(256, 4)), []
    for _ in range(400):
        position = 0.95 * position + np.sqrt(1.0 - 0.95**2) * rng.normal(size=(256, 4))
        draws.append(position)
    theta = np.stack(draws)
    assert np.max(chains.nested_r_hat(theta[:32])) > chains.MAX_NESTED_R_HAT
    assert np.max(chains.nested_r_hat(theta[200:])) <= chains.MAX_NESTED_R_HAT


def test_half_of_the_trajectories_are_kept_while_chains_disagree():
    solver = NaturalSolver(FullGaussian(2), None)
    begun = {"mean": np.zeros(2), "root": np.eye(2), "weighted": np.asarray(0.0)}
    started = chains.begin(solver, Shared({}, begun, {}), np.zeros(2), np.eye(2))
    apart = np.repeat(np.arange(chains.STARTS, dtype=float), 256 // chains.STARTS)[:, None]
    rng = np.random.default_rng(0)
    memory, counts = dict(started.memory), []
    for done in range(1, 97):
        number = chains.WARM_UP + done - 1
        memory[f"{chains.DRAWN}{number - chains.WARM_UP:04d}"] = apart + rng.normal(size=(256, 2))
        state = chains.Chains.unpack(memory)._replace(number=np.asarray(number))
        following = chains._checked(solver, started, memory, state)
        memory = dict(following.memory)
        if done % 16 == 0:
            counts.append(sum(name.startswith(chains.DRAWN) for name in memory))
    assert counts == [8, 16, 24, 32, 40, 48]


@pytest.mark.parametrize("kept", [10, 3])
def test_chains_that_are_stopped_keep_their_draws_if_there_are_enough(kept):
    shared, _ = sampled(lambda x: -0.5 * jnp.sum(jnp.square(x)), kept=kept)
    assert ("more_draws" in shared.public) == (kept == 10)
    assert ("sampled.r_hat" in shared.memory) == (kept == 10)
    np.testing.assert_allclose(shared.public["mean"], 0.0, atol=0.1)


def test_a_run_that_ends_before_its_chains_says_so(crossed_model, crossed_parties):
    with pytest.warns(NotConvergedWarning, match="before its Markov chains did"):
        fit = tacit.fit(
            crossed_model,
            crossed_parties,
            privacy="none",
            method=NaturalVI(sampling=True),
            schedule=tacit.schedules.Synchronous(rounds=130),
        )
    assert "nested_r_hat" not in fit.diagnostics
    assert np.all(np.isfinite(fit.posterior.mean))


def test_a_result_that_is_trusted_takes_no_chains(make_parties):
    parties = make_parties((200, 200), output="bernoulli")
    fits = [
        tacit.fit(
            tacit.models.LogisticRegression(("a", "b", "c"), prior_sd=1.0),
            parties,
            privacy="none",
            method=method,
        )
        for method in (NaturalVI(), NaturalVI(sampling=True))
    ]
    assert len(fits[0].history) == len(fits[1].history)
    np.testing.assert_array_equal(fits[0].posterior.mean, fits[1].posterior.mean)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"schedule": tacit.schedules.Synchronous(parties_per_round=1)}, "all parties in every"),
        ({"posterior": "mean-field"}, "mean-field"),
    ],
)
def test_what_chains_cannot_do_is_refused(make_parties, more, text):
    parties = make_parties((40, 40), output="bernoulli")
    with pytest.raises(ConfigError, match=text):
        tacit.fit(
            tacit.models.LogisticRegression(("a", "b", "c"), prior_sd=1.0),
            parties,
            privacy="none",
            method=NaturalVI(sampling=True),
            **more,
        )


def test_fixed_steps_and_sampling_are_refused_together():
    with pytest.raises(ConfigError, match=r"method\.sampling = true chooses its own steps; leave"):
        NaturalVI(sampling=True, steps=2)
