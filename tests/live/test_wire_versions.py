"""A party is added to a running federation: proposed, approved by everyone, then it counts."""

import asyncio
import threading
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import tomlkit
from wire_harness import BINARY, NUMBERS, Fed, Worker, ended, started, until

from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.live.approval import approved_versions
from tacit.live.config import read_agreed
from tacit.live.join import approve, join, prepare_party
from tacit.live.plan import server_plan
from tacit.live.protocol.messages import PROTOCOL, JoinCluster
from tacit.live.serve import serve
from tacit.live.server.live_run import LiveRun, RefusedError
from tacit.live.server.status import give_command
from tacit.live.session import ClosedError, Introduction, RejectedError, open_session, send_approval
from tacit.live.versions import Proposal, check_same_terms, check_successor
from tacit.party.agent import conclude
from tacit.party.compute import SinglePartyComputer
from tacit.plan.plan import first_factors
from tacit.privacy.ledger.ledger import Ledger
from tacit.server.messages import Request

pytestmark = pytest.mark.usefixtures("shared_models")
EXACT = {
    "privacy": "none",
    **NUMBERS,
    "model": {"kind": "normal-mean"},
    "method": {"kind": "exact"},
}
PRIVATE = {
    "privacy": {"noise_multiplier": 40.0, "delta": 1e-4, "insecure_noise_seed": 5},
    **BINARY,
    "records": 72,
    "model": {"kind": "logistic"},
    "method": {"kind": "dp-sgd"},
}


def federation(tmp_path, agreed, rounds, **options):
    """Two parties take part; the files of a third are there, too."""
    schedule = {"kind": "synchronous", "rounds": rounds, "tolerance": 0.0, "damping": 1.0}
    body = {**agreed, "parties": ["a", "b"], "schedule": schedule}
    fed = Fed(tmp_path / "fed", ("a", "b", "c"), body, **options)
    for name in ("a", "b"):
        approve(fed.party(name))
    return fed


def add_c(fed, **changes):
    """Version 2 of the agreed file, in place of the first."""
    path = fed.base / "federation.toml"
    body = tomlkit.parse(path.read_text()).unwrap()
    path.write_text(tomlkit.dumps({"version": 2, **body, "parties": ["a", "b", "c"], **changes}))
    return read_agreed(path)


def lines(fed, event, place="server", **fields):
    wanted = {"event": event, **fields}
    return [line for line in fed.journal(place) if wanted.items() <= line.items()]


def exact_posterior(fed, *names):
    """Closed form for the mean of a normal with sd 1."""
    plan = server_plan(fed.server.agreed)
    records = [float(y) for n in names for y in (fed.base / f"{n}.csv").read_text().split()[1:]]
    prior = plan.prior
    return {
        "linear": prior["linear"] + sum(records),
        "quadratic": prior["quadratic"] - 0.5 * len(records),
    }


class ByHand:
    """Party b, which answers when the test says so: no round ends without it."""

    def __init__(self, fed, digest):
        self.ready = prepare_party(fed.party("b"))
        self.computer = SinglePartyComputer(
            self.ready.plan.agreement, "b", self.ready.plan.parties["b"], None, lambda *_: None
        )
        self.address, self.digest = f"127.0.0.1:{fed.port}", digest

    def introduction(self, digest=None):
        return Introduction(configuration=digest or self.digest, family=self.ready.plan.family)

    async def connect(self, *, rejoin=False):
        for _ in range(600):
            try:
                self.session = await open_session(
                    self.address, self.ready.credentials, self.introduction(), rejoin=rejoin
                )
                return self.session
            except OSError:
                pass
            except Exception as error:
                if "cannot be reached" not in str(error):
                    raise
            await asyncio.sleep(0.1)
        raise AssertionError("no server")

    async def turn(self):
        async with asyncio.timeout(60):
            return await self.session.wait_for_posterior()

    async def answer(self, turn):
        request = Request(
            turn.request, "b", turn.visit, turn.version, turn.posterior, turn.factor,
            turn.damping, turn.initial,
        )  # fmt: skip
        found = self.computer.compute([request], {})[request.id]
        reply = conclude(request, found)
        await self.session.send_delta(turn, reply.released, reply.loss)

    async def approve(self, digest):
        with pytest.raises(RejectedError) as caught:
            await send_approval(self.address, self.ready.credentials, self.introduction(digest))
        return caught.value


