"""Peers written from the thesis's text alone meet ours.

`ThesisClient` and `ThesisServer` know §3.1.2 and Code 3.1 and nothing of tacit: plain sockets,
`json`, `cbor2` or bincode, {mean, variance} everywhere. The model is the mean θ of a normal with sd
1, prior N(0, 1), so that the exact posterior is known, or the regression of the thesis's §4.2 with
vectors of means and variances.
"""

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cbor2
import harness
import numpy as np
import pytest
from harness import Federation, Running, run_async

from tacit.errors import PeerError
from tacit.live.protocol.messages import PROTOCOL
from tacit.live.session import ClosedError
from tacit.live.transport.tls import Credentials

NAMES = ("north", "south", "west")
EXACT = harness.exact_posterior(*(harness.RECORDS[name] for name in NAMES))
FOREVER = 1e300  # a variance that says nothing


# What somebody would write who has read the thesis -------------------------------------------


@dataclass(frozen=True)
class Style:
    """Where the thesis leaves a choice: the serialisation, and what is done with nothing."""

    encoding: str = "json"
    nulls: bool = True  # optional fields that are None: null, or left out
    nothing: Any = FOREVER  # the variance of a ratio between equal factors
    null_mean: bool = False  # whether the mean of such a ratio, which has none, is null
    integers: bool = False  # whole numbers without a point, as some libraries write them
    vectors: bool = False  # bincode must know the types in advance


class Line:
    """TLS, a length of 32 bits, a serialised enum."""

    def __init__(self, sock: ssl.SSLSocket, style: Style) -> None:
        self.sock, self.style = sock, style
        self.heard: list[Any] = []

    def send(self, name: str, **fields: Any) -> None:
        if not self.style.nulls:
            fields = {key: value for key, value in fields.items() if value is not None}
        if self.style.integers:
            fields = json.loads(json.dumps(fields), parse_float=lambda text: _whole(float(text)))
        if self.style.encoding.startswith("bincode"):
            payload = bincode_written(name, fields, self.style.encoding)
            self.sock.sendall(struct.pack(">I", len(payload)) + payload)
            return
        body: Any = {name: fields} if fields or name not in BARE else name
        dump = cbor2.dumps if self.style.encoding == "cbor" else lambda it: json.dumps(it).encode()
        payload = dump(body)
        self.sock.sendall(struct.pack(">I", len(payload)) + payload)

    def receive(self) -> tuple[str, dict[str, Any]]:
        (length,) = struct.unpack(">I", self._exactly(4))
        payload = self._exactly(length)
        if self.style.encoding.startswith("bincode"):
            name, fields = bincode_read(payload, self.style)
            self.heard.append((name, fields))
            return name, fields
        body = cbor2.loads(payload) if self.style.encoding == "cbor" else json.loads(payload)
        name, fields = (body, {}) if isinstance(body, str) else next(iter(body.items()))
        self.heard.append((name, fields))
        return name, fields

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self.sock.recv(count - len(found))
            if not more:
                raise ConnectionError("the other end is gone")
            found += more
        return found

    def close(self) -> None:
        self.sock.close()


BARE = ("ReJoinCluster", "EndOfConnectionAcknowledgement")
CLIENT_NUMBERS = {
    "JoinCluster": 0, "ReJoinCluster": 1, "UpdatedLikelihood": 2, "FinalLeaveTraining": 5,
}  # fmt: skip


