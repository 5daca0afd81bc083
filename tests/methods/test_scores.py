"""Private scores from end to end: no bias from clipping, refusals, and goodness of fit."""

import re

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

import tacit
from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD, PrivateScores, PrivateScoring
from tacit.methods.scores import party
from tacit.methods.scores.covariates import denoised, design_of, synthetic_rows
from tacit.methods.scores.estimate import (
    Estimator,
    History,
    Ratio,
    shrunk_ratio,
    without_part,
)
from tacit.methods.scores.expected import Simulator
from tacit.methods.scores.prior import PriorTerm
from tacit.methods.scores.server import ScoresServer, rank_fit, trouble
from tacit.methods.scores.widths import width
from tacit.methods.scoring.party import counts_sum
from tacit.models import LogisticRegression, NormalMean, PoissonRegression, from_numpyro
from tacit.models.glm.poisson import PoissonLikelihood
from tacit.models.learnt_scale import scaled_prior
from tacit.plan.auto import choose_method, least_noise_ratio
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.results.cautions import NotConvergedWarning, TooNarrowWarning, WideIntervalsWarning
from tacit.server.schedule import Sequential, Synchronous

RECORDS, PARTIES, SCALE = 6_000, 3, 2.0


def normal(x, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(level + slope * x, scale), obs=y)


EXAMPLE = {"x": np.zeros(2), "y": np.zeros(2)}
MODEL = from_numpyro(normal, EXAMPLE)
COUNTED = (INTERCEPT, Feature("numeric", "x", -1.0, 1.0))


def parties_of(rng, noise=None):
    x = np.clip(rng.normal(size=RECORDS), -3.0, 3.0)
    noise = rng.normal(size=RECORDS) if noise is None else noise
    y = 1.0 - 0.5 * x + SCALE * noise
    return {str(i): {"x": x[i::PARTIES], "y": y[i::PARTIES]} for i in range(PARTIES)}


def plan_of(parties, model=MODEL, **asked):
    privacy = {"epsilon": 4.0, "delta": 1e-5, "aggregation": "trusted", "insecure_noise_seed": 1}
    return make_plan(model, parties, method=PrivateScores(), privacy=Privacy(**(privacy | asked)))


def standardised_errors(repeats, seed, model=MODEL):
    """Of level, slope and log scale, one row per replication."""
    rng, rows = np.random.default_rng(seed), []
    for repeat in range(repeats):
        plan = plan_of(parties_of(rng), model, insecure_noise_seed=repeat)
        found = carry_out(plan).posterior
        rows.append((found.mean - np.array([1.0, -0.5, np.log(SCALE)])) / found.sd)
    return np.array(rows)


REPEATS = 12


def test_an_unknown_scale_is_not_biased_and_errors_are_as_large_as_stated():
    errors = standardised_errors(REPEATS, 21)
    # Four standard errors of a mean of REPEATS numbers of variance 1.
    assert np.all(np.abs(np.mean(errors, axis=0)) < 4.0 / np.sqrt(REPEATS))
    assert 0.6 < np.sqrt(np.mean(errors**2)) < 1.4


def test_scores_that_are_clipped_but_not_centred_are_seen_to_be_biased(monkeypatch):
    """The power of the test above: the mutant's log scale is many standard deviations off."""

    def uncentred(scores, found):
        shorter, _ = party.shortened(scores, party.clip_norm(scores.shape[-1]))
        return shorter[..., None] * scores

    monkeypatch.setattr(party, "centred", uncentred)
    errors = standardised_errors(3, 21, from_numpyro(normal, EXAMPLE))  # compiled again
    assert abs(np.mean(errors[:, 2])) > 4.0 / np.sqrt(REPEATS) + 1.0


def test_released_numbers_are_those_of_the_stages_and_shares_add_up_to_one():
    plan = plan_of(parties_of(np.random.default_rng(1)))
    method = plan.method
    assert isinstance(method, PrivateScores)
    assert method.stages.count("score") == plan.schedule.rounds - 4  # one column has no moment
    assert method.stages[0] == "counts"
    assert method.stages[-1] == "ranks"
    for mu in (0.1, 1.0, 10.0):
        assert sum(method.budget_shares(mu)) == pytest.approx(1.0)
        assert min(method.budget_shares(mu)) > 0.0
    two = LogisticRegression(("a", "b"), prior_sd=1.0)
    assert isinstance(suited := PrivateScores().suited(two), PrivateScores)
    assert suited.stages[1] == "moment"


