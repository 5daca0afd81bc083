"""Speed, as ratios: `python benchmarks/bench.py [--only NAME]`; about twenty minutes.

Every measurement is CPU time in a child process pinned to one core, the best of a few, because
other users of the machine only ever add (in `private` the median). TACIT_PEERS_PYTHON names a
Python with requirements-peers.txt for the comparisons with Opacus and with gensim and
scikit-learn. Results also go to
benchmarks/results/latest.json, or to NAME.json there.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from importlib import import_module, metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Skipped

NAMES = (
    "adult", "svi", "parties", "engine", "private", "topics",
    "live", "start", "ray", "server", "sweep",
)  # fmt: skip
RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=NAMES)
    only = parser.parse_args().only
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    print(f"{'':8} {'what':62} {'value':>9} {'':6} {'target':>8}    note")
    for name in (only,) if only else NAMES:
        started = time.perf_counter()
        try:
            found = import_module(f"benchmarks.{name}").rows()
        except Skipped as reason:
            skipped[name], found = str(reason), []
            print(f"{name:8} skipped: {reason}")
        except RuntimeError as error:
            failed[name], found = str(error), []
            print(f"{name:8} FAILED: {error}")
        for row in found:
            print(_line(row), flush=True)
        rows += found
        seconds[name] = time.perf_counter() - started
    missed = [f"{row.name}: {row.what}" for row in rows if row.met is False]
    versions = {name: metadata.version(name) for name in ("jax", "numpyro", "numpy")}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{only or 'latest'}.json"
    body = {
        "schema": "tacit/bench/1",
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
        "rows": [{**asdict(row), "met": row.met} for row in rows],
        "skipped": skipped,
        "failed": failed,
        "seconds": seconds,
    }
    path.write_text(json.dumps(body, indent=1))
    print(f"\n{len(missed)} of {sum(row.met is not None for row in rows)} targets missed", end="")
    print(f"; {sum(seconds.values()):.0f} s in all; {path}")
    return 1 if failed else 0


def _line(row: Row) -> str:
    target = "" if row.at_most is None else f"<= {row.at_most:g}"
    verdict = {None: "  ", True: "ok", False: "NO"}[row.met]
    return (
        f"{row.name:8} {row.what:62} {row.value:9.4g} {row.unit:6} {target:>8} {verdict} {row.note}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