def bincode_written(name: str, fields: dict[str, Any], layout: str) -> bytes:
    """What serde and bincode make of Code 3.1, as far as this client writes it."""
    fixed = layout == "bincode-fixint"

    def integer(value: int, size: int) -> bytes:
        assert value < 251
        return value.to_bytes(size, "little") if fixed else bytes([value])

    def normal(args: dict[str, Any]) -> bytes:
        out = b""
        for part in (args["mean"], args["variance"]):
            if isinstance(part, list):
                out += integer(len(part), 8) + struct.pack(f"<{len(part)}d", *part)
            else:
                out += struct.pack("<d", part)
        return out

    body = integer(CLIENT_NUMBERS[name], 4)
    if name == "JoinCluster":
        body += integer(fields["data_size"], 8)
    elif name == "UpdatedLikelihood":
        body += normal(fields["new_likelihood"]) + normal(fields["delta"])
        body += struct.pack("<d", fields["loss"])
    elif name == "FinalLeaveTraining":
        body += bytes([fields["available_for_future_training"]])
    return body


def bincode_read(payload: bytes, style: "Style") -> tuple[str, dict[str, Any]]:
    """A server's message; this client expects only some of them."""
    fixed, at = style.encoding == "bincode-fixint", 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        assert at <= len(payload)
        return payload[at - count : at]

    def integer(size: int) -> int:
        return int.from_bytes(take(size if fixed else 1), "little")

    def numbers() -> Any:
        if not style.vectors:
            return struct.unpack("<d", take(8))[0]
        length = integer(8)
        return list(struct.unpack(f"<{length}d", take(8 * length)))

    number = integer(4)
    name = ["AcceptedIntoCluster", "?", "?", "SelectedForTraining", "?", "EndOfTraining"][number]
    fields: dict[str, Any] = {}
    if name == "AcceptedIntoCluster":
        assert take(1) == b"\0"
        fields = {"expected_start_time": None}
    elif name == "SelectedForTraining":
        fields["current_posterior"] = {"mean": numbers(), "variance": numbers()}
        fields["damping_factor"] = struct.unpack("<d", take(8))[0] if take(1) == b"\1" else None
    else:
        assert name == "EndOfTraining"
        fields["final_posterior"] = {"mean": numbers(), "variance": numbers()}
        assert take(1) == b"\0"
    assert at == len(payload)
    return name, fields


def _whole(value: float) -> Any:
    return int(value) if value == int(value) and abs(value) < 1e9 else value


def natural(mean: float | None, variance: float | None) -> tuple[float, float]:
    """(precision × mean, precision)."""
    if variance is None or variance in (float("inf"), float("-inf")):
        return 0.0, 0.0
    assert mean is not None
    return mean / variance, 1.0 / variance


def usual(
    linear: float, precision: float, nothing: Any = FOREVER, *, null_mean: bool = False
) -> dict[str, Any]:
    if abs(precision) < 1e-12 and abs(linear) < 1e-9:
        return {"mean": None if null_mean else 0.0, "variance": nothing}
    return {"mean": linear / precision, "variance": 1.0 / precision}


def tls(sock: socket.socket, files: Credentials, *, server: bool) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    host = None if server else "127.0.0.1"
    return context.wrap_socket(sock, server_side=server, server_hostname=host)


