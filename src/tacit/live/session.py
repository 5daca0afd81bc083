"""A party's side of one connection: join, wait for the posterior, send the update, leave.

`AsyncSession` implements only the protocol. `tacit.live.party` adds ledger, storage and
reconnection. A custom training loop can use `AsyncSession` directly, or `Session` without asyncio:

    with tacit.connect("host:7443", certificate=…, key=…, authority=…, data_size=1000) as session:
        while (turn := session.wait_for_posterior()) is not None:
            session.send_update(turn, my_training(turn.cavity))
        print(session.final_posterior)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from tacit.arrays import Arrays, Natural
from tacit.errors import PeerError
from tacit.expfam import Family
from tacit.expfam.rooted import stored_for
from tacit.live.protocol import arrays as numbers
from tacit.live.protocol import messages as m
from tacit.live.protocol.codec import ENCODINGS, Encoding, decode, encode, is_bincode
from tacit.live.protocol.state_tables import PartySide, after
from tacit.live.settings import MAX_HEARTBEAT_S, MIN_HEARTBEAT_S
from tacit.live.transport.frames import (
    FIRST_LIMIT,
    LIMIT,
    HangupError,
    SilenceError,
    read_frame,
    write_frame,
)
from tacit.live.transport.stream import CONNECT_S, abort, dial, shut
from tacit.live.transport.tls import Credentials
from tacit.pvi import damped_update, divide, multiply
from tacit.server.messages import UPDATE

KeepResult = Callable[[Natural, Arrays, dict[str, Any] | None], None]

SUM_MESSAGES = (m.RequestKeys, m.KeyRoster, m.PartyShares, m.SurvivorSet, m.UnmaskRequest)
MAX_ERRORS = 3
MISSED_HEARTBEATS = 3
"""Consecutive missed heartbeats after which the connection counts as lost."""
MAX_VISITS = 2**32 - 1
"""Largest visit number. Visit numbers seed a party's random numbers and have 32 bits."""


class RejectedError(PeerError):
    """The server refused to accept this party."""

    def __init__(self, reason: str, *, fixable: bool, code: str | None) -> None:
        super().__init__(reason)
        self.fixable, self.code = fixable, code


class ClosedError(PeerError):
    """The server has closed the connection, permanently if `return_in_s` is None."""

    def __init__(self, reason: str, return_in_s: float | None) -> None:
        super().__init__(reason)
        self.return_in_s = return_in_s


class Turn(NamedTuple):
    """A request from the server for an update.

    `posterior` is the current posterior, and `factor` is the factor of this party. Each is None if
    the stage does not need it.
    """

    posterior: Any
    factor: Any
    damping: float
    request: str
    run: str
    visit: int
    version: int
    initial: bool
    round: int
    stage: str = UPDATE
    public: Arrays = {}  # noqa: RUF012 - shared and never written to
    traceparent: str | None = None
    """Trace context of this request, if the server has tracing."""

    @property
    def cavity(self) -> Natural:
        """Cavity distribution: the current posterior without this party's factor."""
        return divide(self.posterior, self.factor)


REFUSED = "the server refused to accept this party: "


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """Facts that a party announces when it joins, and limits on what it accepts."""

    data_size: int = 0
    configuration: str | None = None
    guarantee: m.Promise | None = None
    family: Family | None = None
    """Posterior family; natural parameters of other families are refused. None: accept any."""
    public_shapes: Callable[[str], dict[str, tuple[int, ...]]] | None = None
    """Names and shapes of a stage's public arrays; None: accept any."""
    result_shapes: dict[str, tuple[int, ...]] | None = None
    """Names and shapes of the public arrays of the final posterior; None: accept any."""
    largest: int = 0
    """Largest number of values in the public arrays of a request or of the result."""
    sum_bytes: int = 0
    """Largest size of a message of secure sums."""
    heartbeat: bool = False
    """True if the party promises to answer heartbeats except while it computes an update. The
    caller must then be in `wait_for_posterior` whenever it does not compute.
    """
    silence_s: float | None = None
    """Longest time without a message from a server that sends no heartbeats; None: no limit."""


