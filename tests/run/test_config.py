"""A configuration is read whole or refused in one line: key, value, what to do."""

import math
import re
import subprocess
import sys

import numpy as np
import pytest

from tacit.datasets import load
from tacit.errors import ConfigError, DataError
from tacit.methods import DPSGD, GradientVI, NaturalVI, PrivateUpdate
from tacit.run.build import make_method, make_model, make_schedule
from tacit.run.config import (
    config_digest,
    parse_config,
    read_config,
    resolved_toml,
)
from tacit.server.schedule import Damping, Sequential, Synchronous

GOOD = {"privacy": "none", "data": {"source": "synthetic-cohort"}}


def refused(raw, *, error=ConfigError):
    with pytest.raises(error) as caught:
        parse_config(raw)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_a_whole_run():
    config = parse_config(GOOD)
    assert (config.seed, config.posterior, config.schedule.kind) == (0, "auto", "synchronous")
    assert make_schedule(config) == Synchronous()


def damping(**table):
    return {"schedule": {"damping": table}}


COLUMN = {"data": {"path": "a.csv"}, "columns": {"a": {"lwo": 1}}}
SUBSET = {"schedule": {"kind": "asynchronous", "parties_per_round": 2}}
NO_SITES = {"partition": {"kind": "source"}, "data": {"source": "adult"}}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"sede": 3}, "sede = 3 is not a known key; did you mean seed?"),
        (
            {"schedule": {"round": 3}},
            'schedule.round = 3 is not a key of kind = "sync',
        ),
        ({"model": {"zzz": 1}}, 'model.zzz = 1 is not a key of kind = "auto"; its keys are prior_'),
        (damping(start=1.0, end=1.0, rounds=1, stop=0.5), "stop = 0.5 is not a known key"),
        (damping(start=1.0, end=0.5), "schedule.damping.rounds is missing; add it"),
        (damping(start=2.0, end=0.5, rounds=3), "schedule.damping.start = 2.0"),
        (COLUMN, "columns.a.lwo = 1 is not a known key; did you mean low?"),
        ({"seed": "three"}, 'seed = "three"; it must be a whole number in [0, 4294967295]'),
        ({"seed": 1.5}, "seed = 1.5; it must be a whole number"),
        ({"schedule": {"rounds": "10"}}, 'schedule.rounds = "10"; it must be a whole number of at'),
        ({"schedule": 3}, "schedule = 3; it must be a table"),
        ({"posterior": "fulll"}, "posterior = \"fulll\"; did you mean 'full'? choose from 'auto'"),
        ({"privacy": "dp"}, "privacy = \"dp\"; it must be 'none' or a table"),
        (
            {"schedule": {"rounds": 0}},
            "schedule.rounds = 0; it must be a whole number of at",
        ),
        ({"schedule": {"damping": 0.0}}, "schedule.damping = 0.0; it must be a number in (0, 1]"),
        ({"schedule": {"damping": 2}}, "schedule.damping = 2; it must be a number in (0, 1]"),
        ({"schedule": {"damping": math.nan}}, "schedule.damping = nan; it must be a number in"),
        ({"schedule": {"tolerance": math.inf}}, "schedule.tolerance = inf"),
        (SUBSET, 'schedule.parties_per_round = 2 is not a key of kind = "asynchronous" (sync'),
        ({"seed": -1}, "seed = -1; it must be a whole number in [0, 4294967295]"),
        ({"seed": 2**32}, "seed = 4294967296; it must be a whole number in [0, 4294967295]"),
        ({"evaluate": {"draws": 0}}, "evaluate.draws = 0"),
        ({"model": {"kind": "numpyro"}}, "model.function is missing; name the model"),
        ({"model": {"function": "a:b"}}, 'model.function = "a:b" is not a key of kind'),
        (NO_SITES, "has no sites"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(raw, message):
    assert message in refused({**GOOD, **raw})


@pytest.mark.parametrize("raw", [{}, {"seed": 3}])
def test_privacy_has_to_be_said(raw):
    assert 'set privacy = "none" at the top' in refused(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "data is missing; add a [data] table with path = "),
        ({"data": {}}, "data is missing; add a [data] table"),
        ({"data": {"records": 300}}, "data.source is missing; name a data set"),
    ],
)
def test_the_source_of_the_records_has_to_be_said(raw, message):
    assert message in refused({"privacy": "none", **raw})


