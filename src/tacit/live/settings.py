"""What an operator may say about a live federation: shared by the TOML files and the engine."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from tacit.errors import ConfigError
from tacit.live.transport.tls import Credentials

DEFAULT_PORT = 7443
LEAST_HEARTBEAT_S, LONGEST_HEARTBEAT_S = 0.1, 3600.0
RecordCount = Literal["exact", "rounded", "withheld"]
FEWEST_TOLD = 100
"""Rounded, a smaller number of records is told as "fewer than" this."""


class Start(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When training starts; nothing said: once every party on the list has joined."""

    parties: int | None = None
    """Once so many have joined."""
    at: datetime | None = None
    """Not before this time; alone, with whoever has joined by then."""
    command: bool = False
    """Not before `tacit server start`."""

    def __post_init__(self) -> None:
        if self.parties is not None and not self.parties >= 1:
            raise ConfigError(f"serve.start.parties = {self.parties}; it must be at least 1")
        if self.at is not None and self.at.tzinfo is None:
            raise ConfigError(
                f"serve.start.at = {self.at}; give a time zone, e.g. 2027-01-31T09:00:00Z"
            )


class _Own(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of one end of the connection."""

    certificate: str
    key: str
    authority: str
    state: str
    revoked: str | None = None

    def credentials(self, base: Path) -> Credentials:
        """The files, relative to the configuration that names them."""
        revoked = None if self.revoked is None else base / self.revoked
        return Credentials(base / self.certificate, base / self.key, base / self.authority, revoked)


class Serve(_Own, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's own settings: no party needs to know or agree to them."""

    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    start: Start = Start()
    deadline_s: float | None = None
    """After so long a round goes on without late parties, if a quorum has answered."""
    return_in_s: float = 60.0
    """When parties shall be back after a planned close."""
    linger_s: float = 60.0
    """How long the result is held for parties that are not connected at the end."""
    metrics: str | None = None
    """Where to serve Prometheus metrics, e.g. "127.0.0.1:9464"; None: nowhere."""
    accept_returned: bool = False
    """Whether factors that parties return are taken over by a server without a state of its own."""
    most_records: int = 10**9
    """How many records one party has at most. One that announces more is refused; the updates of
    all are bounded by it, those of one that announces a number by that number."""
    most_connections: int = 1024
    handshake_s: float = 10.0
    """For the TLS handshake, and again for the first message."""
    frame_s: float = 60.0
    heartbeat_s: float = 20.0
    """How often a party that waits is sent a Heartbeat; after three without one it dials again."""
    future_training: datetime | None = None

    def __post_init__(self) -> None:
        for key in (
            "deadline_s", "return_in_s", "linger_s", "handshake_s", "frame_s", "heartbeat_s"
        ):  # fmt: skip
            _check_seconds(f"serve.{key}", getattr(self, key))
        if not self.heartbeat_s >= LEAST_HEARTBEAT_S:
            raise ConfigError(
                f"serve.heartbeat_s = {self.heartbeat_s}; it must be at least {LEAST_HEARTBEAT_S}"
            )
        if not self.most_connections >= 1:
            raise ConfigError(
                f"serve.most_connections = {self.most_connections}; it must be at least 1"
            )
        if not self.most_records >= 1:
            raise ConfigError(f"serve.most_records = {self.most_records}; it must be at least 1")
        parse_address(self.listen, "serve.listen")
        if self.metrics is not None:
            parse_address(self.metrics, "serve.metrics")


class Join(_Own, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A party's own settings."""

    servers: tuple[str, ...]
    """Addresses, tried in this order: the server, then its stand-bys."""
    encoding: Literal["msgpack", "cbor", "json"] = "msgpack"
    minimum_parties: int = 2
    """Take part only if at least so many parties are on the list."""
    record_count: RecordCount = "rounded"
    """What the server is told of the number of records: it, two digits of it, or nothing."""
    send_loss: bool = True
    """Whether the loss is sent with an update; a private run never sends it."""
    unannounced: bool = False
    """Accept a server that does not announce which configuration it follows, as one written from
    the thesis alone. What is computed and charged is what was approved here, whatever it says."""
    give_up_after_s: float = 3600.0
    """How long to go on trying when no server answers."""
    silence_s: float | None = None
    """After so long without a word from a server that sends no heartbeats, dial again; None: never.
    With heartbeats, dial again after three that did not come."""
    return_likelihood: bool = False
    """Whether to send the last factor to a server that asks for it because it has lost its own."""

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError('join.servers is empty; name at least one, e.g. "host:7443"')
        for server in self.servers:
            parse_address(server, "join.servers")
        if not self.minimum_parties >= 1:
            raise ConfigError(
                f"join.minimum_parties = {self.minimum_parties}; it must be at least 1"
            )
        _check_seconds("join.give_up_after_s", self.give_up_after_s)
        _check_seconds("join.silence_s", self.silence_s)


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


def _check_seconds(key: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ConfigError(f"{key} = {value}; it must be a finite number of seconds > 0")
