"""A live federation in a directory: its files, its ends in one event loop or in processes."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from scipy.sparse import csr_array, save_npz

from tacit.data import public_schema
from tacit.live.config import read_agreed, read_party, read_server
from tacit.live.join import approve, join
from tacit.live.plan import _located, party_plan, server_plan
from tacit.live.serve import serve
from tacit.live.transport import certificates as certs
from tacit.live.transport.tls import fingerprint, read_certificate
from tacit.plan.plan import Plan, first_factors, make_plan
from tacit.pvi import product
from tacit.run.build import make_method, make_model, make_schedule
from tacit.server.checkpoint import Checkpoint
from tacit.support.tables import plain

COLUMNS = {
    "a": {"low": -3.0, "high": 3.0},
    "b": {"low": -3.0, "high": 3.0},
    "y": {"levels": ["no", "yes"]},
}
DOCUMENT_WORDS = [f"w{number}" for number in range(12)]
DOCUMENTS = {"source": "documents", "vocabulary": "words.txt", "different_words": 12}
BINARY = {"outcome": "y", "positive": "yes", "columns": COLUMNS}
SEVERAL = {"outcome": "y", "columns": COLUMNS | {"y": {"levels": ["no", "maybe", "yes"]}}}
NUMBERS = {"outcome": "y", "columns": {"y": {"low": -9.0, "high": 9.0}}}


_models: dict[tuple[Any, ...], Any] = {}


def shared_model(config: Any, federation: Any) -> Any:
    """As `make_model`, but the same object for the same question: one compilation for all ends."""
    described = plain(config.model)
    if "function" in described:
        described["function"] = described["function"].rpartition("/")[2]
    key = (repr(described), federation.names, config.seed)
    if key not in _models:
        _models[key] = make_model(config, federation)
    return _models[key]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def some_documents(number: int, rows: int) -> csr_array:
    """Counts of words, never none, unlike at every party."""
    rng = np.random.default_rng([number, 7])
    return csr_array(rng.poisson(0.6, (rows, len(DOCUMENT_WORDS))) + np.eye(rows, 12, dtype=int))


def binary_csv(number: int, rows: int) -> str:
    rng = np.random.default_rng([7, number])
    x = rng.normal(size=(rows, 2)) + 0.3 * rng.normal(size=2)
    y = x @ [1.0, -1.0] + rng.logistic(size=rows) > 0
    lines = [f"{a:.6f},{b:.6f},{'yes' if one else 'no'}" for (a, b), one in zip(x, y, strict=True)]
    return "\n".join(["a,b,y", *lines]) + "\n"


def number_csv(number: int, rows: int) -> str:
    values = np.random.default_rng([8, number]).normal(2.0 + 0.1 * number, 1.0, size=rows)
    return "\n".join(["y", *(f"{value:.6f}" for value in values)]) + "\n"


@dataclass
class Fed:
    """The files of a federation; a party's keys and the server's may be changed before a start."""

    base: Path
    names: tuple[str, ...]
    agreed: dict[str, Any]
    rows: int = 24
    serve: dict[str, Any] = field(default_factory=dict)
    join: dict[str, Any] = field(default_factory=dict)
    encodings: tuple[str, ...] = ("msgpack",)
    port: int = field(default_factory=free_port)
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost")
    ledgers: bool = False
    """Whether every party has a ledger of its own beside its file, as a run that counts needs."""

    def __post_init__(self) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        if not (self.base / "pki").exists():
            certs.init_authority(self.base / "pki")
            certs.issue_server(self.base / "pki", list(self.hosts))
            for name in self.names:
                certs.issue_party(self.base / "pki", name)
        body = {"name": "test", "seed": 3, "parties": list(self.names), **self.agreed}
        privacy = body["privacy"]
        if isinstance(privacy, dict) and privacy.get("aggregation") == "secure":
            body.setdefault("keys", {name: self.fingerprint(name) for name in self.names})
        self._write("federation.toml", body)
        for number, name in enumerate(self.names):
            if self.source == "documents":
                (self.base / "words.txt").write_text("\n".join(DOCUMENT_WORDS))
                save_npz(self.base / f"{name}.npz", some_documents(number, self.rows))
            if self.source == "file":
                text = binary_csv if len(body["columns"]) > 1 else number_csv
                (self.base / f"{name}.csv").write_text(text(number, self.rows))
            self.write_party(name)
        self.write_server()

    def fingerprint(self, name: str) -> str:
        """Of a party's public key."""
        return fingerprint(read_certificate(self.base / "pki" / f"party-{name}.pem").public_key())

    @property
    def source(self) -> str:
        return self.agreed.get("data", {}).get("source", "file")

    def write_server(self, file: str = "server.toml", state: str = "server", **changes: Any):
        serve = {
            "listen": f"127.0.0.1:{self.port}",
            "state": state,
            "certificate": "pki/server-127.0.0.1.pem",
            "key": "pki/server-127.0.0.1.key",
            "authority": "pki/ca.pem",
            "revoked": "pki/revoked.pem",
            "keep_result_for": "10.0s",
            **self.serve,
            **changes,
        }
        self._write(file, {"federation": "federation.toml", "serve": serve})
        return read_server(self.base / file)

    def write_party(self, name: str, file: str | None = None, **changes: Any):
        number = self.names.index(name)
        join = {
            "servers": [f"127.0.0.1:{self.port}"],
            "state": f"state-{name}",
            "certificate": f"pki/party-{name}.pem",
            "key": f"pki/party-{name}.key",
            "authority": "pki/ca.pem",
            "encoding": self.encodings[number % len(self.encodings)],
            "retry_for": "60.0s",
            **self.join,
            **changes,
        }
        suffix = {"file": "csv", "documents": "npz"}.get(self.source)
        data = {"path": f"{name}.{suffix}"} if suffix else {}
        data = {"site": name} if self.source == "synthetic-cohort" else data
        file = file or f"{name}.toml"
        own = {"ledger": f"ledger-{name}.sqlite"} if self.ledgers else {}
        self._write(file, {"federation": "federation.toml", **own, "join": join, "data": data})
        return read_party(self.base / file)

    def _write(self, file: str, body: dict[str, Any]) -> None:
        (self.base / file).write_text(tomlkit.dumps(body))

    @property
    def server(self):
        return read_server(self.base / "server.toml")

    def party(self, name: str):
        return read_party(self.base / f"{name}.toml")

    def approve(self) -> None:
        for name in self.names:
            approve(self.party(name))

    def alone(self) -> Plan:
        """The plan of one process that has all the records; nothing live about it."""
        found = read_agreed(self.base / "federation.toml")
        federation = found.federation
        config = _located(federation.as_config(), self.base)
        records = {name: party_plan(self.party(name), name)[0].parties[name] for name in self.names}
        return make_plan(
            shared_model(config, public_schema(config.data, sites=len(self.names))),
            records,
            family=federation.posterior,
            method=make_method(config),
            schedule=make_schedule(config),
            seed=federation.seed,
            batch_parties=False,
            privacy=federation.private,
        )

    def state(self, directory: str = "server"):
        """The server's durable state, None before the start."""
        digest = read_agreed(self.base / "federation.toml").digest
        checkpoint = Checkpoint(self.base / directory / "server.sqlite", digest=digest)
        try:
            saved = checkpoint.load()
        finally:
            checkpoint.close()
        return None if saved is None else saved[0]

    def natural(self, place: str = "server") -> dict[str, np.ndarray]:
        """The posterior that was left in a state directory."""
        with np.load(self.base / place / "public" / "posterior.npz") as archive:
            return {
                key.removeprefix("natural/"): archive[key]
                for key in archive.files
                if key.startswith("natural/")
            }

    def journal(self, place: str = "server") -> list[dict[str, Any]]:
        """Every line of a log, each of which is JSON."""
        path = self.base / place / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def assert_identity(self) -> None:
        """q = prior × ∏ factors, in the server's durable state."""
        state = self.state()
        if state is not None:
            assert_identity(server_plan(self.server.agreed), state)


