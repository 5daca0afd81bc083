"""Whole parties: the forms of `PrivateUpdate`, held against the simulation of the study."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.methods import PrivateUpdate
from tacit.methods.update.forms import FORMS, own_factor, remembered
from tacit.models import LinearRegression
from tacit.plan.plan import make_plan
from tacit.privacy.events import GaussianEvent, Poisson
from tacit.privacy.settings import Privacy
from tacit.pvi import divide
from tacit.server.checkpoint import Checkpoint
from tacit.server.schedule import Sequential, Synchronous
from tacit_studies import meng_forms
from tacit_studies.meng_kernel import (
    Setting,
    make_records,
    natural_prior,
    noise_keys,
    settings_of,
    simulate,
    whole_statistics,
)

PARTIES, RECORDS, NOISE_SD = 6, 10, 0.7
NOISELESS = 1e-9


@pytest.fixture(scope="module")
def records():
    return make_records(3, 1, parties=PARTIES, records=RECORDS, noise_sd=NOISE_SD)


@pytest.fixture(scope="module")
def parties(records):
    x, y = np.asarray(records.x)[0], np.asarray(records.y)[0]
    return {f"p{m}": {"x": x[m][:, None], "y": y[m]} for m in range(PARTIES)}


def plan_of(parties, method, *, rounds=30, damping=0.5, schedule=None, **privacy) -> Any:
    asked = {"noise_multiplier": 2.0, "unit": "party", "adjacency": "add-or-remove-one"}
    asked |= {"aggregation": "trusted", "insecure_noise_seed": 1, "accountant": "rdp"} | privacy
    return make_plan(
        LinearRegression(("x",), noise_sd=NOISE_SD, prior_sd=5.0),
        parties,
        method=method,
        schedule=schedule or Synchronous(rounds=rounds, damping=damping),
        privacy=Privacy(**asked),
    )


def one(form, clip=2.0, **more):
    return PrivateUpdate(shards=1, form=form, clip=clip, dtype="float64", **more)


def exact(parties):
    x = np.concatenate([p["x"][:, 0] for p in parties.values()])
    y = np.concatenate([p["y"] for p in parties.values()])
    return np.array([x @ x, x @ y]) / NOISE_SD**2 + np.array([1 / 25, 0.0])


def eta(q):
    return np.array([-2.0 * q["quadratic"][0], q["linear"][0]])


@pytest.mark.parametrize("aggregation", ["trusted", "server"])
@pytest.mark.parametrize(
    ("form", "simulated", "clip"),
    [
        ("server-factor", "server_factor", 3.0),
        ("log-precision", "log_precision", 0.3),
        ("roll-back", "equal_parts", 3.0),
    ],
)
def test_without_noise_a_run_is_the_simulation(
    parties, records, form, simulated, clip, aggregation
):
    """Round by round, with a clip that bites: the same map, factors and step."""
    if aggregation == "server" and simulated == "equal_parts":
        pytest.skip("a server that is sent exact updates keeps each party's own")
    plan = plan_of(parties, one(form, clip), noise_multiplier=NOISELESS, aggregation=aggregation)
    found: list[np.ndarray] = []
    carry_out(plan, observe=lambda state, _log: found.append(eta(state.q)))
    setting = settings_of(Setting(clip=clip * (1 - 1e-6), rate=0.5, noise=NOISELESS))
    step = getattr(meng_forms, simulated)
    trace = simulate(
        step, whole_statistics, records, noise_keys(0, 1), setting, natural_prior(), rounds=30
    )
    np.testing.assert_allclose(found, np.asarray(trace.q)[0, 0], rtol=1e-6)


@pytest.mark.parametrize("form", ["roll-back", "server-factor", "log-precision", "even"])
def test_without_noise_every_form_reaches_the_exact_posterior(parties, form):
    clip = 0.3 if form == "log-precision" else 1e3
    plan = plan_of(parties, one(form, clip), rounds=150, noise_multiplier=1e-10)
    np.testing.assert_allclose(eta(carry_out(plan).state.q), exact(parties), rtol=1e-4)


@pytest.mark.parametrize("form", ["server-factor", "log-precision"])
def test_a_small_clip_costs_rounds_and_no_bias_where_a_party_keeps_its_factor(parties, form):
    clip = 0.05 if form == "log-precision" else 1.0
    plan = plan_of(parties, one(form, clip), rounds=600, noise_multiplier=1e-10)
    np.testing.assert_allclose(eta(carry_out(plan).state.q), exact(parties), rtol=1e-4)


def test_an_equal_part_of_q_is_biased_by_a_clip_smaller_than_the_parties_differences(parties):
    plan = plan_of(parties, one("roll-back", 1.0), rounds=600, noise_multiplier=1e-10)
    assert abs(eta(carry_out(plan).state.q)[1] / exact(parties)[1] - 1) > 0.01


def test_a_round_that_makes_q_improper_is_void(parties):
    """q, factors and what parties keep are as they were; the round was paid for all the same."""
    plan = plan_of(
        parties, one("server-factor", 50.0), rounds=12, damping=1.0, noise_multiplier=3.0
    )
    seen: list[Any] = []
    out = carry_out(plan, observe=lambda state, log: seen.append((state, log)))
    void = [index for index, (_, log) in enumerate(seen) if log[0]["event"] == "refused"]
    assert 0 < len(void) < 12
    assert out.state.round == 12
    for index in void:
        before = seen[index - 1][0] if index else None
        if before is not None:
            assert seen[index][0].q is before.q
            assert seen[index][0].caution == 1.0


def test_a_copy_of_a_checkpoint_draws_the_same_noise(parties, tmp_path):
    """With exact updates in the ledger, another noise on the same sum would be a second release."""
    plan = plan_of(
        parties, one("roll-back"), rounds=5, aggregation="server", insecure_noise_seed=None
    )
    path, copy = tmp_path / "state.sqlite", tmp_path / "copy.sqlite"

    def observe(state, _log):
        if state.round == 2 and not copy.exists():
            for part in ("", "-wal", "-shm"):
                if Path(f"{path}{part}").exists():
                    shutil.copy(f"{path}{part}", f"{copy}{part}")

    whole = carry_out(plan, checkpoint=Checkpoint(path, digest="it"), observe=observe).state
    again = carry_out(plan, checkpoint=Checkpoint(copy, digest="it")).state
    np.testing.assert_array_equal(eta(again.q), eta(whole.q))
    other = carry_out(plan, checkpoint=Checkpoint(tmp_path / "other.sqlite", digest="it")).state
    assert eta(other.q)[0] != eta(whole.q)[0], "another run has another noise"


def test_a_void_round_of_noisy_updates_names_nobody(parties):
    plan = plan_of(
        parties, one("server-factor", 50.0), rounds=12, damping=1.0, noise_multiplier=3.0
    )
    lines = [line for line in carry_out(plan).log if line["event"] == "refused"]
    assert lines
    assert all("improper_alone" not in line for line in lines)


def test_a_void_round_is_taken_back_at_the_party():
    """The same q twice: the party's factor is without what it said in between."""
    q = {"linear": jnp.array([1.0]), "quadratic": jnp.array([-0.5])}
    factor = {"linear": jnp.array([0.2]), "quadratic": jnp.array([-0.1])}
    last = {"linear": jnp.array([0.3]), "quadratic": jnp.array([-0.2])}
    memory = remembered(factor, last, q)
    assert own_factor(memory, q)["linear"] == 0.2
    assert own_factor(memory, q | {"linear": jnp.array([1.1])})["linear"] == 0.5