@dataclass
class ThesisClient:
    """Joins, waits for the posterior, sends the updated likelihood, leaves at the end."""

    port: int
    files: Credentials
    records: tuple[float, ...]
    style: Style = field(default_factory=Style)
    factor: tuple[float, float] = (0.0, 0.0)
    final: dict[str, Any] | None = None
    answered: dict[str, Any] | None = None
    """A question that may come twice, as after an Error that crossed it."""

    def connect(self) -> Line:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=20.0)
        return Line(tls(sock, self.files, server=False), self.style)

    def join(self) -> Line:
        line = self.connect()
        line.send("JoinCluster", data_size=len(self.records))
        name, fields = line.receive()
        assert name == "AcceptedIntoCluster", (name, fields)
        assert fields == {"expected_start_time": None}
        return line

    def rejoin(self) -> Line:
        line = self.connect()
        line.send("ReJoinCluster")
        name, fields = line.receive()
        assert name == "ReAcceptanceIntoCluster", (name, fields)
        assert set(fields) == {"last_likelihood"}
        self.factor = natural(**fields["last_likelihood"])
        return line

    def answer(self, line: Line, current_posterior: Any, damping_factor: Any) -> None:
        """The exact factor is (Σy, n); damped, the new one is old + ρ (exact − old)."""
        rho = 1.0 if damping_factor is None else damping_factor
        exact = (sum(self.records), float(len(self.records)))
        delta = tuple(rho * (new - old) for new, old in zip(exact, self.factor, strict=True))
        self.factor = (self.factor[0] + delta[0], self.factor[1] + delta[1])
        line.send(
            "UpdatedLikelihood",
            new_likelihood=usual(*self.factor),
            delta=usual(*delta, nothing=self.style.nothing, null_mean=self.style.null_mean),
            loss=0.5 * sum((y - current_posterior["mean"]) ** 2 for y in self.records),
        )

    def train(self, line: Line, turns: int | None = None) -> None:
        """Until the end, or for so many turns."""
        while turns is None or turns > 0:
            name, fields = line.receive()
            if name == "SelectedForTraining" and fields == self.answered:
                continue
            if name == "SelectedForTraining":
                self.answer(line, **fields)
                turns = None if turns is None else turns - 1
            elif name == "EndOfTraining":
                self.final = fields["final_posterior"]
                line.send("FinalLeaveTraining", available_for_future_training=True)
                break
            else:
                raise AssertionError((name, fields))

    def run(self) -> None:
        line = self.join()
        self.train(line)
        line.close()


class ThesisServer(threading.Thread):
    """Sequential PVI over so many clients; `script` may do something else with a client."""

    def __init__(
        self, files: Credentials, clients: int, rounds: int, style: Style, script: Any = None
    ) -> None:
        super().__init__(daemon=True)
        self.files, self.clients, self.rounds, self.style = files, clients, rounds, style
        self.script = script or ThesisServer.coordinate
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20.0)
        self.port = self.listener.getsockname()[1]
        self.posterior = (0.0, 1.0)
        self.factors: dict[str, tuple[float, float]] = {}
        self.error: BaseException | None = None

    def accept(self) -> tuple[str, Line]:
        sock = tls(self.listener.accept()[0], self.files, server=True)
        sock.settimeout(20.0)
        return self.name_of(sock), Line(sock, self.style)

    @staticmethod
    def name_of(sock: ssl.SSLSocket) -> str:
        subject: Any = (sock.getpeercert() or {})["subject"]
        return dict(pair for part in subject for pair in part)["commonName"]

    def admit(self) -> tuple[str, Line]:
        name, line = self.accept()
        tag, fields = line.receive()
        if tag == "JoinCluster":
            assert fields["data_size"] >= 0
            line.send("AcceptedIntoCluster", expected_start_time=None)
        else:
            assert tag == "ReJoinCluster"
            style = self.style
            last = usual(*self.factors[name], nothing=style.nothing, null_mean=style.null_mean)
            line.send("ReAcceptanceIntoCluster", last_likelihood=last)
        return name, line

    def ask(self, name: str, line: Line) -> None:
        line.send(
            "SelectedForTraining", current_posterior=usual(*self.posterior), damping_factor=None
        )
        tag, fields = line.receive()
        assert tag == "UpdatedLikelihood", (tag, fields)
        assert isinstance(fields["loss"], float)
        delta, new = natural(**fields["delta"]), natural(**fields["new_likelihood"])
        old = self.factors.get(name, (0.0, 0.0))
        assert new == pytest.approx((old[0] + delta[0], old[1] + delta[1]), abs=1e-9)
        self.factors[name] = new
        self.posterior = (self.posterior[0] + delta[0], self.posterior[1] + delta[1])

    def coordinate(self) -> None:
        lines = dict(self.admit() for _ in range(self.clients))
        for _ in range(self.rounds):
            for name, line in lines.items():
                self.ask(name, line)
        for line in lines.values():
            self.end(line)

    def end(self, line: Line) -> None:
        line.send("EndOfTraining", final_posterior=usual(*self.posterior), future_training=None)
        assert line.receive() == ("FinalLeaveTraining", {"available_for_future_training": True})
        line.close()

    def run(self) -> None:
        try:
            self.script(self)
        except BaseException as error:
            self.error = error
        finally:
            self.listener.close()

    def done(self) -> None:
        self.join(20.0)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


