"""Expected statistics: what leaves is bounded, noised as told, and q knows the noise."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_party import OneParty, answer_once

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.methods import ExpectedStatistics, Hybrid, PrivateStatistics
from tacit.methods.base import Task
from tacit.methods.batches import shuffled_rows
from tacit.methods.statistics.noise_aware import aware_q, plain_q
from tacit.models import LinearRegression, NormalMean, PoissonRegression
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Request
from tacit.server.schedule import Synchronous

MODEL = LinearRegression(("a", "b", "c"), noise_sd=0.8, prior_sd=1.0)
FAMILIES = {"full": FullGaussian(3), "mean-field": MeanFieldGaussian(3)}
CLIP = 2.0


@pytest.fixture(scope="module")
def parties(make_parties):
    return make_parties((20, 31, 25))


def plan_of(parties, method, *, rounds=2, damping=None, model: Any = MODEL, **more) -> Any:
    family = more.pop("family", "auto")
    asked = {
        "noise_multiplier": 5.0,
        "delta": 1e-3,
        "insecure_noise_seed": 1,
        "accountant": "rdp",
    } | more
    schedule = Synchronous(rounds=rounds, damping=damping)
    return make_plan(
        model, parties, method=method, schedule=schedule, privacy=Privacy(**asked), family=family
    )


def pooled(parties):
    x = np.concatenate([one["x"] for one in parties.values()])
    y = np.concatenate([one["y"] for one in parties.values()])
    precision = np.eye(3) + x.T @ x / 0.64
    return precision, np.linalg.solve(precision, x.T @ y / 0.64)


@pytest.mark.parametrize("options", [{}, {"one_shot": True}, {"repair": "truncate"}], ids=str)
def test_with_next_to_no_noise_the_posterior_is_exact(parties, options):
    method = PrivateStatistics(clip=1e4, dtype="float64", **options)
    plan = plan_of(parties, method, rounds=3, noise_multiplier=1e-10)
    assert isinstance(plan.family, FullGaussian)
    posterior = carry_out(plan).posterior
    precision, mean = pooled(parties)
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(-2.0 * posterior.natural["quadratic"], precision, rtol=1e-4)


def test_mean_field_statistics_and_the_hybrid_reach_the_mean(parties):
    _, mean = pooled(parties)
    for method, rounds, damping in (
        (PrivateStatistics(clip=1e4, dtype="float64"), 60, 0.5),
        (Hybrid(clip=1e4, dtype="float64"), 100, None),
    ):
        plan = plan_of(
            parties, method, rounds=rounds, damping=damping, noise_multiplier=1e-9,
            family="mean-field",
        )  # fmt: skip
        np.testing.assert_allclose(carry_out(plan).posterior.mean, mean, atol=5e-3)


@functools.cache
def _clipped(kind, weight):
    family = FAMILIES[kind]
    method = PrivateStatistics(precision_weight=weight, dtype="float64")

    def made(x, y, mean):
        spread = {"sd": jnp.ones(3)} if kind == "mean-field" else {"covariance": jnp.eye(3)}
        q = family.natural(mean=mean, **spread)
        terms = SimpleNamespace(clips=jnp.array([CLIP]))
        task = Task({"x": x, "y": y}, jnp.ones(len(y)), q, family.zero(), q, False, terms=terms)
        return method._clipped(MODEL, family, None, task, task.records, task.weights)

    return jax.jit(made)


def bounded_of(kind, records, q_mean=(0.0, 0.0, 0.0), weight=1.0):
    """What is clipped of these records, as one vector."""
    found = _clipped(kind, weight)(records["x"], records["y"], np.array(q_mean))
    assert float(found.clip) == CLIP
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found.value)])


numbers = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([0.0, 1e-3, 1e3, -1e3, 1e9, np.inf, np.nan])
)
record = st.tuples(st.lists(numbers, min_size=3, max_size=3), numbers)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(sorted(FAMILIES)),
    rest=st.lists(record, min_size=2, max_size=2),
    pair=st.tuples(record, record),
    mean=st.lists(st.floats(-10, 10), min_size=3, max_size=3),
    weight=st.sampled_from([0.1, 1.0, 7.0]),
)
def test_no_record_moves_the_sum_by_more_than_its_sensitivity(kind, rest, pair, mean, weight):
    def made(one):
        rows = [one, *rest]
        x, y = (np.array([row[part] for row in rows], dtype=float) for part in (0, 1))
        return bounded_of(kind, {"x": x, "y": y}, mean, weight)

    assert np.linalg.norm(made(pair[0]) - made(pair[1])) <= 2 * CLIP


@pytest.mark.parametrize(("noise_sd", "x"), [(1e10, 1e12), (1e11, 3e12), (1e12, 1e14)])
def test_no_square_vanishes_from_a_norm(noise_sd, x):
    """1/σ² is a float32, and its square is none any more; what is released is float64."""
    model = LinearRegression(("a",), noise_sd=noise_sd, prior_sd=1.0)
    method, family = PrivateStatistics(dtype="float32"), FullGaussian(1)
    q = model.prior(family)
    records = {"x": jnp.array([[x]], jnp.float32), "y": jnp.array([1.0], jnp.float32)}
    terms = SimpleNamespace(clips=jnp.array([1.0]))
    task = Task(records, jnp.ones(1, jnp.float32), q, family.zero(), q, False, terms=terms)
    found = jax.jit(
        lambda: method._clipped(model, family, None, task, task.records, task.weights)
    )()
    size = np.hypot(*(np.linalg.norm(leaf) for leaf in jax.tree.leaves(found.value)))
    assert 0.99 < size <= 1.0


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_the_sensitivity_is_reached(kind):
    one = {"x": np.array([[1e-3, 0.0, 0.0]]), "y": np.array([1e9])}
    other = {"x": one["x"], "y": -one["y"]}
    gap = np.linalg.norm(bounded_of(kind, one) - bounded_of(kind, other))
    assert 0.99 * 2 * CLIP <= gap <= 2 * CLIP


def test_a_person_is_one_contribution(make_parties):
    """Many records of one person together are bounded like one."""
    (records,) = make_parties((40,)).values()
    people = {"clinic": {**records, "y": 1e6 * records["y"], "person": np.repeat([0, 1], 20)}}
    method = PrivateStatistics(clip=CLIP, dtype="float64")
    plan = plan_of(people, method, rounds=1, unit="person", noise_multiplier=1e-9)
    sums = carry_out(plan).state.memory
    size = np.hypot(np.linalg.norm(sums["linear"]), np.linalg.norm(-2.0 * sums["quadratic"]))
    assert size <= 2 * CLIP


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_the_noise_has_the_law_that_was_told(parties, kind):
    """150 visits: sd within 4.5 standard errors in every coordinate, and 1.7 times is caught."""
    visits, z = 150, 3.0
    method = PrivateStatistics(clip=CLIP, dtype="float64", precision_weight=0.5)
    plan = plan_of(
        {"site-0": parties["site-0"]}, method, rounds=visits, noise_multiplier=z, family=kind
    )
    agreement, settled = plan.agreement, plan.settled["site-0"]
    q = MODEL.prior(plan.family)
    asked = Request("r", "site-0", 0, 0, q, plan.family.zero(), 1.0, initial=True)
    seat = OneParty(agreement, "site-0", parties["site-0"], settled)
    requests = [asked._replace(id=f"r{visit}", visit=visit) for visit in range(visits)]
    deltas = [plan.read_released(one, seat.answer(one).released) for one in requests]
    error = 4.5 / np.sqrt(2 * visits)
    linear = np.std([one["linear"] for one in deltas], axis=0, ddof=1) / (z * CLIP)
    precision = -2.0 * np.array([one["quadratic"] for one in deltas])
    spread = precision.std(axis=0, ddof=1) * 0.5 / (z * CLIP)
    if kind == "full":
        spread = np.append(np.diag(spread), np.sqrt(2) * spread[np.triu_indices(3, 1)])
    for found in (linear, spread):
        assert np.all(np.abs(found - 1) < error), found
        assert np.all(np.abs(1.7 * found - 1) > error), "a wrong scale is caught"


def test_statistics_released_once_are_paid_once_and_said_again(parties, tmp_path):
    method = PrivateStatistics(one_shot=True)
    plan = plan_of(parties, method, rounds=6, damping=0.5)
    settled = plan.settled["site-0"]
    assert settled.releases == 1
    assert settled.events_at(3) == ()
    alone = plan_of(parties, PrivateStatistics(), rounds=1)
    assert plan.guarantee.epsilon == alone.guarantee.epsilon
    path = tmp_path / "state.sqlite"
    whole = carry_out(plan).state.q
    with pytest.raises(_StopError):
        carry_out(plan, checkpoint=Checkpoint(path, digest="it"), observe=_stop_after(2))
    resumed = carry_out(plan, checkpoint=Checkpoint(path, digest="it")).state.q
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value)


class _StopError(Exception):
    pass


def _stop_after(rounds):
    def observe(state, _log):
        if state.round == rounds:
            raise _StopError

    return observe


def test_a_party_that_lost_what_it_kept_does_not_answer_wrongly(parties):
    plan = plan_of(parties, PrivateStatistics(one_shot=True), rounds=3)
    q = MODEL.prior(plan.family)
    request = Request("r9", "site-0", 1, 0, q, plan.family.zero(), 1.0, initial=False)
    with pytest.raises(DataError, match="is missing"):
        answer_once(plan.agreement, parties["site-0"], request, plan.settled["site-0"])


def test_the_hybrid_splits_its_budget_as_told(parties):
    plan = plan_of(
        parties, Hybrid(statistics_share=0.25, gradient_clip=3.0), rounds=9, family="mean-field"
    )
    first, later = (plan.settled["site-0"].events_at(visit)[0] for visit in (0, 4))
    assert later.clip == 3.0
    assert later.noise_multiplier == pytest.approx(5.0)
    parts = [first.noise_multiplier**-2, 8 * later.noise_multiplier**-2]
    assert parts[0] / sum(parts) == pytest.approx(0.25)


def test_schedules_of_clip_and_noise_are_what_is_charged(parties):
    method = PrivateStatistics(clip=2.0, clip_end=0.25, noise_end=4.0)
    plan = plan_of(parties, method, rounds=3)
    events = [plan.settled["site-0"].events_at(visit)[0] for visit in range(3)]
    assert [event.clip for event in events] == [2.0, 1.0, 0.5]
    assert [event.noise_multiplier for event in events] == pytest.approx([5.0, 10.0, 20.0])
    assert carry_out(plan).state.finished == "rounds"


def simulated(rng, d, noise, cases, prior_sd=1.0):
    """θ from the prior, exact sums of many records, and noisy ones: natural units, σ = ½."""
    family, records = FullGaussian(d), 1000
    prior = family.natural(mean=np.zeros(d), covariance=np.eye(d) * prior_sd**2)
    for _ in range(cases):
        theta = prior_sd * rng.normal(size=d)
        x = rng.uniform(-np.sqrt(3), np.sqrt(3), size=(records, d))
        y = x @ theta + 0.5 * rng.normal(size=records)
        tau = noise * 4.0 * records
        shake = np.triu(rng.normal(size=(d, d)), 1) / np.sqrt(2)
        shake = shake + shake.T + np.diag(rng.normal(size=d))
        sums = {
            "linear": 4.0 * x.T @ y + tau * rng.normal(size=d),
            "quadratic": -0.5 * (4.0 * x.T @ x + tau * shake),
        }
        yield family, prior, sums, tau, theta


@pytest.mark.parametrize(("d", "noise"), [(1, 0.03), (1, 0.3), (1, 1.0), (4, 0.03), (4, 0.2)])
def test_an_aware_q_covers_and_a_plain_one_does_not(d, noise):
    """250 cases: at 95 % the share is .95 ± .04 (over 3 standard errors); plain ones are below."""
    inside = {"aware": [], "plain": []}
    for family, prior, sums, tau, theta in simulated(np.random.default_rng(d), d, noise, 250):
        for name, read in (("aware", aware_q), ("plain", plain_q)):
            q = read(family, prior, sums, tau, tau)
            mean, sd = family.location_scale(q)
            inside[name].append(np.abs(theta - mean) <= 1.96 * sd)
    assert abs(np.mean(inside["aware"]) - 0.95) < 0.04
    assert np.mean(inside["plain"]) < 0.7


def test_an_aware_q_without_noise_is_the_exact_one():
    for d in (1, 3):
        cases = simulated(np.random.default_rng(1), d, 1e-9, 3)
        for family, prior, sums, tau, _ in cases:
            aware, plain = (read(family, prior, sums, tau, tau) for read in (aware_q, plain_q))
            for name, value in plain.items():
                np.testing.assert_allclose(aware[name], value, rtol=1e-5)


def test_what_it_cannot_serve_is_refused():
    with pytest.raises(ConfigError, match="expected statistics"):
        PrivateStatistics().check(
            PoissonRegression(("a",), max_count=5.0, prior_sd=1.0), FullGaussian(1)
        )
    with pytest.raises(ConfigError, match="depend on the current posterior"):
        PrivateStatistics(one_shot=True).check(MODEL, FAMILIES["mean-field"])
    shared = PrivateStatistics(repair="truncate").bind(aggregation="trusted")
    with pytest.raises(ConfigError, match="less noise than is charged"):
        shared.check(MODEL, FAMILIES["full"])
    with pytest.raises(ConfigError, match=r"method\.statistics_share = 1\.0"):
        Hybrid(statistics_share=1.0)
    with pytest.raises(ConfigError, match=r"method\.noise_end = 0"):
        PrivateStatistics(noise_end=0.0)


def test_the_mean_of_a_normal_too():
    rng = np.random.default_rng(0)
    parties = {f"p{m}": {"y": 1.0 + rng.normal(size=50)} for m in range(4)}
    method = PrivateStatistics(clip=1e3, dtype="float64", one_shot=True)
    plan = plan_of(parties, method, model=NormalMean(), noise_multiplier=1e-9)
    every = np.concatenate([one["y"] for one in parties.values()])
    assert carry_out(plan).posterior.mean == pytest.approx(every.sum() / 201, rel=1e-4)


@pytest.mark.parametrize(("count", "rate"), [(10, 0.3), (12, 0.25), (5, 0.1), (7, 0.99)])
@pytest.mark.parametrize("traced", [True, False])
def test_shuffled_passes_take_every_record_once(count, rate, traced):
    """Records 3 and 8 are padding; four passes, no two in the same order."""
    weights = np.ones(count + 2)
    weights[[3, count + 1]] = 0.0
    size = max(1, int(rate * count))
    passes = []
    for visit in range(4 * -(-count // size)):
        words = np.array([5, 9, visit], np.uint32)
        task = Task({}, weights, {}, {}, {}, False, words=words)
        rows, mask, share = shuffled_rows(task, rate, traced=traced)
        batch = np.asarray(rows)[np.asarray(mask)]
        assert float(share) == pytest.approx(len(batch) / count)
        if visit % -(-count // size) == 0:
            passes.append([])
        passes[-1].append(batch)
    there = np.flatnonzero(weights)
    for one in passes:
        assert all(len(batch) == size for batch in one[:-1])
        assert np.array_equal(np.sort(np.concatenate(one)), there)
    assert len({tuple(np.concatenate(one)) for one in passes}) == 4


def test_shuffled_batches_of_a_pass_have_the_statistics_of_all(parties):
    """Each answer is its batch over its share: weighted by the shares they are the exact one."""
    records = parties["p1"] if "p1" in parties else next(iter(parties.values()))
    exact = carry_out(
        make_plan(MODEL, {"a": records}, method=ExpectedStatistics(sampling_rate=1.0))
    )
    count = len(records["y"])
    method = ExpectedStatistics(sampling_rate=8.5 / count, batches="shuffled")
    batches = -(-count // 8)
    agreement = make_plan(MODEL, {"a": records}, method=method, schedule=Synchronous(rounds=1))
    seat = OneParty(agreement.agreement, "a", records)
    prior = MODEL.prior(agreement.family)
    zero = agreement.family.zero()
    total = {name: np.zeros_like(value) for name, value in prior.items()}
    for visit in range(batches):
        request = Request(f"r{visit}", "a", visit, 0, prior, zero, 1.0, False)
        share = min(8, count - 8 * visit) / count
        delta = seat.answer(request).released
        total = {name: total[name] + share * delta[name] for name in total}
    for name, value in exact.state.q.items():
        np.testing.assert_allclose(prior[name] + total[name], value, rtol=1e-9)


def test_private_methods_have_no_shuffled_batches():
    """Passes are not what is accounted for."""
    with pytest.raises(TypeError, match="batches"):
        PrivateStatistics(batches="shuffled")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"method\.batches = 'passes'"):
        ExpectedStatistics(batches="passes")  # type: ignore[arg-type]
