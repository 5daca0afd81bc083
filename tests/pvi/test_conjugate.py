"""Conjugate federations end at the exact posterior, whatever the schedule."""

import numpy as np
import pytest

from tacit.engines.execute import carry_out
from tacit.methods import NaturalVI, PrivateUpdate
from tacit.models import LinearRegression, NormalMean
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.results import exact_posterior, mean_field_optimum
from tacit.server.schedule import Asynchronous, Damping, Sequential, Synchronous

SIZES = (20, 24, 22, 25)  # one padded length: one compilation a method
LINEAR = LinearRegression(("a", "b", "c"), noise_sd=0.7, prior_mean=0.3, prior_sd=2.0)
MEAN = NormalMean(noise_sd=1.5, prior_mean=-1.0, prior_sd=5.0)


@pytest.fixture(scope="module")
def linear(make_parties):
    return make_parties(SIZES)


@pytest.fixture(scope="module")
def numbers(linear):
    return {name: {"y": records["y"]} for name, records in linear.items()}


def federate(model, parties, family, schedule, **options):
    return carry_out(make_plan(model, parties, family=family, schedule=schedule, **options))


def error(found, expected):
    """Largest relative error of any entry, relative to the largest entry."""
    return np.max(np.abs(found - expected)) / np.max(np.abs(expected))


def assert_exact(model, parties, outcome, tolerance=1e-9):
    mean, covariance = exact_posterior(model, parties.values())
    usual = outcome.plan.family.usual(outcome.state.q)
    assert error(usual["mean"], mean) < tolerance
    assert error(usual["covariance"], covariance) < tolerance


FULL = {
    "sequential in one round": Sequential(rounds=1),
    "synchronous in one round": Synchronous(rounds=1),
    "asynchronous": Asynchronous(rounds=8),
    "sequential, damped": Sequential(rounds=40, damping=0.5),
    "synchronous, damped": Synchronous(rounds=40, damping=0.5),
    "asynchronous, damped": Asynchronous(rounds=60, damping=0.5),
    "synchronous, damping on a schedule": Synchronous(
        rounds=30, damping=Damping(start=0.2, end=0.8, rounds=10)
    ),
    "sequential, damping on a schedule": Sequential(
        rounds=30, damping=Damping(start=1.0, end=0.6, rounds=5)
    ),
    "asynchronous, damping on a schedule": Asynchronous(
        rounds=40, damping=Damping(start=0.4, end=1.0, rounds=20)
    ),
    "synchronous, two parties a round": Synchronous(rounds=20, parties_per_round=2),
    "sequential, three parties a round": Sequential(rounds=12, parties_per_round=3),
}


@pytest.mark.parametrize("schedule", FULL.values(), ids=FULL.keys())
def test_full_covariance_is_exact(linear, schedule):
    assert_exact(LINEAR, linear, federate(LINEAR, linear, "full", schedule))


def test_one_damped_round_is_not_exact(linear):
    """Power: the tolerance above tells a finished run from an unfinished one."""
    outcome = federate(LINEAR, linear, "full", Synchronous(rounds=1, damping=0.5))
    with pytest.raises(AssertionError):
        assert_exact(LINEAR, linear, outcome, tolerance=1e-2)


@pytest.mark.parametrize("kind", [Sequential, Synchronous, Asynchronous])
@pytest.mark.parametrize("family", ["full", "mean-field"])
def test_the_mean_of_a_normal_is_exact_in_both_families(numbers, kind, family):
    outcome = federate(MEAN, numbers, family, kind(rounds=6))
    mean, covariance = exact_posterior(MEAN, numbers.values())
    assert error(outcome.posterior.mean, mean) < 1e-9
    assert error(outcome.posterior.sd**2, covariance[0]) < 1e-9