# Their clients, our server ----------------------------------------------------------------------

STYLES = {
    "json": Style(),
    "cbor": Style("cbor"),
    "without nulls": Style(nulls=False),
    "nothing is null": Style(nothing=None),
    "nothing is null and null": Style(nothing=None, null_mean=True),
    "nothing is infinite, of no mean": Style("cbor", nothing=float("inf"), null_mean=True),
    "nothing is infinite": Style("cbor", nothing=float("inf")),
    "Infinity in JSON": Style(nothing=float("inf"), integers=True),
    "bincode": Style("bincode"),
    "bincode-fixint": Style("bincode-fixint"),
}


def is_exact(posterior: dict[str, Any], exact: dict[str, float] = EXACT) -> None:
    for name, value in exact.items():
        assert posterior[name].item() == pytest.approx(value, rel=1e-9, abs=1e-9)


def is_exact_normal(final: dict[str, Any] | None, exact: dict[str, float] = EXACT) -> None:
    assert final is not None
    linear, precision = natural(**final)
    assert linear == pytest.approx(exact["linear"], rel=1e-9)
    assert precision == pytest.approx(-2.0 * exact["quadratic"], rel=1e-9)


def client(federation: Federation, running: Running, name: str, style: Style) -> ThesisClient:
    return ThesisClient(running.port, federation.pki.of(name), harness.RECORDS[name], style)


async def play(federation: Federation, ours: tuple[str, ...], styles: list[Style]) -> Any:
    """Some of our parties and some of theirs, to the end; what the latter heard."""
    async with federation.serving() as running:
        own = [asyncio.create_task(federation.join(name, running.port)) for name in ours]
        theirs = [name for name in federation.parties if name not in ours]
        clients = [
            client(federation, running, name, style)
            for name, style in zip(theirs, styles, strict=True)
        ]
        await asyncio.gather(*(asyncio.to_thread(one.run) for one in clients))
        results = await asyncio.gather(*own)
        assert await running.over() == "finished"
    assert not running.events("internal")
    assert not running.server.journal.refusals
    is_exact(running.posterior)
    for one in clients:
        is_exact_normal(one.final)
    for result in results:
        assert result.result.posterior.mean == pytest.approx(
            [-0.5 * EXACT["linear"] / EXACT["quadratic"]], rel=1e-9
        )
    return running


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_their_clients_with_one_of_ours(kind, tmp_path, pki):
    federation = Federation.make(tmp_path, pki, parties=NAMES, kind=kind, rounds=3)
    running = run_async(play(federation, ("south",), [STYLES["json"], STYLES["cbor"]]))
    joined = {line["party"]: line["protocol"] for line in running.events("joined")}
    assert joined == {"north": 0, "south": PROTOCOL, "west": 0}


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_their_clients_in_bincode_with_one_of_ours(kind, tmp_path, pki):
    federation = Federation.make(tmp_path, pki, parties=NAMES, kind=kind, rounds=3)
    styles = [STYLES["bincode"], STYLES["bincode-fixint"]]
    running = run_async(play(federation, ("south",), styles))
    told = {line["party"]: line["encoding"] for line in running.events("joined")}
    assert told == {"north": "bincode", "south": "msgpack", "west": "bincode-fixint"}


