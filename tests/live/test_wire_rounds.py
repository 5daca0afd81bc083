"""Deadlines, quorums, starts, leaves and closes of a live run, and how it is watched."""

import asyncio
import contextlib
import json
import re
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from one_party import OneParty
from wire_harness import (
    NUMBERS,
    Fed,
    assert_same_bits,
    ended,
    free_port,
    run_all,
    started,
    until,
)

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError, PeerError
from tacit.live import serve as serve_module
from tacit.live.config import read_agreed
from tacit.live.join import join, prepare_party
from tacit.live.plan import server_plan
from tacit.live.serve import serve
from tacit.live.server.live_run import LiveRun
from tacit.live.server.status import give_command, metrics_text
from tacit.live.session import Introduction, RejectedError, open_session
from tacit.plan.plan import first_factors
from tacit.server.messages import Request

pytestmark = pytest.mark.usefixtures("shared_models")
NAMES = ("a", "b", "c")
PATIENCE_S = 2.0
"""Deadline by which honest parties answer even on a loaded machine; one party never does."""
EXACT = {
    "privacy": "none",
    **NUMBERS,
    "model": {"kind": "normal-mean"},
    "method": {"kind": "exact"},
}


def federation(tmp_path, kind="synchronous", rounds=6, *, serve=None, **agreed):
    schedule = {"kind": kind, "rounds": rounds, "tolerance": 0.0}
    fed = Fed(tmp_path / "fed", NAMES, {**EXACT, "schedule": schedule, **agreed}, serve=serve or {})
    fed.approve()
    return fed


class ByHand:
    """A party that does what the test says, and nothing else."""

    def __init__(self, fed, name):
        ready = prepare_party(fed.party(name))
        self.fed, self.name, self.ready = fed, name, ready
        self.seat = OneParty(ready.plan.agreement, name, ready.plan.parties[name])

    async def connect(self):
        introduction = Introduction(
            data_size=self.ready.reported_records,
            configuration=self.ready.setup.agreed.digest,
            family=self.ready.plan.family,
        )
        address = f"127.0.0.1:{self.fed.port}"
        self.session = await open_session(address, self.ready.credentials, introduction)
        return self

    async def turn(self, within_s=60.0):
        async with asyncio.timeout(within_s):
            return await self.session.wait_for_posterior()

    async def answer(self, turn):
        request = Request(
            turn.request, self.name, turn.visit, turn.version, turn.posterior, turn.factor,
            turn.damping, turn.initial,
        )  # fmt: skip
        reply = self.seat.answer(request)
        await self.session.send_delta(turn, reply.released, reply.loss)


@contextlib.asynccontextmanager
async def running(fed, *names, within_s=180.0, setup=None):
    """A server and these parties; whatever still runs at the end is cancelled."""
    tasks = {}
    try:
        async with asyncio.timeout(within_s):
            tasks["server"] = await started(fed, setup)
            for name in names:
                tasks[name] = asyncio.create_task(join(fed.party(name)))
            yield tasks
    finally:
        await ended(*tasks.values())


def events(fed, event, **fields):
    wanted = {"event": event, **fields}
    return [line for line in fed.journal() if wanted.items() <= line.items()]


def assert_undisturbed(fed, parties=NAMES):
    outcome = carry_out(fed.alone())
    assert_same_bits(fed.natural(), outcome.state.result)
    for name in parties:
        assert_same_bits(fed.natural(f"state-{name}"), outcome.state.result)


# Late.


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_a_late_party_is_passed_over_and_taken_back(tmp_path, kind):
    rounds = 150 if kind == "sequential" else 250
    fed = federation(tmp_path, kind, rounds, serve={"deadline_s": PATIENCE_S}, quorum=2)

    async def main():
        async with running(fed, "a", "b") as tasks:
            late = await ByHand(fed, "c").connect()
            turn = await late.turn()
            await until(lambda: events(fed, "skipped", party="c"))
            await late.answer(turn)
            await until(lambda: events(fed, "ignored", party="c", id=turn.request))
            await late.session.close()
            tasks["c"] = asyncio.create_task(join(fed.party("c")))
            await until(lambda: events(fed, "rejoined", party="c"))
            results = await asyncio.gather(*tasks.values())
            return turn, results

    turn, results = asyncio.run(main())
    state = fed.state()
    assert results[0].finished == "rounds"
    assert turn.request == events(fed, "skipped")[0]["id"]
    assert 1 < state.factors["c"].visits < rounds
    assert state.factors["c"].version == state.factors["c"].visits - 1, "one answer was ignored"
    assert state.factors["a"].visits == rounds
    assert state.absent == set()
    fed.assert_identity()
    # The exact posterior does not mind who came late.
    alone = carry_out(fed.alone()).posterior
    np.testing.assert_allclose(results[0].posterior.mean, alone.mean, rtol=1e-9)


