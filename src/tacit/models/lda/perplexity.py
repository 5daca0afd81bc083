"""Held-out per-word perplexities of topics.

There are two kinds of perplexity, and lower is better for both. The *bound* (Hoffman, Blei and Bach
2010, section 4.1) is an upper bound on exp(−log p(documents) / number of words). The difference
between bound and exact value depends on the approximation q(z, θ) of each document. *Completion*
learns a document's topics from one half of its words and predicts the other half. It can be
compared between all kinds of models.
"""

from __future__ import annotations

import numpy as np

from tacit.data.documents import Documents, rows_of
from tacit.errors import DataError
from tacit.models.lda.estep import (
    Array,
    Expected,
    expect,
    expected_logs,
    scaled_table,
    word_table,
)

TOLERANCE, MOST_STEPS = 1e-4, 500
"""Tolerance and largest number of steps. The tolerance is smaller than in learning, so that
convergence errors do not affect the comparison of perplexities.
"""


def bound(concentration: Array, documents: Documents, *, alpha: float, threads: int = 1) -> float:
    """Return an upper bound on the perplexity: exp(−Σ_d L_d / Σ_d N_d), where L_d is the
    `document_bounds` of document d and N_d its number of words.
    """
    logs = expected_logs(concentration)
    each = document_bounds(logs, documents, alpha=alpha, threads=threads)
    return float(np.exp(-each.sum() / documents.data.astype(np.float64).sum()))


def document_bounds(logs: Array, documents: Documents, *, alpha: float, threads: int = 1) -> Array:
    """Return a lower bound on the log-likelihood of each document, E_q[log p(w, θ, z | β)] −
    E_q[log q(θ, z)].

    w are the words of the document, z their topics, θ the shares of topics, and q the fitted
    distribution of (z, θ). `logs` is E[log β], of shape topics × words.
    """
    from scipy.special import digamma, gammaln

    found = expect(
        scaled_table(logs), documents, alpha=alpha, tolerance=TOLERANCE,
        most_steps=MOST_STEPS, threads=threads,
    )  # fmt: skip
    counts = documents.data.astype(np.float64)
    gamma = found.gamma.astype(np.float64)
    whole = gamma.sum(axis=1)
    shares = digamma(gamma) - digamma(whole)[:, None]
    # The E-step's t is scaled by each word's largest topic, its u is not normalised.
    scale = logs.max(axis=0)[documents.indices]
    words = counts * (np.log(counts) - np.log(found.ratios.astype(np.float64)) + scale)
    rows, length = rows_of(documents), documents.shape[0]
    lengths = np.bincount(rows, weights=counts, minlength=length)
    each = np.sum((alpha - gamma) * shares + gammaln(gamma) - gammaln(alpha), axis=1)
    each += gammaln(alpha * gamma.shape[1]) - gammaln(whole) - lengths * digamma(whole)
    return each + np.bincount(rows, weights=words, minlength=length)


def completion(
    concentration: Array, documents: Documents, *, alpha: float, seed: int = 0, threads: int = 1
) -> float:
    """Return the perplexity of the second half of each document given its first half.

    It is exp(−mean log p(w)) over all words w of second halves, where p(w) is computed by
    `word_chances`. Each occurrence of a word is assigned to a half at random. Documents with an
    empty half are left out.
    """
    first, second = halves(documents, seed)
    found = expect(
        word_table(concentration), first, alpha=alpha, tolerance=TOLERANCE,
        most_steps=MOST_STEPS, threads=threads,
    )  # fmt: skip
    chances = word_chances(concentration, found, second)
    return float(np.exp(-np.sum(second.data * np.log(chances)) / np.sum(second.data)))


def halves(documents: Documents, seed: int) -> tuple[Documents, Documents]:
    """Return two halves of each document, to which its words are assigned at random. Documents with
    an empty half are left out.
    """
    rng = np.random.default_rng([seed, 0x5A17])
    first, second = documents.astype(np.float64), documents.astype(np.float64)
    first.data = rng.binomial(documents.data.astype(np.int64), 0.5).astype(np.float64)
    second.data = documents.data - first.data
    first.eliminate_zeros()
    second.eliminate_zeros()
    both = np.flatnonzero((np.diff(first.indptr) > 0) & (np.diff(second.indptr) > 0))
    if not len(both) > 0:
        raise DataError(
            f"none of {documents.shape[0]} documents has words in both random halves; give more or"
            " longer documents, or compute perplexity.bound"
        )
    return first[both].astype(np.float32), second[both]


def word_chances(concentration: Array, found: Expected, documents: Documents) -> Array:
    """Return the probability Σ_k E[θ_k] E[β_kw] of each stored word w of the documents.

    E[θ_k] is the share of topic k in the document according to `found`. E[β_kw] is the probability
    of the word in topic k, from the Dirichlet parameters `concentration`.
    """
    theta = found.gamma / found.gamma.sum(axis=1, keepdims=True)
    topics = (concentration / concentration.sum(axis=1, keepdims=True)).T
    return np.einsum("ik,ik->i", theta[rows_of(documents)], topics[documents.indices])
