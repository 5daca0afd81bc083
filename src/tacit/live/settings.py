"""What an operator may say about a live federation: shared by the TOML files and the engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from tacit.errors import ConfigError, TacitError
from tacit.live.transport.tls import Credentials
from tacit.support.tables import Table
from tacit.support.validation import Count, Positive

DEFAULT_PORT = 7443
LEAST_HEARTBEAT_S, LONGEST_HEARTBEAT_S = 0.1, 3600.0
Duration = str
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
DURATION = r"\d+(\.\d+)?(s|min|h|d)"
RecordCount = Literal["exact", "rounded", "withheld"]
FEWEST_TOLD = 100
"""Rounded, a smaller number of records is told as "fewer than" this."""


class Start(Table, frozen=True, kw_only=True):
    """When training starts; nothing said: once every party on the list has joined."""

    place: ClassVar[str] = "serve.start"

    parties: Count | None = None
    """Once so many have joined."""
    at: datetime | None = None
    """Not before this time; alone, with whoever has joined by then."""
    command: bool = False
    """Not before `tacit server start`."""

    def faults(self) -> Iterator[str | TacitError]:
        if self.at is not None and self.at.tzinfo is None:
            yield f"serve.start.at = {self.at}; give a time zone, e.g. 2027-01-31T09:00:00Z"


class _Own(Table, frozen=True, kw_only=True):
    """The files of one end of the connection."""

    certificate: str
    """PEM file with this end's certificate."""
    key: str
    """PEM file with its private key, mode 0600."""
    authority: str
    """PEM file with the certificate of the authority that signs all others."""
    state: str
    """Directory for everything that a restart needs."""
    revoked: str | None = None
    """PEM file with revoked certificates."""

    def credentials(self, base: Path) -> Credentials:
        """The files, relative to the configuration that names them."""
        revoked = None if self.revoked is None else base / self.revoked
        return Credentials(base / self.certificate, base / self.key, base / self.authority, revoked)


class Serve(_Own, frozen=True, kw_only=True):
    """The server's own settings: no party needs to know or agree to them."""

    place: ClassVar[str] = "serve"
    renamed: ClassVar[Mapping[str, str]] = {
        "return_in_s": "restart_delay",
        "linger_s": "keep_result_for",
    }

    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    """Address and port to listen on."""
    start: Start = Start()
    deadline_s: Positive | None = None
    """After so long a round goes on without late parties, if a quorum has answered."""
    restart_delay: Duration = "60s"
    """When parties shall be back after a planned close, e.g. "60s", "10min" or "1h"."""
    keep_result_for: Duration = "60s"
    """How long the result is held for parties that are not connected at the end."""
    metrics: str | None = None
    """Where to serve Prometheus metrics, e.g. "127.0.0.1:9464"; None: nowhere."""
    accept_returned: bool = False
    """Whether factors that parties return are taken over by a server without a state of its own."""
    most_records: Count = 10**9
    """How many records one party has at most. One that announces more is refused; the updates of
    all are bounded by it, those of one that announces a number by that number."""
    most_connections: Count = 1024
    """Connections that are kept at a time, at most."""
    handshake_s: Positive = 10.0
    """For the TLS handshake, and again for the first message."""
    frame_s: Positive = 60.0
    """For each frame of a message, once it has begun."""
    heartbeat_s: Annotated[float, Meta(ge=LEAST_HEARTBEAT_S)] = 20.0
    """How often a party that waits is sent a Heartbeat; after three without one it dials again."""
    future_training: datetime | None = None
    """When the next training is planned, which parties are told."""

    @property
    def restart_delay_s(self) -> float:
        """`restart_delay` in seconds."""
        return in_seconds(self.restart_delay)

    @property
    def keep_result_for_s(self) -> float:
        """`keep_result_for` in seconds."""
        return in_seconds(self.keep_result_for)

    def faults(self) -> Iterator[str | TacitError]:
        yield from duration_faults(self, "restart_delay", "keep_result_for")
        yield from address_faults(self.listen, "serve.listen")
        if self.metrics is not None:
            yield from address_faults(self.metrics, "serve.metrics")