@dataclass
class ThesisRegression(ThesisClient):
    """The thesis's §4.2: linear regression, a diagonal Gaussian, vectors of means and variances.

    The best diagonal q given the others is exact for a Gaussian likelihood: its precisions are the
    diagonal of the precision matrix, and its means solve one equation each, in turn.
    """

    x: Any = None
    vector: Any = None

    def answer(self, line: Line, current_posterior: Any, damping_factor: Any) -> None:
        rho = 1.0 if damping_factor is None else damping_factor
        mean, variance = (np.array(current_posterior[key]) for key in ("mean", "variance"))
        old = np.zeros((2, len(mean))) if self.vector is None else self.vector
        q = np.array([mean / variance, 1.0 / variance])
        cavity = q - old
        precision, linear = self.x.T @ self.x, self.x.T @ np.array(self.records)
        total = np.diag(cavity[1]) + precision
        local = np.linalg.solve(total, cavity[0] + linear)
        new = np.array([local * np.diag(total), np.diag(total)])
        delta = rho * (new - q)
        self.vector = old + delta
        line.send(
            "UpdatedLikelihood",
            new_likelihood=self.told(self.vector),
            delta=self.told(delta),
            loss=float(0.5 * np.sum((np.array(self.records) - self.x @ mean) ** 2)),
        )

    def told(self, pair: Any) -> dict[str, Any]:
        precision = np.where(np.abs(pair[1]) < 1e-200, 1e-300, pair[1])
        flat = np.abs(pair[1]) < 1e-200
        mean = np.where(flat, pair[0] * 1e300, pair[0] / precision)
        return {"mean": mean.tolist(), "variance": (1.0 / precision).tolist()}


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_their_regression_with_one_of_ours(kind, tmp_path, pki):
    rng = np.random.default_rng(4)
    records, designs = {}, {}
    for name in NAMES:
        x = rng.uniform(-1.0, 1.0, size=(40, 2))
        y = 1.0 + x @ [0.5, -0.8] + rng.normal(size=40)
        records[name] = "a,b,y\n" + "".join(
            f"{a!r},{b!r},{v!r}\n" for (a, b), v in zip(x.tolist(), y.tolist(), strict=True)
        )
        designs[name] = (np.column_stack([np.ones(40), x]), y)  # the intercept comes first
    agreed = {
        "columns": {"a": {"low": -1.0, "high": 1.0}, "b": {"low": -1.0, "high": 1.0}},
        "model": {"kind": "linear", "noise_sd": 1.0, "prior_sd": 1.0},
        "posterior": "mean-field",
    }
    rounds = 12
    federation = Federation.make(
        tmp_path, pki, parties=NAMES, kind=kind, rounds=rounds, rows=records, **agreed
    )
    if kind == "synchronous":
        federation = Federation.make(
            tmp_path, pki, parties=NAMES, rows=records, **agreed,
            schedule={"kind": kind, "rounds": 40, "damping": 0.5},
        )  # fmt: skip

    async def scene() -> Any:
        async with federation.serving() as running:
            own = asyncio.create_task(federation.join("south", running.port))
            theirs = []
            for name, style in (("north", Style()), ("west", Style("bincode", vectors=True))):
                x, y = designs[name]
                theirs.append(ThesisRegression(
                    running.port, federation.pki.of(name), tuple(y), style, x=x
                ))  # fmt: skip
            await asyncio.gather(*(asyncio.to_thread(one.run) for one in theirs))
            await own
            assert await running.over() == "finished"
            return running, theirs

    running, theirs = run_async(scene())
    assert not running.server.journal.refusals
    precision = np.eye(3) + sum(x.T @ x for x, _ in designs.values())
    mean = np.linalg.solve(precision, sum(x.T @ y for x, y in designs.values()))
    for one in theirs:
        found = one.final
        np.testing.assert_allclose(found["mean"], mean, atol=1e-6)
        np.testing.assert_allclose(found["variance"], 1.0 / np.diag(precision), rtol=1e-6)


