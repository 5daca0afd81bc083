"""Filters: Rényi divergences against other computations, and what a filter admits."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad

from tacit.privacy.accounting import delta, epsilon, filters, pld, rdp
from tacit.privacy.accounting.filters import (
    GAUSSIAN_SHARE,
    filtered_epsilon,
    renyi,
    renyi_order,
)
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement

ADDED, REPLACED = "add-or-remove-one", "replace-one"


@pytest.mark.parametrize(("rate", "sd", "order"), [(0.01, 1.0, 8), (0.1, 2.0, 4), (0.3, 4.0, 32)])
def test_poisson_divergences_are_the_librarys(rate, sd, order):
    event = GaussianEvent(clip=1.0, noise_sd=sd, sampling=Poisson(rate=rate))
    library = RdpAccountant([float(order)])
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sd))
    library.compose(sampled)
    assert renyi([event], ADDED, order) == pytest.approx(library._rdp[0], rel=1e-5)
    assert renyi([event], ADDED, order) >= library._rdp[0]


def divergence(p, q, order):
    def log_density(mixture, x):
        terms = (w * math.exp(-((x - m) ** 2) / 2) for w, m in mixture)
        return math.log(sum(terms) / math.sqrt(2 * math.pi))

    def integrand(x):
        return math.exp(order * log_density(p, x) + (1 - order) * log_density(q, x))

    value, _ = quad(integrand, -20, 20, limit=400)
    return math.log(value) / (order - 1)


@pytest.mark.parametrize("order", [2.0, 5.5, 12.0])
def test_replaced_units_diverge_no_more_than_is_said(order):
    rate, sd = 0.2, 3.0
    event = GaussianEvent(clip=1.0, noise_sd=sd, sampling=Poisson(rate=rate))
    there = [(1 - rate, 0.0), (rate, 1 / sd)], [(1 - rate, 0.0), (rate, -1 / sd)]
    exact = max(divergence(*there, order), divergence(*there[::-1], order))
    assert renyi([event], REPLACED, order) == pytest.approx(exact, rel=1e-5)
    subset = GaussianEvent(clip=1.0, noise_sd=sd, sampling=WithoutReplacement(batch=20, total=100))
    pair = [(1 - rate, 0.0), (rate, 2 / sd)], [(1.0, 0.0)]
    exact = max(divergence(*pair, order), divergence(*pair[::-1], order))
    assert exact * (1 - 1e-9) <= renyi([subset], REPLACED, order) <= 1.5 * exact


def test_unsampled_releases_cost_what_they_would_in_one_run_at_a_share_of_delta():
    events = [GaussianEvent(clip=1.0, noise_sd=5.0, count=7)]
    found = filtered_epsilon(events, 1e-5, ADDED, budget=3.0, epsilon=epsilon)
    assert found == epsilon(events, GAUSSIAN_SHARE * 1e-5, ADDED)
    assert 1.0 < found / epsilon(events, 1e-5, ADDED) < 1.02


@pytest.mark.parametrize("adjacency", [ADDED, REPLACED])
def test_a_filter_admits_less_than_a_plan_and_grows_with_every_release(adjacency):
    last = 0.0
    for count in (1, 100, 400):
        events = [
            GaussianEvent(clip=1.0, noise_sd=3.0, count=count, sampling=Poisson(rate=0.02)),
            GaussianEvent(clip=1.0, noise_sd=20.0),
        ]
        found = filtered_epsilon(events, 1e-5, adjacency, budget=1.0, epsilon=epsilon)
        assert found > epsilon(events, 1e-5, adjacency)
        assert found > last
        last = found


def test_the_order_depends_on_the_budget_alone():
    assert renyi_order(1.0, 1e-5) == pytest.approx(24.5, abs=0.1)
    best = renyi_order(0.5, 1e-6)
    room = [(0.5 - math.log(1e6) / (a - 1)) / a for a in (best * 0.98, best, best * 1.02)]
    assert room[1] == max(room)


def test_a_filter_holds_where_runs_are_chosen_by_what_they_see():
    """Gaussian releases whose noise follows the last result: the loss stays within the budget."""
    rng, budget, delta = np.random.default_rng(0), 1.0, 1e-2
    losses = []
    for _ in range(4_000):
        spent, loss, last = 0.0, 0.0, 0.0
        while True:
            distance = 0.4 if last > 0 else 0.1
            events = [GaussianEvent(clip=math.hypot(spent, distance), noise_sd=1.0)]
            if epsilon(events, GAUSSIAN_SHARE * delta, ADDED) > budget:
                break
            spent = math.hypot(spent, distance)
            last = rng.normal() + distance
            loss += distance * last - distance**2 / 2
        losses.append(loss)
    beyond = np.maximum(0.0, -np.expm1(budget - np.array(losses)))
    assert beyond.mean() <= delta + 4 * beyond.std() / math.sqrt(len(losses))


@pytest.mark.parametrize("adjacency", [ADDED, REPLACED])
@pytest.mark.parametrize("sampling", [None, Poisson(rate=0.01)])
@pytest.mark.parametrize("sd", [1e-152, 1e-160, 1e-200])
def test_noise_so_small_that_a_square_overflows_has_no_bound(sd, sampling, adjacency):
    event = GaussianEvent(clip=1.0, noise_sd=sd, sampling=sampling)
    sampled = GaussianEvent(clip=1.0, noise_sd=9.0, sampling=Poisson(rate=0.01))
    found = filtered_epsilon([event, sampled], 1e-6, adjacency, budget=1.0, epsilon=epsilon)
    assert found > 1e6


def test_a_computed_bound_that_is_not_a_number_admits_nothing(monkeypatch):
    nan = float("nan")
    assert filters._converted(nan, 10.0, 1e-6) == math.inf
    event = GaussianEvent(clip=1.0, noise_sd=7.3, sampling=Poisson(rate=0.017))

    class Pmf:
        def get_epsilon_for_delta(self, _):
            return nan

        def get_delta_for_epsilon(self, _):
            return nan

    monkeypatch.setattr(pld, "_compose", lambda _: [Pmf()])
    assert epsilon([event], 1.7e-6, ADDED) == math.inf
    assert delta([event], 1.7, ADDED) == 1.0
    monkeypatch.setattr(rdp, "epsilon", lambda *_: nan)
    assert epsilon([event], 1.7e-6, ADDED, accountant="rdp") == math.inf


def test_the_price_that_the_documentation_names():
    """docs/ledger.md: two runs of 1,000 sampled steps, against one of 2,000."""
    steps = [GaussianEvent(clip=1.0, noise_sd=1.1, count=2_000, sampling=Poisson(rate=0.01))]

    def admits(budget):
        return filtered_epsilon(steps, 1e-5, ADDED, budget=budget, epsilon=epsilon) <= budget

    assert not admits(2.92)
    assert admits(2.93)
    assert epsilon(steps, 1e-5, ADDED) == pytest.approx(2.16, abs=0.005)