def test_who_is_slow_but_here_is_asked_again(tmp_path):
    """It has not hung up: its late answer says that it is back."""
    fed = federation(tmp_path, rounds=200, serve={"deadline_s": PATIENCE_S}, quorum=2)

    async def main():
        async with running(fed, "a", "b"):
            late = await ByHand(fed, "c").connect()
            first = await late.turn()
            await until(lambda: events(fed, "skipped", party="c"))
            await late.answer(first)
            second = await late.turn()
            await late.session.close()
            return first, second

    first, second = asyncio.run(main())
    assert second is not None, "the run ended without having asked it again"
    assert second.request != first.request
    assert second.round > first.round


def test_a_run_finishes_without_who_never_answers(tmp_path):
    patience = {"deadline_s": PATIENCE_S, "keep_result_for": f"{PATIENCE_S}s"}
    fed = federation(tmp_path, serve=patience, quorum=2)

    async def main():
        async with running(fed, "a", "b") as tasks:
            silent = await ByHand(fed, "c").connect()
            results = await asyncio.gather(*tasks.values())
            await silent.session.close()
            return results

    results = asyncio.run(main())
    state = fed.state()
    assert (results[0].finished, state.round) == ("rounds", 6)
    assert len(events(fed, "skipped", party="c")) == 1
    assert state.absent == {"c"}
    assert [state.factors[name].version for name in NAMES] == [6, 6, 0]
    fed.assert_identity()


def test_without_a_quorum_the_server_waits(tmp_path):
    fed = federation(tmp_path, serve={"deadline_s": PATIENCE_S})

    async def main():
        async with running(fed, "a", "b") as tasks:
            silent = await ByHand(fed, "c").connect()
            await silent.turn()
            await until(lambda: events(fed, "waiting"))
            await asyncio.sleep(PATIENCE_S + 0.5)
            assert not events(fed, "round")
            assert not events(fed, "skipped")
            await silent.session.close()
            tasks["c"] = asyncio.create_task(join(fed.party("c")))
            await asyncio.gather(*tasks.values())

    asyncio.run(main())
    assert len(events(fed, "waiting")) == 1, "said once"
    assert_undisturbed(fed)


def test_below_the_quorum_the_server_waits(tmp_path):
    fed = federation(tmp_path, serve={"deadline_s": 0.2}, quorum=3)

    async def main():
        async with running(fed, "a", "b") as tasks:
            silent = await ByHand(fed, "c").connect()
            turn = await silent.turn()
            await asyncio.sleep(0.8)
            assert not events(fed, "round")
            await silent.answer(turn)
            await until(lambda: events(fed, "round"))
            await silent.session.close()
            tasks["c"] = asyncio.create_task(join(fed.party("c")))
            await asyncio.gather(*tasks.values())

    asyncio.run(main())
    assert_undisturbed(fed)


def test_a_quorum_that_no_round_can_have_is_refused(tmp_path):
    schedule = {"kind": "synchronous", "rounds": 2, "parties_per_round": 1}
    with pytest.raises(ConfigError, match="parties_per_round = 1"):
        federation(tmp_path, quorum=2, schedule=schedule)


# The start.


def test_it_starts_with_so_many_and_others_come_later(tmp_path):
    """Nobody is left out: without a quorum the first round waits for them."""
    fed = federation(tmp_path, serve={"start": {"parties": 2}})

    async def main():
        async with running(fed, "a") as tasks:
            await until(lambda: events(fed, "joined", party="a"))
            await asyncio.sleep(0.4)
            assert not events(fed, "begin")
            tasks["b"] = asyncio.create_task(join(fed.party("b")))
            await until(lambda: events(fed, "begin", parties=2))
            tasks["c"] = asyncio.create_task(join(fed.party("c")))
            await asyncio.gather(*tasks.values())

    asyncio.run(main())
    assert_undisturbed(fed)


