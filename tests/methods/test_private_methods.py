"""Every private method that is shipped: what one unit can move is charged, and the noise is there.

`reach` is how near the search comes to the bound: a charge of half of what is needed would show
wherever it is above one half.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.datasets import document_records
from tacit.errors import ConfigError
from tacit.expfam import MeanFieldGaussian
from tacit.methods import (
    DPSGD,
    Hybrid,
    NaturalVI,
    PrivateMethod,
    PrivateScoring,
    PrivateStatistics,
    PrivateUpdate,
    Whitened,
)
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    Model,
    NeuralNetwork,
    PoissonRegression,
    SoftmaxRegression,
    TopicModel,
)
from tacit.models.belief.model import BeliefNetwork
from tacit.plan.plan import first_factors, make_plan
from tacit.privacy.events import GaussianEvent
from tacit.privacy.mechanisms import Gaussian
from tacit.privacy.settings import Privacy
from tacit.server.combine import RoundSum, Shared
from tacit.server.messages import Reply
from tacit.server.schedule import Synchronous
from tacit.server.state import initial_state
from tacit.server.step import noisy_sum
from tacit.testing import check_local_method, check_private_method, gaussian_faults

LAYOUT = (INTERCEPT, Feature("numeric", "a", -1.0, 1.0), Feature("level", "b=u"))
LOGISTIC = LogisticRegression(("a", "b"), prior_sd=1.0)
LINEAR = LinearRegression(("a",), prior_sd=1.0)
NAMES = ("intercept", "a", "b=u")
TABLE = {
    "x": np.array([[1, 0.2, 1], [1, -0.4, 0], [1, 0.9, 1], [1, -0.1, 0], [1, 0.5, 1], [1, 0, 0.0]]),
    "y": np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]),
}
PIXELS = {"x": np.array([[0, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0], [1, 0, 0.0]])}
PARTY: dict[str, Any] = {"unit": "party"}
OPEN: dict[str, Any] = {"adjacency": "add-or-remove-one"}


@dataclass(frozen=True)
class Case:
    method: PrivateMethod
    model: Model = LOGISTIC
    how: dict[str, Any] = field(default_factory=dict, hash=False)
    reach: float = 0.9


CASES = {
    "dp-sgd": Case(DPSGD()),
    "dpsgd, fixed precision": Case(DPSGD(precision="fixed", step_size=0.1)),
    "dpsgd, each coordinate": Case(DPSGD(precision="per-coordinate")),
    "dpsgd, several steps": Case(DPSGD(steps=2)),
    "dpsgd, added": Case(DPSGD(), how=OPEN),
    "dpsgd, persons": Case(DPSGD(), how={"unit": "person"}),
    "dpsgd, poisson": Case(DPSGD(sampling_rate=0.5), reach=0.0),
    "dpsgd, subsets": Case(DPSGD(sampling_rate=0.5, sampling="without-replacement"), reach=0.0),
    "dpsgd, adaptive": Case(DPSGD(adaptive=0.5)),
    "dpsgd, clip by visit": Case(DPSGD(clip_end=0.3, noise_end=2.0)),
    "dpsgd, adam": Case(DPSGD(optimiser="adam")),
    "dpsgd, adam, several steps": Case(DPSGD(optimiser="adam", steps=2, precision="log-sd")),
    "dpsgd, sgd, several steps": Case(DPSGD(optimiser="sgd", steps=2, precision="per-coordinate")),
    "dpsgd, network": Case(DPSGD(), NeuralNetwork(("a", "b"), hidden=2), reach=0.8),
    "dpsgd, levels": Case(DPSGD(), SoftmaxRegression(("a", "b"), levels=("u", "v"), prior_sd=1.0)),
    "update": Case(PrivateUpdate(shards=1), LINEAR),
    "update, added": Case(PrivateUpdate(shards=1), LINEAR, OPEN),
    "update, averaged": Case(PrivateUpdate(shards=3, objective="averaged"), LINEAR),
    "update, virtual, added": Case(PrivateUpdate(shards=2), LINEAR, OPEN),
    "update, network": Case(
        PrivateUpdate(shards=2, adam_steps=2, adam_rate=1e-2, adam_draws=1, adam_epsilon=10.0),
        NeuralNetwork(("a", "b"), hidden=2),
        reach=0.0,
    ),
    "update, adam": Case(
        PrivateUpdate(shards=2, optimiser="adam", adam_steps=2, adam_rate=1e-2, adam_draws=1),
        reach=0.0,
    ),
    "update, persons": Case(PrivateUpdate(shards=1), LINEAR, {"unit": "person"}),
    "update, shared noise": Case(PrivateUpdate(shards=1), LINEAR, {"aggregation": "trusted"}),
    "party, roll-back": Case(PrivateUpdate(shards=1), LINEAR, PARTY),
    "party, added": Case(PrivateUpdate(shards=1), LINEAR, PARTY | OPEN),
    "party, server-factor": Case(PrivateUpdate(shards=1, form="server-factor"), LINEAR, PARTY),
    "party, log-precision": Case(PrivateUpdate(shards=1, form="log-precision"), LINEAR, PARTY),
    "party, adaptive": Case(PrivateUpdate(shards=1, adaptive=0.5), LINEAR, PARTY),
    "party, log-precision, adaptive": Case(
        PrivateUpdate(shards=1, form="log-precision", adaptive=0.5), LINEAR, PARTY | OPEN
    ),
    "update, adaptive, added": Case(PrivateUpdate(shards=2, adaptive=0.5), LINEAR, OPEN),
    "party, now and then": Case(PrivateUpdate(shards=1, sampling_rate=0.5), LINEAR, PARTY, 0.0),
    "party, server's noise": Case(
        PrivateUpdate(shards=1), LINEAR, PARTY | {"aggregation": "server"}
    ),
    "statistics": Case(PrivateStatistics(), LINEAR),
    "statistics, logistic": Case(PrivateStatistics()),
    "statistics, added": Case(PrivateStatistics(), how=OPEN),
    "statistics, persons": Case(PrivateStatistics(), LINEAR, {"unit": "person"}),
    "statistics, truncated": Case(PrivateStatistics(repair="truncate"), LINEAR),
    "statistics, once": Case(PrivateStatistics(one_shot=True), LINEAR),
    "statistics, shared noise": Case(PrivateStatistics(), LINEAR, {"aggregation": "trusted"}),
    "statistics, adaptive": Case(PrivateStatistics(adaptive=0.5), LINEAR),
    "statistics, counted": Case(PrivateStatistics(count_clipped=True), LINEAR),
    "statistics, belief network": Case(
        PrivateStatistics(), BeliefNetwork(3, hidden=2), {"records": PIXELS}, 0.0
    ),
    "dp-hybrid": Case(Hybrid(gradient_clip=0.5), LINEAR),
    "scoring": Case(
        PrivateScoring(), LogisticRegression(NAMES, layout=LAYOUT, prior_sd=1.0), {"records": TABLE}
    ),
    "scoring, poisson": Case(
        PrivateScoring(),
        PoissonRegression(NAMES, layout=LAYOUT, max_count=3.0, prior_sd=1.0),
        {"records": TABLE},
    ),
    "scoring, shared noise": Case(
        PrivateScoring(), LogisticRegression(NAMES, layout=LAYOUT, prior_sd=1.0),
        {"records": TABLE, "aggregation": "trusted"},
    ),
    "whitened dpsgd": Case(Whitened(inner=DPSGD(), bound=1.5)),
    "whitened update": Case(Whitened(inner=PrivateUpdate(), bound=1.5), LINEAR),
}  # fmt: skip
OPTIMISED = {
    "dp-sgd",
    "update",
    "party, added",
    "statistics",
    "dp-hybrid",
    "scoring",
    "whitened dpsgd",
}
"""One of each method; the others are compiled quickly where `make test` runs them."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full_optimisation if n in OPTIMISED else ()) for n in CASES],
)
def test_no_unit_moves_a_release_further_than_is_charged(name):
    case = CASES[name]
    assert check_private_method(case.method, case.model, reach=case.reach, **case.how) <= 1.0


