"""Attacks on secure sums over TLS: each is refused and logged, and nothing more is unmasked.

The attacking end is the real one with one step changed; the other ends are unchanged.
"""

import asyncio
import os
from collections import defaultdict

import msgspec
import pytest
from wire_harness import assert_same_bits, ended, run_all, started, until
from wire_secure_harness import (
    DROPPING,
    FIVE,
    SEEDED,
    CrashError,
    assert_sums,
    federation,
    refusals,
    rounds,
)

from tacit.engines.execute import carry_out
from tacit.live.join import join
from tacit.live.protocol import messages as m
from tacit.live.secure import party as pure
from tacit.live.secure.kept_party import KeptParty
from tacit.live.secure.signing import sign
from tacit.live.server import coordinator
from tacit.live.server.sums import SLOT, Due, ServerSums
from tacit.live.session import AsyncSession

pytestmark = pytest.mark.usefixtures("shared_models")


# A server that attacks ---------------------------------------------------------------------------


def told_other_sets(party, due):
    """Two parties are told another set of survivors than the others."""
    if isinstance(due.message, m.SurvivorSet) and party in ("d", "e"):
        names = due.message.names[1:]
        return due._replace(message=msgspec.structs.replace(due.message, names=names))
    return due


def told_few(party, due):
    if isinstance(due.message, m.SurvivorSet):
        names = due.message.names[-3:]
        return due._replace(message=msgspec.structs.replace(due.message, names=names))
    return due


def told_without_me(party, due):
    if isinstance(due.message, m.SurvivorSet):
        names = tuple(name for name in due.message.names if name != party)
        return due._replace(message=msgspec.structs.replace(due.message, names=names))
    return due


def told_other_keys(party, due):
    """The server puts its own key in the place of a party's."""
    if isinstance(due.message, m.KeyRoster):
        first, *rest = due.message.offers
        first = msgspec.structs.replace(first, sharing=bytes(range(32)))
        return due._replace(message=msgspec.structs.replace(due.message, offers=(first, *rest)))
    return due


def told_few_keys(party, due):
    if isinstance(due.message, m.KeyRoster):
        return due._replace(
            message=msgspec.structs.replace(due.message, offers=due.message.offers[1:])
        )
    return due


def told_other_shares(party, due):
    """Shares that were meant for another party."""
    if isinstance(due.message, m.PartyShares):
        first, *rest = due.message.parcels
        first = msgspec.structs.replace(first, box=first.box[:-1] + b"x")
        return due._replace(message=m.PartyShares(parcels=(first, *rest)))
    return due


