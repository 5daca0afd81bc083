"""A sweep of 40 runs with one worker and with two: what parallel runs save.

By the wall, and by the CPU time that falls on one core, which is what the wall would show if
nobody else used the machine. Two processes that only count, beside one, say how much the machine
has to give at the moment.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Row, in_child

RUNS, AT_LEAST = 40, 1.7
COUNTING = "import time\nwhile time.process_time() < 4: pass"
BASE = {
    "privacy": "none",
    "data": {"source": "synthetic-cohort", "records": 4_000},
    "partition": {"kind": "balanced", "parties": 10},
    "method": {"kind": "gradient-vi", "steps": 200},
    "schedule": {"rounds": 10, "tolerance": 0.0},
}


def rows() -> list[Row]:
    if (os.cpu_count() or 1) < 2:
        raise RuntimeError("two cores are needed to run two workers")
    took = {workers: in_child("sweep", workers) for workers in (1, 2)}
    one, two = (took[workers]["wall_s"] for workers in (1, 2))
    alone, both = (_counting(number) for number in (1, 2))
    return [
        Row(name="sweep", what=f"{RUNS} runs, one after the other", unit="s", value=one,
            note=f"{took[1]['compilations']} compilations"),
        Row(name="sweep", what=f"{RUNS} runs, two workers", unit="s", value=two,
            note=f"{took[2]['compilations']} compilations"),
        Row(name="sweep", what=f"share of the time that two workers need (1/{AT_LEAST:g})",
            unit="x", at_most=1 / AT_LEAST, value=two / one, note=f"{one / two:.2f} times as fast"),
        Row(name="sweep", what="... that two processes need which only count", unit="x",
            value=both / (2 * alone), note=f"{2 * alone / both:.2f} times as fast"),
        Row(name="sweep", what="... of the CPU time on one core", unit="x", at_most=1 / AT_LEAST,
            value=took[2]["cpu_s"] / 2 / took[1]["cpu_s"],
            note=f"{took[1]['cpu_s']:.0f} s with one, {took[2]['cpu_s']:.0f} s with two"),
    ]  # fmt: skip


def _counting(number: int) -> float:
    """Wall seconds of so many processes of four CPU seconds each."""
    started = time.perf_counter()
    for process in [subprocess.Popen([sys.executable, "-c", COUNTING]) for _ in range(number)]:
        process.wait()
    return time.perf_counter() - started


def child(workers: str) -> dict[str, Any]:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    from tacit.run.sweep import Sweep, sweep

    asked = Sweep(base=BASE, seeds=RUNS // 4, grid={"schedule.damping": [0.1, 0.2, 0.3, 0.4]})
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        swept = sweep(asked, Path(folder) / "out", workers=int(workers))
        wall = time.perf_counter() - started
    if swept.failed:
        raise RuntimeError(swept.failed[0]["error"])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "compilations": sum(row["compilations"] for row in swept.rows),
    }
