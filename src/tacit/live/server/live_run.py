"""A live run without its network: who may take part, and which replies are accepted.

The state and its durable copy are `tacit.server.run`'s; members are kept beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
from msgspec import UNSET

from tacit.errors import PeerError
from tacit.expfam import Natural
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import is_scalar_normal
from tacit.live.server.membership import Member, Roster, load_roster, save_roster
from tacit.live.settings import FEWEST_TOLD, rounding_step
from tacit.live.transport.tls import Peer
from tacit.methods.reply_bounds import BrokenBound, Exchange
from tacit.pvi import multiply
from tacit.server import state as server_state
from tacit.server import step as server_step
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Reply, pack_natural, unpack_natural
from tacit.server.run import ServerRun
from tacit.server.state import Log, Rules

CONSISTENT = 1e-6
"""How far a peer's new factor may be from the old one times its ratio, relatively."""
SYMMETRIC = 1e-6
"""How far a matrix may be from its transpose, relatively: rounding, and no more."""
MARGIN = 2
"""Times the agreed number of all records, which is an estimate: what one party may have."""
LARGEST = 1e30
"""The largest natural parameter in an update; squares of larger ones overflow."""


Void = Callable[[int], bool]
"""Whether the certificate with this serial was revoked."""


class RefusedError(PeerError):
    """A party may not take part; what RejectionFromCluster tells it."""

    def __init__(self, reason: str, *, fixable: bool, code: str | None = None) -> None:
        super().__init__(reason)
        self.fixable, self.code = fixable, code


class BrokenBoundError(PeerError):
    """An update that no records could have led to."""


class ReplyRules(msgspec.Struct, frozen=True, kw_only=True):
    """By which bounds replies are checked on arrival."""

    broken_bound: Callable[[str, Exchange], BrokenBound | None]
    """The first bound that a party's reply breaks."""
    total_records: int | None = None
    """About how many records all parties have, where that was agreed on."""
    most_records: int = 10**9
    """How many one party has at most, whatever it announces."""


