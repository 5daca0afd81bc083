"""A private run: paid for before it is computed, repeatable if seeded, safe against being killed.

TACIT_KILLS=200 kills the run that often; the default is small.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from json_results import run

import tacit.party.compute as party_side
from tacit.cli.ledger import budget_command
from tacit.errors import ConfigError, DataError, PrivacyBudgetError
from tacit.party.charge import Charging
from tacit.plan.plan import first_factors
from tacit.privacy.ledger.ledger import Ledger
from tacit.run.config import config_digest, parse_config, resolved_toml
from tacit.run.directory import checkpoint_path
from tacit.run.ledger import open_charging, set_own_budgets
from tacit.run.run import fingerprint, prepare
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Request, decode_reply
from tacit.server.state import initial_state, open_requests
from tacit.server.step import begin, step_together

KILLS = int(os.environ.get("TACIT_KILLS", "6"))
PARTIES, ROUNDS = 3, 4
SEEDED = {
    "name": "private",
    "seed": 3,
    "privacy": {"epsilon": 2.0, "delta": 1e-4, "insecure_noise_seed": 7},
    "data": {"source": "synthetic-cohort", "records": 120, "held_out": 0.0},
    "partition": {"parties": PARTIES},
    "method": {"kind": "dp-sgd"},
    "schedule": {"rounds": ROUNDS},
    "evaluate": {"draws": 10},
}
SECRET = {**SEEDED, "privacy": {"epsilon": 2.0, "delta": 1e-4}}


def config_with(raw, **changes):
    return parse_config({**raw, **changes})


def allow(path, config, epsilon=2.0 * (1.0 + 1e-6)):
    """As the operator does: tacit ledger budget CONFIG.toml."""
    file = path.with_name("config.toml")
    file.write_text(resolved_toml(config))
    budget_command(path, str(file), epsilon, 1e-4, None, None, reason="test", raising=False)
    with Ledger(path) as ledger:
        return ledger.datasets()


def rows(path, kind):
    with Ledger(path) as ledger:
        return [row for row in ledger.entries() if row.kind == kind]


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "seeded"
    return out, run(parse_config(SEEDED), out)


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    config = parse_config(SECRET)
    found = allow(folder / "ledger.sqlite", config)
    result = run(config, folder / "secret", ledger=folder / "ledger.sqlite")
    return folder, result, found


# What a result says.


def test_the_result_says_what_is_guaranteed(secret):
    folder, result, _ = secret
    privacy = result["privacy"]
    assert privacy["private"] is True
    assert privacy["statement"].startswith("Differential privacy: ε = 2, δ = 0.0001 per record")
    assert privacy["guarantee"] == {
        "epsilon": pytest.approx(2.0, rel=1e-3),
        "delta": 1e-4,
        "unit": "record",
        "adjacency": "replace-one",
        "trust": "No trusted server: each party adds its own noise",
        "caveat": None,
    }
    assert privacy["guarantee"]["epsilon"] <= 2.0
    assert (privacy["accountant"], privacy["aggregation"]) == ("pld", "plain")
    assert len(privacy["parties"]) == PARTIES
    for party in privacy["parties"]:
        assert (party["answers"], party["releases"]) == (ROUNDS, ROUNDS)
        assert party["noise_sd"] == pytest.approx(party["noise_multiplier"] * party["clip"])
        assert party["epsilon"] <= 2.0
    book = privacy["ledger"]
    assert book["path"] == str(folder / "ledger.sqlite")
    assert book["epsilon_spent"] == pytest.approx(privacy["guarantee"]["epsilon"], rel=1e-6)
    with Ledger(book["path"]) as ledger:
        assert ledger.receipt() == book["receipt"]
    shared = json.loads((folder / "secret" / "public" / "result.json").read_text())
    assert shared["privacy"] == {key: value for key, value in privacy.items() if key != "ledger"}
    assert shared["posterior"] == result["posterior"]
    kept = json.loads((folder / "secret" / "private" / "evaluation.json").read_text())
    assert kept["privacy"] == {"ledger": book}
    assert not (folder / "secret" / "ledger.sqlite").exists()


def test_a_seeded_run_says_that_it_is_not_private(seeded):
    out, result = seeded
    privacy = result["privacy"]
    assert privacy["private"] is False
    assert privacy["statement"].startswith("Not private")
    assert "seed" in privacy["guarantee"]["caveat"]
    assert privacy["ledger"]["path"] == str(out / "private" / "ledger.sqlite"), (
        "a ledger of its own"
    )
    assert len(rows(out / "private" / "ledger.sqlite", "charge")) == PARTIES * ROUNDS
    assert privacy["ledger"]["epsilon_spent"] <= 2.0 * (1 + 1e-8)


def test_what_nobody_has_paid_for_is_withheld(seeded):
    out, result = seeded
    assert result["metrics"]["training"] is None
    assert all(party["positive_fraction"] is None for party in result["parties"])
    lines = [
        json.loads(line) for line in (out / "public" / "events.jsonl").read_text().splitlines()
    ]
    rounds = [line for line in lines if line["event"] == "round"]
    assert len(rounds) == ROUNDS
    assert all(line["negative_elbo"] is None for line in rounds)
    assert "kl_to_exact" not in result


# Charge, then speak.


def test_the_ledger_has_one_charge_and_one_reply_a_request(secret):
    folder, result, found = secret
    charges, replies = (rows(folder / "ledger.sqlite", kind) for kind in ("charge", "reply"))
    assert len(charges) == len(replies) == PARTIES * ROUNDS == result["exchanges"]
    assert {row.run for row in charges} == {result["privacy"]["ledger"]["run"]}
    assert {row.dataset for row in charges} == {str(dataset) for dataset in found}
    assert all(row.attempt == 1 and row.state == "answered" for row in charges)


def test_no_record_is_computed_with_before_it_is_charged(tmp_path, monkeypatch):
    config, path, out = parse_config(SECRET), tmp_path / "ledger.sqlite", tmp_path / "out"
    allow(path, config)
    original, rehearsed = party_side.answer_many, []

    def fail(agreement, stack, *others):
        if not any(np.any(column) for column in stack.values()):
            assert rows(path, "charge") == [], "rehearsed before anything is charged"
            rehearsed.append(others)
            return original(agreement, stack, *others)
        assert len(rows(path, "charge")) == PARTIES
        raise RuntimeError("the machine catches fire")

    monkeypatch.setattr(party_side, "answer_many", fail)
    with pytest.raises(RuntimeError, match="catches fire"):
        run(config, out, ledger=path)
    assert rehearsed
    charges = rows(path, "charge")
    assert [row.state for row in charges] == ["charged"] * PARTIES
    assert rows(path, "reply") == []
    assert not (out / "public" / "result.json").exists()
    assert not (out / "public" / "posterior.npz").exists()
    with checkpoint_of(config, out, path) as state:
        assert state.exchanges == 0


class checkpoint_of:  # noqa: N801 - reads as a function
    """The server's state in a run directory; None before the first."""

    def __init__(self, config, out, ledger):
        with Ledger(ledger) as book:
            key = book.derived_key("checkpoint")
        digest = config_digest(config, fingerprint(prepare(config).federation, key))
        self.checkpoint = Checkpoint(checkpoint_path(out), digest=digest)

    def __enter__(self) -> Any:
        saved = self.checkpoint.load()
        return saved[0] if saved else None

    def __exit__(self, *_):
        self.checkpoint.close()


