"""Killed, cut off, handed over: a live run ends with the posterior that it would have had.

TACIT_WIRE_KILLS=100 kills servers and parties that often; TACIT_WIRE_PULL_S=30 is how long the
network stays away. The defaults are small.
"""

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import time
from dataclasses import replace

import pytest
from wire_harness import (
    BINARY,
    NUMBERS,
    Fed,
    Worker,
    assert_identity,
    assert_same_bits,
    ended,
    free_port,
    run_all,
    started,
    until,
)

from tacit.engines.execute import carry_out
from tacit.errors import PeerError
from tacit.live.join import approve, finished_run, join, prepare_party
from tacit.live.plan import server_plan
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.verify import audit
from tacit.server.state import initial_state
from tacit.server.step import begin

KILLS = int(os.environ.get("TACIT_WIRE_KILLS", "6"))
PULL_S = float(os.environ.get("TACIT_WIRE_PULL_S", "2"))
NAMES = ("a", "b", "c")
EXACT = {
    "privacy": "none",
    **NUMBERS,
    "model": {"kind": "normal-mean"},
    "method": {"kind": "exact"},
}
LOGISTIC = {
    "privacy": "none",
    **BINARY,
    "model": {"kind": "logistic"},
    "method": {"kind": "gradient-vi", "steps": 20, "batch_size": 8},
    "posterior": "mean-field",
}
PRIVATE = {
    "privacy": {"noise_multiplier": 40.0, "delta": 1e-4, "insecure_noise_seed": 5},
    **BINARY,
    "records": 72,
    "model": {"kind": "logistic"},
    "method": {"kind": "dp-sgd"},
}
KINDS = {
    "sequential": (LOGISTIC, {"kind": "sequential"}),
    "synchronous": (LOGISTIC, {"kind": "synchronous", "damping": 0.4}),
    "private": (PRIVATE, {"kind": "synchronous"}),
    "asynchronous": (LOGISTIC, {"kind": "asynchronous", "damping": 0.4}),
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    one = Worker(tmp_path_factory.mktemp("worker"))
    yield one
    one.close()


def kills_of(kind):
    """The share of one kind in all that is to be killed."""
    kinds = list(KINDS)
    return KILLS // len(kinds) + (kinds.index(kind) < KILLS % len(kinds))


def assert_paid(fed, name, *, at_the_end):
    """Everything said was charged first, nothing was said in two ways, all within the budget."""
    path = fed.base / f"state-{name}" / "ledger.sqlite"
    report = audit(path)
    assert report.sound, report
    with Ledger(path) as ledger:
        assert ledger.verify().sound
        rows = ledger.entries()
        charges = [(row.run, row.request) for row in rows if row.kind == "charge"]
        replies = [(row.run, row.request) for row in rows if row.kind == "reply"]
        assert len(set(charges)) == len(charges), "one request, one charge"
        assert len(set(replies)) == len(replies), "one request, one reply"
        assert set(replies) <= set(charges)
        assert len({run for run, _ in charges}) <= 1
        for dataset in ledger.datasets():
            spent = ledger.spent(dataset)
            assert spent.epsilon is not None
            assert spent.budget is not None
            assert spent.epsilon <= spent.budget.epsilon
            assert spent.charges == len(charges)
        if at_the_end:
            assert len(replies) == len(charges) == fed.agreed["schedule"]["rounds"]
            cost = prepare_party(fed.party(name)).plan.settled[name].guarantee.epsilon
            assert spent.epsilon == pytest.approx(cost, rel=1e-3), "a crash costs nothing"


def look(fed, before):
    """What a dead server has left: nothing lost since the last time, nothing counted twice."""
    fed.assert_identity()
    state = fed.state()
    if state is None:
        assert before is None
        return None
    if before is not None:
        assert state.exchanges >= before.exchanges
        assert state.round >= before.round
        assert state.factors.keys() == before.factors.keys()
        for name, factor in state.factors.items():
            assert factor.version >= before.factors[name].version
    asked = sum(factor.visits for factor in state.factors.values())
    assert asked == state.requests
    if not state.finished:  # an asynchronous run ends in the middle of what it has asked
        assert asked == state.exchanges + len(state.open)
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_kill_9_of_anybody_at_any_moment_loses_nothing(worker, tmp_path, kind):
    agreed, schedule = KINDS[kind]
    rng = random.Random()
    left, number, hit = kills_of(kind), 0, {"server": 0, "party": 0, "at work": 0}
    while left > 0:  # a run that ends before all kills are used up is followed by another
        number += 1
        rounds = 30 + 25 * min(left, 12)
        schedule = {**schedule, "rounds": rounds, "tolerance": 0.0}
        fed = Fed(
            tmp_path / str(number), NAMES, {**agreed, "schedule": schedule},
            encodings=("msgpack", "cbor", "json"), serve={"keep_result_for": "4.0s"},
        )  # fmt: skip
        fed.approve()
        if kind == "private":  # so that there is one to look at, whenever a party is killed
            for name in NAMES:
                Ledger(fed.base / f"state-{name}" / "ledger.sqlite", create=True).close()
        left -= _disturb(worker, fed, left, rng, hit)
        state = fed.state()
        assert (state.round, state.exchanges) == (rounds, rounds * len(NAMES))
        assert sum(factor.version for factor in state.factors.values()) == state.exchanges
        fed.assert_identity()
        if kind != "asynchronous":  # where the order of answers is anybody's
            outcome = carry_out(fed.alone())
            assert_same_bits(state.result, outcome.state.result)
            for name in NAMES:
                factor = outcome.state.factors[name]
                assert state.factors[name].version == factor.version == rounds
                assert_same_bits(state.factors[name].natural, factor.natural)
        assert_same_bits(fed.natural(), state.result)
        for name in NAMES:
            assert_same_bits(fed.natural(f"state-{name}"), state.result)
            if kind == "private":
                assert_paid(fed, name, at_the_end=True)
        events = fed.base / "server" / "public" / "events.jsonl"
        lines = [line for line in events.read_text().splitlines() if '"event":"round"' in line
                 or '"event": "round"' in line]  # fmt: skip
        assert len(lines) == rounds
    print(f"{kind}: {hit}, {number} runs", flush=True)


def _disturb(worker, fed, kills, rng, hit):
    """Run it; kill until `kills` are used up or it ends; how many hit a run that was under way."""
    server = worker.serve(fed)
    parties = {name: worker.join(fed, name) for name in NAMES}
    used, before, done = 0, None, 0
    while used < kills and not (fed.base / "server" / "public" / "result.json").exists():
        if rng.random() < 0.7:  # in the middle of it
            done = rounds_of(fed)
            wait_for(lambda done=done: rounds_of(fed) > done, 120)
            hit["at work"] += 1
            time.sleep(rng.uniform(0.0, 0.1))
        else:  # whatever it does: starting, waiting, coming back
            time.sleep(rng.uniform(0.0, 1.0))
        if rng.random() < 0.45:
            worker.kill(server)
            if not (fed.base / "server" / "server.sqlite").exists():
                assert before is None  # killed before it had begun
            else:
                before = look(fed, before)
            over = (fed.base / "server" / "public" / "result.json").exists()
            server = worker.serve(fed)
            hit["server"] += not over
        else:
            name = rng.choice(NAMES)
            over = (fed.base / f"state-{name}" / "public" / "result.json").exists()
            worker.kill(parties[name])
            if fed.agreed["privacy"] != "none":
                assert_paid(fed, name, at_the_end=False)
            parties[name] = worker.join(fed, name)
            hit["party"] += not over
        used += not over
    for name, pid in parties.items():
        assert worker.ended(pid, 90) == 0, (name, worker.errors())
    assert worker.ended(server, 30) == 0, worker.errors()
    return used


# The network goes away.


class Relay:
    """A TCP relay in front of the server, that can stop forwarding, and cut everybody off."""

    def __init__(self, to):
        self.to, self.port = to, free_port()
        self.open = asyncio.Event()
        self.open.set()
        self.writers = set()
        self.tasks = set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.reset()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        await self.open.wait()
        try:
            other, towards = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        self.writers |= {writer, towards}
        await asyncio.gather(self._pump(reader, towards), self._pump(other, writer))

    async def _pump(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while body := await reader.read(1 << 16):
                await self.open.wait()
                writer.write(body)
                await writer.drain()
        writer.close()

    def reset(self):
        """RST instead of FIN, and whatever was held back is lost."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
@pytest.mark.usefixtures("shared_models")
def test_the_network_goes_away_and_comes_back(tmp_path, kind):
    rounds = 60
    schedule = {"kind": kind, "rounds": rounds, "tolerance": 0.0}
    fed = Fed(tmp_path / "fed", NAMES, {**EXACT, "schedule": schedule})
    fed.approve()

    async def main():
        async with Relay(fed.port) as relay:
            for name in NAMES:
                fed.write_party(name, servers=[f"127.0.0.1:{relay.port}"])
            server = await started(fed)
            parties = [asyncio.create_task(join(fed.party(name))) for name in NAMES]
            try:
                async with asyncio.timeout(60 + 3 * PULL_S):
                    await until(lambda: rounds_of(fed) >= 4)
                    relay.open.clear()
                    await asyncio.sleep(PULL_S / 2)
                    told = rounds_of(fed)
                    relay.reset()
                    await asyncio.sleep(PULL_S / 2)
                    assert rounds_of(fed) <= told + 1 < rounds
                    relay.open.set()
                    return [await server, *await asyncio.gather(*parties)]
            finally:
                await ended(server, *parties)

    results = asyncio.run(main())
    assert_undisturbed(fed, results)
    cut = [line for name in NAMES for line in fed.journal(f"state-{name}")
           if line["event"] == "cut off"]  # fmt: skip
    assert len(cut) >= 2
    back = [line["party"] for line in fed.journal() if line["event"] == "rejoined"]
    assert set(back) == set(NAMES)


def rounds_of(fed):
    return sum(line["event"] == "round" for line in fed.journal())


def assert_undisturbed(fed, results):
    outcome = carry_out(fed.alone())
    assert_same_bits(fed.natural(), outcome.state.result)
    assert results[0].exchanges == outcome.state.exchanges
    for name, result in zip(fed.names, results[1:], strict=True):
        assert_same_bits(fed.natural(f"state-{name}"), outcome.state.result)
        assert result.evaluation.answers == outcome.state.factors[name].visits


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture
def namespaces():
    """Two network namespaces with a cable between them: 10.213.7.1 and 10.213.7.2."""
    one, two = f"tacit-{os.getpid()}-s", f"tacit-{os.getpid()}-p"
    try:
        tried = ip("netns", "add", one, check=False)
    except OSError as error:
        pytest.skip(f"no ip command: {error}")
    if tried.returncode:
        pytest.skip(f"network namespaces cannot be made here: {tried.stderr.strip()}")
    try:
        ip("netns", "add", two)
        made = ip("link", "add", "tw0", "netns", one, "type", "veth", "peer", "name", "tw1",
                  "netns", two, check=False)  # fmt: skip
        if made.returncode:
            pytest.skip(f"a veth pair cannot be made here: {made.stderr.strip()}")
        for space, device, address in ((one, "tw0", 1), (two, "tw1", 2)):
            ip("-n", space, "addr", "add", f"10.213.7.{address}/24", "dev", device)
            ip("-n", space, "link", "set", device, "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield one, two
    finally:
        for space in (one, two):
            ip("netns", "del", space, check=False)


def test_the_cable_is_pulled_and_put_back(worker, tmp_path, namespaces):
    """No reset, no word: packets are simply gone until the link is up again."""
    one, two = namespaces
    rounds = 80
    agreed, schedule = KINDS["synchronous"]
    fed = Fed(
        tmp_path / "fed", NAMES,
        {**agreed, "schedule": {**schedule, "rounds": rounds, "tolerance": 0.0}},
        serve={"listen": "10.213.7.1:7443"}, join={"servers": ["10.213.7.1:7443"]},
        hosts=("127.0.0.1", "10.213.7.1"),
    )  # fmt: skip
    fed.approve()
    server = worker.serve(fed, namespace=one)
    parties = {name: worker.join(fed, name, namespace=two) for name in NAMES}
    wait_for(lambda: rounds_of(fed) >= 5)
    ip("-n", two, "link", "set", "tw1", "down")
    time.sleep(PULL_S)
    stood = rounds_of(fed)
    time.sleep(0.3)
    assert rounds_of(fed) == stood < rounds
    ip("-n", two, "link", "set", "tw1", "up")
    back = time.monotonic()
    wait_for(lambda: rounds_of(fed) > stood, within_s=60 + 2 * PULL_S)
    print(f"link down {PULL_S:g} s; the next round {time.monotonic() - back:.1f} s after it was up")
    for pid in (*parties.values(), server):
        assert worker.ended(pid, 90) == 0, worker.errors()
    outcome = carry_out(fed.alone())
    assert_same_bits(fed.natural(), outcome.state.result)
    for name in NAMES:
        assert_same_bits(fed.natural(f"state-{name}"), outcome.state.result)


def wait_for(condition, within_s=90.0):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


# Handed over.


def test_a_standby_takes_over_after_kill_9(worker, tmp_path):
    """Two servers on one state directory, two addresses; a third has a copy of the directory."""
    rounds = 120
    agreed, schedule = KINDS["synchronous"]
    ports = [free_port() for _ in range(3)]
    fed = Fed(
        tmp_path / "fed", NAMES,
        {**agreed, "schedule": {**schedule, "rounds": rounds, "tolerance": 0.0}},
        join={"servers": [f"127.0.0.1:{port}" for port in ports]}, port=ports[0],
    )  # fmt: skip
    fed.approve()
    fed.write_server("second.toml", listen=f"127.0.0.1:{ports[1]}")
    fed.write_server("third.toml", state="copied", listen=f"127.0.0.1:{ports[2]}")
    first = worker.serve(fed)
    parties = {name: worker.join(fed, name) for name in NAMES}
    wait_for(lambda: rounds_of(fed) >= 3)
    second = worker.serve(fed, "second.toml", standby=True)
    refused = worker.serve(fed, "second.toml")
    assert worker.ended(refused, 20) not in (0, None), "one directory, one server"
    assert worker.ended(second, 0.0) is None, "it stands by"
    assert worker.kill(first) == -9
    wait_for(lambda: sum(line["event"] == "listening" for line in fed.journal()) >= 2)
    taken = rounds_of(fed)
    wait_for(lambda: rounds_of(fed) > taken + 2)
    assert worker.kill(second) == -9
    look(fed, None)
    shutil.copytree(fed.base / "server", fed.base / "copied")
    third = worker.serve(fed, "third.toml")
    for pid in (*parties.values(), third):
        assert worker.ended(pid, 60) == 0, worker.errors()
    outcome = carry_out(fed.alone())
    assert_same_bits(fed.natural("copied"), outcome.state.result)
    assert fed.state("copied").exchanges == rounds * len(NAMES)
    for name in NAMES:
        assert_same_bits(fed.natural(f"state-{name}"), outcome.state.result)


def move(fed, *, at_work):
    """Copy the state directory of a party that runs, and run it elsewhere; the results."""

    async def main():
        server = await started(fed)
        parties = {name: asyncio.create_task(join(fed.party(name))) for name in NAMES[:2]}
        moved = None
        try:
            async with asyncio.timeout(60):
                await until(lambda: joined(fed) >= {"a", "b"})
                if at_work:
                    parties["c"] = asyncio.create_task(join(fed.party("c")))
                    await until(lambda: rounds_of(fed) >= 3)
                # A file that is being written has no name of its own yet, and may be gone.
                half = shutil.ignore_patterns("*.part")
                shutil.copytree(fed.base / "state-a", fed.base / "moved", ignore=half)
                elsewhere = fed.write_party("a", "moved.toml", state="moved")
                moved = asyncio.create_task(join(elsewhere))
                with pytest.raises(PeerError, match="another connection of this party"):
                    await parties.pop("a")
                if not at_work:
                    parties["c"] = asyncio.create_task(join(fed.party("c")))
                return [await server, await moved, *await asyncio.gather(*parties.values())]
        finally:
            await ended(server, *parties.values(), *([moved] if moved else []))

    results = asyncio.run(main())
    outcome = carry_out(fed.alone())
    assert results[0].exchanges == outcome.state.exchanges
    for place in ("server", "moved", "state-b", "state-c"):
        assert_same_bits(fed.natural(place), outcome.state.result)
    assert [line["event"] for line in fed.journal()].count("replaced") == 1


def joined(fed):
    return {line["party"] for line in fed.journal() if line["event"] == "joined"}


@pytest.mark.usefixtures("shared_models")
@pytest.mark.parametrize(
    "at_work",
    [
        False,
        True,
    ],
    ids=["waiting", "at work"],
)
def test_a_party_moves_to_another_machine(tmp_path, at_work):
    """The older connection is told to go, and its process ends."""
    schedule = {"kind": "synchronous", "rounds": 200, "tolerance": 0.0}
    fed = Fed(tmp_path / "fed", NAMES, {**EXACT, "schedule": schedule})
    fed.approve()
    move(fed, at_work=at_work)


@pytest.mark.usefixtures("shared_models")
def test_a_result_that_was_heard_survives_the_party(tmp_path):
    """Killed after it heard the result and before it wrote result.json; the server is gone."""
    schedule = {"kind": "synchronous", "rounds": 2}
    fed = Fed(tmp_path / "fed", NAMES, {**EXACT, "schedule": schedule})
    fed.approve()
    asyncio.run(run_all(fed))
    before = fed.natural("state-a")
    for file in ("result.json", "posterior.npz"):
        (fed.base / "state-a" / "public" / file).unlink()
    asyncio.run(asyncio.wait_for(join(fed.party("a")), 60))
    assert_same_bits(fed.natural("state-a"), before)
    assert (fed.base / "state-a" / "public" / "result.json").exists()
    # A new approval is for a new run: nothing of the last one is said again.
    approve(fed.party("a"))
    fed.write_party("a", retry_for="0.5s")
    with pytest.raises(PeerError, match="none of the servers"):
        asyncio.run(join(fed.party("a")))


@pytest.mark.usefixtures("shared_models")
def test_a_party_that_has_the_result_dials_nobody(tmp_path):
    """The server may be gone: nothing is sent, and nothing is written either."""
    fed = Fed(tmp_path / "fed", NAMES, {**EXACT, "schedule": {"rounds": 2}})
    fed.approve()
    results = dict(zip(("server", *NAMES), asyncio.run(run_all(fed)), strict=True))
    fed.write_party("a", retry_for="0.5s")
    lines = len(fed.journal("state-a"))
    found = finished_run(fed.party("a"))
    assert found is not None
    assert found.posterior == fed.base / "state-a" / "public" / "posterior.npz"
    again = asyncio.run(asyncio.wait_for(join(fed.party("a")), 60))
    assert again == results["a"]
    assert len(fed.journal("state-a")) == lines
    # What another file has led to is no result of this one.
    fed.agreed["seed"] = 4
    fed.__post_init__()
    assert finished_run(fed.party("a")) is None


@pytest.mark.usefixtures("shared_models")
def test_a_finished_server_that_is_started_again_hands_out_the_result(tmp_path):
    """To a party that had it and has lost its state since."""
    fed = Fed(tmp_path / "fed", NAMES, {**EXACT, "schedule": {"rounds": 2}})
    fed.approve()
    asyncio.run(run_all(fed))
    before = fed.natural("state-a")
    shutil.rmtree(fed.base / "state-a")
    approve(fed.party("a"))
    fed.write_server(keep_result_for="3.0s")

    async def main():
        server = await started(fed)
        try:
            await asyncio.sleep(1.0)
            await asyncio.wait_for(join(fed.party("a")), 60)
            return await asyncio.wait_for(server, 60)
        finally:
            await ended(server)

    assert asyncio.run(main()).finished == "rounds"
    assert_same_bits(fed.natural("state-a"), before)


def test_the_wrong_resumption_would_be_noticed(tmp_path):
    """Power: an update that was lost from q, or counted twice, is seen."""
    schedule = {"kind": "synchronous", "rounds": 3, "tolerance": 0.0}
    fed = Fed(tmp_path / "fed", NAMES, {**EXACT, "schedule": schedule})
    plan = server_plan(fed.server.agreed)
    state = begin(plan.rules, initial_state(plan.rules))
    assert_identity(plan, state)
    wrong = {name: value * (1 + 1e-6) for name, value in state.q.items()}
    with pytest.raises(AssertionError):
        assert_identity(plan, replace(state, q=wrong))