def test_a_run_is_reproducible_and_says_that_its_intervals_contain_the_noise():
    parties = parties_of(np.random.default_rng(2))
    asked = Privacy(epsilon=4.0, delta=1e-5, aggregation="trusted", insecure_noise_seed=5)
    first, second = (
        tacit.fit(MODEL, parties, privacy=asked, method="dp-scores", seed=3) for _ in range(2)
    )
    np.testing.assert_array_equal(first.posterior.mean, second.posterior.mean)
    assert first.converged
    assert "Intervals include the privacy noise; clipping does not bias" in str(first.privacy)


def test_heavy_tails_under_a_normal_model_are_flagged():
    rng = np.random.default_rng(8)
    heavy = parties_of(rng, noise=rng.standard_t(2.5, RECORDS))
    asked = Privacy(epsilon=4.0, delta=1e-5, aggregation="trusted", insecure_noise_seed=5)
    with pytest.warns(
        UserWarning, match=r"does not fit the records: outcomes lie closer to the centre"
    ):
        tacit.fit(MODEL, heavy, privacy=asked, method="dp-scores")


def test_the_rank_histogram_raises_few_false_alarms_and_names_what_it_sees():
    rng, noise = np.random.default_rng(3), 12.0

    def drawn(shares):
        counts = np.stack([rng.multinomial(1_500, row) for row in shares]).ravel()
        return rank_fit(counts + noise * rng.normal(size=20), noise)

    even = np.full((4, 5), 0.2)
    alarms = np.mean([drawn(even).p_value < 0.01 for _ in range(400)])
    assert alarms < 0.03
    tails = even.copy()
    tails[:, [0, -1]] += 0.03
    tails[:, 1:-1] -= 0.02
    slope = np.linspace(-0.03, 0.03, 5)
    link = even + np.array([1.0, -1.0, -1.0, 1.0])[:, None] * slope
    for shares, words in (
        (tails, "more extreme"),
        (2 * even - tails, "closer to the centre"),
        (link, "wrong link"),
        (even + slope, "skewed"),
    ):
        found = drawn(shares)
        assert found.p_value < 0.01
        assert words in found.words


def test_noise_that_no_linearised_posterior_contains_is_refused_before_anything_is_spent():
    few = {name: {key: v[:50] for key, v in one.items()} for name, one in
           parties_of(np.random.default_rng(1)).items()}  # fmt: skip
    with pytest.raises(ConfigError, match=r"3 parameters, 150 records .* noise alone would move"):
        plan_of(few, epsilon=1.0, aggregation="plain")
    auto = make_plan(MODEL, few, privacy=Privacy(epsilon=1.0, delta=1e-5))
    assert isinstance(auto.method, DPSGD)
    assert "dp-scores is not used: 3 parameters" in auto.why
    assert "include neither the noise" in auto.why


def test_correlations_that_noise_would_hide_are_refused_before_anything_is_spent():
    """40 columns, 6,000 records: the scores could be heard, the correlations of x could not."""
    wide = LogisticRegression(tuple(f"c{number}" for number in range(40)), prior_sd=1.0)
    rng = np.random.default_rng(4)
    parties = {
        name: {"x": rng.normal(size=(2_000, 40)), "y": rng.integers(0, 2, 2_000) * 1.0}
        for name in "abc"
    }
    with pytest.raises(ConfigError, match=r"41 columns, 6000 records in 3 parties .* eigenvalues"):
        plan_of(parties, wide, epsilon=1.0, aggregation="plain")
    plan_of(parties, wide, epsilon=1.0, aggregation="trusted")