class AsyncSession:
    """One connection to one server. Made by `open_session`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        encoding: Encoding,
        introduction: Introduction,
        factor: Natural | None = None,
        visits: int = 0,
    ) -> None:
        self._reader, self._writer = reader, writer
        self.encoding: Encoding = encoding
        self.introduction = introduction
        self.side = PartySide.JOINING
        self.announced = False
        """True if the server supports the protocol extensions."""
        self.configuration: str | None = None
        self.run = ""
        self.parties: int | None = None
        self.wants_factor = False
        self.silence_s = introduction.silence_s
        """Largest silence of the server while waiting; None: no limit."""
        self.final_posterior: Natural | None = None
        self.final_public: Arrays = {}
        self.noted: Callable[[str], None] = lambda _: None
        """Called with the text of every Error that the server sends."""
        self.keep_result: KeepResult = lambda _, __, ___: None
        """Called with the final posterior, its public arrays and the server's verdict before they
        are acknowledged.
        """
        self.sums: Callable[[m.ServerMessage], m.ClientMessage | None] | None = None
        """Answers messages of secure sums; None: they are refused."""
        self.refused: Callable[[str], None] = lambda _: None
        """Called with the reason when a message of a secure sum is refused."""
        self.factor = factor
        """This party's factor, for a server that does not send it."""
        self.visits = visits
        self.sent_bytes = 0
        self.received_bytes = 0
        self.heard_at = -math.inf
        """Time of the last valid message from the server after its acceptance."""
        self.check_server: Callable[[], None] = lambda: None
        """Raises if the server's certificate has expired or was revoked; called before every
        turn.
        """
        self._errors = 0
        self._limit = LIMIT
        if introduction.family is not None:
            count = sum(math.prod(shape) for shape in introduction.family.shapes.values())
            self._limit = FIRST_LIMIT + 100 * (count + introduction.largest)
            self._limit += introduction.sum_bytes

    async def join(self, *, rejoin: bool) -> None:
        """Join the run; raises RejectedError if refused."""
        who = self.introduction
        if rejoin:
            self.side = PartySide.REJOINING
            await self._send(m.ReJoinCluster())
        else:
            await self._send(
                m.JoinCluster(
                    data_size=who.data_size,
                    protocol=m.PROTOCOL,
                    configuration=UNSET if who.configuration is None else who.configuration,
                    encodings=ENCODINGS,
                    guarantee=UNSET if who.guarantee is None else who.guarantee,
                    heartbeat=who.heartbeat,
                )
            )
        message = await self._next(timeout_s=CONNECT_S)
        if isinstance(message, m.RejectionFromCluster):
            raise RejectedError(
                f"{REFUSED}{_shown(message.reason)}",
                fixable=message.fixable,
                code=_given(message.code),
            )
        if isinstance(message, m.ServerError):
            raise PeerError(f"the server replied with an error: {_words(message)}")
        if isinstance(message, m.EarlyCloseOfConnection):
            await self._close_early(message)
        assert isinstance(message, m.AcceptedIntoCluster | m.ReAcceptanceIntoCluster)
        self.announced = bool(_given(message.protocol))
        if who.guarantee is not None and _given(message.protocol) not in (None, m.PROTOCOL):
            raise RejectedError(
                f"the server announced protocol {message.protocol}, and this party has protocol "
                f"{m.PROTOCOL}; in a private run the server and all parties need the same "
                "protocol, because each of them computes the lattice step of releases: install "
                "the same version of tacit",
                fixable=False,
                code=None,
            )
        self.configuration = _given(message.configuration)
        self.run = _given(message.run) or ""
        self.parties = _given(message.parties)
        heartbeat_s = _given(message.heartbeat_s)
        if self.announced and heartbeat_s is not None and heartbeat_s > 0:
            between = min(max(heartbeat_s, MIN_HEARTBEAT_S), MAX_HEARTBEAT_S)
            self.silence_s = MISSED_HEARTBEATS * between
        if isinstance(message, m.ReAcceptanceIntoCluster):
            self.factor = self._unpack(message.last_likelihood, "last_likelihood")
        else:
            self.wants_factor = bool(_given(message.return_likelihood))

    async def wait_for_posterior(self) -> Turn | None:
        """Wait for the next request and return it. At the end of the run, set `final_posterior` and
        return None.

        Raises ClosedError if the server closes the connection, HangupError if the connection
        breaks.
        """
        while True:
            try:
                message = await self._next(timeout_s=self.silence_s)
            except SilenceError:
                abort(self._writer)  # it would not answer a closing handshake either
                await self.close()
                raise HangupError(
                    f"the server has sent nothing for {self.silence_s:g} s; reconnect"
                ) from None
            if isinstance(message, SUM_MESSAGES):
                await self._help_sum(message)
                continue
            if isinstance(message, m.SelectedForTraining):
                return self._turn(message)
            if isinstance(message, m.EndOfTraining):
                await self._end(message)
                return None
            if isinstance(message, m.EarlyCloseOfConnection):
                await self._close_early(message)

    async def send_update(self, turn: Turn, posterior: Natural, loss: float | None = None) -> None:
        """Answer the request `turn`; the update is computed from the local posterior and damped."""
        await self.send_delta(turn, damped_update(posterior, turn.posterior, turn.damping), loss)

    async def send_delta(self, turn: Turn, delta: Natural, loss: float | None = None) -> None:
        """Answer the request `turn` with the damped update Δₘ of this party's factor."""
        if self.announced:
            update = m.UpdatedLikelihood(
                delta=numbers.pack(delta, self.encoding),
                loss=loss,
                request=turn.request,
                factor_version=turn.version,
            )
        else:
            self.factor = multiply(turn.factor, delta)
            self.visits += 1
            update = m.UpdatedLikelihood(
                new_likelihood=numbers.pack_normal(self.factor),
                delta=numbers.pack_normal(delta),
                loss=0.0 if loss is None else loss,  # this server expects a number
            )
        await self._send(update)
        self.side = PartySide.WAITING

    async def send_masked(self, masked: m.MaskedUpdate) -> None:
        """Answer a request in a secure sum with this party's masked vector."""
        await self._send(masked)
        self.side = PartySide.WAITING

    async def _help_sum(self, message: m.ServerMessage) -> None:
        """Answer a message of a secure sum, or reply with an error."""
        if self.sums is None:
            await self._complain(f"{message.name} in a run without secure sums")
            return
        try:
            answer = await asyncio.to_thread(self.sums, message)
        except PeerError as error:
            self.refused(f"{message.name}: {error}")
            await self._complain(str(error))
            return
        if answer is not None:
            await self._send(answer)

    async def return_factor(self, factor: Natural) -> None:
        """Send this party's last factor to a server that has lost its state."""
        await self._send(m.ReturnLastLikelihood(likelihood=self._pack(factor)))

    async def fail(self, reason: str) -> None:
        """Report that this party could not answer a request; `reason` must not quote data."""
        await self._send(m.ClientError(error=reason, reason=reason))
        self.side = PartySide.WAITING

    async def leave(
        self,
        reason: str | None = None,
        expected_absence_s: float | None = None,
        *,
        listening: bool = False,
    ) -> None:
        """Leave the run before its end: permanently, or for `expected_absence_s` seconds.

        With `listening` this party answers no further request, but fetches the result later on
        another connection. A server of version 0.1 treats this as leaving permanently.
        """
        absence = None if expected_absence_s is None else m.Duration.of(expected_absence_s)
        listens = True if listening and self.announced else UNSET
        await self._send(
            m.EarlyLeaveCluster(reason=reason, expected_absence=absence, listening=listens)
        )
        self.side = PartySide.LEAVING
        try:
            async with asyncio.timeout(CONNECT_S):  # regardless of pending messages
                while self.side is not PartySide.GONE:
                    message = await self._next()
                    if isinstance(message, m.EndOfTraining):
                        await self._end(message)
        except TimeoutError:
            raise HangupError(f"no acknowledgement within {CONNECT_S:g} s of leaving") from None
        finally:
            await self.close()

    @property
    def gone(self) -> bool:
        """True once the connection is closed."""
        return self.side is PartySide.GONE

    async def close(self) -> None:
        """Close the connection without a message."""
        self.side = PartySide.GONE
        await shut(self._writer)

    async def _next(self, timeout_s: float | None = None) -> m.ServerMessage:
        """Return the next message that the protocol allows in this state; reply to any other
        message with an error.
        """
        while True:
            payload = await read_frame(self._reader, limit=self._limit, idle_s=timeout_s)
            self.received_bytes += len(payload) + 4
            try:
                message = decode(payload, self.encoding, m.SERVER_MESSAGES)
            except PeerError as error:
                await self._complain(str(error))
                continue
            do = after(self.side, message)
            if do is None:
                await self._complain(f"{message.name} while {self.side.value}")
                continue
            assert isinstance(do.then, PartySide)
            welcomed = self.side not in (PartySide.JOINING, PartySide.REJOINING)
            if welcomed and do.action != "note":
                self.heard_at = time.monotonic()
            if do.action != "train":  # an invalid turn leaves the state unchanged
                self.side = do.then
            if do.action == "echo":
                await self._send(m.ClientHeartbeat())
                continue
            if do.action == "note":
                self.noted(_words(message))
                self._count(f"the server replied with an error: {_words(message)}")
                continue
            return message

    async def _complain(self, reason: str) -> None:
        await self._send(m.ClientError(error=reason, reason=reason))
        self._count(f"the server violates the protocol: {reason}")

    def _count(self, reason: str) -> None:
        self._errors += 1
        if self._errors >= MAX_ERRORS:
            raise PeerError(f"{reason} ({self._errors} times; see the server's log)")

    def _turn(self, message: m.SelectedForTraining) -> Turn:
        self.check_server()
        posterior, stage = None, _given(message.stage)
        if message.current_posterior is not None:
            posterior = self._unpack(message.current_posterior, "current_posterior")
        elif stage is None:
            raise PeerError(
                "SelectedForTraining has neither current_posterior nor stage; send one of them"
            )
        damping = 1.0 if message.damping_factor is None else message.damping_factor
        if not 0 < damping <= 1:
            raise PeerError(f"damping_factor = {damping}; it must be in (0, 1]")
        factor = self.factor
        if message.factor is not UNSET:
            factor = self._unpack(message.factor, "factor")
        elif stage is not None:
            factor = None
        elif factor is None:
            assert posterior is not None
            factor = {name: np.zeros_like(value) for name, value in posterior.items()}
        request, visit = _given(message.request), _given(message.visit)
        needed = message.factor is not UNSET or stage is not None
        if self.announced and (request is None or visit is None or not needed):
            raise PeerError(
                "SelectedForTraining without request, visit or factor; send all of them"
            )
        if visit is not None and not visit <= MAX_VISITS:
            raise PeerError(f"visit = {visit}; it must be at most {MAX_VISITS}")
        self.side = PartySide.TRAINING
        return Turn(
            posterior=posterior,
            factor=factor,
            damping=damping,
            request=request or _content_id(posterior or {}, factor or {}, damping),
            run=_given(message.run) or self.run,
            visit=self.visits if visit is None else visit,
            version=_given(message.factor_version) or 0,
            initial=bool(_given(message.initial)),
            round=_given(message.round) or 0,
            stage=stage or UPDATE,
            public=self._public(message.public, stage or UPDATE),
            traceparent=_given(message.traceparent),
        )

    def _public(self, arrays: m.Distribution | UnsetType, stage: str) -> Arrays:
        """Decode the public arrays with the shapes that the method expects."""
        shapes_at = self.introduction.public_shapes
        shapes = None if shapes_at is None else shapes_at(stage)
        return numbers.unpack_arrays({} if arrays is UNSET else arrays, shapes, "public")

    async def _end(self, message: m.EndOfTraining) -> None:
        final = self._unpack(message.final_posterior, "final_posterior")
        family = self.introduction.family
        if family is not None and not family.is_proper(final):
            raise PeerError(
                "final_posterior is not a proper distribution; contact the server's operator"
            )
        arrays = {} if message.public is UNSET else message.public
        shapes = self.introduction.result_shapes
        if shapes is not None:
            shapes = stored_for(shapes, arrays)
        public = numbers.unpack_arrays(arrays, shapes, "public")
        verdict = None if message.verdict is UNSET else message.verdict
        self.keep_result(final, public, None if verdict is None else msgspec.to_builtins(verdict))
        self.final_posterior, self.final_public = final, public
        with contextlib.suppress(HangupError):
            await self._send(m.FinalLeaveTraining(available_for_future_training=True))
        await self.close()

    async def _close_early(self, message: m.EarlyCloseOfConnection) -> None:
        with contextlib.suppress(HangupError):
            await self._send(m.ClientAcknowledgement())
        await self.close()
        back = None if message.return_in is None else message.return_in.seconds
        raise ClosedError(f"the server closed: {_shown(message.reason)}", back)

    def _pack(self, natural: Natural) -> m.Distribution:
        if self.announced:
            return numbers.pack(natural, self.encoding)
        return numbers.pack_normal(natural)

    def _unpack(self, distribution: m.Distribution, what: str) -> Natural:
        return numbers.unpack(distribution, self.introduction.family, what)

    async def _send(self, message: m.Message) -> None:
        payload = encode(message, self.encoding)
        await write_frame(self._writer, payload)
        self.sent_bytes += len(payload) + 4


