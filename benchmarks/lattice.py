"""The discrete sampler, and what the lattice costs a private run: python -m benchmarks.lattice.

    python -m benchmarks.lattice [--before REVISION] [--opendp]

Microseconds per number of noise for vectors of several lengths, one at a time and drawn ahead, and
CPU seconds of a private Adult run (examples/adult-private.toml with secret noise, compiled before,
and with a declared prior: later versions learn its scale otherwise, which has nothing to do with
noise). With `--before` the same run is measured in the source tree of that revision, in
alternation: give the last one with floating-point noise. With `--opendp` the sampler's law is
compared with that of OpenDP's discrete Gaussian (install opendp for it) by a two-sample χ² test per
scale. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, best_cpu_s
from tacit.privacy.lattice import DiscreteGaussian, draw_each

MOST_MICROSECONDS = 0.3
MOST_RATIO = 1.3
PAIRS = 3
SCALES = (2, 5, 10, 20)
LEAST_LIKELY = 1e-4
CHILD = """
import json, statistics, time, tomllib
from pathlib import Path
from tacit.engines.execute import carry_out
from tacit.run.config import parse_config
from tacit.run.run import prepare

raw = tomllib.loads(Path("examples/adult-private.toml").read_text(encoding="utf-8"))
raw["privacy"].pop("insecure_noise_seed", None)
raw["privacy"].pop("ledger", None)
raw["model"]["prior_sd"] = 1.0
plan = prepare(parse_config(raw)).plan
carry_out(plan)
spent = []
for _ in range(5):
    started = time.process_time()
    carry_out(plan)
    spent.append(time.process_time() - started)
print(json.dumps(min(spent)))
"""


def sampler() -> dict[str, float]:
    """Microseconds per number, by what is drawn."""
    found = {}
    for count in (100, 10_000, 1_000_000):
        key = os.urandom(32)
        times = max(1, 200_000 // count)

        def draw(key: bytes = key, count: int = count, times: int = times) -> None:
            for _ in range(times):
                DiscreteGaussian(key).draw(count)

        found[f"{count} numbers"] = 1e6 * best_cpu_s(draw, 5) / (count * times)
    ahead = DiscreteGaussian(os.urandom(32))

    def hundreds() -> None:
        ahead.ahead(100_000)
        for _ in range(1000):
            ahead.draw(100)

    found["100 numbers, drawn ahead"] = 1e6 * best_cpu_s(hundreds, 5) / 100_000
    keys = [os.urandom(32) for _ in range(1000)]
    found["100 numbers of each of 1,000 keys"] = (
        1e6 * best_cpu_s(lambda: draw_each(keys, 100), 5) / 100_000
    )
    return found


def compared(bits: int, count: int) -> tuple[float, float]:
    """p-value of the hypothesis that both samplers have one law; OpenDP's µs per number."""
    import opendp.prelude as dp  # pyright: ignore[reportMissingImports]
    from scipy.stats import chi2_contingency

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    other = dp.m.make_gaussian(*space, scale=float(2**bits))
    nothing, theirs = [0] * count, []
    spent = best_cpu_s(lambda: theirs.append(other(nothing)), 1)
    ours = DiscreteGaussian(os.urandom(32), bits).draw(count)
    pooled = np.concatenate([ours, theirs[0]])
    # Single values at small scales, else bins of equal probability; low bits in either case.
    cuts = np.unique(np.quantile(pooled, np.linspace(0, 1, 41)[1:-1]))
    table = [
        np.bincount(np.searchsorted(cuts, one, side="right") * 4 + one % 4, minlength=164)
        for one in (ours, np.asarray(theirs[0]))
    ]
    kept = np.sum(table, axis=0) >= 20
    _, likely, *_ = chi2_contingency(np.stack(table)[:, kept])
    return float(likely), 1e6 * spent / count  # pyright: ignore[reportArgumentType]


def run_cpu_s(tree: Path) -> float:
    """CPU seconds of the Adult run with the package in a source tree."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    call = [sys.executable, "-c", CHILD]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def source_of(revision: str, folder: Path) -> Path:
    """The source tree of a revision, below a folder."""
    call = ["git", "archive", revision, "src"]
    packed = subprocess.run(call, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main() -> int:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description="the discrete sampler and its cost")
    parser.add_argument("--before", help="a revision with floating-point noise")
    parser.add_argument("--opendp", action="store_true", help="compare with OpenDP's sampler")
    options = parser.parse_args()
    missed = False
    for bits in SCALES if options.opendp else ():
        likely, spent = compared(bits, 100_000)
        missed |= likely < LEAST_LIKELY
        print(
            f"OpenDP, parameter 2^{bits:<2}: p = {likely:.3f}, {spent:.1f} µs per number",
            flush=True,
        )
    for what, spent in sampler().items():
        bound = what != "100 numbers" and "keys" not in what
        missed |= bound and spent > MOST_MICROSECONDS
        print(f"{what:<36} {spent:.3f} µs per number" + (" (≤ 0.3)" if bound else ""), flush=True)
    if options.before is None:
        print(f"private Adult run{'':<19} {run_cpu_s(ROOT):.3f} s CPU")
        return int(missed)
    with tempfile.TemporaryDirectory() as folder:
        tree = source_of(options.before, Path(folder))
        pairs = [(run_cpu_s(tree), run_cpu_s(ROOT)) for _ in range(PAIRS)]
    before, after = (min(column) for column in zip(*pairs, strict=True))
    missed |= after > MOST_RATIO * before
    print(f"private Adult run{'':<19} {after:.3f} s CPU, {after / before:.2f} times {before:.3f} s")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
