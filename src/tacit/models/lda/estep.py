"""The E-step of latent Dirichlet allocation, in float32.

**Notation.** A document contains word w n_w times. Its occurrences have topics z, and θ are the
shares of topics in the document. β_kw is the probability of word w in topic k, and α the Dirichlet
parameter of θ.

Given q(β), the document's q(z, θ) is the fixed point of (Blei, Ng and Jordan 2003, eqs 16–17;
Hoffman, Blei and Bach 2010, eqs 4–5)

    φ_wk ∝ exp(E[log θ_k] + E[log β_kw]),      γ_k = α + Σ_w n_w φ_wk,

where φ_wk is the probability that an occurrence of w has topic k, and γ are the Dirichlet
parameters of q(θ). The expected statistics of the document are the numbers n_w φ_wk, one for each
topic and each distinct word. Let t_wk be exp E[log β_kw], scaled for each word, and u_k be exp
E[log θ_k], scaled for the document. Then

    n_w φ_wk = u_k · r_w · t_wk,      r_w = n_w / Σ_k u_k t_wk.

The vectors u (one number per topic) and r (one number per word) are therefore sufficient, and norms
and sums need no topics × words matrix per document.

**The values of a document depend only on q(β) and that document, bit for bit.** Its sums are padded
to a length that follows from its number of words, and its iteration stops when it has converged,
independently of other documents in the batch. Clipping bounds the effect of a document on the sum
only because no document affects the values of another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tacit.data.documents import Documents
from tacit.expfam import Dirichlet
from tacit.support.blas import one_blas_thread

Array = np.ndarray
BLOCK = 1_000_000
"""Number of entries of t per block of documents; large enough to make NumPy's call overhead
small.
"""
MIN_THETA = np.float32(1e-30)
"""Smallest value of u, so that an absent topic cannot make a word impossible."""
REPACK_SHARE = 0.25
"""A block is repacked when this share of its documents has converged."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """The distributions q(z, θ) of several documents.

    In the notation of the module docstring, `gamma` is γ, `theta` is u, `ratios` is r and `table`
    is t.
    """

    documents: Documents
    table: Array
    gamma: Array
    theta: Array
    ratios: Array

    def norms(self) -> Array:
        """Return the L2 norm of each document's statistics, in float64."""
        squares = self._sparse(np.square(self.ratios, dtype=np.float64))
        inner = squares @ np.square(self.table, dtype=np.float64)
        inner *= np.square(self.theta, dtype=np.float64)
        return np.sqrt(inner.sum(axis=1))

    def l1_norms(self) -> Array:
        """Return the L1 norm of each document's statistics, in float64. Except for rounding, it is
        the number of words of the document.
        """
        inner = self._sparse(np.abs(self.ratios.astype(np.float64)))
        inner = inner @ np.abs(self.table.astype(np.float64))
        return (inner * np.abs(self.theta.astype(np.float64))).sum(axis=1)

    def least(self) -> Array:
        """Return one number per document. If it is at least 0, no entry of the document's
        statistics is negative.
        """
        ratios = np.minimum.reduceat(self.ratios, self.documents.indptr[:-1])
        return np.minimum(np.minimum(ratios, self.theta.min(axis=1)), self.table.min())

    def total(self, weights: Array | None = None) -> Array:
        """Return the weighted sum of the documents' statistics, of shape topics × words, in
        float64.

        Documents of weight 0 are ignored.
        """
        theta, ratios = self.theta.astype(np.float64), self.ratios.astype(np.float64)
        if weights is not None:
            weights = np.asarray(weights, np.float64)
            kept = weights > 0
            theta = np.where(kept[:, None], theta * weights[:, None], 0.0)
            if not kept.all():  # avoid 0 · NaN
                ratios = np.where(np.repeat(kept, np.diff(self.documents.indptr)), ratios, 0.0)
        sums = self._sparse(ratios).T @ theta
        return np.multiply(sums, self.table, out=np.zeros_like(sums), where=sums != 0).T

    def _sparse(self, entries: Array) -> Documents:
        """Return a sparse matrix with the sparsity pattern of the documents and these entries."""
        from scipy import sparse

        parts = (entries, self.documents.indices, self.documents.indptr)
        return sparse.csr_array(parts, shape=self.documents.shape)


def word_table(concentration: Array) -> Array:
    """Return exp E[log β_kw] for each word w and topic k, of shape words × topics, in float32.

    β_kw is the probability of word w in topic k. Each row is divided by its largest entry. This
    does not change the E-step, and a word that is rare in every topic stays within the range of
    float32. `concentration` are the Dirichlet parameters of the topics, of shape topics × words.
    """
    return scaled_table(expected_logs(concentration))


def scaled_table(logs: Array) -> Array:
    """Return the same table as `word_table`, given `logs` = E[log β] of shape topics × words."""
    return np.exp((logs - logs.max(axis=0)).T).astype(np.float32)


def expected_logs(concentration: Array) -> Array:
    """Return E[log β], of shape topics × words, under Dirichlet distributions with the parameters
    `concentration`.
    """
    family = Dirichlet(concentration.shape[1])
    return np.stack(
        [family.mean(family.natural(concentration=row))["log"] for row in concentration]
    )


