"""Accept TLS connections, with limits on the number and the duration of handshakes.

An unknown peer causes a handshake and a line in the log, but never delays a party. Handshakes have
a deadline, their number is limited, and an error in one does not affect others. TLS buffers are
allocated when a peer starts TLS; a silent peer costs only a socket.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import traceback
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime

from tacit.errors import ConfigError, DataError, PeerError
from tacit.live.journal import Journal
from tacit.live.server.connection import Connection
from tacit.live.server.slots import ConnectionSlots, HandshakeSlots
from tacit.live.settings import Serve, parse_address
from tacit.live.transport.stream import BUFFER, keep_alive, shut
from tacit.live.transport.tls import Credentials, Peer, Revoked, peer_of, server_context

BACKLOG = 512
PAUSE_S = 0.25
_TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of every TLS connection: a handshake record, version 3.x."""


class Listener:
    """Accepts connections, does the TLS handshake, and passes on identified peers."""

    def __init__(
        self,
        credentials: Credentials,
        settings: Serve,
        journal: Journal,
        parties: Collection[str],
    ) -> None:
        self._settings, self._journal = settings, journal
        self._context = server_context(credentials)
        self._revoked = credentials.revoked and Revoked(credentials.revoked, credentials.authority)
        self._listener: socket.socket | None = None
        self._handshakes = HandshakeSlots()
        self._slots = ConnectionSlots(settings.most_connections, parties)
        self.port = 0

    def open(self) -> str:
        """Start listening and return the address."""
        host, port = parse_address(self._settings.listen, "serve.listen")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"serve.listen = {self._settings.listen!r}: {error.strerror}; choose another "
                "address or port"
            ) from None
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        return f"{host}:{self.port}"

    def list_parties(self, parties: Collection[str]) -> None:
        """Reserve one connection for each of these parties."""
        self._slots.list_parties(parties)

    def close(self) -> None:
        """Stop accepting connections."""
        if self._listener is not None:
            self._listener.close()

    async def welcome(
        self,
        converse: Callable[[Connection], Awaitable[None]],
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        """Accept connections forever; a separate `converse` task handles each of them."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._listener)
            except OSError as error:  # e.g. out of file descriptors: existing connections go on
                self._journal.refusal("accept", f"cannot accept ({error.strerror})")
                await asyncio.sleep(PAUSE_S)
                continue
            where = f"{address[0]}:{address[1]}"
            spawn(self._admit(sock, where, converse))

    async def _admit(
        self, sock: socket.socket, where: str, converse: Callable[[Connection], Awaitable[None]]
    ) -> None:
        connection = await self._identify(sock, where)
        if connection is None:
            return
        admitted, ended = self._slots.enter(connection)
        if ended is not None:
            reason = f"{ended.peer.name}: a connection was ended to make room for another"
            self._journal.refusal("full", reason, address=ended.address)
        if not admitted:
            self._journal.refusal("full", "too many connections", address=where)
            connection.abort()
            return
        try:
            await converse(connection)
        finally:
            self._slots.leave(connection)

    async def _identify(self, sock: socket.socket, where: str) -> Connection | None:
        """Do the TLS handshake and return the connection.

        The result is None if the handshake fails, or if the server closes it because there are too
        many handshakes and a newer one needs its place.
        """
        handshake = asyncio.ensure_future(self._handshake(sock, where))
        if self._handshakes.enter(handshake):
            self._journal.refusal(
                "full", "too many handshakes: the oldest was closed", address=where
            )
        try:
            await asyncio.wait([handshake])
        finally:
            self._handshakes.leave(handshake)
            handshake.cancel()
        return None if handshake.cancelled() else handshake.result()

    async def _hello(self, sock: socket.socket) -> None:
        """Wait until the peer starts a TLS handshake."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(sock, lambda: arrived.done() or arrived.set_result(None))
        except NotImplementedError:  # an event loop of Windows: TLS buffers are allocated at once
            self._handshakes.speaks(asyncio.current_task())
            return
        try:
            async with asyncio.timeout(self._settings.handshake_s):
                await arrived
        except asyncio.CancelledError:  # displaced by a newer connection
            loop.remove_reader(sock)
            sock.close()
            raise
        finally:
            if sock.fileno() >= 0:
                loop.remove_reader(sock)
        first = sock.recv(2, socket.MSG_PEEK)
        if not first:
            raise ConnectionResetError
        if not _TLS_HANDSHAKE.startswith(first):
            raise ssl.SSLError(1, "not a TLS handshake")
        self._handshakes.speaks(asyncio.current_task())

    async def _handshake(self, sock: socket.socket, where: str) -> Connection | None:
        loop = asyncio.get_running_loop()
        try:
            await self._hello(sock)
            reader = asyncio.StreamReader(limit=BUFFER, loop=loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=self._settings.handshake_s,
                ssl_shutdown_timeout=1.0,
            )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            reason = reason or getattr(error, "strerror", None) or type(error).__name__
            self._journal.refusal("tls", str(reason), address=where)
            sock.close()
            _forget(error)
            return None
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            keep_alive(writer)
            peer = peer_of(writer.get_extra_info("ssl_object"))
            self.check(peer)
        except (PeerError, DataError, OSError) as error:
            self._journal.refusal("certificate", str(error), address=where)
            await shut(writer, within_s=1.0)
            return None
        return Connection(reader, writer, peer, where, self._settings.frame_s)

    def check(self, peer: Peer) -> None:
        """Raise a PeerError if the peer's certificate has expired or was revoked."""
        if peer.not_after < datetime.now(UTC):
            raise PeerError(f"{peer.name}: its certificate expired on {peer.not_after:%Y-%m-%d}")
        if self.is_void(peer.serial):
            raise PeerError(f"{peer.name}: its certificate was revoked")

    def is_void(self, serial: int) -> bool:
        """True if the authority has revoked this certificate."""
        return bool(self._revoked) and self._revoked.contains(serial)


def _forget(error: BaseException | None) -> None:
    """Release the buffers of a failed handshake, which the error's frames keep alive.

    An error, its traceback and its frame form a reference cycle that the garbage collector would
    find much later.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.with_traceback(None).__context__
