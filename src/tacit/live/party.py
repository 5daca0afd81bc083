"""A party of a live federation: answers requests, stores replies, reconnects.

A party sends only its updates, its number of records (exact, rounded or withheld, as configured),
its loss unless disabled, and texts that do not depend on the records.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tacit.errors import PeerError, PrivacyBudgetError, TacitError
from tacit.expfam import Natural
from tacit.live.journal import Journal
from tacit.live.protocol.messages import MaskedUpdate
from tacit.live.secure.kept_party import KeptParty, LostKeysError
from tacit.live.server.live_run import MAX_NATURAL_PARAMETER
from tacit.live.session import (
    REFUSED,
    AsyncSession,
    ClosedError,
    Introduction,
    RejectedError,
    Turn,
    open_session,
    send_approval,
)
from tacit.live.settings import Join
from tacit.live.transport.frames import HangupError
from tacit.live.transport.tls import Credentials, client_context
from tacit.party.agent import PartyAgent
from tacit.party.charge import Charging
from tacit.party.compute import SinglePartyComputer
from tacit.party.store import PartyStore, Stopped
from tacit.privacy.ledger.ledger import BudgetExceededError
from tacit.server.messages import Reply, Request, Stage
from tacit.server.refuse import is_plausible
from tacit.support.tracing import span

T = TypeVar("T")

FIRST_WAIT_S, MAX_WAIT_S = 0.2, 30.0
BACK_SOON_S = 600.0
APPROVAL_S, VERSION_WAIT_S = 1.0, 2.0
"""Seconds between two checks for new approvals, and between two attempts to use a new version."""
MAX_ABSENCE_S = 86_400.0
"""A party tries again after a day, even if the server announced a longer absence."""
BUDGET_REACHED = "this party's privacy budget allows no further reply; it waits for the result"
LOST_KEYS = "this party has lost its keys of this run; the run continues without it or ends"
CANNOT_ANSWER = "this party cannot reply at present; the reason is in its log"


@dataclass(eq=False)
class LiveParty:
    """One party of a live federation, with its ledger and store."""

    name: str
    computer: SinglePartyComputer
    settings: Join
    credentials: Credentials
    introduction: Introduction
    store: PartyStore
    journal: Journal
    charging: Callable[[str], Charging] | None = None
    """Returns the object that charges the run with a given id; None for a run without privacy."""
    approved: Callable[[], list[str]] = list
    """Digests of the versions of the agreed file that are approved now, the newest last."""
    sums: KeptParty | None = None
    """Secure sums; None if updates are sent unmasked."""
    sent_bytes: int = 0
    received_bytes: int = 0
    _unknown_there: bool = False
    """True if the server has no record of this party, although the party has joined before."""
    _work: asyncio.Future[Any] | None = None
    """The reply that is being computed."""

    async def take_part(self) -> Natural:
        """Take part until the end, reconnecting as needed, and return the final posterior."""
        context = client_context(self.credentials)
        heard_at, wait_s = time.monotonic(), FIRST_WAIT_S
        waits_for = ""
        while True:
            for server in self.settings.servers:
                try:
                    session = await self._connect(server, context)
                except PeerError as error:
                    self._check_final(error)
                    if _waits_for_version(error):
                        heard_at, wait_s = time.monotonic(), min(wait_s, VERSION_WAIT_S)
                        if str(error).removeprefix(REFUSED) != waits_for:
                            waits_for = str(error).removeprefix(REFUSED)
                            self.journal.write("waiting", server=server, reason=waits_for)
                        continue
                    self.journal.write("no connection", server=server, reason=str(error))
                    continue
                waited_s, wait_s = wait_s, FIRST_WAIT_S
                telling = asyncio.create_task(self._tell_approvals(server, context))
                try:
                    return await self._converse(session)
                except ClosedError as error:
                    if error.return_in_s is None:
                        raise
                    self.journal.write("server closes", reason=str(error), back=error.return_in_s)
                    await asyncio.sleep(min(error.return_in_s, MAX_ABSENCE_S))
                except _SpentError:
                    if session.final_posterior is not None:
                        return session.final_posterior
                    wait_s = waited_s
                except PeerError as error:
                    self.journal.write("cut off", server=server, reason=str(error))
                    if not isinstance(error, HangupError):
                        wait_s = waited_s  # reachable but unusable: treat as unreachable
                        heard_at = max(heard_at, session.heard_at)
                        continue
                finally:
                    telling.cancel()
                    self.sent_bytes += session.sent_bytes
                    self.received_bytes += session.received_bytes
                    await session.close()
                heard_at = time.monotonic()
            if time.monotonic() - heard_at > self.settings.retry_for_s:
                raise PeerError(
                    f"none of the servers {', '.join(self.settings.servers)} has replied for "
                    f"{self.settings.retry_for_s:g} s; see log.jsonl, then join again"
                )
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2.0 * wait_s, MAX_WAIT_S)

    async def _connect(self, server: str, context: Any) -> AsyncSession:
        session = await open_session(
            server,
            self.credentials,
            self.introduction,
            encoding=self.settings.encoding,
            rejoin=self.store.run is not None and not self._unknown_there,
            factor=self.store.factor,
            visits=self.store.visits,
            context=context,
        )
        try:
            self._check_server(session, server)
        except TacitError:
            await session.close()
            raise
        self._unknown_there = False
        self.store.joined(session.run)
        if self.sums is not None:
            self.sums.enter(session.run)
            session.sums = self.sums.answer
            session.refused = lambda reason: self.journal.refusal("sum", reason)
        session.keep_result = self.store.finish
        session.noted = lambda reason: self.journal.write("server error", reason=reason)
        self.journal.write(
            "connected", server=server, run=session.run or None, parties=session.parties
        )
        returned = self.store.factor
        if session.wants_factor and self.settings.return_likelihood and returned is not None:
            await session.return_factor(returned)
        return session

    async def _tell_approvals(self, server: str, context: Any) -> None:
        """Send each newly approved version to the server, until the server has stored it.

        A separate connection is used, so that the run continues. The server always refuses this
        connection; the error code "version" confirms that the approval is stored.
        """
        told: list[str] = []
        while True:
            newest, wait_s = self._later_versions()[-1:], APPROVAL_S
            if newest != told:
                wait_s = VERSION_WAIT_S
                who = replace(self.introduction, configuration=newest[0])
                try:
                    await send_approval(server, self.credentials, who, context)
                except RejectedError as error:
                    if error.code == "version":
                        told = newest
                        words = str(error).removeprefix(REFUSED)
                        self.journal.write("approval sent", reason=words)
                except PeerError:
                    pass  # the connection of the run reports the error
            await asyncio.sleep(wait_s)

    def _later_versions(self) -> list[str]:
        """Return the digests of approved versions that are newer than the one that this party
        follows.
        """
        versions, now = self.approved(), self.introduction.configuration
        return versions[versions.index(now) + 1 :] if now in versions else []

    def _check_final(self, error: PeerError) -> None:
        """Raise an error if another attempt to connect cannot succeed."""
        self._unknown_there = isinstance(error, RejectedError) and error.code == "join"
        closed = isinstance(error, ClosedError) and error.return_in_s is None
        rejected = isinstance(error, RejectedError) and not self._unknown_there
        rejected = rejected and not _waits_for_version(error)
        stopped = self.store.stopped
        if rejected and stopped is not None:
            raise PrivacyBudgetError(
                f"{stopped.reason}; this party has not contributed from round {stopped.round} on, "
                f"and {error}: ask the server's operator for the posterior"
            )
        if closed or rejected or isinstance(error, _UnfitError):
            raise error

    def _check_server(self, session: AsyncSession, server: str) -> None:
        """Refuse a server that does not use the approved configuration."""
        approved = self.introduction.configuration
        if not session.announced:
            if not self.settings.unannounced or self.charging is not None:
                raise _UnfitError(
                    f"{server} does not announce which configuration it follows; "
                    + (
                        "a private run needs a server that does"
                        if self.charging is not None
                        else "if this is intended, set join.unannounced = true"
                    )
                )
            session.run = session.run or f"unannounced-{(approved or '')[:12]}"
            return
        if session.configuration in self._later_versions():
            raise NewVersionError(str(session.configuration))
        if session.configuration != approved:
            raise _UnfitError(
                f"{server} follows configuration {(session.configuration or 'none')[:12]}…, but "
                f"{(approved or 'none')[:12]}… was approved; compare the federation files and use "
                "tacit approve"
            )
        if self.charging is not None and self.store.run not in (None, session.run):
            raise _UnfitError(
                f"{server} runs {session.run}, but the approval was used for {self.store.run}; "
                "an approval is for one run: use tacit approve again"
            )

    async def _converse(self, session: AsyncSession) -> Natural:
        try:
            while (turn := await session.wait_for_posterior()) is not None:
                await self._answer(session, turn)
        except LostKeysError:
            if not session.gone:
                await self._leave(session, LOST_KEYS, None)
            raise
        except asyncio.CancelledError:
            await self._leave(session, "the party was stopped and will return")
            if self._work is not None:  # it may be charged: finish, store and send it later
                await asyncio.wait([self._work])
            raise
        assert session.final_posterior is not None
        self.journal.write("end of training")
        return session.final_posterior

    async def _answer(self, session: AsyncSession, turn: Turn) -> None:
        with span("answer", turn.traceparent, request=turn.request, round=turn.round):
            await self._answer_turn(session, turn)

    async def _answer_turn(self, session: AsyncSession, turn: Turn) -> None:
        self.journal.write("asked", round=turn.round, visit=turn.visit, id=turn.request)
        began = time.perf_counter()
        try:
            reply = await self._in_thread(self._reply, session, turn)
        except BudgetExceededError as error:
            self.journal.write("budget", round=turn.round, reason=str(error))
            self.store.stop(Stopped(round=turn.round, visit=turn.visit, reason=str(error)))
            await self._leave(session, BUDGET_REACHED, None, listening=True)
            raise _SpentError from None
        except PrivacyBudgetError as error:
            self.journal.write("not allowed", reason=str(error))
            await self._leave(session, "this party's privacy budget allows no further reply", None)
            raise
        except TacitError as error:
            self.journal.write("cannot answer", reason=str(error))
            await self._leave(session, CANNOT_ANSWER)
            raise
        self.store.stop(None)
        open_loss = self.charging is None and self.settings.send_loss
        before = session.sent_bytes
        if isinstance(reply, MaskedUpdate):
            await session.send_masked(reply)
        else:
            await session.send_delta(turn, reply.released, reply.loss if open_loss else None)
        self.journal.write(
            "answered",
            round=turn.round,
            visit=turn.visit,
            id=turn.request,
            seconds=round(time.perf_counter() - began, 4),
            bytes=session.sent_bytes - before,
            sent_bytes=self.sent_bytes + session.sent_bytes,
            **(await self._in_thread(self._spent, session.run)),
        )

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that uses the ledger in a thread.

        If the party is stopped meanwhile, `_work` is the call, which ends before the ledger is
        closed.
        """
        self._work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
        result = await asyncio.shield(self._work)
        self._work = None
        return result

    def _spent(self, run: str) -> dict[str, Any]:
        if self.charging is None:
            return {}
        charging = self.charging(run)
        spent = charging.ledger.spent(charging.datasets[self.name])
        if spent.budget is None or spent.epsilon is None:
            return {}
        return {
            "epsilon_spent": spent.epsilon,
            "budget": spent.budget.epsilon,
            "delta": spent.budget.delta,
            "unit": spent.budget.unit,
            "adjacency": spent.budget.adjacency,
        }

    def _reply(self, session: AsyncSession, turn: Turn) -> Reply | MaskedUpdate:
        """Return the stored reply to a request; if there is none, charge, compute and store it.

        In a secure sum the reply is masked.
        """
        request = Request(
            id=turn.request,
            party=self.name,
            visit=turn.visit,
            version=turn.version,
            q=turn.posterior,
            factor=turn.factor,
            damping=turn.damping,
            initial=turn.initial,
            stage=turn.stage,
            public=turn.public,
        )
        charging = None if self.charging is None else self.charging(session.run)
        agent = PartyAgent(
            self.computer.agreement,
            self.computer,
            self.store,
            settled={} if self.computer.settled is None else {self.name: self.computer.settled},
            charging=charging,
            check=functools.partial(self._check_request, charging),
        )
        reply = agent.answer([request])[0]
        if self.sums is None:
            return reply
        agreement = self.computer.agreement
        shapes = agreement.method.integer_shapes(agreement.model, agreement.family, request.stage)
        assert shapes is not None
        return self.sums.masked(request, reply.released, shapes)

    def _check_request(self, charging: Charging | None, request: Request) -> None:
        """Refuse a request that is not part of the agreed method, before anything is charged."""
        method = self.computer.agreement.method
        stage = method.stage_at(request.visit)
        if charging is None:  # without a charge the server may choose among the method's stages
            stage = method.stage_table(request.visit + 1).get(request.stage, stage)
        if request.stage != stage.name:
            raise PeerError(
                f"the server requested stage {request.stage!r} at visit {request.visit}, at which "
                f"the agreed method has stage {stage.name!r}; nothing was charged: ask the "
                "server's operator for the cause"
            )
        if self.sums is not None:
            self.sums.check(request)
        if charging is not None:
            self._require_sense(request, stage)
            charging.require_planned_visit(request)

    def _require_sense(self, request: Request, stage: Stage) -> None:
        """Refuse a request with missing, unnecessary or implausible arrays, before anything is
        charged.
        """
        agreement = self.computer.agreement
        if stage.needs_q != (request.q is not None):
            problem = "lacks" if stage.needs_q else "must not have"
            raise PeerError(
                f"the request for stage {stage.name!r} {problem} q; nothing was charged: ask the "
                "server's operator for the cause"
            )
        if stage.needs_factor != (request.factor is not None):
            problem = "lacks" if stage.needs_factor else "must not have"
            raise PeerError(
                f"the request for stage {stage.name!r} {problem} a factor; nothing was charged: "
                "ask the server's operator for the cause"
            )
        for arrays in (request.q or {}, request.factor or {}, request.public):
            if not all(
                np.max(np.abs(value), initial=0.0) <= MAX_NATURAL_PARAMETER
                for value in arrays.values()
            ):
                raise PeerError(
                    f"a number in the server's request is not within ±{MAX_NATURAL_PARAMETER:g}; "
                    "nothing was charged: ask the server's operator for the cause"
                )
        if request.q is None or (request.initial and agreement.model.has_site_prior):
            return
        if not agreement.family.is_proper(request.q):
            raise PeerError(
                "q in the server's request is not a proper distribution; nothing was charged: ask "
                "the server's operator for the cause"
            )
        if not is_plausible(agreement.family, request.q):
            raise PeerError(
                "q in the server's request has an implausibly large location or scale; nothing "
                "was charged: ask the server's operator for the cause"
            )

    async def _leave(
        self,
        session: AsyncSession,
        reason: str,
        absence_s: float | None = BACK_SOON_S,
        *,
        listening: bool = False,
    ) -> None:
        try:
            await session.leave(reason, absence_s, listening=listening)
        except PeerError as error:
            self.journal.write("left without an answer", reason=str(error))


class NewVersionError(TacitError):
    """The server follows a newer version of the agreed file, which is approved here too."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the server follows the approved version {digest[:12]}…")
        self.digest = digest


def _waits_for_version(error: PeerError) -> bool:
    return isinstance(error, RejectedError) and error.code == "version"


class _SpentError(Exception):
    """The budget is used up: from now on the party only waits for the result."""


class _UnfitError(PeerError):
    """The server does not follow the approved configuration; do not contact it again."""
