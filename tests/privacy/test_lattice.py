"""The discrete Gaussian sampler against exact probabilities, integers alone, and its key."""

import math
import os
import pickle
import random
import warnings
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tacit.errors import TacitError
from tacit.privacy import lattice
from tacit.privacy.lattice import (
    DiscreteGaussian,
    Keystream,
    accepted,
    candidates,
    draw_each,
    exp_bounds,
    lattice_sum,
    refined,
)

KEY = bytes(range(32))
FALSE_ALARM = 1e-6


def chi_square(sample, scale):
    """p-value of a sample against P(x) ∝ exp(−x²/2·scale²), in bins of at least 10 expected."""
    reach = math.ceil(8 * scale)
    x = np.arange(-reach, reach + 1)
    mass = np.exp(-0.5 * (x / scale) ** 2)
    expected = len(sample) * mass / mass.sum()
    counts = np.bincount(np.clip(sample, -reach, reach) + reach, minlength=len(x))
    edges, total = [0], 0.0
    for place, one in enumerate(expected):
        total += one
        if total >= 10.0:
            edges.append(place + 1)
            total = 0.0
    edges[-1] = len(x)
    found = np.add.reduceat(counts, edges[:-1])
    wanted = np.add.reduceat(expected, edges[:-1])
    return stats.chisquare(found, wanted * found.sum() / wanted.sum()).pvalue


@pytest.mark.parametrize("bits", [1, 2, 4, 7])
def test_small_scales_have_exactly_their_law(bits):
    sample = DiscreteGaussian(os.urandom(32), bits).draw(200_000)
    assert chi_square(sample, 2.0**bits) > FALSE_ALARM
    assert chi_square(sample, 1.05 * 2.0**bits) < FALSE_ALARM
    assert chi_square(sample + 1, 2.0**bits) < FALSE_ALARM or bits > 6


@pytest.mark.parametrize("bits", [20, 27, 40])
def test_large_scales_have_their_law_in_high_and_low_bits(bits):
    sample = DiscreteGaussian(os.urandom(32), bits).draw(10**6 if bits == 20 else 10**5)
    # Within a coarse step of a hundredth of a deviation the law is flat to 10⁻⁴.
    assert stats.kstest(sample[: 10**5] / 2.0**bits, "norm").pvalue > FALSE_ALARM
    for modulus in (2, 7, 256):
        counts = np.bincount(sample % modulus, minlength=modulus)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM
    squares = np.sum((sample / 2.0**bits) ** 2)
    assert 2 * min(stats.chi2.cdf(squares, len(sample)), stats.chi2.sf(squares, len(sample))) > 1e-6


@pytest.mark.parametrize("bits", [1, 3])
def test_refinement_alone_has_the_law(bits):
    """Every candidate decided by integers, from fewer digits than it has."""
    digits = Keystream(os.urandom(32), b"digits\0\0")
    words = Keystream(os.urandom(32), b"noise\0\0\0").words(3 * 30_000).reshape(-1, 3)
    found = [refined([int(one) for one in row], bits, digits) for row in words]
    sample = np.array([one for one in found if one is not None])
    assert 0.6 < len(sample) / len(words) < 0.8
    assert chi_square(sample, 2.0**bits) > FALSE_ALARM
    assert chi_square(sample, 1.15 * 2.0**bits) < FALSE_ALARM


def test_floats_and_integers_decide_alike():
    words = Keystream(os.urandom(32), b"noise\0\0\0").words(3 * 5000).reshape(-1, 3)
    for bits in (4, 20, 40):
        values, taken, unclear = candidates(words, bits)
        assert not unclear.any()
        digits = Keystream(KEY, b"digits\0\0")
        found = [refined([int(one) for one in row], bits, digits) for row in words]
        kept = [one for one in found if one is not None]
        assert kept == values[taken].tolist()


def test_close_calls_are_decided_by_more_digits():
    """U that agrees with p, or with the table, in 64 digits."""
    bits = 20
    u, tens = 12345 << (64 - bits), 1 << 62
    bounds = exp_bounds(12345**2, 2 * 4**bits, 64)
    close = np.array([[u, tens, bounds.low], [u, tens, bounds.low + 1]], np.uint64)
    values, _, unclear = candidates(close, bits)
    assert unclear.all()
    assert values.tolist() == [12345, 12345]
    for threshold in lattice._table():
        row = np.array([[u, threshold, 0], [u, threshold - np.uint64(1), 0]], np.uint64)
        assert candidates(row, bits)[2].tolist() == [True, False]
    assert candidates(np.array([[u, 2**64 - 1, 0]], np.uint64), bits)[2].all()
    digits = Keystream(os.urandom(32), b"digits\0\0")
    both = {len(accepted(close[:1], bits, digits)) for _ in range(200)}
    assert both == {0, 1}, "the digits that follow decide"


def test_exp_is_enclosed():
    rng = random.Random(5)
    for _ in range(40):
        b = rng.randrange(1, 10**12)
        a = rng.randrange(0, 12 * b)
        bits = rng.choice((8, 64, 200))
        low, high = exp_bounds(a, b, bits)
        series, term = Fraction(1), Fraction(1)
        for number in range(1, 120):
            term *= Fraction(a, b) / number
            series += term
        assert low <= 2**bits / series
        assert high >= 2**bits / (series + 2 * term)
        assert high - low <= 2


