"""Frames: a 32-bit big-endian length, then the payload.

A frame that has begun must be whole within its deadline: a peer that stops half-way, or sends a
byte a second, is cut off. Between frames a peer may be silent as long as the caller allows.
"""

from __future__ import annotations

import asyncio

from tacit.errors import PeerError

FIRST_LIMIT = 64 * 1024
"""Bytes that a peer may send before it has joined."""
LIMIT = 256 * 1024 * 1024
FRAME_S = 60.0


class HangupError(PeerError):
    """The peer is gone, between two frames or within one."""


class SilenceError(PeerError):
    """The peer has not begun a frame within the time that it had."""


async def read_frame(
    reader: asyncio.StreamReader,
    *,
    limit: int = LIMIT,
    idle_s: float | None = None,
    frame_s: float = FRAME_S,
) -> bytes:
    """The next payload; its first byte within `idle_s` (None: ever), the rest within `frame_s`."""
    idle, frame = asyncio.timeout(idle_s), asyncio.timeout(frame_s)
    try:
        async with idle:
            first = await reader.readexactly(1)
        async with frame:
            length = int.from_bytes(first + await reader.readexactly(3), "big")
            if length > limit:
                raise PeerError(f"a frame of {length} bytes; at most {limit} are read here")
            return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError) as error:
        # A TimeoutError may be ours, or that of a connection whose peer no longer answers.
        if idle.expired():
            raise SilenceError(f"no whole frame: silent for {idle_s:g} s; send sooner") from None
        if frame.expired():
            raise PeerError(f"no whole frame within {frame_s:g} s; send faster") from None
        raise HangupError(f"the peer hung up ({type(error).__name__})") from None


async def write_frame(
    writer: asyncio.StreamWriter, payload: bytes, *, frame_s: float = FRAME_S
) -> None:
    """Send a payload; a peer that does not read is cut off after `frame_s`."""
    if len(payload) > LIMIT:
        raise PeerError(f"a message of {len(payload)} bytes; at most {LIMIT} fit in a frame")
    try:
        writer.write(len(payload).to_bytes(4, "big") + payload)
        async with asyncio.timeout(frame_s):
            await writer.drain()
    except TimeoutError:
        raise HangupError(
            f"the peer has not read {len(payload)} bytes within {frame_s:g} s"
        ) from None
    except (ConnectionError, OSError) as error:
        raise HangupError(f"the peer hung up ({type(error).__name__})") from None