def test_a_run_without_a_budget_is_refused_with_what_to_do(tmp_path):
    config, out = parse_config(SECRET), tmp_path / "out"
    with pytest.raises(
        PrivacyBudgetError, match=r"does not exist.*tacit ledger budget CONFIG.toml"
    ):
        run(config, out, ledger=tmp_path / "ledger.sqlite")
    Ledger(tmp_path / "ledger.sqlite", create=True).close()
    with pytest.raises(PrivacyBudgetError, match="tacit ledger budget"):
        run(config, out, ledger=tmp_path / "ledger.sqlite")
    assert not out.exists()


def test_a_second_run_is_refused_before_a_directory_is_made(secret, tmp_path):
    folder, _, _ = secret
    before = (folder / "ledger.sqlite").read_bytes()
    with pytest.raises(
        PrivacyBudgetError, match=r"party 'party-1': privacy budget exceeded.* > budget 2"
    ):
        run(parse_config(SECRET), tmp_path / "again", ledger=folder / "ledger.sqlite")
    assert not (tmp_path / "again").exists()
    assert (folder / "ledger.sqlite").read_bytes() == before


def test_a_run_that_counts_does_not_allow_itself_anything(tmp_path):
    """A ledger inside its own directory is for a seeded run: this one would set its own budget."""
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="would be overwritten with it"):
        run(parse_config(SECRET), out, ledger=out / "private" / "ledger.sqlite")
    assert not out.exists()