def test_with_a_quorum_it_goes_on_before_the_others_come(tmp_path):
    start = {"start": {"parties": 2}, "deadline_s": 30.0}
    fed = federation(tmp_path, rounds=200, serve=start, quorum=2)

    async def main():
        async with running(fed, "a", "b") as tasks:
            await until(lambda: len(events(fed, "round")) >= 2)
            tasks["c"] = asyncio.create_task(join(fed.party("c")))
            return await asyncio.gather(*tasks.values())

    asyncio.run(main())
    state = fed.state()
    assert 0 < state.factors["c"].version < 200
    fed.assert_identity()


def test_it_starts_at_a_time(tmp_path):
    at = datetime.now(UTC) + timedelta(seconds=PATIENCE_S)
    fed = federation(tmp_path, serve={"start": {"at": at}})

    async def main():
        async with running(fed, *NAMES) as tasks:
            await until(lambda: len(events(fed, "joined")) == 3)
            assert not events(fed, "begin") or datetime.now(UTC) >= at
            await asyncio.gather(*tasks.values())

    asyncio.run(main())
    assert datetime.fromisoformat(events(fed, "begin")[0]["time"]) >= at
    assert_undisturbed(fed)


def test_it_starts_on_command(tmp_path):
    fed = federation(tmp_path, serve={"start": {"command": True}})

    async def main():
        async with running(fed, *NAMES) as tasks:
            await until(lambda: len(events(fed, "joined")) == 3)
            await asyncio.sleep(0.6)
            assert not events(fed, "begin")
            give_command(fed.base / "server", "start")
            await asyncio.gather(*tasks.values())

    asyncio.run(main())
    assert_undisturbed(fed)
    with pytest.raises(ConfigError, match="is not a server's state directory"):
        give_command(fed.base / "nowhere", "start")


# Leaving.


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_who_leaves_for_a_while_is_waited_for(tmp_path, kind):
    fed = federation(tmp_path, kind)

    async def main():
        async with running(fed, "a", "b") as tasks:
            away = await ByHand(fed, "c").connect()
            await away.turn()
            await away.session.leave("lunch", 3.0)
            await asyncio.sleep(0.5)
            assert len(events(fed, "round")) == 0
            tasks["c"] = asyncio.create_task(join(fed.party("c")))
            await asyncio.gather(*tasks.values())

    asyncio.run(main())
    parted = events(fed, "parted", party="c")[0]
    assert (parted["reason"], parted["back_in_s"]) == ("lunch", 3.0)
    assert_undisturbed(fed)


@pytest.mark.parametrize("on_leave", ["keep", "divide-out"])
@pytest.mark.parametrize("kind", ["sequential", "synchronous", "asynchronous"])
def test_who_leaves_for_good(tmp_path, kind, on_leave):
    fed = federation(tmp_path, kind, rounds=12, on_leave=on_leave)

    async def main():
        async with running(fed, "a", "b") as tasks:
            going = await ByHand(fed, "c").connect()
            await going.answer(await going.turn())
            await going.turn()
            await going.session.leave("enough")
            with pytest.raises(RejectedError, match="has left this run permanently") as refused:
                await ByHand(fed, "c").connect()
            assert not refused.value.fixable
            return await asyncio.gather(*tasks.values())

    results = asyncio.run(main())
    state = fed.state()
    assert state.left == {"c"}
    assert state.factors["c"].visits == 2
    fed.assert_identity()
    left = events(fed, "left", party="c")[0]
    assert left["factor"] == ("kept" if on_leave == "keep" else "divided out")
    # Every factor is exact: what is kept tells of c's records, what is divided out of none.
    plan = fed.alone()
    records = dict(plan.parties)
    if on_leave == "divide-out":
        del records["c"]
    pooled = np.concatenate([one["y"] for one in records.values()])
    precision = 1.0 + len(pooled)
    np.testing.assert_allclose(results[0].posterior.mean, [pooled.sum() / precision])
    np.testing.assert_allclose(results[0].posterior.sd, [precision**-0.5])


