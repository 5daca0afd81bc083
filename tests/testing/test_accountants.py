"""Every accountant passes its suite; one with a known error is rejected for that error."""

import math
from functools import partial

import msgspec
import pytest

from tacit.errors import ConfigError
from tacit.privacy.accounting import ACCOUNTANTS, delta, epsilon
from tacit.privacy.events import GaussianEvent, Poisson
from tacit.testing import check_accountant
from tacit.testing.privacy_loss import ExactGaussian, compose_below, oracles

LOOSEST = {"pld": 1.000001, "rdp": 1.08, "moments": 1.15, "strong": 1.05}


def moments(events, level, adjacency):
    """The cheapest accountant with a bound for sampled releases, of which wrong ones are made."""
    return epsilon(events, level, adjacency, accountant="moments")


def changed(events, **fields):
    return [msgspec.structs.replace(event, **fields) for event in events]


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_shipped_accountants_pass(name):
    ratio = check_accountant(partial(epsilon, accountant=name), partial(delta, accountant=name))
    assert 1 <= ratio <= LOOSEST[name]


def test_the_oracles_reproduce_known_values():
    """Balle and Wang 2018 for μ = 1; Abadi et al. 2016 report ε = 1.26 for 10,000 steps."""
    assert ExactGaussian(1.0).epsilon(1e-5) == pytest.approx(4.37717, abs=1e-5)
    assert ExactGaussian(1.0).delta(1.0) == pytest.approx(0.12693674, abs=1e-8)
    integrated = compose_below([((((1.0, 0.0),), ((1.0, 1.0),)), 1)])
    assert 0.999 <= integrated.epsilon(1e-5) / ExactGaussian(1.0).epsilon(1e-5) <= 1
    noise = 4.0
    mnist = GaussianEvent(clip=1.0, noise_sd=noise, count=10_000, sampling=Poisson(rate=0.01))
    pair = (((0.99, 0.0), (0.01, 1 / noise)), ((1.0, 0.0),))
    lost = compose_below([(pair, 10_000)], grid=2e-6, size=2**21).epsilon(1e-5)
    assert lost <= epsilon([mnist], 1e-5, "add-or-remove-one") <= 1.03 * lost
    assert moments([mnist], 1e-5, "add-or-remove-one") == pytest.approx(1.26, abs=5e-3)


def test_an_oracle_knows_the_directions_and_the_adjacencies():
    event = GaussianEvent(clip=1.0, noise_sd=1.0, sampling=Poisson(rate=0.1))
    forward, backward = (one.epsilon(1e-3) for one in oracles([event], "add-or-remove-one"))
    assert forward > 1.2 * backward > 0
    assert max(one.epsilon(1e-3) for one in oracles([event], "replace-one")) > forward


def without_sampling(events, level, adjacency):
    if any(event.sampling for event in events):
        raise ConfigError("no bound for sampled releases")
    return epsilon(events, level, adjacency)


def half_rate(events, level, adjacency):
    halved = [
        msgspec.structs.replace(event, sampling=Poisson(rate=event.sampling.rate / 2))
        if event.sampling
        else event
        for event in events
    ]
    return moments(halved, level, adjacency)


def without_root_two(events, level, adjacency):
    return moments(changed(events, nonnegative=False), level, "add-or-remove-one") * math.sqrt(2)


def one_step_fewer(events, level, adjacency):
    if events[0].count == 1:
        return 0.0
    fewer = [*changed(events[:1], count=events[0].count - 1), *events[1:]]
    return moments(fewer, level, adjacency)


def one_adjacency(events, level, adjacency):
    moments(events, level, adjacency)
    return moments(events, level, "add-or-remove-one")


def dearest_event(events, level, adjacency):
    return max(moments([event], level, adjacency) for event in events)


def last_release(events, level, adjacency):
    return moments(changed(events, count=1), level, adjacency)


def in_units_of_noise(events, level, adjacency):
    return moments(events, level, adjacency) * max(event.noise_sd for event in events) ** 0.1


def by_the_length_of_the_list(events, level, adjacency):
    return moments(events, level, adjacency) * (1 + 0.01 * len(events))


def cheaper_when_larger(events, level, adjacency):
    rates = [event.sampling.rate for event in events if event.sampling]
    return moments(events, level, adjacency) * (20 if rates and max(rates) <= 0.05 else 1)


def any_delta(events, level, adjacency):
    return moments(events, level if 0 < level < 1 else 0.5, adjacency)


def fixed_batches(events, level, adjacency):
    poisson = [
        msgspec.structs.replace(e, sampling=Poisson(rate=e.sampling.rate)) if e.sampling else e
        for e in events
    ]
    return epsilon(poisson, level, adjacency, accountant="strong")


def far_too_much(events, level, adjacency):
    return 50 * moments(events, level, adjacency)


def at_most_100(events, level, adjacency):
    return min(100.0, moments(events, level, adjacency))


def nothing_known(events, level, adjacency):
    raise ConfigError("no bound")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (half_rate, r"epsilon: .*, Poisson, add-or-remove-one, .*reported ε = .*ε is at least"),
        (without_root_two, r"epsilon: .*replace-one"),
        (one_step_fewer, r"epsilon: one release, no sampling, .*reported ε = 0"),
        (one_adjacency, r"epsilon: .*replace-one"),
        (dearest_event, r"epsilon: mixed events"),
        (last_release, r"epsilon: two releases"),
        (in_units_of_noise, r"epsilon: two releases, no sampling|another unit of clip and noise"),
        (by_the_length_of_the_list, r"composition: mixed events, .*with another grouping"),
        (cheaper_when_larger, r"monotone in rate: Poisson, add-or-remove-one: ε falls from"),
        (any_delta, r"refusal: delta = .*: the accountant returned"),
        (fixed_batches, r"epsilon: .*WithoutReplacement|refusal: sampling without replacement"),
        (far_too_much, r"power: even with .* make it tighter, or set power=False"),
        (at_most_100, r"epsilon: a large ε, .*reported ε = 100, but ε is at least 2"),
        (nothing_known, r"support: the accountant refuses releases without sampling"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_accountants_are_rejected(wrong, message):
    with pytest.raises(AssertionError, match=message):
        check_accountant(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda *a: 0.9 * delta(*a), r"delta: one release, no sampling, .* and 1"),
        (lambda *a: 1.1 * delta(*a), r"inverse: .*δ at the reported ε is .* at most 1e-05"),
        (lambda e, eps, r: delta(e, max(0.0, eps), r), r"refusal: epsilon = -0.1"),
    ],
)
def test_a_wrong_delta_is_rejected(wrong, message):
    with pytest.raises(AssertionError, match=message):
        check_accountant(without_sampling, wrong)


def test_a_loose_accountant_is_accepted_if_that_is_intended():
    assert check_accountant(far_too_much, power=False) > 50
