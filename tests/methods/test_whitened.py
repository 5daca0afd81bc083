"""Whitened features: what the second moment may move, what it costs, and that it is undone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.expfam import MeanFieldGaussian
from tacit.methods import DPSGD, PrivateUpdate, Task, Terms
from tacit.methods.whitening import MAP, MOMENT, Whitened, unpack_symmetric, whitening_map
from tacit.models import LinearRegression, LogisticRegression
from tacit.plan.plan import make_plan
from tacit.privacy.bounded import clip_moments, clip_units, pack_symmetric
from tacit.privacy.lattice import DiscreteGaussian
from tacit.privacy.settings import Privacy
from tacit.results import evaluate
from tacit.run.build import make_method
from tacit.run.config import parse_config
from tacit.server.checkpoint import Checkpoint
from tacit.server.schedule import Asynchronous, Sequential, Synchronous
from tacit.testing.laws import gaussian_faults

D = 4
NUMBERS = D * (D + 1) // 2
LINEAR = LinearRegression(tuple("abcd"), noise_sd=0.5, prior_sd=1.0)
LOGISTIC = LogisticRegression(tuple("abcd"), prior_sd=1.0)
ALMOST_EXACT = Privacy(noise_multiplier=1e-9, insecure_noise_seed=1, accountant="rdp")
extreme = st.one_of(
    st.floats(-10, 10, allow_nan=False),
    st.sampled_from([np.nan, np.inf, -np.inf, 1e30, 1e300, 1e-300, 1e12]),
)


def parties(sizes=(60, 90), *, output="gaussian", seed=0):
    """Columns that vary together and are of unequal scale."""
    rng = np.random.default_rng([seed, 1])
    mix = np.array([[1, 0.9, 0.2, 0], [0, 0.4, 0, 0.1], [0, 0, 0.2, 0.1], [0, 0, 0, 2.0]])
    made = {}
    for number, size in enumerate(sizes):
        x = rng.normal(size=(size, D)) @ mix
        eta = x @ [1.0, -1.0, 2.0, 0.5]
        y = eta + 0.5 * rng.normal(size=size)
        if output == "bernoulli":
            y = (eta + rng.logistic(size=size) > 0).astype(np.float64)
        made[f"site-{number}"] = {"x": x, "y": y}
    return made


def pooled(made):
    return (np.concatenate([one[name] for one in made.values()]) for name in ("x", "y"))


@given(
    rows=arrays(np.float64, (3, D), elements=extreme),
    others=arrays(np.float64, (1, D), elements=extreme),
    bound=st.floats(0.1, 5.0),
)
def test_one_unit_never_moves_the_moment_further_than_its_sensitivity(rows, others, bound):
    ones = np.ones(3)
    before = clip_moments(jnp.asarray(rows), bound**2, ones)
    after = clip_moments(jnp.asarray(np.concatenate([others, rows[1:]])), bound**2, ones)
    assert np.all(np.isfinite(before.value))
    moved = float(jnp.linalg.norm(before.value - after.value))
    room = 1e-9 * (1.0 + float(jnp.linalg.norm(before.value)))
    assert moved <= float(before.sensitivity("replace-one")) + room
    without = clip_moments(jnp.asarray(rows), bound**2, np.array([0.0, 1.0, 1.0]))
    moved = float(jnp.linalg.norm(before.value - without.value))
    assert moved <= float(before.sensitivity("add-or-remove-one")) + room


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sensitivity_is_reached(dtype):
    """A search over pairs finds nothing beyond it, and one that comes within a hundredth of it."""
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 400, D)) * rng.choice([0.5, 2.0, 100.0], size=(400, 1))
    overlap = np.sum(one * other, axis=1) / np.sum(one * one, axis=1)
    other[::2] -= overlap[::2, None] * one[::2]  # every second pair is orthogonal
    moments = jax.jit(jax.vmap(lambda row: clip_moments(row[None], 1.7**2, jnp.ones(1))))
    first, second = (moments(jnp.asarray(rows, dtype)) for rows in (one, other))
    moved = np.linalg.norm(first.value - second.value, axis=1)
    alone = np.linalg.norm(first.value, axis=1)
    for adjacency, distance in (("replace-one", moved), ("add-or-remove-one", alone)):
        most = np.asarray(first.sensitivity(adjacency))
        assert np.all(distance <= most)
        assert np.max(distance / most) >= 0.99


def test_the_moment_is_the_sum_of_clipped_contributions():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, D)) * rng.lognormal(size=(40, 1))
    weights = (rng.random(40) < 0.8).astype(np.float64)
    each = jax.vmap(lambda row: pack_symmetric(jnp.outer(row, row)))(jnp.asarray(x))
    expected = clip_units(each, 2.0, weights)
    found = clip_moments(jnp.asarray(x), 2.0, weights)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-12)
    assert found.nonnegative
    # A person's records are clipped together: by the sum of their squared norms.
    grouped = clip_moments(jnp.asarray(x.reshape(8, 5, D)), 2.0, weights.reshape(8, 5))
    norms = np.sum(weights.reshape(8, 5) * np.sum(x.reshape(8, 5, D) ** 2, axis=2), axis=1)
    scale = np.repeat(np.minimum(1.0, 2.0 * (1 - 1e-6) / norms), 5) * weights
    np.testing.assert_allclose(
        unpack_symmetric(np.asarray(grouped.value)), (x * scale[:, None]).T @ x, rtol=1e-10
    )


def test_packing_keeps_the_norm_and_can_be_undone():
    matrix = np.random.default_rng(2).normal(size=(D, D))
    matrix = matrix + matrix.T
    packed = np.asarray(pack_symmetric(matrix))
    assert packed.shape == (NUMBERS,)
    assert np.linalg.norm(packed) == pytest.approx(np.linalg.norm(matrix))
    np.testing.assert_allclose(unpack_symmetric(packed), matrix)


def test_the_law_of_the_first_release():
    """`gaussian_faults`: a false alarm in a million; a scale that is off by a tenth is seen."""
    method, shares = Whitened(inner=PrivateUpdate(dtype="float64"), bound=2.0), 4.0
    records = {"x": jnp.asarray(parties((20,))["site-0"]["x"]), "y": jnp.zeros(20)}
    family = MeanFieldGaussian(D)
    terms = Terms(
        clip=4.0, noise_sd=1.0, shares=shares, units=20.0, releases=5, clips=jnp.array([4.0]),
        noise_sds=jnp.array([3.0]), progress=0.0,
    )  # fmt: skip
    prior = LINEAR.prior(family)

    def released(noise):
        task = Task(
            records, jnp.ones(20), prior, family.zero(), prior, jnp.bool_(True), 0, terms,
            noise=noise[None], stage=MOMENT, damping=0.25,
        )  # fmt: skip
        answer = method.answer(LINEAR, family, jax.random.key(0), task)
        return 1.5 * 2.0**-20 * answer.released[MOMENT], answer.cost  # γ = 3/√4/2²⁰

    drawn = DiscreteGaussian(bytes(32)).draw(4000 * NUMBERS).reshape(4000, NUMBERS)
    values, costs = jax.vmap(released)(drawn)
    exact = clip_moments(records["x"], 4.0, np.ones(20)).value
    noise = np.asarray(values - exact)
    right = 3.0 / math.sqrt(shares)
    assert not gaussian_faults(noise, right)
    assert gaussian_faults(noise, 1.1 * right)
    assert gaussian_faults(noise, 0.9 * right)
    assert np.all(costs.clip == 4.0)
    assert np.all(costs.noise_sd == 3.0)
    assert np.all(costs.nonnegative)


@pytest.mark.parametrize(
    ("inner", "adjacency"),
    [
        (DPSGD(steps=3, step_size=0.1), "replace-one"),
        (PrivateUpdate(shards=5), "add-or-remove-one"),
    ],
)
def test_the_first_release_has_its_share_and_all_of_it_is_charged(inner, adjacency):
    method = Whitened(inner=inner, share=0.2, bound=3.0)
    privacy = Privacy(epsilon=1.0, delta=1e-4, adjacency=adjacency, insecure_noise_seed=2)
    plan = make_plan(
        LOGISTIC, parties(output="bernoulli"), method=method, privacy=privacy,
        schedule=Synchronous(rounds=5),
    )  # fmt: skip
    assert plan.guarantee.epsilon == pytest.approx(1.0, rel=1e-3)
    for one in plan.settled.values():
        squares = [
            sum(
                e.count * (e.sensitivity(adjacency) / e.noise_sd) ** 2 for e in one.events_at(visit)
            )
            for visit in range(5)
        ]
        assert squares[0] / sum(squares) == pytest.approx(0.2)
        assert one.events_at(0)[0].clip == 9.0
        assert one.events_at(0)[0].nonnegative
        assert one.events_at(1) == one.events_at(4)
    if isinstance(inner, DPSGD):
        # A party refuses to send what cost anything else than this: the run is the test.
        outcome = carry_out(plan)
        assert outcome.state.round == 5
        assert outcome.posterior.family.kind == "full"


def exact_posterior(made):
    """Under θ ~ N(0, A²), with A from the exact second moment."""
    x, y = pooled(made)
    stretch = whitening_map(x.T @ x, 0.0)
    precision = x.T @ x / 0.25 + np.linalg.inv(stretch @ stretch)
    return np.linalg.solve(precision, x.T @ y / 0.25), np.linalg.inv(precision)


def test_without_noise_it_is_the_exact_posterior():
    """Whitened, the likelihood of one party has a diagonal precision: mean-field is exact."""
    made = parties((200,))
    method = Whitened(inner=PrivateUpdate(shards=1, clip=1e5, dtype="float64"), bound=50.0)
    plan = make_plan(
        LINEAR, made, method=method, schedule=Synchronous(rounds=60, damping=0.5),
        privacy=ALMOST_EXACT,
    )  # fmt: skip
    posterior = carry_out(plan).posterior
    mean, covariance = exact_posterior(made)
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-5)
    quadratic = -2.0 * posterior.natural["quadratic"]
    np.testing.assert_allclose(np.linalg.inv(quadratic), covariance, atol=1e-7)


@pytest.mark.parametrize("schedule", [Synchronous(rounds=60), Sequential(rounds=2)])
def test_the_map_is_that_of_all_parties(schedule):
    made = parties((60, 90, 150))
    method = Whitened(inner=DPSGD(clip=1e4, step_size=0.3, dtype="float64"), bound=50.0)
    plan = make_plan(LINEAR, made, method=method, schedule=schedule, privacy=ALMOST_EXACT)
    outcome = carry_out(plan)
    x, _ = pooled(made)
    found = unpack_symmetric(outcome.state.public[MAP])
    np.testing.assert_allclose(found, whitening_map(x.T @ x, 0.0), atol=1e-5)
    white = x @ found
    np.testing.assert_allclose(
        white.T @ white, np.eye(D) * np.trace(x.T @ x) / D, atol=1e-4 * np.trace(x.T @ x)
    )
    if schedule.kind == "synchronous":
        np.testing.assert_allclose(outcome.posterior.mean, exact_posterior(made)[0], atol=2e-3)


def test_the_repair_never_amplifies_noise():
    rng = np.random.default_rng(5)
    values = []
    for _ in range(50):
        packed = 3.0 * rng.normal(size=NUMBERS)  # noise alone: eigenvalues of either sign
        values.append(np.linalg.eigvalsh(whitening_map(unpack_symmetric(packed), 3.0)))
    assert np.min(values) > 0.5
    assert np.max(values) < 2.0
    singular = np.diag([1.0, 1.0, 1.0, 0.0])
    assert np.linalg.eigvalsh(whitening_map(singular, 0.0)).max() < 1.001 / math.sqrt(1e-3)


def test_a_resumed_run_goes_on_to_the_same_answer(tmp_path):
    """Of persons with two records each."""
    method = Whitened(inner=DPSGD(), bound=3.0)
    made = parties((40, 60), output="bernoulli")
    for one in made.values():
        one["person"] = np.arange(len(one["y"])) // 2
    plan = make_plan(
        LOGISTIC, made, method=method, schedule=Synchronous(rounds=4),
        privacy=Privacy(epsilon=1.0, delta=1e-4, unit="person", insecure_noise_seed=2),
    )  # fmt: skip
    assert plan.settled["site-0"].units == 20
    whole = carry_out(plan).state

    class StoppedError(Exception):
        pass

    for after in (1, 2):
        path = tmp_path / f"{after}.sqlite"

        def stop(state, log, after=after):
            if state.round == after:
                raise StoppedError

        checkpoint = Checkpoint(path, digest="d")
        with pytest.raises(StoppedError):
            carry_out(plan, checkpoint=checkpoint, observe=stop)
        checkpoint.close()
        checkpoint = Checkpoint(path, digest="d")
        resumed = carry_out(plan, checkpoint=checkpoint).state
        checkpoint.close()
        for name, value in whole.result.items():
            np.testing.assert_array_equal(resumed.result[name], value)


def test_with_trusted_aggregation_each_party_adds_a_share():
    method = Whitened(inner=PrivateUpdate(shards=6), bound=3.0)
    plan = make_plan(
        LOGISTIC, parties((40, 60, 50), output="bernoulli"), method=method,
        schedule=Synchronous(rounds=3),
        privacy=Privacy(epsilon=2.0, delta=1e-4, aggregation="trusted", insecure_noise_seed=2),
    )  # fmt: skip
    assert {one.shares for one in plan.settled.values()} == {3}
    assert len({one.events_at(0) for one in plan.settled.values()}) == 1
    assert np.all(np.isfinite(carry_out(plan).posterior.mean))


def test_whitening_helps_where_features_vary_together():
    """Ten features with a correlation of 0.95, ε = 2, five parties; docs/methods/whitening.md."""
    rng = np.random.default_rng(0)
    size, d = 6_000, 10
    x = math.sqrt(0.95) * rng.normal(size=(size, 1)) + math.sqrt(0.05) * rng.normal(size=(size, d))
    theta = np.where(np.arange(d) % 2, -2.0, 2.0)
    y = (x @ theta + rng.logistic(size=size) > 0).astype(np.float64)
    model = LogisticRegression(tuple(map(str, range(d))), prior_sd=2.0)
    test = {"x": x[5_000:], "y": y[5_000:]}
    made = {
        f"p{i}": {"x": x[rows], "y": y[rows]}
        for i, rows in enumerate(np.array_split(np.arange(5_000), 5))
    }
    inner = PrivateUpdate()
    scores = []
    for method in (inner, Whitened(inner=inner, bound=4.0)):
        plan = make_plan(
            model, made, method=method, schedule=Synchronous(rounds=30),
            privacy=Privacy(epsilon=2.0, insecure_noise_seed=4),
        )  # fmt: skip
        posterior = carry_out(plan).posterior
        found = evaluate(model, posterior.family, posterior.natural, test)
        scores.append(found["log_predictive_density"])
    assert scores[1] > scores[0] + 0.03


def test_configuration_keys():
    raw = {"privacy": {"epsilon": 1.0}, "method": {"kind": "dp-sgd", "clip": 2.0}}
    raw["data"] = {"source": "synthetic-cohort"}
    raw["method"] |= {"whiten": 0.25, "whiten_bound": 4.0}
    method = make_method(parse_config(raw))
    assert method == Whitened(inner=DPSGD(clip=2.0), share=0.25, bound=4.0)
    assert method.clip == 2.0
    for change, why in (
        ({"whiten_bound": None}, "whiten_bound is missing"),
        ({"whiten": 1.0}, r"in \(0, 1\)"),
        ({"whiten_bound": -1.0}, "whiten_bound = -1.0"),
        ({"kind": "natural", "clip": None}, 'is not a key of kind = "natural"'),
        ({"kind": "auto"}, 'is not a key of kind = "auto"'),
    ):
        with pytest.raises(ConfigError, match=why):
            make_method(parse_config(raw | {"method": raw["method"] | change}))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"schedule": Asynchronous(rounds=4)}, "asynchronous"),
        ({"schedule": Synchronous(rounds=4, parties_per_round=1)}, "parties_per_round"),
        ({"schedule": Synchronous(rounds=1)}, "at least 2 rounds are needed"),
        ({"schedule": Synchronous(rounds=4, tolerance=0.1)}, "the run would end there"),
        ({"privacy": Privacy(epsilon=1.0, unit="party")}, "protects a record"),
        ({"privacy": Privacy(epsilon=1.0, aggregation="server")}, "'server'"),
        (
            {
                "privacy": Privacy(
                    epsilon=1.0, aggregation="trusted", parties={"site-0": {"clip": 1.0}}
                )
            },
            "use one clip",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_runs(options, why):
    given = {"privacy": Privacy(epsilon=1.0), "schedule": Synchronous(rounds=4)} | options
    method = Whitened(inner=PrivateUpdate(shards=4), bound=3.0)
    with pytest.raises(ConfigError, match=why):
        make_plan(LINEAR, parties(), method=method, **given)
