"""Open, keep alive and close connections to a peer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

from tacit.errors import PeerError
from tacit.live.settings import parse_address
from tacit.live.transport.frames import HangupError
from tacit.live.transport.tls import Credentials, Revoked, client_context, peer_of

CONNECT_S = 10.0
BUFFER = 1 << 20
ABORT_S = 1.0
"""Longest wait for an aborted transport to report its end, which normally takes one turn of the
event loop.
"""


async def dial(
    server: str, credentials: Credentials, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Callable[[], None]]:
    """Connect with TLS; return the streams, and a function that checks that the server's
    certificate is still valid.
    """
    host, port = parse_address(server, "server")
    context = context or client_context(credentials)
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=host, limit=BUFFER
            )
    except TimeoutError:
        raise HangupError(f"{server} does not respond within {CONNECT_S:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise PeerError(
            f"{server} has an untrusted certificate: {error.verify_message}; check "
            "the address and the authority file"
        ) from None
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        raise HangupError(f"{server} cannot be reached ({reason})") from None
    keep_alive(writer)
    try:
        peer = peer_of(writer.get_extra_info("ssl_object"))
        revoked = credentials.revoked and Revoked(credentials.revoked, credentials.authority)

        def check() -> None:
            if revoked and revoked.contains(peer.serial):
                raise PeerError(f"the certificate of {server} was revoked; ask its operator")
            if peer.not_after < datetime.now(UTC):
                raise PeerError(f"the certificate of {server} has expired; ask its operator")

        check()
    except BaseException:
        await shut(writer)
        raise
    return reader, writer, check


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Detect a lost peer or network within a minute or two (TCP keep-alive)."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 6),
        (
            "TCP_USER_TIMEOUT",
            90_000,
        ),  # without it, the others do not apply while data are in flight
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def shut(writer: asyncio.StreamWriter, within_s: float = 5.0) -> None:
    """Close a connection in any state; a second call does nothing. No exception other than
    CancelledError is raised.

    If a peer does not answer the closing handshake within `within_s`, the transport is aborted.
    `wait_closed` runs in a task that this function never cancels. Cancelling the task would cancel
    a future of the stream, and every later close of that stream would then raise CancelledError.
    """
    if not writer.is_closing():  # after a second close() a TLS transport cannot be aborted
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
    closed = asyncio.ensure_future(_wait_closed(writer))
    try:
        done, _ = await asyncio.wait([closed], timeout=within_s)
        if not done:
            abort(writer)
            await asyncio.wait([closed], timeout=ABORT_S)
    except asyncio.CancelledError:
        abort(writer)
        raise


def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, without waiting for the peer; unsent data are lost."""
    with contextlib.suppress(OSError, RuntimeError):
        writer.transport.abort()


async def _wait_closed(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(Exception):  # the reason does not matter
        await writer.wait_closed()
