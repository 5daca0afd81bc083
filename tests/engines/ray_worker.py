"""Runs on a cluster of two nodes, in a process of its own: `ray_worker.py ADDRESS RAYLET FOLDER`.

It prints, as one line of JSON, how far each run is from the same run in one process, and what was
lost and charged on the way. RAYLET is the process that makes the second node one.
"""

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

from tacit.engines.execute import carry_out
from tacit.engines.ray import RayEngine, connected
from tacit.models import LinearRegression
from tacit.plan.plan import make_plan
from tacit.run.config import parse_config
from tacit.run.ledger import open_charging
from tacit.run.run import prepare
from tacit.server.schedule import SCHEDULES

LINEAR = LinearRegression(("a", "b"), prior_sd=1.0)
PRIVATE = {
    "seed": 3,
    "privacy": {"epsilon": 2.0, "delta": 1e-4, "insecure_noise_seed": 7},
    "data": {"source": "synthetic-cohort", "records": 120, "held_out": 0.0},
    "partition": {"parties": 4},
    "method": {"kind": "dp-sgd"},
    "schedule": {"rounds": 4},
}


def some_parties():
    rng = np.random.default_rng(5)
    return {
        f"site-{i}": {"x": rng.normal(size=(n, 2)), "y": rng.normal(size=n)}
        for i, n in enumerate((5, 33, 12, 46))
    }


def apart(one, two):
    """The largest relative difference of two posteriors."""
    return max(
        float(np.max(np.abs(one.state.q[k] - two.state.q[k]) / np.abs(one.state.q[k]).max()))
        for k in one.state.q
    )


def run_with_losses(plan, address, losses, charging=None):
    """A run in which losses[round] happens in the middle of the round after that one.

    An actor that is stopped takes requests and answers none: what follows hits it in between.
    """
    made, timers = [], []

    def engine(*arguments):
        made.append(RayEngine(*arguments, address=address, actors=2))
        return made[-1]

    def observe(state, _log):
        if state.round in losses:
            loss, far = losses.pop(state.round)
            host = next(one for one in made[0].hosts() if far == (one["node"] != here()))
            os.kill(host["pid"], signal.SIGSTOP)
            timers.append(threading.Timer(0.5, loss, [host["pid"]]))
            timers[-1].start()

    outcome = carry_out(plan, observe=observe, charging=charging, engine=engine)
    for timer in timers:
        timer.join()
    return outcome


def here():
    import ray

    return ray.get_runtime_context().get_node_id()


def await_nodes(count):
    """Wait until so many nodes are registered: a raylet that runs is known only some time later."""
    import ray

    limit = time.monotonic() + 120
    while sum(node["Alive"] for node in ray.nodes()) < count:
        if time.monotonic() > limit:
            raise TimeoutError(f"{count} nodes did not register within 120 s: {ray.nodes()}")
        time.sleep(0.2)


def kill(*processes):
    for process in processes:
        os.kill(process, signal.SIGKILL)


def main():
    address, raylet, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    found = {}
    with connected(address):
        await_nodes(2)
        with connected(address) as cluster:
            found["nodes"] = cluster.nodes
        for kind, schedule in SCHEDULES.items():
            plan = make_plan(LINEAR, some_parties(), schedule=schedule(rounds=2), seed=2)
            there = carry_out(plan, engine=partial(RayEngine, address=address, actors=2))
            found[kind] = apart(carry_out(plan), there)

        prepared = prepare(parse_config(PRIVATE))
        plan, file = prepared.plan, folder / "ledger.sqlite"
        charging = open_charging(plan, prepared.federation, file, "run", inside=True)
        losses = {1: (kill, False), 2: (partial(kill, raylet), True)}
        survived = run_with_losses(plan, address, losses, charging)
        rows = charging.ledger.entries()
        charging.ledger.close()
        charges = [row for row in rows if row.kind == "charge"]
        found["losses"] = {
            "apart": apart(carry_out(plan), survived),
            "lost": survived.report["lost"],
            "left": losses,
            "versions": sorted({one.version for one in survived.state.factors.values()}),
            "exchanges": survived.state.exchanges,
            "charges": len(charges),
            "attempts": max(row.attempt for row in charges),
            "replies": sum(row.kind == "reply" for row in rows),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