MEAN_FIELD = {
    "sequential": Sequential(rounds=60),
    "sequential, damped": Sequential(rounds=120, damping=0.5),
    "sequential, damping on a schedule": Sequential(
        rounds=100, damping=Damping(start=0.3, end=1.0, rounds=30)
    ),
    "synchronous": Synchronous(rounds=150),
    "synchronous, damping on a schedule": Synchronous(
        rounds=150, damping=Damping(start=0.5, end=0.25, rounds=20)
    ),
    "synchronous, three parties a round": Synchronous(rounds=250, parties_per_round=3),
    "asynchronous": Asynchronous(rounds=150),
}


@pytest.mark.parametrize("schedule", MEAN_FIELD.values(), ids=MEAN_FIELD.keys())
def test_mean_field_reaches_its_optimum(linear, schedule):
    outcome = federate(LINEAR, linear, "mean-field", schedule)
    mean, sd = mean_field_optimum(LINEAR, linear.values())
    assert error(outcome.posterior.mean, mean) < 1e-6
    assert error(outcome.posterior.sd, sd) < 1e-6


def test_the_mean_field_optimum_is_not_the_exact_marginals(linear):
    """Power: the columns are correlated, so the two families' answers differ."""
    _, sd = mean_field_optimum(LINEAR, linear.values())
    _, covariance = exact_posterior(LINEAR, linear.values())
    assert error(sd, np.sqrt(np.diagonal(covariance))) > 0.01


def test_natural_gradients_find_the_exact_answer_too(linear):
    """A second road to the same place: quadrature and natural-gradient steps, in float64."""
    method = NaturalVI(steps=30, step_size=0.5, dtype="float64")
    schedule = Sequential(rounds=30, tolerance=0.0)
    outcome = federate(LINEAR, linear, "mean-field", schedule, method=method)
    mean, sd = mean_field_optimum(LINEAR, linear.values())
    assert error(outcome.posterior.mean, mean) < 1e-6
    assert error(outcome.posterior.sd, sd) < 1e-6


def test_the_loss_falls_to_the_negative_log_evidence(linear):
    """At the exact posterior the ELBO is log p(y); parties and records cannot change that."""
    outcome = federate(LINEAR, linear, "full", Synchronous(rounds=3))
    loss = [line["negative_elbo"] for line in outcome.log if line["event"] == "round"][-1]
    x = np.concatenate([records["x"] for records in linear.values()])
    y = np.concatenate([records["y"] for records in linear.values()])
    spread = LINEAR.noise_sd**2 * np.eye(len(y)) + (x * LINEAR.prior_sd**2) @ x.T
    residual = y - x @ LINEAR.prior_mean
    _, logdet = np.linalg.slogdet(2 * np.pi * spread)
    assert loss == pytest.approx(
        0.5 * (logdet + residual @ np.linalg.solve(spread, residual)), rel=1e-9
    )


def test_history_counts_rounds_and_exchanges(linear):
    outcome = federate(LINEAR, linear, "full", Synchronous(rounds=3, parties_per_round=2))
    rounds = [line for line in outcome.log if line["event"] == "round"]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert [line["exchanges"] for line in rounds] == [2, 4, 6]


@pytest.mark.parametrize(
    "schedule",
    [
        Synchronous(rounds=200, parties_per_round=1, tolerance=1e-9),
        Sequential(rounds=200, parties_per_round=1, tolerance=1e-9),
        Asynchronous(rounds=200, tolerance=1e-9),
        Synchronous(rounds=200, tolerance=1e-9),
    ],
    ids=["one party a round", "sequential, one a round", "asynchronous", "everybody"],
)
@pytest.mark.parametrize("seed", range(3))
def test_convergence_is_not_claimed_before_everybody_was_heard(linear, schedule, seed):
    """One party asked twice has nothing new to say the second time; that is not convergence."""
    outcome = federate(LINEAR, linear, "full", schedule, seed=seed)
    assert outcome.state.finished == "converged"
    assert outcome.state.round < 200
    assert_exact(LINEAR, linear, outcome)


