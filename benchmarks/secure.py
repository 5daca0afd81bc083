"""CPU-seconds of secure sums per party and round, and of the server.

python -m benchmarks.secure [PARTIES] [NUMBERS]
python -m benchmarks.secure masking PARTIES NUMBERS   # one party's vector alone, in seconds
python -m benchmarks.secure adult      # ten parties over TLS, secure beside plain
"""

import asyncio
import contextlib
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.live.secure import party, server
from tacit.live.secure.signing import fingerprint, public_bytes
from tacit.live.secure.terms import Terms
from tacit.privacy.secure_sums import SecureSums


class Clock:
    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def __call__(self, what: str, function, *arguments):
        before = time.process_time()
        result = function(*arguments)
        self.spent[what] = self.spent.get(what, 0.0) + time.process_time() - before
        return result


def measure(count: int, length: int, slots: int = 4, drops: int = 1) -> dict[str, float]:
    """CPU-seconds: per party for the set-up and for one round, and of the server for one round."""
    clock = Clock()
    names = [f"p{number:03d}" for number in range(count)]
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in names}
    agreed = SecureSums().among(count)
    terms = Terms(
        run="r", configuration="c", threshold=agreed.threshold, quorum=agreed.quorum,
        colluding=agreed.colluding, slots=slots,
        parties={name: fingerprint(public_bytes(key.public_key())) for name, key in keys.items()},
    )  # fmt: skip
    state, parties = server.ServerState(terms), {}
    for name in names:
        parties[name], offer = clock("set-up", party.offer_keys, terms, name, keys[name])
        state = server.take_offer(state, offer)
    state = server.make_roster(state)
    for name in names:
        parties[name], parcels = clock(
            "set-up", party.deal_shares, parties[name], terms, state.roster, keys[name]
        )
        state = server.take_parcels(state, name, parcels)
    for name in names:
        parties[name] = clock(
            "set-up", party.accept_shares, parties[name], terms, server.parcels_for(state, name)
        )
    rng = np.random.default_rng(0)
    state = server.open_slot(state, 0, "r0", length)
    vectors = {name: rng.integers(-(2**40), 2**40, length) for name in names}
    for number, name in enumerate(names):
        parties[name], masked = clock(
            "round", party.mask_vector, parties[name], 0, "r0", vectors[name]
        )
        if number >= min(drops, count - agreed.quorum):
            state = server.take_masked(state, masked)
    state, told = server.close_slot(state, 0)
    for name in told.names:
        parties[name], consent = clock(
            "round", party.sign_survivors, parties[name], terms, told, keys[name]
        )
        state = clock("server", server.take_consent, state, consent)
    asked = server.unmask_request(state, 0)
    for name in told.names:
        parties[name], shares = clock("round", party.reveal_shares, parties[name], terms, asked)
        state = clock("server", server.take_shares, state, shares)
    total = clock("server", server.unmasked_sum, state, 0)
    assert np.array_equal(total, sum(vectors[name] for name in told.names))
    return {
        "set-up per party": clock.spent["set-up"] / count,
        "round per party": clock.spent["round"] / count,
        "server per round": clock.spent["server"],
    }


def masking(count: int, length: int) -> float:
    """CPU-seconds in which one party masks one vector; the least of five. Needs no shares."""
    names = [f"p{number:03d}" for number in range(count)]
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in names}
    agreed = SecureSums().among(count)
    terms = Terms(
        run="r", configuration="c", threshold=agreed.threshold, quorum=agreed.quorum,
        colluding=agreed.colluding, slots=5,
        parties={name: fingerprint(public_bytes(key.public_key())) for name, key in keys.items()},
    )  # fmt: skip
    offered = {name: party.offer_keys(terms, name, keys[name]) for name in names}
    state = server.ServerState(terms, offers={name: offer for name, (_, offer) in offered.items()})
    ready = msgspec.structs.replace(
        offered[names[0]][0], roster=server.make_roster(state).roster, shares={names[0]: b"-"}
    )
    vector, spent = np.arange(length), []
    for slot in range(5):
        before = time.process_time()
        party.mask_vector(ready, slot, f"r{slot}", vector)
        spent.append(time.process_time() - before)
    return min(spent)


def adult_run(aggregation: str, folder: Path, *, parties: int = 10, delay_s: float = 0.0) -> dict:
    """CPU and wall of a run on Adult over TLS, all ends in this process.

    With a delay every byte takes that long through a proxy, which cuts off another party's
    connection in every round.
    """
    from tacit.live.config import read_party, read_server
    from tacit.live.join import approve, join
    from tacit.live.serve import serve

    folder.mkdir()
    names = _federation(folder, aggregation, parties)
    setup = read_server(folder / "server.toml")
    for name in names:
        approve(read_party(folder / f"{name}.toml"))
    links: dict[str, Link] = {}
    rounds = []

    def observe(log: Any) -> None:
        if any(line["event"] == "round" for line in log):
            rounds.append(time.perf_counter())
            if delay_s:
                links[names[len(rounds) % parties]].cut()

    async def play() -> Any:
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(setup, observe=observe, ready=ready.set_result))
        port = await ready
        for name in names:
            links[name] = Link(port, delay_s)
            await links[name].open(_port(folder, name))
        await asyncio.gather(*(join(read_party(folder / f"{name}.toml")) for name in names))
        return await server

    cpu, wall = time.process_time(), time.perf_counter()
    result = asyncio.run(play())
    return {
        "CPU": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "rounds": len(rounds),
        "between rounds": float(np.median(np.diff(rounds))),
        "mean": list(result.posterior.mean),
    }


