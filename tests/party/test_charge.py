"""Charge, then speak: no more answers than agreed, none that cost anything else, none twice."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from one_party import answer_once

import tacit.party.compute as party_side
from tacit.errors import DataError, PeerError, PrivacyBudgetError
from tacit.expfam import MeanFieldGaussian
from tacit.methods import DPSGD
from tacit.models import LogisticRegression
from tacit.party.agent import PartyAgent, conclude
from tacit.party.charge import Charging
from tacit.party.compute import SinglePartyComputer, Update
from tacit.party.store import ProcessStore
from tacit.plan.agreement import Agreement
from tacit.plan.plan import make_plan
from tacit.privacy.ledger.ledger import Budget, Ledger
from tacit.privacy.settings import Privacy
from tacit.run.ledger import set_own_budgets
from tacit.server.messages import Reply, Request, encode_reply
from tacit.server.schedule import Synchronous

MODEL, FAMILY = LogisticRegression(("a", "b"), prior_sd=1.0), MeanFieldGaussian(2)
ROUNDS = 3


@pytest.fixture(scope="module")
def plan(make_parties):
    parties = make_parties((20, 24), output="bernoulli", d=2)
    return make_plan(
        MODEL,
        parties,
        method=DPSGD(steps=2),
        schedule=Synchronous(rounds=ROUNDS),
        privacy=Privacy(epsilon=1.0, delta=1e-3),
    )


@pytest.fixture
def charging(plan, tmp_path):
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        datasets = {
            name: ledger.identify({"columns": ["a", "b"]}, records)
            for name, records in plan.parties.items()
        }
        limit = Budget(epsilon=1.0, delta=1e-3, adjacency="replace-one", unit="record")
        ledger.set_budgets(dict.fromkeys(datasets.values(), limit), reason="test")
        yield Charging(ledger, "run-1", datasets, plan.settled, "record", "replace-one")


def request(party, visit, key=None):
    q = MODEL.prior(FAMILY)
    return Request(
        key or f"{party}-{visit}", party, visit, visit, q, FAMILY.zero(), 1.0, visit == 0
    )


def made_up(requests, keys):
    """Different bytes at every call: a second draw of noise would show."""
    assert keys.keys() == {request.id for request in requests}
    return {
        r.id: Reply(
            r.id, r.party, r.version, {"linear": np.random.default_rng().normal(size=2)}, None
        )
        for r in requests
    }


def answer(charging, requests, compute, rehearse=None):
    """Open, compute and store, as an agent does."""
    stored, wanted, keys = charging.open(requests, rehearse)
    return stored | (charging.store(wanted, compute(wanted, keys)) if wanted else {})


def charges(ledger):
    return [row for row in ledger.entries() if row.kind == "charge"]


def test_an_answer_is_charged_before_it_is_computed(charging):
    seen = []

    def compute(requests, keys):
        rows = charges(charging.ledger)
        seen.extend((row.run, row.request, row.state) for row in rows)
        return made_up(requests, keys)

    answer(charging, [request("site-0", 0), request("site-1", 0)], compute)
    assert sorted(seen) == [("run-1", "site-0-0", "charged"), ("run-1", "site-1-0", "charged")]
    assert {row.state for row in charges(charging.ledger)} == {"answered"}


def test_an_answer_that_is_lost_is_made_again_for_the_same_charge(charging):
    given = []

    def fail(_requests, keys):
        given.append(keys["site-0-0"])
        raise RuntimeError("out of memory")

    def compute(requests, keys):
        given.append(keys["site-0-0"])
        return made_up(requests, keys)

    with pytest.raises(RuntimeError, match="out of memory"):
        answer(charging, [request("site-0", 0)], fail)
    assert [row.state for row in charges(charging.ledger)] == ["charged"]
    assert charging.ledger.recall("run-1", "site-0-0") is None
    assert charging.require_budget().fits, "it is paid for"
    answer(charging, [request("site-0", 0)], compute)
    assert given[0] == given[1]
    assert [row.attempt for row in charges(charging.ledger)] == [1]


@pytest.mark.parametrize(
    "change",
    [
        {"q": {"linear": np.ones(2), "quadratic": -np.ones(2)}},
        {"factor": {"linear": np.full(2, 1e-300), "quadratic": np.zeros(2)}},
        {"factor": {"linear": np.full(2, -0.0), "quadratic": np.zeros(2)}},
        {"damping": 0.5},
        {"version": 7},
        {"initial": False},
    ],
    ids=str,
)
def test_a_lost_answer_is_made_again_for_the_same_question_only(charging, change):
    """A hostile server asks the same id with another q: with the same noise it would learn both."""

    def fail(_requests, _keys):
        raise RuntimeError("killed")

    asked = request("site-0", 0)
    with pytest.raises(RuntimeError, match="killed"):
        answer(charging, [asked], fail)
    with pytest.raises(PrivacyBudgetError, match="charged with different content"):
        answer(charging, [asked._replace(**change)], fail)
    assert len(charges(charging.ledger)) == 1
    answer(charging, [asked], made_up)
    assert len(charges(charging.ledger)) == 1


def test_what_a_rehearsal_raises_costs_nothing(charging):
    asked, rehearsed = [request("site-0", 0), request("site-1", 0)], []

    def fail(requests):
        rehearsed.append([one.id for one in requests])
        assert charges(charging.ledger) == []
        raise MemoryError("while compiling")

    for _ in range(45):
        with pytest.raises(MemoryError, match="while compiling"):
            answer(charging, asked, made_up, fail)
    assert rehearsed == [["site-0-0", "site-1-0"]] * 45
    assert charges(charging.ledger) == []
    answer(charging, asked, made_up)
    answer(charging, asked, made_up, lambda requests: rehearsed.append(list(requests)))
    assert rehearsed[-1] == [], "what is stored needs no rehearsal"


def test_the_same_request_gets_the_same_bytes_for_nothing(charging):
    first = answer(charging, [request("site-0", 0)], made_up)["site-0-0"]

    def refuse(_requests, _keys):
        raise AssertionError("computed again")

    # Whatever else a confused server writes into it.
    again = request("site-0", 1, key="site-0-0")._replace(damping=0.1)
    second = answer(charging, [again], refuse)["site-0-0"]
    assert encode_reply(first) == encode_reply(second)
    assert len(charges(charging.ledger)) == 1


@pytest.mark.parametrize("visit", [ROUNDS, ROUNDS + 1, 10**9])
def test_no_server_gets_more_answers_than_agreed(charging, visit):
    def refuse(_requests, _keys):
        raise AssertionError("computed")

    with pytest.raises(
        PrivacyBudgetError, match=f"'site-1' received request number {visit + 1}, but only 3 were"
    ):
        answer(charging, [request("site-0", 0), request("site-1", visit)], refuse)
    assert charges(charging.ledger) == [], "nobody is charged for a batch that is refused"


def test_a_server_that_does_not_count_meets_the_budget(charging):
    """Visit 0 under ever new names: the ledger does not believe the number."""
    for number in range(ROUNDS):  # as many as the whole run was to have
        answer(charging, [request("site-0", 0, key=f"again-{number}")], made_up)
    with pytest.raises(PrivacyBudgetError, match="privacy budget"):
        answer(charging, [request("site-0", 0, key="once-more")], made_up)
    spent = charging.ledger.spent(charging.datasets["site-0"])
    assert spent.epsilon <= 1.0
    assert spent.releases == ROUNDS * 2


def test_a_run_that_will_not_fit_is_refused_at_once(charging):
    charging.require_budget()
    answer(charging, [request("site-1", 0)], made_up)
    assert charging.require_budget().fits, "the rest of the same run"
    with pytest.raises(PrivacyBudgetError, match=r"party 'site-[01]': run run-1 is unfinished"):
        replace(charging, run="run-2").require_budget()
    assert len(charges(charging.ledger)) == 1, "asking spends nothing"


@pytest.fixture(scope="module")
def answered(plan):
    agreement = Agreement(MODEL, FAMILY, plan.method, seed=0, insecure_noise_seed=1)
    asked = request("site-0", 0)
    arranged = plan.method.arrange("site-0", plan.parties["site-0"], 0)
    stack, weights = party_side.stack_records([arranged], 32, plan.method)
    settled = plan.settled["site-0"]
    return asked, party_side.answer_many(agreement, stack, weights, [asked], [settled])[0], settled


def test_an_answer_that_cost_what_was_settled_is_sent(answered):
    asked, update, settled = answered
    reply = conclude(asked, update, settled)
    assert reply.loss is None
    assert reply.released is update.released


@pytest.mark.parametrize(
    "change",
    [
        {"noise_sd": 1.0000001},
        {"clip": 0.9999999},
        {"count": 1.5},
        {"count": 0.5},
        {"nonnegative": True},
    ],
    ids=str,
)
def test_an_answer_that_cost_anything_else_is_not_sent(answered, change):
    asked, update, settled = answered
    (event,) = settled.events_at(0)
    ((name, value),) = change.items()
    old = getattr(event, name)
    value = value if isinstance(old, bool) else type(old)(old * value)
    other = (msgspec.structs.replace(event, **{name: value}),)
    with pytest.raises(PrivacyBudgetError, match="nothing is sent"):
        conclude(asked, update, msgspec.structs.replace(settled, answers=(other,)))
    with pytest.raises((PrivacyBudgetError, AttributeError, TypeError)):
        conclude(asked, update._replace(cost=None), settled)


def test_a_private_answer_without_terms_is_not_computed(plan):
    agreement = Agreement(MODEL, FAMILY, plan.method, seed=0)
    with pytest.raises(ValueError, match="needs clip, noise and events"):
        answer_once(agreement, plan.parties["site-0"], request("site-0", 0))


def test_an_id_used_again_is_not_handed_what_others_paid_for(charging):
    """Two parties of one ledger, and a server that gives both the same run and request."""
    answer(charging, [request("site-0", 0, key="r0")], made_up)
    with pytest.raises(PrivacyBudgetError, match="charged for another release"):
        answer(charging, [request("site-1", 0, key="r0")], made_up)


def test_answers_are_counted_whatever_visit_a_server_says(charging):
    for number in range(ROUNDS):
        asked = request("site-0", number, key=f"r{number}")
        charging.require_planned_visit(asked)
        answer(charging, [asked], made_up)
    charging.require_planned_visit(request("site-0", 0, key="r0"))
    with pytest.raises(PrivacyBudgetError, match="must not send more"):
        charging.require_planned_visit(request("site-0", ROUNDS, key="one-more"))


def test_a_visit_is_answered_under_one_id(charging):
    """Visits may differ in their cost: nobody is to be asked for the dearest again and again."""
    answer(charging, [request("site-0", 0, key="r0")], made_up)
    charging.require_planned_visit(request("site-0", 0, key="r0"))
    with pytest.raises(PrivacyBudgetError, match="a visit is answered only once"):
        charging.require_planned_visit(request("site-0", 0, key="r1"))
    charging.require_planned_visit(request("site-0", 1, key="r1"))
    # The same id for another visit would send one reply, and its noise, twice.
    with pytest.raises(
        PrivacyBudgetError, match=r"r0 of run .* was already used for party site-0, visit 0"
    ):
        charging.require_planned_visit(request("site-0", 1, key="r0"))


class Journal(ProcessStore):
    """A store and a computer of one party that write down what the agent does."""

    def __init__(self, plan, ledger):
        super().__init__()
        self.ledger, self.lines, self.fails = ledger, [], False
        agreement = Agreement(MODEL, FAMILY, plan.method, seed=0)
        settled = plan.settled["site-0"]
        self.computer = SinglePartyComputer(
            agreement, "site-0", plan.parties["site-0"], settled, self.memory_at
        )

    def rehearse(self, requests):
        self.lines.append(("rehearse", len(charges(self.ledger))))
        self.computer.rehearse(requests)

    def compute(self, requests, keys):
        self.lines.append(("compute", [row.state for row in charges(self.ledger)]))
        found = self.computer.compute(requests, keys)
        if self.fails:
            raise MemoryError("killed")
        return found


def agent_of(journal, charging, check=None):
    return PartyAgent(
        journal.computer.agreement, journal, journal, charging.settled, charging, check=check
    )


def test_an_agent_rehearses_charges_computes_and_keeps(plan, charging):
    journal = Journal(plan, charging.ledger)
    agent, asked = agent_of(journal, charging), request("site-0", 0)
    (reply,) = agent.answer([asked])
    assert journal.lines == [("rehearse", 0), ("compute", ["charged"])]
    assert [row.state for row in charges(charging.ledger)] == ["answered"]
    (again,) = agent.answer([asked])
    assert encode_reply(again) == encode_reply(reply)
    assert [what for what, _ in journal.lines].count("compute") == 1


def test_an_answer_lost_by_an_agent_is_drawn_again_with_the_same_noise(plan, charging):
    journal, asked = Journal(plan, charging.ledger), request("site-0", 0)
    sure = agent_of(journal, charging).computer.computer.compute
    keys = []

    def noted(requests, given):
        keys.append(given[asked.id])
        return sure(requests, given)

    journal.computer.compute = noted
    journal.fails = True
    with pytest.raises(MemoryError):
        agent_of(journal, charging).answer([asked])
    journal.fails = False
    (reply,) = agent_of(journal, charging).answer([asked])
    assert keys[0] == keys[1], "the noise key was stored with the charge"
    assert len(charges(charging.ledger)) == 1
    found = sure([asked], {asked.id: keys[0]})[asked.id].released
    np.testing.assert_equal(reply.released, found)


def test_what_an_agent_refuses_costs_nothing(plan, charging):
    def refuse(_request):
        raise PeerError("asked for nonsense")

    journal = Journal(plan, charging.ledger)
    with pytest.raises(PeerError, match="nonsense"):
        agent_of(journal, charging, refuse).answer([request("site-0", 0)])
    assert charges(charging.ledger) == []
    assert journal.lines == []


def test_an_update_that_is_not_finite_is_not_sent(plan):
    asked = request("site-0", 0)
    update = Update({"linear": np.full(2, np.nan)}, None, finite=False)
    with pytest.raises(DataError, match="visit 0: the update is not finite"):
        conclude(asked, update, plan.settled["site-0"])


def test_parties_that_share_records_are_checked_and_budgeted_together(charging, plan):
    """One run on two data sets of the same persons costs their budget twice."""
    charging.require_budget()
    one, two = charging.datasets.values()
    charging.ledger.link(two, one, reason="the same persons")
    with pytest.raises(PrivacyBudgetError, match="privacy budget exceeded"):
        charging.require_budget()
    set_own_budgets(charging)
    charging.require_budget()
    for visit in range(ROUNDS):
        charging.open([request(party, visit) for party in plan.parties])
