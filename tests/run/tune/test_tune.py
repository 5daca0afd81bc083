"""Settings found on made-up records: that nothing is read, and that what is better is found."""

import csv
import json
import tomllib

import numpy as np
import pytest

import tacit.data.federation
import tacit.data.readers.catalogue
from tacit.data import DataConfig, PartitionConfig, synthetic_federation
from tacit.errors import ConfigError
from tacit.methods import METHODS
from tacit.models import LogisticRegression
from tacit.models.simulate import LOGIT_SD
from tacit.privacy.ledger.ledger import Ledger
from tacit.run.config import parse_config
from tacit.run.tune import NOTHING_SPENT, Trial, default_grid, parse_grid, tune, write_tuned
from tacit.run.tune.grid import settings_to_try, with_settings
from tacit.run.tune.outcomes import outcome_of
from tacit.run.tune.trials import TrialRunner

COLUMNS = {
    "age": {"low": 0, "high": 100, "missing": "indicator"},
    "dose": {"low": 0, "high": 20, "center": 5, "scale": 2},
    "ward": {"levels": ["A", "B", "C"], "missing": "level"},
    "ill": {"levels": ["no", "yes"]},
}
TABLE = {"source": "file", "path": "absent.csv", "outcome": "ill", "positive": "yes"}
RAW = {
    "name": "file",
    "privacy": {"epsilon": 2.0, "delta": 1e-4},
    "outcome": "ill",
    "positive": "yes",
    "data": {"path": "absent.csv"},
    "columns": COLUMNS,
    "partition": {"parties": 3},
    "method": {"kind": "dp-sgd"},
    "schedule": {"rounds": 4},
}


@pytest.fixture(autouse=True)
def nothing_can_be_read(monkeypatch):
    """No reader, loader or ledger is there: whoever asks for a record or a charge fails."""

    def refuse(*_, **__):
        raise AssertionError("a record was asked for")

    for module, name in (
        (tacit.data.readers.catalogue, "read_table"),
        (tacit.data.federation, "read_table"),
        (tacit.data.federation, "load_federation"),
        (tacit.data.federation, "load_party"),
    ):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr("tacit.run.run.load_federation", refuse)
    monkeypatch.setattr(Ledger, "__init__", refuse)


def made(data, *, partition=None, records=2000, seed=0, outcome=None):
    return synthetic_federation(
        DataConfig(**data),
        partition or PartitionConfig(parties=4),
        records=records,
        test=500,
        outcome=outcome or (lambda records, *_: np.arange(len(records["y"])) % 2.0),
        seed=seed,
    )


@pytest.fixture
def columns():
    return parse_config(RAW).data.columns