def test_a_party_joins_at_round_5_and_kills_of_the_server_lose_nothing(tmp_path):
    """Killed between approval and joining, and again once the version counts."""
    rounds = 9
    fed = federation(tmp_path, EXACT, rounds)
    standby = fed.server
    first = standby.agreed.digest
    worker = Worker(tmp_path)

    async def main():
        pid = worker.serve(fed)
        b = ByHand(fed, first)
        await until(lambda: lines(fed, "listening"))
        tasks = [asyncio.create_task(join(fed.party("a")))]
        await b.connect()
        for number in range(1, 5):
            turn = await b.turn()
            assert turn.round == number
            await b.answer(turn)
        turn = await b.turn()
        assert turn.round == 5
        second = add_c(fed)
        give_command(fed.server.state, "propose")
        await until(lambda: lines(fed, "proposed"))
        assert lines(fed, "proposed")[0]["waits_for"] == ["a", "b", "c"]
        approve(fed.party("a"))  # while it takes part
        await until(lambda: lines(fed, "approved", party="a"))
        worker.kill(pid)
        pid = worker.serve(fed)
        await until(lambda: len(lines(fed, "listening")) == 2)
        assert lines(fed, "proposed")[-1]["waits_for"] == ["b", "c"]
        approve(fed.party("c"))
        tasks.append(asyncio.create_task(join(fed.party("c"))))
        await until(lambda: lines(fed, "waiting", "state-c"))
        await b.connect(rejoin=True)
        assert b.session.configuration == first, "the old version counts until all have approved"
        same = await b.turn()
        assert same.request == turn.request
        refused = await b.approve(second.digest)
        assert refused.code == "version"
        with pytest.raises(ClosedError) as closed:
            await b.turn()
        assert closed.value.return_in_s == 0
        worker.kill(pid)
        pid = worker.serve(fed)
        b.digest = second.digest
        await b.connect(rejoin=True)
        assert b.session.configuration == second.digest
        assert b.session.parties == 3
        same = await b.turn()
        assert (same.request, same.round) == (turn.request, 5)
        await b.answer(same)
        while (turn := await b.turn()) is not None:
            await b.answer(turn)
        ends = await asyncio.gather(*tasks)
        assert worker.ended(pid) == 0
        return second, ends

    try:
        second, ends = asyncio.run(main())
    finally:
        worker.close()
    state, expected = fed.state(), exact_posterior(fed, "a", "b", "c")
    for name, value in expected.items():
        np.testing.assert_allclose(state.result[name], value, rtol=1e-12)
    assert [state.factors[name].visits for name in "abc"] == [rounds, rounds, rounds - 5]
    assert {end.result.configuration for end in ends} == {second.digest}
    assert approved_versions(fed.party("a").state) == [first, second.digest]
    fed.assert_identity()
    # A stand-by that has read the first version and waited takes over what counts now.
    own = fed.write_server(keep_result_for="1.0s").own
    result = asyncio.run(serve(msgspec.structs.replace(standby, own=own)))
    assert result is not None
    assert result.configuration == second.digest


@pytest.fixture
def gate(monkeypatch):
    """Replies from the fourth visit of a party on wait until it is opened."""
    opened, compute = threading.Event(), SinglePartyComputer.compute

    def gated(self, requests, keys):
        if any(request.visit >= 3 for request in requests):
            assert opened.wait(60)
        return compute(self, requests, keys)

    monkeypatch.setattr(SinglePartyComputer, "compute", gated)
    return opened


def grown(fed, gate):
    """The run of a and b, to which c is added at the fourth round."""

    async def main():
        async with asyncio.timeout(240):
            tasks = [await started(fed)]
            try:
                tasks += [asyncio.create_task(join(fed.party(name))) for name in ("a", "b")]
                await until(lambda: lines(fed, "round", round=3))
                add_c(fed)
                give_command(fed.server.state, "propose")
                await until(lambda: lines(fed, "proposed"))
                for name in ("a", "b", "c"):
                    approve(fed.party(name))
                tasks.append(asyncio.create_task(join(fed.party("c"))))
                await until(lambda: lines(fed, "version"))
                gate.set()
                return await asyncio.gather(*tasks)
            finally:
                gate.set()
                await ended(*tasks)

    return asyncio.run(main())


def test_in_a_private_run_the_charges_of_earlier_parties_stay_as_approved(tmp_path, gate):
    fed = federation(tmp_path, PRIVATE, 6)
    promised = prepare_party(fed.party("a")).promise
    result, *ends = grown(fed, gate)
    assert result.finished == "rounds"
    assert len(result.parties) == 3
    counts = {}
    for name in "abc":
        ready = prepare_party(fed.party(name))
        assert ready.promise == promised
        with Ledger(ready.ledger_path) as ledger:
            charges = list(ledger.charges(f"{ends[0].result.run}@{ready.first_approved[:16]}"))
            counts[name] = len({charge.request for charge in charges})
    assert counts == {"a": 6, "b": 6, "c": 2}
    assert [end.evaluation.answers for end in ends] == [6, 6, 2]


