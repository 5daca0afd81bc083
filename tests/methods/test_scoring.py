"""Private scoring: what bounds a record's influence, and what the server makes of the sums."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD, PrivateScoring
from tacit.methods.scoring.marginals import apart, flattened, marginals, scales, simplex
from tacit.methods.scoring.party import KNOTS, counted, counts_sum, moment_sum, score_sum
from tacit.methods.scoring.server import coordinates
from tacit.methods.scoring.synthetic import correlated, triangle
from tacit.models import LinearRegression, LogisticRegression, PoissonRegression
from tacit.models.glm.linear import GaussianLikelihood
from tacit.models.glm.logistic import BernoulliLikelihood
from tacit.models.glm.poisson import PoissonLikelihood
from tacit.plan.plan import make_plan
from tacit.privacy.events import GaussianEvent
from tacit.privacy.settings import Privacy
from tacit.results.diagnostics import steep_caution
from tacit.server.schedule import Sequential, Synchronous

LAYOUT = (
    INTERCEPT,
    Feature("numeric", "a", -1.0, 1.0),
    Feature("numeric", "b", -math.inf, math.inf),
    *(Feature("level", "c"),) * 3,
    *(Feature("level", "d"),) * 2,
)
NAMES = ("intercept", "a", "b", "c=1", "c=2", "c=3", "d=1", "d=2")
MODEL = LogisticRegression(NAMES, layout=LAYOUT, prior_sd=1.0)
LIKELIHOODS = (BernoulliLikelihood(), PoissonLikelihood(12.0), GaussianLikelihood(0.5))


def rows(rng, n, *, wild=0.0):
    x = np.zeros((n, len(NAMES)))
    x[:, 0] = 1.0
    x[:, 1:3] = rng.uniform(-1, 1, (n, 2))
    x[np.arange(n), 3 + rng.choice(3, n, p=[0.7, 0.25, 0.05])] = 1.0
    x[np.arange(n), 6 + rng.integers(2, size=n)] = 1.0
    if wild:
        x = np.where(rng.random(x.shape) < 0.5, wild * rng.standard_normal(x.shape), x)
    return x


def two_parties():
    """One with 200 records and one with 2: runs of one shape, hence compiled once."""
    rng = np.random.default_rng(7)
    x, y = rows(rng, 202), rng.integers(0, 2, 202) * 1.0
    return {"a": {"x": x[:200], "y": y[:200]}, "b": {"x": x[200:], "y": y[200:]}}


def fit(
    model,
    parties,
    *,
    epsilon=1.0,
    insecure_noise_seed=3,
    rounds=8,
    aggregation="plain",
    family="auto",
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # δ is not small against parties of a few records
        plan = make_plan(
            model,
            parties,
            family=family,
            method=PrivateScoring(),
            schedule=Synchronous(rounds=rounds),
            privacy=Privacy(
                epsilon=epsilon,
                delta=1e-5,
                insecure_noise_seed=insecure_noise_seed,
                aggregation=aggregation,
            ),
        )
    return carry_out(plan)


def sums(kind, likelihood, x, y, rng):
    """The sum of one release, at a map and a point of the server's choice."""
    import jax.numpy as jnp

    mask, clip = jnp.ones(len(x)), jnp.asarray(1.0)
    centre, scale = rng.standard_normal(x.shape[1]), rng.uniform(0.01, 3.0, x.shape[1])
    if kind == "counts":
        records = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
        return counts_sum(counted(LAYOUT, 1.0), records, mask, clip)
    if kind == "moment":
        return moment_sum(jnp.asarray(x), centre, scale, mask, clip)
    return score_sum(
        likelihood,
        {"x": jnp.asarray(x), "y": jnp.asarray(y)},
        mask,
        clip,
        centre=centre,
        scale=scale,
        bend=rng.choice([0.0, 0.1, 1.0, 30.0]) * rng.standard_normal((3, x.shape[1])),
        point=rng.standard_normal(x.shape[1]),
        reach=jnp.asarray(2.0),
    )


