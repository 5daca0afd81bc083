"""A federation on loopback: certificates, files, a server and parties in one event loop.

`conftest.py` puts this directory on the path: tests say `import harness`. The default federation
is the mean of a normal with known noise, whose exact posterior is known in closed form:

    federation = harness.Federation.make(tmp_path, rounds=2)
    async with federation.serving() as running:
        north = asyncio.create_task(federation.join("north"))
        ...
        assert await running.over() == "finished"
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.live import serve as live_serve
from tacit.live.config import PartySetup, ServerSetup, read_party, read_server
from tacit.live.join import PartyEnd, approve, join
from tacit.live.journal import Journal
from tacit.live.plan import server_plan
from tacit.live.protocol import messages as m
from tacit.live.protocol.codec import decode, encode
from tacit.live.server.coordinator import WireServer
from tacit.live.server.live_run import LiveRun
from tacit.live.transport.certificates import init_authority, issue_party, issue_server
from tacit.live.transport.frames import read_frame, write_frame
from tacit.live.transport.tls import Credentials, client_context, read_certificate, read_key
from tacit.plan.plan import first_factors

PARTIES = ("north", "south")
RECORDS = {
    "north": (4.51, 5.27, 6.03, 4.79, 5.53),
    "south": (3.01, 4.07, 3.59),
    "west": (7.03, 6.53, 7.27, 6.01),
}
SECONDS = 60.0
"""Nothing in these tests takes so long; a hang is an error, not a wait."""


@dataclass(frozen=True)
class Pki:
    """An authority, a server of it and parties."""

    directory: Path

    @classmethod
    def make(cls, directory: Path, parties: tuple[str, ...] = ("north", "south", "west")) -> "Pki":
        init_authority(directory)
        issue_server(directory, ["127.0.0.1", "localhost"])
        for name in parties:
            issue_party(directory, name)
        return cls(directory)

    def of(self, name: str, role: str = "party") -> Credentials:
        place, stem = self.directory, f"{role}-{name}"
        return Credentials(place / f"{stem}.pem", place / f"{stem}.key", place / "ca.pem")

    @property
    def server(self) -> Credentials:
        return self.of("127.0.0.1", "server")

    def forge(
        self,
        where: Path,
        name: str,
        *,
        start: timedelta = timedelta(days=-2),
        end: timedelta = timedelta(days=1),
    ) -> Credentials:
        """A party's certificate with a new key that `tacit certs` would not issue now."""
        now = datetime.now(UTC)
        authority, key = read_certificate(self.directory / "ca.pem"), generate_key()
        signer: Any = authority.public_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + start)
            .not_valid_after(now + end)
            .add_extension(use, critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("x")]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False)
            .sign(read_key(self.directory / "ca.key"), hashes.SHA256())
        )
        made = Credentials(where / "forged.pem", where / "forged.key", self.directory / "ca.pem")
        made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        made.key.touch(mode=0o600)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
        made.key.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
        return made


