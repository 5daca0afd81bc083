"""Secure sums over TLS: whoever drops out or lies, the server has sums of integers or nothing."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import tomlkit
from wire_harness import BINARY, Fed, assert_same_bits, ended, run_all, started, until

from tacit.cli.live import approve_command
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, PeerError
from tacit.live.config import read_agreed
from tacit.live.join import SUMS, join
from tacit.live.protocol import messages as m
from tacit.live.secure.kept_party import KeptParty
from tacit.live.server.sums import ServerSums
from tacit.live.session import AsyncSession
from tacit.privacy.lattice import lattice_sum

ROWS = 24
THREE = ("a", "b", "c")
SEEDED = {"epsilon": 4.0, "delta": 1e-4, "insecure_noise_seed": 5, "aggregation": "secure"}
PRIVATE = {
    **BINARY,
    "model": {"kind": "logistic"},
    "privacy": SEEDED,
    "method": {"kind": "dp-scoring"},
    "schedule": {"kind": "synchronous", "rounds": 4},
}
pytestmark = pytest.mark.usefixtures("shared_models")


class CrashError(BaseException):
    """As if the process were killed: no handler of the library catches it."""


def federation(folder, names=THREE, **agreed):
    agreed = {**PRIVATE, "records": ROWS * len(names), **agreed}
    fed = Fed(folder, names, agreed, rows=ROWS, encodings=("json", "cbor", "msgpack"))
    fed.approve()
    return fed


def refusals(fed, place="server"):
    return [line["reason"] for line in fed.journal(place) if line["event"] == "refused"]


@pytest.fixture
def watched(monkeypatch):
    """What parties mask, by slot and party, and what the server unmasks, by slot."""
    seen = SimpleNamespace(vectors={}, sums={}, survivors={})
    mask, total = KeptParty.masked, ServerSums.total

    def masked(self, request, released, shapes):
        before = seen.vectors.setdefault((request.visit, self._name), released)
        for name, value in before.items():
            assert np.array_equal(value, released[name]), "a vector is answered again unchanged"
        return mask(self, request, released, shapes)

    def totalled(self, shapes):
        slot = self.open
        survivors, found = total(self, shapes)
        seen.survivors[slot], seen.sums[slot] = survivors, found
        return survivors, found

    monkeypatch.setattr(KeptParty, "masked", masked)
    monkeypatch.setattr(ServerSums, "total", totalled)
    return seen


def assert_sums(seen, slots):
    """Every sum is that of its survivors' integers."""
    assert set(seen.sums) == set(range(slots))
    for slot, found in seen.sums.items():
        for name, value in found.items():
            parts = [seen.vectors[slot, party][name] for party in seen.survivors[slot]]
            assert np.array_equal(value, lattice_sum(parts))


class Crashing:
    """Ends a party at a step of a round, once for each (visit, party, step)."""

    STEPS = ("before masking", "before sending", "after sending", "signature", "shares")

    def __init__(self, monkeypatch, plan):
        self.left, self.done = Counter(plan), []
        mask, send = KeptParty.masked, AsyncSession._send

        def masked(party: Any, request: Any, *rest: Any) -> Any:
            self.at(request.visit, party._name, "before masking")
            found = mask(party, request, *rest)
            self.at(request.visit, party._name, "before sending")
            return found

        async def sending(session: Any, message: Any) -> None:
            kinds = {m.SurvivorSignature: "signature", m.UnmaskShares: "shares"}
            step = kinds.get(type(message))
            if step is not None:
                self.at(message.slot, who(session), step)
            await send(session, message)
            if isinstance(message, m.MaskedUpdate):
                self.at(message.slot, who(session), "after sending")

        monkeypatch.setattr(KeptParty, "masked", masked)
        monkeypatch.setattr(AsyncSession, "_send", sending)

    def at(self, visit, name, step):
        key = (visit, name, step)
        if self.left[key]:
            self.left[key] -= 1
            self.done.append(key)
            raise CrashError(str(key))


def who(session):
    """Name of the party of a session of secure sums."""
    return session.sums.__self__._name


def rounds(fed):
    return [line for line in fed.journal() if line["event"] == "round"]


async def join_again(fed, name, *, away=False):
    """A party whose process is started again when it was killed, `away` in the next round."""
    while True:
        try:
            return await join(fed.party(name))
        except CrashError as crash:
            if away:
                missed = int(str(crash)[1 : str(crash).index(",")])
                await until(lambda missed=missed: len(rounds(fed)) > missed, 100)


