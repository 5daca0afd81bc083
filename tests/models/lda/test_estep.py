"""The E-step: its fixed point, and that a document's numbers are its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import digamma

from tacit.data.documents import check_documents
from tacit.errors import DataError
from tacit.models.lda.estep import exp_digamma, expect, padded_length, word_table

ALPHA = 0.1


def corpus(seed: int, documents: int = 40, words: int = 300, length: int = 60) -> sparse.csr_array:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2 * length, documents)
    rows = [np.bincount(rng.zipf(1.3, size) % words, minlength=words) for size in sizes]
    return check_documents(np.array(rows))


def topics(seed: int, count: int = 7, words: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).gamma(0.3, 5.0, (count, words)) + 0.05


def by_the_book(concentration: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """γ and n φ of one document in float64, as the paper writes them, iterated to the end."""
    logs = digamma(concentration) - digamma(concentration.sum(axis=1, keepdims=True))
    gamma = np.full(len(logs), ALPHA + counts.sum() / len(logs))
    for _ in range(1500):
        phi = np.exp(digamma(gamma)[:, None] + logs)
        phi /= phi.sum(axis=0)
        gamma = ALPHA + phi @ counts
    return gamma, phi * counts


def written_down(found, row: int) -> np.ndarray:
    """A document's statistics as a topics × words matrix, from the sparse entries."""
    one = np.zeros(found.documents.shape[0])
    one[row] = 1.0
    return found.total(one)


def test_it_is_the_fixed_point():
    concentration, documents = topics(0), corpus(0)
    found = expect(
        word_table(concentration), documents, alpha=ALPHA, tolerance=1e-7, most_steps=1500
    )
    for row in range(0, documents.shape[0], 8):
        gamma, statistics = by_the_book(concentration, documents[[row]].toarray()[0])
        np.testing.assert_allclose(found.gamma[row], gamma, rtol=2e-3, atol=2e-4)
        np.testing.assert_allclose(written_down(found, row), statistics, rtol=2e-3, atol=2e-4)


def test_statistics_of_a_document_add_up_to_its_counts():
    documents = corpus(1)
    found = expect(word_table(topics(1)), documents, alpha=ALPHA)
    np.testing.assert_allclose(found.total().sum(axis=0), documents.sum(axis=0), rtol=1e-5)
    weights = np.random.default_rng(0).random(documents.shape[0])
    np.testing.assert_allclose(
        found.total(weights).sum(axis=0), weights @ documents.toarray(), rtol=1e-5
    )


def test_norms_are_those_of_the_matrices_that_are_never_made():
    found = expect(word_table(topics(2)), corpus(2), alpha=ALPHA)
    wanted = [np.linalg.norm(written_down(found, row)) for row in range(len(found.gamma))]
    np.testing.assert_allclose(found.norms(), wanted, rtol=1e-13)
    assert (found.least() >= 0).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.data())
def test_a_document_gives_the_same_bits_whoever_is_with_it(seed, data):
    """Otherwise one document would change the contributions of others, which no clip bounds."""
    documents, table = corpus(seed, documents=12), word_table(topics(seed))
    whole = expect(table, documents, alpha=ALPHA)
    rows = data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=12, unique=True))
    threads = data.draw(st.sampled_from([1, 2]))
    part = expect(table, documents[rows], alpha=ALPHA, threads=threads)
    assert np.array_equal(part.gamma, whole.gamma[rows])
    assert np.array_equal(part.theta, whole.theta[rows])
    ends = documents.indptr
    assert np.array_equal(
        part.ratios, np.concatenate([whole.ratios[ends[row] : ends[row + 1]] for row in rows])
    )
    assert np.array_equal(part.norms(), whole.norms()[rows])


def test_extreme_topics_stay_finite():
    """A word that no topic has, and topics that nearly no word has."""
    concentration = np.full((3, 50), 1e-3)
    concentration[0, :5], concentration[1, 5:10] = 1e6, 1e-2
    for alpha in (1e-4, 1.0, 50.0):
        found = expect(word_table(concentration), corpus(3, words=50), alpha=alpha)
        for part in (found.gamma, found.theta, found.ratios, found.norms(), found.total()):
            assert np.isfinite(part).all()
            assert (part >= 0).all()
        lengths = np.asarray(found.documents.sum(axis=1))
        assert (found.norms() <= lengths * (1 + 1e-5)).all()


def test_exp_digamma():
    x = np.geomspace(0.0149, 1e15, 4000).astype(np.float32)
    np.testing.assert_allclose(exp_digamma(x), np.exp(digamma(x.astype(float))), rtol=2e-5)


def test_padding_follows_from_a_documents_own_length():
    lengths = np.arange(1, 8000)
    padded = padded_length(lengths)
    assert (padded >= lengths).all()
    assert (padded[lengths > 32] <= 1.5 * lengths[lengths > 32]).all()
    assert len(np.unique(padded)) < 20


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([[1, 2], [0, 0]], "document 1 has no word"),
        ([[1, 2], [0, -3]], "document 1, word 1: count -3 is negative"),
        ([[1, 2.5]], "document 0, word 1: count 2.5 is not a whole number"),
        ([[1, np.nan]], "is not a number"),
        ([[1, np.inf]], "is not a number"),
        ([[1, 2**25]], "is above 16777216"),
        ([["a"]], "type"),
        ([1, 2], "shape"),
        (np.zeros((0, 3)), "shape"),
    ],
)
def test_bad_counts_are_refused_in_one_line(counts, said):
    with pytest.raises(DataError, match=said) as caught:
        check_documents(counts)
    assert "\n" not in str(caught.value)


def test_counts_in_any_form_are_the_same_documents():
    dense = np.array([[2, 0, 1], [0, 3, 0]])
    doubled = sparse.coo_array(([1, 1, 1, 3, 0], ([0, 0, 0, 1, 1], [0, 0, 2, 1, 2])), (2, 3))
    for form in (dense, dense.astype(bool) * dense, sparse.csc_array(dense), doubled):
        found = check_documents(form)
        assert found.dtype == np.float32
        assert found.has_canonical_format
        assert (found.data > 0).all()
        np.testing.assert_array_equal(found.toarray(), dense)
    with pytest.raises(DataError, match="of 3 words, but the vocabulary has 4"):
        check_documents(dense, words=4)


def test_a_word_without_a_number_is_not_lent_to_other_documents():
    """A concentration of 0 in all topics makes a word's t NaN, and nobody else's."""
    concentration = topics(1, words=30)
    concentration[:, 3] = 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        table = word_table(concentration)
    rows = np.zeros((2, 30), np.int64)
    rows[0, 3], rows[1, 5:9] = 2, 1
    found = expect(table, check_documents(rows), alpha=ALPHA).norms()
    alone = expect(table, check_documents(rows[1:]), alpha=ALPHA).norms()
    assert np.isnan(found[0])
    assert found[1] == alone[0]
