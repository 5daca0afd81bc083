"""kill -9 of the server and the parties of a private live run, under budgets of exactly its cost.

    python -m benchmarks.kills --kills 40
    python -m benchmarks.kills --kills 10 --secure --rounds 20

The noise is secret (no seed), each party's budget is the one that `tacit approve` names, and the
processes are killed at random moments: starting, compiling, computing, waiting, and, for one party
in four, between a charge and its reply. A run that ends before all kills are used up is followed by
another. At the end every party must have the posterior that the stored replies make of the prior,
to the last bit, and its ledger exactly one charge per answer. With `--secure` the server has only
sums of masked replies, and the posterior must be the same function of the replies in the ledgers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from wire_harness import BINARY, Fed, Worker

from tacit.cli.ledger import budget_command
from tacit.live.join import prepare_party, required_budget
from tacit.live.plan import server_plan
from tacit.party.datasets import identify_parties
from tacit.plan.plan import first_factors
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.verify import audit
from tacit.server.messages import decode_reply
from tacit.server.state import initial_state, open_requests
from tacit.server.step import begin, step_together

NAMES = ("a", "b", "c")
DELTA = 1e-4


def make(base: Path, rounds: int, *, secure: bool = False) -> tuple[Fed, dict[str, float]]:
    """A private federation whose budgets are those that `tacit approve` names."""
    agreed = BINARY | {
        "privacy": {"noise_multiplier": 40.0, "delta": DELTA, "aggregation": "plain"},
        "records": 72,
        "model": {"kind": "logistic"},
        "method": {"kind": "dp-sgd"},
        "schedule": {"kind": "synchronous", "rounds": rounds, "tolerance": 0.0},
    }
    if secure:
        agreed["privacy"]["aggregation"] = "secure"
    fed = Fed(base, NAMES, agreed, ledgers=True, serve={"keep_result_for": "30.0s"})
    fed.approve()
    budgets = {}
    for name in NAMES:
        budgets[name] = required_budget(prepare_party(fed.party(name)))
        file = str(fed.base / f"{name}.toml")
        budget_command(None, file, budgets[name], DELTA, None, None, reason="x", raising=False)
    return fed, budgets


def disturb(worker: Worker, fed: Fed, kills: int, rng: random.Random, hit: dict[str, int]) -> None:
    """Run it; kill until `kills` are used up or it ends."""
    server = worker.serve(fed)
    parties = {name: worker.join(fed, name) for name in NAMES}
    over = fed.base / "server" / "public" / "result.json"
    end = sum(hit.values()) + kills
    while sum(hit.values()) < end and not over.exists():
        if rng.random() < 0.6:  # in the middle of it
            done = rounds_of(fed)
            end_s = time.monotonic() + 60.0
            while rounds_of(fed) == done and time.monotonic() < end_s and not over.exists():
                time.sleep(0.02)
        time.sleep(rng.choice([0.02, 0.2, 1.0]) * rng.random())
        if rng.random() < 0.35:
            if worker.kill(server) == -9:
                hit["server"] += 1
            server = worker.serve(fed)
            continue
        name = rng.choice(NAMES)
        if worker.kill(parties[name]) == -9:
            hit["party"] += 1
        state = fed.state()
        if state is not None and not state.finished and rng.random() < 0.4:
            visit = state.factors[name].visits - 1
            how = {"place": "storing", "visit": visit, "leave": str(fed.base / "lost")}
            parties[name] = worker.join(fed, name, die_at=how)
            if worker.ended(parties[name], 20.0) == -9:
                hit["between charge and reply"] += 1
            else:
                worker.kill(parties[name])
        parties[name] = worker.join(fed, name)
    for pid in (*parties.values(), server):
        code = worker.ended(pid, 240.0)
        if code != 0:
            raise AssertionError(f"exit code {code}: {worker.errors()}")


def rounds_of(fed: Fed) -> int:
    """How many rounds the server has seen."""
    return sum(line["event"] == "round" for line in fed.journal())


def check(fed: Fed, rounds: int, budgets: dict[str, float]) -> float:
    """Raise if anything was lost, paid twice or said in two ways; the largest ε spent."""
    replies, spent = {}, []
    for name in NAMES:
        ready = prepare_party(fed.party(name))
        if not audit(ready.ledger_path).sound:
            raise AssertionError(audit(ready.ledger_path).problems)
        with Ledger(ready.ledger_path) as ledger:
            places = [(one.run, one.request) for one in ledger.charges(ledger.entries()[-1].run)]
            bodies = ledger.recall_many(places)
            found = ledger.spent(identify_parties(ledger, ready.loaded, [name])[name])
        replies[name] = {place[1]: body for place, body in zip(places, bodies, strict=True)}
        if not len(places) == len(set(places)) == found.charges == rounds:
            raise AssertionError(f"{name}: {found.charges} charges for {rounds} answers")
        if found.epsilon is None or not found.epsilon <= budgets[name] <= 1.001 * found.epsilon:
            raise AssertionError(f"{name}: ε = {found.epsilon} under {budgets[name]}")
        spent.append(found.epsilon)
    plan = server_plan(fed.server.agreed)
    state = begin(plan.rules, initial_state(plan.rules, first_factors(plan)))
    while not state.finished:
        given = [replies[one.party][one.id] for one in open_requests(state)]
        state, _ = step_together(plan.rules, state, [decode_reply(body) for body in given if body])
    for place in ("server", *(f"state-{name}" for name in NAMES)):
        for part, value in fed.natural(place).items():
            if value.tobytes() != np.asarray(state.result[part]).tobytes():
                raise AssertionError(f"{place}: another posterior")
    return max(spent)


def main() -> None:
    """Kill until all kills are used up; one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--secure", action="store_true", help="secure sums")
    given = parser.parse_args()
    rng, began, runs = random.Random(given.seed), time.monotonic(), 0
    hit = {"server": 0, "party": 0, "between charge and reply": 0}
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder))
        try:
            while sum(hit.values()) < given.kills:
                runs += 1
                fed, budgets = make(Path(folder) / str(runs), given.rounds, secure=given.secure)
                disturb(worker, fed, given.kills - sum(hit.values()), rng, hit)
                spent = check(fed, given.rounds, budgets)
        finally:
            worker.close()
    figures = {
        "kills": hit,
        "runs": runs,
        "rounds": given.rounds,
        "parties": len(NAMES),
        "aggregation": "secure" if given.secure else "plain",
        "epsilon_spent": spent,
        "budget": max(budgets.values()),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures, ensure_ascii=False))


if __name__ == "__main__":
    main()
