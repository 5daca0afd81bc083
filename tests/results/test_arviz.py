"""Groups for ArviZ at records: loo, summary and posterior predictive checks run on them.

The tests pass with ArviZ 0.2x and, under Python 3.12 or newer, with ArviZ 1.x.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tacit
from tacit.errors import DataError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.models import LinearRegression, LogisticRegression, PoissonRegression
from tacit.results.posterior import Posterior

arviz = pytest.importorskip("arviz", reason="ArviZ is not installed: pip install tacit[arviz]")
pytestmark = pytest.mark.filterwarnings("ignore")  # of ArviZ's own imports and one chain

NAMES = ("intercept", "age")


def records(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(60), rng.normal(size=60)])
    return {"x": x, "y": (rng.random(60) < 0.5).astype(np.float64)}


def normal(model: Any, mean: list[float]) -> Posterior:
    family = FullGaussian(len(mean))
    return Posterior(
        model, family, family.natural(mean=np.array(mean), covariance=0.04 * np.eye(len(mean)))
    )


@pytest.mark.parametrize(
    "model",
    [LogisticRegression(NAMES), LinearRegression(NAMES), PoissonRegression(NAMES, max_count=5)],
    ids=lambda model: model.kind,
)
def test_groups_hold_the_models_densities_and_simulated_outcomes(model):
    posterior, data = normal(model, [0.3, -0.5]), records()
    tree = posterior.to_arviz(800, seed=2, records=data)
    theta = tree.posterior["theta"].values[0]
    expected = np.stack([np.asarray(model.log_likelihood(one, data)) for one in theta[:5]])
    logs = tree.log_likelihood["y"]
    assert logs.dims == ("chain", "draw", "record")
    np.testing.assert_allclose(logs.values[0, :5], expected, rtol=1e-6)
    np.testing.assert_array_equal(tree.observed_data["y"].values, data["y"])
    drawn = tree.posterior_predictive["y"].values[0]
    mean = np.mean([np.asarray(model.response(one, data)) for one in theta], axis=0)
    spread = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert np.max(np.abs(drawn.mean(axis=0) - mean) / np.maximum(spread, 1e-9)) < 5.0
    assert np.unique(drawn[:, 0]).size > 1


def test_loo_summary_and_predictive_plot_run():
    import matplotlib as mpl

    mpl.use("agg")
    tree = normal(LogisticRegression(NAMES), [0.0, 0.0]).to_arviz(400, records=records())
    found = arviz.loo(tree)
    estimate = found.elpd if hasattr(found, "elpd") else found.elpd_loo
    assert estimate == pytest.approx(60 * np.log(0.5), rel=0.1)
    assert list(arviz.summary(tree).index) == ["theta[intercept]", "theta[age]"]
    plot = getattr(arviz, "plot_ppc", None) or arviz.plot_ppc_dist
    plot(tree)


def test_a_numpyro_models_outcome_keeps_its_name():
    import numpyro
    import numpyro.distributions as dist

    def program(x: Any, score: Any) -> None:
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        with numpyro.plate("records", len(x)):
            numpyro.sample("score", dist.Normal(x, spread), obs=score)

    data = {"x": np.linspace(-1, 1, 20), "score": np.linspace(-1, 1, 20) + 0.1}
    model = tacit.from_numpyro(program, data)
    family = MeanFieldGaussian(1)
    natural = family.natural(mean=np.array([-1.0]), sd=np.array([0.2]))
    tree = Posterior(model, family, natural).to_arviz(50, records=data)
    np.testing.assert_allclose(tree.observed_data["score"].values, data["score"])
    assert tree.posterior_predictive["score"].dims == ("chain", "draw", "record")
    assert np.isfinite(arviz.loo(tree).p_loo if hasattr(arviz.loo(tree), "p_loo") else 0.0)


def test_codes_out_of_range_are_refused_as_in_predictions():
    import numpyro
    import numpyro.distributions as dist

    def program(group: Any, y: Any) -> None:
        level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("records", len(group)):
            numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)

    data = {"group": np.array([0, 1, 2]), "y": np.zeros(3)}
    model, family = tacit.from_numpyro(program, data), MeanFieldGaussian(3)
    q = Posterior(model, family, family.natural(mean=np.zeros(3), sd=np.ones(3)))
    with pytest.raises(DataError, match="column 'group': a value is above 2"):
        q.to_arviz(5, records=data | {"group": np.array([1, 2, 3])})


def test_a_fit_reads_a_data_frame_with_its_schema():
    import pandas as pd

    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": rng.uniform(20, 90, 80), "site": ["a", "b"] * 40})
    frame["died"] = np.where(rng.random(80) < 0.4, "yes", "no")
    fit = tacit.fit("died ~ age", frame, party="site", privacy=None)
    tree = fit.to_arviz(frame, draws=100)
    np.testing.assert_array_equal(tree.observed_data["y"].values, frame["died"] == "yes")
    with pytest.raises(DataError, match='no column "died"'):
        fit.to_arviz(frame[["age"]])


def test_records_without_an_outcome_are_refused():
    posterior = normal(LogisticRegression(NAMES), [0.0, 0.0])
    with pytest.raises(DataError, match="no outcome"):
        posterior.to_arviz(10, records={"x": np.ones((3, 2))})
    with pytest.raises(DataError, match="no records"):
        posterior.to_arviz(10, records={"x": np.ones((0, 2)), "y": np.ones(0)})
