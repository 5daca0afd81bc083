"""Held-out per-word perplexities of topics.

Two forms; lower is better. The *bound* (Hoffman, Blei and Bach 2010, section 4.1) is an upper bound
of exp(−log p(documents) / words), with the gap of q(z, θ). *Completion* learns a document's topics
from one half of its words and predicts the other half; it is comparable between all kinds of
models.
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
"""Tolerance and largest number of steps; tighter than in learning, so that perplexities do not
differ by convergence error.
"""


def bound(concentration: Array, documents: Documents, *, alpha: float, threads: int = 1) -> float:
    """Perplexity bound exp(−Σ_d (E_q[log p(w_d, θ_d, z_d | β)] − E_q[log q(θ_d, z_d)]) / Σ_d
    N_d).
    """
    logs = expected_logs(concentration)
    each = document_bounds(logs, documents, alpha=alpha, threads=threads)
    return float(np.exp(-each.sum() / documents.data.astype(np.float64).sum()))


def document_bounds(logs: Array, documents: Documents, *, alpha: float, threads: int = 1) -> Array:
    """Compute E_q[log p(w_d, θ_d, z_d | β)] − E_q[log q(θ_d, z_d)] of each document; `logs` is
    E[log β].
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
    """Completion perplexity exp(−mean log Σ_k E[θ_k] E[β_kw]) over the words w of every document's
    second half.

    Each occurrence of a word is assigned to a half at random; a document with an empty half is left
    out. E[θ] is from the first half, E[β] from `concentration`.
    """
    first, second = halves(documents, seed)
    found = expect(
        word_table(concentration), first, alpha=alpha, tolerance=TOLERANCE,
        most_steps=MOST_STEPS, threads=threads,
    )  # fmt: skip
    chances = word_chances(concentration, found, second)
    return float(np.exp(-np.sum(second.data * np.log(chances)) / np.sum(second.data)))


def halves(documents: Documents, seed: int) -> tuple[Documents, Documents]:
    """Split every document into two random halves; documents with an empty half are left out."""
    rng = np.random.default_rng([seed, 0x5A17])
    first, second = documents.astype(np.float64), documents.astype(np.float64)
    first.data = rng.binomial(documents.data.astype(np.int64), 0.5).astype(np.float64)
    second.data = documents.data - first.data
    first.eliminate_zeros()
    second.eliminate_zeros()
    both = np.flatnonzero((np.diff(first.indptr) > 0) & (np.diff(second.indptr) > 0))
    if not len(both) > 0:
        raise DataError(
            f"none of {documents.shape[0]} documents has words in both halves; give more or longer"
            " documents, or use the bound"
        )
    return first[both].astype(np.float32), second[both]


def word_chances(concentration: Array, found: Expected, documents: Documents) -> Array:
    """Compute E[p(w)] of every stored word of the documents, under the topics inferred for each
    document.
    """
    theta = found.gamma / found.gamma.sum(axis=1, keepdims=True)
    topics = (concentration / concentration.sum(axis=1, keepdims=True)).T
    return np.einsum("ik,ik->i", theta[rows_of(documents)], topics[documents.indices])
