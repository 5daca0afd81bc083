"""The same 40,000 records at 10, 100 and 1,000 parties of unequal size."""

from __future__ import annotations

import resource
from typing import Any

from benchmarks.common import Row, adult, best_cpu_s, cpu_s, in_child

SOURCES = ("adult", "synthetic-cohort")
COUNTS = (10, 100, 1000)
ROUNDS = 5


def rows() -> list[Row]:
    found: list[Row] = []
    for source in SOURCES:
        seen = {count: in_child("parties", source, count) for count in COUNTS}
        if "skipped" in seen[COUNTS[0]]:
            found.append(
                Row(name="parties", what=f"{source}: skipped", value=0.0, unit="",
                    note=seen[COUNTS[0]]["skipped"])
            )  # fmt: skip
            continue
        least = seen[COUNTS[0]]
        for count in COUNTS[1:]:
            at = seen[count]
            found += [
                Row(name="parties", what=f"{source}: {count} / 10 parties, with compiling",
                    unit="ratio", value=at["cold_s"] / least["cold_s"], at_most=2.0,
                    note=f"{at['cold_s']:.2f} s / {least['cold_s']:.2f} s"),
                Row(name="parties", what=f"{source}: {count} / 10 parties, warm", unit="ratio",
                    value=at["warm_s"] / least["warm_s"], at_most=2.0,
                    note=f"{at['warm_s']:.2f} s / {least['warm_s']:.2f} s, {ROUNDS} rounds"),
            ]  # fmt: skip
        most = seen[COUNTS[-1]]
        found += [
            Row(name="parties", what=f"{source}: most compilations", unit="", at_most=4.0,
                value=float(max(at["compilations"] for at in seen.values()))),
            Row(name="parties", what=f"{source}: peak memory at {COUNTS[-1]}", unit="GB",
                value=most["peak_gb"], at_most=3.0,
                note=f"{most['records']} records, {most['smallest']} to {most['largest']}, "
                f"dimension {most['dimension']}"),
        ]  # fmt: skip
    return found


def child(source: str, count: str) -> dict[str, Any]:
    import numpy as np

    import tacit
    from tacit.data.records import pooled
    from tacit.engines.execute import carry_out
    from tacit.models import LogisticRegression
    from tacit.plan.plan import make_plan
    from tacit.server.schedule import Synchronous

    if source == "adult":
        federation = adult().federation
    else:
        federation = tacit.datasets.load(source, parties=10, records=50_000, seed=1)
    pool = pooled(federation.parties)
    rng, n, parties = np.random.default_rng(0), len(pool["y"]), int(count)
    share = rng.lognormal(0.0, 1.0, parties)
    sizes = 1 + np.floor((n - parties) * share / share.sum()).astype(int)
    parts = np.split(rng.permutation(n), np.cumsum(sizes)[:-1])
    plan = make_plan(
        LogisticRegression(federation.names),
        {f"party-{i}": {k: v[part] for k, v in pool.items()} for i, part in enumerate(parts)},
        schedule=Synchronous(rounds=ROUNDS),
    )
    compiled: list[int] = []
    cold = cpu_s(lambda: compiled.append(carry_out(plan).compiled.count))
    # Read before the warm runs: peak memory is that of one run.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    lengths = [len(part) for part in parts]
    return {
        "cold_s": cold,
        "warm_s": best_cpu_s(lambda: carry_out(plan), 3),
        "compilations": compiled[0],
        "peak_gb": peak,
        "records": n,
        "smallest": min(lengths),
        "largest": max(lengths),
        "dimension": len(federation.names),
    }
