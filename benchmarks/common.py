"""What the benchmarks share: rows of the table, pinned child processes, clocks, data."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "adult.toml"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `at_most` is the target, None where there is none."""

    name: str
    what: str
    value: float
    unit: str
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.at_most is None else self.value <= self.at_most


class Skipped(Exception):  # noqa: N818 - not an error
    """A benchmark that cannot run here; the message says why."""


def in_child(module: str, *arguments: object) -> dict[str, Any]:
    """What `benchmarks.<module>.child(*arguments)` returns, from a process of its own."""
    call = [sys.executable, "-m", "benchmarks.common", module, *map(str, arguments)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(call[2:])} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def pin() -> None:
    """One core for this process: a second XLA thread that spins is not work, but it is CPU time."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def cpu_s(work: Callable[[], Any]) -> float:
    """CPU seconds of one call, all threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


def best_cpu_s(work: Callable[[], Any], times: int) -> float:
    """The least of several calls: other users of the machine only ever add."""
    return min(cpu_s(work) for _ in range(times))


def median_cpu_s(work: Callable[[], Any], times: int) -> float:
    """The median of several calls, for a ratio whose other side is a median too."""
    return statistics.median(cpu_s(work) for _ in range(times))


def adult(*overrides: str) -> Any:
    """`tacit.run.run.prepare` of examples/adult.toml."""
    from tacit.errors import DataError
    from tacit.run.config import read_config
    from tacit.run.run import prepare

    try:
        return prepare(read_config(EXAMPLE, tuple(overrides)))
    except DataError as error:
        raise Skipped(f"Adult is not here: {error}") from error


def held_out(mean: Any, covariance: Any, test: dict[str, Any]) -> float:
    """Mean log predictive density of a Gaussian q (a matrix or variances), 32-node quadrature."""
    import numpy as np

    x, y = np.asarray(test["x"], np.float64), np.asarray(test["y"], np.float64)
    if covariance.ndim == 2:
        variance = np.sum((x @ covariance) * x, axis=1)
    else:
        variance = np.square(x) @ covariance
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    eta = (x @ mean)[:, None] + nodes * np.sqrt(variance)[:, None]
    density = 1 / (1 + np.exp(-np.where(y[:, None] > 0.5, eta, -eta)))
    return float(np.mean(np.log(density @ (weights / weights.sum()))))


@contextmanager
def as_skipped() -> Iterator[None]:
    """Say on standard output that a child cannot run, in a form the parent understands."""
    try:
        yield
    except Skipped as reason:
        print(json.dumps({"skipped": str(reason)}))


def _main() -> None:
    import importlib

    module, *arguments = sys.argv[1:]
    pin()
    # This file runs as __main__; a child raises the other copy's Skipped.
    again = importlib.import_module("benchmarks.common")
    with again.as_skipped():
        print(json.dumps(importlib.import_module(f"benchmarks.{module}").child(*arguments)))


if __name__ == "__main__":
    _main()
