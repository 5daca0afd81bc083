"""What an exchange costs a live server: 200 parties over TLS, beside a bare echo of the same bytes.

The server is one process on one core, all parties another on the other. Local work is nothing: a
party answers with the same small update. The echo is asyncio streams with the same TLS context
that reads as many bytes as an update has and writes as many as a request has.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Row, in_child

PARTIES, DIMENSION, ROUNDS, REPEATS = 200, 2000, 10, 3
EXCHANGES = PARTIES * ROUNDS
MOST_S = 120.0
ENCODINGS = ("msgpack", "cbor", "json")


def rows() -> list[Row]:
    seen = {encoding: in_child("live", "server", encoding) for encoding in ENCODINGS}
    tries, echoes = [seen["msgpack"]], []
    for _ in range(REPEATS):  # in turn: what else the machine does meets both
        echoes.append(in_child("live", "echo", tries[0]["bytes_in"], tries[0]["bytes_out"]))
        tries.append(in_child("live", "server", "msgpack"))
    first = min(tries, key=lambda one: one["cpu_ms"])
    echo = min(echoes, key=lambda one: one["cpu_ms"])
    note = f"{PARTIES} parties, {ROUNDS} rounds, {DIMENSION} coordinates"
    found = [
        Row(name="live", what="msgpack: CPU of an exchange, server", unit="ms", at_most=5,
            value=first["cpu_ms"], note=note),
        Row(name="live", what="msgpack: CPU beside a bare TLS echo of the same bytes", unit="x",
            at_most=3, value=first["cpu_ms"] / echo["cpu_ms"],
            note=f"echo {echo['cpu_ms']:.2f} ms"),
        Row(name="live", what="msgpack: wall beside the echo", unit="x",
            value=first["wall_s"] / echo["wall_s"]),
        Row(name="live", what="msgpack: exchanges a second", unit="/s",
            value=EXCHANGES / first["wall_s"]),
        Row(name="live", what="msgpack: bytes of an exchange, both ways", unit="kB",
            value=(first["bytes_in"] + first["bytes_out"]) / 1e3),
        Row(name="live", what="msgpack: server memory, largest", unit="MB", at_most=500,
            value=first["memory_mb"]),
    ]  # fmt: skip
    for encoding in ("cbor", "json"):
        at = seen[encoding]
        found.append(
            Row(name="live", what=f"{encoding}: CPU of an exchange, server", unit="ms", at_most=5,
                value=at["cpu_ms"],
                note=f"{(at['bytes_in'] + at['bytes_out']) / 1e3:.0f} kB an exchange")
        )  # fmt: skip
    return found


def child(what: str, *options: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        _make_certificates(base)
        if what == "server":
            return asyncio.run(_federation(base, *options))
        return asyncio.run(_echo(base, *map(int, options)))


def _make_certificates(base: Path) -> None:
    from tacit.live.transport import certificates as certs

    certs.init_authority(base)
    certs.issue_server(base, ["localhost"])
    for number in range(PARTIES):
        certs.issue_party(base, str(number))


def _credentials(base: Path, name: str) -> Any:
    from tacit.live.transport.tls import Credentials

    return Credentials(base / f"{name}.pem", base / f"{name}.key", base / "ca.pem")


async def _federation(base: Path, encoding: str) -> dict[str, Any]:
    import numpy as np

    from tacit.expfam import MeanFieldGaussian
    from tacit.live.journal import Journal
    from tacit.live.server.coordinator import WireServer
    from tacit.live.server.live_run import LiveRun
    from tacit.live.settings import Serve
    from tacit.server.schedule import Synchronous
    from tacit.server.state import Rules

    family = MeanFieldGaussian(DIMENSION)
    rules = Rules(
        family=family,
        schedule=Synchronous(rounds=ROUNDS, damping=1.0),
        parties=tuple(str(number) for number in range(PARTIES)),
        seed=0,
        prior=family.natural(mean=np.zeros(DIMENSION), sd=np.ones(DIMENSION)),
    )
    (base / "state").mkdir()
    live = LiveRun(base / "state", rules, {}, "bench", private=False)
    settings = Serve(
        certificate="",
        key="",
        authority="",
        state="",
        listen="127.0.0.1:0",
        keep_result_for="30.0s",
    )
    clock: dict[str, float] = {}
    total = [0, 0]

    def observe(log: Any) -> None:
        if any(line["event"] == "begin" for line in log):
            clock["cpu"], clock["wall"] = time.process_time(), time.perf_counter()
        if live.finished:
            clock["cpu_s"] = time.process_time() - clock["cpu"]
            clock["wall_s"] = time.perf_counter() - clock["wall"]
            for one in server.connections.values():
                total[0] += one.bytes_in
                total[1] += one.bytes_out

    server = WireServer(
        live, _credentials(base, "server-localhost"), settings, Journal(), observe=observe
    )
    clients: list[subprocess.Popen[bytes]] = []
    try:
        async with asyncio.timeout(MOST_S):
            await server.serve(lambda port: clients.append(_start_clients(base, port, encoding)))
    finally:
        live.close()
        for one in clients:
            one.wait(timeout=30)
    return _figures(clock["cpu_s"], clock["wall_s"], total[0] / EXCHANGES, total[1] / EXCHANGES)


async def _echo(base: Path, bytes_in: int, bytes_out: int) -> dict[str, Any]:
    from tacit.live.transport.tls import server_context

    answer, done = bytes(bytes_out), asyncio.Event()
    left = [EXCHANGES]
    clock: dict[str, float] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(ROUNDS):
            await reader.readexactly(bytes_in)
            clock.setdefault("cpu", time.process_time())
            clock.setdefault("wall", time.perf_counter())
            writer.write(answer)
            await writer.drain()
            left[0] -= 1
        if left[0] == 0:
            done.set()
        writer.close()

    context = server_context(_credentials(base, "server-localhost"))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, backlog=512)
    port = server.sockets[0].getsockname()[1]
    client = _start_clients(base, port, "echo", bytes_in, bytes_out)
    async with asyncio.timeout(MOST_S):
        await done.wait()
    figures = _figures(
        time.process_time() - clock["cpu"], time.perf_counter() - clock["wall"], bytes_in, bytes_out
    )
    client.wait(timeout=30)
    server.close()
    return figures


def _figures(cpu_s: float, wall_s: float, bytes_in: float, bytes_out: float) -> dict[str, Any]:
    return {
        "cpu_ms": 1e3 * cpu_s / EXCHANGES,
        "wall_s": wall_s,
        "bytes_in": round(bytes_in),
        "bytes_out": round(bytes_out),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _start_clients(base: Path, port: int, *options: object) -> subprocess.Popen[bytes]:
    call = [sys.executable, "-m", "benchmarks.live", str(base), str(port), *map(str, options)]
    return subprocess.Popen(call, cwd=ROOT)


async def _take_part(base: Path, port: int, number: int, encoding: str) -> None:
    from tacit.live.session import Introduction, open_session

    session = await open_session(
        f"localhost:{port}",
        _credentials(base, f"party-{number}"),
        Introduction(data_size=1, configuration="bench"),
        encoding=encoding,  # pyright: ignore[reportArgumentType]
    )
    while (turn := await session.wait_for_posterior()) is not None:
        delta = {name: 1e-6 * value for name, value in turn.posterior.items()}
        await session.send_delta(turn, delta, loss=1.0)


async def _call_echo(base: Path, port: int, number: int, sizes: tuple[int, int]) -> None:
    from tacit.live.transport.tls import client_context

    context = client_context(_credentials(base, f"party-{number}"))
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    for _ in range(ROUNDS):
        writer.write(bytes(sizes[0]))
        await writer.drain()
        await reader.readexactly(sizes[1])
    writer.close()
    await writer.wait_closed()


async def _clients(base: Path, port: int, what: str, *sizes: str) -> None:
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0) or {0})
    if what == "echo":
        pair = (int(sizes[0]), int(sizes[1]))
        work = [_call_echo(base, port, number, pair) for number in range(PARTIES)]
    else:
        work = [_take_part(base, port, number, what) for number in range(PARTIES)]
    await asyncio.gather(*work)


if __name__ == "__main__":
    asyncio.run(_clients(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *sys.argv[4:]))
