"""How the server reacts to a party's messages, as `tacit.live.protocol.state_tables` prescribes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import UNSET

from tacit.arrays import Arrays
from tacit.errors import ConfigError, DataError, PeerError, TacitError
from tacit.live.journal import Journal
from tacit.live.protocol import arrays as numbers
from tacit.live.protocol import messages as m
from tacit.live.protocol.codec import ENCODINGS, decode, detect, is_bincode
from tacit.live.protocol.state_tables import ServerSide, after
from tacit.live.secure.agreed import message_bytes
from tacit.live.secure.checks import SecureSumError
from tacit.live.server.connection import Connection
from tacit.live.server.live_run import BrokenBoundError, LiveRun, RefusedError
from tacit.live.server.membership import Member
from tacit.live.server.rate import SURPLUS_BURST, SURPLUS_PER_S, TokenBucket
from tacit.live.server.sums import LateError
from tacit.live.settings import Serve
from tacit.live.transport.frames import FIRST_LIMIT, HangupError, read_frame
from tacit.server.messages import Reply
from tacit.server.requests import integer_shapes

MAX_ERRORS = 3
COOL_DOWN_S = 10
"""Seconds until a party that sent too many messages may reconnect."""


class TooManyMessagesError(PeerError):
    """A party has sent too many messages that were not requested."""


class AnswerError(PeerError):
    """An unreadable message, or an update that cannot be applied."""


class Conversations:
    """Handles the messages of all connections, one task per connection."""

    def __init__(
        self,
        live: LiveRun,
        settings: Serve,
        journal: Journal,
        *,
        is_void: Callable[[int], bool],
        spawn: Callable[[Awaitable[None]], None],
        wake: Callable[[], None],
        tell_log: Callable[[Any], None],
        fail: Callable[[TacitError], None],
    ) -> None:
        self.live, self.settings, self.journal = live, settings, journal
        self.connections: dict[str, Connection] = {}
        """Connected members by name."""
        self.inbox: list[Reply] = []
        self.traffic: dict[str, tuple[int, int]] = {}
        """Bytes in and out of each party's closed connections."""
        self._surplus: dict[str, TokenBucket] = {}
        """Per party, over all its connections: rate limit of surplus messages."""
        self._failed: dict[str, int] = {}
        """Per party, over all its connections: consecutive unusable replies."""
        self._approved: set[tuple[str, int]] = set()
        """Approvals of new versions that were logged."""
        self._is_void, self._spawn, self._wake = is_void, spawn, wake
        self._tell_log, self._fail = tell_log, fail
        count = sum(value.size for value in live.rules.prior.values()) + _largest_release(live)
        self._limit = (
            FIRST_LIMIT + 100 * count
        )  # three distributions of JSON numbers, plus a margin
        if live.sums is not None:
            self._limit += message_bytes(len(live.parties), live.sums.terms.slots)

    async def converse(self, connection: Connection) -> None:
        """Handle a connection from its first message to its last."""
        try:
            await self._read(connection)
        except HangupError as error:
            self.journal.write("hung up", party=connection.peer.name, reason=str(error))
        except PeerError as error:
            self.refuse("protocol", str(error), connection)
        except DataError as error:  # e.g. the disk is full: the server cannot go on
            self._fail(error)
        finally:
            # First remove it, whatever happens while it is closed.
            if self.connections.get(connection.peer.name) is connection:
                del self.connections[connection.peer.name]
            before = self.traffic.get(connection.peer.name, (0, 0))
            self.traffic[connection.peer.name] = (
                before[0] + connection.bytes_in,
                before[1] + connection.bytes_out,
            )
            self._wake()
            await connection.drop()

    async def _read(self, connection: Connection) -> None:
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
            if connection.barred:
                return
            try:
                if first:
                    connection.encoding, first = detect(payload), False
                await self._heed(connection, payload)
            except HangupError:
                raise
            except TooManyMessagesError as error:
                await self._cool_down(connection, str(error))
            except AnswerError as error:
                await self._answer_failed(connection, error)
            except PeerError as error:
                await self._complain(connection, str(error))

    def _count_surplus(self, connection: Connection) -> None:
        """Count a message that does not advance the run; too many of them end the connection."""
        party, now = connection.peer.name, time.monotonic()
        bucket = self._surplus.get(party)
        if bucket is None:
            bucket = self._surplus[party] = TokenBucket(SURPLUS_BURST, SURPLUS_PER_S, now)
        if not bucket.take(now):
            raise TooManyMessagesError(
                f"you sent more than {SURPLUS_BURST:g} unrequested messages, and more than "
                f"{SURPLUS_PER_S:g} per second after that; reconnect in {COOL_DOWN_S} s and send "
                "fewer"
            )

    async def _cool_down(self, connection: Connection, reason: str) -> None:
        self.refuse("rate", reason, connection)
        await connection.tell(
            m.EarlyCloseOfConnection(reason=reason, return_in=m.Duration(COOL_DOWN_S))
        )
        connection.side = ServerSide.GONE

    async def _heed(self, connection: Connection, payload: bytes) -> None:
        """Perform the action that the protocol's state table prescribes for a message."""
        try:
            message = decode(payload, connection.encoding, m.CLIENT_MESSAGES)
        except PeerError as error:
            raise AnswerError(str(error)) from None
        do = after(connection.side, message)
        if do is None:
            raise PeerError(f"{message.name} is not allowed while {connection.side.value}")
        before = connection.side
        try:
            await getattr(self, f"_{do.action}")(connection, message)
        except RefusedError as error:
            code = UNSET if error.code is None else error.code
            await connection.tell(
                m.RejectionFromCluster(reason=str(error), fixable=error.fixable, code=code)
            )
            if error.code == "version":
                self._log_approval(connection.peer.name)
            else:
                self.refuse("party", str(error), connection)
            connection.side = ServerSide.GONE
            self._wake()
            return
        assert isinstance(do.then, ServerSide)
        if connection.side is before:
            connection.side = do.then
        self._wake()

    def _log_approval(self, party: str) -> None:
        # Log an approval only once: a new party connects repeatedly.
        proposal = self.live.proposal
        assert proposal is not None
        if (party, proposal.version) not in self._approved:
            self._approved.add((party, proposal.version))
            self.journal.write("approved", party=party, version=proposal.version)

    async def _answer_failed(self, connection: Connection, error: AnswerError) -> None:
        """Handle an unusable reply, so that its party does not delay the others.

        The request is sent again. After three consecutive unusable replies, counted over all
        connections of the party, the party is excluded.
        """
        party = connection.peer.name
        asked = None if connection.member is None else self.live.requests().get(party)
        here = connection.side in (ServerSide.TRAINING, ServerSide.WAITING)
        if not here or asked is None or asked.id != connection.sent:
            await self._complain(connection, str(error))
            return
        failed = self._failed[party] = self._failed.get(party, 0) + 1
        if failed >= MAX_ERRORS:
            del self._failed[party]
            connection.side = ServerSide.WAITING
            await self._leave_out(connection, f"its update cannot be used ({error})")
            self._wake()
            return
        await self._complain(connection, str(error))
        connection.sent = None  # send the open request again
        self._wake()

    async def _complain(self, connection: Connection, reason: str) -> None:
        connection.errors += 1
        self.refuse("message", reason, connection)
        await connection.tell(m.ServerError(error=reason, reason=reason))
        if connection.errors >= MAX_ERRORS:
            connection.side = ServerSide.GONE

    def refuse(self, kind: str, reason: str, connection: Connection) -> None:
        """Log that a peer with a certificate was refused."""
        party = connection.peer.name
        self.journal.refusal(kind, reason, party=party, address=connection.address)

    async def _admit(self, connection: Connection, message: m.JoinCluster) -> None:
        self._count_surplus(connection)
        member = self.live.join(connection.peer, message, time.time(), self._is_void)
        self._seat(connection, member)
        ours = self._ours(connection)
        if ours and self.live.state is None:
            ours["return_likelihood"] = self.live.accept_returned
        await connection.tell(
            m.AcceptedIntoCluster(expected_start_time=self.settings.start.at, **ours)
        )
        self.journal.write(
            "joined",
            party=connection.peer.name,
            address=connection.address,
            data_size=member.data_size,
            encoding=connection.encoding,
            protocol=member.protocol,
            **({"holder": connection.peer.holder} if connection.peer.holder else {}),
        )

    async def _readmit(self, connection: Connection, message: m.ReJoinCluster) -> None:
        self._count_surplus(connection)
        member, factor, version = self.live.rejoin(
            connection.peer, time.time(), self._is_void, plain=is_bincode(connection.encoding)
        )
        self._seat(connection, member)
        ours = self._ours(connection)
        if ours:
            ours["factor_version"] = version
        await connection.tell(
            m.ReAcceptanceIntoCluster(last_likelihood=connection.pack(factor), **ours)
        )
        self.journal.write("rejoined", party=connection.peer.name, address=connection.address)

    def _ours(self, connection: Connection) -> dict[str, Any]:
        """Return the extension fields of an acceptance message; {} for a peer without any."""
        if connection.plain:
            return {}
        member = connection.member
        heartbeat = member is not None and member.heartbeat is not None
        return {
            "protocol": m.PROTOCOL,
            "heartbeat_s": self.settings.heartbeat_s if heartbeat else UNSET,
            "configuration": self.live.digest,
            "run": self.live.run,
            "parties": len(self.live.parties),
            "encodings": ENCODINGS,
        }

    def _seat(self, connection: Connection, member: Member) -> None:
        """Register a party's newest connection; an older one is replaced."""
        connection.member = member
        older = self.connections.get(connection.peer.name)
        self.connections[connection.peer.name] = connection
        if older is not None:
            older.replaced = True
            self.journal.write("replaced", party=connection.peer.name, address=older.address)
            self._spawn(self._retire(older))

    async def _retire(self, older: Connection) -> None:
        """Close a replaced connection with a reason, so that its peer does not reconnect."""
        if older.side in (ServerSide.WAITING, ServerSide.TRAINING):
            goodbye = m.EarlyCloseOfConnection(
                reason="another connection of this party has taken over"
            )
            older.moved_by(goodbye)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.frame_s):
                    await older.tell(goodbye)
                    while older.side is ServerSide.CLOSING:
                        await asyncio.sleep(0.05)
        await older.drop()

    async def _add_up(self, connection: Connection, message: m.ClientMessage) -> None:
        """Process a message of a secure sum."""
        party, sums = connection.peer.name, self.live.sums
        if sums is None:
            raise PeerError(f"{message.name} was sent in a run without secure sums")
        try:
            if not sums.take(party, message):
                self._count_surplus(connection)
        except LateError as error:
            self._count_surplus(connection)
            self.refuse("late", str(error), connection)
            connection.sent = None  # send open requests again
            self.live.welcome(party, time.time())  # include it in the next round
        except SecureSumError as error:
            if error.culprit is not None:
                self.journal.refusal("culprit", str(error), party=error.culprit)
            if isinstance(message, m.MaskedUpdate):
                raise AnswerError(str(error)) from None
            raise

    async def _take(self, connection: Connection, message: m.UpdatedLikelihood) -> None:
        party = connection.peer.name
        if self.live.sums is not None:
            raise PeerError("updates of this run are masked; send MaskedUpdate")
        key = connection.sent if message.request is UNSET else message.request
        if key is None or not self.live.is_open(key, party):
            self._count_surplus(connection)
            self.journal.write("ignored", party=party, id=key)
            self.live.welcome(party, time.time())  # late but present: include it in the next round
            return
        assert self.live.state is not None
        what = f"update of party {party!r}"
        version = self.live.state.open[key].version
        delta = self._released(key, message.delta, what)
        if message.new_likelihood is not None:
            try:
                new = numbers.unpack(message.new_likelihood, self.live.rules.family, what)
                self.live.check_consistent(party, delta, new)
            except PeerError as error:
                if not connection.plain:
                    raise AnswerError(str(error)) from None
                self.refuse("factor", str(error), connection)
                await self.send_back(connection, str(error))
                return
        if message.factor_version is not UNSET:
            version = message.factor_version
        elif not connection.plain:
            raise AnswerError(f"{what} has no factor_version; add it")
        try:
            checked = self.live.check(Reply(key, party, version, delta, message.loss))
        except BrokenBoundError as error:
            await self._leave_out(connection, str(error))
            return
        except PeerError as error:
            raise AnswerError(str(error)) from None
        self._failed.pop(party, None)
        connection.trace(None)
        self.inbox.append(checked)

    def _released(self, key: str, delta: m.Distribution, what: str) -> Arrays:
        """Decode a release; its arrays must have the names and shapes of the request's stage."""
        assert self.live.state is not None
        rules = self.live.rules
        try:
            if rules.released is None or set(delta) == {"mean", "variance"}:
                return numbers.unpack(delta, rules.family, what)
            stage = self.live.state.open[key].stage.name
            integers = integer_shapes(rules, stage)
            if integers is not None:
                return numbers.unpack_integers(delta, integers, what)
            return numbers.unpack_arrays(delta, rules.released(stage), what)
        except PeerError as error:
            raise AnswerError(str(error)) from None

    async def _leave_out(self, connection: Connection, reason: str) -> None:
        """Exclude a party until the operator readmits it; its connection stays open, so that it
        receives the result.
        """
        party = connection.peer.name
        replies, self.inbox[:] = list(self.inbox), []
        try:
            if replies:
                self._tell_log(self.live.take(replies, time.time()))
            self._tell_log(self.live.leave_out(party, reason, time.time()))
        except ConfigError as error:
            self._fail(error)
        words = f"{reason}; you are left out until the operator readmits you"
        await connection.tell(m.ServerError(error=words, reason=words))

    async def send_back(self, connection: Connection, reason: str) -> None:
        """Ask a peer that keeps its own copy of its factor to rejoin, so that it gets the server's
        copy.
        """
        goodbye = m.EarlyCloseOfConnection(reason=reason, return_in=m.Duration(0))
        connection.moved_by(goodbye)
        await connection.tell(goodbye)

    async def _restore(self, connection: Connection, message: m.ReturnLastLikelihood) -> None:
        party = connection.peer.name
        self._count_surplus(connection)
        factor = numbers.unpack(message.likelihood, self.live.rules.family, "likelihood")
        self.journal.write("returned", party=party, factor=self.live.restore(party, factor))

    async def _part(self, connection: Connection, message: m.EarlyLeaveCluster) -> None:
        party, absence = connection.peer.name, message.expected_absence
        self.journal.write(
            "parted",
            party=party,
            reason=None if message.reason is None else " ".join(message.reason.split())[:300],
            back_in_s=None if absence is None else absence.seconds,
            listening=message.listening is True or None,
        )
        if connection.side is ServerSide.ENDING:
            self.live.delivered(party)
        replies, self.inbox[:] = list(self.inbox), []  # its last reply came before it left
        try:
            if replies:
                self._tell_log(self.live.take(replies, time.time()))
            listening = message.listening is True
            log = self.live.part(
                party, for_good=absence is None, now=time.time(), listening=listening
            )
            self._tell_log(log)
        except ConfigError as error:  # the run cannot go on
            self._fail(error)
        await connection.tell(m.ServerAcknowledgement())

    async def _finish(self, connection: Connection, message: m.ClientMessage) -> None:
        over = connection.side is ServerSide.ENDING
        if over:
            self.live.delivered(connection.peer.name)
        self.journal.write("finished with" if over else "closed with", party=connection.peer.name)

    async def _alive(self, connection: Connection, message: m.ClientHeartbeat) -> None:
        if connection.unanswered == 0:
            self._count_surplus(connection)
        connection.unanswered = max(0, connection.unanswered - 1)

    async def _note(self, connection: Connection, message: m.ClientError) -> None:
        reason = " ".join((message.error or message.reason or "").split())[:300]
        self.journal.write("party error", party=connection.peer.name, reason=reason)
        connection.errors += 1
        connection.told.clear()  # repeat messages of secure sums
        if connection.side is ServerSide.TRAINING:
            connection.sent = None  # send the open request again
        if connection.errors >= MAX_ERRORS:
            connection.side = ServerSide.GONE


def _largest_release(live: LiveRun) -> int:
    """Return the largest number of values that a reply of any stage releases."""
    rules = live.rules
    if rules.released is None:
        return 0
    stages = rules.stages or {rules.stage_at(v).name for v in range(rules.schedule.rounds)}
    return max(sum(math.prod(s) for s in rules.released(stage).values()) for stage in stages)
