"""How soon the command line answers, and what a short run costs.

    python -m benchmarks.start [--base CHECKOUT] [--repeats 5]

prints CPU-seconds of commands with warm caches (the first call of each is not counted) and, with an
older checkout, their ratio. Both use this interpreter; calls alternate, so that a busy machine
slows both alike. The smallest of the repeats counts. Bytecode is kept as for an installed package.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROOT, Row, Skipped

TARGET_S = 0.5
REPEATS = 3


def rows() -> list[Row]:
    program = Path(sys.executable).parent / "tacit"
    if not program.exists():
        raise Skipped(f"{program} is not there yet")
    with tempfile.TemporaryDirectory() as folder:
        bad = Path(folder) / "bad.toml"
        bad.write_text('privacy = "none"\n[schedule]\nruonds = 3\n')
        calls = {"tacit --help": ["--help"], "tacit check, a bad file": ["check", str(bad)]}
        return [
            Row(name="start", what=f"{what}: CPU", unit="s", at_most=TARGET_S,
                value=min(_cpu_s([str(program), *arguments], what) for _ in range(REPEATS)))
            for what, arguments in calls.items()
        ]  # fmt: skip


def _cpu_s(call: list[str], what: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    helped = "--help" in call
    if (done.returncode == 0) != helped or "Traceback" in done.stderr:
        raise Skipped(f"{what} exited with {done.returncode}: {done.stderr.strip()[-200:]}")
    if not helped and "ruonds" not in done.stdout + done.stderr:
        raise Skipped(f"{what} did not name the wrong key")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


COMMANDS = {
    "tacit --help": ["--help"],
    "tacit check examples/hospitals.toml": ["check", "hospitals.toml"],
    "tacit run examples/hospitals.toml": ["run", "hospitals.toml", "--out", "out", "--overwrite"],
}


def _spent(checkout: Path, arguments: list[str], folder: str) -> float:
    """CPU-seconds of a command with the package of a checkout, in a folder with its example."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "XDG_CACHE_HOME": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
    example = (checkout / "examples" / "hospitals.toml").read_bytes()
    (Path(folder) / "hospitals.toml").write_bytes(example)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call = [sys.executable, "-m", "tacit.cli.main", *arguments]
    subprocess.run(call, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, help="an older checkout to compare with")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    checkouts = [ROOT] if options.base is None else [ROOT, options.base.resolve()]
    for what, arguments in COMMANDS.items():
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            folders = dict(zip(checkouts, (one, other), strict=False))
            spent: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
            for repeat in range(options.repeats + 1):
                for checkout, folder in folders.items():
                    seconds = _spent(checkout, arguments, folder)
                    spent[checkout] += [seconds] if repeat else []
        least = [min(found) for found in spent.values()]
        words = f"{what:38} {least[0]:6.3f} CPU-s"
        if len(least) > 1:
            words += f", base {least[1]:6.3f}, ratio {least[0] / least[1]:.2f}"
        print(words, flush=True)


if __name__ == "__main__":
    main()
