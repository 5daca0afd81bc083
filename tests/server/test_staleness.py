"""Asynchronous updates damped by what other parties did since their requests were sent."""

import heapq

import numpy as np
import pytest

from tacit.errors import ConfigError
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.server.messages import Reply
from tacit.server.schedule import Asynchronous, Sequential, StalenessDamping, Synchronous
from tacit.server.settings import AsynchronousSettings, DampingSettings
from tacit.server.staleness import staleness
from tacit.server.state import Rules, initial_state, open_requests
from tacit.server.step import begin, step

NAMES = tuple("abcde")
NEAR = 1e-3
"""Nats from the limit at which exchanges are counted."""


def normal(mean, precision):
    return {"linear": precision * np.array(mean), "quadratic": np.full(len(mean), -0.5 * precision)}


def shift(q, by):
    """An update that moves the mean of q by `by`, and no precision."""
    precision = -2 * q["quadratic"]
    return {"linear": precision * np.array(by), "quadratic": np.zeros(len(by))}


def test_staleness_counts_how_often_the_same_step_was_taken():
    family = MeanFieldGaussian(2)
    sent = normal([0.0, 0.0], 4.0)
    step_ = shift(sent, [1.0, 0.0])
    assert staleness(family, sent, sent, step_) == 0.0
    for taken in (1, 2, 3):
        now = normal([float(taken), 0.0], 4.0)
        assert staleness(family, now, sent, step_) == pytest.approx(taken)
    assert staleness(family, normal([0.0, 5.0], 4.0), sent, step_) == 0.0
    assert staleness(family, normal([-2.0, 0.0], 4.0), sent, step_) == 0.0
    assert staleness(family, normal([0.5, 0.0], 4.0), sent, step_) == pytest.approx(0.5)
    nothing = {name: np.zeros(2) for name in sent}
    assert staleness(family, normal([1.0, 0.0], 4.0), sent, nothing) == 0.0
    more = {"linear": np.zeros(2), "quadratic": np.full(2, -3.0)}
    assert staleness(family, normal([0.0, 0.0], 9.0), sent, more) == 0.0, "precision is its own"


def test_staleness_of_a_full_covariance():
    family = FullGaussian(2)
    sent = {"linear": np.zeros(2), "quadratic": -0.5 * np.eye(2)}
    now = {"linear": np.array([2.0, 0.0]), "quadratic": -0.5 * np.eye(2)}
    change = {"linear": np.array([1.0, 0.0]), "quadratic": np.zeros((2, 2))}
    assert staleness(family, now, sent, change) == pytest.approx(2.0)


class Regression:
    """Mean-field regression on correlated columns, whose parties answer exactly."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        mix = np.linalg.cholesky(0.4 * np.eye(4) + 0.6)
        self.squares, self.products = {}, {}
        for name in NAMES:
            x = rng.normal(size=(rng.integers(15, 60), 4)) @ mix.T
            y = x @ np.array([1.0, -1.0, 0.5, 2.0]) + rng.normal(size=len(x))
            self.squares[name], self.products[name] = x.T @ x, x.T @ y
        whole = np.eye(4) + sum(self.squares.values())
        self.precision = np.diag(whole).copy()
        self.mean = np.linalg.solve(whole, sum(self.products.values()))

    def answer(self, request):
        party, q, factor = request.party, request.q, request.factor
        cavity = {name: q[name] - factor[name] for name in q}
        precision = -2 * cavity["quadratic"]
        matrix = np.diag(precision) + self.squares[party]
        mean = np.linalg.solve(matrix, cavity["linear"] + self.products[party])
        precision = precision + np.diag(self.squares[party])
        new = {"linear": precision * mean, "quadratic": -0.5 * precision}
        delta = {name: request.damping * (new[name] - q[name]) for name in q}
        return Reply(request.id, party, request.version, delta, None)

    def distance(self, q):
        """KL divergence of q from the limit."""
        precision = -2 * q["quadratic"]
        off = self.precision * (q["linear"] / precision - self.mean) ** 2
        ratio = self.precision / precision
        return 0.5 * float(np.sum(ratio - 1 - np.log(ratio) + off))

    def exchanges(self, damping, delays, until, most=3000):
        """Exchanges until q is within `until` nats of the limit, and the last state."""
        rules = Rules(
            family=MeanFieldGaussian(4),
            schedule=Asynchronous(rounds=most, damping=damping, tolerance=0.0),
            parties=NAMES,
            seed=0,
            prior=normal([0.0] * 4, 1.0),
        )
        state = begin(rules, initial_state(rules))
        queue, sent = [], set()
        now = 0.0
        while state.exchanges < most and not self.distance(state.q) < until:
            for request in open_requests(state):
                if request.id not in sent:
                    sent.add(request.id)
                    at = now + delays[request.party]
                    heapq.heappush(queue, (at, request.id, self.answer(request)))
            now, _, reply = heapq.heappop(queue)
            state, _ = step(rules, state, reply)
        return state.exchanges, state


@pytest.mark.parametrize(("far", "seed"), [(1.0, 0), (1.0, 1), (8.0, 0), (8.0, 2)])
def test_the_limit_is_exact_and_reached_in_fewer_exchanges(far, seed):
    """Of five parties one may be 8 times as far; the damping by default is 0.3 for each update."""
    problem = Regression(seed)
    delays = {name: 1.0 + 0.01 * number for number, name in enumerate(NAMES)} | {"e": far}
    aware, _ = problem.exchanges(StalenessDamping(), delays, NEAR)
    fixed, _ = problem.exchanges(0.3, delays, NEAR)
    assert aware < (0.75 if far > 1 else 0.95) * fixed
    _, state = problem.exchanges(StalenessDamping(), delays, 1e-14)
    np.testing.assert_allclose(-2 * state.q["quadratic"], problem.precision, rtol=1e-6)
    np.testing.assert_allclose(state.q["linear"] / problem.precision, problem.mean, rtol=1e-6)
    total = {name: sum(one.natural[name] for one in state.factors.values()) for name in state.q}
    for name, value in normal([0.0] * 4, 1.0).items():
        np.testing.assert_allclose(state.q[name], value + total[name], rtol=1e-9)


def test_settings():
    made = AsynchronousSettings(damping=DampingSettings(least=0.2)).make()
    assert made.damping == StalenessDamping(least=0.2)
    for kind in (Synchronous, Sequential):
        with pytest.raises(ConfigError, match=r"damping\.least cannot be combined with schedule"):
            kind(damping=StalenessDamping())
    with pytest.raises(ConfigError, match=r"schedule\.damping\.least = 0"):
        StalenessDamping(least=0.0)
