"""The least noise for a target: it is met, and a hundredth less would not meet it."""

import math

import pytest

from tacit.errors import ConfigError
from tacit.privacy.accounting import ACCOUNTANTS, calibrate, epsilon, supported
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement

DELTA = 1e-5
SAMPLINGS = [None, Poisson(rate=0.05), WithoutReplacement(batch=5, total=100)]


def steps(sampling, count=1000):
    def events(z: float) -> list[GaussianEvent]:
        return [
            GaussianEvent(clip=0.5, noise_sd=0.5 * z, count=count, sampling=sampling),
            GaussianEvent(clip=1.0, noise_sd=10 * z),
        ]

    return events


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("target", [0.5, 20.0])
def test_round_trip(accountant, adjacency, sampling, target):
    events = steps(sampling)
    if supported(events(1.0)[0], adjacency, accountant):
        with pytest.raises(ConfigError):
            calibrate(target, DELTA, adjacency, events, accountant=accountant)
        return
    z = calibrate(target, DELTA, adjacency, events, accountant=accountant)
    assert epsilon(events(z), DELTA, adjacency, accountant=accountant) <= target
    assert epsilon(events(z * 0.99), DELTA, adjacency, accountant=accountant) > target


def test_a_few_evaluations_are_enough():
    """Speed lives in benchmarks; the number of evaluations is what it depends on."""
    calls = []

    def events(z: float) -> list[GaussianEvent]:
        calls.append(z)
        return steps(Poisson(rate=0.05))(z)

    calibrate(1.0, DELTA, "add-or-remove-one", events)
    assert len(calls) <= 12


def test_a_target_that_any_noise_meets_gets_the_least():
    z = calibrate(1e20, 0.5, "add-or-remove-one", steps(None, 1))
    assert epsilon(steps(None, 1)(z), 0.5, "add-or-remove-one") <= 1e20
    assert z < 1e-6


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_targets_are_refused(bad):
    with pytest.raises(ConfigError, match=r"^target_epsilon = "):
        calibrate(bad, DELTA, "add-or-remove-one", steps(None))


def test_the_moments_accountant_cannot_go_below_its_largest_lambda():
    """ε ≥ ln(1/δ)/32 whatever the noise: a target below that is refused, not approximated."""
    with pytest.raises(ConfigError, match="no noise up to"):
        calibrate(0.3, DELTA, "add-or-remove-one", steps(None), accountant="moments")


def test_a_target_no_noise_meets_is_refused():
    def deaf(_: float) -> list[GaussianEvent]:
        return [GaussianEvent(clip=1.0, noise_sd=1.0)]

    with pytest.raises(ConfigError, match=r"no noise up to 1e\+09 meets target_epsilon = 0\.1"):
        calibrate(0.1, DELTA, "add-or-remove-one", deaf)