def test_local_free_energies_add_up_to_the_global_one(linear):
    """Σ E_q[log p(xₘ|θ) − log tₘ] = ELBO − log Z for q = p ∏ tₘ / Z (MEng 2.28), on the way too."""
    outcome = federate(LINEAR, linear, "mean-field", Synchronous(rounds=3, damping=0.2))
    family, state, prior = outcome.plan.family, outcome.state, outcome.plan.prior
    usual = family.usual(state.q)
    mean, sd = usual["mean"], usual["sd"]
    moments = family.mean(state.q)

    def log_likelihood(records):
        """E_q of a log-likelihood that is quadratic in θ, without the library's own losses."""
        spread = np.sum((records["x"] * sd) ** 2)
        residual = np.sum((records["y"] - records["x"] @ mean) ** 2)
        constant = len(records["y"]) * np.log(2 * np.pi * LINEAR.noise_sd**2)
        return -0.5 * (constant + (residual + spread) / LINEAR.noise_sd**2)

    local = [
        log_likelihood(records)
        - sum(float(np.sum(moments[name] * state.factors[party].natural[name])) for name in moments)
        for party, records in linear.items()
    ]
    elbo = sum(map(log_likelihood, linear.values())) - float(family.kl(state.q, prior))
    log_z = float(family.log_partition(state.q) - family.log_partition(prior))
    assert sum(local) == pytest.approx(elbo - log_z, rel=1e-10)
    assert abs(elbo - log_z) > 1.0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_local_elbos_of_averaged_shards_add_up_to_the_global_one(linear):
    """Σⱼ (1/Nⱼ) Σₖ Lⱼₖ = ELBO − log Z at the fixed point, which is that of global VI (TMLR A.3).

    Lⱼₖ = E_q[Nⱼ log p(xⱼₖ|θ) − log tⱼ] is the KL form of a shard with a tempered likelihood (A.2).
    One column, so that q* is the optimum of every shard up to its own records, as A.3 supposes.
    """
    linear = {name: {"x": one["x"][:, :1], "y": one["y"]} for name, one in linear.items()}
    model = LinearRegression(("a",), noise_sd=0.7, prior_mean=0.3, prior_sd=2.0)
    method = PrivateUpdate(objective="averaged", shards=3, clip=1e4, dtype="float64")
    privacy = Privacy(noise_multiplier=1e-8, delta=1e-5, insecure_noise_seed=1)
    schedule = Synchronous(rounds=120, damping=0.3)
    outcome = federate(model, linear, "mean-field", schedule, method=method, privacy=privacy)
    plan, state = outcome.plan, outcome.state
    mean, covariance = exact_posterior(model, linear.values())
    assert error(outcome.posterior.mean, mean) < 1e-4
    assert error(outcome.posterior.sd**2, covariance[0]) < 1e-4
    moments = plan.family.mean(state.q)

    def expected(x, y):
        residual = np.square(y - x @ outcome.posterior.mean)
        spread = np.sum(np.square(x * outcome.posterior.sd), axis=-1)
        constant = np.log(2 * np.pi * model.noise_sd**2)
        return -0.5 * (constant + (residual + spread) / model.noise_sd**2)

    added = 0.0
    for party, records in linear.items():
        shards = plan.method.arrange(party, records, plan.seed)
        fits = np.sum(shards.weights * expected(**shards.records), axis=1)
        assert len(fits) == 3
        factor = state.factors[party].natural
        log_factor = sum(float(np.sum(moments[name] * factor[name])) for name in moments)
        added += np.mean([3 * fit - log_factor for fit in fits])
    elbo = sum(float(np.sum(expected(**records))) for records in linear.values())
    elbo -= float(plan.family.kl(state.q, plan.prior))
    log_z = float(plan.family.log_partition(state.q) - plan.family.log_partition(plan.prior))
    assert added == pytest.approx(elbo - log_z, rel=1e-6)
    assert abs(elbo - log_z) > 1.0