def all_refused(raw):
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    return [str(caught.value), *map(str, caught.value.also)]


def test_all_faults_are_reported_at_once():
    messages = all_refused(
        {
            "seeed": 3,
            "schedule": {"rounds": 0, "damping": 7, "tolerance": "x"},
            "partition": {"kind": "columns", "size_skew": 2.0},
            "model": {"kind": "logistic", "hidden": 3, "noise_sd": 4},
            "method": {"kind": "gradient-vi", "clip": 1.0, "step": 3, "draws": 0},
            "privacy": {"epsilonn": 3},
            "tune": {"trials": 0, "repeats": -1},
        }
    )
    expected = [
        "data is missing;",
        "seeed = 3 is not a known key; did you mean seed?",
        "privacy.epsilonn = 3 is not a known key; did you mean epsilon?",
        'partition.kind = "columns"; choose from balanced, skew, source',
        'model.noise_sd = 4 is not a key of kind = "logistic" (linear, ',
        'model.hidden = 3 is not a key of kind = "logistic" (',
        'method.clip = 1.0 is not a key of kind = "gradient-vi" (',
        'method.step = 3 is not a key of kind = "gradient-vi"; did you mean steps?',
        "method.draws = 0;",
        'schedule.tolerance = "x"; it must be a number of at least 0',
        "schedule.rounds = 0;",
        "schedule.damping = 7;",
        "tune.trials = 0;",
        "tune.repeats = -1;",
    ]
    for part in expected:
        assert sum(message.startswith(part) for message in messages) == 1, part
    assert len(messages) == len(expected), messages
    assert not any("\n" in message for message in messages)


def test_a_bad_epsilon_hides_no_other_fault():
    messages = all_refused(
        {
            **GOOD,
            "seed": -1,
            "privacy": {
                "epsilon": -1.0,
                "delta": 2.0,
                "insecure_noise_seed": -3,
                "parties": {"north": {"epsilon": 0.0}},
            },
        }
    )
    expected = [
        "privacy.delta = 2.0",
        "privacy.insecure_noise_seed = -3",
        'privacy.parties."north".epsilon = 0.0',
        "privacy.epsilon = -1.0",
        "seed = -1",
    ]
    assert [message.partition(";")[0] for message in messages] == expected


def test_a_bad_schedule_hides_no_bad_number_of_model_and_method():
    messages = all_refused(
        {
            **GOOD,
            "schedule": {"rounds": 0, "damping": 3.0, "tolerance": -1.0},
            "model": {"kind": "logistic", "prior_sd": -1.0, "prior_mean": math.inf},
            "method": {"kind": "gradient-vi", "steps": 0, "batch_size": 0, "draws": 0},
        }
    )
    expected = {
        "schedule.rounds = 0",
        "schedule.damping = 3.0",
        "schedule.tolerance = -1.0",
        "model.prior_sd = -1.0",
        "model.prior_mean = inf",
        "method.steps = 0",
        "method.batch_size = 0",
        "method.draws = 0",
    }
    assert {message.partition(";")[0] for message in messages} == expected


MADE = {
    "steps": GradientVI,
    "batch_size": GradientVI,
    "learning_rate": GradientVI,
    "draws": GradientVI,
    "step_size": NaturalVI,
    "clip": DPSGD,
    "clip_end": DPSGD,
    "noise_end": DPSGD,
    "step_end": DPSGD,
    "precision_weight": DPSGD,
    "momentum": DPSGD,
    "average_last": DPSGD,
    "max_noise": DPSGD,
    "shards": PrivateUpdate,
}


@pytest.mark.parametrize("key", MADE)
@pytest.mark.parametrize("value", [-1, 0, 1, 2])
def test_a_file_refuses_the_numbers_that_a_method_refuses(key, value):
    def refuses(make):
        try:
            make()
        except ConfigError as error:
            return str(error).partition(";")[0].removesuffix(".0")
        return None

    needed = {"clip": 1.0} if MADE[key] in (DPSGD, PrivateUpdate) else {}
    made = refuses(lambda: MADE[key](**{**needed, key: value}))
    kind = MADE[key].kind
    assert refuses(lambda: parse_config({**GOOD, "method": {"kind": kind, key: value}})) == made


