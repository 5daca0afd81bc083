"""What an exchange costs when the local work is next to nothing: 1,000 parties, one number."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Row, in_child

PARTIES, RECORDS, REPEATS = 1000, 4, 3
ROUNDS = {"synchronous": 5, "sequential": 1}


def rows() -> list[Row]:
    seen = in_child("engine")
    found = []
    for kind in ROUNDS:
        for durable in ("", " + checkpoint"):
            at = seen[kind + durable]
            found.append(
                Row(name="engine", what=f"{kind}{durable}: CPU of an exchange", unit="us",
                    value=at["cpu_us"], note=f"wall {at['wall_us']:.0f} us")
            )  # fmt: skip
    return found


def child() -> dict[str, Any]:
    import numpy as np

    from tacit.engines.execute import carry_out
    from tacit.models import NormalMean
    from tacit.plan.plan import make_plan
    from tacit.server.checkpoint import Checkpoint
    from tacit.server.schedule import SCHEDULES

    rng = np.random.default_rng(0)
    parties = {f"party-{i}": {"y": rng.normal(size=RECORDS)} for i in range(PARTIES)}
    found: dict[str, Any] = {}
    for kind, rounds in ROUNDS.items():
        plan = make_plan(NormalMean(), parties, schedule=SCHEDULES[kind](rounds=rounds))
        carry_out(plan)
        for durable in ("", " + checkpoint"):
            seen = []
            for _ in range(REPEATS):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "server.sqlite"
                    checkpoint = Checkpoint(path, digest="bench") if durable else None
                    cpu, wall = time.process_time(), time.perf_counter()
                    carry_out(plan, checkpoint=checkpoint)
                    seen.append((time.process_time() - cpu, time.perf_counter() - wall))
                    if checkpoint is not None:
                        checkpoint.close()
            each = 1e6 / (PARTIES * rounds)
            found[kind + durable] = {
                "cpu_us": min(cpu for cpu, _ in seen) * each,
                "wall_us": min(wall for _, wall in seen) * each,
            }
    return found
