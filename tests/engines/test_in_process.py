"""The embedded engine: the same answer batched or not, few compilations, repeatable."""

import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from one_party import OneParty

import tacit.party.compute as party_side
from tacit.engines.compilations import compilations
from tacit.engines.execute import carry_out
from tacit.engines.in_process import InProcess
from tacit.errors import DataError
from tacit.methods import NaturalVI
from tacit.models import LinearRegression, LogisticRegression
from tacit.plan.agreement import Agreement
from tacit.plan.plan import make_plan
from tacit.results import evaluate
from tacit.server import step as server_step
from tacit.server.run import ServerRun
from tacit.server.schedule import Asynchronous, Sequential, Synchronous
from tacit.server.state import initial_state, open_requests

pytestmark = pytest.mark.full_optimisation

LINEAR = LinearRegression(("a", "b", "c"), prior_sd=1.0)
SCHEDULES = {
    "sequential": Sequential(rounds=2),
    "synchronous": Synchronous(rounds=3),
    "synchronous, a subset": Synchronous(rounds=4, parties_per_round=2),
    "asynchronous": Asynchronous(rounds=3),
}


@pytest.fixture(scope="module")
def parties(make_parties):
    return make_parties((5, 33, 12, 46, 44))  # 46 is a rung of the ladder of padded lengths


def q_of(outcome):
    return outcome.state.q["linear"], outcome.state.q["quadratic"]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_batched_equals_unbatched_to_rounding(parties, kind):
    one, two = (
        carry_out(make_plan(LINEAR, parties, schedule=SCHEDULES[kind], batch_parties=batch, seed=2))
        for batch in (True, False)
    )
    for a, b in zip(q_of(one), q_of(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    assert one.state.exchanges == two.state.exchanges


STOCHASTIC = """
    import numpy as np
    from tacit.engines.execute import carry_out
    from tacit.plan.plan import make_plan
    from tacit.methods import GradientVI
    from tacit.models import NormalMean
    from tacit.server.schedule import Synchronous

    MODEL = NormalMean()

    def q(seed, batch_parties=True):
        y = np.random.default_rng(0).normal(size=44)
        parties = {"small": {"y": y[:20]}, "large": {"y": y[20:]}}
        method = GradientVI(steps=20, batch_size=22, draws=2, dtype="float64")
        plan = make_plan(MODEL, parties, method=method, schedule=Synchronous(rounds=2), seed=seed,
                         batch_parties=batch_parties)
        found = carry_out(plan).state.q
        return np.append(found["linear"], found["quadratic"])
"""


@pytest.fixture(scope="module")
def stochastic():
    """A run with minibatches and draws, as a function of its seed."""
    scope: dict = {}
    exec(textwrap.dedent(STOCHASTIC), scope)
    return scope["q"]


def test_batched_equals_unbatched_for_a_stochastic_method(stochastic):
    """Random numbers depend on seed, party and visit: not on who shares the call, nor on padding.

    The batch is larger than one party, which then uses all its records.
    """
    np.testing.assert_allclose(stochastic(1), stochastic(1, batch_parties=False), rtol=1e-8)
    assert np.max(np.abs(stochastic(9) - stochastic(1))) > 1e-6, "the seed changes nothing"


def test_one_seed_gives_the_same_bits_in_two_processes(stochastic):
    code = textwrap.dedent(STOCHASTIC) + "\nprint(q(4).tobytes().hex())"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == stochastic(4).tobytes().hex()


@pytest.mark.parametrize("kind", ["sequential", "synchronous"])
def test_unbatched_is_what_separate_parties_answer_bit_for_bit(parties, kind):
    """The same agents and the same server, driven by hand as a network would."""
    plan = make_plan(LINEAR, parties, schedule=SCHEDULES[kind], batch_parties=False, seed=2)
    agreement = Agreement(plan.model, plan.family, plan.method, plan.seed)
    state = server_step.begin(plan.rules, initial_state(plan.rules))
    alone = {name: OneParty(agreement, name, records) for name, records in parties.items()}
    while not state.finished:
        request = open_requests(state)[-1]
        state, _ = server_step.step(plan.rules, state, alone[request.party].answer(request))
    np.testing.assert_equal(state.q, carry_out(plan).state.q)


def test_the_order_in_which_parties_are_named_changes_only_rounding(parties):
    turned = dict(reversed(parties.items()))
    one, two = (carry_out(make_plan(LINEAR, p, schedule=Synchronous())) for p in (parties, turned))
    for a, b in zip(q_of(one), q_of(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize(
    ("schedule", "method", "most"),
    [
        (Synchronous(rounds=2), NaturalVI(steps=1), 4),
        (Sequential(rounds=1), NaturalVI(steps=1), 4),
        (Synchronous(rounds=2), NaturalVI(), 0),
    ],
)
def test_a_thousand_unequal_parties_need_few_compilations(schedule, method, most):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 60, 1000)
    x = rng.normal(size=(sizes.sum(), 2))
    y = (rng.uniform(size=len(x)) < 0.5).astype(np.float64)
    parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
    parties = {f"p{i}": {"x": x[part], "y": y[part]} for i, part in enumerate(parts)}
    model = LogisticRegression(("a", "b"), prior_sd=1.0)
    programs = []

    def listen(event, duration, **_):
        if event.endswith("backend_compile_duration"):  # compiled, or read from the cache
            programs.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    before = compilations()
    outcome = carry_out(make_plan(model, parties, method=method, schedule=schedule))
    metrics = evaluate(model, outcome.plan.family, outcome.state.q, {"x": x, "y": y})
    jax.monitoring.unregister_event_duration_listener(listen)
    assert min(1, most) <= len(programs) <= most
    assert outcome.compiled.count == compilations().since(before).count <= len(programs)
    assert outcome.state.exchanges == 1000 * schedule.rounds
    assert metrics["log_predictive_density"] > -0.70


def test_asynchronous_runs_are_repeatable_and_seeded(parties):
    def order(seed):
        seen = []

        def observe(state, _):
            seen.append(sorted((f.version, name) for name, f in state.factors.items()))

        plan = make_plan(LINEAR, parties, schedule=Asynchronous(rounds=4), seed=seed)
        return carry_out(plan, observe=observe).state, seen

    (one, first), (two, second), (_, third) = order(1), order(1), order(2)
    assert first == second
    np.testing.assert_equal(one.q, two.q)
    assert first != third, "the seed does not reach the clock"
    assert len({factor.version for factor in one.factors.values()}) > 1, "nobody is slower"


def test_a_party_that_is_asked_again_is_not_computed_again(parties, monkeypatch):
    plan = make_plan(LINEAR, parties, schedule=Synchronous(rounds=2))
    agreement = Agreement(plan.model, plan.family, plan.method, plan.seed)
    engine = InProcess(agreement, plan.rules, dict(parties))
    engine.prepare()
    state = server_step.begin(plan.rules, initial_state(plan.rules))
    first = engine.answer(open_requests(state))
    monkeypatch.setattr(party_side, "answer_many", None)
    again = engine.answer(open_requests(state))
    assert all(a is b for a, b in zip(first, again, strict=True))


def test_an_empty_party_is_refused_by_name(parties):
    plan = make_plan(LINEAR, parties)
    agreement = Agreement(plan.model, plan.family, plan.method, plan.seed)
    empty = {"x": np.zeros((0, 3)), "y": np.zeros(0)}
    engine = InProcess(agreement, plan.rules, {**parties, "nobody": empty})
    server = ServerRun(plan.rules)
    server.state = initial_state(plan.rules)
    with pytest.raises(DataError, match="party 'nobody' has no records"):
        engine.run(server)