def test_a_bad_column_hides_no_other_fault(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("""
privacy = "none"
outcome = "y"
positive = "1"
[data]
path = "absent.csv"
keep = ["ward"]
held_out = 2.0
[columns]
age = { low = 90.0, high = 20.0, missing = "level", reference = "old" }
smoking = { levels = ["no", "no"] }
bmi = { low = 10.0, high = 60.0, colour = "red" }
height = 3
y = { levels = ["1", " 0"], missing = "level" }
""")
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "run.toml")
    messages = [str(caught.value), *map(str, caught.value.also)]
    for part in (
        "columns.age.low = 90.0",
        'columns.age.missing = "level"',
        'columns.age.reference = "old"',
        """columns.smoking.levels = ["no", "no"]""",
        'columns.bmi.colour = "red" is not a known key',
        "columns.height = 3; it must be a table",
        "columns.y.levels = ",
        "data.held_out = 2.0",
        'data.path = "absent.csv"; there is no such file',
    ):
        assert sum(message.startswith(part) for message in messages) == 1, (part, messages)
    assert len(messages) == 9, messages


OLD = """
privacy = "none"
family = "full"
[data]
source = "file"
target = "y"
preparation = "pooled"
columns = [{ name = "age", low = 0, high = 100 }]
[partition]
kind = "column"
column = "ward"
"""


def test_keys_of_earlier_versions_are_refused_with_what_they_are_called_now(tmp_path):
    (tmp_path / "run.toml").write_text(OLD)
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "run.toml")
    messages = [str(caught.value), *map(str, caught.value.also)]
    for part in (
        'family = "full" is not a known key; did you mean posterior?',
        'data.source = "file"; leave it out',
        'data.target = "y" is not a key of source = "file"; did you mean outcome at the top of',
        'data.preparation = "pooled" is not a key of source = "file"; did you mean scaling?',
        'partition.kind = "column"; name the column in [data] instead',
    ):
        assert sum(message.startswith(part) for message in messages) == 1, (part, messages)
    columns = [message for message in messages if message.startswith("data.columns = ")]
    assert len(columns) == 1
    assert columns[0].endswith("did you mean the [columns] table?")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[model]\nkind = "logistic"\nhidden = 50', "model.hidden = 50 is not a key"),
        ("[model]\nhidden = 50", 'model.hidden = 50 is not a key of kind = "auto"'),
        (
            '[model]\nkind = "neural-network"\nprior_mean = 0.0',
            "model.prior_mean = 0.0 is not a key",
        ),
        ("[method]\nclip = 1.0", 'method.clip = 1.0 is not a key of kind = "auto"'),
        ("[model]", None),
        ('[model]\nkind = "logistic"\nprior_sd = 1.0', None),
    ],
)
def test_a_written_key_without_effect_is_refused_whatever_its_value(tmp_path, table, message):
    path = tmp_path / "run.toml"
    path.write_text(f'privacy = "none"\n[data]\nsource = "adult"\n{table}\n')
    if message is None:
        read_config(path)
        return
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_config(path)
    assert caught.value.also == ()
    path.write_text(path.read_text() + "[schedule]\nrounds = 0\n")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_config(path)
    assert [str(one).partition(" =")[0] for one in caught.value.also] == ["schedule.rounds"]


