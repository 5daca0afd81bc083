"""Exchanges and wall time of the schedules at several latencies between hosts.

    python -m benchmarks.latency

Five parties and a server on this machine, over TLS; a relay before each party delays every byte
each way. The problem is a mean-field regression on correlated columns, which parties solve exactly:
what differs is the schedule alone. Counted until q is within 0.001 nats of its limit; medians over
data sets.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PARTIES = tuple("abcde")
COLUMNS, CORRELATION, NEAR = 6, 0.6, 1e-3
MOST_ROUNDS, MOST_S = 2000, 120.0
LATENCIES = {
    "5 ms": (0.005,) * 5,
    "50 ms": (0.05,) * 5,
    "four 5 ms, one 100 ms": (0.005, 0.005, 0.005, 0.005, 0.1),
    "5 to 100 ms": tuple(np.geomspace(0.005, 0.1, 5)),
}
"""One-way delay of each party."""


class Found(NamedTuple):
    exchanges: int
    seconds: float


class Regression:
    """A mean-field regression, one part at each party."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shared = (1 - CORRELATION) * np.eye(COLUMNS) + CORRELATION
        mix, weights = np.linalg.cholesky(shared), rng.normal(size=COLUMNS)
        self.squares, self.products = {}, {}
        for name in PARTIES:
            x = rng.normal(size=(rng.integers(20, 80), COLUMNS)) @ mix.T
            y = x @ weights + rng.normal(size=len(x))
            self.squares[name], self.products[name] = x.T @ x, x.T @ y
        whole = np.eye(COLUMNS) + sum(self.squares.values())
        self.precision = np.diag(whole).copy()
        self.mean = np.linalg.solve(whole, sum(self.products.values()))

    def local_posterior(self, party: str, cavity: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The best mean-field normal for the cavity times this party's likelihood."""
        precision = -2.0 * cavity["quadratic"]
        matrix = np.diag(precision) + self.squares[party]
        mean = np.linalg.solve(matrix, cavity["linear"] + self.products[party])
        precision = precision + np.diag(self.squares[party])
        return {"linear": precision * mean, "quadratic": -0.5 * precision}

    def distance(self, q: dict[str, np.ndarray]) -> float:
        """KL divergence of q from the limit, in nats."""
        precision = -2.0 * q["quadratic"]
        ratio = self.precision / precision
        off = self.precision * np.square(q["linear"] / precision - self.mean)
        return 0.5 * float(np.sum(ratio - 1.0 - np.log(ratio) + off))


def schedules() -> dict[str, Any]:
    from tacit.schedules import Asynchronous, Sequential, StalenessDamping, Synchronous

    shared: dict[str, Any] = {"rounds": MOST_ROUNDS, "tolerance": 0.0}
    return {
        "sequential": Sequential(damping=1.0, **shared),
        "synchronous, 0.3": Synchronous(damping=0.3, **shared),
        "asynchronous, 0.3": Asynchronous(damping=0.3, **shared),
        "asynchronous, by staleness": Asynchronous(damping=StalenessDamping(), **shared),
    }


@contextlib.asynccontextmanager
async def delayed(port: int, delay_s: float) -> Any:
    """A port that relays to `port`, every byte `delay_s` later."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                at, data = await waiting.get()
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                if not data:
                    writer.close()
                    return
                writer.write(data)

        delivery = asyncio.create_task(deliver())
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                waiting.put_nowait((time.monotonic() + delay_s, data))
        waiting.put_nowait((time.monotonic() + delay_s, b""))
        await delivery

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):  # the measurement is over
            beyond, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pump(reader, back), pump(beyond, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def measure(base: Path, schedule: Any, delays: tuple[float, ...], seed: int) -> Found:
    """Exchanges and seconds from the first request until q is near its limit."""
    from tacit.expfam import MeanFieldGaussian
    from tacit.live.journal import Journal
    from tacit.live.server.coordinator import WireServer
    from tacit.live.server.live_run import LiveRun
    from tacit.live.settings import Serve
    from tacit.live.transport.tls import Credentials
    from tacit.server.state import Rules

    family, problem = MeanFieldGaussian(COLUMNS), Regression(seed)
    prior = family.natural(mean=np.zeros(COLUMNS), sd=np.ones(COLUMNS))
    rules = Rules(family=family, schedule=schedule, parties=PARTIES, seed=0, prior=prior)
    state = Path(tempfile.mkdtemp(dir=base))
    live = LiveRun(state, rules, {}, "latency", private=False)
    own = {"listen": "127.0.0.1:0", "keep_result_for": "1.0s"}
    settings = Serve(certificate="", key="", authority="", state="", **own)
    files = [base / f"server-localhost.{end}" for end in ("pem", "key")]
    journal = Journal(state / "log.jsonl", None)
    server = WireServer(live, Credentials(*files, base / "ca.pem"), settings, journal)
    ready = asyncio.Event()
    serving = asyncio.create_task(server.serve(lambda _port: ready.set()))
    await ready.wait()
    async with contextlib.AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(delayed(server.port, one)) for one in delays]
        parties = [
            asyncio.create_task(_party(base, name, port, problem))
            for name, port in zip(PARTIES, ports, strict=True)
        ]
        try:
            return await _until_near(live, problem)
        finally:
            server.close("measured", None)
            await asyncio.gather(serving, *parties, return_exceptions=True)
            live.close()
            journal.close()


async def _until_near(live: Any, problem: Regression) -> Found:
    began, commit = [0.0], live.commit
    near: asyncio.Future[Found] = asyncio.get_running_loop().create_future()

    def seen(state: Any, log: Any) -> None:
        commit(state, log)
        began[0] = began[0] or time.perf_counter()
        if not near.done() and problem.distance(state.q) < NEAR:
            near.set_result(Found(state.exchanges, time.perf_counter() - began[0]))

    live.commit = seen
    return await asyncio.wait_for(near, MOST_S)


async def _party(base: Path, name: str, port: int, problem: Regression) -> None:
    from tacit.live.client import connect_async

    session = await connect_async(
        f"localhost:{port}",
        certificate=base / f"party-{name}.pem",
        key=base / f"party-{name}.key",
        authority=base / "ca.pem",
        configuration="latency",
    )
    while (turn := await session.wait_for_posterior()) is not None:
        await session.send_update(turn, problem.local_posterior(name, turn.cavity))


def table(seeds: int) -> dict[str, dict[str, Found]]:
    """Medians by latency and schedule."""
    from tacit.live.transport.certificates import init_authority, issue_party, issue_server

    found: dict[str, dict[str, Found]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        init_authority(base)
        issue_server(base, ["localhost"])
        for name in PARTIES:
            issue_party(base, name)
        for latency, delays in LATENCIES.items():
            for kind, schedule in schedules().items():
                runs = [asyncio.run(measure(base, schedule, delays, n)) for n in range(seeds)]
                medians = (statistics.median(values) for values in zip(*runs, strict=True))
                found.setdefault(latency, {})[kind] = Found(*medians)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of data sets")
    found = table(parser.parse_args().seeds)
    kinds = list(schedules())
    print("| delay, one way | " + " | ".join(kinds) + " |")
    print("| --- |" + " ---: |" * len(kinds))
    for latency, row in found.items():
        cells = [f"{row[kind].exchanges:g}, {row[kind].seconds:.2f} s" for kind in kinds]
        print(f"| {latency} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
