"""Batches are drawn as they are accounted for.

A statistical test here compares p-values with 1e-6, shared among its comparisons: that is how often
it fails on a sampler that is right. Each is also run on a sampler that is wrong, and must fail.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.privacy.bounded import clip_units
from tacit.privacy.events import Poisson, WithoutReplacement
from tacit.privacy.sampling import chunk_length, poisson_mask, poisson_sum, subset_sum

pytestmark = pytest.mark.full_optimisation

FALSE_ALARM = 1e-6
DRAWS = 20_000
RATE = 0.3
ROWS = 12
PRESENT = np.array([1.0] * 9 + [0.0] * 3)


def implausible(counts, draws, chance):
    """Whether any of the counts speaks against Binomial(draws, chance), one false alarm in 10⁶."""
    counts = np.atleast_1d(np.asarray(counts))
    below = stats.binom.cdf(counts, draws, chance)
    above = stats.binom.sf(counts - 1, draws, chance)
    return bool(np.min(2 * np.minimum(below, above)) * counts.size < FALSE_ALARM)


@functools.cache
def poisson_draws():
    keys = jax.random.split(jax.random.key(0), DRAWS)
    draw = jax.jit(jax.vmap(lambda key: poisson_mask(key, jnp.asarray(PRESENT), RATE)))
    return np.asarray(draw(keys))


def identity(rows, mask, length=ROWS):
    """A unit contributes 1 at its own place, so the sum says who was in the batch, how often."""
    return clip_units(jax.nn.one_hot(rows, length, dtype=jnp.float64), 2.0, mask)


@functools.cache
def subset_draws(batch=4):
    keys = jax.random.split(jax.random.key(1), DRAWS)
    draw = jax.vmap(lambda key: subset_sum(key, jnp.asarray(PRESENT), batch, 6, identity)[0].value)
    return np.asarray(jax.jit(draw)(keys))


def pairs(drawn):
    """How often both units of every pair were drawn."""
    drawn = np.asarray(drawn, float)
    return np.einsum("ni,nj->ij", drawn, drawn)[np.triu_indices(drawn.shape[1], 1)]


def test_poisson_includes_each_present_unit_at_its_rate():
    drawn = poisson_draws()
    assert not drawn[:, PRESENT == 0].any()
    counts = drawn[:, PRESENT == 1].sum(axis=0)
    assert not implausible(counts, DRAWS, RATE)
    for wrong in (0.9, 1.1):
        assert implausible(counts, DRAWS, wrong * RATE)


def test_poisson_includes_units_independently_of_each_other():
    drawn = poisson_draws()[:, PRESENT == 1]
    assert not implausible(pairs(drawn), DRAWS, RATE**2)
    # Batches of a fixed size of the same rate, which the accountant of Poisson must not be given.
    size = 3
    fixed = np.argsort(np.random.default_rng(0).random(drawn.shape), axis=1) < size
    assert implausible(pairs(fixed), DRAWS, (size / drawn.shape[1]) ** 2)


def test_poisson_draws_anew_with_every_key():
    drawn = poisson_draws()[:, PRESENT == 1]
    assert not implausible((drawn[1:] & drawn[:-1]).sum(axis=0), DRAWS - 1, RATE**2)


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 1.0), (2.0**-33, 0.0)])
def test_poisson_at_the_ends_of_its_range(rate, expected):
    mask = poisson_mask(jax.random.key(0), jnp.ones(1000), rate)
    assert np.mean(mask) == expected


@given(extra=st.sampled_from([1, 20, 300]), seed=st.integers(0, 99))
def test_padding_changes_no_choice(extra, seed):
    key = jax.random.key(seed)
    short = np.asarray(poisson_mask(key, jnp.asarray(PRESENT), 0.5))
    padded = np.concatenate([PRESENT, np.zeros(extra)])
    long = np.asarray(poisson_mask(key, jnp.asarray(padded), 0.5))
    assert np.array_equal(long[:ROWS], short)
    assert not long[ROWS:].any()


def test_padding_changes_no_subset():
    padded = jnp.concatenate([jnp.asarray(PRESENT), jnp.zeros(20)])
    for seed in range(5):
        key = jax.random.key(seed)
        short = subset_sum(key, jnp.asarray(PRESENT), 4, 6, identity)[0].value
        long = subset_sum(key, padded, 4, 6, lambda r, m: identity(r, m, 32))[0].value
        assert np.array_equal(np.asarray(long)[:ROWS], np.asarray(short))


@pytest.mark.parametrize("length", [1, 5, 12])
def test_a_batch_is_complete_whatever_the_chunk(length):
    def both(key, rate):
        bounded, drawn = poisson_sum(key, jnp.asarray(PRESENT), rate, length, identity)
        return bounded.value, bounded.clip, drawn, poisson_mask(key, jnp.asarray(PRESENT), rate)

    keys = jax.random.split(jax.random.key(2), 300)
    rates = jnp.repeat(jnp.asarray([0.05, 0.5, 1.0]), 100)
    sums, clips, drawn, masks = jax.jit(jax.vmap(both))(keys, rates)
    assert np.array_equal(np.asarray(sums), np.asarray(masks, float))
    assert np.all(np.asarray(clips) == 2.0)
    assert jax.tree.map(lambda leaf: leaf[150], drawn).sampling() == Poisson(rate=0.5)
    found = set(np.asarray(masks).sum(axis=1))
    assert {0, 9} <= found, "neither an empty nor a full batch: nothing was tested"


def test_an_empty_batch_is_a_zero_and_not_a_nan():
    units = jnp.full((ROWS, 2), jnp.nan)
    bounded, _ = poisson_sum(
        jax.random.key(0),
        jnp.zeros(ROWS),
        0.5,
        3,
        lambda rows, mask: clip_units(units[rows], 1.0, mask),
    )
    assert np.array_equal(np.asarray(bounded.value), [0.0, 0.0])


@given(rate=st.floats(1e-6, 1.0), units=st.integers(1, 10_000))
def test_a_chunk_holds_nearly_every_batch(rate, units):
    length = chunk_length(rate, units)
    assert 1 <= length <= units
    assert stats.binom.sf(length, units, rate) < 2e-3


def test_a_subset_has_distinct_present_units_only():
    drawn = subset_draws()
    assert set(np.unique(drawn)) == {0.0, 1.0}
    assert np.all(drawn.sum(axis=1) == 4)
    assert not drawn[:, PRESENT == 0].any()


def test_every_subset_is_as_likely_as_every_other():
    drawn, n, b = subset_draws()[:, PRESENT == 1], 9, 4
    assert not implausible(drawn.sum(axis=0), DRAWS, b / n)
    assert implausible(drawn.sum(axis=0), DRAWS, 0.9 * b / n)
    together = b * (b - 1) / (n * (n - 1))
    assert not implausible(pairs(drawn), DRAWS, together)
    assert implausible(pairs(drawn), DRAWS, (b / n) ** 2), "Poisson pairs would be as plausible"


def test_subsets_of_parties_that_differ_are_drawn_in_one_map():
    present = jnp.asarray([[1.0] * 9 + [0.0] * 3, [1.0] * 4 + [0.0] * 8, [1.0] * 12])
    batches = jnp.asarray([4, 1, 6])
    keys = jax.random.split(jax.random.key(3), 3)
    draw = jax.jit(jax.vmap(lambda key, own, batch: subset_sum(key, own, batch, 6, identity)))
    bounded, drawn = draw(keys, present, batches)
    counts = np.asarray(bounded.value)
    assert np.array_equal(counts.sum(axis=1), [4, 1, 6])
    assert np.all(counts <= np.asarray(present))
    for row, total in enumerate([9, 4, 12]):
        own = jax.tree.map(lambda leaf: leaf[row], drawn).sampling()  # noqa: B023
        assert own == WithoutReplacement(batch=int(batches[row]), total=total)


def test_one_key_gives_one_batch():
    key = jax.random.key(5)
    first, second = (subset_sum(key, jnp.ones(ROWS), 3, 3, identity)[0].value for _ in range(2))
    other = subset_sum(jax.random.key(6), jnp.ones(ROWS), 3, 3, identity)[0].value
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_no_unit_is_drawn_with_more_than_the_accounted_probability(monkeypatch):
    """Of 2³² words exactly ⌊rate·2³²⌋ are in: the next one, which rounding up would add, is not."""
    rate, last = 0.3, int(np.floor(0.3 * 2.0**32)) - 1
    words = jnp.array([last | ((last + 1) << 32)], jnp.uint64)  # the lower half comes first
    monkeypatch.setattr(jax.random, "bits", lambda *_: words)
    assert poisson_mask(None, jnp.ones(2), rate).tolist() == [True, False]