def test_a_simulation_and_a_ledger_that_counts_stay_apart(tmp_path):
    config = parse_config(SEEDED)
    with pytest.raises(ConfigError, match="charged only in the run directory"):
        run(config, tmp_path / "a", ledger=tmp_path / "ledger.sqlite")
    run(config, tmp_path / "b")
    for resume in (False, True):
        place = tmp_path / ("b" if resume else "c")
        with pytest.raises((ConfigError, PrivacyBudgetError)):
            run(
                parse_config(SECRET), place,
                ledger=tmp_path / "b" / "private" / "ledger.sqlite", resume=resume,
            )  # fmt: skip


def test_overwriting_a_run_does_not_forget_what_it_spent(secret):
    folder, result, _ = secret
    options = {"ledger": folder / "ledger.sqlite", "overwrite": True}
    with pytest.raises(PrivacyBudgetError, match="> budget 2"):
        run(parse_config(SECRET), folder / "secret", **options)
    kept = json.loads((folder / "secret" / "public" / "result.json").read_text())
    assert kept["posterior"] == result["posterior"], "a refused run overwrites nothing"


def test_of_two_runs_that_both_looked_in_time_one_is_refused_later(secret, tmp_path):
    """The second runs to its end after the first has found room and before it has charged."""
    results = []
    config, path = parse_config(SECRET), tmp_path / "ledger.sqlite"
    found = allow(path, config)

    def meanwhile(_prepared):
        results.append(run(config, tmp_path / "second", ledger=path))

    with pytest.raises(PrivacyBudgetError, match="privacy budget"):
        run(config, tmp_path / "first", ledger=path, observe=meanwhile)
    assert (tmp_path / "second" / "public" / "result.json").exists()
    assert not (tmp_path / "first" / "public" / "result.json").exists()
    with Ledger(path) as ledger:
        for dataset in found:
            spent: Any = ledger.spent(dataset)
            assert spent.epsilon <= 2.0 * (1 + 1e-6)
            assert spent.charges == ROUNDS
    # The same configuration again, with other noise.
    gap = np.subtract(results[0]["posterior"]["mean"], secret[1]["posterior"]["mean"])
    assert np.all(np.abs(gap) > 1e-6)


# Repeatable if seeded.


def test_a_seeded_run_is_repeatable_to_the_last_bit(seeded, tmp_path):
    out, result = seeded
    again = run(parse_config(SEEDED), tmp_path / "again")
    assert again["posterior"] == result["posterior"]
    name = Path("public", "posterior.npz")
    assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()
    bodies = [
        stored(out / "private" / "ledger.sqlite"),
        stored(tmp_path / "again" / "private" / "ledger.sqlite"),
    ]
    first, second = ({request: body for (_, request), body in one.items()} for one in bodies)
    assert first == second
    assert len(first) == PARTIES * ROUNDS


def test_parties_that_answer_alone_say_the_same(seeded, tmp_path):
    alone = run(config_with(SEEDED, engine={"batch_parties": False}), tmp_path / "alone")
    for part in ("mean", "sd"):
        np.testing.assert_allclose(
            alone["posterior"][part], seeded[1]["posterior"][part], rtol=1e-4, atol=1e-5
        )


# Killed and resumed.