def test_everybody_leaves(tmp_path):
    fed = federation(tmp_path, serve={"keep_result_for": "0.5s"})

    async def main():
        async with running(fed) as tasks:
            going = [await ByHand(fed, name).connect() for name in NAMES]
            await asyncio.gather(*(one.turn() for one in going))
            for one in going:
                await one.session.leave("enough")
            return await tasks["server"]

    result = asyncio.run(main())
    assert result.finished == "all parties left"
    assert result.exchanges == 0


# The server closes.


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_a_planned_close_changes_no_bit(tmp_path, kind):
    fed = federation(tmp_path, kind, rounds=40)

    async def main():
        async with running(fed, *NAMES) as tasks:
            for at in (3, 10):
                await until(lambda at=at: len(events(fed, "round")) >= at)
                body = {"reason": "new kernel", "return_in_s": 0.4}
                give_command(fed.base / "server", "close", body)
                assert await tasks["server"] is None, "closed, not finished"
                status = json.loads((fed.base / "server" / "status.json").read_text())
                assert status["running"] is False
                assert status["phase"] == "training"
                fed.assert_identity()
                tasks["server"] = await started(fed)
            return await asyncio.gather(*tasks.values())

    results = asyncio.run(main())
    assert results[0].exchanges == 120
    assert_undisturbed(fed)
    for name in NAMES:
        told = [line for line in fed.journal(f"state-{name}") if line["event"] == "server closes"]
        assert [line["back"] for line in told] == [0.4, 0.4]
        assert "new kernel" in told[0]["reason"]


def test_a_close_for_good_ends_the_parties(tmp_path):
    fed = federation(tmp_path, rounds=2000)

    async def main():
        async with running(fed, *NAMES) as tasks:
            await until(lambda: events(fed, "round"))
            give_command(fed.base / "server", "close", {"reason": "the end", "return_in_s": None})
            return await asyncio.gather(*tasks.values(), return_exceptions=True)

    server, *parties = asyncio.run(main())
    assert server is None
    for error in parties:
        assert isinstance(error, PeerError)
        assert "the end" in str(error)


# The end.


def test_the_result_is_held_for_who_is_away(tmp_path):
    fed = federation(tmp_path, rounds=2, serve={"keep_result_for": "30.0s"})

    async def main():
        async with running(fed, "a", "b") as tasks:
            away = await ByHand(fed, "c").connect()
            await away.answer(await away.turn())
            last = await away.turn()
            await away.answer(last)
            away.session._writer.transport.abort()
            await until(lambda: len(events(fed, "round")) == 2)
            await asyncio.gather(tasks["a"], tasks["b"])
            await asyncio.sleep(0.4)
            assert not tasks["server"].done(), "it waits for c"
            tasks["c"] = asyncio.create_task(join(fed.party("c")))
            async with asyncio.timeout(60):
                await asyncio.gather(*tasks.values())

    asyncio.run(main())
    assert_undisturbed(fed)


@pytest.mark.parametrize("slow", [True, False])
def test_the_result_arrives_even_if_its_verdict_is_slow_or_fails(tmp_path, monkeypatch, slow):
    """The verdict takes longer than the result is held, or cannot be computed."""
    found = serve_module._verdict

    def late(*arguments):
        if not slow:
            raise ArithmeticError("no verdict")
        time.sleep(1.5)
        return found(*arguments)

    monkeypatch.setattr(serve_module, "_verdict", late)
    fed = federation(tmp_path, rounds=2, serve={"keep_result_for": "0.5s"})

    async def main():
        async with running(fed, *NAMES) as tasks, asyncio.timeout(60):
            return await asyncio.gather(*(tasks[name] for name in NAMES))

    for end in asyncio.run(main()):
        assert end.result.converged is (True if slow else None)


def test_the_result_is_not_held_for_ever(tmp_path):
    fed = federation(tmp_path, rounds=1, serve={"keep_result_for": f"{PATIENCE_S}s"})

    async def main():
        async with running(fed, "a", "b") as tasks:
            away = await ByHand(fed, "c").connect()
            await away.answer(await away.turn())
            away.session._writer.transport.abort()
            async with asyncio.timeout(60):
                await asyncio.gather(*tasks.values())
        # A server that is started again still has it.
        async with running(fed, "c") as tasks:
            await asyncio.gather(*tasks.values())

    asyncio.run(main())
    assert_undisturbed(fed)


# Watched.

SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"\})? '
    r"([+-]?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|Inf)|NaN)"
)