class Join(_Own, frozen=True, kw_only=True):
    """A party's own settings."""

    place: ClassVar[str] = "join"
    renamed: ClassVar[Mapping[str, str]] = {
        "record_count": "report_records",
        "give_up_after_s": "retry_for",
    }

    servers: tuple[str, ...]
    """Addresses, tried in this order: the server, then its stand-bys."""
    encoding: Literal["msgpack", "cbor", "json"] = "msgpack"
    """How messages are encoded."""
    minimum_parties: Count = 2
    """Take part only if at least so many parties are on the list."""
    report_records: RecordCount = "rounded"
    """What the server is told of the number of records: it, two digits of it, or nothing."""
    send_loss: bool = True
    """Whether the loss is sent with an update; a private run never sends it."""
    unannounced: bool = False
    """Accept a server that does not announce which configuration it follows, as one written from
    the thesis alone. What is computed and charged is what was approved here, whatever it says."""
    retry_for: Duration = "1h"
    """How long to go on trying when no server answers, e.g. "60s", "10min" or "1h"."""
    silence_s: Positive | None = None
    """After so long without a word from a server that sends no heartbeats, dial again; None: never.
    With heartbeats, dial again after three that did not come."""
    return_likelihood: bool = False
    """Whether to send the last factor to a server that asks for it because it has lost its own."""

    @property
    def retry_for_s(self) -> float:
        """`retry_for` in seconds."""
        return in_seconds(self.retry_for)

    def faults(self) -> Iterator[str | TacitError]:
        yield from duration_faults(self, "retry_for")
        if not self.servers:
            yield 'join.servers is empty; name at least one, e.g. "host:7443"'
        for server in self.servers:
            yield from address_faults(server, "join.servers")


def in_seconds(duration: str) -> float:
    """A duration in seconds.

    >>> in_seconds("1h"), in_seconds("0.5s"), in_seconds("10min")
    (3600.0, 0.5, 600.0)
    """
    number = duration.rstrip("".join(UNITS))
    return float(number) * UNITS[duration.removeprefix(number)]


def duration_faults(table: Table, *keys: str) -> Iterator[str]:
    """What is wrong with durations, if anything."""
    for key in keys:
        value = getattr(table, key)
        if not re.fullmatch(DURATION, value) or not in_seconds(value) > 0:
            yield (
                f'{table.place}.{key} = "{value}"; write a positive number and a unit '
                f'({", ".join(UNITS)}), e.g. "10min"'
            )


def address_faults(text: str, key: str) -> Iterator[TacitError]:
    """What is wrong with an address, if anything."""
    try:
        parse_address(text, key)
    except TacitError as error:
        yield error


def parse_address(text: str, key: str) -> tuple[str, int]:
    """Host and port.

    >>> parse_address("hospital.example:7443", "join.servers"), parse_address("[::1]:80", "x")
    (('hospital.example', 7443), ('::1', 80))
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536 or not host.strip("[]"):
        raise ConfigError(f"{key} = {text!r}; write host:port, e.g. 127.0.0.1:{DEFAULT_PORT}")
    return host.strip("[]"), int(port)


def told_count(count: int, how: RecordCount) -> int:
    """What a server is told of a number of records: two digits of it, or 0 for nothing.

    Rounded, every number below 100 is told as 99, which reads as "fewer than 100": two digits of a
    number that has no more would be the number itself.

    >>> told_count(1234, "rounded"), told_count(1234, "exact"), told_count(1234, "withheld")
    (1200, 1234, 0)
    >>> [told_count(count, "rounded") for count in (1, 42, 99, 100, 104)]
    [99, 99, 99, 100, 100]
    """
    if how == "withheld":
        return 0
    if how == "exact":
        return count
    if count < FEWEST_TOLD:
        return FEWEST_TOLD - 1
    step = rounding_step(count)
    return round(count / step) * step


def rounding_step(count: int) -> int:
    """What a count of that size is rounded to a multiple of.

    >>> [rounding_step(count) for count in (99, 100, 1200, 10000)]
    [1, 10, 100, 1000]
    """
    return 10 ** max(0, len(str(count)) - 2)