def stored(path):
    """(run, request) -> the stored reply, for all that the ledger has heard of."""
    with Ledger(path) as ledger:
        places = [(row.run, row.request) for row in ledger.entries() if row.kind == "charge"]
        found = zip(places, ledger.recall_many(places), strict=True)
        return {place: body for place, body in found if body is not None}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    program = [sys.executable, str(Path(__file__).with_name("private_worker.py"))]
    with (folder / "stderr").open("w") as log:
        process: Any = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip

        def ask(command):
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, (folder / "stderr").read_text()
            return json.loads(answer)

        yield ask
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def test_a_killed_run_never_speaks_unpaid_nor_twice(worker, tmp_path):
    """Killed again and again at random moments, then carried through and replayed."""
    raw = {**SECRET, "privacy": {"noise_multiplier": 60.0, "delta": 1e-4}}
    raw["schedule"] = {"rounds": 40 + 2 * KILLS}
    config, path, out = parse_config(raw), tmp_path / "ledger.sqlite", tmp_path / "out"
    guarantee: Any = prepare(config).plan.guarantee
    claimed = guarantee.epsilon
    found = allow(path, config, epsilon=claimed)  # crashes need no room
    rng = random.Random()
    heard: dict = {}
    applied = 0

    def look():
        nonlocal heard, applied
        charges, replies = rows(path, "charge"), rows(path, "reply")
        now = stored(path)
        assert {row.run for row in charges} <= {run_name(out)}
        assert len(replies) == len({row.request for row in replies}) == len(now)
        assert len({row.request for row in charges}) == len(charges) >= len(now)
        assert {row.request for row in replies} <= {row.request for row in charges}
        assert all(now[place] == body for place, body in heard.items()), "a reply was replaced"
        with checkpoint_of(config, out, path) as state:
            exchanges = state.exchanges if state else 0
        assert applied <= exchanges <= len(now), "the server has what was never stored"
        heard, applied = now, exchanges

    command = {"run": raw, "out": str(out), "ledger": str(path), "resume": False}
    progress = []
    for number in range(KILLS):
        since, most = ("start", 1.0) if number % 3 == 2 else ("round", 0.2)
        code = worker({**command, "since": since, "kill_after": rng.uniform(0.0, most)})
        assert code in (-9, 0)
        look()
        progress.append(applied)
        command["resume"] = True
    assert worker({**command, "since": "start", "kill_after": None}) == 0
    look()
    assert applied == len(heard) == raw["schedule"]["rounds"] * PARTIES
    assert progress[-1] > 0, "killed before anything happened"

    result = json.loads((out / "private" / "evaluation.json").read_text())
    with Ledger(path) as ledger:
        assert ledger.verify().sound
        spent: list[Any] = [ledger.spent(one) for one in found]
        rounds = raw["schedule"]["rounds"]
        assert [one.charges for one in spent] == [rounds] * PARTIES, "each answer once"
        assert all(one.epsilon == pytest.approx(claimed, rel=1e-6) for one in spent)
        assert result["privacy"]["ledger"]["epsilon_spent"] == pytest.approx(claimed, rel=1e-6)
    # The posterior is what the stored replies make of the prior, to the last bit.
    plan = prepare(config).plan
    state = begin(plan.rules, initial_state(plan.rules, first_factors(plan)))
    while not state.finished:
        bodies = [heard[run_name(out), request.id] for request in open_requests(state)]
        state, _ = step_together(plan.rules, state, [decode_reply(body) for body in bodies])
    archive = np.load(out / "public" / "posterior.npz")
    for name, value in state.result.items():
        assert archive[f"natural/{name}"].tobytes() == np.asarray(value).tobytes()


def run_name(out):
    return (out / "private" / "checkpoint" / "run-name").read_text().strip()


