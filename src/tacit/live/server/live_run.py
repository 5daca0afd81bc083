"""A live run without its network: admission of parties, and validation of replies.

`tacit.server.run` stores the state of the run; here the parties that have joined are stored too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
from msgspec import UNSET

from tacit.arrays import Arrays
from tacit.errors import PeerError
from tacit.expfam import Natural
from tacit.live.protocol import messages as m
from tacit.live.protocol.arrays import is_independent_normal
from tacit.live.secure.terms import Terms
from tacit.live.server.membership import Member, Roster, load_roster, save_roster
from tacit.live.server.sums import ServerSums
from tacit.live.settings import MIN_REPORTED_RECORDS, rounding_step
from tacit.live.transport.tls import Peer
from tacit.live.versions import Proposal
from tacit.methods.reply_bounds import BrokenBound, Exchange
from tacit.plan.plan import first_factors
from tacit.pvi import multiply
from tacit.server import attendance
from tacit.server import state as server_state
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Reply, Request, pack_natural, unpack_natural
from tacit.server.requests import check_reply, integer_shapes, read_released
from tacit.server.run import ServerRun
from tacit.server.schedule import StalenessDamping
from tacit.server.state import Log, Rules

FACTOR_TOLERANCE = 1e-6
"""Relative tolerance when a peer's new factor is compared with its old factor times delta."""
SYMMETRY_TOLERANCE = 1e-6
"""Relative tolerance for the symmetry of matrices."""
RECORDS_MARGIN = 2
"""One party may have up to this multiple of the agreed (approximate) number of all records."""
ROSTER, CHECKPOINT = "roster", "server.sqlite"
"""Files of a server's state directory."""
ASKING_S = 60.0
"""A new party counts as present if it has asked to join within this time."""
MAX_NATURAL_PARAMETER = 1e30
"""Largest natural parameter in an update; squares of larger ones overflow."""


Void = Callable[[int], bool]
"""Function that takes the serial number of a certificate and returns True if it was revoked."""


class RefusedError(PeerError):
    """A party is refused; the attributes are the fields of RejectionFromCluster."""

    def __init__(self, reason: str, *, fixable: bool, code: str | None = None) -> None:
        super().__init__(reason)
        self.fixable, self.code = fixable, code


class BrokenBoundError(PeerError):
    """Raised for an update that no records could produce."""