def test_auto_takes_private_scores_for_models_that_can_simulate_outcomes():
    def chosen(model, schedule=None, **asked):
        method, why = choose_method(
            model, privacy=Privacy(epsilon=1.0, **asked), schedule=schedule, parties=3
        )
        return method.kind, why

    assert chosen(MODEL)[0] == "dp-scores"
    assert chosen(MODEL, aggregation="trusted")[0] == "dp-scores"
    for (kind, why), words in (
        (chosen(NormalMean()), "cannot simulate outcomes"),
        (chosen(MODEL, unit="person"), "privacy.unit = 'person'"),
        (chosen(MODEL, Sequential()), "schedule.kind = 'sequential'"),
        (chosen(MODEL, Synchronous(rounds=5)), "schedule.rounds = 5"),
    ):
        assert kind == "dp-sgd"
        assert words in why


def test_fit_says_before_it_spends_why_auto_fell_back_on_dp_sgd():
    def wards(x, ward, y=None):
        levels = numpyro.sample("levels", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(levels[ward] + x, 1.0), obs=y)

    rng = np.random.default_rng(0)
    records = {
        "x": rng.uniform(-1, 1, 300),
        "ward": rng.integers(0, 4, 300),
        "y": rng.normal(size=300),
    }
    model = from_numpyro(wards, {name: column[:2] for name, column in records.items()})
    with (
        pytest.warns(TooNarrowWarning, match=r"dp-sgd .* declare columns=\{'ward': number"),
        pytest.raises(ConfigError, match="has no run directory"),  # the ledger is opened next
    ):
        tacit.fit(
            model, {"a": records}, privacy=Privacy(epsilon=1.0, delta=1e-5), ledger="run-directory"
        )


def test_auto_compares_the_noise_of_both_methods_for_counts():
    """A clip that covers a count of Y is at least √(Y/2) standard deviations of the count."""
    privacy = Privacy(epsilon=1.0, delta=1e-5)

    def chosen(largest, **asked):
        model = PoissonRegression(("intercept", "x"), max_count=largest, layout=COUNTED)
        return choose_method(model, privacy=privacy, parties=3, **asked)

    method, why = chosen(20.0)
    assert isinstance(method, PrivateScores)
    ratio = least_noise_ratio(PoissonLikelihood(20.0), 2, "plain")
    assert f"at least {ratio:.2g} times that of dp-scores" in why
    assert ratio == pytest.approx(np.sqrt(10.0 / 0.88) / (1.43 / np.sqrt(0.73)), rel=0.01)
    assert isinstance(chosen(2.0)[0], PrivateScoring)
    assert isinstance(chosen(20.0, schedule=Synchronous(rounds=5))[0], PrivateScoring)
    assert isinstance(chosen(20.0, refused=("dp-scores",))[0], PrivateScoring)
    assert isinstance(
        choose_method(LogisticRegression(("intercept", "x"), layout=COUNTED), privacy=privacy)[0],
        PrivateScoring,
    )
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(15), rng.uniform(-1.0, 1.0, 15)])
    few = {name: {"x": x, "y": rng.poisson(2.0, 15) * 1.0} for name in "abc"}
    model = PoissonRegression(("intercept", "x"), max_count=20.0, layout=COUNTED)
    plan = make_plan(model, few, privacy=privacy)
    assert isinstance(plan.method, PrivateScoring)
    assert plan.why.startswith("dp-scores is not used: 2 parameters, 45 records")


def test_large_counts_start_at_their_mean():
    """From a rate of 1 the burn-in would have to go 26 sds of an estimate from one record."""
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(900), rng.uniform(0.2, 0.8, 900)])
    y = rng.poisson(200.0, 900) * 1.0
    model = PoissonRegression(("intercept", "x"), max_count=1000.0, layout=COUNTED)
    parties = {name: {"x": x, "y": y} for name in "abc"}
    plan = plan_of(parties, model)
    server = plan.rules.combine
    assert isinstance(server, ScoresServer)
    what = server.design.counted
    assert what.columns == 2  # a number and the outcome; its sensitivity is charged
    assert plan.method.bound_of(model, "counts") == pytest.approx(np.sqrt(2.0))
    summed = counts_sum(what, {"x": x, "y": y}, jnp.ones(900), jnp.sqrt(2.0)).value
    point = server._first_point({"counts": 3.0 * np.asarray(summed)})
    assert np.exp(point[0]) == pytest.approx(y.mean(), rel=0.01)
    assert point[1] == 0.0