@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_their_clients_alone_in_every_style(damping, tmp_path, pki):
    schedule = {"kind": "sequential", "rounds": 2 if damping == 1.0 else 40, "damping": damping}
    every = list(STYLES.values())
    every += every[: -len(every) % 3]
    for number in range(0, len(every), 3):
        styles = every[number : number + 3]
        place = tmp_path / str(number)
        place.mkdir()
        federation = Federation.make(place, pki, parties=NAMES, schedule=schedule)
        run_async(play(federation, (), styles))


@pytest.mark.parametrize("name", ["json", "cbor", "nothing is null"])
def test_one_of_theirs_goes_and_comes_back(name, tmp_path, pki):
    """EarlyLeaveCluster with an absence, ReJoinCluster, and the factor that the server kept."""
    federation = Federation.make(tmp_path, pki, rounds=3, kind="sequential")

    def absent(one: ThesisClient) -> None:
        line = one.join()
        one.train(line, turns=1)
        kept = one.factor
        line.send(
            "EarlyLeaveCluster", reason="maintenance", expected_absence={"secs": 1, "nanos": 0}
        )
        while (heard := line.receive()[0]) == "SelectedForTraining":
            pass  # it crossed our leave
        assert heard == "EndOfConnectionAcknowledgement"
        line.close()
        one.factor = (0.0, 0.0)
        line = one.rejoin()
        assert one.factor == pytest.approx(kept, rel=1e-12)
        one.train(line)
        line.close()

    async def scene() -> Running:
        async with federation.serving() as running:
            north = asyncio.create_task(federation.join("north", running.port))
            await asyncio.to_thread(absent, client(federation, running, "south", STYLES[name]))
            await north
            assert await running.over() == "finished"
        return running

    running = run_async(scene())
    (parted,) = running.events("parted")
    assert (parted["reason"], parted["back_in_s"]) == ("maintenance", 1.0)
    is_exact(running.posterior, harness.exact_posterior(*(harness.RECORDS[n] for n in NAMES[:2])))


@pytest.mark.parametrize("on_leave", ["keep", "divide-out"])
def test_one_of_theirs_goes_for_good(on_leave, tmp_path, pki):
    federation = Federation.make(
        tmp_path, pki, parties=NAMES, rounds=3, kind="sequential", on_leave=on_leave
    )

    def leave(one: ThesisClient, other: ThesisClient) -> None:
        held, line = other.join(), one.join()
        one.train(line, turns=1)
        line.send("EarlyLeaveCluster", reason=None, expected_absence=None)
        while (heard := line.receive()[0]) == "SelectedForTraining":
            pass
        assert heard == "EndOfConnectionAcknowledgement"
        line.close()
        line = one.connect()
        line.send("ReJoinCluster")
        name, fields = line.receive()
        assert (name, fields["fixable"]) == ("RejectionFromCluster", False)
        line.close()
        other.train(held)
        held.close()

    async def scene() -> Running:
        async with federation.serving() as running:
            north = asyncio.create_task(federation.join("north", running.port))
            south = client(federation, running, "south", Style(nulls=on_leave == "keep"))
            await asyncio.to_thread(leave, south, client(federation, running, "west", Style()))
            await north
            assert await running.over() == "finished"
        return running

    running = run_async(scene())
    kept = NAMES if on_leave == "keep" else ("north", "west")
    is_exact(running.posterior, harness.exact_posterior(*(harness.RECORDS[n] for n in kept)))


@pytest.mark.parametrize("key", ["error", "reason"])
def test_their_errors_and_ours(key, tmp_path, pki):
    federation = Federation.make(tmp_path, pki, rounds=2)

    def complain(one: ThesisClient) -> None:
        line = one.join()
        line.send("Error", **{key: "one of the two fields"})
        line.send("FinalLeaveTraining", available_for_future_training=False)  # not now
        heard: dict[str, Any] = {}  # and SelectedForTraining, in either order, perhaps again
        while heard.keys() < {"Error", "SelectedForTraining"}:
            heard.update([line.receive()])
        assert heard["Error"]["error"] == heard["Error"]["reason"] != ""
        asked = heard["SelectedForTraining"]
        one.answer(line, **asked)
        one.answered = asked  # the same q for the same factor is the same request
        one.train(line)
        line.close()

    async def scene() -> Running:
        async with federation.serving() as running:
            north = asyncio.create_task(federation.join("north", running.port))
            await asyncio.to_thread(complain, client(federation, running, "south", Style()))
            await north
        return running

    running = run_async(scene())
    assert running.events("party error")[0]["reason"] == "one of the two fields"
    is_exact(running.posterior, harness.exact_posterior(*(harness.RECORDS[n] for n in NAMES[:2])))