class ReplyRules(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds by which replies are checked."""

    broken_bound: Callable[[str, Exchange], BrokenBound | None]
    """Returns the first bound that a party's reply violates, or None."""
    broken_sum: Callable[[int, Sequence[str], float, Arrays], BrokenBound | None] | None = None
    """Returns the bound that the integer sum of a round's updates violates, or None; arguments are
    the round, the parties, an upper bound on their records, and the integers.
    """
    total_records: int | None = None
    """Agreed approximate number of all parties' records, if any."""
    most_records: int = 10**9
    """Largest number of records of one party."""


class LiveRun(ServerRun):
    """A server's run with its members: admission of parties, and validation of replies."""

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
        terms: Callable[[str], Terms] | None = None,
    ) -> None:
        self.directory, self.digest = directory, digest
        self.private, self.accept_returned = private, accept_returned
        self._reply_rules = reply_rules
        self._first_factors = first_factors
        self._roster_path = directory / ROSTER
        self.roster: Roster = load_roster(self._roster_path, digest)
        super().__init__(rules, Checkpoint(directory / CHECKPOINT, digest=digest))
        self.parties = _without_prior(rules)
        self.proposal: Proposal | None = None
        """A version of the agreed file that adds parties and is not in force yet."""
        self._asking: dict[str, float] = {}
        """Time at which each party last approved the proposed version."""
        self.adopted: Proposal | None = None
        """The version in force, if it is newer than at the start of this server."""
        self.sums = None if terms is None else ServerSums(directory, terms(self.run))
        """Secure sums; None: updates are sent as they are."""

    @property
    def run(self) -> str:
        """Id of the run."""
        return self.roster.run

    @property
    def members(self) -> dict[str, Member]:
        """Parties that have joined."""
        return self.roster.members

    def join(
        self, peer: Peer, message: m.JoinCluster, now: float, void: Void | None = None
    ) -> Member:
        """Accept a party, or raise a RefusedError.

        `void` takes the serial number of a certificate and returns True if it was revoked.
        """
        self._note_approval(peer, message, void)
        self._check_listed(peer)
        known = self.members.get(peer.name)
        if known is not None:
            self._check_same(peer, known, void)
            if self.state is not None:
                raise RefusedError(
                    f"{peer.name} has joined before; send ReJoinCluster",
                    fixable=True,
                    code="rejoin",
                )
        if message.configuration is not UNSET and message.configuration != self.digest:
            raise RefusedError(
                f"you approved configuration {message.configuration[:12]}…, but this run follows "
                f"configuration {self.digest[:12]}…; compare your federation file with the "
                "server's",
                fixable=True,
                code="configuration",
            )
        protocol = 0 if message.protocol is UNSET else min(message.protocol, m.PROTOCOL)
        self._check_plain(protocol)
        self._check_announced(message.data_size)
        if self.private and (message.guarantee is UNSET or message.configuration is UNSET):
            raise RefusedError(
                "this run is private: JoinCluster needs the approved configuration and the "
                "guarantee",
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

    def propose(self, proposal: Proposal) -> None:
        """Store a proposed version that adds parties; it takes effect once it is approved."""
        self.proposal = None if proposal.agreed.digest == self.digest else proposal

    @property
    def unapproved(self) -> list[str]:
        """The parties for which the proposed version waits, in the order of that version.

        These are the parties that have not approved it, and new parties that have approved it but
        have not asked to join within the last `ASKING_S` seconds.
        """
        assert self.proposal is not None
        digest, gone = self.proposal.agreed.digest, frozenset()
        if self.state is not None:
            gone = self.state.left
        recent = time.monotonic() - ASKING_S

        def waits_for(name: str) -> bool:
            if self.roster.approvals.get(name) != digest:
                return name not in gone
            # A new party asks again and again: once the version is in force, rounds wait for it.
            return name not in self.parties and self._asking.get(name, 0.0) < recent

        return [name for name in self.proposal.agreed.federation.parties if waits_for(name)]

    def adopt(self, reply_rules: ReplyRules, now: float) -> Log:
        """Put the proposed version of the agreed file into force; its new parties may then join.

        The checkpoint determines which version is in force. A server that is killed before the
        roster is written reads the version from the checkpoint
        (`tacit.live.serve.version_in_force`).
        """
        proposal = self.proposal
        assert proposal is not None
        rules, digest = proposal.plan.rules, proposal.agreed.digest
        new = [name for name in _without_prior(rules) if name not in self.parties]
        state, log = self.state, ()
        if state is not None:
            state, log = attendance.admit(rules, state, new, now)
        line = {"event": "version", "version": proposal.version, "configuration": digest}
        log = (line | {"parties": new, "round": 0 if state is None else state.round}, *log)
        assert self.checkpoint is not None
        self.checkpoint.adopt(digest, state, log)
        self._save(self.roster.having(digest=digest, approvals={}))
        self.rules, self.digest, self.parties = rules, digest, _without_prior(rules)
        self._reply_rules, self._first_factors = reply_rules, first_factors(proposal.plan)
        if state is not None:
            self._held = {key: one for key, one in self._held.items() if key in state.open}
        self.state, self.adopted, self.proposal = state, proposal, None
        self.history.extend(log)
        return log

    def _note_approval(self, peer: Peer, message: m.JoinCluster, void: Void | None) -> None:
        """Store the party's approval of the proposed version and refuse the party until the version
        is in force.

        Do nothing if the party does not approve that version, or has left permanently.
        """
        proposal = self.proposal
        if proposal is None or message.configuration != proposal.agreed.digest:
            return
        if peer.name not in proposal.agreed.federation.parties or self._has_gone(peer.name):
            return
        known = self.members.get(peer.name)
        if known is not None:
            self._check_same(peer, known, void)
        self._check_not_excluded(peer)
        self._asking[peer.name] = time.monotonic()
        approvals = self.roster.approvals | {peer.name: proposal.agreed.digest}
        self._save(self.roster.having(approvals=approvals))
        missing = self.unapproved
        waits = "it takes effect soon"
        if missing:
            waits = f"it waits for the approval of {', '.join(missing[:20])}"
        raise RefusedError(
            f"your approval of version {proposal.version} is stored; that version is not in force "
            f"yet: {waits}",
            fixable=True,
            code="version",
        )

    def _check_not_excluded(self, peer: Peer) -> None:
        """Refuse a new party whose key belongs to a party that left permanently or was excluded."""
        if self.state is None or peer.name in self.parties:
            return
        for name in sorted(self.state.not_asked):
            member = self.members.get(name)
            if member is not None and member.key == peer.key_fingerprint:
                how = "left permanently" if name in self.state.left else "was left out"
                raise RefusedError(
                    f"{peer.name} has the same key as {name}, a party that {how}; that party "
                    "cannot join again under another name",
                    fixable=False,
                )

    def rejoin(
        self, peer: Peer, now: float, void: Void | None = None, *, plain: bool = False
    ) -> tuple[Member, Natural, int]:
        """Accept a party again; return its membership, factor and factor version.

        `plain` is true if this connection supports only the fields of the thesis. `void` takes the
        serial number of a certificate and returns True if it was revoked. A party may return with
        another key only if its old certificate was revoked.
        """
        self._check_listed(peer)
        known = self.members.get(peer.name)
        if known is None:
            raise RefusedError(
                f"{peer.name} has not joined yet; send JoinCluster", fixable=True, code="join"
            )
        self._check_same(peer, known, void)
        if plain and known.protocol:
            raise RefusedError(
                f"{peer.name} joined with protocol {known.protocol}, whose fields bincode does not "
                "carry; use msgpack, cbor or json",
                fixable=True,
            )
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
        """Start training; parties that have not joined are included when they join."""
        assert self.state is None
        returned = {name: unpack_natural(body) for name, body in self.roster.returned.items()}
        state = server_state.initial_state(self.rules, self._first_factors | returned)
        if self.rules.quorum is not None:
            state = replace(state, absent=frozenset(set(self.parties) - set(self.members)))
        line: dict[str, Any] = {"event": "begin", "parties": len(self.members)}
        self.begin(state, now, (line,))
        return (line,)

    def requests(self) -> dict[str, Request]:
        """Return a dict from party names to open requests."""
        asked = super().requests()
        if self.sums is None:
            return asked
        # A late party gets no request: it would be charged for a reply that is refused.
        over = self.parties if self.sums.closed else self.sums.arrived
        return {party: one for party, one in asked.items() if party not in over}

    def ask_for_sum(self, now: float) -> tuple[list[str], Log]:
        """Begin the secure sum of the round; return the parties whose updates are needed, and a
        log.
        """
        assert self.sums is not None
        if self.state is None or self.finished:
            return [], ()
        able = self._in_sum(self.state.left)
        if not self.sums.closed:
            log = self._attend(attendance.widen, able, now)
        elif len(able) < self.sums.terms.threshold:
            found = {"able": len(able), "threshold": self.sums.terms.threshold}
            log = self._attend(attendance.too_few, found)
        else:
            log = ()
        asked = {party: one for party, one in super().requests().items() if party in self.parties}
        if asked and self.sums.open != self.state.round:
            self.sums.begin(next(iter(asked.values())), self.sum_shapes())
        return list(asked), log

    def _in_sum(self, left: Container[str]) -> list[str]:
        """Return the parties that can still take part in the open sum.

        These are the parties whose vectors have arrived, without those that left before they sent
        their shares.
        """
        assert self.sums is not None
        done = self.sums.revealed
        return [party for party in self.sums.arrived if party not in left or party in done]

    def sum_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of each array of integers that is summed in the open round."""
        assert self.state is not None
        shapes = integer_shapes(self.rules, self.rules.stage_at(self.state.round).name)
        assert shapes is not None
        return shapes

    def check_sum(self, terms: Sequence[str], total: Arrays) -> None:
        """Refuse a sum that no records of these parties could produce."""
        assert self.state is not None
        if self._reply_rules is None or self._reply_rules.broken_sum is None:
            return
        records = sum(self._most_records(party) for party in terms)
        found = self._reply_rules.broken_sum(self.state.round, terms, records, total)
        if found is not None:
            raise PeerError(
                f"the sum of round {self.state.round + 1} breaks a bound ({found}); a party sent a "
                "wrong vector, and a secure sum does not reveal which party: look for the cause at "
                "the parties, then start a new run"
            )

    def check(self, reply: Reply) -> Reply:
        """Validate a reply to an open request, or raise a PeerError."""
        assert self.state is not None
        request = self.state.open[reply.id]
        reply = check_reply(request, reply)
        try:
            released = read_released(self.rules, self.state, request, reply)
            _check_numbers(released, self.state.q, f"update of party {reply.party!r}")
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
            released=released,
            public=sent.public,
            loss=reply.loss,
            records=self._most_records(reply.party),
        )
        found = self._reply_rules.broken_bound(reply.party, exchange)
        if found is not None:
            raise BrokenBoundError(f"the party's update breaks a bound ({found})")
        return reply

    def _most_records(self, party: str) -> float:
        """Return an upper bound on the party's number of records."""
        assert self._reply_rules is not None
        told = self.members[party].data_size if party in self.members else 0
        most, total = self._reply_rules.most_records, self._reply_rules.total_records
        if told > 0:
            return float(min(told + math.ceil(rounding_step(told) / 2), most))
        return float(min(RECORDS_MARGIN * total, most) if total else most)

    def check_consistent(self, party: str, delta: Natural, new: Natural) -> None:
        """Check that `new`, the party's new factor as the party computed it, is the server's factor
        of this party times `delta`.
        """
        assert self.state is not None
        expected = multiply(self.state.factors[party].natural, delta)
        for name, value in expected.items():
            reach = FACTOR_TOLERANCE * (
                np.abs(value) + np.abs(new[name]) + np.abs(delta[name]) + 1e-12
            )
            if not np.all(np.abs(value - new[name]) <= reach):
                raise PeerError(
                    "new_likelihood is not your last factor times delta; rejoin and start from "
                    "last_likelihood"
                )

    def part(self, party: str, *, for_good: bool, now: float, listening: bool = False) -> Log:
        """Handle a party that leaves; unless it leaves `for_good`, the run waits for its return.

        A `listening` party gets no more requests, but may connect to receive the result.
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
        """True if the party left permanently and does not wait for the result."""
        member = self.members.get(party)
        left = self.state is not None and party in self.state.left
        return left and not (member is not None and member.listening)

    def restore(self, party: str, factor: Natural) -> str:
        """Process a factor that a party sends back; return a description of the outcome.

        Before the start of training the factor is accepted. Afterwards it is only compared with
        the server's factor.
        """
        if self.state is not None:
            ours = self.state.factors[party].natural
            same = all(np.allclose(ours[name], factor[name], rtol=1e-6) for name in ours)
            return (
                "equal to the server's factor"
                if same
                else "differs from the server's factor, which stays in use"
            )
        if not self.accept_returned:
            raise PeerError(
                "this server starts from the prior and accepts no returned factors; its operator "
                "can allow them with serve.accept_returned = true"
            )
        _check_numbers(factor, self.rules.prior, "likelihood")
        returned = self.roster.returned | {party: pack_natural(factor)}
        factors = {name: unpack_natural(body) for name, body in returned.items()}
        start = server_state.initial_state(self.rules, self._first_factors | factors)
        if not self.rules.family.is_proper(start.q):
            raise PeerError(
                "the returned factor is refused, because q would be improper with it; set "
                "join.return_likelihood = false in the party's file"
            )
        self._save(self.roster.having(returned=returned))
        return "accepted"

    def delivered(self, party: str) -> None:
        """Record that a party has received the result."""
        member = msgspec.structs.replace(self.members[party], delivered=True)
        self._save(self.roster.having(members=self.members | {party: member}))

    def undelivered(self) -> set[str]:
        """Return the members that have not received the result."""
        waiting = [name for name, one in self.members.items() if not one.delivered]
        return {name for name in waiting if not self._has_gone(name)}

    def _check_listed(self, peer: Peer) -> None:
        if peer.name not in self.parties:
            raise RefusedError(
                f"{peer.name} is not on the list of parties of this run; ask its operator to add "
                "it",
                fixable=False,
            )
        if self._has_gone(peer.name):
            raise RefusedError(f"{peer.name} has left this run permanently", fixable=False)

    def _check_announced(self, data_size: int) -> None:
        # A larger number of records widens the bounds by which the party's replies are checked.
        if self._reply_rules is None:
            return
        total, most = self._reply_rules.total_records, self._reply_rules.most_records
        if data_size > most:
            raise RefusedError(
                f"you announce {data_size:,} records, but this server accepts at most {most:,} per "
                "party; its operator can raise serve.most_records",
                fixable=False,
            )
        if total is not None and data_size > max(RECORDS_MARGIN * total, MIN_REPORTED_RECORDS - 1):
            raise RefusedError(
                f"you announce {data_size:,} records, but about {total:,} were agreed for all "
                "parties together; correct the key records in the federation file",
                fixable=False,
            )

    def _check_same(self, peer: Peer, known: Member, void: Void | None) -> None:
        replaced = void is not None and void(int(known.serial, 16))
        if known.key != peer.key_fingerprint and not replaced:
            raise RefusedError(
                f"{peer.name} joined with another key; if the key was replaced, have the "
                "authority revoke the old certificate first",
                fixable=False,
            )

    def _check_plain(self, protocol: int) -> None:
        """Refuse a peer without the protocol extensions if this run needs them."""
        if protocol >= m.PROTOCOL or (protocol and not self.private):
            return
        if self.private:
            _refuse_plain("this run is private")
        if self.rules.solver is not None:
            _refuse_plain("its method has stages (method.kind = 'exact' or 'gradient-vi' has none)")
        if isinstance(self.rules.schedule.damping, StalenessDamping):
            _refuse_plain("its server damps updates by staleness (schedule.damping)")
        if not is_independent_normal(self.rules.prior):
            _refuse_plain(
                "its posterior is not a normal with independent coordinates "
                "(posterior = 'mean-field')"
            )

    def _save(self, roster: Roster) -> None:
        if roster != self.roster:
            save_roster(self._roster_path, roster)
            self.roster = roster


def _without_prior(rules: Rules) -> tuple[str, ...]:
    """Return all parties except the prior pseudo-party."""
    return rules.parties[1:] if rules.site_prior else rules.parties


def _check_numbers(natural: Natural, q: Natural, what: str) -> None:
    """Refuse natural parameters that are too large, or a matrix that is not symmetric."""
    for name, value in natural.items():
        if not np.max(np.abs(value), initial=0.0) <= MAX_NATURAL_PARAMETER:
            raise PeerError(
                f"{what}: {name!r} has an entry with an absolute value above "
                f"{MAX_NATURAL_PARAMETER:g}; check the units of the data, or update tacit"
            )
        if name == "quadratic" and value.ndim == 2:
            size = np.sqrt(np.abs(np.diagonal(value)) + np.abs(np.diagonal(q[name])))
            if not np.all(np.abs(value - value.T) <= SYMMETRY_TOLERANCE * np.outer(size, size)):
                raise PeerError(f"{what}: {name!r} is not symmetric; send a symmetric matrix")


def _refuse_plain(why: str) -> NoReturn:
    raise RefusedError(
        f"{why}: a peer must announce protocol {m.PROTOCOL} in JoinCluster", fixable=False
    )
