"""Statistics of audits: they hold at their confidence, and they have power."""

import jax
import numpy as np
import pytest
from scipy.stats import beta, binom

from tacit.privacy.accounting import epsilon
from tacit.privacy.audit.bounds import (
    gaussian_epsilon,
    lower_rate,
    projected_distance,
    threshold_epsilon,
    upper_rate,
)
from tacit.privacy.audit.low_bits import low_bits_epsilon, reachable
from tacit.privacy.audit.one_run import canaries_epsilon, guess_probability, ruled_out
from tacit.privacy.events import GaussianEvent


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 3.0])
def test_the_gaussian_bound_is_the_accountants(mu):
    event = GaussianEvent(clip=mu, noise_sd=1.0)
    expected = epsilon([event], 1e-5, "add-or-remove-one")
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(expected, rel=1e-6)


def test_clopper_pearson():
    assert lower_rate(7, 50, 0.01) == pytest.approx(beta.ppf(0.01, 7, 44))
    assert upper_rate(7, 50, 0.01) == pytest.approx(beta.ppf(0.99, 8, 43))
    assert (lower_rate(0, 50, 0.01), upper_rate(50, 50, 0.01)) == (0.0, 1.0)


def test_threshold_bounds_hold_and_have_power():
    rng = np.random.default_rng(1)
    for mu in (0.0, 1.0, 2.0):
        true = gaussian_epsilon(mu, 1e-5)
        bounds = [
            threshold_epsilon(rng.normal(size=2_000), mu + rng.normal(size=2_000), 1e-5)
            for _ in range(20)
        ]
        assert max(bounds) <= true + 1e-12
        assert mu < 2.0 or min(bounds) > 1.0
    apart = threshold_epsilon(np.zeros(2_000), np.ones(2_000), 1e-5)
    assert apart > 4.0


def test_distances_hold_and_come_near():
    rng = np.random.default_rng(2)
    difference = np.array([0.3, 0.0, -0.1])
    size = np.linalg.norm(difference)
    found = [projected_distance(difference, rng.normal(size=(4_000, 3))) for _ in range(50)]
    assert max(found) <= size
    assert min(found) >= 0.9 * size


def test_the_direction_of_least_noise_is_found():
    rng = np.random.default_rng(3)
    difference, noise = np.array([0.3, 0.3, 0.3]), rng.normal(size=(2_000, 3))
    weak = noise * [1.0, 0.1, 1.0]
    assert projected_distance(difference, weak) > 2.0
    assert projected_distance(difference, np.repeat(noise[:, :1], 3, axis=1)) < 0.4
    uneven = np.array([0.3, -0.3, 0.0])
    assert projected_distance(uneven, np.repeat(noise[:, :1], 3, axis=1)) > 1e3
    assert projected_distance(difference, noise * [1.0, 0.0, 1.0]) == np.inf
    assert projected_distance(np.ones(1), rng.uniform(-1, 1, size=(4_000, 1))) is None
    assert projected_distance(np.zeros(3), noise) is None


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_floating_point_noise_is_told_apart_by_its_low_bits(kind):
    """ε = 0.02 by its standard deviation; 300 messages of five numbers show more than 2."""
    sums = (
        np.array([0.1, 0.2, -0.3, 0.4, 0.25], kind),
        np.array([0.11, 0.21, -0.3, 0.4, 0.27], kind),
    )
    keys = jax.random.split(jax.random.key(0))
    noise = [np.asarray(jax.random.normal(key, (300, 5), kind)) for key in keys]
    released = tuple(s + kind(3.0) * z for s, z in zip(sums, noise, strict=True))
    assert reachable(released[0], sums[0], 3.0).all()
    assert low_bits_epsilon((released[0], released[1]), sums, 3.0, 1e-5) > 2.0


def test_integers_with_noise_have_no_telling_low_bits():
    rng = np.random.default_rng(4)
    sums = np.array([3.0, 70.0]), np.array([4.0, 71.0])
    noise = rng.normal(size=(2, 2_000, 2)) * 2**20
    released = [np.rint(s + z).astype(np.int64) for s, z in zip(sums, noise, strict=True)]
    assert low_bits_epsilon((released[0], released[1]), sums, 2.0**20, 1e-5) == 0.0
    coarse = [
        np.rint(s + z // 256 * 256).astype(np.int64) for s, z in zip(sums, noise, strict=True)
    ]
    assert low_bits_epsilon((coarse[0], coarse[1]), sums, 2.0**20, 1e-5) > 3.0


def test_guesses_of_canaries():
    assert guess_probability(100, 100, 60, 0.0, 0.0) == pytest.approx(binom.sf(59, 100, 0.5))
    assert guess_probability(100, 100, 60, 0.0, 1e-3) > binom.sf(59, 100, 0.5)
    rng = np.random.default_rng(5)
    coins = rng.random(500) < 0.5
    assert canaries_epsilon(rng.normal(size=500), coins, 1e-5) == 0.0
    assert canaries_epsilon(rng.normal(size=500) + 3.0 * coins, coins, 1e-5) > 1.5
    flipped = (rng.random(500) < np.e / (1 + np.e)) == coins
    assert canaries_epsilon(flipped.astype(float), coins, 1e-5) <= 1.0


def test_gaussian_canaries_hold_and_show_more():
    """Canaries with μ-Gaussian scores: the bound is below the true ε, and above that of (ε, δ)."""
    rng, mu, delta = np.random.default_rng(6), 1.0, 1e-5
    true = gaussian_epsilon(mu, delta)
    found = []
    for _ in range(40):
        coins = rng.random(1_000) < 0.5
        scores = rng.normal(size=1_000) + mu * coins
        found.append([canaries_epsilon(scores, coins, delta, gaussian=g) for g in (True, False)])
    whole, pair = np.array(found).T
    assert np.mean(whole <= true) >= 0.95
    assert np.median(whole) > 0.4 * true
    assert np.all(whole > pair)
    assert canaries_epsilon(rng.normal(size=500), rng.random(500) < 0.5, delta, gaussian=True) == 0


@pytest.mark.parametrize(("guesses", "right"), [(50, 40), (200, 130), (200, 101)])
def test_guesses_that_chance_allows_are_not_ruled_out(guesses, right):
    """At μ = 0 the right guesses are those of a fair coin."""
    for error in (0.05, 1e-3, 1e-6):
        if binom.sf(right - 1, guesses, 0.5) > error:
            assert not ruled_out(200, guesses, right, 0.0, error)
    assert ruled_out(200, 200, 180, 0.0, 1e-3)
    assert not ruled_out(200, 200, 180, 5.0, 1e-3)