def assert_identity(plan: Plan, state: Any) -> None:
    rules = plan.rules
    expected = product(rules.prior, (factor.natural for factor in state.factors.values()))
    for name, value in expected.items():
        scale = 1 + np.max(np.abs(value))
        np.testing.assert_allclose(state.q[name], value, rtol=0, atol=1e-10 * scale)
    assert set(first_factors(plan)) <= set(state.factors)


def assert_same_bits(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert np.asarray(value).dtype == np.asarray(two[name]).dtype == np.float64
        assert np.asarray(value).tobytes() == np.asarray(two[name]).tobytes(), name


# In one event loop.


async def run_all(fed: Fed, *, within_s: float = 240.0) -> list[dict[str, Any]]:
    """The server's result and the parties', in order."""
    async with asyncio.timeout(within_s):
        server = await started(fed)
        try:
            parties = await asyncio.gather(*(join(fed.party(name)) for name in fed.names))
            result = await server
        finally:
            await ended(server)
    assert result is not None
    return [result, *parties]


async def started(fed: Fed, setup: Any = None, **options: Any) -> asyncio.Task[Any]:
    """A server that listens."""
    ready = asyncio.Event()
    task = asyncio.create_task(
        serve(setup or fed.server, ready=lambda _: ready.set(), **options), name="server"
    )
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    return task


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel whatever still runs."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Any, within_s: float = 60.0) -> None:
    """Poll until it holds."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.02)


# In processes.


class Worker:
    """A process that has imported everything and forks an end of the wire for every command."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "worker.err").open("w")
        self._process: Any = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("wire_worker.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self._running: set[int] = set()

    def _ask(self, **command: Any) -> Any:
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, Path(self._log.name).read_text()
        return json.loads(answer)

    def serve(self, fed: Fed, file: str = "server.toml", **options: Any) -> int:
        return self._start("serve", fed.base / file, **options)

    def join(self, fed: Fed, name: str, **options: Any) -> int:
        return self._start("join", fed.base / f"{name}.toml", **options)

    def _start(self, what: str, file: Path, **options: Any) -> int:
        pid = self._ask(what=what, file=str(file), **options)
        self._running.add(pid)
        return pid

    def ended(self, pid: int, within_s: float = 180.0) -> int | None:
        """The exit code, or None if it still runs by then."""
        code = self._ask(what="wait", pid=pid, within_s=within_s)
        if code is not None:
            self._running.discard(pid)
        return code

    def kill(self, pid: int) -> int | None:
        """kill -9; the exit code: -9, unless it had ended before."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # a zombie until the worker has waited for it
        return self.ended(pid)

    def errors(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()

    def close(self) -> None:
        for pid in list(self._running):
            self.kill(pid)
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._log.close()