def generate_key() -> Any:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class Running:
    """A server that runs in this event loop."""

    server: WireServer
    live: LiveRun
    lines: list[dict[str, Any]]
    task: "asyncio.Task[str]"

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def over(self) -> str:
        """How it ended."""
        return await asyncio.wait_for(asyncio.shield(self.task), SECONDS)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    async def until(self, true: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """Wait for something to become true, and return it."""
        async with asyncio.timeout(seconds):
            while not (found := true()):
                await asyncio.sleep(0.01)
            return found

    async def line(self, event: str, seconds: float = SECONDS, **fields: Any) -> dict[str, Any]:
        """Wait for a line of the journal with these fields; a text needs only to be contained."""

        def fits(line: dict[str, Any]) -> bool:
            return line["event"] == event and all(
                value in str(line.get(key, ""))
                if isinstance(value, str)
                else line.get(key) == value
                for key, value in fields.items()
            )

        return await self.until(lambda: next(filter(fits, self.lines), None), seconds)

    @property
    def posterior(self) -> dict[str, np.ndarray]:
        assert self.live.state is not None
        return self.live.state.result


@dataclass
class Federation:
    """The files of a federation in a directory."""

    base: Path
    pki: Pki
    parties: tuple[str, ...]
    serve: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        base: Path,
        pki: Pki | None = None,
        *,
        parties: tuple[str, ...] = PARTIES,
        rounds: int = 2,
        kind: str = "synchronous",
        rows: dict[str, Any] | None = None,
        serve: dict[str, Any] | None = None,
        join: dict[str, Any] | None = None,
        **agreed: Any,
    ) -> "Federation":
        """federation.toml, server.toml and, for each party, a directory with party.toml.

        Further keywords are tables and keys of federation.toml.
        """
        pki = pki or Pki.make(base / "pki")
        body: dict[str, Any] = {
            "privacy": "none",
            "parties": list(parties),
            "outcome": "y",
            "columns": {"x": {"low": -1.0, "high": 1.0}},
            "model": {"kind": "normal-mean"},
            "method": {"kind": "exact"},
            "schedule": {"kind": kind, "rounds": rounds, "damping": 1.0},
        } | agreed
        _write(base / "federation.toml", body)
        made = cls(base, pki, parties, dict(serve or {}))
        made._write_server()
        for name in parties:
            made.write_party(name, (rows or RECORDS)[name], **(join or {}))
        return made

    def _write_server(self) -> None:
        own = {"listen": "127.0.0.1:0", "state": "state", "keep_result_for": "5.0s"} | self.serve
        files = _files(self.pki.server) | {"revoked": str(self.pki.directory / "revoked.pem")}
        _write(self.base / "server.toml", {"federation": "federation.toml", "serve": files | own})

    def write_party(self, name: str, records: Any, **own: Any) -> Path:
        """A party's own directory: its records and its party.toml, still without a server."""
        place = self.base / name
        place.mkdir(exist_ok=True)
        if isinstance(records, str):
            (place / "records.csv").write_text(records)
        else:
            rows = "".join(f"0.5,{value!r}\n" for value in records)
            (place / "records.csv").write_text("x,y\n" + rows)
        join = {"servers": ["127.0.0.1:1"], "state": "state"} | own
        body: dict[str, Any] = {
            "federation": "../federation.toml",
            "join": _files(self.pki.of(name)) | join,
            "data": {"path": "records.csv"},
        }
        if "ledger" in join:
            body["ledger"] = join.pop("ledger")
            body["join"].pop("ledger")
        _write(place / "party.toml", body)
        return place / "party.toml"

    # In this event loop -------------------------------------------------------------------------

    @property
    def server_setup(self) -> ServerSetup:
        return read_server(self.base / "server.toml")

    def party_setup(self, name: str, server: str | int, *overrides: str) -> PartySetup:
        """A party's files, with the address of a server that now has one."""
        address = f"127.0.0.1:{server}" if isinstance(server, int) else server
        path = self.base / name / "party.toml"
        return read_party(path, (f'join.servers=["{address}"]', *overrides))

    @contextlib.asynccontextmanager
    async def serving(self, **changes: Any) -> AsyncIterator[Running]:
        """A server; what is left of it at the end is closed."""
        self.serve |= changes
        self._write_server()
        setup = self.server_setup
        plan = server_plan(setup.agreed)
        setup.state.mkdir(exist_ok=True)
        lines: list[dict[str, Any]] = []
        journal = Journal(setup.state / "log.jsonl", lines.append)
        live = LiveRun(
            setup.state, plan.rules, first_factors(plan), setup.agreed.digest,
            private=plan.privacy is not None, accept_returned=setup.own.serve.accept_returned,
            reply_rules=live_serve.reply_rules(setup, plan),
        )  # fmt: skip
        credentials = setup.own.serve.credentials(setup.base)
        server = WireServer(
            live, credentials, setup.own.serve, journal, prior=live_serve._prior(plan)
        )
        ready = asyncio.Event()
        task = asyncio.create_task(server.serve(lambda _port: ready.set()))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield Running(server, live, lines, task)
        finally:
            waiting.cancel()
            if not task.done():
                server.close("the test is over", None)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(task, SECONDS)
            live.close()
            journal.close()

    async def join(
        self, name: str, server: str | int, *overrides: str, watch: Any = None
    ) -> PartyEnd:
        """One of our own parties, from its files to the posterior."""
        setup = self.party_setup(name, server, *overrides)
        if not (setup.state / "approved.json").exists():
            approve(setup)
        return await asyncio.wait_for(join(setup, watch), 2 * SECONDS)

    # As processes -------------------------------------------------------------------------------

    def process(self, *argv: str, **options: Any) -> "subprocess.Popen[bytes]":
        """`tacit …` as a process; whoever starts it ends it, by its id."""
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "tacit.cli.main", *argv]
        return subprocess.Popen(command, cwd=self.base, env=environment, **options)