def test_a_solver_starts_again_with_the_new_party(tmp_path, gate):
    """The default method ends with the posterior that all three would have had together."""
    fed = federation(tmp_path, {"privacy": "none", **BINARY}, 40)
    grown(fed, gate)
    found, expected = fed.state().result, carry_out(fed.alone()).state.result
    precision = -2 * expected["quadratic"]
    mean = [np.linalg.solve(-2 * one["quadratic"], one["linear"]) for one in (found, expected)]
    apart = mean[0] - mean[1]
    assert apart @ precision @ apart < 1e-3
    np.testing.assert_allclose(found["quadratic"], expected["quadratic"], rtol=0.02)


# What is refused.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1, "parties": ["a", "b", "c"]}, "higher number"),
        ({"parties": ["a", "c"]}, "leaves out 'b'"),
        ({"parties": ["c", "a", "b"]}, "another order"),
        ({"parties": ["a", "b"]}, "adds no party"),
        ({"seed": 4}, "also changes seed"),
        ({"quorum": 2}, "also changes quorum"),
        ({"schedule": {"kind": "synchronous", "rounds": 99}}, "also changes schedule"),
    ],
)
def test_a_version_only_adds_parties(tmp_path, changes, words):
    fed = federation(tmp_path, EXACT, 9)
    old = fed.server.agreed
    with pytest.raises(ConfigError, match=words):
        check_successor(old.federation, add_c(fed, **changes).federation)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "privacy": PRIVATE["privacy"] | {"aggregation": "trusted"},
                "method": {"kind": "dp-scoring"},
            },
            r"share the noise \(2 → 3\) would change for 'a'",
        ),
        ({"method": {"kind": "dp-scoring"}}, "releases different sums in different rounds"),
        ({"quorum": 1}, "divides the noisy sum equally"),
    ],
)
def test_a_version_that_would_change_charges_or_the_sums_is_refused(tmp_path, changes, words):
    """Shared noise depends on the number of parties; what a party releases must not change."""
    fed = federation(tmp_path, PRIVATE | changes, 9)
    old = server_plan(fed.server.agreed)
    with pytest.raises(ConfigError, match=words):
        check_same_terms(old, server_plan(add_c(fed)))


def test_a_lower_version_is_refused_at_the_party_and_at_the_server(tmp_path):
    fed = federation(tmp_path, EXACT | {"version": 3}, 5)

    async def main():
        tasks = [await started(fed)]
        try:
            tasks.append(asyncio.create_task(join(fed.party("a"))))
            await until(lambda: lines(fed, "joined"))
            await until(lambda: lines(fed, "connected", "state-a"))
        finally:
            await ended(*tasks)

    asyncio.run(main())
    before = approved_versions(fed.party("a").state)
    add_c(fed, version=2)
    with pytest.raises(ConfigError, match="version = 2; the run follows version 3"):
        approve(fed.party("a"))
    with pytest.raises(ConfigError, match="version = 2; the run follows version 3"):
        asyncio.run(serve(fed.server))
    assert approved_versions(fed.party("a").state) == before
    add_c(fed, version=4)
    approve(fed.party("a"))
    assert approved_versions(fed.party("a").state)[0] == before[0]


def test_an_excluded_party_stays_excluded(tmp_path):
    """By its own name, and under a new name with its key."""
    fed = federation(tmp_path, EXACT, 9)
    plan = server_plan(fed.server.agreed)
    fed.server.state.mkdir()
    live = LiveRun(
        fed.server.state, plan.rules, first_factors(plan), fed.server.agreed.digest, private=False
    )
    peers = {
        name: SimpleNamespace(name=name, key_fingerprint=key, serial=number)
        for number, (name, key) in enumerate([("a", "1"), ("b", "2"), ("c", "2"), ("d", "4")])
    }
    for name in ("a", "b"):
        live.join(peers[name], JoinCluster(data_size=5, protocol=PROTOCOL), 0.0)
    live.start(0.0)
    live.leave("b", 0.0)
    second = add_c(fed)
    live.propose(Proposal(second, server_plan(second)))
    assert live.unapproved == ["a", "c"], "a party that has left permanently is not waited for"
    asks = JoinCluster(data_size=5, protocol=PROTOCOL, configuration=second.digest)
    with pytest.raises(RefusedError, match="has left this run permanently"):
        live.join(peers["b"], asks, 0.0)
    with pytest.raises(RefusedError, match="c has the same key as b, a party that left"):
        live.join(peers["c"], asks, 0.0)
    with pytest.raises(RefusedError, match="not on the list"):
        live.join(peers["d"], asks, 0.0)
    assert live.roster.approvals == {}
    live.close()
