"""What a guarantee for one unit says about several: never less than the truth."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr

from tacit.privacy.accounting import epsilon
from tacit.privacy.accounting.groups import group_epsilon, group_guarantee
from tacit.privacy.events import GaussianEvent, Poisson


def exact_delta(mu, eps):
    """δ of N(0, 1) against N(μ, 1), by the textbook formula and not by the accountant."""
    first, second = log_ndtr(mu / 2 - eps / mu), log_ndtr(-mu / 2 - eps / mu)
    return math.exp(first) - math.exp(eps + second)


def exact_epsilon(mu, delta):
    """By bisection, from below: never above the true value by more than rounding."""
    low, high = 0.0, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if exact_delta(mu, middle) > delta else (low, middle)
    return low


@given(eps=st.floats(1e-6, 20.0), delta=st.floats(1e-12, 1e-3), size=st.integers(1, 20))
def test_the_general_bound_is_a_sum_of_one_step_at_a_time(eps, delta, size):
    together, total = group_guarantee(eps, delta, size)
    steps = sum(math.exp(step * eps) for step in range(size)) * delta
    assert together == pytest.approx(size * eps)
    assert total == pytest.approx(min(1.0, steps), rel=1e-9)
    assert group_guarantee(eps, delta, 1) == pytest.approx((eps, delta))


@pytest.mark.parametrize(("eps", "size"), [(800.0, 1), (100.0, 8), (1e300, 2)])
def test_a_bound_that_says_nothing_does_not_overflow(eps, size):
    together, total = group_guarantee(eps, 1e-6, size)
    assert together == pytest.approx(size * eps)
    assert total == 1.0


def test_no_privacy_loss_adds_up_in_delta_alone():
    assert group_guarantee(0.0, 1e-6, 5) == (0.0, pytest.approx(5e-6))


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("noise", [3.0, 20.0])
def test_a_group_of_an_unsampled_gaussian_is_bounded_from_both_sides(adjacency, size, noise):
    events = [GaussianEvent(clip=1.0, noise_sd=noise, count=4)]
    delta = 1e-5
    direct = group_epsilon(events, delta, adjacency, size)
    assert direct is not None
    reach = size * events[0].sensitivity(adjacency)
    truth = exact_epsilon(reach * math.sqrt(4) / noise, delta)
    assert truth * (1 - 1e-9) <= direct <= truth * 1.001 + 1e-6
    # The general bound at the δ that it gives: the group's own ε there is smaller.
    one = epsilon(events, delta, adjacency)
    together, total = group_guarantee(one, delta, size)
    if total < 1:
        at_total = group_epsilon(events, total, adjacency, size)
        assert at_total is not None
        assert at_total <= together


def test_a_group_is_charged_for_several_events_together():
    events = [
        GaussianEvent(clip=1.0, noise_sd=10.0),
        GaussianEvent(clip=2.0, noise_sd=10.0, count=2, nonnegative=True),
    ]
    found = group_epsilon(events, 1e-5, "replace-one", 3)
    assert found is not None
    # Σ (sensitivity/noise)²: one of 2·1, two of √2·2, each for three units.
    mu = 3 * math.sqrt(2.0**2 + 2 * (math.sqrt(2.0) * 2.0) ** 2) / 10.0
    assert found == pytest.approx(exact_epsilon(mu, 1e-5), rel=1e-3)


def test_a_sampled_group_is_bounded_by_the_general_argument():
    events = [GaussianEvent(clip=1.0, noise_sd=4.0, count=5, sampling=Poisson(rate=0.1))]
    delta = 1e-5
    one = group_epsilon(events, delta, "add-or-remove-one", 1)
    assert one == epsilon(events, delta, "add-or-remove-one")
    found = group_epsilon(events, delta, "add-or-remove-one", 2)
    assert found is not None
    assert found > 2 * one, "δ of the group is larger, so ε at the same δ is too"
    # As if every batch held both of them: worse than any sampling can be.
    unsampled = [GaussianEvent(clip=1.0, noise_sd=4.0, count=5)]
    assert found <= 20 * group_epsilon(unsampled, delta, "add-or-remove-one", 2)


def test_a_group_that_cannot_be_bounded_has_no_number():
    events = [GaussianEvent(clip=1.0, noise_sd=1e-3)]
    assert group_epsilon(events, 1e-5, "replace-one", 10) is None