def expect(
    table: Array,
    documents: Documents,
    *,
    alpha: float,
    tolerance: float = 1e-3,
    most_steps: int = 30,
    threads: int = 1,
) -> Expected:
    """Compute q(z, θ) of each document: the topics z of its words and the shares θ of its topics.

    The iteration for a document stops when the Dirichlet parameters of its θ change by less than
    `tolerance`, on average over topics. `alpha` is the prior Dirichlet parameter of θ. A smaller
    tolerance does not improve learning, because it assigns documents to few topics while the topics
    are still inaccurate (docs/studies/topics.md).
    """
    count, topics = documents.shape[0], table.shape[1]
    gamma = np.empty((count, topics), np.float32)
    theta = np.empty((count, topics), np.float32)
    ratios = np.empty(documents.nnz, np.float32)

    def work(block: tuple[Array, int]) -> None:
        rows, length = block
        place, valid = _places(documents, rows, length)
        counts = np.where(valid, documents.data[place], np.float32(0.0))
        own = table[documents.indices[place]]
        gamma[rows] = _converged(own, counts, np.float32(alpha), tolerance, most_steps)
        theta[rows] = exp_digamma(gamma[rows])
        ratios[place[valid]] = (counts / _mixed(own, theta[rows]))[valid]

    with one_blas_thread():
        if threads == 1:
            for block in _blocks(documents, topics):
                work(block)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, _blocks(documents, topics)))
    return Expected(documents=documents, table=table, gamma=gamma, theta=theta, ratios=ratios)


def exp_digamma(x: Array) -> Array:
    """Compute exp ψ(x), where ψ is the digamma function, for x > 0 in float32.

    The relative error is at most 2e-5 for results above 1e-30.

    >>> exp_digamma(np.array([1.0, 10.0], np.float32)).round(4)
    array([0.5615, 9.5044], dtype=float32)
    """
    # Uses ψ(x) = ψ(x + 4) − Σ_{i<4} 1/(x + i), and exp ψ(h + ½) = h + 1/(24h) − 37/(5760h³) +
    # O(h⁻⁵).
    first, second = x * (x + 1), (x + 2) * (x + 3)
    twice = x + x
    falls = (twice + 1) / first + (twice + 5) / second
    h = x + np.float32(3.5)
    inverse = np.float32(1.0) / h
    high = h + inverse * (np.float32(1 / 24) - np.float32(37 / 5760) * inverse * inverse)
    return np.maximum(high * np.exp(-falls), MIN_THETA)


def _converged(own: Array, counts: Array, alpha: np.float32, tolerance: float, most: int) -> Array:
    # Returns γ of each document of a block after its iteration has converged. `own` contains t of
    # its words, and has shape documents × words × topics.
    length, topics = len(own), own.shape[2]
    start = alpha + counts.sum(axis=1, keepdims=True) / np.float32(topics)
    gamma = np.repeat(start, topics, axis=1)
    found = np.empty_like(gamma)
    left = np.arange(length)
    done = np.zeros(length, bool)
    for _ in range(most):
        theta = exp_digamma(gamma)
        moved = np.matmul((counts / _mixed(own, theta))[:, None, :], own)[:, 0, :]
        moved *= theta
        moved += alpha
        change = np.abs(moved - gamma).mean(axis=1)
        gamma = moved
        fresh = (change < tolerance) & ~done
        found[left[fresh]] = gamma[fresh]
        done |= fresh
        if done.all():
            return found
        if done.mean() > REPACK_SHARE:
            keep = ~done
            left, own, counts, gamma = left[keep], own[keep], counts[keep], gamma[keep]
            done = done[keep]
    found[left[~done]] = gamma[~done]
    return found


def _mixed(own: Array, theta: Array) -> Array:
    return np.matmul(own, theta[:, :, None])[:, :, 0]


def _blocks(documents: Documents, topics: int) -> Iterator[tuple[Array, int]]:
    """Yield blocks of documents with the same padded length, as (rows, length). A block needs at
    most about `BLOCK` numbers.
    """
    lengths = padded_length(np.diff(documents.indptr))
    order = np.argsort(-lengths, kind="stable")
    sizes, firsts = np.unique(lengths[order][::-1], return_counts=True)
    end = len(order)
    for length, count in zip(sizes, firsts, strict=True):
        rows, end = order[end - count : end], end - count
        step = max(1, BLOCK // (int(length) * topics))
        for first in range(0, count, step):
            yield rows[first : first + step], int(length)


def padded_length(lengths: Array) -> Array:
    """Return the length to which a document of each given length is padded: the next one of 16, 32,
    48, 64, 96, 128, 192, …

    >>> padded_length(np.array([1, 33, 70])).tolist()
    [16, 48, 96]
    """
    octave = np.floor(np.log2(lengths)).astype(np.int64)
    step = np.maximum(16, 2**octave // 2)
    return -(-lengths // step) * step


def _places(documents: Documents, rows: Array, length: int) -> tuple[Array, Array]:
    """Return the positions in `documents.data` of the counts of some documents, and a mask of valid
    positions.

    `rows` are the indices of the documents. Both arrays have one row for each of these documents
    and `length` columns. A document with fewer than `length` counts is padded: the additional
    positions repeat the position of its first count and are not valid.
    """
    first = documents.indptr[rows][:, None]
    valid = np.arange(length) < (documents.indptr[rows + 1][:, None] - first)
    return np.where(valid, first + np.arange(length), first), valid
