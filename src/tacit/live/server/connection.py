"""One party's connection as the server sees it."""

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


@dataclass(eq=False)
class Connection:
    """Streams, state, and what was said over them."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: Peer
    address: str
    frame_s: float
    side: ServerSide = ServerSide.CONNECTED
    encoding: Encoding = "json"
    member: Member | None = None
    sent: str | None = None
    """The id of the last request sent here."""
    barred: bool = False
    """Whether nothing that arrives here counts any longer: its certificate is no longer valid."""
    replaced: bool = False
    """Whether a newer connection of the same party has taken over."""
    unanswered: int = 0
    """How many heartbeats sent here have had no answer."""
    errors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def plain(self) -> bool:
        """Whether the peer knows the thesis's messages only."""
        return self.member is None or self.member.protocol == 0

    def pack(self, natural: Natural) -> Distribution:
        """A distribution as this peer reads it."""
        if self.plain:
            return numbers.pack_normal(natural)
        return numbers.pack(natural, self.encoding)

    async def tell(self, message: ServerMessage) -> None:
        """Send, after what was sent before; a peer that is gone is nobody's trouble."""
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
        """The state after sending a message that changes it."""
        if isinstance(message, SelectedForTraining):
            self.side = ServerSide.TRAINING
        elif isinstance(message, EndOfTraining):
            self.side = ServerSide.ENDING
        elif isinstance(message, EarlyCloseOfConnection):
            self.side = ServerSide.CLOSING

    async def drop(self) -> None:
        """Hang up; may be called again. A peer that does not answer is aborted after a second."""
        self.side = ServerSide.GONE
        await shut(self.writer, within_s=1.0)

    def abort(self) -> None:
        """Hang up at once, without a word."""
        self.side = ServerSide.GONE
        abort(self.writer)
