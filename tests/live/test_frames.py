"""Frames over real sockets: whole, split, too big, too slow, and broken off."""

import asyncio
import contextlib
import errno
import time

import pytest

from tacit.errors import PeerError
from tacit.live.transport.frames import FIRST_LIMIT, LIMIT, HangupError, read_frame, write_frame

SHORT = 0.2


@contextlib.asynccontextmanager
async def two_ends():
    """Reader and writer of a server and of whoever connected to it, over the loopback."""
    arrived = asyncio.get_running_loop().create_future()

    async def accept(reader, writer):
        arrived.set_result((reader, writer))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    there = await arrived
    try:
        yield there, (reader, writer)
    finally:
        server.close()
        for end in (there[1], writer):
            end.transport.abort()
            with contextlib.suppress(OSError):
                await end.wait_closed()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def over_a_socket(story):
    """Run a story with both ends; none of them takes long."""

    async def run():
        async with asyncio.timeout(20), two_ends() as (here, there):
            await story(here, there)

    asyncio.run(run())


def framed(payload):
    return len(payload).to_bytes(4, "big") + payload


PAYLOADS = [b"", b"x", bytes(range(256)) * 274, b"", b"last"]  # the third has 70,144 bytes


def test_frames_arrive_as_they_were_sent():
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        for payload in PAYLOADS:
            # side by side: the long one is more than a socket holds
            _, found = await asyncio.gather(write_frame(writer, payload), read_frame(reader))
            assert found == payload

    over_a_socket(story)


def test_a_frame_is_its_length_in_32_bits_and_the_payload():
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        await write_frame(writer, b"abc")
        assert await reader.readexactly(7) == b"\0\0\0\x03abc"

    over_a_socket(story)


def test_several_frames_in_one_packet():
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        writer.write(b"".join(framed(payload) for payload in PAYLOADS))
        for payload in PAYLOADS:
            assert await read_frame(reader, frame_s=5.0) == payload

    over_a_socket(story)


def test_frames_split_byte_by_byte():
    async def story(here, there):
        (reader, _), (_, writer) = here, there

        async def trickle():
            for byte in framed(b"hello") + framed(b"") + framed(b"z"):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.001)

        sending = asyncio.create_task(trickle())
        found = [await read_frame(reader, frame_s=5.0) for _ in range(3)]
        await sending
        assert found == [b"hello", b"", b"z"]

    over_a_socket(story)


@pytest.mark.parametrize(
    ("announced", "limit"),
    [(2**32 - 1, LIMIT), (LIMIT + 1, LIMIT), (FIRST_LIMIT + 1, FIRST_LIMIT), (6, 5)],
)
def test_a_frame_over_the_limit_is_refused_before_its_body(announced, limit):
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        writer.write(announced.to_bytes(4, "big") + b"body")
        start = time.monotonic()
        with pytest.raises(PeerError, match=f"{announced} bytes; the limit is {limit}") as caught:
            await read_frame(reader, limit=limit)
        assert not isinstance(caught.value, HangupError)
        assert time.monotonic() - start < 1
        assert await reader.readexactly(4) == b"body"  # not looked at

    over_a_socket(story)


def test_a_frame_of_exactly_the_limit_is_read():
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        payload = b"y" * FIRST_LIMIT
        _, found = await asyncio.gather(
            write_frame(writer, payload), read_frame(reader, limit=FIRST_LIMIT)
        )
        assert found == payload

    over_a_socket(story)


def test_a_message_too_big_for_a_frame_is_not_sent():
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        with pytest.raises(PeerError, match="fit in a frame"):
            await write_frame(writer, bytes(LIMIT + 1))
        await write_frame(writer, b"next")
        assert await read_frame(reader) == b"next"

    over_a_socket(story)


@pytest.mark.parametrize("begun", [b"\0", b"\0\0\0", b"\0\0\0\x0a", b"\0\0\0\x0ahalf"])
def test_half_a_frame_and_then_silence_is_cut_off(begun):
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        writer.write(begun)
        start = time.monotonic()
        with pytest.raises(PeerError, match="no complete frame") as caught:
            await read_frame(reader, idle_s=None, frame_s=SHORT)
        assert not isinstance(caught.value, HangupError)
        assert SHORT * 0.9 < time.monotonic() - start < 5

    over_a_socket(story)


def test_a_byte_at_a_time_is_cut_off_at_the_deadline():
    async def story(here, there):
        (reader, _), (_, writer) = here, there

        async def drip():
            for byte in framed(b"d" * 1000):
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        start = time.monotonic()
        with pytest.raises(PeerError, match="no complete frame"):
            await read_frame(reader, frame_s=SHORT)
        assert time.monotonic() - start < 5  # 20 s would be the whole
        assert not dripping.done()

    over_a_socket(story)


def test_silence_between_frames_is_the_callers_to_allow():
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        with pytest.raises(PeerError, match="silent"):
            await read_frame(reader, idle_s=SHORT)
        waiting = asyncio.create_task(read_frame(reader, idle_s=None, frame_s=SHORT))
        await asyncio.sleep(2 * SHORT)
        assert not waiting.done()  # the deadline of a frame has not begun
        writer.write(framed(b"late"))
        assert await waiting == b"late"

    over_a_socket(story)


@pytest.mark.parametrize("begun", [b"", b"\0\0", b"\0\0\0\x05", b"\0\0\0\x05hal"])
@pytest.mark.parametrize("rude", [False, True])
def test_a_peer_that_hangs_up(begun, rude):
    async def story(here, there):
        (reader, _), (_, writer) = here, there
        writer.write(framed(b"first") + begun)
        await writer.drain()
        assert await read_frame(reader) == b"first"
        if rude:
            writer.transport.abort()
        else:
            writer.close()
        with pytest.raises(HangupError, match="closed the connection"):
            await read_frame(reader, idle_s=5.0, frame_s=5.0)

    over_a_socket(story)


@pytest.mark.parametrize("idle_s", [None, 5.0])
def test_a_connection_that_timed_out_below_is_a_peer_that_is_gone(idle_s):
    """TCP reports a machine that no longer answers as a TimeoutError: it is not our deadline."""

    async def story(here, there):
        (reader, _), _ = here, there
        reader.set_exception(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        with pytest.raises(HangupError, match="closed the connection"):
            await read_frame(reader, idle_s=idle_s)

    over_a_socket(story)


def test_a_peer_that_does_not_read_is_cut_off():
    async def story(here, there):
        (_, _), (_, writer) = here, there  # nobody reads here: the window fills and stays full
        start = time.monotonic()
        with pytest.raises(HangupError, match="has not read"):
            await write_frame(writer, bytes(64 * 2**20), frame_s=SHORT)
        assert time.monotonic() - start < 5

    over_a_socket(story)


def test_writing_to_a_peer_that_is_gone():
    async def story(here, there):
        (_, gone), (_, writer) = here, there
        gone.transport.abort()

        async def insist():
            for _ in range(100):  # the first may still fit in a buffer
                await write_frame(writer, b"anybody?")
                await asyncio.sleep(0.01)

        with pytest.raises(HangupError, match="closed the connection"):
            await insist()

    over_a_socket(story)
