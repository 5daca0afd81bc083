"""The [serve] and [join] tables of a live federation."""

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
MIN_HEARTBEAT_S, MAX_HEARTBEAT_S = 0.1, 3600.0
Duration = str
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
DURATION = r"\d+(\.\d+)?(s|min|h|d)"
RecordCount = Literal["exact", "rounded", "withheld"]
MIN_REPORTED_RECORDS = 100
"""With rounding, a smaller number of records is reported as "fewer than" this number."""


class Start(Table, frozen=True, kw_only=True):
    """When training starts; by default once every listed party has joined."""

    place: ClassVar[str] = "serve.start"

    parties: Count | None = None
    """Start once this many parties have joined."""
    at: datetime | None = None
    """Do not start before this time; without `parties`, start with those that have joined."""
    command: bool = False
    """True: do not start before `tacit server start`."""

    def faults(self) -> Iterator[str | TacitError]:
        if self.at is not None and self.at.tzinfo is None:
            yield f"serve.start.at = {self.at}; give a time zone, e.g. 2027-01-31T09:00:00Z"


class _Own(Table, frozen=True, kw_only=True):
    """Certificate and state files of one end of the connection."""

    certificate: str
    """PEM file with the certificate."""
    key: str
    """PEM file with the private key, mode 0600."""
    authority: str
    """PEM file with the certificate of the authority."""
    state: str
    """Directory of the state needed for a restart."""
    revoked: str | None = None
    """PEM file with revoked certificates."""
    earlier: str | None = None
    """State directory of the earlier run, if the federation continues one."""

    def credentials(self, base: Path) -> Credentials:
        """The certificate files, with paths resolved relative to the configuration file."""
        revoked = None if self.revoked is None else base / self.revoked
        return Credentials(base / self.certificate, base / self.key, base / self.authority, revoked)


class Serve(_Own, frozen=True, kw_only=True):
    """The server's local settings, which need no agreement."""

    place: ClassVar[str] = "serve"
    renamed: ClassVar[Mapping[str, str]] = {
        "return_in_s": "restart_delay",
        "linger_s": "keep_result_for",
    }

    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    """Address and port to listen on."""
    start: Start = Start()
    deadline_s: Positive | None = None
    """Time after which a round continues without late parties, if a quorum has replied."""
    restart_delay: Duration = "60s"
    """Time until parties reconnect after a planned close, e.g. "60s", "10min" or "1h"."""
    keep_result_for: Duration = "60s"
    """Time for which the result is kept for parties that are not connected at the end."""
    metrics: str | None = None
    """Address of Prometheus metrics, e.g. "127.0.0.1:9464"; None: off."""
    accept_returned: bool = False
    """True: a server without state accepts the factors that parties return."""
    most_records: Count = 10**9
    """Largest number of records of one party. A party that announces more is refused. The bounds by
    which a party's updates are checked follow from the announced number, or else from this key.
    """
    most_connections: Count = 1024
    """Largest number of simultaneous connections."""
    handshake_s: Positive = 10.0
    """Time limit of the TLS handshake, and of the first message."""
    frame_s: Positive = 60.0
    """Time limit of each frame of a message, once it has begun."""
    heartbeat_s: Annotated[float, Meta(ge=MIN_HEARTBEAT_S)] = 20.0
    """Interval of heartbeats to waiting parties; after three missed ones a party reconnects."""
    future_training: datetime | None = None
    """Time of the next planned training, announced to the parties."""

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
    """A party's local settings."""

    place: ClassVar[str] = "join"
    renamed: ClassVar[Mapping[str, str]] = {
        "record_count": "report_records",
        "give_up_after_s": "retry_for",
    }

    servers: tuple[str, ...]
    """Addresses in order of preference: the server, then its stand-bys."""
    encoding: Literal["msgpack", "cbor", "json", "bincode", "bincode-fixint"] = "msgpack"
    """How messages are encoded."""
    minimum_parties: Count = 2
    """Take part only if the federation has at least this many parties."""
    report_records: RecordCount = "rounded"
    """Number of records reported to the server: exact, rounded to two digits, or withheld."""
    send_loss: bool = True
    """True: send the loss with an update; private runs never send it."""
    unannounced: bool = False
    """Accept a server that does not announce its configuration, such as one that implements only
    the protocol of the thesis. The approved configuration determines what is computed and charged.
    """
    retry_for: Duration = "1h"
    """Time to keep trying when no server responds, e.g. "60s", "10min" or "1h"."""
    silence_s: Positive | None = None
    """Reconnect if a server without heartbeats has sent nothing for this time; None: never. From a
    server with heartbeats, three missed ones lead to a new connection.
    """
    return_likelihood: bool = False
    """True: send the last factor to a server that has lost its state and requests it."""

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
    """Convert a text such as "10min" to seconds.

    >>> in_seconds("1h"), in_seconds("0.5s"), in_seconds("10min")
    (3600.0, 0.5, 600.0)
    """
    number = duration.rstrip("".join(UNITS))
    return float(number) * UNITS[duration.removeprefix(number)]


def duration_faults(table: Table, *keys: str) -> Iterator[str]:
    """Yield an error message for each key in `keys` whose value is not a valid duration."""
    for key in keys:
        value = getattr(table, key)
        if not re.fullmatch(DURATION, value) or not in_seconds(value) > 0:
            yield (
                f'{table.place}.{key} = "{value}"; write a positive number and a unit '
                f'({", ".join(UNITS)}), e.g. "10min"'
            )


def address_faults(text: str, key: str) -> Iterator[TacitError]:
    """Yield an error if the text is not a valid address."""
    try:
        parse_address(text, key)
    except TacitError as error:
        yield error


def parse_address(text: str, key: str) -> tuple[str, int]:
    """Split an address into host and port.

    >>> parse_address("hospital.example:7443", "join.servers"), parse_address("[::1]:80", "x")
    (('hospital.example', 7443), ('::1', 80))
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536 or not host.strip("[]"):
        raise ConfigError(f"{key} = {text!r}; write host:port, e.g. 127.0.0.1:{DEFAULT_PORT}")
    return host.strip("[]"), int(port)


def reported_count(count: int, how: RecordCount) -> int:
    """Return the number of records to report: exact, rounded to two digits, or 0 if withheld.

    With rounding, every number below 100 is reported as 99, meaning "fewer than 100", because
    rounding to two digits would leave such a number exact.

    >>> [reported_count(1234, how) for how in ("rounded", "exact", "withheld")]
    [1200, 1234, 0]
    >>> [reported_count(count, "rounded") for count in (1, 42, 99, 100, 104)]
    [99, 99, 99, 100, 100]
    """
    if how == "withheld":
        return 0
    if how == "exact":
        return count
    if count < MIN_REPORTED_RECORDS:
        return MIN_REPORTED_RECORDS - 1
    step = rounding_step(count)
    return round(count / step) * step


def rounding_step(count: int) -> int:
    """Return the power of ten to whose multiples a count of this size is rounded.

    >>> [rounding_step(count) for count in (99, 100, 1200, 10000)]
    [1, 10, 100, 1000]
    """
    return 10 ** max(0, len(str(count)) - 2)