def noise_of_server(plan, coordinates):
    """What the server adds to integers that are all 0, one row per round."""
    rules, start = plan.rules, initial_state(plan.rules, first_factors(plan))
    shapes = rules.lattice.shapes("update")
    zeros = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
    replies = [Reply(f"r-{name}", name, 0, zeros, None) for name in plan.parties]

    def added(number):
        total = noisy_sum(rules, replace(start, round=number - 1), replies)
        answers = RoundSum(total, len(plan.parties), number)
        return coordinates(rules.combine(Shared(start.q), answers), start.q)

    return np.stack([added(number) for number in range(1, 2_001)])


def test_the_server_adds_one_whole_noise_to_updates():
    parties = {name: {"x": np.ones((4, 1)), "y": np.arange(4.0)} for name in ("a", "b", "c")}
    plan = make_plan(
        LINEAR, parties, method=PrivateUpdate(shards=1),
        schedule=Synchronous(rounds=1, damping=1.0),
        privacy=Privacy(noise_multiplier=1.0, unit="party", aggregation="server"),
    )  # fmt: skip

    def moved(found, q):
        change = found.q
        return np.concatenate(
            [change["linear"] - q["linear"], -2.0 * (change["quadratic"] - q["quadratic"])]
        )

    plan = replace(plan, noise_key=(5,))
    noise = noise_of_server(plan, moved)
    assert not gaussian_faults(noise, plan.settled["a"].noise_sd)
    assert gaussian_faults(0.8 * noise, plan.settled["a"].noise_sd)