class LiveRun(ServerRun):
    """A server's run with its members: who may take part, and which replies are accepted."""

    def __init__(
        self,
        directory: Path,
        rules: Rules,
        first_factors: dict[str, Natural],
        digest: str,
        *,
        private: bool,
        accept_returned: bool = False,
        reply_rules: ReplyRules | None = None,
    ) -> None:
        self.directory, self.digest = directory, digest
        self.private, self.accept_returned = private, accept_returned
        self._reply_rules = reply_rules
        self._first_factors = first_factors
        self._roster_path = directory / "roster"
        self.roster: Roster = load_roster(self._roster_path, digest)
        super().__init__(rules, Checkpoint(directory / "server.sqlite", digest=digest))
        self.parties = rules.parties[1:] if rules.site_prior else rules.parties

    @property
    def run(self) -> str:
        """The run's name."""
        return self.roster.run

    @property
    def members(self) -> dict[str, Member]:
        """Parties that have joined."""
        return self.roster.members

    def join(
        self, peer: Peer, message: m.JoinCluster, now: float, void: Void | None = None
    ) -> Member:
        """Take a party in, or refuse it; `void` as in `rejoin`."""
        self._check_listed(peer)
        known = self.members.get(peer.name)
        if known is not None:
            self._check_same(peer, known, void)
            if self.state is not None:
                raise RefusedError(
                    f"{peer.name} is a member since before; send ReJoinCluster",
                    fixable=True,
                    code="rejoin",
                )
        if message.configuration is not UNSET and message.configuration != self.digest:
            raise RefusedError(
                f"you approved configuration {message.configuration[:12]}…, this run follows "
                f"{self.digest[:12]}…; compare the federation files",
                fixable=True,
                code="configuration",
            )
        protocol = 0 if message.protocol is UNSET else min(message.protocol, m.PROTOCOL)
        self._check_plain(protocol)
        self._check_announced(message.data_size)
        if self.private and (message.guarantee is UNSET or message.configuration is UNSET):
            raise RefusedError(
                "this run is private: JoinCluster has to say which configuration was approved and "
                "which guarantee is kept",
                fixable=True,
                code="guarantee",
            )
        member = Member(
            key=peer.key_fingerprint,
            serial=f"{peer.serial:x}",
            data_size=message.data_size,
            protocol=protocol,
            guarantee=None if message.guarantee is UNSET else message.guarantee,
            heartbeat=None if message.heartbeat is UNSET or not protocol else message.heartbeat,
        )
        self._save(self.roster.having(members=self.members | {peer.name: member}))
        self.welcome(peer.name, now)
        return member

    def rejoin(
        self, peer: Peer, now: float, void: Void | None = None
    ) -> tuple[Member, Natural, int]:
        """Take a party back: its membership, its factor and that one's version.

        `void` tells whether a certificate's serial was revoked: only then may another key have
        taken the place of the one that joined.
        """
        self._check_listed(peer)
        known = self.members.get(peer.name)
        if known is None:
            raise RefusedError(
                f"{peer.name} has not joined yet; send JoinCluster", fixable=True, code="join"
            )
        self._check_same(peer, known, void)
        known = msgspec.structs.replace(known, key=peer.key_fingerprint, serial=f"{peer.serial:x}")
        self._save(self.roster.having(members=self.members | {peer.name: known}))
        self.welcome(peer.name, now)
        if self.state is None:
            return known, self.rules.family.zero(), 0
        factor = self.state.factors[peer.name]
        return known, factor.natural, factor.version

    def welcome(self, party: str, now: float) -> None:
        if party in self.members:
            super().welcome(party, now)

    def start(self, now: float) -> Log:
        """Begin training; parties that have not joined are taken in when they come."""
        assert self.state is None
        returned = {name: unpack_natural(body) for name, body in self.roster.returned.items()}
        state = server_state.initial_state(self.rules, self._first_factors | returned)
        if self.rules.quorum is not None:
            state = replace(state, absent=frozenset(set(self.parties) - set(self.members)))
        line: dict[str, Any] = {"event": "begin", "parties": len(self.members)}
        self.begin(state, now, (line,))
        return (line,)

    def check(self, reply: Reply) -> Reply:
        """A reply to an open request, checked; PeerError says what is wrong with it."""
        assert self.state is not None
        request = self.state.open[reply.id]
        reply = server_step.check_reply(request, reply)
        try:
            _check_numbers(reply.released, self.state.q, f"update of party {reply.party!r}")
        except PeerError as error:
            raise BrokenBoundError(str(error)) from None
        if self._reply_rules is None or reply.party not in self.parties:
            return reply
        sent = self.state.issued[request.posterior]
        exchange = Exchange(
            q=sent.q if request.stage.needs_q else None,
            factor=self.state.factors[reply.party].natural if request.stage.needs_factor else None,
            damping=request.damping,
            initial=request.initial,
            visit=request.visit,
            released=reply.released,
            public=sent.public,
            loss=reply.loss,
            records=self._most_records(reply.party),
        )
        found = self._reply_rules.broken_bound(reply.party, exchange)
        if found is not None:
            raise BrokenBoundError(f"its update breaks a bound ({found})")
        return reply

    def _most_records(self, party: str) -> float:
        """The upper end of what the party has announced, or of what is known without it."""
        assert self._reply_rules is not None
        told = self.members[party].data_size if party in self.members else 0
        most, total = self._reply_rules.most_records, self._reply_rules.total_records
        if told > 0:
            return float(min(told + math.ceil(rounding_step(told) / 2), most))
        return float(min(MARGIN * total, most) if total else most)

    def check_consistent(self, party: str, delta: Natural, new: Natural) -> None:
        """A peer that keeps its own factor must mean the same one as we do."""
        assert self.state is not None
        expected = multiply(self.state.factors[party].natural, delta)
        for name, value in expected.items():
            reach = CONSISTENT * (np.abs(value) + np.abs(new[name]) + np.abs(delta[name]) + 1e-12)
            if not np.all(np.abs(value - new[name]) <= reach):
                raise PeerError(
                    "new_likelihood is not your last factor times delta; rejoin and start from "
                    "last_likelihood"
                )

    def part(self, party: str, *, for_good: bool, now: float, listening: bool = False) -> Log:
        """A party has said good-bye; one that will be back is waited for.

        One that goes on `listening` is asked nothing more, and is let in to receive the result.
        """
        if not for_good:
            return ()
        if self.state is None:
            members = {name: one for name, one in self.members.items() if name != party}
            self._save(self.roster.having(members=members))
            return ()
        log = self.apply_held(now)
        if listening:
            member = msgspec.structs.replace(self.members[party], listening=True)
            self._save(self.roster.having(members=self.members | {party: member}))
        return (*log, *self.leave(party, now))

    def _has_gone(self, party: str) -> bool:
        """Whether it has left for good and does not listen either."""
        member = self.members.get(party)
        left = self.state is not None and party in self.state.left
        return left and not (member is not None and member.listening)

    def restore(self, party: str, factor: Natural) -> str:
        """What becomes of a factor that a party returns."""
        if self.state is not None:
            ours = self.state.factors[party].natural
            same = all(np.allclose(ours[name], factor[name], rtol=1e-6) for name in ours)
            return "the same as ours" if same else "not the same as ours, which counts"
        if not self.accept_returned:
            raise PeerError(
                "this server starts from the prior; its operator allows factors to be returned "
                "with serve.accept_returned = true"
            )
        _check_numbers(factor, self.rules.prior, "likelihood")
        returned = self.roster.returned | {party: pack_natural(factor)}
        factors = {name: unpack_natural(body) for name, body in returned.items()}
        start = server_state.initial_state(self.rules, self._first_factors | factors)
        if not self.rules.family.is_proper(start.q):
            raise PeerError("likelihood: with it q would not be a proper distribution")
        self._save(self.roster.having(returned=returned))
        return "taken over"

    def delivered(self, party: str) -> None:
        """A party has been given the result."""
        member = msgspec.structs.replace(self.members[party], delivered=True)
        self._save(self.roster.having(members=self.members | {party: member}))

    def undelivered(self) -> set[str]:
        """Members that still have to hear the result."""
        waiting = [name for name, one in self.members.items() if not one.delivered]
        return {name for name in waiting if not self._has_gone(name)}

    def _check_listed(self, peer: Peer) -> None:
        if peer.name not in self.parties:
            raise RefusedError(
                f"{peer.name} is not on the list of parties of this run", fixable=False
            )
        if self._has_gone(peer.name):
            raise RefusedError(f"{peer.name} has left this run for good", fixable=False)

    def _check_announced(self, data_size: int) -> None:
        """A party must not widen its own bounds by a number of records that nobody agreed on."""
        if self._reply_rules is None:
            return
        total, most = self._reply_rules.total_records, self._reply_rules.most_records
        if data_size > most:
            raise RefusedError(
                f"you announce {data_size:,} records, but this server takes at most {most:,} of "
                "one party; its operator can raise serve.most_records",
                fixable=False,
            )
        if total is not None and data_size > max(MARGIN * total, FEWEST_TOLD - 1):
            raise RefusedError(
                f"you announce {data_size:,} records, but about {total:,} of all parties together "
                "were agreed on; correct records in the federation file",
                fixable=False,
            )

    def _check_same(self, peer: Peer, known: Member, void: Void | None) -> None:
        replaced = void is not None and void(int(known.serial, 16))
        if known.key != peer.key_fingerprint and not replaced:
            raise RefusedError(
                f"{peer.name} joined with another key; have the authority revoke that "
                "certificate first if the key was replaced",
                fixable=False,
            )

    def _check_plain(self, protocol: int) -> None:
        """A peer written from the thesis knows scalar normals, and no guarantee."""
        if protocol >= m.PROTOCOL or (protocol and not self.private):
            return
        if self.private:
            _refuse_plain("this run is private")
        if not is_scalar_normal(self.rules.prior):
            _refuse_plain("its posterior is not a scalar normal")

    def _save(self, roster: Roster) -> None:
        if roster != self.roster:
            save_roster(self._roster_path, roster)
            self.roster = roster


def _check_numbers(natural: Natural, q: Natural, what: str) -> None:
    """Refuse numbers that pass for a proper q but with which nothing can be computed."""
    for name, value in natural.items():
        if not np.max(np.abs(value), initial=0.0) <= LARGEST:
            raise PeerError(f"{what}: {name!r} has a value beyond {LARGEST:g}; no honest one has")
        if name == "quadratic" and value.ndim == 2:
            size = np.sqrt(np.abs(np.diagonal(value)) + np.abs(np.diagonal(q[name])))
            if not np.all(np.abs(value - value.T) <= SYMMETRIC * np.outer(size, size)):
                raise PeerError(f"{what}: {name!r} is not symmetric; send a symmetric matrix")


def _refuse_plain(why: str) -> NoReturn:
    raise RefusedError(
        f"{why}: a peer has to announce protocol {m.PROTOCOL} in JoinCluster", fixable=False
    )