def test_a_factor_that_is_not_the_last_one_times_delta(tmp_path, pki):
    federation = Federation.make(tmp_path, pki, rounds=2)

    def confuse(one: ThesisClient) -> None:
        line = one.join()
        assert line.receive()[0] == "SelectedForTraining"
        factor = {"mean": 1.0, "variance": 1.0}
        delta = {"mean": 2.0, "variance": 1.0}
        line.send("UpdatedLikelihood", new_likelihood=factor, delta=delta, loss=0.0)
        name, fields = line.receive()
        assert (name, fields["return_in"]) == ("EarlyCloseOfConnection", {"secs": 0, "nanos": 0})
        assert "start from last_likelihood" in fields["reason"]
        line.send("EndOfConnectionAcknowledgement")
        line.close()
        line = one.rejoin()
        one.train(line)
        line.close()

    async def scene() -> Running:
        async with federation.serving() as running:
            north = asyncio.create_task(federation.join("north", running.port))
            await asyncio.to_thread(confuse, client(federation, running, "south", Style()))
            await north
        return running

    is_exact(
        run_async(scene()).posterior,
        harness.exact_posterior(*(harness.RECORDS[n] for n in NAMES[:2])),
    )


PRIVATE = {
    "privacy": {"epsilon": 2.0, "delta": 1e-4, "insecure_noise_seed": 1},
    "method": {"kind": "dp-sgd"},
    "schedule": {"rounds": 2},
    "records": 8,
    "outcome": "y",
    "columns": {
        "x": {"low": -1.0, "high": 1.0},
        "y": {"low": 0.0, "high": 10.0, "feature": False},
    },
}
WIDE = {"model": {"kind": "linear", "noise_sd": 1.0}}
STAGED = {**WIDE, "posterior": "mean-field", "method": {"kind": "natural"}}


@pytest.mark.parametrize(
    ("agreed", "why"),
    [(PRIVATE, "private"), (WIDE, "independent coordinates"), (STAGED, "has stages")],
    ids=["private", "wide", "staged"],
)
def test_what_they_cannot_take_part_in(agreed, why, tmp_path, pki):
    federation = Federation.make(tmp_path, pki, **agreed)

    def knock(one: ThesisClient) -> tuple[str, dict[str, Any]]:
        line = one.connect()
        line.send("JoinCluster", data_size=3)
        heard = line.receive()
        with pytest.raises(ConnectionError):
            line.receive()
        line.close()
        return heard

    async def scene() -> Any:
        async with federation.serving() as running:
            for style in (STYLES["json"], STYLES["cbor"]):
                name, fields = await asyncio.to_thread(
                    knock, client(federation, running, "south", style)
                )
                assert name == "RejectionFromCluster"
                assert fields["fixable"] is False
                assert why in fields["reason"]
            assert not running.live.members

    run_async(scene())


# Their server, our parties ----------------------------------------------------------------------


def served(tmp_path: Path, pki: harness.Pki, style: Style, script: Any = None, **join: Any) -> Any:
    encoding = {"encoding": style.encoding, "unannounced": True} | join
    federation = Federation.make(tmp_path, pki, parties=NAMES, join=encoding)
    return federation, ThesisServer(pki.server, len(NAMES), 3, style, script)


