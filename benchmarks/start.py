"""How soon the command line answers."""

from __future__ import annotations

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