async def play(fed, *, away=False):
    async with asyncio.timeout(150):
        server = await started(fed)
        try:
            parties = [join_again(fed, name, away=away) for name in fed.names]
            return await asyncio.gather(*parties), await server
        finally:
            await ended(server)


FIVE = ("a", "b", "c", "d", "e")
DROPPING = {**SEEDED, "secure": {"quorum": 4}}


def test_a_party_that_is_killed_and_started_again_changes_nothing(tmp_path, monkeypatch, watched):
    """In every round one party dies at another step; its process comes back at once."""
    plan = [(visit, FIVE[visit], step) for visit, step in enumerate(Crashing.STEPS)]
    crashing = Crashing(monkeypatch, plan)
    fed = federation(tmp_path, FIVE, privacy=DROPPING, schedule={"rounds": 5})
    asyncio.run(play(fed))
    assert sorted(crashing.done) == sorted(plan)
    assert_sums(watched, 5)
    assert all(names == FIVE for names in watched.survivors.values())
    assert_same_bits(fed.state().result, carry_out(fed.alone()).state.result)


def test_rounds_go_on_without_parties_that_drop_out(tmp_path, monkeypatch, watched):
    """One never sends its vector, one goes after it, one before its shares; each misses a round."""
    gone = [(0, "a", "before sending"), (1, "b", "signature"), (2, "c", "shares")]
    crashing = Crashing(monkeypatch, gone)
    six_of_seven = {**SEEDED, "secure": {"quorum": 6}}
    fed = federation(tmp_path, (*FIVE, "f", "g"), privacy=six_of_seven)
    fed.write_server(deadline_s=2.0)
    asyncio.run(play(fed, away=True))
    assert sorted(crashing.done) == gone
    assert_sums(watched, 4)
    assert "a" not in watched.survivors[0]
    assert all(len(names) >= 6 for names in watched.survivors.values())
    assert fed.state().finished == "rounds"


def test_a_vector_that_comes_late_is_refused_and_the_sum_stands(tmp_path, monkeypatch, watched):
    fed = federation(tmp_path, FIVE, privacy=DROPPING, schedule={"rounds": 3})
    fed.write_server(deadline_s=2.0)
    send = AsyncSession._send

    async def late(session: Any, message: Any) -> None:
        if isinstance(message, m.MaskedUpdate) and who(session) == "d" and message.slot == 0:
            await until(lambda: rounds(fed), 100)
        await send(session, message)

    monkeypatch.setattr(AsyncSession, "_send", late)
    asyncio.run(play(fed))
    assert_sums(watched, 3)
    assert "d" not in watched.survivors[0]
    assert any("'d' answers for slot 0" in one or "late" in one for one in refusals(fed))


@pytest.mark.parametrize("step", ["roster", "set-up", "survivors", "unmask", "sum"])
def test_a_server_that_is_killed_between_steps_goes_on(step, tmp_path, monkeypatch, watched):
    """Whatever it had not stored it asks for again, and gets the same."""
    fed = federation(tmp_path, schedule={"rounds": 3})
    advance, killed = ServerSums.advance, []

    def advancing(self, *rest):
        found = advance(self, *rest)
        if found == step and not killed:
            killed.append(step)
            raise CrashError(step)
        return found

    monkeypatch.setattr(ServerSums, "advance", advancing)

    async def restarted():
        parties = [asyncio.create_task(join(fed.party(name))) for name in fed.names]
        server = await started(fed)
        with pytest.raises(CrashError):
            await server
        server = await started(fed)
        try:
            await asyncio.gather(*parties)
            await server
        finally:
            await ended(server, *parties)

    asyncio.run(asyncio.wait_for(restarted(), 150))
    assert killed == [step]
    assert_sums(watched, 3)
    assert_same_bits(fed.state().result, carry_out(fed.alone()).state.result)


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
    told_few: "a sum of 3 parties; at least 4 were agreed",
    told_without_me: "a set of survivors without this party",
    told_other_keys: "an invalid signature",
    told_few_keys: "all 5 agreed parties must take part",
    told_other_shares: "are not signed by their dealer",
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


