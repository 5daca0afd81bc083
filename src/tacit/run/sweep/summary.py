"""Means and standard errors over the seeds of each case."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from tacit.run.sweep.job import Job, Row

LEFT_OUT = ("timing.", "guarantee.", "ledger.", "training.")
COUNTS = ("seed", "exit_code", "exchanges", "refused", "compilations")


def summarise(jobs: Sequence[Job], rows: Sequence[Row]) -> list[Row]:
    """Return one row per case: number of runs and failures, mean and standard error of each metric.

    The standard error is s/√n, where s is the sample standard deviation over the n runs of the
    case; with a single run it is None. The row of a private case also contains the weakest
    guarantee over the seeds.
    """
    found = {row["id"]: row for row in rows}
    cases: dict[str, list[Job]] = {}
    for job in jobs:
        cases.setdefault(json.dumps(job.case, sort_keys=True), []).append(job)
    return [_case(group, [found[job.id] for job in group if job.id in found])
            for group in cases.values()]  # fmt: skip


def _case(group: Sequence[Job], rows: Sequence[Row]) -> Row:
    done = [row for row in rows if row["status"] == "done"]
    summary: Row = {**group[0].case, "runs": len(done), "failed": len(rows) - len(done)}
    private = [row for row in done if "guarantee.epsilon" in row]
    if private:
        weakest = max(private, key=lambda row: row["guarantee.epsilon"])
        for key in ("epsilon", "delta", "unit", "adjacency", "trust"):
            summary[f"guarantee.{key}"] = weakest[f"guarantee.{key}"]
    for key in dict.fromkeys(key for row in done for key in row):
        if key in group[0].case or key in COUNTS or key.startswith(LEFT_OUT):
            continue
        values = [row[key] for row in done if _is_number(row.get(key))]
        if values:
            summary[key], summary[f"{key} ±"] = mean_and_error(values)
    return summary


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of n values and its standard error s/√n, where s is their sample standard
    deviation.

    The standard error of a single value is None.

    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    >>> mean_and_error([4.0])
    (4.0, None)
    """
    number = len(values)
    mean = math.fsum(values) / number
    if number == 1:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (number - 1)
    return mean, math.sqrt(variance / number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