def test_numpy_exp_errs_by_less_than_the_enclosure_allows():
    """2⁻⁴¹ relative is needed; the series in longer integers is the reference."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(0.0, 13.0, 3000), rng.uniform(0.0, 1e-6, 500), [0.0]])
    worst = 0.0
    for value, found in zip(x, np.exp(-x), strict=True):
        a, b = float(value).as_integer_ratio()
        low, _ = exp_bounds(a, b, 120)
        worst = max(worst, abs(float(Fraction(float(found)) * 2**120 / low - 1)))
    assert worst < 2.0**-50


def rational_exp(rng, numerator, denominator):
    """Bernoulli(exp(−n/d)) by Canonne, Kamath and Steinke 2020, Algorithm 1; integers only."""
    while numerator > denominator:
        if not rational_exp(rng, 1, 1):
            return False
        numerator -= denominator
    number = 1
    while rng.randrange(denominator * number) < numerator:
        number += 1
    return number % 2 == 1


def discrete_gaussian(rng, square):
    """N_Z(0, σ²) with σ² = `square` by their Algorithm 3."""
    t = math.isqrt(square) + 1
    while True:
        u = rng.randrange(t)
        if not rational_exp(rng, u, t):
            continue
        v = 0
        while rational_exp(rng, 1, 1):
            v += 1
        x = u + t * v
        negative = rng.random() < 0.5
        if negative and x == 0:
            continue
        n, d = (t * x - square) ** 2, 2 * square * t * t
        if rational_exp(rng, n, d):
            return -x if negative else x


def test_an_integer_only_sampler_agrees():
    """Two-sample χ² against Canonne, Kamath and Steinke's sampler."""
    rng = random.Random(os.urandom(8))
    for bits in (1, 3):
        oracle = np.array([discrete_gaussian(rng, 4**bits) for _ in range(20_000)])
        ours = DiscreteGaussian(os.urandom(32), bits).draw(20_000)
        reach = 4 * 2**bits
        table = np.stack(
            [
                np.bincount(np.clip(one, -reach, reach) + reach, minlength=2 * reach + 1)
                for one in (oracle, ours)
            ]
        )
        table = table[:, table.sum(axis=0) >= 10]
        assert stats.chi2_contingency(table)[1] > FALSE_ALARM
        wide = np.bincount(np.clip(2 * ours, -reach, reach) + reach, minlength=2 * reach + 1)
        both = np.stack([table[0], wide[: table.shape[1]]]) + 1
        assert stats.chi2_contingency(both)[1] < FALSE_ALARM


def test_a_key_is_one_sequence_however_it_is_divided():
    whole = DiscreteGaussian(KEY, 20).draw(150_000)
    parts = DiscreteGaussian(KEY, 20)
    sizes = [0, 1, 7, 100, 0, 40_000, 99_892, 10_000]
    assert np.array_equal(np.concatenate([parts.draw(size) for size in sizes]), whole)
    ahead = DiscreteGaussian(KEY, 20)
    ahead.ahead(1000)
    assert np.array_equal(ahead.draw(5000), whole[:5000])
    assert draw_each([KEY], 0).shape == (1, 0)
    other = os.urandom(32)
    for count in (3, 100, 50_000):
        both = draw_each([KEY, other, KEY], count)
        assert np.array_equal(both[0], whole[:count])
        assert np.array_equal(both[2], both[0])
        assert np.array_equal(both[1], DiscreteGaussian(other, 20).draw(count))


def test_the_stream_is_chacha20_and_refuses_a_fork():
    """RFC 8439, appendix A.1, test vector 1: an all-zero key and nonce."""
    words = Keystream(bytes(32), bytes(8)).words(8)
    assert words.astype("<u8").tobytes().hex().startswith("76b8e0ada0f13d90405d6ae55386bd28")
    noise = DiscreteGaussian(KEY)
    noise.draw(3)
    read, write = os.pipe()
    with warnings.catch_warnings():  # threads of others, which the child does not use
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            noise.draw(10**6)
            os.write(write, b"drew")
        except TacitError as refused:
            os.write(write, str(refused).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"after a fork both would draw" in os.read(read, 1000)
    with pytest.raises(TypeError):
        pickle.dumps(noise)


def test_sums_are_exact_in_any_order_and_wrap():
    rng = np.random.default_rng(4)
    vectors = [rng.integers(-(2**60), 2**60, 50) for _ in range(9)]
    total = lattice_sum(vectors)
    for _ in range(5):
        rng.shuffle(vectors)
        assert np.array_equal(lattice_sum(vectors), total)
    largest = np.array([2**63 - 1], np.int64)
    assert lattice_sum([largest, np.array([1])]).tolist() == [-(2**63)]
    with pytest.raises(TypeError, match="int64"):
        lattice_sum([np.ones(3)])


@pytest.mark.parametrize("bits", [0, 41])
def test_other_parameters_are_refused(bits):
    with pytest.raises(ValueError, match="must be from 1"):
        DiscreteGaussian(KEY, bits)
    with pytest.raises(ValueError, match="32"):
        DiscreteGaussian(KEY[:8])