class Link:
    """A way from one party to the server on which every byte takes `delay_s`."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._port, self._delay_s = port, delay_s
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, port: int) -> None:
        """Listen for the party."""
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", port)

    def cut(self) -> None:
        """Lose the connection, if there is one; another one may be made."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                loop.call_later(self._delay_s, _write, writer, chunk)
        loop.call_later(self._delay_s, writer.close)


def _write(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    if not writer.is_closing():
        writer.write(chunk)


def _port(folder: Path, name: str) -> int:
    return int((folder / f"{name}.port").read_text())


def _federation(folder: Path, aggregation: str, parties: int) -> list[str]:
    """Certificates, records and files of a federation on Adult."""
    import polars as pl
    import tomlkit

    from tacit.data.readers import adult
    from tacit.live.transport import certificates as certs
    from tacit.live.transport.tls import fingerprint as key_of
    from tacit.live.transport.tls import read_certificate

    frame = adult.read().frame.sample(fraction=1.0, shuffle=True, seed=1)
    names = [f"p{number}" for number in range(parties)]
    certs.init_authority(folder / "pki")
    certs.issue_server(folder / "pki", ["127.0.0.1"])
    columns = {}
    for column in adult.COLUMNS:
        known = {key: getattr(column, key) for key in column.__struct_fields__ if key != "name"}
        kept = {key: value for key, value in known.items() if value not in (None, ())}
        columns[column.name] = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in kept.items()
            if key in ("low", "high", "center", "scale", "levels", "missing", "missing_values")
            and value != "refuse"
        }
    agreed: dict[str, Any] = {
        "name": "adult", "seed": 1, "parties": names, "records": frame.height,
        "outcome": "income", "positive": ">50K",
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "aggregation": aggregation,
                    "insecure_noise_seed": 1},
        "columns": columns, "model": {"kind": "logistic"}, "method": {"kind": "dp-scoring"},
    }  # fmt: skip
    ports = {name: _free_port() for name in ("server", *names)}
    for number, name in enumerate(names):
        certs.issue_party(folder / "pki", name)
        part = frame.gather_every(parties, number)
        part.with_columns(pl.all().str.strip_chars()).write_csv(folder / f"{name}.csv")
        (folder / f"{name}.port").write_text(str(ports[name]))
        party_file = {
            "federation": "federation.toml",
            "join": {
                "servers": [f"127.0.0.1:{ports[name]}"], "state": f"state-{name}",
                "certificate": f"pki/party-{name}.pem", "key": f"pki/party-{name}.key",
                "authority": "pki/ca.pem",
            },
            "data": {"path": f"{name}.csv"},
        }  # fmt: skip
        (folder / f"{name}.toml").write_text(tomlkit.dumps(party_file))
    if aggregation == "secure":
        agreed["keys"] = {
            name: key_of(read_certificate(folder / "pki" / f"party-{name}.pem").public_key())
            for name in names
        }
    (folder / "federation.toml").write_text(tomlkit.dumps(agreed))
    serve = {
        "listen": f"127.0.0.1:{ports['server']}", "state": "server",
        "certificate": "pki/server-127.0.0.1.pem", "key": "pki/server-127.0.0.1.key",
        "authority": "pki/ca.pem", "deadline_s": 20.0,
    }  # fmt: skip
    file = {"federation": "federation.toml", "serve": serve}
    (folder / "server.toml").write_text(tomlkit.dumps(file))
    return names


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def adult_main(folder: Path) -> None:
    """Adult over TLS: secure beside plain, then secure on slow lines that break."""
    runs = {}
    for name, aggregation, delay_s in (
        ("warm", "plain", 0.0), ("plain", "plain", 0.0), ("secure", "secure", 0.0),
        ("slow", "secure", 0.05),
    ):  # fmt: skip
        runs[name] = adult_run(aggregation, folder / name, delay_s=delay_s)
        shown = {key: value for key, value in runs[name].items() if key != "mean"}
        if name != "warm":  # which compiles
            print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in shown.items()))
    ratio = runs["secure"]["CPU"] / runs["plain"]["CPU"]
    print(f"secure / plain: {ratio:.2f} of the CPU (at most 3)")


def main() -> None:
    if sys.argv[1:2] == ["adult"]:
        with tempfile.TemporaryDirectory() as folder:
            adult_main(Path(folder))
        return
    if sys.argv[1:2] == ["masking"]:
        count, length = int(sys.argv[2]), int(sys.argv[3])
        print(f"{count} parties, {length:,} numbers: masking {masking(count, length):.4f} s")
        return
    given = [int(each) for each in sys.argv[1:]]
    sizes = [tuple(given)] if len(given) == 2 else [(10, 100), (50, 100)]
    for count, length in sizes:
        found = measure(count, length)
        shown = ", ".join(f"{what} {value:.4f} s" for what, value in found.items())
        print(f"{count} parties, {length:,} numbers, one dropout: {shown}")


if __name__ == "__main__":
    main()
