"""A private live run under budgets of exactly what it costs: killed, and out of budget."""

import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest
from wire_harness import BINARY, Fed, Worker, assert_same_bits, ended, started, until

from tacit.cli.ledger import budget_command
from tacit.errors import PrivacyBudgetError
from tacit.live.config import read_party
from tacit.live.join import (
    approve,
    check_budget,
    join,
    prepare_party,
    required_budget,
)
from tacit.live.plan import server_plan
from tacit.live.protocol import messages as m
from tacit.live.session import RejectedError
from tacit.party.datasets import identify_parties
from tacit.plan.plan import first_factors
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.verify import audit
from tacit.run.directory import private_part
from tacit.server.messages import decode_reply
from tacit.server.state import initial_state, open_requests
from tacit.server.step import begin, step_together
from tacit.support.public_files import EVALUATION

NAMES = ("a", "b")
ROUNDS = 5
DELTA = 1e-4
AGREED = {
    "privacy": {"noise_multiplier": 40.0, "delta": DELTA},
    **BINARY,
    "records": 48,
    "model": {"kind": "logistic"},
    "method": {"kind": "dp-sgd"},
    "schedule": {"kind": "synchronous", "rounds": ROUNDS, "tolerance": 0.0},
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    one = Worker(tmp_path_factory.mktemp("worker"))
    yield one
    one.close()


def make(base, **changes):
    """A federation whose operators set the budgets that `tacit approve` names."""
    fed = Fed(base, NAMES, {**AGREED, **changes}, ledgers=True, serve={"keep_result_for": "30.0s"})
    fed.approve()
    for name in NAMES:
        file = fed.base / f"{name}.toml"
        needed = required_budget(prepare_party(read_party(file)))
        budget_command(None, str(file), needed, DELTA, None, None, reason="test", raising=False)
    return fed


def stored(fed, name):
    """Replies by request id, after a look at the whole ledger; each was charged once."""
    path = fed.base / f"ledger-{name}.sqlite"
    assert audit(path).sound, audit(path).problems
    with Ledger(path) as ledger:
        rows = [row for row in ledger.entries() if row.kind == "charge"]
        assert len({row.request for row in rows}) == len(rows), "nothing is charged twice"
        places = [(row.run, row.request) for row in rows]
        found = zip(places, ledger.recall_many(places), strict=True)
        return {request: body for (_, request), body in found if body is not None}


def spent(fed, name):
    ready = prepare_party(fed.party(name))
    with Ledger(ready.ledger_path) as ledger:
        found = ledger.spent(identify_parties(ledger, ready.loaded, [name])[name])
    assert found.epsilon is not None
    assert found.budget is not None
    return found, ready.plan.settled[name].guarantee.epsilon


def assert_replayed(fed):
    """The posterior everywhere is what the stored replies make of the prior, to the last bit."""
    replies = {name: stored(fed, name) for name in NAMES}
    plan = server_plan(fed.server.agreed)
    state = begin(plan.rules, initial_state(plan.rules, first_factors(plan)))
    while not state.finished:
        asked = open_requests(state)
        state, _ = step_together(
            plan.rules, state, [decode_reply(replies[one.party][one.id]) for one in asked]
        )
    assert_same_bits(fed.natural(), state.result)
    for name in NAMES:
        assert_same_bits(fed.natural(f"state-{name}"), state.result)
    return replies


def test_killed_between_charge_and_reply_under_a_budget_of_exactly_the_cost(worker, tmp_path):
    fed = make(tmp_path / "fed")
    server = worker.serve(fed)
    other = worker.join(fed, "b")
    deaths = [("compiling", 0), ("computing", 0), ("storing", 0), ("storing", 2),
              ("computing", 3), ("storing", ROUNDS - 1)]  # fmt: skip
    lost = {}
    for place, visit in deaths:
        file = tmp_path / f"{place}-{visit}"
        how = {"place": place, "visit": visit, "leave": str(file)}
        party = worker.join(fed, "a", die_at=how)
        assert worker.ended(party, 120) == -9, worker.errors()
        if file.exists():
            lost[decode_reply(file.read_bytes()).id] = file.read_bytes()
        charged = visit + (place != "compiling")
        assert spent(fed, "a")[0].charges == charged, "compiling costs nothing, the rest costs once"
    party = worker.join(fed, "a")
    for pid in (party, other, server):
        assert worker.ended(pid, 120) == 0, worker.errors()
    replies = assert_replayed(fed)["a"]
    assert len(lost) == 3
    assert {key: replies[key] for key in lost} == lost, "drawn again, it is the same answer"
    for name in NAMES:
        found, cost = spent(fed, name)
        assert found.charges == ROUNDS
        assert found.epsilon == pytest.approx(cost, rel=1e-3)
        assert found.epsilon <= found.budget.epsilon <= 1.001 * found.epsilon
        kept = fed.base / f"state-{name}"
        assert "epsilon_spent" not in (kept / "public" / "result.json").read_text()
        balance = json.loads((kept / "private" / "evaluation.json").read_text())["ledger"]
        assert (balance["epsilon_spent"], balance["budget"]) == (
            found.epsilon,
            found.budget.epsilon,
        )


@pytest.mark.usefixtures("shared_models")
def test_a_party_without_budget_waits_for_the_result(tmp_path):
    """Its operator lowers the budget after the second round."""
    fed = make(tmp_path / "fed")
    lines = []

    def lower_the_budget():
        ready = prepare_party(fed.party("b"))
        events = ready.plan.settled["b"].events_at(0)
        with Ledger(ready.ledger_path) as ledger:
            dataset = identify_parties(ledger, ready.loaded, ["b"])["b"]
            # Beside an unfinished plan of the whole budget no other run is admitted.
            assert not ledger.check(dataset, events, unit="record", adjacency="replace-one").fits
            present = spent(fed, "b")[0].budget
            less = msgspec.structs.replace(present, epsilon=0.95 * present.epsilon)
            ledger.set_budget(dataset, less, reason="less")

    def watch(line):
        lines.append(line)
        if line["event"] == "answered" and line["visit"] == 1:
            lower_the_budget()

    async def main():
        async with asyncio.timeout(150):
            server = await started(fed)
            parties = [
                asyncio.create_task(join(fed.party("a"))),
                asyncio.create_task(join(fed.party("b"), watch)),
            ]
            try:
                return await asyncio.gather(*parties, server)
            finally:
                await ended(server, *parties)

    one, two, whole = asyncio.run(main())
    state = fed.state()
    assert (state.finished, state.round, state.left) == ("rounds", ROUNDS, {"b"})
    assert one.evaluation.stopped is None
    stopped = two.evaluation.stopped
    assert stopped["round"] == stopped["visit"] + 1 == 3
    assert "privacy budget" in stopped["reason"]
    assert (one.evaluation.answers, two.evaluation.answers) == (ROUNDS, 2)
    assert whole.exchanges == ROUNDS + 2
    for place in ("server", "state-a", "state-b"):
        assert_same_bits(fed.natural(place), state.result)
    written = json.loads((private_part(fed.base / "state-b") / EVALUATION).read_text())
    assert written["stopped"] == stopped
    found, _ = spent(fed, "b")
    assert (found.charges, found.as_one_run <= found.budget.epsilon) == (2, True)
    assert [line["event"] for line in lines if line["event"] == "budget"] == ["budget"]


@pytest.mark.usefixtures("shared_models")
def test_the_check_on_rejoining_counts_each_visit_once(tmp_path):
    """A charge whose answer was lost is paid for; a run that has not begun needs all of it."""
    fed = make(tmp_path / "fed")

    async def main():
        async with asyncio.timeout(120):
            server = await started(fed)
            parties = {name: asyncio.create_task(join(fed.party(name))) for name in NAMES}
            try:
                await until(lambda: fed.state() is not None and fed.state().round >= 2, 60)
            finally:
                await ended(server, *parties.values())

    asyncio.run(main())
    ready = prepare_party(fed.party("a"))
    before, _ = spent(fed, "a")
    assert 2 <= before.charges <= ROUNDS
    assert check_budget(ready) == before, "what is left fits exactly"
    approve(fed.party("a"))  # one further run of the same
    with pytest.raises(PrivacyBudgetError, match="was planned for all of the budget"):
        check_budget(ready)
    needed = required_budget(ready)
    assert needed > before.budget.epsilon
    file = str(fed.base / "a.toml")
    budget_command(None, file, needed, DELTA, None, None, reason="again", raising=True)
    check_budget(ready)


@pytest.mark.usefixtures("shared_models")
def test_a_private_run_needs_one_protocol_at_all_ends(tmp_path, monkeypatch):
    """Steps of releases are computed at both ends, and depend on the version."""
    fed = make(tmp_path / "fed")
    newer = SimpleNamespace(**{**vars(m), "PROTOCOL": m.PROTOCOL + 1})
    monkeypatch.setattr("tacit.live.session.m", newer)

    async def main():
        server = await started(fed)
        try:
            await asyncio.wait_for(join(fed.party("a")), 60)
        finally:
            await ended(server)

    with pytest.raises(RejectedError, match="the server announced protocol"):
        asyncio.run(main())
    assert spent(fed, "a")[0].charges == 0
