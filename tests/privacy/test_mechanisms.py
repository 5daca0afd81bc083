"""A release carries the noise that it declares, and the suite that says so can fail."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from scipy import stats

from tacit.errors import ConfigError, PrivacyBudgetError
from tacit.privacy.bounded import _make, clip_units
from tacit.privacy.events import GaussianEvent, Lattice, Poisson, WithoutReplacement
from tacit.privacy.mechanisms import (
    Drawn,
    Gaussian,
    Mechanism,
    Release,
    check_released,
    per_event,
    released,
)
from tacit.testing import Scaled, check_mechanism, gaussian_faults

UNSAMPLED = Drawn()
BOUNDED = clip_units({"a": jnp.ones((2, 3))}, 1.0)
NOISE = np.array([5, -3, 2**20])
LATTICE = Lattice(numbers=3, bits=20)


def declared(noise_sd):
    """The event of a Gaussian mechanism, written down once more."""

    def oracle(bounded, drawn):
        sampling = None
        if drawn.rate is not None:
            sampling = Poisson(rate=float(drawn.rate))
        elif drawn.batch is not None:
            sampling = WithoutReplacement(batch=int(drawn.batch), total=int(drawn.total))
        return GaussianEvent(
            clip=float(bounded.clip),
            noise_sd=noise_sd,
            sampling=sampling,
            nonnegative=bounded.nonnegative,
        )

    return oracle


class HalfNoise(Gaussian):
    """Declares what it does not add."""

    def release(self, key, bounded, drawn=UNSAMPLED):
        return Scaled(Gaussian(noise_sd=self.noise_sd), 0.5).release(key, bounded, drawn)


class NoSampling(Gaussian):
    """Forgets how the batch was drawn."""

    def release(self, key, bounded, drawn=UNSAMPLED):
        return super().release(key, bounded)


@dataclass(frozen=True)
class NoCost(Mechanism):
    """Hands out the value alone."""

    def release(self, key, bounded, drawn=UNSAMPLED):
        return jax.tree.map(lambda leaf: leaf, bounded.value)


class HalfClip(Gaussian):
    """Says that a unit moves the sum by less than it does."""

    def release(self, key, bounded, drawn=UNSAMPLED):
        found = super().release(key, bounded, drawn)
        return Release(found.value, found.cost._replace(clip=0.5 * found.cost.clip))


def test_the_gaussian_mechanism_conforms():
    check_mechanism(Gaussian(noise_sd=2.5), oracle=declared(2.5), scale=3.0)


def test_shares_of_the_noise_add_up_to_what_is_declared():
    check_mechanism(Gaussian(noise_sd=2.5, shares=7), oracle=declared(2.5), shares=7)


def test_shares_that_are_whole_noises_are_caught():
    with pytest.raises(
        AssertionError, match=r"one release, float32: .*variance of the noise: sd 2\.5"
    ):
        check_mechanism(Gaussian(noise_sd=2.5), shares=7)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (HalfNoise(noise_sd=2.0), "variance of the noise: sd .* expected 2"),
        (NoSampling(noise_sd=2.0), r"event \(jit and vmap\): declared .*sampling=None"),
        (HalfClip(noise_sd=2.0), r"event \(plain\): declared GaussianEvent\(clip=0.5"),
        (NoCost(), "cost: release returned dict, expected a Release"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_mechanism_that_lies_is_caught(wrong, said):
    with pytest.raises(AssertionError, match=said):
        check_mechanism(wrong)


def test_an_oracle_that_expects_more_noise_is_heard():
    with pytest.raises(AssertionError, match=r"noise_sd=2\.0, .* expected .*noise_sd=2\.1"):
        check_mechanism(Gaussian(noise_sd=2.0), oracle=declared(2.1))


# The law's tests on samples that are known: they accept the right one and reject each wrong one.


def normal(draws=8000, width=32, seed=0):
    return np.random.default_rng(seed).normal(size=(draws, width))


def laplace():
    return np.random.default_rng(0).laplace(size=(8000, 32)) / np.sqrt(2.0)


def cut_off():
    noise = np.random.default_rng(0).normal(size=(16000, 32))
    return np.where(np.abs(noise) > 4.0, 0.0, noise)


def shared_size():
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=(8000, 2))
    return signs * np.abs(normal(width=1))


@pytest.mark.parametrize("seed", range(5))
def test_a_normal_sample_has_no_fault(seed):
    assert gaussian_faults(3.0 * normal(seed=seed), 3.0) == []


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (normal() + 0.1, "mean"),
        (0.9 * normal(), "variance"),
        (1.1 * normal(), "variance"),
        (laplace(), "shape"),
        (cut_off(), "tails"),
        (np.repeat(normal(width=1), 2, axis=1), "independence: coordinates"),
        (shared_size(), "independence: sizes of coordinates"),
        (np.repeat(normal(draws=4000), 2, axis=0), "independence: two keys"),
        (0.0 * normal(), "variance"),
        (np.full((10, 2), np.nan), "law: the noise is not finite"),
        (np.zeros((10, 0)), "law: there are no draws"),
    ],
)
def test_a_sample_that_is_not_normal_has_the_fault_that_it_was_given(noise, said):
    assert any(fault.startswith(said) for fault in gaussian_faults(noise, 1.0))


def test_a_difference_of_a_tenth_is_missed_less_than_once_in_a_billion():
    draws, width, alarm = 8000, 33, 1e-6
    for factor in (0.9, 1.1):
        low = stats.chi2.ppf(alarm / width / 2, draws) / factor**2
        high = stats.chi2.isf(alarm / width / 2, draws) / factor**2
        assert stats.chi2.cdf(high, draws) - stats.chi2.cdf(low, draws) < 1e-9


# Refusals and costs.


@pytest.mark.parametrize("noise_sd", [0, 0.0, -1.0, np.nan, np.inf])
def test_a_mechanism_without_noise_is_refused(noise_sd):
    with pytest.raises(ConfigError, match="a release without noise has no guarantee"):
        Gaussian(noise_sd=noise_sd)
    hidden = Gaussian(noise_sd=jnp.asarray(noise_sd, jnp.float64))
    release = hidden.release(NOISE, BOUNDED)
    with pytest.raises(ConfigError, match="a release without noise has no guarantee"):
        _ = release.event


@pytest.mark.parametrize("shares", [0, 0.5, -1, np.nan])
def test_less_than_one_share_is_refused(shares):
    with pytest.raises(ConfigError, match="at least 1"):
        Gaussian(noise_sd=1.0, shares=shares)


def test_only_float64_sums_are_rounded_and_only_with_noise_for_each_number():
    for dtype in (int, jnp.float32):
        other = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), BOUNDED)  # noqa: B023
        with pytest.raises(TypeError, match="in float64"):
            Gaussian(noise_sd=1.0).release(NOISE, other)
    for noise in (NOISE[:2], NOISE.astype(float), np.zeros(4, np.int64)):
        with pytest.raises(TypeError, match="draw 3 int64 numbers"):
            Gaussian(noise_sd=1.0).release(noise, BOUNDED)


def test_a_release_is_clamped_to_its_part_of_the_ring():
    wide = clip_units(jnp.array([[1e14, -1e14, 1.0]]), 1e15)
    for shares in (1, 4):
        release = Gaussian(noise_sd=1e-6, shares=shares).release(NOISE, wide)
        limit = 2**61 // shares
        assert np.asarray(release.integers)[:2].tolist() == [limit + 5, -limit - 3]
    exact = Gaussian(noise_sd=1.0, shares=np.inf).release(NOISE, BOUNDED)
    assert np.array_equal(exact.integers["a"], np.rint(2**20 * np.asarray(BOUNDED.value["a"])))
    assert exact.event.lattice == LATTICE


def test_a_sum_that_is_not_finite_is_never_sent():
    broken = jax.tree.map(lambda leaf: jnp.asarray(leaf).at[..., :1].set(jnp.nan), BOUNDED.value)
    release = Gaussian(noise_sd=1.0).release(NOISE, _make(broken, 1.0))
    assert np.isnan(np.asarray(release.value["a"])).tolist() == [True, False, False]


def test_an_answer_leaves_only_if_it_cost_what_was_charged():
    mechanism = Gaussian(noise_sd=2.0)
    keys = np.stack([NOISE] * 3)
    drawn = Drawn(rate=jnp.asarray(0.1))
    costs = jax.vmap(lambda key: mechanism.release(key, BOUNDED, drawn).cost)(keys)
    event = GaussianEvent(clip=1.0, noise_sd=2.0, sampling=Poisson(rate=0.1), lattice=LATTICE)
    thrice = msgspec.structs.replace(event, count=3)
    replace = msgspec.structs.replace
    assert released(costs) == per_event([thrice]) == per_event([event] * 3)
    check_released(costs, [thrice], "a")
    for wrong in (
        [event],
        [event] * 4,
        [replace(thrice, sampling=None)],
        [replace(thrice, noise_sd=2.1)],
        [replace(thrice, clip=0.9)],
        [replace(thrice, lattice=None)],
        *(
            [replace(thrice, lattice=replace(LATTICE, **{name: 21}))]
            for name in ("numbers", "bits", "parties", "units")
        ),
        [],
    ):
        with pytest.raises(PrivacyBudgetError, match=r"party 'a'.*nothing is sent"):
            check_released(costs, wrong, "a")