def test_the_server_adds_one_whole_noise_to_counts():
    documents = document_records(np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 4.0]]))
    model = TopicModel(2, words=3, document_words=8)
    plan = make_plan(
        model, {"a": documents, "b": documents}, method=PrivateStatistics(),
        schedule=Synchronous(rounds=1, damping=1.0),
        privacy=Privacy(noise_multiplier=1.0, delta=1e-3, aggregation="server"),
    )  # fmt: skip

    def moved(found, q):
        del q  # sums of 0 replace what it holds
        return np.ravel(found.memory["log"]) / model.statistics_unit

    plan = replace(plan, noise_key=(5,))
    noise = noise_of_server(plan, moved)
    assert not gaussian_faults(noise, plan.settled["a"].noise_sd)
    assert gaussian_faults(0.8 * noise, plan.settled["a"].noise_sd)


def test_the_guarantee_of_a_run_is_that_of_its_weakest_party():
    parties = {name: {"x": np.ones((4, 1)), "y": np.arange(4.0)} for name in ("a", "b")}
    own = {"a": {"noise_multiplier": 3.0, "delta": 1e-3}}
    plan = make_plan(
        LINEAR, parties, method=PrivateStatistics(), schedule=Synchronous(rounds=1),
        privacy=Privacy(noise_multiplier=1.0, delta=1e-2, parties=own),
    )  # fmt: skip
    each = {name: one.guarantee for name, one in plan.settled.items()}
    assert each["a"].epsilon < each["b"].epsilon
    assert plan.guarantee is not None
    assert (plan.guarantee.epsilon, plan.guarantee.delta) == (each["b"].epsilon, 1e-2)


class Undercharged(DPSGD):
    """Declares half of the clip that it uses; its cost agrees with what it declares."""

    def release(self, *, clip, noise_sd, units):
        found = super().release(clip=clip, noise_sd=noise_sd, units=units)
        return tuple(type(one)(clip=one.clip / 2, noise_sd=one.noise_sd) for one in found)

    def _released(self, model, family, free, public, secret, task, scale):
        doubled = task._replace(terms=task.terms._replace(clips=2.0 * task.terms.clips))
        release: Any = super()._released(model, family, free, public, secret, doubled, scale)
        half = release.cost.cost._replace(clip=release.cost.cost.clip / 2)
        return release._replace(cost=release.cost._replace(cost=half))


class Quieter(PrivateStatistics):
    """Adds half of the noise that it declares."""

    def answer(self, model, family, key, task):
        quiet = task._replace(terms=task.terms._replace(noise_sds=0.5 * task.terms.noise_sds))
        found = super().answer(model, family, key, quiet)
        cost = found.cost.cost._replace(noise_sd=2.0 * found.cost.cost.noise_sd)
        return found._replace(cost=found.cost._replace(cost=cost))


def test_half_of_the_sensitivity_is_found():
    with pytest.raises(AssertionError, match=r"sensitivity: .* moves the sum by 2, 1 is charged"):
        check_private_method(Undercharged(), LOGISTIC)


def test_half_of_the_noise_is_found():
    with pytest.raises(AssertionError, match="noise: visit 0, event 0: variance of the noise"):
        check_private_method(Quieter(), LINEAR)


def test_nothing_is_left_of_the_check_when_it_is_over():
    release = Gaussian.release
    with pytest.raises(AssertionError, match="reach: the largest movement"):
        check_private_method(PrivateStatistics(), LINEAR, reach=2.0, rounds=1)
    assert Gaussian.release is release


@dataclass(frozen=True, kw_only=True)
class UnawareOfPersons(PrivateMethod):
    """A method that says nothing of units, as one by another author may."""

    kind = "unaware"
    clip: float = 1.0
    dtype: str = "float64"

    def check(self, model, family):
        """Serves every model."""

    def release(self, *, clip, noise_sd, units):
        return (GaussianEvent(clip=clip, noise_sd=noise_sd),)

    def answer(self, model, family, key, task):
        raise NotImplementedError


def test_a_replaced_person_leaves_the_others_in_their_shards():
    """Sorted ids would renumber all persons, and every shard would change."""
    method = PrivateUpdate(shards=7).bind(unit="person")
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(40), 3)
    records = {"x": rng.normal(size=(120, 2)), "y": rng.normal(size=120), "person": ids}
    changed = records | {"person": np.where(ids == 39, -1, ids)}
    before, after = (method.arrange("a", one, seed=0) for one in (records, changed))
    assert np.array_equal(before.weights, after.weights)
    for name in before.records:
        assert np.array_equal(before.records[name], after.records[name])


def test_persons_are_protected_only_by_methods_that_declare_it():
    records = {"x": np.ones((4, 1)), "y": np.arange(4.0), "person": np.arange(4) // 2}
    privacy = Privacy(epsilon=1.0, unit="person")
    with pytest.raises(ConfigError, match="which protects a record"):
        make_plan(LINEAR, {"a": records}, method=UnawareOfPersons(), privacy=privacy)


def test_each_suite_names_the_other():
    with pytest.raises(TypeError, match="check_private_method"):
        check_local_method(DPSGD(), LOGISTIC, MeanFieldGaussian(2))
    with pytest.raises(TypeError, match="check_local_method"):
        check_private_method(NaturalVI(), LOGISTIC)  # type: ignore[arg-type]
