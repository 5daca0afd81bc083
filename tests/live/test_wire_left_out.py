"""A live federation in which one party does not answer as agreed: the others get a result."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from wire_harness import BINARY, Fed, run_all, started, until

import tacit.live.join as live_join
from tacit.errors import PeerError
from tacit.live.join import join
from tacit.live.party import LiveParty
from tacit.live.protocol.state_tables import PartySide
from tacit.live.server.status import give_command
from tacit.live.session import AsyncSession
from tacit.live.transport.frames import write_frame
from tacit.party.compute import SinglePartyComputer

PRIVATE = {"epsilon": 2.0, "insecure_noise_seed": 5}


class Corrupt(SinglePartyComputer):
    """Party "b", whose updates are `factor` times what they should be from visit `since` on."""

    factor, since = 1e6, 0

    def __init__(self, agreement: Any, party: str, *rest: Any, **options: Any) -> None:
        super().__init__(agreement, party, *rest, **options)
        self.corrupt = party == "b"

    def compute(self, requests: Any, keys: Any) -> Any:
        updates = super().compute(requests, keys)
        for request in requests:
            if self.corrupt and request.visit >= self.since:
                update = updates[request.id]
                wrong = {name: type(self).factor * one for name, one in update.released.items()}
                updates[request.id] = update._replace(released=wrong)
        return updates


def federation(tmp_path, **agreed: Any) -> Fed:
    agreed = {
        **BINARY,
        "model": {"kind": "logistic", "prior_sd": 1.0},
        "schedule": {"rounds": 4},
        "privacy": "none",
    } | agreed
    fed = Fed(tmp_path, ("a", "b", "c"), agreed)
    fed.approve()
    return fed


def left_out(fed: Fed) -> list[dict[str, Any]]:
    return [line for line in fed.journal() if line["event"] == "left out"]


def summary(fed: Fed, key: str) -> Any:
    return json.loads((fed.base / "server" / "public" / "result.json").read_text())[key]


@pytest.mark.parametrize(("factor", "since"), [(1e6, 0), (1e6, 3), (-40.0, 0)])
def test_one_party_does_not_decide_a_run(factor, since, tmp_path, monkeypatch):
    """The result is that of the other two, whether it starts lying at once or at the end."""
    monkeypatch.setattr(live_join, "SinglePartyComputer", Corrupt)
    monkeypatch.setattr(Corrupt, "factor", factor)
    monkeypatch.setattr(Corrupt, "since", since)
    fed = federation(tmp_path)
    results = asyncio.run(run_all(fed))
    (line,) = left_out(fed)
    assert (line["party"], line["round"], line["factor"]) == (
        "b",
        since + 1,
        "not included in later sums",
    )
    assert "breaks a bound (" in line["reason"]
    assert "at most" in line["reason"] or "at least" in line["reason"]
    assert set(results[0].left_out) == set(summary(fed, "left_out")) == {"b"}
    status = json.loads((fed.base / "server" / "status.json").read_text())
    assert status["left_out"]["b"]["reason"] == line["reason"]
    assert status["parties"]["b"]["left_out"] == status["left_out"]["b"]
    mean = np.array(results[0].posterior.mean)
    assert np.all(np.abs(mean) < 5)
    assert all(np.allclose(one.result.posterior.mean, mean) for one in results[1:])
    assert fed.state().factors["b"].natural["linear"] == pytest.approx(0.0)


def spoiled(session_class: Any, wrong: str) -> Any:
    """`AsyncSession.send_delta`, with what party "b" sends at its second visit changed."""
    send = session_class.send_delta

    async def send_delta(self: Any, turn: Any, delta: Any, loss: Any = None) -> None:
        corrupt = self.who == "b" and turn.visit >= 1
        if corrupt and wrong == "not finite":
            delta = {name: np.full_like(value, np.nan) for name, value in delta.items()}
        elif corrupt and wrong == "shape":
            delta = {name: value[:1] for name, value in delta.items()}
        elif corrupt and wrong == "loss":
            loss = float("inf")
        elif corrupt and wrong == "version":
            turn = turn._replace(version=turn.version + 7)
        elif corrupt and wrong == "unreadable":
            self.side = PartySide.WAITING
            await write_frame(self._writer, b"\xc1")
            return
        await send(self, turn, delta, loss)

    return send_delta


@pytest.mark.parametrize("wrong", ["not finite", "shape", "loss", "version", "unreadable"])
def test_an_answer_that_cannot_be_used_does_not_hold_up_the_others(wrong, tmp_path, monkeypatch):
    """Its party is named and left out, as one that breaks a bound; it gets the result."""
    connect = LiveParty._connect

    async def connected(self: Any, *arguments: Any) -> Any:
        session = await connect(self, *arguments)
        session.who = self.name
        return session

    monkeypatch.setattr(LiveParty, "_connect", connected)
    monkeypatch.setattr(AsyncSession, "send_delta", spoiled(AsyncSession, wrong))
    fed = federation(tmp_path)
    results = asyncio.run(run_all(fed))
    (line,) = left_out(fed)
    assert (line["party"], line["round"], line["factor"]) == (
        "b",
        2,
        "not included in later sums",
    )
    assert "its update cannot be used (" in line["reason"]
    assert set(results[0].left_out) == {"b"}
    mean = np.array(results[0].posterior.mean)
    assert all(np.allclose(one.result.posterior.mean, mean) for one in results[1:])
    complaints = [one for one in fed.journal() if one["event"] == "refused"]
    assert len(complaints) == 2, "it is asked three times"


@pytest.mark.parametrize("kind", ["dp-scoring", "dp-sgd", "dp-updates", "dp-statistics"])
def test_one_party_does_not_decide_a_private_run(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(live_join, "SinglePartyComputer", Corrupt)
    monkeypatch.setattr(Corrupt, "since", 2)
    fed = federation(tmp_path, method={"kind": kind}, privacy=PRIVATE, records=72)
    results = asyncio.run(run_all(fed))
    (line,) = left_out(fed)
    assert (line["party"], line["round"]) == ("b", 3)
    assert "only the noisy sum" in line["factor"]
    assert np.all(np.abs(results[0].posterior.mean) < 20)
    answers = {one.result.party: one.evaluation.answers for one in results[1:]}
    assert answers == {"a": 4, "b": 3, "c": 4}, "what b has sent stays paid for"


@pytest.mark.parametrize("agreed", [
    {},
    {"schedule": {"kind": "sequential", "rounds": 3}},
    {"schedule": {"kind": "asynchronous", "rounds": 3}},
    {"method": {"kind": "dp-scoring"}, "privacy": PRIVATE, "records": 72},
])  # fmt: skip
def test_nobody_is_left_out_of_an_honest_run(agreed, tmp_path):
    fed = federation(tmp_path, **agreed)
    results = asyncio.run(run_all(fed))
    assert left_out(fed) == []
    assert results[0].left_out == {}


def test_an_operator_readmits_a_party(tmp_path, monkeypatch):
    """It lies once, at its second visit; readmitted, it is asked for the rest of the run."""
    monkeypatch.setattr(live_join, "SinglePartyComputer", Corrupt)
    monkeypatch.setattr(Corrupt, "since", 1)
    fed = federation(tmp_path, schedule={"rounds": 400, "tolerance": 0.0})

    async def play() -> Any:
        server = await started(fed)
        parties = [asyncio.create_task(join(fed.party(name))) for name in fed.names]
        await until(lambda: left_out(fed))
        monkeypatch.setattr(Corrupt, "factor", 1.0)
        give_command(fed.base / "server", "readmit-1", {"party": "b"})
        give_command(fed.base / "server", "readmit-2", {"party": "c"})
        await asyncio.gather(*parties)
        return await server

    result = asyncio.run(asyncio.wait_for(play(), 200))
    events = [line["event"] for line in fed.journal() if line["event"] != "round"]
    assert events.index("left out") < events.index("readmitted")
    assert [line["wanted"] for line in fed.journal() if line["event"] == "not readmitted"] == ["c"]
    assert result.left_out == {}
    assert fed.state().factors["b"].visits > 2
    assert np.any(fed.state().factors["b"].natural["linear"])


def test_a_quorum_that_is_lost_is_said_with_the_names(tmp_path, monkeypatch):
    monkeypatch.setattr(live_join, "SinglePartyComputer", Corrupt)
    monkeypatch.setattr(Corrupt, "since", 1)
    fed = federation(tmp_path, quorum=3)
    results = asyncio.run(run_all(fed))
    assert results[0].finished == "too few parties"
    (line,) = [line for line in fed.journal() if line["event"] == "too few"]
    assert line["left_out"] == ["b"]


def test_an_announced_number_of_records_cannot_widen_the_bounds(tmp_path):
    fed = federation(tmp_path, records=30)
    fed.write_party("b", report_records="exact")
    (fed.base / "b.csv").write_text((fed.base / "b.csv").read_text() + "0.1,0.2,yes\n" * 99)
    with pytest.raises(
        PeerError, match=r"announce .* records, but about 30 were agreed for all parties"
    ):
        asyncio.run(run_all(fed))


def test_more_records_than_the_server_takes_of_one_party_are_refused(tmp_path):
    fed = federation(tmp_path)
    fed.write_party("b", report_records="exact")
    (fed.base / "b.csv").write_text((fed.base / "b.csv").read_text() + "0.1,0.2,yes\n" * 99)
    fed.write_server(most_records=60)
    with pytest.raises(PeerError, match=r"announce .* records, .* at most 60 per party"):
        asyncio.run(run_all(fed))