def test_a_killed_run_keeps_its_share_of_the_budget(worker, tmp_path):
    """Another run is refused at its start, so that the killed one can be resumed to its end."""
    raw = {**SECRET, "schedule": {"rounds": 60}}
    config, path, out = parse_config(raw), tmp_path / "ledger.sqlite", tmp_path / "out"
    found = allow(path, config, epsilon=2.5)
    command = {"run": raw, "out": str(out), "ledger": str(path), "resume": False}
    assert worker({**command, "since": "round", "kill_after": 0.0}) == -9
    with Ledger(path) as ledger:
        spent: Any = ledger.spent(found[0])
        assert spent.epsilon < 2.0 < 0.1 + spent.committed, "reserved"
        before = ledger.receipt()
    with pytest.raises(PrivacyBudgetError, match=f"tacit ledger close {run_name(out)} --reason"):
        run(config, tmp_path / "second", ledger=path)
    assert not (tmp_path / "second").exists()
    with Ledger(path) as ledger:
        assert ledger.receipt() == before
    assert worker({**command, "since": "start", "kill_after": None, "resume": True}) == 0
    with Ledger(path) as ledger:
        assert all(ledger.spent(one).charges == 60 for one in found)
        assert not [row for row in ledger.entries() if row.kind == "close"], "carried out in full"


def interrupted(config, out, path):
    """A run that ends like one that was killed, after the first round."""

    def stop(_state, _log):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, out, ledger=path, observe=lambda _prepared: stop)


def test_a_resumed_run_is_compared_with_the_budget_before_it_spends_more(tmp_path):
    config, path, out = parse_config(SECRET), tmp_path / "ledger.sqlite", tmp_path / "out"
    allow(path, config)
    interrupted(config, out, path)
    allow(path, config, epsilon=1.9)
    with Ledger(path) as ledger:
        before = ledger.receipt()
    with pytest.raises(
        PrivacyBudgetError, match=r"this run ε = 2, together 2 > budget 1\.9"
    ) as error:
        run(config, out, ledger=path, resume=True)
    assert error.value.exit_code == 3
    assert "\n" not in str(error.value)
    with Ledger(path) as ledger:
        assert ledger.receipt() == before


def test_a_changed_key_is_named_before_the_budget_is_compared(tmp_path):
    """The resumed run with another ε exceeds the budget too, but that is not its fault."""
    config, path, out = parse_config(SECRET), tmp_path / "ledger.sqlite", tmp_path / "out"
    allow(path, config)
    interrupted(config, out, path)
    with Ledger(path) as ledger:
        before = ledger.receipt()
    changed = parse_config({**SECRET, "privacy": {**SECRET["privacy"], "epsilon": 0.5}})
    with pytest.raises(DataError, match=r"privacy\.epsilon is 2\.0 there and 0\.5 here"):
        run(changed, out, ledger=path, resume=True)
    (out / "public" / "config.toml").unlink()
    with pytest.raises(DataError, match="another configuration, other records or another ledger"):
        run(changed, out, ledger=path, resume=True)
    with Ledger(path) as ledger:
        assert ledger.receipt() == before
    run(config, out, ledger=path, resume=True)


def test_an_overwritten_run_is_closed_and_a_closed_run_is_not_resumed(tmp_path):
    config, path, out = parse_config(SECRET), tmp_path / "ledger.sqlite", tmp_path / "out"
    allow(path, config, epsilon=2.6)
    interrupted(config, out, path)
    first = run_name(out)
    with pytest.raises(PrivacyBudgetError, match=f"run {first} is unfinished"):
        run(config, tmp_path / "second", ledger=path)
    run(config, out, ledger=path, overwrite=True)
    closed = rows(path, "close")
    assert {(row.run, row.purpose) for row in closed} == {(first, "overwritten")}
    assert len(closed) == PARTIES
    assert run_name(out) != first
    third = tmp_path / "third"
    with Ledger(path) as ledger:
        budget = {one: replace_epsilon(ledger.budget(one)) for one in ledger.datasets()}
        ledger.set_budgets(budget, reason="room for a third", raising=True)
    interrupted(config, third, path)
    with Ledger(path) as ledger:
        ledger.close_run(run_name(third), reason="its machine was lost")
    with pytest.raises(PrivacyBudgetError, match="was closed"):
        run(config, third, ledger=path, resume=True)


def replace_epsilon(budget, epsilon=9.0):
    return msgspec.structs.replace(budget, epsilon=epsilon)