def test_learned_scales_give_the_moments_of_the_exact_posterior():
    model = PoissonRegression(("intercept", "x", "z"), max_count=20.0)
    assert PrivateScores().learns_scale(model)
    layout = (INTERCEPT, Feature("numeric", "x", -1, 1), Feature("numeric", "z", -1, 1))
    scale, centre = np.array([1.0, 0.2, 0.5]), np.array([0.0, 0.3, -0.1])
    learnt = scaled_prior(np.zeros(3), layout, scale, centre, 1.0)
    term = PriorTerm(model, learnt.mean, learnt.widest_sd**-2.0, learnt.log_density)
    information = np.diag([400.0, 3.0, 0.5])
    linear = information @ np.array([0.5, 1.0, -0.5])
    found = term.moments(information, linear, *term.posterior(information, linear, np.zeros(3)))
    rng = np.random.default_rng(1)
    spread = np.array([0.1, 1.5, 3.0])
    draws = np.array([0.5, 0.5, 0.0]) + spread * rng.standard_t(5, size=(200_000, 3))
    proposal = -3.0 * np.sum(np.log1p(np.square((draws - [0.5, 0.5, 0.0]) / spread) / 5.0), axis=1)
    joint = learnt.log_density(draws) + draws @ linear
    joint -= 0.5 * np.sum(draws @ information * draws, axis=1)
    weights = np.exp(joint - proposal - np.max(joint - proposal))
    weights /= np.sum(weights)
    mean = weights @ draws
    sd = np.sqrt(weights @ np.square(draws - mean))
    np.testing.assert_allclose((found.mean - mean) / sd, 0.0, atol=0.1)
    np.testing.assert_allclose(np.sqrt(np.diagonal(np.linalg.inv(found.precision))), sd, rtol=0.1)


@pytest.mark.parametrize(("key", "value"), [("clip", 2.0), ("clip_end", 0.5), ("dtype", "float32")])
def test_settings_that_it_finds_itself_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"method.{key} = .*leave the key out"):
        PrivateScores(**{key: value})


def test_a_person_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="protects a record"):
        plan_of(parties_of(np.random.default_rng(1)), unit="person")


def grouped(x, group, y=None):
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(level[group] + x, 1.0), obs=y)


GROUPED = {"x": np.zeros(2), "group": np.zeros(2, int), "y": np.zeros(2)}


def test_codes_need_a_declared_number_of_levels():
    with pytest.raises(ConfigError, match=r"'group' holds whole numbers .*declare columns="):
        from_numpyro(grouped, GROUPED).outcome_law()
    law = from_numpyro(grouped, GROUPED, columns={"group": 3}).outcome_law()
    assert [feature.kind for feature in law.covariates.layout] == ["numeric", *["level"] * 3]
    records = {"x": np.array([0.1, 0.2]), "group": np.array([2, 0]), "y": np.zeros(2)}
    flat = np.asarray(law.covariates.flat(records))
    np.testing.assert_array_equal(flat, [[0.1, 0, 0, 1], [0.2, 1, 0, 0]])
    back = law.covariates.records(flat)
    np.testing.assert_array_equal(back["group"], records["group"])
    np.testing.assert_array_equal(back["x"], records["x"])
    for wrong in ({"group": 1}, {"group": "three"}, {"x": (1.0, 0.0)}, {"z": 3}):
        with pytest.raises(ConfigError, match="columns"):
            from_numpyro(grouped, GROUPED, columns=wrong)


def test_columns_in_other_units_than_are_counted_are_refused():
    parties = parties_of(np.random.default_rng(1))
    for one in parties.values():
        one["x"] = 50.0 + 10.0 * one["x"]
    with pytest.raises(DataError, match=r"'x': private scores count it in \[-3, 3\]") as caught:
        tacit.fit(MODEL, parties, privacy=Privacy(epsilon=4.0), method="dp-scores")
    # Nothing was charged: the words do not depend on the records, a constant example aside.
    assert re.findall(r"\d+", str(caught.value)) == ["3", "3", "60", "15"]


