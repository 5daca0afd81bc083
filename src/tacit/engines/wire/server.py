"""The server of a live federation: connections in, requests out, rounds in between.

One task a connection reads messages and looks them up in the table of `tacit.wire.tables`; one
task coordinates: it takes what has arrived in one durable write, passes over the late, and sends
what is open to whoever is there. Nothing that a peer does can raise out of its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET

from tacit.engines.wire.connection import Connection
from tacit.engines.wire.journal import Journal
from tacit.engines.wire.live_run import LiveRun, RefusedError
from tacit.engines.wire.watch import Commands, serve_metrics, write_status
from tacit.errors import ConfigError, DataError, PeerError
from tacit.messages import Reply, Request
from tacit.models.prior import PRIOR_PARTY
from tacit.wire import messages as m
from tacit.wire import numbers
from tacit.wire.codec import ENCODINGS, decode, detect
from tacit.wire.frames import FIRST_LIMIT, HangupError, read_frame
from tacit.wire.session import BUFFER, keep_alive, shut
from tacit.wire.settings import Serve, parse_address
from tacit.wire.tables import ServerSide, after
from tacit.wire.tls import Credentials, Peer, Revoked, peer_of, server_context

MOST_ERRORS = 3
TICK_S = 0.25
FAREWELL_S = 5.0
TALKING = (ServerSide.WAITING, ServerSide.TRAINING)


class WireServer:
    """Serves one `LiveRun` until it ends or is closed."""

    def __init__(
        self,
        live: LiveRun,
        credentials: Credentials,
        settings: Serve,
        journal: Journal,
        *,
        prior: Callable[[Request], Reply] | None = None,
        observe: Callable[[Any], None] | None = None,
    ) -> None:
        self.live, self.settings, self.journal = live, settings, journal
        self.connections: dict[str, Connection] = {}
        self.port = 0
        self.status_at = 0.0
        self._credentials = credentials
        self._context: ssl.SSLContext | None = None
        self._revoked = (
            None
            if credentials.revoked is None
            else Revoked(credentials.revoked, credentials.authority)
        )
        self._prior, self._observe = prior, observe
        self._inbox: list[Reply] = []
        self._wake = asyncio.Event()
        self._asked_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._guests = 0
        self._closing: tuple[str, float | None] | None = None
        self._over_at: float | None = None
        self._waits_for_quorum = False
        self._commands = Commands(live.directory)
        count = sum(value.size for value in live.rules.prior.values())
        self._limit = FIRST_LIMIT + 100 * count  # three distributions of JSON numbers, and some

    async def serve(self, ready: Callable[[int], None] | None = None) -> str:
        """Serve until the end; "finished", or "closed" when told to go."""
        self._context = server_context(self._credentials)
        host, port = parse_address(self.settings.listen, "serve.listen")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise ConfigError(
                f"serve.listen = {self.settings.listen!r}: {error.strerror}; choose another "
                "address or port"
            ) from None
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        metrics = None
        try:
            if self.settings.metrics is not None:
                metrics = await serve_metrics(self, self.settings.metrics)
            self._spawn(self._accept(listener))
            self._spawn(self._guard())
            self.journal.write(
                "listening",
                address=f"{host}:{self.port}",
                run=self.live.run,
                configuration=self.live.digest,
                state="new" if self.live.state is None else f"round {self.live.state.round}",
            )
            if ready is not None:
                ready(self.port)
            return await self._coordinate()
        except ConfigError as error:
            await self._say_goodbye(f"the run cannot go on: {error}", None)
            raise
        finally:
            listener.close()
            if metrics is not None:
                metrics.close()
            await self._stop()
            write_status(self, running=False)

    def close(self, reason: str, return_in_s: float | None) -> None:
        """Say good-bye to everybody and end `serve`."""
        self._closing = (reason, return_in_s)
        self._wake.set()

    # Coordination -------------------------------------------------------------------------------

    async def _coordinate(self) -> str:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()
            self._heed_commands()
            if self.live.state is None and self._closing is None and self._may_start():
                self._tell_log(self.live.start(time.time()))
            if self._inbox:
                replies, self._inbox = self._inbox, []
                self._tell_log(self.live.take(replies, time.time()))
            if self._closing is not None:
                await self._say_goodbye(*self._closing)
                return "closed"
            self._pass_over_late()
            self._ask_prior()
            self._send_open()
            write_status(self)
            if self.live.finished and self._all_told():
                return "finished"

    def _may_start(self) -> bool:
        start, joined = self.settings.start, len(self.live.members)
        wanted = start.parties
        if wanted is None:
            wanted = 1 if start.command or start.at else len(self.live.parties)
        if start.command and not self._commands.start:
            return False
        if start.at is not None and datetime.now(UTC) < start.at:
            return False
        return joined >= wanted

    def _heed_commands(self) -> None:
        self._commands.read()
        if self._commands.close is not None and self._closing is None:
            self._closing = self._commands.close

    def _pass_over_late(self) -> None:
        """Skip parties whose requests are older than the deadline, once a quorum has answered."""
        now = time.monotonic()
        open_now = {} if self.live.state is None else self.live.state.open
        self._asked_at = {key: self._asked_at.get(key, now) for key in open_now}
        deadline = self.settings.deadline_s
        if deadline is None or self.live.finished:
            return
        late = [open_now[key].party for key, at in self._asked_at.items() if now - at > deadline]
        late = [party for party in late if party != PRIOR_PARTY]
        if not late:
            self._waits_for_quorum = False
            return
        log = self.live.skip(late, time.time())
        if log:
            self._tell_log(log)
        elif not self._waits_for_quorum:
            self._waits_for_quorum = True
            self.journal.write(
                "waiting", late=late, quorum=self.live.rules.quorum, deadline_s=deadline
            )

    def _ask_prior(self) -> None:
        """The prior of a model outside its family is a party that sits here."""
        request = self.live.requests().get(PRIOR_PARTY) if self._prior is not None else None
        if request is None or request.id in {t.get_name() for t in self._tasks}:
            return

        async def answer(prior: Callable[[Request], Reply], asked: Request) -> None:
            self._inbox.append(await asyncio.to_thread(prior, asked))
            self._wake.set()

        assert self._prior is not None
        self._spawn(answer(self._prior, request), name=request.id)

    def _send_open(self) -> None:
        """Send what is open to those who are here and have not been sent it."""
        state = self.live.state
        if state is None:
            return
        if self.live.finished:
            if self._over_at is None:
                self._over_at = time.monotonic()
            for connection in self._talking():
                self._tell(
                    connection,
                    m.EndOfTraining(
                        final_posterior=connection.pack(state.result),
                        future_training=self.settings.future_training,
                        rounds=UNSET if connection.plain else state.round,
                    ),
                )
            return
        requests = self.live.requests()
        for connection in self._talking():
            request = requests.get(connection.peer.name)
            if request is not None and connection.sent != request.id:
                connection.sent = request.id
                self._tell(connection, self._selected(connection, request))

    def _talking(self) -> list[Connection]:
        return [one for one in self.connections.values() if one.side in TALKING]

    def _selected(self, connection: Connection, request: Request) -> m.SelectedForTraining:
        posterior = connection.pack(request.q)
        if connection.plain:
            return m.SelectedForTraining(
                current_posterior=posterior, damping_factor=request.damping
            )
        assert self.live.state is not None
        return m.SelectedForTraining(
            current_posterior=posterior,
            damping_factor=request.damping,
            request=request.id,
            run=self.live.run,
            visit=request.visit,
            factor_version=request.version,
            factor=connection.pack(request.factor),
            initial=request.initial,
            round=self.live.state.round + 1,
        )

    def _all_told(self) -> bool:
        assert self._over_at is not None
        waited = time.monotonic() - self._over_at
        if waited > self.settings.linger_s:
            return True
        return not self.live.undelivered() and (not self.connections or waited > FAREWELL_S)

    async def _say_goodbye(self, reason: str, return_in_s: float | None) -> None:
        back = None if return_in_s is None else m.Duration.of(return_in_s)
        for connection in self._talking():
            self._tell(connection, m.EarlyCloseOfConnection(reason=reason, return_in=back))
        self.journal.write("closing", reason=reason, return_in_s=return_in_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while self.connections:
                    await asyncio.sleep(0.02)
        if self._inbox:  # answers that crossed our good-bye
            replies, self._inbox = self._inbox, []
            self._tell_log(self.live.take(replies, time.time()))

    def _tell_log(self, log: Any) -> None:
        for line in log:
            fields = {key: value for key, value in line.items() if key != "event"}
            self.journal.write(line["event"], **fields)
        if self._observe is not None:
            self._observe(log)

    # Connections --------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:  # out of file descriptors, say: those in use are served on
                self.journal.refusal("accept", f"cannot accept ({error.strerror})")
                await asyncio.sleep(TICK_S)
                continue
            where = f"{address[0]}:{address[1]}"
            if self._guests + len(self.connections) >= self.settings.most_connections:
                self.journal.refusal("full", "too many connections", address=where)
                sock.close()
                continue
            self._guests += 1
            self._spawn(self._greet(sock, where))

    async def _greet(self, sock: socket.socket, where: str) -> None:
        """TLS handshake and introduction, within their deadlines; then the conversation."""
        try:
            connection = await self._handshake(sock, where)
        finally:
            self._guests -= 1
        if connection is None:
            return
        try:
            await self._converse(connection)
        except HangupError as error:
            self.journal.write("hung up", party=connection.peer.name, reason=str(error))
        except PeerError as error:
            self._refuse("protocol", str(error), connection)
        finally:
            await connection.drop()
            if self.connections.get(connection.peer.name) is connection:
                del self.connections[connection.peer.name]
                self._wake.set()

    async def _handshake(self, sock: socket.socket, where: str) -> Connection | None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BUFFER, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=self.settings.handshake_s,
                ssl_shutdown_timeout=1.0,
            )
        except (OSError, ssl.SSLError, ConnectionError, TimeoutError) as error:
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            self.journal.refusal("tls", str(reason or type(error).__name__), address=where)
            sock.close()
            return None
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            keep_alive(writer)
            peer = peer_of(writer.get_extra_info("ssl_object"))
            self._check_valid(peer)
        except (PeerError, DataError, OSError) as error:
            self.journal.refusal("certificate", str(error), address=where)
            await shut(writer, within_s=1.0)
            return None
        return Connection(reader, writer, peer, where, self.settings.frame_s)

    def _check_valid(self, peer: Peer) -> None:
        if peer.not_after < datetime.now(UTC):
            raise PeerError(f"{peer.name}: its certificate ended {peer.not_after:%Y-%m-%d}")
        if self._is_void(peer.serial):
            raise PeerError(f"{peer.name}: its certificate was revoked")

    def _is_void(self, serial: int) -> bool:
        return self._revoked is not None and self._revoked.contains(serial)

    async def _converse(self, connection: Connection) -> None:
        first = True
        while connection.side is not ServerSide.GONE:
            known = connection.side is not ServerSide.CONNECTED
            payload = await read_frame(
                connection.reader,
                limit=self._limit if known else FIRST_LIMIT,
                idle_s=None if known else self.settings.handshake_s,
                frame_s=self.settings.frame_s if known else self.settings.handshake_s,
            )
            connection.bytes_in += len(payload) + 4
            try:
                if first:
                    connection.encoding, first = detect(payload), False
                await self._heed(connection, payload)
            except (HangupError, RefusedError):
                raise
            except PeerError as error:
                await self._complain(connection, str(error))

    async def _heed(self, connection: Connection, payload: bytes) -> None:
        """Look a message up in the table and do what stands there."""
        message = decode(payload, connection.encoding, m.CLIENT_MESSAGES)
        do = after(connection.side, message)
        if do is None:
            raise PeerError(f"{message.name} while {connection.side.value}")
        try:
            await getattr(self, f"_{do.action}")(connection, message)
        except RefusedError as error:
            rejection = m.RejectionFromCluster(
                reason=str(error),
                fixable=error.fixable,
                code=UNSET if error.code is None else error.code,
            )
            await connection.tell(rejection)
            self._refuse("party", str(error), connection)
            connection.side = ServerSide.GONE
            return
        assert isinstance(do.then, ServerSide)
        if connection.side is not ServerSide.GONE:
            connection.side = do.then
        self._wake.set()

    async def _complain(self, connection: Connection, reason: str) -> None:
        connection.errors += 1
        self._refuse("message", reason, connection)
        await connection.tell(m.ServerError(error=reason, reason=reason))
        if connection.errors >= MOST_ERRORS:
            connection.side = ServerSide.GONE

    def _refuse(self, kind: str, reason: str, connection: Connection) -> None:
        party = connection.peer.name
        self.journal.refusal(kind, reason, party=party, address=connection.address)

    async def _guard(self) -> None:
        """End connections whose certificates have ended or were revoked meanwhile."""
        while True:
            await asyncio.sleep(1.0)
            for connection in list(self.connections.values()):
                try:
                    self._check_valid(connection.peer)
                except (PeerError, DataError) as error:
                    self._refuse("certificate", str(error), connection)
                    await connection.drop()

    # Actions of the table -----------------------------------------------------------------------

    async def _admit(self, connection: Connection, message: m.JoinCluster) -> None:
        member = self.live.join(connection.peer, message, time.time(), self._is_void)
        await self._seat(connection, member)
        plain = connection.plain
        await connection.tell(
            m.AcceptedIntoCluster(
                expected_start_time=self.settings.start.at,
                protocol=UNSET if plain else m.PROTOCOL,
                configuration=UNSET if plain else self.live.digest,
                run=UNSET if plain else self.live.run,
                parties=UNSET if plain else len(self.live.parties),
                encodings=UNSET if plain else ENCODINGS,
                return_likelihood=UNSET if plain or self.live.state else self.live.accept_returned,
            )
        )
        self.journal.write(
            "joined",
            party=connection.peer.name,
            address=connection.address,
            data_size=member.data_size,
            encoding=connection.encoding,
            protocol=member.protocol,
        )

    async def _readmit(self, connection: Connection, message: m.ReJoinCluster) -> None:
        member, factor, version = self.live.rejoin(connection.peer, time.time(), self._is_void)
        await self._seat(connection, member)
        plain = connection.plain
        await connection.tell(
            m.ReAcceptanceIntoCluster(
                last_likelihood=connection.pack(factor),
                protocol=UNSET if plain else m.PROTOCOL,
                configuration=UNSET if plain else self.live.digest,
                run=UNSET if plain else self.live.run,
                parties=UNSET if plain else len(self.live.parties),
                encodings=UNSET if plain else ENCODINGS,
                factor_version=UNSET if plain else version,
            )
        )
        self.journal.write("rejoined", party=connection.peer.name, address=connection.address)

    async def _seat(self, connection: Connection, member: Any) -> None:
        """The newest connection of a party is the party: an older one is a broken line."""
        connection.member = member
        older = self.connections.get(connection.peer.name)
        self.connections[connection.peer.name] = connection
        if older is not None:
            self.journal.write("replaced", party=connection.peer.name, address=older.address)
            goodbye = m.EarlyCloseOfConnection(
                reason="another connection of this party has taken over"
            )
            self._spawn(self._retire(older, goodbye))

    async def _retire(self, older: Connection, goodbye: m.ServerMessage) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await older.tell(goodbye)
        await older.drop()

    async def _take(self, connection: Connection, message: m.UpdatedLikelihood) -> None:
        party = connection.peer.name
        key = connection.sent if message.request is UNSET else message.request
        if key is None or not self.live.is_open(key, party):
            self.journal.write("ignored", party=party, id=key)
            return
        assert self.live.state is not None
        what = f"update of party {party!r}"
        version = self.live.state.open[key].version
        delta = numbers.unpack(message.delta, self.live.rules.family, what)
        if message.new_likelihood is not None:
            new = numbers.unpack(message.new_likelihood, self.live.rules.family, what)
            self.live.check_consistent(party, delta, new)
        if message.factor_version is not UNSET:
            version = message.factor_version
        elif not connection.plain:
            raise PeerError(f"{what} without factor_version; it is needed")
        reply = self.live.check(Reply(key, party, version, delta, message.loss))
        self._inbox.append(reply)

    async def _restore(self, connection: Connection, message: m.ReturnLastLikelihood) -> None:
        party = connection.peer.name
        factor = numbers.unpack(message.likelihood, self.live.rules.family, "likelihood")
        self.journal.write("returned", party=party, factor=self.live.restore(party, factor))

    async def _part(self, connection: Connection, message: m.EarlyLeaveCluster) -> None:
        party, absence = connection.peer.name, message.expected_absence
        self.journal.write(
            "parted",
            party=party,
            reason=message.reason,
            back_in_s=None if absence is None else absence.seconds,
        )
        self._tell_log(self.live.part(party, for_good=absence is None, now=time.time()))
        await connection.tell(m.ServerAcknowledgement())

    async def _finish(self, connection: Connection, message: m.ClientMessage) -> None:
        if connection.side is ServerSide.ENDING:
            self.live.delivered(connection.peer.name)
        self.journal.write("finished with", party=connection.peer.name)

    async def _note(self, connection: Connection, message: m.ClientError) -> None:
        reason = " ".join((message.error or message.reason or "").split())[:300]
        self.journal.write("party error", party=connection.peer.name, reason=reason)
        connection.errors += 1
        if connection.errors >= MOST_ERRORS:
            connection.side = ServerSide.GONE

    # Tasks --------------------------------------------------------------------------------------

    def _tell(self, connection: Connection, message: m.ServerMessage) -> None:
        connection.moved_by(message)
        self._spawn(connection.tell(message))

    def _spawn(self, work: Any, name: str | None = None) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.journal.write("internal", reason=repr(task.exception()))

    async def _stop(self) -> None:
        for connection in list(self.connections.values()):
            await connection.drop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
