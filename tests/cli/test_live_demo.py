"""`make live-demo`, as a user runs it: a server and four parties as processes over TLS."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.datasets import list as sources

pytestmark = pytest.mark.full_optimisation

DEMO = Path(__file__).parents[2] / "examples" / "live" / "demo.py"


def test_the_live_demo_gives_the_bits_of_one_process_on_real_records(tmp_path: Path) -> None:
    if not any(source.name == "heart" and source.present for source in sources()):
        pytest.skip("the heart files are neither in $TACIT_DATA nor in the cache")
    done = subprocess.run(
        [sys.executable, str(DEMO), "--out", str(tmp_path / "live")],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "certs party cleveland" in done.stdout  # the real hospitals, not the synthetic cohort
    assert "natural parameters are the same to the last bit" in done.stdout
    assert "a server that sees only sums" in done.stdout
    seen = done.stdout.split("What the server saw")[1]
    assert len(re.findall(r"\| [0-9a-f]{16} [0-9a-f]{16} [0-9a-f]{16} …", seen)) == 4
