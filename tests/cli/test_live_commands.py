"""A live federation at the command line, from certificates to the posterior and every refusal."""

import asyncio
import io
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tacit.live.config import read_agreed, read_party, read_server
from tacit.live.transport.certificates import init_authority, issue_party, issue_server, revoke
from tacit.privacy.ledger.ledger import Ledger

ROOT = Path(__file__).parents[2]
PARTIES = ("north", "south")
PATIENCE_S = 180

FEDERATION = """
name = "two registries"
parties = ["north", "south"]
seed = 3
records = 80
outcome = "pressure"
{privacy}
[columns.age]
low = 0
high = 100
center = 50
scale = 20
[columns.pressure]
low = 50
high = 250
center = 130
scale = 20
[model]
kind = "linear"
noise_sd = 1.0
[schedule]
rounds = {rounds}
"""
PRIVATE = "[privacy]\nepsilon = 2.0\ndelta = 1e-4"
SERVER = """
federation = "federation.toml"
[serve]
listen = "127.0.0.1:{port}"
certificate = "server-localhost.pem"
key = "server-localhost.key"
authority = "ca.pem"
revoked = "revoked.pem"
state = "state"
restart_delay = "1s"
keep_result_for = "5s"
[serve.start]
command = {command}
"""
PARTY = """
federation = "federation.toml"
ledger = "ledger.sqlite"
[join]
servers = ["localhost:{port}"]
certificate = "party-{name}.pem"
key = "party-{name}.key"
authority = "ca.pem"
state = "state"
retry_for = "1s"
[data]
path = "records.csv"
"""


@pytest.fixture(scope="module")
def organisations(tmp_path_factory) -> Path:
    """Certificates and records of a server and two parties, made once."""
    base = tmp_path_factory.mktemp("organisations")
    authority = base / "authority"
    init_authority(authority)
    issue_server(authority, ["localhost", "127.0.0.1"], out=base / "server")
    rng = np.random.default_rng(0)
    for name in PARTIES:
        issue_party(authority, name, out=base / name)
        ages = rng.integers(20, 90, size=40)
        rows = [f"{age},{110 + 0.4 * age + rng.normal(0, 10):.1f}" for age in ages]
        (base / name / "records.csv").write_text("\n".join(["age,pressure", *rows]) + "\n")
    for place in ("server", *PARTIES):
        shutil.copy(authority / "ca.pem", base / place)
        shutil.copy(authority / "revoked.pem", base / place)
    return base


@pytest.fixture
def place(organisations, tmp_path):
    """Write the three files beside copies of certificates and records."""
    shutil.copytree(organisations, tmp_path, dirs_exist_ok=True)

    def write(
        *, rounds: int = 3, privacy: str = 'privacy = "none"', command: str = "false"
    ) -> Path:
        port = _free_port()
        # A table has to follow the keys at the top.
        agreed = FEDERATION.format(privacy=privacy, rounds=rounds)
        for name in ("server", *PARTIES):
            (tmp_path / name / "federation.toml").write_text(agreed)
        (tmp_path / "server" / "server.toml").write_text(SERVER.format(port=port, command=command))
        for name in PARTIES:
            (tmp_path / name / "party.toml").write_text(PARTY.format(port=port, name=name))
        return tmp_path

    return write