@pytest.mark.parametrize(
    "name", ["json", "cbor", "without nulls", "nothing is null", "Infinity in JSON"]
)
def test_our_parties_with_their_server(name, tmp_path, pki):
    federation, server = served(tmp_path, pki, STYLES[name])

    async def scene() -> list[Any]:
        server.start()
        return await asyncio.gather(*(federation.join(name, server.port) for name in NAMES))

    results = run_async(scene())
    server.done()
    is_exact_normal(usual(*server.posterior))
    mean = -0.5 * EXACT["linear"] / EXACT["quadratic"]
    for result in results:
        assert result.result.posterior.mean == pytest.approx([mean], rel=1e-9)
        assert result.evaluation.answers in (2, 3), "the same q again is the same request"


def test_their_server_is_refused_unless_the_operator_says_otherwise(tmp_path, pki):
    def script(server: ThesisServer) -> None:
        _, line = server.admit()
        with pytest.raises(ConnectionError):
            line.receive()  # our party hangs up without a word
        line.close()

    federation, server = served(tmp_path, pki, Style(), script, unannounced=False)
    server.start()
    with pytest.raises(PeerError, match=r"does not announce .* set join.unannounced = true"):
        run_async(federation.join("north", server.port))
    server.done()


@pytest.mark.parametrize("style", [Style(), Style("cbor", nulls=False)], ids=["json", "cbor"])
def test_their_server_closes_and_opens_again(style, tmp_path, pki):
    """EarlyCloseOfConnection with return_in: our party is back in time and takes its factor."""
    heard: list[str] = []

    def script(server: ThesisServer) -> None:
        name, line = server.admit()
        server.ask(name, line)
        line.send("EarlyCloseOfConnection", return_in={"secs": 0, "nanos": 300_000_000})
        began = time.monotonic()
        assert line.receive()[0] == "EndOfConnectionAcknowledgement"
        line.close()
        name, line = server.admit()
        heard.append(name)
        assert 0.25 < time.monotonic() - began < 5.0
        server.ask(name, line)
        server.end(line)

    federation, server = served(tmp_path, pki, style, script)
    server.start()
    result = run_async(federation.join("north", server.port))
    server.done()
    assert heard == ["north"]
    exact = harness.exact_posterior(harness.RECORDS["north"])
    is_exact_normal(usual(*server.posterior), exact)
    assert result.result.posterior.sd == pytest.approx([(-2.0 * exact["quadratic"]) ** -0.5])


def test_their_server_closes_for_good(tmp_path, pki):
    def script(server: ThesisServer) -> None:
        _, line = server.admit()
        line.send("EarlyCloseOfConnection", reason="no money", return_in=None)
        assert line.receive()[0] == "EndOfConnectionAcknowledgement"
        line.close()

    federation, server = served(tmp_path, pki, Style(), script)
    server.start()
    with pytest.raises(ClosedError, match="no money"):
        run_async(federation.join("north", server.port))
    server.done()


@pytest.mark.parametrize("key", ["error", "reason"])
def test_their_server_answers_with_errors(key, tmp_path, pki):
    def script(server: ThesisServer) -> None:
        name, line = server.admit()
        line.send("Error", **{key: "hm"})
        server.ask(name, line)
        server.end(line)

    federation, server = served(tmp_path, pki, Style(), script)
    server.start()
    run_async(federation.join("north", server.port))
    server.done()


def test_a_private_party_never_talks_to_their_server(tmp_path, pki):
    def script(server: ThesisServer) -> None:
        _, line = server.admit()
        with pytest.raises(ConnectionError):
            line.receive()
        line.close()

    join = {"encoding": "json", "unannounced": True}
    federation = Federation.make(tmp_path, pki, join=join, **PRIVATE)
    server = ThesisServer(pki.server, 1, 1, Style(), script)
    server.start()
    with pytest.raises(PeerError, match="a private run needs a server that does"):
        run_async(federation.join("north", server.port))
    server.done()
