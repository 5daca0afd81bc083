"""Secure sums over TLS: whoever drops out, the server has sums of integers or nothing."""

import asyncio
from typing import Any

import numpy as np
import pytest
import tomlkit
from wire_harness import assert_same_bits, ended, run_all, started, until
from wire_secure_harness import (
    DROPPING,
    FIVE,
    SEEDED,
    THREE,
    CrashError,
    Crashing,
    assert_sums,
    federation,
    play,
    refusals,
    rounds,
    who,
)

from tacit.cli.live import approve_command
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, PeerError
from tacit.live.config import read_agreed
from tacit.live.join import SUMS, join
from tacit.live.protocol import messages as m
from tacit.live.secure.kept_party import KeptParty
from tacit.live.server.sums import ServerSums
from tacit.live.session import AsyncSession

ALL_FIVE = {**SEEDED, "secure": {"quorum": 5, "threshold": 4}}
pytestmark = pytest.mark.usefixtures("shared_models")


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


# Runs that cannot go on ---------------------------------------------------------------------------


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


async def lost_keys(fed, name, others, *, after):
    """Run until `name` crashes; once `after` holds, it comes back without its keys."""
    server = await started(fed)
    tasks = [asyncio.create_task(join(fed.party(other))) for other in others]
    try:
        with pytest.raises(CrashError):
            await join(fed.party(name))
        await until(after, 30)
        (fed.base / f"state-{name}" / SUMS).unlink()
        with pytest.raises(ConfigError, match="take part in a new run"):
            await asyncio.wait_for(join(fed.party(name)), 30)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        return await asyncio.wait_for(server, 30)
    finally:
        await ended(*tasks, server)


def closed(fed, slot):
    return any(
        line["event"] == "secure sum" and line["step"] == "survivors" and line["slot"] == slot
        for line in fed.journal()
    )


def test_a_sum_that_cannot_be_unmasked_any_more_ends_the_run(tmp_path, monkeypatch, watched):
    """Five of seven are in the sum and all five are needed; the other two could not help."""
    Crashing(monkeypatch, [(1, "e", "after sending")])
    names, send = (*FIVE, "f", "g"), AsyncSession._send
    fed = federation(tmp_path, names, privacy={**SEEDED, "secure": {"quorum": 5, "threshold": 5}})
    fed.write_server(deadline_s=2.0)

    async def late(session: Any, message: Any) -> None:
        slow = isinstance(message, m.MaskedUpdate) and who(session) in ("f", "g")
        if slow and message.slot == 1:
            await until(lambda: fed.state().finished, 100)
        await send(session, message)

    monkeypatch.setattr(AsyncSession, "_send", late)
    others = tuple(name for name in names if name != "e")
    result = asyncio.run(lost_keys(fed, "e", others, after=lambda: closed(fed, 1)))
    assert result.finished == "too few parties"
    assert fed.state().round == 1
    assert_sums(watched, 1)
    (line,) = [line for line in fed.journal() if line["event"] == "too few"]
    assert (line["able"], line["threshold"]) == (4, 5)


def test_a_sum_is_unmasked_although_fewer_than_a_quorum_are_left(tmp_path, monkeypatch, watched):
    """Its parties have paid for it. The round after it has too few."""
    Crashing(monkeypatch, [(1, "e", "after sending")])
    fed, send = federation(tmp_path, FIVE, privacy=ALL_FIVE), AsyncSession._send

    async def late(session: Any, message: Any) -> None:
        if isinstance(message, m.SurvivorSignature) and who(session) == "d" and message.slot == 1:
            await until(lambda: any(line["event"] == "left" for line in fed.journal()), 60)
        await send(session, message)

    monkeypatch.setattr(AsyncSession, "_send", late)
    result = asyncio.run(lost_keys(fed, "e", FIVE[:4], after=lambda: closed(fed, 1)))
    assert result.finished == "too few parties"
    assert fed.state().round == 2
    assert_sums(watched, 2)
    assert watched.survivors[1] == FIVE


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
    assert "up to 1 of the 5 parties may drop out of a round" in said
    assert "the server and its operator: masked replies, and the sum of each round" in said
    assert fed.fingerprint("a") in (tmp_path / "federation.toml").read_text()


@pytest.mark.parametrize(("change", "words"), [
    (lambda body: body["keys"].pop("b"), "keys has no SHA-256 fingerprint of 'b'"),
    (lambda body: body["keys"].update(b=body["keys"]["a"]), "the same fingerprint"),
    (lambda body: body["keys"].update(x="0" * 64), "keys names 'x'"),
    (lambda body: body.update(quorum=4), "set that key and leave quorum out"),
    (lambda body: body["privacy"].update(aggregation="plain"), "privacy.secure with"),
    (lambda body: body["privacy"].update(secure={"quorum": 2}), r"from 4 \(the threshold\) to 5"),
    (lambda body: body["privacy"].update(secure={"threshold": 3}), "threshold = 3"),
    (lambda body: body["privacy"].update(secure={"colluding": 3, "threshold": 4}), "threshold = 4"),
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