def parse_metrics(text):
    """Prometheus text, strictly: a TYPE before its samples, which stand together, none twice."""
    kinds, samples, current = {}, {}, None
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert kind in ("gauge", "counter")
            assert current not in kinds
            assert (kind == "counter") == current.endswith("_total")
            kinds[current] = kind
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        assert found[1] == current
        assert (found[1], found[2]) not in samples
        samples[found[1], found[2]] = float(found[3])
    return samples


async def get(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    raw = await reader.read()
    writer.close()
    head, _, body = raw.decode().partition("\r\n\r\n")
    return head, body


def test_metrics_status_and_journal(tmp_path):
    port = free_port()
    fed = federation(tmp_path, rounds=3, serve={"metrics": f"127.0.0.1:{port}"})

    async def main():
        async with running(fed, "a", "b") as tasks:
            by_hand = await ByHand(fed, "c").connect()
            await by_hand.answer(await by_hand.turn())
            await by_hand.turn()
            await until(lambda: events(fed, "round"))
            head, body = await get(port, "/metrics")
            wrong = await get(port, "/")
            path = fed.base / "server" / "status.json"
            await until(lambda: json.loads(path.read_text())["parties"]["c"]["asked"])
            await until(lambda: json.loads(path.read_text())["round"] == 1)
            status = json.loads(path.read_text())
            await by_hand.session.close()
            tasks["c"] = asyncio.create_task(join(fed.party("c")))
            await asyncio.gather(*tasks.values())
            return head, body, wrong, status

    head, body, wrong, status = asyncio.run(main())
    assert head.startswith("HTTP/1.1 200 OK")
    assert "text/plain; version=0.0.4" in head
    assert wrong[0].startswith("HTTP/1.1 404")
    samples = parse_metrics(body)
    assert samples["tacit_round", None] == 1
    assert samples["tacit_exchanges_total", None] == 3
    assert samples["tacit_finished", None] == 0
    assert samples["tacit_party_connected", '{party="c"}'] == 1
    assert samples["tacit_resident_bytes", None] > 1e7
    assert samples["tacit_party_bytes_in", '{party="a"}'] > 100
    assert events(fed, "metrics")[0]["address"] == f"127.0.0.1:{port}"

    assert (status["phase"], status["running"], status["port"]) == ("training", True, fed.port)
    assert (status["round"], status["rounds"]) == (1, 3)
    assert set(status["parties"]) == set(NAMES)
    assert status["parties"]["c"]["asked"] is True
    assert status["configuration"] == read_agreed(fed.base / "federation.toml").digest
    final = json.loads((fed.base / "server" / "status.json").read_text())
    assert (final["phase"], final["running"]) == ("rounds", False)

    for place in ("server", "state-a", "state-c"):
        lines = fed.journal(place)
        assert lines
        for line in lines:
            assert isinstance(line["event"], str)
            assert datetime.fromisoformat(line["time"]).tzinfo is not None
    rounds = [line["round"] for line in events(fed, "round")]
    assert rounds == [1, 2, 3]
    assert_undisturbed(fed)


def test_large_counts_are_not_rounded(tmp_path):
    """A counter with six digits would stand still, and then jump."""
    fed = federation(tmp_path)
    asyncio.run(run_all(fed))
    plan = server_plan(fed.server.agreed)
    live = LiveRun(
        fed.base / "server", plan.rules, first_factors(plan), fed.server.agreed.digest,
        private=False,
    )  # fmt: skip
    watched: Any = SimpleNamespace(
        live=live,
        connections={},
        journal=SimpleNamespace(refusals={"tls": 7}),
        traffic=lambda name: (123_456_789, 1) if name == "a" else (0, 0),
    )
    try:
        samples = parse_metrics(metrics_text(watched))
    finally:
        live.close()
    assert samples["tacit_party_bytes_in", '{party="a"}'] == 123_456_789
    assert samples["tacit_turned_away_total", '{kind="tls"}'] == 7


def test_metrics_that_cannot_be_served_are_an_error_at_the_start(tmp_path):
    fed = federation(tmp_path)
    taken = fed.write_server(metrics=f"127.0.0.1:{fed.port}")
    with pytest.raises(ConfigError, match=r"serve\.metrics"):
        asyncio.run(serve(taken))
