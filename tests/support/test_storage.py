"""State that was damaged is never used, and a disk that is full is an error that names the file."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tacit.errors import DataError
from tacit.expfam import FullGaussian
from tacit.live.journal import Journal
from tacit.live.server import status as watch
from tacit.live.server.membership import Member, Roster, load_roster, save_roster
from tacit.party.store import PartyStore
from tacit.run.sweep.store import Store
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Reply, Request
from tacit.server.schedule import Synchronous
from tacit.server.state import Rules, initial_state, open_requests
from tacit.server.step import begin, step
from tacit.support.storage import sealed, unsealed, write_text, writing

FULL = Path("/dev/full")
"""Every write to it fails with ENOSPC."""
DIGEST = "0" * 64


ASKED = Request(
    "r1", "a", 0, 0, None, {"linear": np.zeros(2), "quadratic": np.zeros((2, 2))}, 1.0, initial=True
)


def a_store(path: Path) -> PartyStore:
    store = PartyStore(path, DIGEST)
    store.joined("run-1")
    delta = {"linear": np.array([1.0, 2.0]), "quadratic": -np.eye(2)}
    store.keep_reply(ASKED, Reply("r1", "a", 0, delta, 1.5))
    return store


def flipped(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place // 8] ^= 1 << place % 8
    path.write_bytes(raw)


def test_no_flipped_bit_of_a_party_s_state_is_used(tmp_path):
    path = tmp_path / "party"
    a_store(path)
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 7):
        path.write_bytes(whole)
        flipped(path, place)
        with pytest.raises(DataError, match=rf"{path} cannot be read \(.*; restore it"):
            PartyStore(path, DIGEST)
    path.write_bytes(whole)
    assert PartyStore(path, DIGEST).recall(ASKED) is not None


def test_no_flipped_bit_of_a_roster_is_used(tmp_path):
    path = tmp_path / "roster"
    member = Member(key="k", serial="1f", data_size=100)
    save_roster(path, Roster(run="run-1", digest=DIGEST, members={"a": member}))
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 3):
        path.write_bytes(whole)
        flipped(path, place)
        with pytest.raises(DataError, match=rf"{path} cannot be read \(.*; restore it"):
            load_roster(path, DIGEST)
    path.write_bytes(whole)
    assert load_roster(path, DIGEST).members["a"] == member


def test_state_without_a_checksum_is_not_used(tmp_path):
    path = tmp_path / "party"
    a_store(path)
    path.write_bytes(unsealed(path.read_bytes()))
    with pytest.raises(DataError, match="no checksum"):
        PartyStore(path, DIGEST)
    assert unsealed(sealed(b"")) == b""


def test_a_damaged_row_of_a_sweep_is_done_again(tmp_path):
    store, job = Store(tmp_path), SimpleNamespace(id="seed1")
    with store.held("", overwrite=False):
        store.put({"id": "seed1", "status": "done", "accuracy": 0.875})
        found: Any = store.get(job)  # pyright: ignore[reportArgumentType]
        assert found == {"id": "seed1", "status": "done", "accuracy": 0.875}
        file = tmp_path / "rows" / "seed1.json"
        file.write_text(file.read_text().replace("0.875", "0.975"))
        assert store.get(job) is None  # pyright: ignore[reportArgumentType]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "file"
    with (
        pytest.raises(DataError, match=rf"{path} cannot be written \(No space left"),
        writing(path),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DataError, match="cannot be written"):
        write_text(tmp_path / "missing" / "file", "text")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_log_on_a_full_disk_ends_nothing_and_says_so_once(tmp_path):
    path = tmp_path / "log.jsonl"
    path.symlink_to(FULL)
    seen: list[dict[str, Any]] = []
    journal = Journal(path, seen.append)
    for number in range(3):
        journal.write("round", round=number)
    journal.close()
    assert [line["event"] for line in seen] == ["log not written", "round", "round", "round"]
    assert seen[0]["path"] == str(path)
    assert "No space left" in seen[0]["reason"]


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_status_that_cannot_be_written_ends_nothing(tmp_path, monkeypatch):
    lines: list[dict[str, Any]] = []
    server: Any = SimpleNamespace(
        status_at=0.0, status_lost=False, port=1, live=SimpleNamespace(directory=tmp_path),
        journal=Journal(watch=lines.append),
    )  # fmt: skip
    monkeypatch.setattr(watch, "describe", lambda _: {"round": 1})
    part = tmp_path / "status.json.part"
    part.symlink_to(FULL)
    for _ in range(3):
        watch.write_status(server, running=False)
    assert [line["event"] for line in lines] == ["status not written"]
    assert lines[0]["path"] == str(tmp_path / "status.json")
    part.unlink()
    watch.write_status(server, running=False)
    assert not server.status_lost
    assert json.loads((tmp_path / "status.json").read_text())["round"] == 1


def rules_of(dimension: int, parties: int, rounds: int) -> Rules:
    family = FullGaussian(dimension)
    prior = {"linear": np.zeros(dimension), "quadratic": -0.5 * np.eye(dimension)}
    names = tuple(f"p{number}" for number in range(parties))
    return Rules(family, Synchronous(rounds=rounds, damping=1.0), names, seed=1, prior=prior)


def played(checkpoint: Checkpoint, rules: Rules, rounds: int) -> list[int]:
    """How large the write-ahead log is after every round."""
    state = begin(rules, initial_state(rules))
    sizes = []
    for _ in range(rounds):
        for request in open_requests(state):
            delta = {name: 1e-3 * value for name, value in rules.prior.items()}
            reply = Reply(request.id, request.party, request.version, delta, 0.0)
            state, log = step(rules, state, reply)
            checkpoint.save(state, log)
        sizes.append(checkpoint.path.with_name(checkpoint.path.name + "-wal").stat().st_size)
    return sizes


def test_the_write_ahead_log_does_not_grow(tmp_path):
    """18 parameters and 5 parties: it was 10 MB after 40 rounds; now it stays near 1 MB."""
    checkpoint = Checkpoint(tmp_path / "server.sqlite", digest=DIGEST)
    sizes = played(checkpoint, rules_of(18, 5, 50), 40)
    checkpoint.close()
    assert max(sizes) < 2_500_000
    assert max(sizes[20:]) <= 1.5 * max(sizes[:20])


def test_a_checkpoint_that_cannot_be_written_names_its_file(tmp_path):
    """The process may not write files beyond 300 kB, as on a disk that is full."""
    path = tmp_path / "server.sqlite"
    checkpoint = Checkpoint(path, digest=DIGEST)
    rules = rules_of(18, 3, 50)
    state = begin(rules, initial_state(rules))
    checkpoint.save(state)
    checkpoint.close()
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_storage import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "path = Path(sys.argv[1])\n"
        "checkpoint = Checkpoint(path, digest=DIGEST)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "try:\n"
        "    played(checkpoint, rules_of(18, 3, 50), 40)\n"
        "except DataError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(Path(__file__).parent)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"{path} cannot be written (" in done.stdout, done.stderr
    assert "free disk space" in done.stdout
    again = Checkpoint(path, digest=DIGEST)
    assert again.load() is not None, "earlier files are intact"
    again.close()


@pytest.mark.parametrize("bytes_left", [0, 20_000])
def test_the_command_line_says_which_file_and_exits_with_4(bytes_left, tmp_path):
    """A run whose directory is on a disk with no room."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from tacit.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)\n"
        "sys.argv = ['tacit', 'run', sys.argv[1], '--out', sys.argv[2]]\n"
        "main.main()\n"
    )
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", code, "examples/hospitals.toml", str(out), str(bytes_left)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
        env=os.environ | {"TACIT_COMPILATION_CACHE": "off"},
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: {out}")
    assert "free disk space" in last
