"""Counts and bounded numbers: from a declared file to private scores with their bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.data import Federation, load_federation
from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.errors import ConfigError, DataError
from tacit.methods import PrivateScoring
from tacit.methods.scoring.marginals import marginals
from tacit.methods.scoring.party import KNOTS, counted, counts_sum, score_sum
from tacit.models import LinearRegression, PoissonRegression
from tacit.models.glm.linear import GaussianLikelihood
from tacit.models.glm.poisson import PoissonLikelihood
from tacit.privacy.settings import Privacy
from tacit.run.build import make_model
from tacit.run.config import parse_config
from tacit.run.run import prepare, simulate
from tacit.server.combine import RoundSum, Shared
from tacit.server.schedule import Synchronous

LAYOUT = (INTERCEPT, Feature("numeric", "age", -1.0, 1.0))
NAMES = ("intercept", "age")


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A file with a count (up to 30) and a number far from 0 (120 to 200), by age."""
    rng = np.random.default_rng(4)
    age = rng.uniform(0, 100, 3000)
    x = (age - 50) / 50
    falls = np.minimum(rng.poisson(np.exp(0.8 - 0.9 * x)), 30)
    pressure = np.clip(160 + 12 * x + 4 * rng.standard_normal(3000), 120, 200)
    path = tmp_path_factory.mktemp("clinic") / "clinic.csv"
    polars.DataFrame({"age": age, "falls": falls, "pressure": pressure}).write_csv(path)
    return str(path)


def config(path, target, bounds=None, *, privacy="none", model=None, rounds=12, method="auto"):
    columns = {"age": {"low": 0, "high": 100}, target: {"feature": False} | (bounds or {})}
    return parse_config({
        "privacy": privacy,
        "outcome": target,
        "columns": columns,
        "data": {"path": path},
        "partition": {"parties": 3},
        "model": model or {"kind": "linear", "noise_sd": 4.0, "prior_sd": 200.0},
        "schedule": {"rounds": rounds},
        "method": {"kind": method},
        "evaluate": {"reference": "none"},
    })  # fmt: skip


POISSON = {"kind": "poisson", "prior_sd": 1.0}
SEEDED = {"epsilon": 4.0, "delta": 1e-5, "insecure_noise_seed": 1}


def test_counts_are_learnt_from_a_declared_file(clinic):
    exact = simulate(config(clinic, "falls", {"low": 0, "high": 30}, model=POISSON))
    assert exact.model.kind == "poisson"
    np.testing.assert_allclose(exact.posterior.mean, [0.8, -0.9], atol=0.06)
    private = {"model": POISSON, "privacy": SEEDED}
    plan = prepare(config(clinic, "falls", {"low": 0, "high": 30}, **private)).plan
    assert plan.method.kind == "dp-scores"
    assert "'poisson'" in plan.why
    private["method"] = "dp-scoring"
    found = simulate(config(clinic, "falls", {"low": 0, "high": 30}, **private))
    assert found.privacy.guarantee.epsilon <= 4.0
    np.testing.assert_allclose(found.posterior.mean, [0.8, -0.9], atol=0.2)
    fit = exact.metrics["held_out"]["log_predictive_density"]
    assert found.metrics["held_out"]["log_predictive_density"] > fit - 0.02


def test_the_largest_count_is_declared_once(clinic):
    def largest(bounds=None, **model):
        asked = config(clinic, "falls", bounds, model=POISSON | model)
        made = make_model(asked, load_federation(asked.data, asked.partition, 0))
        assert isinstance(made, PoissonRegression)
        return made.max_count

    assert largest({"low": 0, "high": 30}) == 30
    assert largest(max_count=40) == 40
    assert largest({"low": 0, "high": 30}, max_count=30) == 30
    with pytest.raises(ConfigError, match="is declared up to 30; leave"):
        largest({"low": 0, "high": 30}, max_count=40)
    with pytest.raises(ConfigError, match=r"needs an upper bound on the counts.*low = 0 and high"):
        largest()
    with pytest.raises(ConfigError, match="counts are not negative"):
        largest({"low": -1, "high": 30})
    with pytest.raises(ConfigError, match="is not a key of kind"):
        config(clinic, "falls", model={"kind": "linear", "max_count": 3})
    with pytest.raises(DataError, match="whole numbers from 0 to 2, which"):
        prepare(config(clinic, "falls", model=POISSON | {"max_count": 2}))
    with pytest.raises(DataError, match="whole numbers"):
        prepare(config(clinic, "pressure", {"low": 0, "high": 300}, model=POISSON))


def test_a_notebooks_class_is_told_the_schema(clinic):
    asked = config(clinic, "pressure", {"low": 120, "high": 200})
    federation = load_federation(asked.data, asked.partition, 0)
    assert isinstance(federation, Federation)
    assert federation.y_bounds == (120, 200)
    fitted = tacit.fit(LinearRegression, federation, privacy="none")
    assert fitted.posterior.model.bounds == (120, 200)  # pyright: ignore
    rescaled = config(clinic, "pressure", {"low": 120, "high": 200, "center": 160, "scale": 10})
    assert load_federation(rescaled.data, rescaled.partition, 0).y_bounds == (-4, 4)
    undeclared = config(clinic, "pressure")
    assert load_federation(undeclared.data, undeclared.partition, 0).y_bounds is None