async def open_session(
    server: str,
    credentials: Credentials,
    introduction: Introduction,
    *,
    encoding: Encoding = "msgpack",
    rejoin: bool = False,
    factor: Natural | None = None,
    visits: int = 0,
    context: ssl.SSLContext | None = None,
) -> AsyncSession:
    """Connect and join. If the server has already accepted this party, rejoin instead."""
    for again in (rejoin, True):
        reader, writer, check = await dial(server, credentials, context)
        session = AsyncSession(
            reader, writer,
            encoding=encoding, introduction=introduction, factor=factor, visits=visits,
        )  # fmt: skip
        session.check_server = check
        try:
            await session.join(rejoin=again)
            return session
        except RejectedError as error:
            await session.close()
            unsaid = is_bincode(encoding) and error.fixable  # bincode has no field for the code
            if again or not (error.code == "rejoin" or unsaid):
                raise
        except BaseException:
            await session.close()
            raise
    raise AssertionError("unreachable")


async def send_approval(
    server: str,
    credentials: Credentials,
    introduction: Introduction,
    context: ssl.SSLContext | None = None,
) -> None:
    """Ask once to join under a version of the agreed file that is not the one in force.

    Raises RejectedError. Its code "version" means that the server has stored the approval.
    """
    reader, writer, check = await dial(server, credentials, context)
    session = AsyncSession(reader, writer, encoding="msgpack", introduction=introduction)
    session.check_server = check
    try:
        await session.join(rejoin=False)
    finally:
        await session.close()


def _content_id(posterior: Natural, factor: Natural, damping: float) -> str:
    """Compute an id from the content of a request that the server sent without an id."""
    digest = hashlib.blake2b(repr(damping).encode(), digest_size=12)
    for natural in (posterior, factor):
        for name in sorted(natural):
            digest.update(name.encode() + np.ascontiguousarray(natural[name], "<f8").tobytes())
    return f"q-{digest.hexdigest()}"


def _given(value: Any) -> Any:
    return None if value is UNSET else value


def _words(message: Any) -> str:
    return _shown(message.error or message.reason)


def _shown(text: str | None) -> str:
    """Return a peer's text on one line, without control characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text or "")
    return " ".join(plain.split())[:300] or "no reason given"