@pytest.fixture
def start():
    """Start a command as a process; whatever happens, none is left behind."""
    started = []

    def run(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tacit.cli.main", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def _status(server: Path) -> dict:
    try:
        return json.loads((server / "state" / "status.json").read_text())
    except (OSError, ValueError):
        return {"round": 0, "parties": {}}


def _until(condition, *processes: subprocess.Popen[str]) -> None:
    latest = time.monotonic() + PATIENCE_S
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < latest, "nothing happens"
        time.sleep(0.05)


def _connected(server: Path) -> int:
    return sum(one["connected"] for one in _status(server)["parties"].values())


def _end(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


def test_from_certificates_to_the_posterior(tacit, place, start):
    base = place(command="true")
    server, party = base / "server" / "server.toml", base / "north" / "party.toml"

    code, out, _ = tacit("check", str(server))
    assert code == 0
    for words in (
        "localhost, until",
        "(free)",
        "tacit server start",
        "north, south",
        "Nothing was",
    ):
        assert words in out, out
    code, out, err = tacit("check", str(party))
    assert code == 2
    assert "40 read" in out
    assert "tacit approve" in err
    code, out, err = tacit("approve", str(party), "--yes")
    assert (code, err) == (0, "")
    digest = read_agreed(base / "server" / "federation.toml").digest
    for words in (
        "NOT PRIVATE. NO NOISE IS ADDED.",
        "two registries",
        "linear with 2 parameters: intercept, age",
        "3 replies if all rounds take place",
        "14 (mode), 7 (evaluate)",
        "reported as fewer than 100",
        "the 40 records; no message",
        "this party's exact replies",
        f"digest: {digest}",
    ):
        assert words in out, out
    assert tacit("approve", str(base / "south" / "party.toml"), "--yes")[0] == 0
    code, out, _ = tacit("check", str(party))
    assert code == 0
    assert "would take part. Nothing was sent or spent." in out
    assert not (base / "server" / "state").exists(), "checking writes nothing"

    serving = start("serve", server)
    joining = [start("join", base / name / "party.toml", "--set", "join.retry_for=60s")
               for name in PARTIES]  # fmt: skip
    _until(lambda: _connected(base / "server") == 2, serving, *joining)
    assert _status(base / "server")["round"] == 0, "nobody has said start"
    code, out, _ = tacit("status", str(server))
    assert code == 0
    assert "the server is running" in out
    assert "waiting for parties" in out
    assert "in use" in tacit("serve", str(server))[2], "one server a state directory"
    assert tacit("server", "start", str(server))[0] == 0

    for process, name in zip(joining, PARTIES, strict=True):
        code, said = _end(process)
        assert code == 0, said
        for words in (
            f"{name} in 'two registries'",
            "NOT PRIVATE",
            "connected to localhost:",
            "round 3: reply 3",
            "bytes sent",
            "97.5 %",
        ):
            assert words in said
    code, said = _end(serving)
    assert code == 0, said
    for words in ("listening on", "north joined", "training begins",
                  "round 3: negative ELBO", "97.5 %", "shareable"):  # fmt: skip
        assert words in said
    found = [
        np.load(base / name / "state" / "public" / "posterior.npz") for name in ("server", *PARTIES)
    ]
    for key in found[0].files:
        assert len({one[key].tobytes() for one in found}) == 1, "everybody has the same posterior"
    for one in found:
        one.close()
    assert tacit("report", str(base / "server" / "state"))[0] == 0
    page = (base / "server" / "state" / "public" / "report.html").read_text()
    assert "This run was not private" in page
    assert tacit("report", str(base / "north" / "state"))[0] == 0
    page = (base / "north" / "state" / "public" / "report.html").read_text()
    assert "as party &#39;north&#39; received it" in page
    assert "Not private" in page
    verdicts = []
    for name in ("server", *PARTIES):
        result = json.loads((base / name / "state" / "public" / "result.json").read_text())
        assert {"converged", "why", "learned", "cautions"} <= set(result)
        verdicts.append([result[key] for key in ("converged", "why", "learned", "cautions")])
        assert [row["term"] for row in result["coefficients"]] == ["intercept", "age"]
    assert verdicts[0][0] is False, "three rounds are not enough"
    assert all(one == verdicts[0] for one in verdicts)
    code, out, _ = tacit("show", str(base / "north" / "state"))
    assert (code, "97.5 %" in out, "WARNING: This fit did not converge" in out) == (0, True, True)
    (base / "new.csv").write_text("age\n40\n80\n")
    predictions = []
    for name in ("server", *PARTIES):
        target = base / f"{name}.csv"
        state = str(base / name / "state")
        code, out, err = tacit("predict", state, str(base / "new.csv"), "--out", str(target))
        assert code == 0, err
        assert "2 rows: mean of pressure, 95 % interval." in out
        predictions.append(target.read_text())
    assert len(set(predictions)) == 1
    assert 50 < float(predictions[0].splitlines()[1].split(",")[0]) < 250

    code, out, _ = tacit("status", str(server))
    assert code == 0
    assert "finished (all rounds), round 3 of 3; the server is not running" in out
    code, out, _ = tacit("status", str(party))
    assert code == 0
    assert "is not running; 3 replies in run-" in out
    assert "received the final posterior" in out
    code, out, _ = tacit("status", str(base / "north" / "state"), "--json")
    assert json.loads(out)["answers"] == 3
    code, _, err = tacit("server", "stop", str(server))
    assert code == 2
    assert "no server is running" in err
    code, out, err = tacit("join", str(party), "--set", "join.retry_for=0.5s")
    assert (code, err) == (0, "")
    assert "has ended, and this party has its result" in out
    assert "posterior.npz" in out.replace("\n", "")
    code, out, _ = tacit("join", str(party), "--json", "--set", "join.retry_for=0.5s")
    assert code == 0
    assert json.loads(out)["event"] == "end"


def test_stopping_leaving_closing_and_going_on(tacit, place, start):
    """With privacy, under a budget that the run uses up: who comes back pays for the rest only."""
    base = place(rounds=5000, privacy=PRIVATE)
    server = base / "server" / "server.toml"
    for name in PARTIES:
        path = str(base / name / "party.toml")
        assert tacit("approve", path, "--yes")[0] == 0
        allow = ("--epsilon", "2", "--delta", "1e-4", "--reason", "board")
        assert tacit("ledger", "budget", path, *allow)[0] == 0
    patient = ("--set", "join.retry_for=60s")
    serving = start("serve", server)
    north = start("join", base / "north" / "party.toml", "--json", *patient)
    south = start("join", base / "south" / "party.toml", *patient)
    _until(lambda: _status(base / "server")["round"] >= 2, serving, north, south)

    south.send_signal(signal.SIGINT)
    code, said = _end(south)
    assert code == 130, said
    assert "join again with the same command: tacit join" in said
    expected = ("private: ε = 2, δ = 0.0001 per record", "ε = 0 spent of 2", "at most 5000 replies")
    for words in expected:
        assert words in said
    path = str(base / "south" / "party.toml")
    code, out, _ = tacit("status", path, "--json")
    found = json.loads(out)
    assert found["answers"] >= 2
    assert 0 < found["ledger"]["epsilon"] < found["ledger"]["budget"] == 2
    with Ledger(base / "south" / "ledger.sqlite") as ledger:
        charges = [row.request for row in ledger.entries() if row.kind == "charge"]
        assert all(row.state == "answered" for row in ledger.entries() if row.kind == "charge")
    assert len(charges) == len(set(charges)) == found["answers"]
    code, out, err = tacit("check", path)
    assert code == 0, err
    _until(lambda: _connected(base / "server") == 1, serving, north)

    leave = ("join", str(base / "south" / "party.toml"), "--leave", "--reason", "no\x1b[31mconsent")
    code, out, _ = tacit(*leave, "--yes")
    assert code == 0
    assert "left permanently" in out
    code, _, err = tacit(*leave, "--yes")
    assert code == 5
    assert "has left this run permanently" in err

    closing = ("server", "stop", str(server), "--return-in", "2", "--reason", "a new disk")
    code, out, _ = tacit(*closing)
    assert code == 0
    assert "reconnect in 2 s" in out
    code, said = _end(serving)
    assert code == 0, said
    assert "parties reconnect in 2 s; start again with the same command" in said
    assert "south leaves, back in 600 s" in said
    assert "south leaves permanently" in said
    assert "\x1b" not in said, "what a peer writes does not reach the terminal as it is"
    before = _status(base / "server")["round"]

    again = start("serve", server, "--json")
    _until(lambda: _status(base / "server")["round"] > before, again, north)
    again.terminate()
    code, said = _end(again)
    assert code == 0, said
    events = [json.loads(line) for line in said.splitlines()]
    assert events[0]["event"] == "listening"
    assert any(one["event"] == "rejoined" and one["party"] == "north" for one in events)
    north.terminate()
    code, said = _end(north)
    assert code == 130
    assert all(json.loads(line)["event"] for line in said.splitlines()[:-1])


def refused(answer, words, code):
    """One line with its exit code."""
    found, _, err = answer
    assert (found, err.count("\n")) == (code, 1), err
    assert err.startswith("error: ")
    assert words in err


def test_what_must_not_join_is_refused(tacit, place):
    base = place()
    north = base / "north"
    join = ("join", str(north / "party.toml"))
    refused(tacit(*join), "is not approved", 2)
    refused(tacit(*join, "--reason", "x"), "only used with --leave", 2)
    assert tacit("approve", join[1], "--yes")[0] == 0
    refused(tacit(*join), "has replied for 1 s", 5)

    agreed = north / "federation.toml"
    kept = agreed.read_text()
    agreed.write_text(kept.replace("rounds = 3", "rounds = 4"))
    refused(tacit(*join), "has changed since it was approved", 2)
    refused(tacit("check", join[1]), "has changed since it was approved", 2)
    agreed.write_text(kept)

    refused(tacit(*join, "--set", "join.minimum_parties=3"), "minimum_parties", 2)
    refused(tacit(*join, "--set", "join.key=party-south.key"), "key", 4)
    (north / "party-north.key").chmod(0o644)
    refused(tacit(*join), "chmod 600", 4)
    (north / "party-north.key").chmod(0o600)
    (north / "party-north.pem").unlink()
    refused(tacit(*join), "party-north.pem", 4)


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_what_is_not_answered_with_yes_is_not_approved(tacit, place, monkeypatch, answer):
    path = place() / "north" / "party.toml"
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    code, out, err = tacit("approve", str(path))
    assert code == 2
    assert "not approved" in err
    assert "digest: " in out, "it was shown"
    assert not (path.parent / "state").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert tacit("approve", str(path))[0] == 0
    assert (path.parent / "state" / "approved.json").exists()


def test_a_revoked_or_foreign_certificate_serves_nobody(tacit, place):
    base = place()
    server = base / "server" / "server.toml"
    wrong = ("--set", "serve.certificate=../north/party-north.pem",
             "--set", "serve.key=../north/party-north.key")  # fmt: skip
    refused(tacit("check", str(server), *wrong), "is not for a server", 4)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = tacit("check", str(server), "--set", f"serve.listen=127.0.0.1:{port}")
        refused(answer, "choose another", 2)
    revoke(base / "authority", "localhost")
    shutil.copy(base / "authority" / "revoked.pem", base / "server")
    refused(tacit("check", str(server)), "was revoked", 4)
    refused(tacit("serve", str(server)), "was revoked", 4)


def test_a_private_party_needs_a_budget_of_its_own(tacit, place):
    base = place(privacy=PRIVATE)
    path = str(base / "north" / "party.toml")
    code, out, _ = tacit("approve", path, "--yes")
    assert code == 0
    for words in (
        "(ε = 2, δ = 0.0001): messages are almost unchanged in distribution if one record is "
        "replaced",
        "No trusted server",
        "standard deviation",
        "at most 3 replies, whatever a server requests",
        "the loss with each reply: not sent",
        str(base / "north" / "ledger.sqlite"),
    ):
        assert words in out, out
    assert "NOT PRIVATE" not in out
    assert "required budget: ε = 2 (δ = 0.0001, per record, replace-one)" in out
    assert f"to set it: tacit ledger budget {path} --epsilon 2 --delta 0.0001 --reason" in out
    refused(tacit("join", path), "tacit ledger budget party.toml", 3)

    allow = ("--delta", "1e-4", "--reason", "board")
    agreed = str(base / "north" / "federation.toml")
    refused(tacit("ledger", "budget", agreed, "--epsilon", "2", *allow), "party.toml", 2)
    code, out, _ = tacit("ledger", "budget", path, "--epsilon", "1", *allow)
    assert code == 0
    assert out.startswith("north: ")
    assert (base / "north" / "ledger.sqlite").exists()
    refused(tacit("join", path), "this run ε = 2", 3)
    refused(tacit("check", path), "this run ε = 2", 3)
    assert tacit("ledger", "budget", path, "--epsilon", "2", *allow, "--raise")[0] == 0
    refused(tacit("join", path), "has replied for 1 s", 5)
    code, out, _ = tacit("check", path)
    assert code == 0
    assert "0 is spent of 2" in out
    code, out, _ = tacit("approve", path, "--yes")
    assert code == 0
    assert "current budget: ε = 2, sufficient" in out
    assert "to set it" not in out

    code, out, _ = tacit("explain", path)
    assert code == 0
    assert "the server" in out
    assert tacit("explain", str(base / "server" / "server.toml"))[0] == 0


def test_the_agreed_file_can_be_checked_by_anybody(tacit, place):
    base = place()
    path = str(base / "south" / "federation.toml")
    code, out, _ = tacit("check", path)
    assert code == 0
    assert read_agreed(Path(path)).digest in out
    refused(tacit("check", path, "--set", "schedule.rounds=4"), "edit the file", 2)
    refused(tacit("check", path, "--seed", "4"), "the seed is part of the agreed file", 2)
    refused(tacit("run", path), "docs/live.md", 2)
    refused(tacit("status", path), "it has no state", 2)
    refused(tacit("status", str(base / "south")), "is not the state directory", 4)
    refused(tacit("status", str(base / "server" / "server.toml")), "no server has run here", 4)
    refused(tacit("server", "stop", str(base / "server" / "server.toml")), "nothing to stop", 2)
    refused(tacit("server", "readmit", str(base / "server" / "server.toml"), "x"), "'x' is", 2)
    refused(tacit("serve", str(base / "south" / "party.toml")), "[serve]", 2)


def test_the_example_files_are_in_order(tmp_path):
    examples = ROOT / "examples" / "live"
    demo = runpy.run_path(str(examples / "demo.py"))
    for names in (demo["HEART"], demo["COHORT"]):
        for private in (False, True):
            path = tmp_path / "federation.toml"
            path.write_text(demo["federation"](names, private=private), encoding="utf-8")
            found = read_agreed(path).federation
            assert (found.parties, found.private is not None) == (names, private)
    assert read_agreed(examples / "federation.toml").federation.parties[0] == "hospital-1"
    assert read_server(examples / "server.toml").own.serve.deadline_s is None
    assert read_party(examples / "party.toml").data.site == "hospital-1"


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from tacit.cli.main import main
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
main()
"""


def test_a_ledger_on_a_full_disk_ends_a_party_with_its_path_and_loses_nothing(tacit, place, start):
    """No file may grow beyond a little more than the ledger; then there is room again."""
    base = place(rounds=60, privacy=PRIVATE)
    for name in PARTIES:
        path = str(base / name / "party.toml")
        assert tacit("approve", path, "--yes")[0] == 0
        allow = ("--epsilon", "2", "--delta", "1e-4", "--reason", "board")
        assert tacit("ledger", "budget", path, *allow)[0] == 0
    patient = ("--set", "join.retry_for=60s")
    serving = start("serve", base / "server" / "server.toml")
    north = start("join", base / "north" / "party.toml", *patient)
    ledger = base / "south" / "ledger.sqlite"
    command = ("join", str(base / "south" / "party.toml"), *patient)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(ledger.stat().st_size + 3 * 4096), *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"TACIT_COMPILATION_CACHE": "off", "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 4, done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: {ledger} cannot be written ("), last
    assert "free disk space" in last
    assert "restore" not in last, "nothing is damaged: an older copy would forget what was spent"
    with Ledger(ledger) as found:
        before = sum(row.kind == "charge" for row in found.entries())
    assert 0 < before < 60
    again = start(*command)
    for process in (again, north, serving):
        code, said = _end(process)
        assert code == 0, said
    with Ledger(ledger) as found:
        charged = [row.request for row in found.entries() if row.kind == "charge"]
        found.verify()
    assert len(charged) == len(set(charged)) == 60


@pytest.mark.parametrize("command", ["join", "serve"])
def test_work_that_is_cancelled_without_a_signal_is_no_interruption(
    command, tacit, place, monkeypatch
):
    async def cancelled(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    base = place()
    party, server = base / "north" / "party.toml", base / "server" / "server.toml"
    assert tacit("approve", str(party), "--yes")[0] == 0
    monkeypatch.setattr(f"tacit.live.{command}.{command}", cancelled)
    code, _, err = tacit(command, str(party if command == "join" else server))
    assert code == 1
    assert "was cancelled without a signal" in err
    assert "the same command again" in err