def test_declared_bounds_of_y_are_where_a_private_line_starts(clinic):
    """A line 40 sds from 0: the first score is asked for near to it if y is counted."""
    starts = {}
    for name, bounds in (("counted", {"low": 120, "high": 200}), ("not", None)):
        plan = prepare(config(clinic, "pressure", bounds, privacy=SEEDED)).plan
        combine, q = plan.rules.combine, plan.rules.prior
        assert combine is not None
        assert isinstance(plan.model, LinearRegression)
        likelihood = plan.model.score_likelihood()
        what = counted(plan.model.layout, likelihood.largest, likelihood.smallest)
        total = np.zeros(())
        for records in plan.parties.values():
            told = counts_sum(what, records, jnp.ones(len(records["y"])), jnp.array(1.0)).value
            total = total + np.asarray(told, np.float64) * np.sqrt(what.columns)
        found = combine(Shared(q), RoundSum({"counts": total}, len(plan.parties), 1))
        assert found.memory is not None
        starts[name] = found.memory["point"]
    y = np.concatenate([records["y"] for records in plan.parties.values()])
    assert starts["counted"][0] == pytest.approx(y.mean(), abs=1.0)
    assert starts["not"][0] == 0.0


@settings(max_examples=200, deadline=None)
@given(
    y=st.floats(-1e6, 1e6),
    eta=st.floats(-1e4, 1e4),
    reach=st.sampled_from([1.5, 3.0, 10.0]),
    low=st.floats(-100, 100),
    width=st.floats(0.1, 100),
)
def test_the_bound_holds_for_every_y(y, eta, reach, low, width):
    likelihood = GaussianLikelihood(2.0, low, low + width)
    psi = likelihood.residual(np.array(y), np.array(eta), np.array(reach))
    most = likelihood.bound(np.array(eta), np.array(reach))
    assert abs(psi) <= most * (1 + 1e-12)
    plain = GaussianLikelihood(2.0).bound(np.array(eta), np.array(reach))
    assert most <= plain
    inside = np.clip(y, low, low + width)
    assert psi == likelihood.residual(inside, np.array(eta), np.array(reach))


def test_the_bound_of_bounded_numbers_is_reached():
    """Tight: a bound that is too wide would waste the clip, one too narrow the guarantee."""
    likelihood = GaussianLikelihood(10.0, 120.0, 200.0)
    eta, reach = np.array([130.0, 160.0, 199.0]), np.array(10.0)
    ends = [np.abs(likelihood.residual(np.array(y), eta, reach)) for y in (120.0, 200.0)]
    np.testing.assert_allclose(np.max(ends, axis=0), likelihood.bound(eta, reach))


@pytest.mark.parametrize("model", [
    LinearRegression(NAMES, noise_sd=2.0, layout=LAYOUT, bounds=(-5.0, 20.0), prior_sd=1.0),
    PoissonRegression(NAMES, max_count=12, layout=LAYOUT, prior_sd=1.0),
])  # fmt: skip
def test_substitutions_stay_within_the_claimed_sensitivities(model):
    likelihood = model.score_likelihood()
    assert likelihood.largest is not None
    what = counted(LAYOUT, likelihood.largest, likelihood.smallest)
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        one, clip = jnp.ones(1), jnp.array(1.0)
        counts, scores = [], []
        for number in range(12):
            size = 10.0 ** rng.uniform(-1, 1 + 5 * (number % 2))
            x, y = jnp.array([[1.0, size * rng.normal()]]), jnp.array([size * rng.normal()])
            records = {"x": x, "y": y}
            counts.append(np.asarray(counts_sum(what, records, one, clip).value))
            scores.append(np.asarray(score_sum(
                likelihood, records, one, clip, centre=jnp.array([0.0, 0.3]),
                scale=jnp.array([1.0, 2.0]), bend=jnp.zeros((1, 2)), reach=jnp.array(3.0),
                point=jnp.array([0.4, 1.5]),
            ).value))  # fmt: skip
    for found, most in ((counts, np.sqrt(2.0)), (scores, 2.0)):
        rows = np.array(found)
        apart = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
        assert apart.max() <= most * (1 + 1e-9)
        assert apart.max() > 0.4 * most, "the bound is not idle"


def test_the_mean_of_bounded_numbers_comes_back_from_the_counts():
    y = np.array([120.0, 140.0, 200.0])
    what = counted(LAYOUT, 200.0, 120.0)
    assert (what.columns, what.size) == (2, KNOTS + 2)
    records = {"x": jnp.array([[1.0, 0.0]] * 3), "y": jnp.array(y)}
    total = counts_sum(what, records, jnp.ones(3), jnp.array(1.0)).value * np.sqrt(2.0)
    found = marginals(LAYOUT, what, np.asarray(total, np.float64), 1e-9, 3.0)
    assert found.outcome == pytest.approx(y.mean(), rel=1e-5)


def test_poisson_has_one_link_and_private_scoring_takes_it():
    likelihood = PoissonLikelihood(12.0)
    assert np.exp(likelihood.link(3.0)) == pytest.approx(3.0)
    model = PoissonRegression(NAMES, max_count=12, layout=LAYOUT, prior_sd=1.0)
    rng = np.random.default_rng(0)
    records = {"x": np.column_stack([np.ones(40), rng.uniform(-1, 1, 40)]), "y": np.arange(40) % 5}
    plan = tacit.plan.plan.make_plan(
        model, {"a": records}, schedule=Synchronous(rounds=3), privacy=Privacy(epsilon=1.0)
    )
    assert isinstance(plan.method, PrivateScoring)