def factor(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.factor("y", -((y - slope * x) ** 2) if y is not None else jnp.zeros(x.shape))


def test_a_factor_has_no_outcome_to_simulate():
    with pytest.raises(ConfigError, match="is a factor, masked or scaled"):
        from_numpyro(factor, EXAMPLE).outcome_law()


def test_the_ratio_is_shrunk_by_its_noise_which_is_larger_on_the_diagonal():
    rng, size = np.random.default_rng(1), 30
    wobble = 0.3 * rng.normal(size=(size, size))
    truth = 1.4 * np.eye(size) + 0.5 * (wobble + wobble.T) * 0.3
    noise = 0.4 * rng.normal(size=(size, size))
    noise = np.triu(noise, 1) / np.sqrt(2.0)
    seen = truth + noise + noise.T + np.diag(0.4 * rng.normal(size=size))
    found = shrunk_ratio(None, seen, 0.4)
    assert np.mean((found.mean - truth) ** 2) < 0.3 * np.mean((seen - truth) ** 2)
    again = shrunk_ratio(found, truth, 1e-3)
    np.testing.assert_allclose(again.mean, truth, atol=0.02)


def test_synthetic_rows_have_the_released_marginals_and_correlations():
    rng, records = np.random.default_rng(4), 40_000
    x = rng.multivariate_normal(np.zeros(3), 0.5 * np.eye(3) + 0.5, size=records)
    x = np.clip(x, -3.0, 3.0)
    model = LogisticRegression(("a", "b", "c"), prior_sd=1.0)
    method = PrivateScores().suited(model)
    assert isinstance(method, PrivateScores)
    design = design_of(model.outcome_law().covariates)
    from tacit.methods.scores.covariates import described, public_scale
    from tacit.methods.scoring.party import moment_sum

    plus = jnp.concatenate([x, jnp.ones((records, 1))], axis=1)
    mask = jnp.ones(records)
    clip = jnp.sqrt(1.0 * design.counted.columns)
    counts = np.asarray(counts_sum(design.counted, {"x": plus}, mask, clip).value)
    found = described(design, counts, 1.0, records)
    np.testing.assert_allclose(found.variance[:3], np.var(x, axis=0), rtol=0.02)
    scale = public_scale(design, found)
    moment = np.asarray(moment_sum(plus, found.centre, scale, mask, jnp.ones(())).value)
    rows = synthetic_rows(design, found, moment, 1.0)
    np.testing.assert_allclose(np.corrcoef(rows.T), np.corrcoef(x.T), atol=0.05)


def hierarchical(group, y=None):
    middle = numpyro.sample("middle", dist.Normal(0.0, 3.0))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    with numpyro.plate("groups", 5):
        level = numpyro.sample("level", dist.Normal(middle, spread))
    with numpyro.plate("records", group.shape[0]):
        numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_eigenvalues_that_noise_spread_apart_are_brought_together(correlation):
    size, noise = 60, 0.03
    truth = (1.0 - correlation) * np.eye(size) + correlation
    draws = noise * np.random.default_rng(6).normal(size=(size, size))
    seen = truth + (draws + draws.T) / np.sqrt(2.0)
    root = np.linalg.inv(np.linalg.cholesky(truth))

    def off(matrix):
        """The largest factor by which a variance is wrong."""
        return np.max(np.abs(np.linalg.eigvalsh(root @ matrix @ root.T) - 1.0))

    assert off(denoised(seen, noise)) < 0.6 * off(seen)
    np.testing.assert_allclose(denoised(seen, 0.0), seen, atol=1e-12)


def test_the_map_clips_more_where_there_is_more_noise():
    law = MODEL.outcome_law()
    rows = np.clip(np.random.default_rng(9).normal(size=(1024, 1)), -3.0, 3.0)
    estimator = Estimator(Simulator(law, rows), PriorTerm(MODEL, np.zeros(3), np.ones(3)), 6e3)
    point, ratio = np.array([1.0, -0.5, np.log(2.0)]), Ratio(np.eye(3), np.zeros((3, 3)))
    usual = estimator.mapping(point, ratio)
    scales = [
        float(np.mean(estimator.narrowest(point, ratio, noise) / usual))
        for noise in (0.0, 80.0, 2_000.0)
    ]
    assert scales[0] < 1.0 < scales[2]
    assert scales[0] <= scales[1] <= scales[2]
    whole = estimator.simulator.expected(point, usual, point, point)
    np.testing.assert_allclose(estimator.simulator.fisher(point), whole.fisher, rtol=1e-10)
    np.testing.assert_allclose(
        estimator.simulator.score(point, usual, point, point), whole.score, atol=1e-12
    )


def spread_levels(group, y=None):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 6):
        level = numpyro.sample("level", dist.Normal(0.0, spread))
    with numpyro.plate("records", group.shape[0]):
        numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)