ATTACKS = {
    told_other_sets: "did not sign the set of survivors that this party signed",
    told_few: "the sum is over 3 parties; at least 4 were agreed",
    told_without_me: "a set of survivors without this party",
    told_other_keys: "an invalid signature",
    told_few_keys: "all 5 agreed parties must take part",
    told_other_shares: "are not signed by '",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_server_that_attacks_learns_nothing(attack, tmp_path, monkeypatch, watched):
    """The parties refuse, say so in their logs, and nothing is unmasked."""
    due = ServerSums.due
    monkeypatch.setattr(
        ServerSums, "due", lambda *given: [attack(given[1], one) for one in due(*given)]
    )
    # A server that attacks does not check the signatures that it collects.
    monkeypatch.setattr("tacit.live.secure.server.is_signed", lambda *_: True)
    fed = federation(tmp_path, FIVE, privacy=DROPPING)

    async def attacked():
        server = await started(fed)
        parties = [asyncio.create_task(join(fed.party(name))) for name in fed.names]
        try:
            await until(
                lambda: any(
                    ATTACKS[attack] in one
                    for name in FIVE
                    for one in refusals(fed, f"state-{name}")
                ),
                60,
            )
            await asyncio.sleep(0.3)
        finally:
            await ended(*parties, server)

    asyncio.run(attacked())
    assert watched.sums == {}
    assert not rounds(fed)


def test_a_server_that_tries_for_a_second_sum_is_refused(tmp_path, monkeypatch, watched):
    """Beside an honest run: second sets of survivors before and after unmasking, forged, few and
    another slot's signatures, a second roster. No party reveals more than for one set.
    """
    due, tried, revealed, kept = ServerSums.due, set(), defaultdict(set), {}

    def extras(party, one):
        message = one.message
        if isinstance(message, m.SurvivorSet) and message.slot == 0:
            others = [name for name in message.names if name != party]
            fewer = tuple(name for name in message.names if name != others[0])
            kept[party] = msgspec.structs.replace(message, names=fewer)
            return [one, Due("second set", kept[party])]
        if isinstance(message, m.UnmaskRequest) and message.slot == 0:
            first, *rest = message.consents
            forged = msgspec.structs.replace(first, signature=os.urandom(64))
            kept["consents"] = message.consents
            return [
                Due("forged", msgspec.structs.replace(message, consents=(forged, *rest))),
                Due("few", msgspec.structs.replace(message, consents=message.consents[:3])),
                one,
                Due("both kinds", kept[party]),
            ]
        if isinstance(message, m.UnmaskRequest) and message.slot == 1:
            older = tuple(msgspec.structs.replace(c, slot=1) for c in kept["consents"])
            return [Due("older", msgspec.structs.replace(message, consents=older)), one]
        if isinstance(message, m.PartyShares):
            return [one, Due("again", m.KeyRoster(offers=tuple(message_offers[::-1])))]
        return [one]

    message_offers = []

    def attacked(self, party, told):
        if self.state.roster is not None:
            message_offers[:] = self.state.roster.offers
        honest = due(self, party, told)
        found = [each for one in honest for each in extras(party, one)]
        fresh = [one for one in found if one in honest or (party, one.key) not in tried]
        tried.update((party, one.key) for one in fresh)
        return fresh

    send = AsyncSession._send

    async def sending(session, message):
        if isinstance(message, m.UnmaskShares):
            for kind in ("seeds", "keys"):
                for dealer in getattr(message, kind):
                    revealed[message.slot, dealer].add(kind)
        await send(session, message)

    monkeypatch.setattr(ServerSums, "due", attacked)
    monkeypatch.setattr(AsyncSession, "_send", sending)
    for place in ("session", "server.conversation"):
        monkeypatch.setattr(f"tacit.live.{place}.MAX_ERRORS", 100)
    fed = federation(tmp_path, FIVE, privacy=DROPPING, schedule={"rounds": 3})
    asyncio.run(run_all(fed, within_s=100))
    for name in FIVE:
        said = " ".join(refusals(fed, f"state-{name}"))
        for words in (
            "a second set of survivors for slot 0",
            "did not sign the set of survivors that this party signed",
            "3 signatures over the survivors; at least 4",
            "a second roster for one set-up",
        ):
            assert words in said
    assert_sums(watched, 3)
    assert all(names == FIVE for names in watched.survivors.values())
    assert set(revealed) == {(slot, name) for slot in range(3) for name in FIVE}
    assert all(kinds == {"seeds"} for kinds in revealed.values())
    assert_same_bits(fed.state().result, carry_out(fed.alone()).state.result)


# Parties that attack -----------------------------------------------------------------------------


def test_a_party_that_sends_a_wrong_share_is_named(tmp_path, monkeypatch, watched):
    """All four are needed, so that nothing is unmasked without it."""
    reveal = KeptParty._revealed

    def wrong(self, asked):
        found = reveal(self, asked)
        if self._name == "b":
            seeds = found.seeds | {"c": bytes(33)}
            found = msgspec.structs.replace(found, seeds=seeds)
        return found

    monkeypatch.setattr(KeptParty, "_revealed", wrong)
    four = {**SEEDED, "secure": {"threshold": 4}}
    fed = federation(tmp_path, ("a", "b", "c", "d"), privacy=four)

    def culprits():
        return [one for one in fed.journal() if one.get("kind") == "culprit"]

    async def attacked():
        server = await started(fed)
        parties = [asyncio.create_task(join(fed.party(name))) for name in fed.names]
        try:
            await until(culprits, 60)
        finally:
            await ended(*parties, server)

    asyncio.run(attacked())
    assert {one["party"] for one in culprits()} == {"b"}
    assert "'b' sent a share of 'c' that 'c' did not deal" in culprits()[0]["reason"]
    assert watched.sums == {}


def of_small_order(offer, terms):
    return {"sharing": bytes(32)}


def of_small_order_otherwise_written(offer, terms):
    return {"masking": (bytes(31) + b"\x80", *offer.masking[1:])}


def one_key_in_two_forms(offer, terms):
    """X25519 ignores the highest bit, so both are the same point."""
    first, _, *rest = offer.masking
    return {"masking": (first, first[:31] + bytes([first[31] | 0x80]), *rest)}


def one_key_twice(offer, terms):
    return {"masking": (offer.masking[0],) * len(offer.masking)}


def of_fewer_slots(offer, terms):
    return {"masking": offer.masking[1:], "seeds": offer.seeds[1:]}


def of_another_run(offer, terms):
    return {"signed_for": msgspec.structs.replace(terms, run="run-before")}


def of_other_thresholds(offer, terms):
    return {"signed_for": msgspec.structs.replace(terms, quorum=5, threshold=4)}


OFFERS = {
    of_small_order: "of small order or in a non-canonical form",
    of_small_order_otherwise_written: "of small order or in a non-canonical form",
    one_key_in_two_forms: "of small order or in a non-canonical form",
    one_key_twice: "malformed or repeated",
    of_fewer_slots: "for 3 slots, but 4 slots were agreed",
    of_another_run: "an invalid signature",
    of_other_thresholds: "an invalid signature",
}


def test_keys_that_are_not_as_agreed_are_refused(tmp_path, monkeypatch, watched):
    """All of them, then the right ones; those with a valid signature name their party."""
    send, enter, party = AsyncSession._send, KeptParty.enter, {}

    def entering(self, run):
        party[self._name] = self
        enter(self, run)

    async def sending(session, message):
        if isinstance(message, m.OfferedKeys) and message.offer.party == "b":
            terms = party["b"]._agreed
            for attack in OFFERS:
                changes = attack(message.offer, terms)
                over = changes.pop("signed_for", terms)
                offer = msgspec.structs.replace(message.offer, **changes)
                signature = sign(party["b"]._key, offer.signed(over.digest))
                offer = msgspec.structs.replace(offer, signature=signature)
                await send(session, m.OfferedKeys(offer=offer))
        await send(session, message)

    monkeypatch.setattr(KeptParty, "enter", entering)
    monkeypatch.setattr(AsyncSession, "_send", sending)
    for place in ("session", "server.conversation"):
        monkeypatch.setattr(f"tacit.live.{place}.MAX_ERRORS", 100)
    fed = federation(tmp_path, FIVE, privacy=DROPPING)

    async def attacked():
        server = await started(fed)
        parties = [asyncio.create_task(join(fed.party(name))) for name in fed.names]
        try:
            await until(lambda: watched.sums, 25)
        finally:
            await ended(*parties, server)

    asyncio.run(attacked())
    said = refusals(fed)
    for words in OFFERS.values():
        assert any("'b'" in one and words in one for one in said), words
    culprits = [one for one in fed.journal() if one.get("kind") == "culprit"]
    assert {one["party"] for one in culprits} == {"b"}
    assert len({one["reason"] for one in culprits}) == 3
    assert watched.survivors[0] == FIVE, "with right keys in the end it takes part"


def test_a_party_that_sends_useless_answers_does_not_stop_the_others(
    tmp_path, monkeypatch, watched
):
    """A signature over nothing, then shares of its own that are none: named, and not needed."""
    signed, reveal = KeptParty._signed, KeptParty._revealed

    def forged(self, told):
        found = signed(self, told)
        if self._name == "b" and told.slot == 0:
            found = msgspec.structs.replace(found, signature=os.urandom(71))
        return found

    def malformed(self, asked):
        found = reveal(self, asked)
        if self._name == "b" and asked.slot > 0:
            own = {1: b"", 2: b"\xff" * 33}[asked.slot]
            found = msgspec.structs.replace(found, seeds=found.seeds | {"b": own})
        return found

    monkeypatch.setattr(KeptParty, "_signed", forged)
    monkeypatch.setattr(KeptParty, "_revealed", malformed)
    fed = federation(tmp_path, FIVE, privacy=DROPPING, schedule={"rounds": 3})
    asyncio.run(run_all(fed, within_s=60))
    culprits = [one for one in fed.journal() if one.get("kind") == "culprit"]
    assert {one["party"] for one in culprits} <= {"b"}
    assert_sums(watched, 3)
    assert_same_bits(fed.state().result, carry_out(fed.alone()).state.result)


@pytest.mark.parametrize("share", [b"\xff" * 33, b"short"], ids=["outside the field", "short"])
def test_a_dealer_of_useless_shares_is_named_and_nothing_is_charged(
    share, tmp_path, monkeypatch, watched
):
    """Signed, with the right hashes, and still no shares; the others are never asked for a sum."""
    parcel = pure._parcel

    def useless(state, roster, to, shares, key):
        return parcel(
            state, roster, to, [share] * len(shares) if state.name == "b" else shares, key
        )

    monkeypatch.setattr(pure, "_parcel", useless)
    fed = federation(tmp_path)

    def party_errors():
        return [one for one in fed.journal() if one["event"] == "party error"]

    async def attacked():
        server = await started(fed)
        parties = [asyncio.create_task(join(fed.party(name))) for name in fed.names]
        try:
            await until(
                lambda: (
                    all(
                        any("of 'b'" in one for one in refusals(fed, f"state-{name}"))
                        for name in ("a", "c")
                    )
                    and {one["party"] for one in party_errors()} == {"a", "c"}
                ),
                60,
            )
        finally:
            await ended(*parties, server)

    asyncio.run(attacked())
    errors = party_errors()
    assert {one["party"] for one in errors} == {"a", "c"}
    assert all(
        "shares of 'b'" in one["reason"] or "share of 'b'" in one["reason"] for one in errors
    )
    assert watched.vectors.keys() <= {(0, "b")}, "honest parties computed and masked nothing"
    assert watched.sums == {}


def test_a_changed_request_for_an_answered_visit_is_refused_before_its_charge(
    tmp_path, monkeypatch, watched
):
    """Otherwise one vector would be in two sums, or a visit would be charged twice."""
    due, select, messages, tried = ServerSums.due, coordinator._selected, {}, set()

    def selected(connection, request, live):
        messages[connection.peer.name, request.visit] = select(connection, request, live)
        return messages[connection.peer.name, request.visit]

    def again(self, party, told):
        found = due(self, party, told)
        if self.open == 2 and party not in tried and (party, 2) in messages and self.closed:
            tried.add(party)
            message = messages[party, 2]
            changed = {
                name: msgspec.structs.replace(message, **change)
                for name, change in {
                    "same id": {"damping_factor": 0.5},
                    "another id": {"damping_factor": 0.5, "request": "another"},
                }.items()
            }
            found += [Due(name, one) for name, one in changed.items()]
        return found

    monkeypatch.setattr(coordinator, "_selected", selected)
    monkeypatch.setattr(ServerSums, "due", again)
    fed = federation(tmp_path, FIVE, privacy=DROPPING, schedule={"rounds": 4})

    async def attacked():
        server = await started(fed)
        parties = [asyncio.create_task(join(fed.party(name))) for name in fed.names]
        try:
            await until(lambda: len(tried) == 5, 40)
            await until(lambda: refused_by(fed), 20)
        finally:
            await ended(*parties, server)

    def refused_by(fed):
        return [
            one["reason"]
            for name in FIVE
            for one in fed.journal(f"state-{name}")
            if one["event"] == "cannot answer"
        ]

    asyncio.run(attacked())
    assert refused_by(fed)
    assert all("nothing was charged" in one for one in refused_by(fed))


def test_a_server_that_is_set_back_cannot_announce_another_set(tmp_path, monkeypatch, watched):
    """All have signed one set; a server that has forgotten it tries to go on without one party."""
    advance, killed = ServerSums.advance, []

    def advancing(self, *rest):
        found = advance(self, *rest)
        if found == "unmask" and not killed:
            killed.append(found)
            raise CrashError(found)
        return found

    monkeypatch.setattr(ServerSums, "advance", advancing)
    fed = federation(tmp_path, FIVE, privacy=DROPPING)
    four = [name for name in FIVE if name != "d"]

    async def attacked():
        parties = {name: asyncio.create_task(join(fed.party(name))) for name in fed.names}
        server = await started(fed)
        with pytest.raises(CrashError):
            await server
        await ended(parties["d"])
        (fed.base / "server" / SLOT).unlink()
        fed.write_server(deadline_s=1.0)
        server = await started(fed)
        words = "a second set of survivors for slot 0"
        try:
            await until(
                lambda: all(words in " ".join(refusals(fed, f"state-{name}")) for name in four), 40
            )
        finally:
            await ended(*parties.values(), server)

    asyncio.run(attacked())
    assert watched.sums == {}
