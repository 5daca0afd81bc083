"""What an exchange costs on Ray actors when the local work is next to nothing, and how it grows.

A round's time is that of the wall, the best of several, with two actors on all cores; what the
busier actor spent computing is taken off where "beyond compute" is said. Growth is that of the CPU
time of the driver and all actors, against a straight line through all sizes, fitted to relative
errors: on a busy machine a long round never has the cores to itself, a short one may.
"""

from __future__ import annotations

import os
import resource
import time
from importlib.util import find_spec
from typing import Any

from benchmarks.common import Row, Skipped, in_child

SIZES = (100, 300, 1000, 3000, 10_000)
ROUNDS, RECORDS, ACTORS, REPEATS = 12, 4, 2, 2


def rows() -> list[Row]:
    if find_spec("ray") is None:
        raise Skipped("ray is not installed: pip install 'tacit[ray]'")
    seen = in_child("ray")
    at, fitted = seen["sizes"], seen["line"]
    half, most = at["500"], at[str(SIZES[-1])]
    note = f"{ACTORS} actors, {ROUNDS} rounds, one number a party"
    found = [
        Row(name="ray", what="500 parties: a round beyond compute", unit="ms", at_most=60,
            value=half["round_ms"] - half["busy_ms"],
            note=f"all {half['round_ms']:.1f} ms, in one process {half['alone_ms']:.1f} ms"),
        Row(name="ray", what="500 parties: XLA compilations an actor", unit="", at_most=4,
            value=half["compilations"], note=note),
    ]  # fmt: skip
    for size in SIZES:
        one = at[str(size)]
        line = fitted["fixed_ms"] + fitted["each_ms"] * size
        found.append(
            Row(name="ray", what=f"{size:,} parties: CPU of a round, all processes", unit="ms",
                value=one["cpu_ms"], note=f"line {line:.1f} ms; wall {one['round_ms']:.1f} ms, in "
                f"one process {one['alone_ms']:.1f} ms")
        )  # fmt: skip
    found += [
        Row(name="ray", what="100 to 10,000 parties: largest distance from a straight line",
            unit="", at_most=0.2, value=fitted["distance"],
            note=f"{fitted['fixed_ms']:.1f} ms + {1e3 * fitted['each_ms']:.1f} us a party"),
        Row(name="ray", what="10,000 parties: memory of the driver", unit="MB",
            value=most["driver_mb"]),
        Row(name="ray", what="10,000 parties: memory of the larger actor", unit="MB",
            value=most["actor_mb"], note="nearly all of it Python, JAX and XLA"),
    ]  # fmt: skip
    return found


def child() -> dict[str, Any]:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    from tacit.engines.ray import connected

    with connected():
        sizes = {str(size): _measured(size) for size in sorted({*SIZES, 500})}
    return {"sizes": sizes, "line": _line({size: sizes[str(size)]["cpu_ms"] for size in SIZES})}


def _measured(size: int) -> dict[str, Any]:
    import numpy as np

    from tacit.engines.in_process import InProcess
    from tacit.engines.ray import RayEngine
    from tacit.models import NormalMean
    from tacit.plan.plan import make_plan
    from tacit.server.schedule import Synchronous

    rng = np.random.default_rng(0)
    parties = {f"party-{i}": {"y": rng.normal(size=RECORDS)} for i in range(size)}
    schedule = Synchronous(rounds=ROUNDS, tolerance=0.0)
    plan = make_plan(NormalMean(), parties, schedule=schedule)
    made: list[Any] = []

    def engine(*arguments: Any) -> Any:
        made.append(RayEngine(*arguments, actors=ACTORS))
        return made[-1]

    tries = [_rounds(plan, engine, made) for _ in range(REPEATS)]
    best = min(tries, key=lambda one: one["round_ms"])
    return best | {
        "cpu_ms": min(one["cpu_ms"] for one in tries),
        "alone_ms": min(_rounds(plan, InProcess, [])["round_ms"] for _ in range(REPEATS)),
        "driver_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _rounds(plan: Any, engine: Any, made: list[Any]) -> dict[str, Any]:
    """The best round after the first, which compiles, and what the busier actor computed in it."""
    from tacit.engines.execute import carry_out

    ends: list[tuple[float, float]] = []
    starts: list[tuple[float, float]] = []
    busy: list[float] = []

    def watch(_state: Any, _log: Any) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        if made:
            hosts = made[-1].hosts()
            busy.append(max(host["busy_s"] for host in hosts))
            cpu += sum(host["cpu_s"] for host in hosts)
        ends.append((wall, cpu))
        starts.append((time.perf_counter(), cpu))  # asking the actors is not part of a round

    report = carry_out(plan, observe=watch, engine=engine).report
    rounds = [
        (end[0] - start[0], end[1] - start[1]) for start, end in zip(starts, ends[1:], strict=False)
    ]
    place = min(range(len(rounds)), key=lambda i: rounds[i][0])
    return {
        "round_ms": 1e3 * rounds[place][0],
        "cpu_ms": 1e3 * min(cpu for _, cpu in rounds),
        "busy_ms": 1e3 * (busy[place + 1] - busy[place]) if busy else 0.0,
        "compilations": max(report.get("compilations", [0])),
        "actor_mb": max(report.get("memory_mb", [0])),
    }


def _line(found: dict[int, float]) -> dict[str, float]:
    """fixed + each·size, least squares of relative errors, and the largest of these."""
    import numpy as np

    size, took = np.array(list(found)), np.array(list(found.values()))
    design = np.stack([1.0 / took, size / took], axis=1)
    (fixed, each), *_ = np.linalg.lstsq(design, np.ones(len(size)), rcond=None)
    distance = np.max(np.abs(design @ np.array([fixed, each]) - 1.0))
    return {"fixed_ms": float(fixed), "each_ms": float(each), "distance": float(distance)}