@pytest.mark.parametrize("form", ["server-factor", "log-precision", "roll-back"])
@pytest.mark.parametrize("aggregation", ["trusted", "server"])
def test_the_noise_in_q_has_the_law_that_was_told(parties, form, aggregation):
    """400 rounds of small steps: sd within 4 standard errors of the claim; 1.3 times is caught.

    Every answer is longer than the clip, so that the sum hardly changes from round to round.
    """
    clip, rounds, z = 1e-4, 400, 2.0
    plan = plan_of(
        parties, one(form, clip), rounds=rounds, damping=1.0, noise_multiplier=z,
        aggregation=aggregation,
    )  # fmt: skip
    seen: list[Any] = [plan.model.prior(plan.family)]
    carry_out(plan, observe=lambda state, _log: seen.append(state.q))
    coordinates = FORMS[form](1.0).coordinates
    moves = [coordinates(a, divide(b, a)) for a, b in pairwise(seen)]
    for name in ("score", "precision"):
        spread = np.std([move[name][0] for move in moves], ddof=1) / (z * clip)
        error = 4 / np.sqrt(2 * rounds)
        assert abs(spread - 1) < error, name
        assert abs(1.3 * spread - 1) > error, "a wrong scale is caught"


def test_now_and_then_is_what_is_accounted(parties):
    plan = plan_of(parties, one("log-precision", 0.1, sampling_rate=0.5))
    event = plan.settled["p0"].events_at(0)[0]
    event = msgspec.structs.replace(event, lattice=None)
    assert event == GaussianEvent(clip=0.1, noise_sd=0.2, sampling=Poisson(rate=0.5))
    always = plan_of(parties, one("log-precision", 0.1))
    assert plan.guarantee.epsilon < 0.7 * always.guarantee.epsilon
    assert carry_out(plan).state.finished == "rounds"


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        (one("log-precision"), {"unit": "record"}, "for whole parties"),
        (one(None, sampling_rate=0.5), {"unit": "record"}, "for whole parties"),
        (one(None), {"unit": "record", "aggregation": "server"}, "unit = 'party'"),
        (
            one("log-precision"),
            {"schedule": Synchronous(rounds=3, parties_per_round=3)},
            "all parties in every round",
        ),
        (
            one("log-precision"),
            {"schedule": Sequential(rounds=3), "aggregation": "plain"},
            "all parties in every round",
        ),
        (one(None), {"schedule": Sequential(rounds=3), "aggregation": "server"}, "'synchronous'"),
        *(
            (
                one(None, noise_end=2.0),
                {"schedule": Synchronous(rounds=40, parties_per_round=k), "aggregation": how},
                "may have too little noise",
            )
            for k, how in ((3, "trusted"), (3, "server"), (1, "server"))
        ),
    ],
)
def test_what_would_be_wrong_is_refused(parties, method, changes, words):
    with pytest.raises(ConfigError, match=words):
        plan_of(parties, method, **changes)


def test_a_rate_without_a_meaning_is_refused():
    with pytest.raises(ConfigError, match=r"method\.sampling_rate = 0"):
        PrivateUpdate(sampling_rate=0.0)


def test_a_subset_of_parties_is_charged_by_its_visits(parties):
    subset = Synchronous(rounds=10, parties_per_round=3, damping=0.5)
    plan = plan_of(parties, one("roll-back"), schedule=subset)
    assert sum(one.visits for one in plan.settled.values()) == 30
    assert plan.settled["p0"].shares == 3
    assert carry_out(plan).state.finished == "rounds"
