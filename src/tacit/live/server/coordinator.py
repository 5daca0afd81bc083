"""The server of a live federation: accept connections, send requests, apply replies.

`Listener` accepts connections and `Conversations` handles their messages, one task each. One task
coordinates: it applies replies in one durable write, skips late parties, and sends open requests to
connected parties.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from tacit.errors import DataError, PeerError, TacitError
from tacit.live.journal import Journal
from tacit.live.protocol import messages as m
from tacit.live.protocol.state_tables import ServerSide
from tacit.live.secure.checks import SecureSumError
from tacit.live.server.connection import Connection
from tacit.live.server.conversation import Conversations
from tacit.live.server.listener import Listener
from tacit.live.server.live_run import LiveRun, ReplyRules
from tacit.live.server.status import Commands, serve_metrics, write_status
from tacit.live.server.sums import SHARES, ServerSums
from tacit.live.session import MISSED_HEARTBEATS
from tacit.live.settings import Serve
from tacit.live.transport.tls import Credentials
from tacit.live.versions import Proposal
from tacit.models.prior import PRIOR_PARTY
from tacit.server.messages import Reply, Request
from tacit.support.tracing import OpenSpan

TICK_S = 0.25
GUARD_S = 1.0
"""Seconds between two checks of the certificates of connected parties."""
FAREWELL_S = 5.0
VERDICT_S = 60.0
"""Time limit for computing the verdict, in seconds. Later the result is sent without a verdict."""
PATIENCE_S = 60.0
"""Time after which a secure sum that waits for parties is logged, if there is no deadline."""
MAX_UNANSWERED = 10
"""Number of unanswered heartbeats after which a connection counts as lost."""
ACTIVE_STATES = (ServerSide.WAITING, ServerSide.TRAINING)


class StoppedTaskError(TacitError):
    """A vital task of the server has ended; a restarted server can continue the run."""


class Versions(NamedTuple):
    """Functions with which a server reads a new version of the agreed file."""

    read: Callable[[], Proposal]
    """Reads and checks the current version of the file; raises a ConfigError."""
    bounds: Callable[[Proposal], ReplyRules]
    """Returns the bounds that replies must satisfy under a proposed version."""


class WireServer:
    """Serves one `LiveRun` until it finishes or is closed."""

    def __init__(
        self,
        live: LiveRun,
        credentials: Credentials,
        settings: Serve,
        journal: Journal,
        *,
        prior: Callable[[Request], Reply] | None = None,
        observe: Callable[[Any], None] | None = None,
        versions: Versions | None = None,
        verdict: Callable[[], m.FinalVerdict] | None = None,
    ) -> None:
        self.live, self.settings, self.journal = live, settings, journal
        self._find_verdict = verdict
        self._verdict: m.FinalVerdict | UnsetType | None = UNSET if verdict is None else None
        """Verdict on the result; None while it is being computed."""
        self._versions = versions
        self.status_at = 0.0
        self.status_lost = False
        """True if status.json could not be written the last time."""
        self._prior, self._observe = prior, observe
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked_at: dict[str, float] = {}
        self._closing: tuple[str, float | None] | None = None
        self._over_at: float | None = None
        self._reopened = bool(live.finished) and not live.undelivered()
        """True if all parties had the result before the start; they may fetch it again."""
        self._failure: TacitError | None = None
        self._waits_for_quorum = False
        self._waits_in_step: str | None = None
        """Step of the secure sums whose late parties were logged last; None if no party is late."""
        self._stopping = False
        self._commands = Commands(live.directory)
        self._listener = Listener(credentials, settings, journal, live.parties)
        self._conversations = Conversations(
            live,
            settings,
            journal,
            is_void=self._listener.is_void,
            spawn=self._spawn,
            wake=self._wake.set,
            tell_log=self._tell_log,
            fail=self._fail,
        )

    @property
    def connections(self) -> dict[str, Connection]:
        """A dict from the names of connected members to their connections."""
        return self._conversations.connections

    def traffic(self, party: str) -> tuple[int, int]:
        """Return the bytes received from and sent to a party since this server started."""
        one, over = self.connections.get(party), self._conversations.traffic.get(party, (0, 0))
        return over if one is None else (over[0] + one.bytes_in, over[1] + one.bytes_out)

    @property
    def port(self) -> int:
        """Port of the server."""
        return self._listener.port

    async def serve(self, ready: Callable[[int], None] | None = None) -> str:
        """Serve until the run ends or the server is closed; return "finished" or "closed"."""
        address = self._listener.open()
        metrics = None
        try:
            if self.settings.metrics is not None:
                metrics = await serve_metrics(self, self.settings.metrics)
            accept = self._listener.welcome(self._conversations.converse, self._spawn)
            self._spawn(accept, name="accepting connections", vital=True)
            self._spawn(self._guard(), name="checking certificates", vital=True)
            self._spawn(self._beat(), name="sending heartbeats", vital=True)
            self.journal.write(
                "listening",
                address=address,
                run=self.live.run,
                configuration=self.live.digest,
                state="new" if self.live.state is None else f"round {self.live.state.round}",
                rounds=self.live.rules.schedule.rounds,
            )
            self.tell_proposal()
            if ready is not None:
                ready(self.port)
            return await self._coordinate()
        except TacitError as error:
            self.journal.write("cannot go on", reason=str(error))
            # The operator can fix e.g. a full disk: parties should reconnect.
            passing = isinstance(error, StoppedTaskError | DataError)
            back = self.settings.restart_delay_s if passing else None
            await self._say_goodbye("the run cannot go on; the reason is in the server's log", back)
            raise
        finally:
            self._listener.close()
            if metrics is not None:
                metrics.close()
            await self._stop()
            write_status(self, running=False)

    def close(self, reason: str, return_in_s: float | None) -> None:
        """Close all connections with a reason and end `serve`."""
        self._closing = (reason, return_in_s)
        self._wake.set()

    async def _coordinate(self) -> str:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            self._commands.read()
            self._closing = self._closing or self._commands.close
            if self._closing is not None:
                await self._say_goodbye(*self._closing)
                return "closed"
            self._readmit()
            await self._read_proposal()
            self._adopt_if_approved()
            await self._advance_sums()
            if self.live.state is None and self._may_start():
                self._tell_log(self.live.start(time.time()))
            self._take_arrived()
            self._pass_over_late()
            self._ask_prior()
            await self._advance_sums()  # a slot is open before its requests are sent
            self._send_open()
            write_status(self)
            if self.live.finished and self._all_delivered():
                return "finished"

    def _readmit(self) -> None:
        wanted, self._commands.readmit = self._commands.readmit, []
        for party in wanted:
            log = self.live.readmit(party, time.time())
            self._tell_log(log)
            if not any(line["event"] == "readmitted" for line in log):
                self.journal.write("not readmitted", wanted=party)

    async def _read_proposal(self) -> None:
        """Read a new version of the agreed file, if the operator has proposed one."""
        if not self._commands.propose or self._versions is None:
            return
        self._commands.propose = False
        try:
            proposal = await asyncio.to_thread(self._versions.read)
        except TacitError as error:
            self.journal.write("not proposed", reason=str(error))
            return
        self.live.propose(proposal)
        self.tell_proposal()

    def tell_proposal(self) -> None:
        """Log the proposed version of the agreed file, and the parties that have not approved it
        yet. Nothing is logged if no version is proposed.
        """
        proposal = self.live.proposal
        if proposal is not None:
            self.journal.write(
                "proposed",
                version=proposal.version,
                configuration=proposal.agreed.digest,
                waits_for=self.live.unapproved,
            )

    def _adopt_if_approved(self) -> None:
        live = self.live
        if live.proposal is None or live.finished or live.unapproved or self._versions is None:
            return
        log = live.adopt(self._versions.bounds(live.proposal), time.time())
        self._listener.list_parties(live.parties)
        self._tell_log(log)
        for connection in self._talking():
            reason = "a new version of the agreed file takes effect"
            self._spawn(self._conversations.send_back(connection, reason))

    async def _advance_sums(self) -> None:
        """Continue secure sums as far as the received messages allow."""
        sums, live = self.live.sums, self.live
        if sums is None:
            return
        while True:
            asked, log = live.ask_for_sum(time.time())
            self._tell_log(log)
            done = sums.advance(asked, self.settings.deadline_s)
            if done is None:
                self._say_who_is_late(sums.missing(asked), sums)
                return
            self.journal.write(
                "secure sum", step=done, slot=sums.open, parties=list(sums.arrived) or None
            )
            if done == "sum":
                shapes = live.sum_shapes()
                try:
                    terms, total = await asyncio.to_thread(sums.total, shapes)
                    live.check_sum(terms, total)
                except SecureSumError as error:
                    self._fail(
                        PeerError(
                            f"the sum of slot {sums.open} cannot be unmasked: {error}; charges "
                            "are not refunded: look for the cause at that party, then start a new "
                            "run (another serve.state, and tacit approve at every party)"
                        )
                    )
                    return
                except PeerError as error:
                    self._fail(error)
                    return
                self._tell_log(live.take_sum(total, terms, time.time()))
                sums.finish()

    def _say_who_is_late(self, missing: set[str], sums: ServerSums) -> None:
        """Log, once per step of a round, which parties a secure sum awaits beyond the deadline."""
        deadline = self.settings.deadline_s
        patience = deadline if sums.ready and not sums.closed else deadline or PATIENCE_S
        late = patience is not None and sums.waited_s > patience and bool(missing)
        step = sums.step if late else None
        if late and step != self._waits_in_step:
            line: dict[str, Any] = {"late": sorted(missing), "deadline_s": deadline, "step": step}
            if sums.closed:
                line |= {"threshold": sums.terms.threshold}
            self.journal.write("waiting", **line, quorum=self.live.rules.quorum)
        self._waits_in_step = step

    def _may_start(self) -> bool:
        start, joined = self.settings.start, len(self.live.members)
        if self.live.sums is not None and not self.live.sums.stored:
            return False
        wanted = start.parties
        if wanted is None:
            wanted = 1 if start.command or start.at else len(self.live.parties)
        if start.command and not self._commands.start:
            return False
        if start.at is not None and datetime.now(UTC) < start.at:
            return False
        return joined >= wanted

    def _take_arrived(self) -> None:
        replies, self._conversations.inbox[:] = list(self._conversations.inbox), []
        if replies:
            self._tell_log(self.live.take(replies, time.time()))

    def _pass_over_late(self) -> None:
        """Skip parties whose requests are older than the deadline, once a quorum has replied."""
        now = time.monotonic()
        asked = {request.id: request.party for request in self.live.requests().values()}
        self._asked_at = {key: self._asked_at.get(key, now) for key in asked}
        deadline = self.settings.deadline_s
        if deadline is None or self.live.sums is not None:
            return
        late = [asked[key] for key, at in self._asked_at.items() if now - at > deadline]
        late = [party for party in late if party != PRIOR_PARTY]
        log = self.live.skip(late, time.time()) if late else ()
        self._tell_log(log)
        if late and not log and not self._waits_for_quorum:
            quorum = self.live.rules.quorum or "everybody"
            self.journal.write("waiting", late=late, quorum=quorum, deadline_s=deadline)
        self._waits_for_quorum = bool(late) and not log

    def _ask_prior(self) -> None:
        """Compute the reply of the prior pseudo-party, for a prior outside the family."""
        request = self.live.requests().get(PRIOR_PARTY) if self._prior is not None else None
        if request is None or request.id in {task.get_name() for task in self._tasks}:
            return

        async def answer(prior: Callable[[Request], Reply], asked: Request) -> None:
            try:
                reply = await asyncio.to_thread(prior, asked)
                self._conversations.inbox.append(self.live.check(reply))
                self._wake.set()
            except TacitError as error:
                self._fail(error)

        assert self._prior is not None
        self._spawn(answer(self._prior, request), name=request.id)

    def _send_open(self) -> None:
        """Send open requests to connected parties that have not received them."""
        state, sums = self.live.state, self.live.sums
        if sums is not None and not self.live.finished:
            for connection in self._talking():
                for due in sums.due(connection.peer.name, connection.told):
                    connection.told.add(due.key)
                    self._tell(connection, due.message)
        if state is None:
            return
        if self.live.finished:
            find, self._find_verdict = self._find_verdict, None
            if find is not None:
                self._spawn(self._compute_verdict(find), name="verdict")
            if self._verdict is None:
                return
            if self._over_at is None:
                self._over_at = time.monotonic()
            for connection in self._talking():
                self._tell(
                    connection,
                    m.EndOfTraining(
                        final_posterior=connection.pack(state.result),
                        future_training=self.settings.future_training,
                        rounds=UNSET if connection.plain else state.round,
                        public=self._final_public(connection),
                        verdict=UNSET if connection.plain else self._verdict,
                    ),
                )
            return
        requests = self.live.requests()
        for connection in self._talking():
            request = requests.get(connection.peer.name)
            if sums is not None and SHARES not in connection.told:
                continue
            if request is not None and connection.sent != request.id:
                connection.sent = request.id
                connection.trace(OpenSpan("request", request=request.id, party=request.party))
                self._tell(connection, _selected(connection, request, self.live))

    def _talking(self) -> list[Connection]:
        return [
            one for one in self.connections.values() if one.side in ACTIVE_STATES and not one.barred
        ]

    def _all_delivered(self) -> bool:
        if self._over_at is None:  # the verdict is being computed
            return False
        waited = time.monotonic() - self._over_at
        if waited > self.settings.keep_result_for_s:
            return True
        if self._reopened:
            return False
        return not self.live.undelivered() and (not self.connections or waited > FAREWELL_S)

    async def _say_goodbye(self, reason: str, return_in_s: float | None) -> None:
        back = None if return_in_s is None else m.Duration.of(return_in_s)
        self.journal.write("closing", reason=reason, return_in_s=return_in_s)
        for connection in self._talking():
            self._tell(connection, m.EarlyCloseOfConnection(reason=reason, return_in=back))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while self.connections:
                    await asyncio.sleep(0.02)
        with contextlib.suppress(TacitError):  # replies that arrived during the close
            self._take_arrived()

    async def _beat(self) -> None:
        """Send heartbeats to waiting parties, to detect lost connections.

        Parties with an open request get none, because they may compute for hours without reading.
        """
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            for connection in self._talking():
                member = connection.member
                if connection.side is not ServerSide.WAITING or member is None:
                    continue
                if member.heartbeat and connection.unanswered >= MISSED_HEARTBEATS:
                    waited = MISSED_HEARTBEATS * self.settings.heartbeat_s
                    self.journal.write("silent", party=connection.peer.name, seconds=waited)
                    connection.abort()
                elif member.heartbeat is not None and connection.unanswered < MAX_UNANSWERED:
                    connection.unanswered += 1
                    self._spawn(connection.tell(m.ServerHeartbeat()))

    async def _guard(self) -> None:
        """Close connections whose certificates have expired or were revoked.

        Each connection is closed in a separate task, so that an unresponsive peer does not delay
        the others.
        """
        while True:
            await asyncio.sleep(GUARD_S)
            for connection in list(self.connections.values()):
                if connection.barred:
                    continue
                try:
                    self._listener.check(connection.peer)
                except (PeerError, DataError) as error:
                    reason = str(error)
                except Exception as error:  # an error in the check counts as failed
                    self.journal.write("internal", reason=repr(error), party=connection.peer.name)
                    reason = f"{connection.peer.name}: its certificate could not be checked"
                else:
                    continue
                connection.barred = True
                self._conversations.refuse("certificate", reason, connection)
                self._spawn(self._expel(connection))

    async def _expel(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    reason = "your certificate has expired or was revoked"
                    await connection.tell(m.EarlyCloseOfConnection(reason=reason))
        finally:
            await connection.drop()

    def _fail(self, error: TacitError) -> None:
        """End the run with this error."""
        self._failure = error
        self._wake.set()

    def _tell_log(self, log: Any) -> None:
        for line in log:
            fields = {key: value for key, value in line.items() if key != "event"}
            self.journal.write(line["event"], **fields)
            if line["event"] == "refused":  # a peer that keeps its factor has already changed it
                for connection in self._talking():
                    if connection.plain:
                        reason = "this update was refused; rejoin and start from last_likelihood"
                        self._spawn(self._conversations.send_back(connection, reason))
        if self._observe is not None and log:
            self._observe(log)

    def _tell(self, connection: Connection, message: m.ServerMessage) -> None:
        connection.moved_by(message)
        self._spawn(connection.tell(message))

    def _spawn(self, work: Any, name: str | None = None, *, vital: bool = False) -> None:
        """Start a background task; the end of a `vital` one stops the server."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._vital_done if vital else self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._stopping:
            return
        if task.cancelled():
            self.journal.write("internal", reason=f"{task.get_name()} was cancelled")
        elif task.exception() is not None:
            self.journal.write("internal", reason=repr(task.exception()))

    def _vital_done(self, task: asyncio.Task[Any]) -> None:
        self._done(task)
        if not self._stopping:
            how = "was cancelled" if task.cancelled() else repr(task.exception())
            self._fail(
                StoppedTaskError(
                    f"internal: {task.get_name()} has stopped ({how}); nothing is lost: start "
                    "again with the same command, and report this with log.jsonl"
                )
            )

    async def _compute_verdict(self, find: Callable[[], m.FinalVerdict]) -> None:
        """Compute the verdict that is sent with the result; on failure, no verdict is sent."""
        try:
            self._verdict = await asyncio.wait_for(asyncio.to_thread(find), VERDICT_S)
        except Exception as error:  # the result itself must reach the parties
            self.journal.write("verdict-failed", reason=f"{type(error).__name__}: {error}")
            self._verdict = UNSET
        self._wake.set()

    def _final_public(self, connection: Connection) -> m.Distribution | UnsetType:
        """Return the public arrays that are sent with the result; UNSET if there are none."""
        state = self.live.state
        assert state is not None
        if connection.plain or not self.live.rules.reads_public:
            return UNSET
        return connection.pack(state.public)

    async def _stop(self) -> None:
        self._stopping = True
        await asyncio.gather(
            *(connection.drop() for connection in self.connections.values()),
            return_exceptions=True,
        )
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _selected(connection: Connection, request: Request, live: LiveRun) -> m.SelectedForTraining:
    posterior = None if request.q is None else connection.pack(request.q)
    if connection.plain:
        return m.SelectedForTraining(current_posterior=posterior, damping_factor=request.damping)
    assert live.state is not None
    public = connection.pack(request.public) if request.public else UNSET
    return m.SelectedForTraining(
        current_posterior=posterior,
        damping_factor=request.damping,
        request=request.id,
        run=live.run,
        visit=request.visit,
        factor_version=request.version,
        factor=UNSET if request.factor is None else connection.pack(request.factor),
        initial=request.initial,
        round=live.state.round + 1,
        stage=request.stage,
        public=public,
        traceparent=UNSET if connection.traceparent is None else connection.traceparent,
    )
