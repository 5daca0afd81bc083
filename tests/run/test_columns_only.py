"""Models without an outcome at the command line: a file, no outcome, run, predict and report."""

import json

import numpy as np
import polars as pl
import pytest
from json_results import run

from tacit.errors import ConfigError
from tacit.report import write_report
from tacit.results.saved import read_predictor
from tacit.run.config import parse_config

RNG = np.random.default_rng(0)
COLUMNS = {
    "age": {"low": 0, "high": 120},
    "weight": {"low": 30, "high": 200},
    "smokes": {"levels": ["no", "yes"], "reference": "no"},
    "fever": {"levels": ["no", "yes"], "reference": "no"},
}


@pytest.fixture
def table(tmp_path):
    """Two groups of patients at two hospitals."""
    old = RNG.random(400) < 0.5
    frame = pl.DataFrame(
        {
            "age": np.where(old, 75.0, 35.0) + 4.0 * RNG.normal(size=400),
            "weight": np.where(old, 65.0, 90.0) + 5.0 * RNG.normal(size=400),
            "smokes": np.where(RNG.random(400) < 0.5, "yes", "no"),
            "fever": np.where(old, "yes", "no"),
            "hospital": [f"h{number % 2}" for number in range(400)],
        }
    )
    frame.write_csv(tmp_path / "records.csv")
    return tmp_path / "records.csv"


def study(path, model, names, **changes):
    return {
        "name": "columns",
        "privacy": "none",
        "columns": {name: COLUMNS[name] for name in names},
        "data": {"path": str(path), "party": "hospital", "held_out": 0.2},
        "model": model,
        **changes,
    }


def test_a_private_mixture(table, tmp_path):
    privacy = {"epsilon": 8.0, "delta": 1e-5, "insecure_noise_seed": 1, "aggregation": "trusted"}
    model = {"kind": "mixture", "components": 2}
    config = parse_config(study(table, model, ("age", "weight"), privacy=privacy))
    result = run(config, tmp_path / "out")
    assert result["method"] == "dp-conjugate"
    (found,) = result["tables"]
    assert found["columns"] == ["Cluster", "Share", "age", "weight"]
    assert "not calibrated" in result["intervals"]["warning"]
    assert result["metrics"]["held_out"]["log_predictive_density"] < 0.0
    predictor = read_predictor(tmp_path / "out")
    assert predictor.posterior.model.columns == ("age", "weight")
    page = write_report(tmp_path / "out").read_text(encoding="utf-8")
    assert "Clusters" in page
    assert "not calibrated" in page


def test_a_belief_network(table, tmp_path):
    model = {"kind": "belief-network", "hidden": 2}
    config = parse_config(
        study(table, model, ("smokes", "fever"), schedule={"rounds": 5}),
    )
    result = run(config, tmp_path / "out")
    assert result["method"] == "expected-statistics"
    assert result["metrics"]["held_out"]["log_likelihood_bound"] < 0.0


def test_a_one_sided_formula(table, tmp_path):
    model = {"kind": "factors", "factors": 1}
    raw = study(table, model, tuple(COLUMNS), formula="~ age + weight")
    result = run(parse_config(raw), tmp_path / "out")
    assert result["converged"]
    assert result["metrics"]["held_out"]["captured_variance"] > 0.5
    assert json.dumps(result["tables"])


@pytest.mark.parametrize(
    ("model", "names", "more", "words"),
    [
        ({"kind": "mixture"}, ("age", "smokes"), {}, "needs numeric columns"),
        ({"kind": "belief-network"}, ("age", "smokes"), {}, "two levels"),
        ({"kind": "mixture"}, ("age", "weight"), {"outcome": "age"}, "has no outcome"),
        ({"kind": "linear"}, ("age", "weight"), {"formula": "~ age"}, "needs an outcome"),
        ({"kind": "linear"}, ("age", "weight"), {}, "outcome is missing"),
    ],
)
def test_what_does_not_fit_is_refused(table, tmp_path, model, names, more, words):
    with pytest.raises(ConfigError, match=words):
        run(parse_config(study(table, model, names, **more)), tmp_path / "out")
