"""A sweep of 40 runs with one worker and with two, by the wall: what parallel runs save."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Row, in_child

RUNS, AT_LEAST = 40, 1.7
BASE = {
    "privacy": "none",
    "data": {"source": "synthetic-cohort", "records": 4_000},
    "partition": {"kind": "balanced", "parties": 10},
    "method": {"kind": "gradient-vi", "steps": 300},
    "schedule": {"rounds": 10, "tolerance": 0.0},
}


def rows() -> list[Row]:
    if (os.cpu_count() or 1) < 2:
        raise RuntimeError("two cores are needed to run two workers")
    took = {workers: in_child("sweep", workers) for workers in (1, 2)}
    one, two = (took[workers]["wall_s"] for workers in (1, 2))
    return [
        Row(name="sweep", what=f"{RUNS} runs, one after the other", unit="s", value=one,
            note=f"{took[1]['compilations']} compilations"),
        Row(name="sweep", what=f"{RUNS} runs, two workers", unit="s", value=two,
            note=f"{took[2]['compilations']} compilations"),
        Row(name="sweep", what=f"share of the time that two workers need (1/{AT_LEAST:g})",
            unit="x", at_most=1 / AT_LEAST, value=two / one, note=f"{one / two:.2f} times as fast"),
    ]  # fmt: skip


def child(workers: str) -> dict[str, Any]:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    from tacit.sweep import Sweep, sweep

    asked = Sweep(base=BASE, seeds=RUNS // 4, grid={"model.prior_sd": [0.5, 1.0, 2.0, 4.0]})
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        swept = sweep(asked, Path(folder) / "out", workers=int(workers))
        wall = time.perf_counter() - started
    if swept.failed:
        raise RuntimeError(swept.failed[0]["error"])
    return {"wall_s": wall, "compilations": sum(row["compilations"] for row in swept.rows)}