def test_mean_and_sd_are_for_the_source_that_has_them(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('privacy = "none"\n[data]\nsource = "adult"\nmean = 5.0\nsd = 1.0\n')
    with pytest.raises(
        ConfigError, match=r"data\.mean = 5\.0 is not a key .*mean has it"
    ) as caught:
        read_config(path)
    assert [str(one).partition(" is")[0] for one in caught.value.also] == ["data.sd = 1.0"]
    assert "mean = 5.0" not in resolved_toml(parse_config(GOOD))
    mean = {**GOOD, "data": {"source": "normal-mean"}}
    assert "mean = 5.0" in resolved_toml(parse_config(mean))
    path.write_text(resolved_toml(parse_config(GOOD)))
    assert read_config(path) == parse_config(GOOD)


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        ({"data": {"source": "adul"}, "partition": {"kind": "source"}}, 1),
        ({"data": {"path": "x.xls"}, "outcome": "y"}, 3),
        ({"data": {"path": "x.csv"}}, 3),
        ({"data": {"source": "adult", "records": 3, "held_out": 2}}, 2),
        ({"partition": {"kind": "skew", "parties": 0}}, 1),
        ({"partition": {"parties": 0}, "data": {"source": "synthetic-cohort", "records": 5}}, 1),
        ({"data": {"path": "x.csv"}, "outcome": "a", "columns": {"b": {"nmae": 1, "low": "x"}}}, 3),
    ],
)
def test_one_mistake_is_one_fault(raw, count):
    assert len(all_refused({**GOOD, **raw})) == count, all_refused({**GOOD, **raw})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "logistic", "hidden": 3}, 'model.hidden = 3 is not a key of kind = "logistic"'),
        ({"kind": "softmax", "topics": 3}, "its keys are prior_mean, prior_sd: choose another"),
        ({"kind": "neural-network", "prior_mean": 1.0}, "its keys are prior_sd, hidden, noise_sd"),
        ({"kind": "topics", "prior_sd": 2.0}, "its keys are topics, doc_topic_prior"),
        (
            {"kind": "numpyro", "function": "a:b", "prior_sd": 2.0},
            "its keys are function, arguments",
        ),
        ({"kind": "linear", "arguments": {"a": 1}}, "model.arguments = {a = 1} is not a key"),
        ({"kind": "linear", "max_count": 3.0}, "model.max_count = 3.0 is not a key"),
        ({"hidden": 3}, "(neural-network, belief-network have it)"),
        ({"noise_sd": 2.0}, "(linear, normal-mean, neural-network have it)"),
    ],
)
def test_a_model_key_of_another_kind_is_refused_with_those_that_apply(model, message):
    assert message in refused({**GOOD, "model": model})


def test_a_prior_has_no_effect_on_topics():
    message = refused({**GOOD, "data": {"source": "synthetic-topics"}, "model": {"prior_sd": 2.0}})
    assert message.startswith("model.prior_sd = 2.0 has no effect: data.source =")


def test_auto_takes_the_prior_for_the_model_that_follows_from_the_outcome():
    config = parse_config({**GOOD, "model": {"prior_sd": 2.0}})
    model = make_model(config, load("synthetic-cohort", records=30, parties=2))
    assert model.kind == "logistic"
    assert np.all(model.prior_sd == 2.0)


def test_the_resolved_file_has_only_keys_with_an_effect():
    text = resolved_toml(parse_config({**GOOD, "model": {"kind": "logistic", "prior_sd": 1.0}}))
    assert "prior_sd" in text
    assert not any(key in text for key in ("hidden", "topics", "noise_sd"))
    assert "hidden" not in resolved_toml(parse_config(GOOD))


def test_a_missing_file_is_a_bad_argument_and_a_folder_a_data_error(tmp_path):
    with pytest.raises(ConfigError, match=r"File not found: .*absent\.toml"):
        read_config(tmp_path / "absent.toml")
    with pytest.raises(DataError, match=r"cannot be read .* give the path of a TOML file"):
        read_config(tmp_path)


def test_bytes_that_are_no_text_are_a_data_error(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        read_config(path)


def test_bad_toml_is_refused_with_its_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('privacy = "none"\nseed = = 3\n')
    with pytest.raises(ConfigError, match=r"run\.toml: not valid TOML: .*line 2.*; fix that line"):
        read_config(path)


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'privacy = "none"\nname = "file"\n[data]\nsource = "heart"\n[schedule]\nrounds = 3\n'
    )
    return path


def test_overrides_and_seed_win_over_the_file(toml):
    sets = ("schedule.rounds=7", "name=other", "model.prior_sd=2.5", "data.source=adult")
    config = read_config(toml, sets, seed=9)
    assert (config.schedule.rounds, config.name, config.model.prior_sd) == (7, "other", 2.5)
    assert (config.data.source, config.seed) == ("adult", 9)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds", "write --set key=value"),
        ("=3", "write --set key=value"),
        ("name.x=3", "'name' is a value, not a table"),
        ("schedule.rounds=many", 'schedule.rounds = "many"; it must be a whole number'),
        ("schedule.roundz=3", "did you mean rounds?"),
    ],
)
def test_a_bad_override_is_refused(toml, override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_config(toml, (override,))


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"schedule": {"damping": {"start": 1.0, "end": 0.5, "rounds": 3}, "tolerance": 1e-7}},
        {"seed": 3, "model": {"kind": "numpyro", "function": "a.py:b", "arguments": {"groups": 3}}},
        {"method": {"kind": "gradient-vi", "steps": 3, "learning_rate": 0.1}},
        {
            "outcome": "ill",
            "positive": "yes",
            "data": {"path": "a.csv", "party": "ward", "keep": ["ward"]},
            "columns": {
                "age": {"low": 0, "high": 9},
                "ward": {"levels": ["a", "b"], "feature": False},
                "ill": {"levels": ["no", "yes"]},
            },
        },
        {"engine": {"kind": "ray", "actors": 2}, "partition": {"kind": "skew", "size_skew": 0.5}},
    ],
)
def test_the_resolved_file_reads_back_as_the_same_configuration(tmp_path, raw):
    config = parse_config({**GOOD, **raw})
    path = tmp_path / "config.toml"
    path.write_text(resolved_toml(config), encoding="utf-8")
    assert read_config(path) == config