@pytest.mark.parametrize("seen", [0.05, 0.3])
def test_a_posterior_that_is_not_normal_has_the_moments_of_the_exact_one(seen):
    """Six levels with errors of 0.1 and 0.3, next to none or some spread: exact by quadrature."""
    example = {"group": np.zeros(2, int), "y": np.zeros(2)}
    term = PriorTerm(
        from_numpyro(spread_levels, example, columns={"group": 6}), np.zeros(7), np.ones(7)
    )
    error = np.array([0.1, 0.1, 0.1, 0.1, 0.3, 0.3])
    levels = seen * np.array([1.0, -1.0, 0.5, -0.5, 1.5, -1.0])
    information = np.diag(np.append(0.0, error**-2.0))
    linear = np.append(0.0, levels / error**2)
    logs = np.linspace(-12.0, 3.0, 3_001)
    spread = np.exp(logs)
    total = spread[:, None] ** 2 + error**2
    log_weight = -0.5 * spread**2 + logs  # half-normal, and the Jacobian
    log_weight = log_weight - 0.5 * np.sum(np.log(total) + levels**2 / total, axis=1)
    weight = np.exp(log_weight - np.max(log_weight))
    weight /= np.sum(weight)
    keep = spread[:, None] ** 2 / total
    mean = np.append(weight @ logs, weight @ (keep * levels))
    square = np.append(weight @ logs**2, weight @ (keep * error**2 + (keep * levels) ** 2))
    start = term.posterior(information, linear, np.append(-2.0, np.zeros(6)))
    found = term.moments(information, linear, *start)
    sd, exact_sd = np.sqrt(np.diagonal(np.linalg.inv(found.precision))), np.sqrt(square - mean**2)
    np.testing.assert_allclose((found.mean - mean) / exact_sd, 0.0, atol=0.02)
    np.testing.assert_allclose(sd / exact_sd, 1.0, atol=0.02)
    assert found.share > 0.9
    without = np.sqrt(np.diagonal(np.linalg.inv(start[1])))
    assert np.max(np.abs((start[0] - mean) / exact_sd)) > 0.1 or np.min(without / exact_sd) < 0.9


def test_a_hierarchy_starts_where_its_prior_has_no_mode_and_finds_the_spread():
    """All levels are alike at the start, where the density grows as the spread goes to 0."""
    rng = np.random.default_rng(9)
    levels = np.array([-1.5, -0.5, 0.2, 0.9, 1.7])
    group = rng.integers(0, 5, RECORDS)
    y = levels[group] + rng.normal(size=RECORDS)
    example = {"group": np.zeros(2, int), "y": np.zeros(2)}
    model = from_numpyro(hierarchical, example, columns={"group": 5})
    parties = {str(i): {"group": group[i::PARTIES], "y": y[i::PARTIES]} for i in range(PARTIES)}
    found = carry_out(plan_of(parties, model)).posterior
    place = model.names.index("spread")
    assert abs(found.mean[place] - np.log(np.std(levels))) < 0.5
    assert 0.2 < found.sd[place] < 0.6
    first = model.names.index("level[0]")
    errors = (found.mean[first : first + 5] - levels) / found.sd[first : first + 5]
    assert np.max(np.abs(errors)) < 4.0


