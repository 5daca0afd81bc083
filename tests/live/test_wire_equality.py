"""One seed, one posterior: the same bits in one process and over the wire."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from wire_harness import (
    BINARY,
    DOCUMENTS,
    NUMBERS,
    SEVERAL,
    Fed,
    assert_identity,
    assert_same_bits,
    run_all,
    shared_model,
)

from tacit.engines.execute import carry_out
from tacit.live.config import read_agreed
from tacit.live.plan import server_plan
from tacit.methods.natural import chains
from tacit.methods.scores.method import LEAST_ROUNDS
from tacit.plan.plan import first_factors
from tacit.run.run import prepare

pytestmark = [pytest.mark.full_optimisation, pytest.mark.usefixtures("shared_models")]
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("hospital-1", "hospital-2", "hospital-3")
MIX = ("json", "cbor", "msgpack")
COHORT = {"source": "synthetic-cohort", "records": 60}
SEEDED = {"epsilon": 4.0, "delta": 1e-4, "insecure_noise_seed": 5}
TWO = {"a": {"low": -3.0, "high": 3.0}, "b": {"low": -3.0, "high": 3.0}}
SECURE = {**SEEDED, "aggregation": "secure"}
PRIVATE = {**BINARY, "model": {"kind": "logistic"}, "records": 72}

OWN_MODELS = """
import numpyro
import numpyro.distributions as dist


