"""Private statistics of documents: sensitivity, noise, batches, words, and what is charged."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from tacit import Privacy
from tacit.errors import ConfigError
from tacit.data.documents import check_documents
from tacit.models.topics.estep import expect, word_table
from tacit.privacy.events import GaussianEvent, Poisson, WithoutReplacement
from tacit.privacy.mechanisms import Gaussian
from tacit.testing.laws import gaussian_faults
from tacit.topics.private import DocumentStatistics, Draws, clipped

WORDS, TOPICS, LENGTH = 12, 3, 8
LARGE = st.sampled_from([1, 2, 5, 40, 1000])


@st.composite
def documents(draw, count):
    rows = np.zeros((count, WORDS))
    for row in rows:
        words = draw(st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=WORDS, unique=True))
        for word in words:
            row[word] = draw(LARGE)
    return rows


@st.composite
def some_topics(draw):
    """From topics that are all alike to topics of one word each."""
    size = st.sampled_from([1e-8, 1e-3, 0.1, 1.0, 30.0, 1e6])
    cells = draw(st.lists(size, min_size=TOPICS * WORDS, max_size=TOPICS * WORDS))
    return np.array(cells).reshape(TOPICS, WORDS)


def statistics(concentration, rows, clip, *, words, seed=3):
    batch = Draws(seed).resampled(check_documents(rows), words)
    return clipped(expect(word_table(concentration), batch, alpha=0.1), clip, 4)


@settings(max_examples=80, deadline=None)
@given(
    documents(5), documents(1), some_topics(), st.integers(0, 4), st.sampled_from([0.02, 0.1, 1])
)
def test_no_document_moves_the_statistics_by_more_than_is_declared(rows, other, topics, at, share):
    clip = share * LENGTH
    before = statistics(topics, rows, clip, words=LENGTH)
    neighbour = rows.copy()
    neighbour[at] = other
    after = statistics(topics, neighbour, clip, words=LENGTH)
    assert before.nonnegative
    moved = np.linalg.norm(np.asarray(after.value) - np.asarray(before.value))
    assert moved <= float(before.sensitivity("substitute")) * (1 + 1e-12)
    draws, whole = Draws(3), check_documents(rows)
    kept = expect(word_table(topics), draws.resampled(whole, LENGTH), alpha=0.1)
    left = [row for row in range(5) if row != at]
    without = expect(word_table(topics), kept.documents[left], alpha=0.1)
    gone = np.asarray(clipped(kept, clip, 4).value) - np.asarray(clipped(without, clip, 4).value)
    assert np.linalg.norm(gone) <= float(before.sensitivity("add-or-remove")) * (1 + 1e-12)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_declared_sensitivity_is_reached(share):
    """Two documents of one word each, which topics of one word each claim as their own."""
    topics = np.full((TOPICS, WORDS), 1e-8)
    topics[0, 0] = topics[1, 1] = topics[2, 2] = 1e6
    rows = np.zeros((2, WORDS))
    rows[0, 0], rows[1, 2] = 9, 4
    other = rows.copy()
    other[0] = 0
    other[0, 1] = 1000
    before = statistics(topics, rows, share * LENGTH, words=LENGTH)
    after = statistics(topics, other, share * LENGTH, words=LENGTH)
    moved = np.linalg.norm(np.asarray(after.value) - np.asarray(before.value))
    assert 0.99 < moved / float(before.sensitivity("substitute")) <= 1
    assert float(before.sensitivity("substitute")) == math.sqrt(2) * share * LENGTH
    alone = statistics(topics, rows[:1], share * LENGTH, words=LENGTH)
    assert np.linalg.norm(alone.value) > 0.99 * float(before.sensitivity("add-or-remove"))


def test_without_the_root_of_two_the_search_would_have_found_it():
    """The published bound aN is broken by the pair above: the test has the power to see it."""
    topics = np.full((2, 2), 1e-8)
    topics[0, 0] = topics[1, 1] = 1e6
    pair = [
        statistics(topics, np.eye(2)[[word]], 0.1 * LENGTH, words=LENGTH).value for word in (0, 1)
    ]
    assert np.linalg.norm(pair[0] - pair[1]) > 1.4 * 0.1 * LENGTH


def release(key, concentration, rows, noise_sd):
    bounded = statistics(concentration, rows, 2.0, words=LENGTH)
    return Gaussian(noise_sd=noise_sd).release(key, bounded), np.asarray(bounded.value)


def test_the_noise_has_its_law_and_a_wrong_scale_is_caught():
    """Two checks of six laws at a false-alarm rate of 1e-6 each; a tenth less noise is seen."""
    rng = np.random.default_rng(0)
    rows, concentration = rng.poisson(1.0, (6, 8)) + 1, rng.gamma(1.0, 1.0, (4, 8))
    bounded = statistics(concentration, rows, 2.0, words=LENGTH)
    noised = jax.jit(jax.vmap(lambda key: Gaussian(noise_sd=3.0).release(key, bounded).value))
    keys = jax.random.split(jax.random.wrap_key_data(np.array([0, 7], np.uint32)), 8000)
    noise = (np.asarray(noised(keys)) - np.asarray(bounded.value)).reshape(8000, -1)
    assert gaussian_faults(noise, 3.0) == []
    assert any("variance" in fault for fault in gaussian_faults(noise, 3.3))
    assert any("variance" in fault for fault in gaussian_faults(0.9 * noise, 3.0))


def test_the_event_is_that_of_nonnegative_sums():
    rows = np.eye(3, WORDS)
    found, _ = release(Draws(0).noise_key(0), np.ones((TOPICS, WORDS)), rows, 5.0)
    assert found.event == GaussianEvent(clip=2.0, noise_sd=5.0, nonnegative=True)


def method(**changes):
    given = {"clip": 1.0, "relation": "substitute", "sampling": "poisson", "batch": 50}
    return DocumentStatistics(**{**given, "total": 400, **changes})


def test_batches_are_what_is_accounted_for():
    """Inclusion counts of 400 documents in 500 batches against Binomial(500, 1/8), 5.5 sd wide."""
    draws = Draws(0)
    for sampling, event in (
        ("poisson", Poisson(rate=0.125)),
        ("without-replacement", WithoutReplacement(batch=50, total=400)),
    ):
        how = method(sampling=sampling)
        batches = [draws.rows(step, how, 400) for step in range(500)]
        assert all(drawn.sampling() == event for _, drawn in batches)
        assert how.events(visit=0, visits=1, clip=1.0, noise_sd=1.0, units=400)[0].sampling == event
        counts = np.bincount(np.concatenate([rows for rows, _ in batches]), minlength=400)
        assert np.abs(counts - 62.5).max() < 5.5 * math.sqrt(500 * 0.125 * 0.875)
        sizes = np.array([len(rows) for rows, _ in batches])
        assert all(len(set(rows.tolist())) == len(rows) for rows, _ in batches)
        if sampling == "poisson":
            assert stats.chi2.sf(np.sum((sizes - 50) ** 2) / 43.75, 500) > 1e-6
            assert stats.chi2.cdf(np.sum((sizes - 50) ** 2) / 43.75, 500) > 1e-6
        else:
            assert (sizes == 50).all()
    rows, drawn = draws.rows(0, method(sampling="all"), 400)
    assert rows.tolist() == list(range(400))
    assert drawn.sampling() is None


def test_secret_draws_differ_and_seeded_ones_repeat():
    first, second = Draws(None), Draws(None)
    assert not np.array_equal(first.rows(0, method(), 400)[0], second.rows(0, method(), 400)[0])
    batches = [Draws(5).rows(step, method(), 400)[0].tolist() for step in (0, 0, 1)]
    assert batches[0] == batches[1] != batches[2]


def test_resampled_documents_have_n_of_their_own_words():
    """30,000 words of one document against its shares, chi-square, false alarms 1e-6."""
    rows = np.array([[1, 0, 3, 0], [0, 7, 0, 0], [2, 2, 2, 2]])
    found = Draws(0).resampled(check_documents(rows), 30_000).toarray()
    assert (found.sum(axis=1) == 30_000).all()
    assert ((found > 0) <= (rows > 0)).all()
    wanted = 30_000 * rows / rows.sum(axis=1, keepdims=True)
    for row in (0, 2):
        own = wanted[row] > 0
        assert stats.chisquare(found[row][own], wanted[row][own]).pvalue > 1e-6
        tilted = wanted[row][own] * np.linspace(0.95, 1.05, own.sum())
        tilted *= 30_000 / tilted.sum()
        assert stats.chisquare(found[row][own], tilted).pvalue < 1e-3


def test_an_empty_batch_is_a_sum_of_nothing():
    nobody = sparse.csr_array((0, WORDS), dtype=np.float32)
    batch = Draws(0).resampled(nobody, LENGTH)
    found = clipped(expect(word_table(np.ones((2, WORDS))), batch, alpha=0.1), 1.0, 4)
    assert np.array_equal(found.value, np.zeros((2, WORDS)))


def test_the_published_setting_with_the_right_sensitivity():
    """D = 400,000, S = 20,000, σ = 1.24, one pass, δ = 1e-4 (VIPS, Table 1, claims ε = 2.38)."""
    found = {}
    for accountant in ("rdp", "pld", "strong"):
        privacy = Privacy(noise_multiplier=1.24, delta=2e-6, accountant=accountant)
        how = method(sampling="without-replacement", batch=20_000, total=400_000)
        settled = how.settled(privacy, 20)
        found[accountant] = settled.all_events
        assert settled.guarantee.unit == "record"
        assert settled.guarantee.relation == "substitute"
        assert "one place" in settled.guarantee.trust
    from tacit.privacy.accounting import epsilon

    assert epsilon(found["rdp"], 1e-4, "substitute", accountant="rdp") == pytest.approx(
        3.48, abs=0.005
    )
    assert epsilon(found["pld"], 1e-4, "substitute") == pytest.approx(2.16, abs=0.005)
    assert epsilon(found["strong"], 1e-4, "substitute", accountant="strong") > 30


@pytest.mark.parametrize("unit", ["person", "party"])
def test_only_a_document_can_be_protected(unit):
    with pytest.raises(ConfigError, match="one document"):
        method().settled(Privacy(epsilon=1.0, unit=unit), 3)
