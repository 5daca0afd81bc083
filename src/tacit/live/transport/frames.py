"""Frames: a 32-bit big-endian length, then the payload.

A frame that has begun must be complete within its deadline, so that a slow or stalled peer is
disconnected. Between frames a peer may be silent as long as the caller allows.
"""

from __future__ import annotations

import asyncio

from tacit.errors import PeerError

FIRST_LIMIT = 64 * 1024
"""Largest frame before a peer has joined, in bytes."""
LIMIT = 256 * 1024 * 1024
FRAME_S = 60.0


class HangupError(PeerError):
    """The peer closed the connection, between two frames or within one."""


class SilenceError(PeerError):
    """The peer did not begin a frame in time."""


async def read_frame(
    reader: asyncio.StreamReader,
    *,
    limit: int = LIMIT,
    idle_s: float | None = None,
    frame_s: float = FRAME_S,
) -> bytes:
    """Return the next payload. It must begin within `idle_s` seconds (None: no limit) and be
    complete `frame_s` seconds later.
    """
    idle, frame = asyncio.timeout(idle_s), asyncio.timeout(frame_s)
    try:
        async with idle:
            first = await reader.readexactly(1)
        async with frame:
            length = int.from_bytes(first + await reader.readexactly(3), "big")
            if length > limit:
                raise PeerError(f"a frame of {length} bytes; the limit is {limit}")
            return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError) as error:
        # A TimeoutError may be ours, or that of an unresponsive connection.
        if idle.expired():
            raise SilenceError(
                f"no complete frame: the peer was silent for {idle_s:g} s, the longest time allowed"
            ) from None
        if frame.expired():
            raise PeerError(
                f"no complete frame: it took more than {frame_s:g} s; send faster"
            ) from None
        raise HangupError(f"the peer closed the connection ({type(error).__name__})") from None


async def write_frame(
    writer: asyncio.StreamWriter, payload: bytes, *, frame_s: float = FRAME_S
) -> None:
    """Send a payload; a peer that does not read is disconnected after `frame_s`."""
    if len(payload) > LIMIT:
        raise PeerError(
            f"a message of {len(payload)} bytes is too long; at most {LIMIT} fit in a frame"
        )
    try:
        writer.write(len(payload).to_bytes(4, "big") + payload)
        async with asyncio.timeout(frame_s):
            await writer.drain()
    except TimeoutError:
        raise HangupError(
            f"the peer has not read {len(payload)} bytes within {frame_s:g} s"
        ) from None
    except (ConnectionError, OSError) as error:
        raise HangupError(f"the peer closed the connection ({type(error).__name__})") from None