def chance(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def spread(y):
    middle = numpyro.sample("middle", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(middle, scale), obs=y)
"""
MODELS = {
    "logistic": {
        "privacy": "none",
        "data": COHORT,
        "model": {"kind": "logistic"},
        "method": {"kind": "natural", "steps": 3},
    },
    "gaussian mean": {
        "privacy": "none",
        **NUMBERS,
        "model": {"kind": "normal-mean"},
        "method": {"kind": "exact"},
    },
    "wrong noise": {
        "privacy": "none",
        "outcome": "a",
        "columns": {
            "a": {"low": -3.0, "high": 3.0, "center": 0.0, "scale": 1.0},
            "b": {"low": -3.0, "high": 3.0},
            "y": {"levels": ["no", "yes"], "feature": False},
        },
        "model": {"kind": "linear", "noise_sd": 0.1},
        "method": {"kind": "natural"},
    },
    "gradient": {
        "privacy": "none",
        **BINARY,
        "model": {"kind": "logistic"},
        "method": {"kind": "gradient-vi", "steps": 5, "batch_size": 8},
        "posterior": "mean-field",
    },
    "site prior": {
        "privacy": "none",
        "data": {**COHORT, "records": 40, "keep": ["site"]},
        "model": {
            "kind": "numpyro",
            "function": "hierarchy.py:readmission",
            "arguments": {"sites": len(NAMES)},
        },
        "method": {"kind": "gradient-vi", "steps": 4},
    },
    "private": {**PRIVATE, "privacy": SEEDED, "method": {"kind": "dp-sgd"}},
    "private, shared noise": {
        **PRIVATE,
        "privacy": {**SEEDED, "aggregation": "trusted"},
        "method": {"kind": "dp-updates"},
    },
    "private, with a memory": {
        **PRIVATE,
        "privacy": {**SEEDED, "aggregation": "trusted", "unit": "party"},
        "method": {"kind": "dp-updates", "form": "log-precision", "shards": 1, "clip": 0.1},
    },
    "private, in stages": {
        **NUMBERS,
        "model": {"kind": "normal-mean"},
        "records": 72,
        "privacy": SEEDED,
        "method": {"kind": "dp-statistics", "one_shot": True},
    },
    "topics": {
        "privacy": "none",
        "data": DOCUMENTS,
        "model": {"kind": "topics", "topics": 3},
    },
    "private topics": {
        "data": DOCUMENTS,
        "model": {"kind": "topics", "topics": 3, "document_words": 20},
        "records": 72,
        "privacy": SEEDED,
        "method": {"kind": "dp-statistics", "sampling_rate": 0.5},
    },
    "private, secure steps": {
        **PRIVATE,
        "privacy": SECURE,
        "method": {"kind": "dp-sgd", "adaptive": 0.5},
    },
    "private scoring": {**PRIVATE, "privacy": SEEDED, "method": {"kind": "dp-scoring"}},
    "private scoring of levels": {
        **SEVERAL,
        "model": {"kind": "softmax"},
        "records": 72,
        "privacy": {**SEEDED, "aggregation": "trusted"},
        "method": {"kind": "dp-scoring"},
    },
    "private scores": {
        **BINARY,
        "model": {"kind": "numpyro", "function": "own.py:chance"},
        "records": 72,
        "privacy": {**SEEDED, "epsilon": 8.0},
        "method": {"kind": "dp-scores"},
    },
    "secure scoring": {
        **PRIVATE,
        "privacy": SECURE,
        "method": {"kind": "dp-scoring"},
    },
    "secure scores": {
        **NUMBERS,
        "model": {"kind": "numpyro", "function": "own.py:spread"},
        "records": 72,
        "privacy": {**SECURE, "epsilon": 8.0},
        "method": {"kind": "dp-scores"},
    },
    "secure updates": {**PRIVATE, "privacy": SECURE, "method": {"kind": "dp-updates"}},
    "secure, with a memory": {
        **PRIVATE,
        "privacy": {**SECURE, "unit": "party"},
        "method": {"kind": "dp-updates", "form": "log-precision", "shards": 1, "clip": 0.1},
    },
    "secure statistics": {
        **NUMBERS,
        "model": {"kind": "normal-mean"},
        "records": 72,
        "privacy": SECURE,
        "method": {"kind": "dp-statistics"},
    },
    "secure topics": {
        "data": DOCUMENTS,
        "model": {"kind": "topics", "topics": 3, "document_words": 20},
        "records": 72,
        "privacy": SECURE,
        "method": {"kind": "dp-statistics", "sampling_rate": 0.5},
    },
    "private levels": {
        **SEVERAL,
        "model": {"kind": "softmax"},
        "records": 72,
        "privacy": SEEDED,
        "method": {"kind": "dp-sgd"},
    },
    "mixture": {
        "privacy": "none",
        "columns": TWO,
        "model": {"kind": "mixture", "components": 2},
    },
    "secure mixture": {
        "columns": TWO,
        "model": {"kind": "mixture", "components": 2},
        "records": 72,
        "privacy": SECURE,
    },
    "private belief network": {
        "columns": {
            "y": {"levels": ["no", "yes"], "reference": "no"},
            "a": {"low": -3.0, "high": 3.0, "feature": False},
        },
        "model": {"kind": "belief-network", "hidden": 2},
        "records": 72,
        "privacy": {**SEEDED, "aggregation": "trusted"},
    },
    "private, whitened": {
        **PRIVATE,
        "privacy": SEEDED,
        "method": {"kind": "dp-sgd", "whiten": 0.2, "whiten_bound": 2.0},
    },
}


def federation(folder, what, kind, encodings=MIX, rounds=3, **changes):
    folder.mkdir(exist_ok=True)
    shutil.copy(EXAMPLES / "numpyro_hierarchy.py", folder / "hierarchy.py")
    (folder / "own.py").write_text(OWN_MODELS)
    schedule = {"kind": kind, "rounds": rounds}
    agreed = {**MODELS[what], "schedule": schedule, **changes}
    fed = Fed(folder, NAMES, agreed, encodings=encodings)
    fed.approve()
    return fed


def assert_same_plan(fed, plan):
    """What the server decides without records is what one process decides with all of them."""
    live = server_plan(fed.server.agreed)
    assert live.method == plan.method, "also total_units and parties of a private method"
    assert live.schedule == plan.schedule
    assert type(live.family) is type(plan.family)
    assert live.settled.keys() == plan.settled.keys()
    for name, settled in plan.settled.items():
        assert live.settled[name].noise_sd == settled.noise_sd
        assert live.settled[name].shares == settled.shares
    assert_same_bits(live.rules.prior, plan.rules.prior)
    assert live.rules.parties == plan.rules.parties
    ours, theirs = first_factors(live), first_factors(plan)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert_same_bits(ours[name], theirs[name])


def assert_equal(fed, plan, results):
    outcome = carry_out(plan)
    state = fed.state()
    assert_same_bits(state.result, outcome.state.result)
    assert_same_bits(fed.natural(), outcome.posterior.natural)
    assert (state.round, state.exchanges) == (outcome.state.round, outcome.state.exchanges)
    for name in fed.names:
        assert_same_bits(fed.natural(f"state-{name}"), outcome.posterior.natural)
        ours, theirs = state.factors[name], outcome.state.factors[name]
        assert (ours.version, ours.visits) == (theirs.version, theirs.visits)
        assert_same_bits(ours.natural, theirs.natural)
    assert state.losses == outcome.state.losses
    assert all(one.result.posterior == results[0].posterior for one in results[1:])
    assert [one.evaluation.answers for one in results[1:]] == [
        sum(
            name not in plan.settled or bool(plan.settled[name].events_at(visit))
            for visit in range(state.factors[name].visits)
        )
        for name in fed.names
    ]


CASES = [
    ("logistic", "sequential", MIX),
    ("logistic", "synchronous", MIX),
    ("gaussian mean", "sequential", MIX),
    *(("gaussian mean", "synchronous", each) for each in (("json",), ("cbor",), ("msgpack",), MIX)),
    ("gradient", "sequential", ("json",)),
    ("gradient", "synchronous", MIX),
    ("site prior", "sequential", MIX),
    ("site prior", "synchronous", MIX),
    ("private", "sequential", MIX),
    ("private", "synchronous", ("json",)),
    ("private, shared noise", "synchronous", MIX),
    ("private, with a memory", "synchronous", MIX),
    ("private, in stages", "synchronous", MIX),
    ("topics", "sequential", ("json",)),
    ("private topics", "synchronous", MIX),
    ("private, secure steps", "synchronous", MIX),
    ("private, whitened", "synchronous", MIX),
    ("private scoring", "synchronous", MIX),
    ("private scoring of levels", "synchronous", MIX),
    ("private levels", "sequential", ("json",)),
    ("private scores", "synchronous", MIX),
    ("mixture", "sequential", MIX),
    ("secure mixture", "synchronous", MIX),
    ("private belief network", "synchronous", MIX),
    ("secure scoring", "synchronous", MIX),
    ("secure scores", "synchronous", MIX),
    ("secure updates", "synchronous", MIX),
    ("secure, with a memory", "synchronous", MIX),
    ("secure statistics", "synchronous", MIX),
    ("secure topics", "synchronous", MIX),
]


@pytest.mark.parametrize(
    ("what", "kind", "encodings"), CASES, ids=[f"{w}-{k}-{'+'.join(e)}" for w, k, e in CASES]
)
def test_the_wire_changes_no_bit(tmp_path, what, kind, encodings):
    rounds = LEAST_ROUNDS if "scores" in what else 7 if "mixture" in what else 3
    fed = federation(tmp_path / "fed", what, kind, encodings, rounds)
    plan = fed.alone()
    assert_same_plan(fed, plan)
    results = asyncio.run(run_all(fed))
    assert_equal(fed, plan, results)
    told = {line["party"]: line["encoding"] for line in fed.journal() if line["event"] == "joined"}
    assert set(told.values()) == set(encodings)


def test_chains_over_the_wire_are_those_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(chains, "WARM_UP", 4)
    monkeypatch.setattr(chains, "RESCALED", (1, 2))
    monkeypatch.setattr(chains, "MOST_EXCHANGES", 40)
    monkeypatch.setattr("tacit.methods.natural.more.is_trusted", lambda _: False)
    sampled = {"method": {"kind": "natural", "sampling": True}}
    fed = federation(tmp_path / "fed", "site prior", "synchronous", MIX, rounds=900, **sampled)
    plan = fed.alone()
    results = asyncio.run(run_all(fed))
    assert_equal(fed, plan, results)
    assert "sampled.r_hat" in fed.state().memory


def test_a_misfit_is_seen_over_the_wire(tmp_path):
    fed = federation(tmp_path / "fed", "wrong noise", "synchronous", rounds=20)
    plan = fed.alone()
    results = asyncio.run(run_all(fed))
    assert_equal(fed, plan, results)
    (text,) = [one.text for one in results[0].cautions if one.kind == "misfit"]
    assert "leave noise_sd out" in text
    assert carry_out(plan).verdict.misfit in text


def test_a_run_of_the_same_file_in_one_process_says_the_same(tmp_path, monkeypatch):
    """Not through the parties' own loading: `tacit run` of what was agreed on."""
    monkeypatch.setattr("tacit.run.run.make_model", shared_model)
    fed = federation(tmp_path / "fed", "logistic", "synchronous", rounds=2)
    results = asyncio.run(run_all(fed))
    config = read_agreed(fed.base / "federation.toml").federation.as_config()
    engine = msgspec.structs.replace(config.engine, batch_parties=False)
    plan = prepare(msgspec.structs.replace(config, engine=engine)).plan
    assert tuple(plan.parties) == NAMES
    assert_equal(fed, plan, results)


def test_parties_of_a_round_are_the_same(tmp_path):
    changes = {"schedule": {"kind": "synchronous", "rounds": 4, "parties_per_round": 2}}
    fed = federation(tmp_path / "fed", "gaussian mean", "synchronous", **changes)
    results = asyncio.run(run_all(fed))
    assert_equal(fed, fed.alone(), results)


@pytest.mark.parametrize("what", ["gaussian mean", "site prior", "private"])
def test_an_asynchronous_run_arrives(tmp_path, what):
    """In whatever order answers come, q is the prior times the factors."""
    fed = federation(tmp_path / "fed", what, "asynchronous", rounds=3)
    results = asyncio.run(run_all(fed))
    state = fed.state()
    plan = server_plan(fed.server.agreed)
    assert_identity(plan, state)
    assert state.finished == "rounds"
    assert results[0].finished == "rounds"
    if plan.settled:
        assert max(factor.visits for factor in state.factors.values()) <= 3
    for name in NAMES:
        assert_same_bits(fed.natural(f"state-{name}"), state.result)
    if what == "gaussian mean":
        alone = carry_out(fed.alone()).posterior
        np.testing.assert_allclose(results[0].posterior.mean, alone.mean, rtol=0.1)
