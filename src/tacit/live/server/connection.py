"""One party's connection at the server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tacit.expfam import Natural
from tacit.live.protocol import arrays as numbers
from tacit.live.protocol.codec import Encoding, encode
from tacit.live.protocol.messages import (
    Distribution,
    EarlyCloseOfConnection,
    EndOfTraining,
    SelectedForTraining,
    ServerMessage,
)
from tacit.live.protocol.state_tables import ServerSide
from tacit.live.server.membership import Member
from tacit.live.transport.frames import HangupError, write_frame
from tacit.live.transport.stream import abort, shut
from tacit.live.transport.tls import Peer
from tacit.support.tracing import OpenSpan


@dataclass(eq=False)
class Connection:
    """Streams, state and counters of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: Peer
    address: str
    frame_s: float
    side: ServerSide = ServerSide.CONNECTED
    encoding: Encoding = "json"
    member: Member | None = None
    sent: str | None = None
    """Id of the last request sent."""
    told: set[str] = field(default_factory=set)
    """`Due.key` of each secure-sum message that was sent on this connection."""
    barred: bool = False
    """True if the certificate is no longer valid; later messages are ignored."""
    replaced: bool = False
    """True if a newer connection of the same party has replaced this one."""
    unanswered: int = 0
    """Number of unanswered heartbeats."""
    errors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _span: OpenSpan | None = None

    def trace(self, span: OpenSpan | None) -> None:
        """End the tracing span of the last request, and store that of the new request, if any."""
        if self._span is not None:
            self._span.end()
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The `traceparent` text (W3C Trace Context) of the open request; None if the request is
        not traced.
        """
        return None if self._span is None else self._span.traceparent

    @property
    def plain(self) -> bool:
        """True if the peer supports only protocol 0 (docs/protocol.md)."""
        return self.member is None or self.member.protocol == 0

    def pack(self, natural: Natural) -> Distribution:
        """Encode a distribution for this peer."""
        if self.plain:
            return numbers.pack_normal(natural)
        return numbers.pack(natural, self.encoding)

    async def tell(self, message: ServerMessage) -> None:
        """Send a message after all earlier ones; errors of a lost connection are ignored."""
        async with self._turn:
            if self.side is ServerSide.GONE:
                return
            payload = encode(message, self.encoding)
            try:
                await write_frame(self.writer, payload, frame_s=self.frame_s)
            except HangupError:
                await self.drop()
            self.bytes_out += len(payload) + 4

    def moved_by(self, message: ServerMessage) -> None:
        """Update the connection's protocol state after this message was sent."""
        if isinstance(message, SelectedForTraining):
            self.side = ServerSide.TRAINING
        elif isinstance(message, EndOfTraining):
            self.side = ServerSide.ENDING
        elif isinstance(message, EarlyCloseOfConnection):
            self.side = ServerSide.CLOSING

    async def drop(self) -> None:
        """Close the connection; a second call does nothing.

        If the peer does not respond within a second, the connection is aborted.
        """
        self.side = ServerSide.GONE
        await shut(self.writer, within_s=1.0)

    def abort(self) -> None:
        """Close the connection at once, without a message."""
        self.side = ServerSide.GONE
        abort(self.writer)