@pytest.mark.parametrize("kind", ["counts", "moment", "score"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_no_substitution_moves_a_release_by_more_than_its_sensitivity(kind, likelihood):
    rng = np.random.default_rng(5)
    farthest = 0.0
    for wild in (0.0, 1.0, 1e2, 1e4, 1e6):
        for _ in range(12):
            x = rows(rng, 40)
            y = rng.integers(0, 2, 40).astype(float)
            other, label = x.copy(), y.copy()
            other[0], label[0] = rows(rng, 1, wild=wild)[0], wild * rng.standard_normal()
            seed = rng.integers(2**31)
            one = sums(kind, likelihood, x, y, np.random.default_rng(seed))
            two = sums(kind, likelihood, other, label, np.random.default_rng(seed))
            moved = float(np.linalg.norm(np.asarray(one.value) - np.asarray(two.value)))
            event = GaussianEvent(clip=1.0, noise_sd=1.0, nonnegative=one.nonnegative)
            assert moved <= event.sensitivity("replace-one") * (1 + 1e-9)
            farthest = max(farthest, moved / event.sensitivity("replace-one"))
    assert farthest > 0.4  # the attack would find a bound that is twice too small


def test_the_claimed_sensitivities_are_reached():
    import jax.numpy as jnp

    mask, clip = jnp.ones(1), jnp.asarray(1.0)
    apart = np.zeros((2, len(NAMES)))
    apart[:, 0] = 1.0
    apart[0, [1, 2, 3, 6]] = -1.0, -3.0, 1.0, 1.0
    apart[1, [1, 2, 4, 7]] = 1.0, 3.0, 1.0, 1.0
    one, two = (
        counts_sum(counted(LAYOUT, 1.0), {"x": row[None], "y": row[None, 7]}, mask, clip)
        for row in jnp.asarray(apart)
    )
    assert np.linalg.norm(one.value - two.value) == pytest.approx(math.sqrt(2.0), rel=1e-5)
    axes = np.eye(len(NAMES))[:2]
    zero, ones = np.zeros(len(NAMES)), np.ones(len(NAMES))
    one, two = (moment_sum(jnp.asarray(row[None]), zero, ones, mask, clip) for row in axes)
    assert np.linalg.norm(one.value - two.value) == pytest.approx(math.sqrt(2.0), rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    rng = np.random.default_rng(1)
    parties = {name: {"x": rows(rng, 30), "y": rng.integers(0, 2, 30) * 1.0} for name in "ab"}
    parties["b"]["x"][3, 2] = bad
    with pytest.raises(DataError, match="not finite"):
        fit(MODEL, parties)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_residual_is_centred_at_the_model_and_within_its_bound(likelihood):
    eta, reach = np.linspace(-2.5, 2.0, 7), 1.5
    draws = np.random.default_rng(2)
    if isinstance(likelihood, BernoulliLikelihood):
        y = (draws.random((200_000, 7)) < 1 / (1 + np.exp(-eta))) * 1.0
    elif isinstance(likelihood, PoissonLikelihood):
        # Rates of at most e² ≈ 7.4 pass 12 in a few draws of a thousand; smaller ones never.
        eta = eta - 1.0
        y = draws.poisson(np.exp(eta), (200_000, 7)) * 1.0
    else:
        y = eta + likelihood.noise_sd * draws.standard_normal((200_000, 7))
    residual = likelihood.residual(y, eta, reach)
    variance = likelihood.variance(eta, reach)
    assert np.all(np.abs(residual) <= likelihood.bound(eta, reach) + 1e-12)
    # Seven means and seven variances, each within 5 sd: a false alarm in 2e5 at most.
    assert np.all(np.abs(residual.mean(0)) < 5 * np.sqrt(variance / len(y)))
    np.testing.assert_allclose(residual.var(0), variance, rtol=0.06)
    step = 1e-5
    slope = likelihood.expected(eta + step, eta, reach) - likelihood.expected(
        eta - step, eta, reach
    )
    np.testing.assert_allclose(slope / (2 * step), likelihood.slope(eta, reach), rtol=1e-6)
    np.testing.assert_allclose(likelihood.expected(eta, eta, reach), 0.0, atol=1e-12)


@pytest.mark.parametrize(("aggregation", "counts", "moment"), [
    ("plain", 0.08, 0.04), ("trusted", 0.05, 0.03), ("secure", 0.05, 0.03),
])  # fmt: skip
def test_events_spend_the_budget_in_fixed_shares(aggregation, counts, moment):
    method = PrivateScoring().bind(aggregation=aggregation)
    spent = []
    for visit in range(20):
        (event,) = method.events(visit=visit, visits=20, clip=1.0, noise_sd=4.0, units=9)
        spent.append((event.sensitivity("replace-one") / event.noise_sd) ** 2 * 16.0)
    assert spent[0] == pytest.approx(counts)
    assert spent[1] == pytest.approx(moment)
    assert sum(spent) == pytest.approx(1.0)
    assert spent[19] / spent[2] == pytest.approx(math.sqrt(18.0))


def test_the_noise_of_each_release_has_the_law_that_was_charged():
    """Two runs that differ in their noise, next to which the sums hardly count."""
    one, two = (
        fit(MODEL, two_parties(), epsilon=0.02, insecure_noise_seed=seed) for seed in (1, 2)
    )
    square, numbers = 0.0, 0
    for name, visit, unit in (("counts", 0, math.sqrt(5.0)), ("moment", 1, 1.0)):
        noise_sd = unit * one.plan.settled["a"].answers[visit][0].noise_sd
        gap = (one.state.memory[name] - two.state.memory[name]) / (math.sqrt(2.0 * 2) * noise_sd)
        square, numbers = square + gap @ gap, numbers + len(gap)
    law = stats.chi2(numbers)
    assert law.ppf(1e-5) < square < law.isf(1e-5)  # a false alarm in 50,000
    assert not law.ppf(1e-5) < 0.25 * square  # half of the noise would be noticed,
    assert not 4.0 * square < law.isf(1e-5)  # and so would twice as much


def test_low_noise_is_close_to_the_posterior_without_privacy():
    rng = np.random.default_rng(6)
    x = rows(rng, 4000)
    truth = np.array([-0.5, 1.0, -0.7, 0.6, -0.4, 0.2, 0.3, -0.3])
    y = (rng.random(4000) < 1 / (1 + np.exp(-x @ truth))) * 1.0
    parties = {str(i): {"x": x[i::4], "y": y[i::4]} for i in range(4)}
    found = fit(MODEL, parties, epsilon=100.0, rounds=14).posterior
    mean = np.zeros(8)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ mean))
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(8)
        mean = mean + np.linalg.solve(precision, x.T @ (y - p) - mean)
    gap = found.mean - mean
    assert 0.5 * gap @ precision @ gap / 4000 < 1e-3  # nats a record


@pytest.mark.parametrize("epsilon", [0.2, 100.0])
def test_degenerate_data_never_make_a_number_that_is_not_finite(epsilon):
    parties = two_parties()
    for records in parties.values():
        records["x"][:, 1] = 0.25  # a constant column
        records["x"][:, 3:6] = (1.0, 0.0, 0.0)  # levels that never occur
    parties["a"]["y"][:] = 0.0  # one class; the other party has 2 records
    found = fit(MODEL, parties, epsilon=epsilon).posterior
    assert found.family.is_proper(found.natural)


def test_many_features_and_no_constant():
    rng = np.random.default_rng(8)
    names = tuple(f"v{i}" for i in range(150))
    x = rng.standard_normal((300, 150))
    y = (x[:, 0] > 0) * 1.0
    found = fit(
        LogisticRegression(names, prior_sd=1.0), {"a": {"x": x, "y": y}}, rounds=4
    ).posterior
    assert found.family.is_proper(found.natural)


@pytest.mark.parametrize("kind", ["linear", "poisson"])
def test_other_likelihoods_find_their_weights(kind):
    rng = np.random.default_rng(9)
    x = rows(rng, 3000)
    truth = np.array([0.4, 0.8, -0.5, 0.3, -0.2, 0.0, 0.2, -0.2])
    if kind == "linear":
        model = LinearRegression(NAMES, noise_sd=0.5, layout=LAYOUT, prior_sd=1.0)
        y = x @ truth + 0.5 * rng.standard_normal(3000)
    else:
        model = PoissonRegression(NAMES, max_count=15, layout=LAYOUT, prior_sd=1.0)
        y = np.minimum(rng.poisson(np.exp(x @ truth)), 15) * 1.0
    parties = {str(i): {"x": x[i::3], "y": y[i::3]} for i in range(3)}
    found = fit(model, parties, epsilon=30.0, rounds=12).posterior
    np.testing.assert_allclose((x @ found.mean), x @ truth, atol=0.25)


def test_trusted_noise_is_shared_and_mean_field_keeps_the_marginals():
    full = fit(MODEL, two_parties(), aggregation="trusted")
    assert full.plan.settled["a"].shares == 2
    field = fit(MODEL, two_parties(), aggregation="trusted", family="mean-field").posterior
    np.testing.assert_allclose(field.mean, full.posterior.mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(field.sd, full.posterior.sd, rtol=1e-6)


def test_the_map_is_undone_by_its_inverse_and_its_parts_are_sound():
    rng = np.random.default_rng(11)
    what = counted(LAYOUT, 1.0)
    assert (what.columns, what.size) == (5, 2 * KNOTS + 7)
    found = marginals(LAYOUT, what, rng.normal(20, 30, what.size), 30.0, 100.0)
    scale = scales(found, np.ones(8), 40.0)
    assert np.sum(scale**2 * found.variance) == pytest.approx(1.0)
    short = flattened(rng.standard_normal((50, 8)) * np.arange(1, 9), np.arange(8) > 0, 0.0)
    bend = np.eye(8) - short.T @ short
    to_x, to_z = coordinates(found.centre, scale, bend, 0)
    np.testing.assert_allclose(to_x @ to_z, np.eye(8), atol=1e-12)
    x, theta = rows(rng, 5), rng.standard_normal(8)
    z = (scale * (x - found.centre)) @ bend
    np.testing.assert_allclose(z @ (to_z @ theta), x @ theta)
    moment = rng.normal(0, 50, 36)
    assert np.all(np.isfinite(correlated(LAYOUT, what, found, scale, moment, 50.0).z))
    matrix = triangle(moment, 8)
    assert np.linalg.norm(matrix) == pytest.approx(np.linalg.norm(moment))
    share = simplex(rng.normal(0, 1, 9))
    assert share.min() >= 0
    assert share.sum() == pytest.approx(1.0)


def test_directions_that_the_noise_of_the_second_moment_hides_are_not_shortened():
    """Eight at least, those above the noise, 24 at most and never more than half of the columns."""
    rng = np.random.default_rng(12)
    variances = np.append(np.geomspace(1.0, 0.1, 40), 0.01 * np.ones(20))
    z = rng.standard_normal((4000, 60)) * np.sqrt(variances)
    free, all_of = np.ones(60, bool), np.sort(np.linalg.eigvalsh(z.T @ z / len(z)))[::-1]

    def shortened(noise, z=z):
        return int(np.sum(np.any(flattened(z, free[: z.shape[1]], noise), axis=1)))

    assert shortened(10.0) == 8
    assert shortened(float(all_of[14:16].mean())) == 15
    assert shortened(0.0) == 24
    assert shortened(0.0, z[:, :20]) == 10
    bend = np.eye(60) - flattened(z, free, 0.0).T @ flattened(z, free, 0.0)
    left = np.sort(np.linalg.eigvalsh(bend @ (z.T @ z / len(z)) @ bend))[::-1]
    np.testing.assert_allclose(left[:25], all_of[24], rtol=1e-9)


def test_nobody_is_taken_to_have_none_of_the_levels_because_of_noise():
    """What all levels share adds nothing to η then, and no doubt about a covariance is in it."""
    what = counted(LAYOUT, 1.0)
    exact = np.concatenate([[700, 250, 50], [500, 500], *[[1000 / KNOTS] * KNOTS] * 2, [600, 400]])
    for missing, total in ((25.0, 1.0), (150.0, 0.655)):
        counts = exact - np.pad([missing] * 3, (0, len(exact) - 3))
        found = marginals(LAYOUT, what, counts, 20.0, 1000.0)
        assert found.frequencies[0].sum() == pytest.approx(total, abs=0.01)
        told = apart(what, found, np.arange(1.0, 9.0))
        shared = np.zeros(8)
        shared[3:6] = 1.0 / np.arange(4.0, 7.0)
        assert np.allclose(told @ shared, 0.0) == (total == 1.0)
        alone = np.eye(8)[1]
        np.testing.assert_array_equal(told @ alone, alone)


def test_an_outcome_that_a_column_separates_is_said_not_to_have_converged():
    """Coefficients would grow without end, and q is wherever the rounds ended."""
    wide = LogisticRegression(NAMES, layout=LAYOUT, prior_sd=50.0)
    separated = {
        name: {"x": one["x"], "y": (one["x"][:, 1] > 0) * 1.0}
        for name, one in two_parties().items()
    }
    calm = fit(MODEL, two_parties(), epsilon=1e3)
    assert calm.verdict.converged
    assert not steep_caution(calm.plan, calm.posterior, calm.state.memory)
    steep = fit(wide, separated, epsilon=1e3)
    assert not steep.verdict.converged
    assert "moved the predictor by almost the longest allowed step" in steep.verdict.why
    (caution,) = steep_caution(steep.plan, steep.posterior, steep.state.memory)
    assert caution.kind == "too-narrow"


def test_what_it_cannot_do_is_refused_with_the_next_step():
    records = {"x": rows(np.random.default_rng(0), 8), "y": np.arange(8) % 2 * 1.0}
    for options, words in (
        ({"schedule": Sequential()}, "synchronous"),
        ({"schedule": Synchronous(rounds=2)}, "at least 3"),
        ({"schedule": Synchronous(damping=0.5)}, "leave the key out"),
        ({"schedule": Synchronous(parties_per_round=1)}, "all parties"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_plan(
                MODEL,
                {"a": records, "b": records},
                method=PrivateScoring(),
                privacy=Privacy(epsilon=1.0, delta=1e-5),
                **options,
            )
    with pytest.raises(ConfigError, match="leave the key out"):
        PrivateScoring(clip=2.0)


def test_single_precision_is_refused():
    """1e39 is a number in float64 and infinite in float32, where 0 times it is not 0."""
    with pytest.raises(ConfigError, match=r"method\.dtype = 'float32'"):
        PrivateScoring(dtype="float32")


def test_rounds_are_the_methods_own_where_nobody_asked_for_a_number():
    parties, privacy = two_parties(), Privacy(epsilon=1.0, delta=1e-5, insecure_noise_seed=1)

    def rounds(method, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = make_plan(MODEL, parties, method=method, privacy=privacy, **options)
        return plan.schedule.rounds

    assert rounds(PrivateScoring()) == rounds(None) == PrivateScoring.usual_rounds == 12
    assert rounds(DPSGD()) == rounds(DPSGD(), schedule=Synchronous(damping=0.5)) == 20
    assert rounds(PrivateScoring(), schedule=Synchronous(rounds=20)) == 20
    assert rounds(PrivateScoring(), schedule=Synchronous()) == 12
    for none in (0, -1):
        with pytest.raises(ConfigError, match=f"schedule.rounds = {none}; at least 1"):
            Synchronous(rounds=none)


def test_neither_a_record_nor_a_server_makes_an_answer_infinite():
    """Whether a party answers would otherwise tell how many records near 1e308 it has."""
    x, y = np.ones((6, 2)), np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    x[:4, 1] = 1.7e308

    def scores(rows, **asked):
        usual = {"centre": np.zeros(2), "scale": np.array([1e-3, 0.0]), "bend": np.zeros((8, 2)),
                 "point": np.zeros(2), "reach": np.array(1.0)}  # fmt: skip
        records = {"x": x[rows], "y": y[rows]}
        asked = usual | asked
        return np.asarray(
            score_sum(
                BernoulliLikelihood(), records, np.ones(len(rows)), np.array(1.0), **asked
            ).value
        )

    np.testing.assert_array_equal(scores(np.arange(6)), scores(np.array([4, 5])))
    for asked in ({"centre": np.full(2, 1e307)}, {"point": np.full(2, 1e300)}):
        np.testing.assert_array_equal(scores(np.arange(6), **asked), 0.0)


@pytest.mark.parametrize("kept", [0.0, 0.3])
def test_every_record_is_projected_before_its_norm_is_taken(kept):
    """Σ w ψ (I − WᵀW)y written out, in raw units far from 0; y is much longer than what is left."""
    rng = np.random.default_rng(11)
    likelihood, width, reach = BernoulliLikelihood(), 4, np.array(1.0)
    x, y = 1e6 + 1e4 * rng.normal(size=(50, width)), (rng.random(50) < 0.5).astype(float)
    scale, centre = np.full(width, 1e-3), np.full(width, 1e6)
    axes = np.linalg.qr(rng.normal(size=(width, width)))[0][:2]
    bend = np.zeros((8, width))
    bend[:2] = np.sqrt(1.0 - kept) * axes
    point = 1e-7 * rng.normal(size=width)
    found = score_sum(
        likelihood, {"x": x, "y": y}, np.ones(50), np.array(1.0), centre=centre, scale=scale,
        bend=bend, point=point, reach=reach,
    ).value  # fmt: skip
    z = (scale * (x - centre)) @ (np.eye(width) - bend.T @ bend)
    residual = np.asarray(likelihood.residual(y, x @ point, reach))
    most = np.maximum(np.asarray(likelihood.bound(x @ point, reach)), np.abs(residual))
    weights = np.minimum(1.0, (1.0 - 1e-6) / (most * np.linalg.norm(z, axis=1)))
    np.testing.assert_allclose(found, (weights * residual) @ z, rtol=1e-9, atol=1e-9)