def test_the_digest_follows_everything_but_the_name():
    base = parse_config(GOOD)
    assert config_digest(base, "x") == config_digest(parse_config({**GOOD, "name": "other"}), "x")
    changed = [
        parse_config({**GOOD, "seed": 1}),
        parse_config({**GOOD, "schedule": {"rounds": 11}}),
        parse_config({**GOOD, "model": {"prior_sd": 2.0}}),
    ]
    digests = {config_digest(config, "x") for config in (base, *changed)}
    assert len(digests) == 4
    assert config_digest(base, "y") not in digests


def test_methods_and_schedules_are_built_from_their_tables():
    config = parse_config(
        {
            **GOOD,
            "method": {"kind": "gradient-vi", "steps": 7, "batch_size": 3},
            "schedule": {
                "kind": "sequential",
                "damping": {"start": 1.0, "end": 0.5, "rounds": 3},
            },
        }
    )
    assert make_method(config) == GradientVI(steps=7, batch_size=3)
    expected = Sequential(damping=Damping(start=1.0, end=0.5, rounds=3))
    assert make_schedule(config) == expected
    assert make_method(parse_config(GOOD)) is None


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"steps": 3}, 'method.steps = 3 is not a key of kind = "auto" (natural, gradient-vi, '),
        ({"kind": "exact", "steps": 3}, 'method.steps = 3 is not a key of kind = "exact" ('),
        (
            {"kind": "natural", "draws": 3},
            "its keys are steps, step_size, dtype, sampling: choose another",
        ),
        ({"kind": "gradient-vi", "steps": 0}, "method.steps = 0"),
        ({"kind": "gradient-vi", "learning_rate": float("nan")}, "method.learning_rate = nan"),
        ({"kind": "dp-sgd", "whiten": 0.1}, "method.whiten_bound is missing"),
        ({"kind": "dp-scoring", "clip": 1.0}, "its keys are empirical_bayes: choose another"),
    ],
)
def test_a_method_option_without_meaning_is_refused(method, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_config({**GOOD, "method": method})


def test_a_bad_file_is_answered_without_the_array_libraries():
    code = (
        "import sys\nfrom tacit.run.config import parse_config\n"
        "try:\n    parse_config({'privacy': 'none', 'schedule': {'rounds': 'x'}})\n"
        "except Exception as error:\n    print(type(error).__name__)\n"
        "print('jax' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ConfigError", "False"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"outcom": "y"}, "did you mean outcome?"),
        ({"method": {"kind": "dpsgd"}}, 'method.kind = "dpsgd"; did you mean "dp-sgd"?'),
        ({"method": {"kind": "hybrid"}}, 'method.kind = "hybrid"; did you mean "dp-hybrid"?'),
        ({"model": {"kind": "bnn"}}, 'model.kind = "bnn"; did you mean "neural-network"?'),
        ({"data": {"source": "gaussian-mean"}}, 'did you mean "normal-mean"?'),
        ({"method": {"kind": "dp-sgd", "rate": 0.1}}, "did you mean sampling_rate?"),
        ({"method": {"kind": "dp-sgd", "averaged_share": 0.1}}, "did you mean average_last?"),
        ({"model": {"kind": "poisson", "largest": 9}}, "did you mean max_count?"),
        ({"privacy": {"epsilon": 1.0, "noise_seed": 1}}, "did you mean insecure_noise_seed?"),
        ({"privacy": {"epsilon": 1.0, "relation": "substitute"}}, "did you mean adjacency?"),
        ({"privacy": {"epsilon": 1.0, "adjacency": "substitute"}}, 'did you mean "replace-one"?'),
    ],
)
def test_kinds_and_keys_of_earlier_versions_are_named_as_they_are_now(raw, message):
    (told,) = all_refused({**GOOD, **raw})
    assert message in told