def heavy(x, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    degrees = numpyro.sample("degrees", dist.Gamma(2.0, 0.1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(degrees, level + 0.0 * x, scale), obs=y)


def test_an_estimate_that_went_to_heavy_tails_has_a_positive_information():
    """There the simulated part of the draws is larger than the whole variance of a score."""
    model = from_numpyro(heavy, EXAMPLE)
    law = model.outcome_law()
    rows = np.random.default_rng(4).normal(size=(1_024, 1))
    term = PriorTerm(model, np.array([0.0, 1.0, 2.8]), np.array([0.04, 1.0, 2.0]))
    estimator = Estimator(Simulator(law, rows), term, 800.0)
    identity = Ratio(np.eye(3), np.zeros((3, 3)))
    mapping = estimator.mapping(np.array([0.0, 0.0, 2.8]), identity)
    points = np.tile([0.0, 0.0, 2.0], (5, 1))
    start = np.array([0.0, 0.0, -0.2])
    here = estimator.simulator.expected(start, mapping, start, start)
    assert np.linalg.eigvalsh(here.variance - 0.8 * here.drawn)[0] < 0.0
    history = History(points, np.zeros((5, 3)), np.full(5, 10.0))
    found = estimator.posterior(history, mapping, identity, start, 1)
    assert np.linalg.eigvalsh(found.information)[0] > 0.0
    assert np.linalg.eigvalsh(found.precision)[0] > 0.0


def test_a_map_that_was_made_far_away_is_renewed_where_the_rounds_left_gain_by_it():
    """At 3 degrees of freedom a map for 17 shortens most scores of heavy tails."""
    model = from_numpyro(heavy, EXAMPLE)
    rows = np.random.default_rng(4).normal(size=(1_024, 1))
    term = PriorTerm(model, np.array([0.0, 1.0, 2.8]), np.array([0.04, 1.0, 2.0]))
    estimator = Estimator(Simulator(model.outcome_law(), rows), term, 1_600.0)
    identity = Ratio(np.eye(3), np.zeros((3, 3)))
    far, here = np.array([0.0, 0.0, 2.8]), np.array([0.0, 0.0, 1.1])
    noise = 20.0
    made_far = estimator.narrowest(far, identity, noise)
    early, late = (noise, 1.05 * noise), (noise, 20.0 * noise)
    renewed = estimator.renewed(here, made_far, far, identity, early)
    assert renewed is not None
    assert np.linalg.norm(renewed[:, 2]) < 0.7 * np.linalg.norm(made_far[:, 2])
    assert estimator.renewed(here, renewed, here, identity, early) is None
    assert estimator.renewed(here, made_far, far, identity, late) is None


def test_expected_widths_are_those_of_clipped_normal_scores():
    normal_scores = np.abs(np.random.default_rng(1).normal(size=400_000))
    for clip, extra in ((1.3, 0.8), (0.4, 0.1)):
        kept = np.minimum(1.0, clip / normal_scores)
        slope = np.mean(kept * normal_scores**2)
        expected = np.sqrt(np.mean(np.square(kept * normal_scores)) + extra) / slope
        assert width(clip, extra) == pytest.approx(expected, rel=0.01)


def test_wide_intervals_are_announced_before_anything_is_spent():
    rng = np.random.default_rng(6)
    group = rng.integers(0, 3, 3_000)
    records = {"x": rng.normal(size=3_000), "group": group, "y": rng.normal(size=3_000)}
    parties = {str(i): {key: v[i::3] for key, v in records.items()} for i in range(3)}
    model = from_numpyro(grouped, GROUPED, columns={"group": 3})
    words = r"Expect intervals about [\d.]+ times as wide .*times for levels with under"
    with pytest.warns(WideIntervalsWarning, match=words), pytest.raises(InterruptedError):
        tacit.fit(
            model,
            parties,
            privacy=Privacy(epsilon=1.0),
            method="dp-scores",
            ledger="none",
            callback=_interrupt,
        )
    found = tacit.check(model, parties, privacy=Privacy(epsilon=1.0), method="dp-scores")
    assert any(text.startswith("Expect intervals about") for text in found.warnings)
    noisy = tacit.check(model, parties, privacy=Privacy(epsilon=0.25), method="dp-scores")
    assert any(text.startswith("Some fits with 3000 records") for text in noisy.warnings)
    assert not any(text.startswith("Some fits with") for text in found.warnings)
    precise = plan_of(parties, model, epsilon=8.0, aggregation="trusted")
    assert precise.method.known_limits(model, precise.settled) is None
    assert precise.method.settling_risk(model, precise.settled) is None


def _interrupt(state, log):
    raise InterruptedError


def test_a_part_of_a_covariance_is_subtracted_as_far_as_it_is_one():
    whole, part = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[0.5, 0.2], [0.2, 0.3]])
    np.testing.assert_allclose(without_part(whole, part, 0.8), whole - 0.8 * part, atol=1e-12)
    np.testing.assert_allclose(without_part(whole, 9.0 * whole, 0.8), 0.2 * whole, atol=1e-12)