TOML = """
name = "private"
seed = 3
[privacy]
epsilon = 2.0
delta = 1e-4
[data]
source = "synthetic-cohort"
records = 120
held_out = 0.0
[partition]
parties = 3
[method]
kind = "dp-sgd"
[schedule]
rounds = 12
[evaluate]
draws = 10
"""


def test_two_runs_at_once_spend_what_is_allowed_to_one(worker, tmp_path):
    """The first charge of one reserves its whole plan; the other one stops with exit code 3."""
    (tmp_path / "c.toml").write_text(TOML)
    path = tmp_path / "ledger.sqlite"
    options = ["--ledger", str(path)]
    budget = ["ledger", "budget", str(tmp_path / "c.toml"), *options, "--epsilon", "2",
               "--delta", "1e-4", "--reason", "one run"]  # fmt: skip
    assert worker({"argv": [budget]}) == [0]
    runs = [["run", str(tmp_path / "c.toml"), "--out", str(tmp_path / name), *options]
            for name in ("a", "b")]  # fmt: skip
    codes = worker({"argv": runs})
    assert sorted(codes) == [0, 3]
    finished = [(tmp_path / name / "public" / "result.json").exists() for name in ("a", "b")]
    assert finished == [code == 0 for code in codes]
    with Ledger(path) as ledger:
        assert ledger.verify().sound
        for dataset in ledger.datasets():
            spent: Any = ledger.spent(dataset)
            assert spent.epsilon <= 2.0
            assert spent.charges <= 12
    assert worker({"argv": runs[:1]}) == [2 if (tmp_path / "a").exists() else 3]


def test_a_simulation_that_loses_every_answer_three_times_costs_itself_once(tmp_path):
    """As if it had died after every charge and before any answer was kept, three times over."""
    prepared = prepare(parse_config(SEEDED))
    plan = prepared.plan
    charging = open_charging(
        plan, prepared.federation, tmp_path / "ledger.sqlite", "run-1", inside=True
    )
    q, nothing = plan.model.prior(plan.family), plan.family.zero()
    with charging.ledger:
        for visit in range(plan.schedule.rounds):
            asked = [
                Request(f"{party}-{visit}", party, visit, visit, q, nothing, 1.0, visit == 0)
                for party in plan.settled
            ]
            keys = [charging.open(asked)[2] for _ in range(3)]
            assert keys[0] == keys[1] == keys[2]
        for party, settled in plan.settled.items():
            spent: Any = charging.ledger.spent(charging.datasets[party])
            assert spent.charges == plan.schedule.rounds
            assert spent.epsilon <= spent.budget.epsilon
            assert spent.budget.epsilon == pytest.approx(settled.guarantee.epsilon, rel=1e-3)
        assert charging.require_budget() is None, "nothing is left to charge"
        other = replace(charging, run="run-2")
        set_own_budgets(other)
        other.require_budget()


def test_a_run_whose_parties_keep_something_ends_the_same_after_lost_answers(tmp_path, monkeypatch):
    """Killed after a party's own factor was kept and before the answer to it was stored."""
    raw = {
        **SEEDED,
        "privacy": {
            "noise_multiplier": 4.0,
            "delta": 1e-4,
            "insecure_noise_seed": 7,
            "unit": "party",
        },
        "method": {"kind": "dp-updates", "shards": 1, "form": "log-precision", "clip": 0.3},
        "schedule": {"rounds": ROUNDS, "damping": 0.5},
    }
    config = parse_config(raw)
    plan = prepare(config).plan
    assert plan.method.memory(plan.model, plan.family) is not None, "parties keep something"
    whole = run(config, tmp_path / "whole")
    original, calls = Charging.store, []

    def store(self, requests, replies):
        calls.append(requests[0].visit)
        if len(calls) in (1, 3):
            raise KeyboardInterrupt
        return original(self, requests, replies)

    monkeypatch.setattr(Charging, "store", store)
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "killed", resume=resume)
    again = run(config, tmp_path / "killed", resume=True)
    assert calls[:4] == [0, 0, 1, 1], "the first answers and the second ones were lost once each"
    assert again["posterior"] == whole["posterior"]