def test_a_file_that_does_not_exist_can_be_tuned(tmp_path):
    config = parse_config(RAW)
    found = tune(config, trials=3, repeats=2, records=300, grid={"method.clip": (0.2, 1.0)})
    assert {tuple(trial.settings.items()) for trial in found.trials} == {
        (),
        (("method.clip", 0.2),),
    }
    assert all(np.isfinite(trial.mean) and len(trial.scores) == 2 for trial in found.trials)
    source = '# mine\nname = "file"\nprivacy = "none"\n[method]\nclip = 1.0  # why\n'
    path = write_tuned(tmp_path / "out", found, source, ("schedule.rounds=7",))
    text = path.read_text(encoding="utf-8")
    assert "# why" in text
    assert NOTHING_SPENT in text
    assert tomllib.loads(text)["schedule"]["rounds"] == 7
    told = json.loads((tmp_path / "out" / "trials.json").read_text(encoding="utf-8"))
    assert told["statement"] == "No budget was spent: only synthetic records were used."
    assert len(told["trials"]) == 2
    table = (tmp_path / "out" / "trials.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    assert {row["method.clip"] for row in rows} == {"", "0.2"}
    chosen = found.best.settings.get("method.clip", 1.0)
    assert tomllib.loads(text)["method"]["clip"] == chosen


def test_where_the_number_of_records_comes_from_is_said():
    whole = parse_config(RAW | {"data": RAW["data"] | {"held_out": 0.0}})
    assert "3,000 training records per federation (a default" in TrialRunner(whole, None, 0).made[0]
    assert "50 training records per federation (as given)" in TrialRunner(whole, 50, 0).made[0]
    built_in = {key: RAW[key] for key in ("privacy", "partition", "method", "schedule")}
    adult = parse_config(built_in | {"data": {"source": "adult", "held_out": 0.5}})
    assert "24,421 training records per federation (public)" in TrialRunner(adult, None, 0).made[0]
    with pytest.raises(ConfigError, match="--trials 0; it must be at least 1"):
        tune(whole, trials=0)


def test_a_setting_that_cannot_learn_loses(tmp_path):
    config = parse_config(RAW | {"schedule": {"rounds": 1}})
    grid = parse_grid(["schedule.rounds=1,12"])
    found = tune(config, trials=4, repeats=2, records=2000, grid=grid)
    assert found.best.settings == {"schedule.rounds": 12}
    assert found.holds
    assert found.tuned.schedule.rounds == 12
    assert found.tuned.privacy == config.privacy


def test_the_same_seed_makes_the_same_records_and_noise():
    config = parse_config(RAW)
    one, same, other = (TrialRunner(config, 300, seed) for seed in (0, 0, 1))
    x, y, z = (next(iter(w._federation(1).parties.values()))["x"] for w in (one, same, other))
    np.testing.assert_array_equal(x, y)
    assert not np.array_equal(x, z)
    seeds = [w._plan({}, w._federation(n).parties, n).privacy.insecure_noise_seed
             for w, n in ((one, 1), (same, 1), (same, 2), (other, 1))]  # fmt: skip
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3


def test_a_setting_that_is_refused_is_a_failure_and_not_the_end():
    config = parse_config(RAW)
    found = tune(config, trials=4, repeats=1, records=300, grid={"method.momentum": (0.5, 2.0)})
    failed = [trial for trial in found.trials if trial.failure]
    assert [trial.settings for trial in failed] == [{"method.momentum": 2.0}]
    assert "it must be a number in [0, 1)" in failed[0].failure
    assert failed[0].mean == -np.inf
    wrong = parse_config(RAW | {"posterior": "full"})
    with pytest.raises(ConfigError, match="given configuration, which fails"):
        tune(wrong, trials=1, repeats=1, records=300)


def test_the_real_runs_refusals_hold_for_tuning_too():
    raw = RAW | {"columns": {"age": {"center": 0, "scale": 1}, "ill": COLUMNS["ill"]}}
    with pytest.raises(ConfigError, match="public bounds, but these columns have none: age"):
        tune(parse_config(raw), trials=1, records=300)
    pooled = parse_config(RAW | {"privacy": "none", "data": RAW["data"] | {"scaling": "pooled"}})
    with pytest.raises(ConfigError, match="needs records, and there are none"):
        tune(pooled, trials=1, records=300)


@pytest.mark.parametrize("kind", ["dp-sgd", "dp-updates"])
def test_a_shared_program_scores_as_the_settings_own(kind, monkeypatch):
    """Settings that differ in the clip alone share a program; each must stay what it was."""
    config = parse_config(RAW | {"method": {"kind": kind}})
    workshop = TrialRunner(config, 300, 0)
    trial = Trial(settings={"method.clip": 0.3})
    shared, plain = (workshop.tried(one, 0) for one in (trial, Trial(settings={})))
    assert shared.scores != plain.scores  # the clip counts
    workshop._plans.clear()
    monkeypatch.setattr("tacit.run.tune.trials._shared", lambda plan: plan)
    assert shared.scores == workshop.tried(trial, 0).scores


SOURCES = {
    "persons by site": {
        "data": {"source": "synthetic-cohort", "person": "patient"},
        "partition": {"kind": "source", "parties": 4},
        "unit": "person",
    },
    "regression": {"data": {"source": "rugged"}, "model": {"kind": "linear", "noise_sd": 1.0}},
    "a mean": {"data": {"source": "normal-mean", "records": 200}},
    "a network": {"data": {"source": "heart"}, "model": {"kind": "neural-network", "hidden": 3}},
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_kind_of_model_and_party_can_be_tuned(name):
    raw = dict(SOURCES[name])
    privacy = {"epsilon": 2.0, "delta": 1e-4, "unit": raw.pop("unit", "record")}
    if name in ("regression", "a mean"):  # their targets have no public bounds
        privacy = "none"
    config = parse_config({"privacy": privacy, "schedule": {"rounds": 2}} | raw)
    found = tune(config, trials=1, repeats=1, records=200)
    assert any(np.isfinite(trial.mean) for trial in found.trials)


def test_a_numpyro_model_simulates_its_own_target(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import numpyro, numpyro.distributions as dist\n"
        "def model(x, y=None):\n"
        "    w = numpyro.sample('w', dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))\n"
        "    with numpyro.plate('records', x.shape[0]):\n"
        "        numpyro.sample('y', dist.Bernoulli(logits=x @ w), obs=y)\n",
        encoding="utf-8",
    )
    model = {"kind": "numpyro", "function": f"{program}:model"}
    config = parse_config(RAW | {"model": model, "schedule": {"rounds": 1}})
    workshop = TrialRunner(config, 300, 0)
    y = np.concatenate([one["y"] for one in workshop._federation(0).parties.values()])
    assert set(np.unique(y)) == {0.0, 1.0}


def test_made_up_records_have_the_declared_shape(columns):
    federation = made(TABLE | {"columns": columns})
    assert federation.names == (
        "intercept", "age", "age missing", "dose", "ward=A", "ward=B", "ward=C", "ward missing"
    )  # fmt: skip
    assert [len(one["y"]) for one in federation.parties.values()] == [500] * 4
    assert federation.test is not None
    assert len(federation.test["y"]) == 500
    assert federation.raw == {}
    x = np.concatenate([one["x"] for one in federation.parties.values()])
    assert np.all(np.abs(x[:, 1]) <= 1)
    assert np.all((x[:, 3] >= -2.5) & (x[:, 3] <= 7.5))  # (0 − 5)/2 … (20 − 5)/2
    # Six standard errors: a false alarm in fewer than one of a hundred million seeds.
    for column, mean, sd in ((2, 0.1, 0.3), (4, 0.25, 0.43), (7, 0.25, 0.43)):
        assert abs(x[:, column].mean() - mean) < 6 * sd / np.sqrt(2000)
    assert abs(x[:, 3].mean()) < 0.2  # N(5, 2²), hardly truncated
    assert abs(x[:, 3].std() - 1) < 0.1
    again = made(TABLE | {"columns": columns})
    np.testing.assert_array_equal(again.test["x"], federation.test["x"])
    other = made(TABLE | {"columns": columns}, seed=1)
    assert not np.array_equal(other.test["x"], federation.test["x"])


def test_parties_are_those_that_the_partition_names(columns):
    federation = made(TABLE | {"columns": columns, "party": "ward"}, records=300)
    assert {name: len(one["y"]) for name, one in federation.parties.items()} == {
        "A": 100, "B": 100, "C": 100,
    }  # fmt: skip
    assert np.all(federation.parties["B"]["x"][:, 5] == 1)
    skewed = PartitionConfig(kind="skew", parties=4, size_skew=0.5, label_skew=0.5)
    sizes = [len(one["y"]) for one in made(TABLE | {"columns": columns}, partition=skewed)
             .parties.values()]  # fmt: skip
    assert sizes == [250, 250, 750, 750]
    with pytest.raises(ConfigError, match='"clinic" has no declared levels'):
        made(TABLE | {"columns": columns, "party": "clinic"})


def test_logits_are_of_a_sensible_size_and_y_follows_them():
    rng = np.random.default_rng(0)
    records = {"x": rng.normal(size=(20_000, 30)), "y": np.zeros(20_000)}
    model = LogisticRegression(tuple(map(str, range(30))), prior_sd=50.0)
    y = outcome_of(model)(records, None, np.random.default_rng(1))
    theta = 50.0 * np.random.default_rng(1).standard_normal(30)
    logit = records["x"] @ theta
    logit *= LOGIT_SD / logit.std()
    probability = 1 / (1 + np.exp(-logit))
    # Bins of the known probability against what came out: 5 sd, two-sided, ten bins.
    for low in np.arange(0, 1, 0.1):
        there = (probability >= low) & (probability < low + 0.1)
        sd = np.sqrt(np.sum(probability[there] * (1 - probability[there])))
        assert abs(np.sum(y[there] - probability[there])) < 5 * sd


def test_settings_to_try():
    grid = parse_grid(["method.clip=0.5,1,2"], {"schedule": {"rounds": [2, 4]}})
    given = {"method.clip": 1.0, "schedule.rounds": 4}
    every = settings_to_try(grid, given, 6, 0)
    assert every[0] == {}
    assert len(every) == 6
    assert {"method.clip": 2, "schedule.rounds": 2} in every
    some = settings_to_try(grid, given, 3, 0)
    assert len(some) == 3
    assert some[0] == {}
    assert some == settings_to_try(grid, given, 3, 0)
    for bad, why in (
        (["method.clip"], "is not of the form key=v1,v2"),
        (["privacy.epsilon=1,9"], "only keys of method, schedule, posterior"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_grid(bad)
    with pytest.raises(ConfigError, match="give a list of values"):
        parse_grid([], {"method": {"clip": 1.0}})


COHORT = {"source": "synthetic-cohort"}


@pytest.mark.parametrize("kind", sorted(METHODS))
def test_every_method_has_a_grid_whose_settings_are_configurations(kind):
    privacy = {"epsilon": 1.0} if METHODS[kind].private else "none"
    config = parse_config({"privacy": privacy, "data": COHORT, "method": {"kind": kind}})
    grid = default_grid(config, kind, 100)
    assert "schedule.rounds" in grid
    for key, values in grid.items():
        assert len(values) == len(set(values)) > 1
        for value in values:
            if value is not None:
                with_settings(config, {key: value}, kind)
    # A method that was left to be chosen is named as soon as one of its keys is.
    auto = parse_config({"privacy": privacy, "data": COHORT})
    assert with_settings(auto, {"schedule.rounds": 3}, kind).method.kind == "auto"