@pytest.mark.parametrize("failing", ["walked", "updated_ratio", "posterior", "moments"])
def test_an_estimate_that_fails_ends_in_a_fit_that_says_so(failing, monkeypatch):
    """What was released before and after it is still used."""
    owner = PriorTerm if failing == "moments" else Estimator
    whole, calls = getattr(owner, failing), []

    def fails_once(self, *given):
        calls.append(failing)
        if len(calls) == 1:
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
        return whole(self, *given)

    monkeypatch.setattr(owner, failing, fails_once)
    parties = parties_of(np.random.default_rng(3))
    with pytest.warns(NotConvergedWarning):
        found = tacit.fit(
            MODEL,
            parties,
            method=PrivateScores(),
            privacy=Privacy(epsilon=4.0, aggregation="trusted", insecure_noise_seed=1),
        )
    assert calls
    assert not found.converged
    assert ("draws" if failing == "moments" else "gave no estimate") in found.why
    errors = (found.posterior.mean - np.array([1.0, -0.5, np.log(SCALE)])) / found.posterior.sd
    assert np.max(np.abs(errors)) < 4.0


def test_when_no_estimate_succeeds_every_round_is_still_answered(monkeypatch):
    def fails(self, *given):
        raise np.linalg.LinAlgError("Singular matrix")

    for name in ("walked", "updated_ratio", "posterior", "mapping", "narrowest"):
        monkeypatch.setattr(Estimator, name, fails)
    with pytest.warns(NotConvergedWarning, match="gave no estimate"):
        found = tacit.fit(
            MODEL,
            parties_of(np.random.default_rng(3)),
            method=PrivateScores(),
            privacy=Privacy(epsilon=4.0, aggregation="trusted", insecure_noise_seed=1),
        )
    assert not found.converged
    assert np.all(np.isfinite(found.posterior.sd))


def test_coordinates_in_raw_units_are_as_wide_as_the_likelihood_says():
    """Level and slope correlated at −0.99, as with an age that is not centred, and a free scale."""
    term = PriorTerm(MODEL, np.zeros(3), np.array([0.04, 0.04, 25.0]))
    sd, correlation = np.array([0.5, 0.005]), np.array([[1.0, -0.99], [-0.99, 1.0]])
    information = np.zeros((3, 3))
    information[:2, :2] = np.linalg.inv(np.outer(sd, sd) * correlation)
    linear = information @ np.array([-4.5, 0.05, 0.0])
    found, precision = term.posterior(information, linear, np.zeros(3))
    exact = np.linalg.inv(information[:2, :2] + np.diag([0.04, 0.04]))
    np.testing.assert_allclose(found[:2], exact @ linear[:2], rtol=0.02)
    found_sd = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    np.testing.assert_allclose(found_sd[:2] / np.sqrt(np.diagonal(exact)), 1.0, atol=0.02)


def test_an_estimate_that_has_not_settled_is_said_not_to_have_converged():
    server = plan_of(parties_of(np.random.default_rng(3))).rules.combine
    assert trouble(server, {"moved": np.array([0.4])}) is None
    assert "moved q's mean by 1.6 posterior sds" in str(trouble(server, {"moved": np.array([1.6])}))


def test_an_intercept_alone_is_estimated_where_the_number_of_records_is_not_public():
    rng = np.random.default_rng(0)
    parties = {"a": {"x": np.ones((3000, 1)), "y": (rng.random(3000) < 0.3).astype(float)}}
    privacy = Privacy(epsilon=5.0, adjacency="add-or-remove-one", insecure_noise_seed=1)
    model = LogisticRegression(("intercept",))
    done = carry_out(make_plan(model, parties, method=PrivateScores(), privacy=privacy))
    assert abs(done.posterior.mean[0] - np.log(0.3 / 0.7)) < 0.2
