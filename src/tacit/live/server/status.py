"""Status file, control commands and metrics of a running server.

The server writes status.json into its state directory and reads command files in `control/` there.
Every user with write access to that directory can operate the server. Metrics are Prometheus text
over HTTP, off by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tacit.errors import ConfigError
from tacit.live.settings import parse_address
from tacit.support.process import peak_memory_bytes

if TYPE_CHECKING:
    from tacit.live.server.coordinator import WireServer

STATUS = "status.json"
CONTROL = "control"
_EVERY_S = 0.5


class Commands:
    """Reads command files in the folder `control/`.

    A command file is named "start", "close" (with a reason and a return time as content),
    "propose", or "readmit-…" (one file per party to readmit).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / CONTROL
        self._directory.mkdir(mode=0o700, exist_ok=True)
        (self._directory / "close").unlink(missing_ok=True)  # addressed to an earlier server
        self.start = False
        self.close: tuple[str, float | None] | None = None
        self.readmit: list[str] = []
        self.propose = False

    def read(self) -> None:
        """Read new commands from the control directory. All command files except "start" are
        removed, because they are carried out only once.
        """
        if not self.start and (self._directory / "start").exists():
            self.start = True
        path = self._directory / "close"
        if path.exists():
            try:
                asked = json.loads(path.read_text(encoding="utf-8"))
                self.close = (str(asked["reason"]), asked["return_in_s"])
            except (OSError, ValueError, KeyError, TypeError):
                self.close = ("closed by its operator", None)
            path.unlink(missing_ok=True)
        path = self._directory / "propose"
        if path.exists():
            self.propose = True
            path.unlink(missing_ok=True)
        for path in sorted(self._directory.glob("readmit-*")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                self.readmit.append(str(json.loads(path.read_text(encoding="utf-8"))["party"]))
            path.unlink(missing_ok=True)


def give_command(directory: Path, command: str, body: dict[str, Any] | None = None) -> None:
    """Write a command file for the server that uses this state directory."""
    place = directory / CONTROL
    if not place.is_dir():
        raise ConfigError(
            f"{directory} is not a server's state directory; start a server with tacit serve"
        )
    part = place / f".{command}.part"
    part.write_text(json.dumps(body or {}), encoding="utf-8")
    os.replace(part, place / command)  # noqa: PTH105 - atomic on every platform


def describe(server: WireServer) -> dict[str, Any]:
    """Return the status of the server, for `tacit status` and metrics."""
    live, state = server.live, server.live.state
    asked = set(live.requests())
    if live.sums is not None and live.sums.closed and not live.finished:
        asked = live.sums.missing(())
    parties = {}
    for name in live.parties:
        connection, member = server.connections.get(name), live.members.get(name)
        factor = None if state is None else state.factors[name]
        parties[name] = {
            "joined": member is not None,
            "connected": connection is not None,
            "asked": name in asked,
            "refused": 0 if connection is None else connection.errors,
            "left": state is not None and name in state.left,
            "listening": member is not None and member.listening,
            "left_out": None if state is None else state.left_out.get(name),
            "passed_over": state is not None and name in state.absent,
            "data_size": member.data_size if member else None,
            "protocol": member.protocol if member else None,
            "guarantee": None
            if member is None or member.guarantee is None
            else msgspec.to_builtins(member.guarantee),
            "visits": 0 if factor is None else factor.visits,
            "factor_version": 0 if factor is None else factor.version,
            "bytes_in": server.traffic(name)[0],
            "bytes_out": server.traffic(name)[1],
        }
    last = next((line for line in reversed(live.history) if line["event"] == "round"), {})
    phase = "waiting for parties" if state is None else state.finished or "training"
    left_out = {} if state is None else state.left_out
    return {
        "run": live.run,
        "configuration": live.digest,
        "phase": phase,
        "round": 0 if state is None else state.round,
        "rounds": live.rules.schedule.rounds,
        "exchanges": 0 if state is None else state.exchanges,
        "updates_refused": 0 if state is None else state.refused,
        "negative_elbo": last.get("negative_elbo"),
        "last_change": last.get("last_change"),
        "left_out": left_out,
        "proposed": None
        if live.proposal is None
        else {
            "version": live.proposal.version,
            "configuration": live.proposal.agreed.digest,
            "waits_for": live.unapproved,
        },
        "parties": parties,
        "turned_away": dict(server.journal.refusals),
    }


def write_status(server: WireServer, *, running: bool = True) -> None:
    """Rewrite status.json, at most twice per second."""
    now = time.monotonic()
    if running and now - server.status_at < _EVERY_S:
        return
    server.status_at = now
    body = describe(server) | {
        "running": running,
        "process": os.getpid(),
        "port": server.port,
        "updated": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    path = server.live.directory / STATUS
    part = path.with_name(STATUS + ".part")
    try:
        part.write_bytes(msgspec.json.encode(body))
        os.replace(part, path)  # noqa: PTH105 - atomic on every platform
    except OSError as error:
        if not server.status_lost:
            server.journal.write("status not written", path=str(path), reason=error.strerror)
        server.status_lost = True
    else:
        server.status_lost = False


def metrics_text(server: WireServer) -> str:
    """Return the status as Prometheus text."""
    now = describe(server)
    rows: list[tuple[str, str, str, float]] = [
        ("tacit_round", "gauge", "", now["round"]),
        ("tacit_exchanges_total", "counter", "", now["exchanges"]),
        ("tacit_updates_refused_total", "counter", "", now["updates_refused"]),
        ("tacit_parties_left_out", "gauge", "", len(now["left_out"])),
        ("tacit_finished", "gauge", "", float(server.live.finished is not None)),
        ("tacit_cpu_seconds_total", "counter", "", time.process_time()),
        ("tacit_resident_bytes", "gauge", "", float(peak_memory_bytes())),
    ]
    if now["negative_elbo"] is not None:
        rows.append(("tacit_negative_elbo", "gauge", "", now["negative_elbo"]))
    for kind, count in sorted(now["turned_away"].items()):
        rows.append(("tacit_turned_away_total", "counter", f'kind="{kind}"', count))
    for key in ("joined", "connected", "asked", "visits", "bytes_in", "bytes_out"):
        for name, party in now["parties"].items():
            label = name.replace("\\", "\\\\").replace('"', '\\"')
            rows.append((f"tacit_party_{key}", "gauge", f'party="{label}"', float(party[key])))
    lines, seen = [], set()
    for name, kind, labels, value in rows:
        if name not in seen:
            lines.append(f"# TYPE {name} {kind}")
            seen.add(name)
        number = repr(float(value))  # full precision: a rounded counter would stall and jump
        lines.append(f"{name}{{{labels}}} {number}" if labels else f"{name} {number}")
    return "\n".join(lines) + "\n"


async def serve_metrics(server: WireServer, address: str) -> asyncio.Server:
    """Serve Prometheus metrics at GET /metrics; the answer to other requests is 404."""
    host, port = parse_address(address, "serve.metrics")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5.0):
                head = await reader.readuntil(b"\r\n\r\n")
                found = head.startswith((b"GET /metrics ", b"GET /metrics?"))
                body = metrics_text(server).encode() if found else b"see /metrics\n"
                status = b"200 OK" if found else b"404 Not Found"
                writer.write(
                    b"HTTP/1.1 " + status + b"\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    try:
        listener = await asyncio.start_server(answer, host, port)
    except OSError as error:
        raise ConfigError(
            f"serve.metrics = {address!r}: {error.strerror}; choose another address or port"
        ) from None
    server.journal.write("metrics", address=f"{host}:{listener.sockets[0].getsockname()[1]}")
    return listener