class Puppet:
    """A party in the test's hands: says what it is told to, true or not."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        encoding: Any = "json",
    ) -> None:
        self.reader, self.writer, self.encoding = reader, writer, encoding

    @classmethod
    async def connect(
        cls, port: int, credentials: Credentials, encoding: Any = "msgpack"
    ) -> "Puppet":
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_context(credentials), server_hostname="127.0.0.1"
        )
        return cls(reader, writer, encoding)

    async def send(self, message: m.ClientMessage) -> bytes:
        payload = encode(message, self.encoding)
        await write_frame(self.writer, payload)
        return payload

    async def send_raw(self, payload: bytes) -> None:
        await write_frame(self.writer, payload)

    async def receive(self, seconds: float = SECONDS) -> Any:
        payload = await asyncio.wait_for(read_frame(self.reader), seconds)
        return decode(payload, self.encoding, m.SERVER_MESSAGES)

    async def join(self, configuration: str | None = None, **fields: Any) -> Any:
        given = {"data_size": 5, "protocol": m.PROTOCOL} | fields
        if configuration is not None:
            given["configuration"] = configuration
        await self.send(m.JoinCluster(**given))
        return await self.receive()

    async def rejoin(self) -> Any:
        await self.send(m.ReJoinCluster())
        return await self.receive()

    async def closed(self, seconds: float = SECONDS) -> bool:
        """Whether the server hangs up within that time; what it still says is passed over."""
        try:
            async with asyncio.timeout(seconds):
                while await self.reader.read(65536):
                    pass
        except TimeoutError:
            return False
        except OSError:
            pass  # a reset is an end, too
        return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), 2.0)


def exact_delta(selected: m.SelectedForTraining, records: Any) -> dict[str, np.ndarray]:
    """The honest answer for the mean of a normal with sd 1: ρ (T − t), T the exact factor."""
    from tacit.live.protocol.arrays import unpack

    assert isinstance(selected.factor, dict)
    factor = unpack(selected.factor, None, "factor")
    values = np.asarray(records, dtype=np.float64)
    whole = {"linear": values.sum(), "quadratic": -0.5 * len(values)}
    rho = selected.damping_factor
    assert rho is not None
    return {name: rho * (whole[name] - value) for name, value in factor.items()}


def answer_to(selected: m.SelectedForTraining, exact: Any, encoding: Any, **changes: Any) -> Any:
    """An UpdatedLikelihood, honest but for the changes."""
    from tacit.live.protocol.arrays import pack

    fields = {
        "delta": pack(exact, encoding),
        "request": selected.request,
        "factor_version": selected.factor_version,
    } | changes
    return m.UpdatedLikelihood(**{key: value for key, value in fields.items() if value is not ...})


def exact_posterior(*parts: Any) -> dict[str, float]:
    """λ of the mean of a normal with sd 1 under the prior N(0, 1), given all the records."""
    values = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    return {"linear": float(values.sum()), "quadratic": -0.5 * (1.0 + len(values))}


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two natural parameters agree to the last bit."""
    return set(one) == set(other) and all(
        np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes() for name in one
    )


def run_async(work: Any, seconds: float = 180.0) -> Any:
    """Run a coroutine; one that hangs is an error."""
    return asyncio.run(asyncio.wait_for(work, seconds))


def journal_of(state: Path) -> list[dict[str, Any]]:
    """The lines of a log.jsonl."""
    return [json.loads(line) for line in (state / "log.jsonl").read_text().splitlines()]


def _files(credentials: Credentials) -> dict[str, str]:
    return {
        "certificate": str(credentials.certificate),
        "key": str(credentials.key),
        "authority": str(credentials.authority),
    }


def _write(path: Path, body: dict[str, Any]) -> None:
    path.write_text(tomlkit.dumps(body))