def test_a_vector_beyond_the_range_of_sums_ends_the_run(tmp_path, monkeypatch):
    """No one can say whose it was; what no records can give is not applied."""
    mask = KeptParty.masked

    def wrong(self, request, released, shapes):
        if self._name == "b" and request.visit == 2:
            released = {name: np.full_like(value, 2**58) for name, value in released.items()}
        return mask(self, request, released, shapes)

    monkeypatch.setattr(KeptParty, "masked", wrong)
    fed = federation(tmp_path)
    with pytest.raises(PeerError):
        asyncio.run(run_all(fed, within_s=100))
    (line,) = [line for line in fed.journal() if line["event"] == "cannot go on"]
    assert "the sum of round 3 breaks a bound (norm of the sum" in line["reason"]
    assert fed.state().round == 2


def test_a_party_that_lost_its_keys_leaves_and_the_run_ends_with_what_was_paid_for(
    tmp_path, monkeypatch
):
    """It makes no new keys in the same run, and without it three parties have no sum."""
    Crashing(monkeypatch, [(1, "a", "after sending")])
    fed = federation(tmp_path)

    async def lost():
        server = await started(fed)
        others = [asyncio.create_task(join(fed.party(name))) for name in ("b", "c")]
        try:
            with pytest.raises(CrashError):
                await join(fed.party("a"))
            (fed.base / "state-a" / SUMS).unlink()
            with pytest.raises(ConfigError, match="take part in a new run"):
                await asyncio.wait_for(join(fed.party("a")), 60)
            await asyncio.wait_for(asyncio.gather(*others), 60)
            return await asyncio.wait_for(server, 60)
        finally:
            await ended(*others, server)

    assert asyncio.run(lost()).finished == "too few parties"
    assert fed.state().round == 1, "the sum of the first round is in the result"
    (line,) = [line for line in fed.journal() if line["event"] == "left"]
    assert line["party"] == "a"


def test_a_party_with_another_key_than_agreed_is_told_before_it_joins(tmp_path):
    fed = federation(tmp_path, keys={name: 64 * str(i) for i, name in enumerate(THREE)})
    with pytest.raises(ConfigError, match=r"keys\.a = 0000000000000000… in the agreed file"):
        asyncio.run(join(fed.party("a")))


# What is agreed ----------------------------------------------------------------------------------


def test_what_an_operator_approves_is_said_in_words(tmp_path, capsys):
    fed = federation(tmp_path, FIVE, privacy=DROPPING)
    approve_command(tmp_path / "a.toml", yes=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "the server learns sums of at least 4 of the 5 parties' messages" in said
    assert "ε holds against the server together with any 1 of the parties" in said
    assert "this party adds 1/√3" in said
    assert "a round goes on without up to 1 of them" in said
    assert "the server and its operator: masked replies, and the sum of each round" in said
    assert fed.fingerprint("a") in (tmp_path / "federation.toml").read_text()


@pytest.mark.parametrize(("change", "words"), [
    (lambda body: body["keys"].pop("b"), "keys has no SHA-256 fingerprint of 'b'"),
    (lambda body: body["keys"].update(b=body["keys"]["a"]), "the same fingerprint"),
    (lambda body: body["keys"].update(x="0" * 64), "keys names 'x'"),
    (lambda body: body.update(quorum=4), "set that key and leave quorum out"),
    (lambda body: body["privacy"].update(aggregation="plain"), "privacy.secure with"),
    (lambda body: body["privacy"].update(secure={"quorum": 2}), "from the threshold 4 to 5"),
])  # fmt: skip
def test_an_agreed_file_that_cannot_work_is_refused(change, words, tmp_path):
    federation(tmp_path, FIVE, privacy=DROPPING)
    body = tomlkit.parse((tmp_path / "federation.toml").read_text()).unwrap()
    change(body)
    (tmp_path / "federation.toml").write_text(tomlkit.dumps(body))
    with pytest.raises(ConfigError, match=words):
        read_agreed(tmp_path / "federation.toml")


def test_a_server_that_would_start_without_some_parties_is_refused(tmp_path):
    fed = federation(tmp_path)
    with pytest.raises(ConfigError, match="all 3 parties take part in the set-up"):
        fed.write_server(start={"parties": 2})


def test_thresholds_and_keys_are_part_of_what_is_approved(tmp_path):
    found = set()
    for number, quorum in enumerate((4, 5, 5)):
        privacy = {**SEEDED, "secure": {"quorum": quorum}}
        fed = federation(tmp_path / str(number), FIVE, privacy=privacy)
        found.add(read_agreed(fed.base / "federation.toml").digest)
    assert len(found) == 3, "other keys or another quorum are another agreement"
