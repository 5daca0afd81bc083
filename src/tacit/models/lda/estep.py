"""The E-step of latent Dirichlet allocation, in float32.

Given q(β), a document's q(z, θ) is the fixed point of (Blei, Ng and Jordan 2003, eqs 16–17;
Hoffman, Blei and Bach 2010, eqs 4–5)

    φ_wk ∝ exp(E[log θ_k] + E[log β_kw]),      γ_k = α + Σ_w n_w φ_wk,

and its expected statistics are n_w φ_wk: one entry per topic and distinct word. With
t_wk = exp E[log β_kw], scaled for each word, and u_k = exp E[log θ_k], scaled for the document,

    n_w φ_wk = u_k · r_w · t_wk,      r_w = n_w / Σ_k u_k t_wk,

so that u (one number per topic) and r (one per word) determine them, and neither norms nor sums
need a topics × words matrix per document.

**A document's values depend only on q(β) and that document, bit for bit**: its sums are padded to a
length that follows from its number of words, and its iteration stops at its own convergence,
independently of the batch. Only then does clipping, which bounds one document's contribution, bound
the effect of one document on the sum.
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
    """The distribution q(z, θ) of a batch of documents: γ, u, r and the table t of the module
    docstring.
    """

    documents: Documents
    table: Array
    gamma: Array
    theta: Array
    ratios: Array

    def norms(self) -> Array:
        """Compute ‖n φ‖ of each document in float64, as the root of Σ_w r_w² Σ_k u_k² t_wk²."""
        squares = self._sparse(np.square(self.ratios, dtype=np.float64))
        inner = squares @ np.square(self.table, dtype=np.float64)
        inner *= np.square(self.theta, dtype=np.float64)
        return np.sqrt(inner.sum(axis=1))

    def l1_norms(self) -> Array:
        """Compute the L1 norm of each document's statistics in float64: its number of words up to
        rounding.
        """
        inner = self._sparse(np.abs(self.ratios.astype(np.float64)))
        inner = inner @ np.abs(self.table.astype(np.float64))
        return (inner * np.abs(self.theta.astype(np.float64))).sum(axis=1)

    def least(self) -> Array:
        """Return a lower bound on the entries of each document's statistics."""
        ratios = np.minimum.reduceat(self.ratios, self.documents.indptr[:-1])
        return np.minimum(np.minimum(ratios, self.theta.min(axis=1)), self.table.min())

    def total(self, weights: Array | None = None) -> Array:
        """Compute Σ_d weights_d · n_w φ_wk, topics × words, in float64. Documents of weight 0 are
        ignored.
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
        """Return the entries as a sparse matrix with the same nonzero places as the documents."""
        from scipy import sparse

        parts = (entries, self.documents.indices, self.documents.indptr)
        return sparse.csr_array(parts, shape=self.documents.shape)


def word_table(concentration: Array) -> Array:
    """Compute t (words × topics): exp E[log β_kw] divided by the word's largest value over topics,
    in float32.

    `concentration` has the parameters of K Dirichlet distributions, topics × words. φ does not
    change with a word's scale, and a word that is rare in every topic stays within float32.
    """
    return scaled_table(expected_logs(concentration))


def scaled_table(logs: Array) -> Array:
    """Compute `word_table` from E[log β] (topics × words)."""
    return np.exp((logs - logs.max(axis=0)).T).astype(np.float32)


def expected_logs(concentration: Array) -> Array:
    """Compute E[log β], topics × words."""
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
    """Fit q(z, θ) of every document, until its γ changes by less than `tolerance` on average.

    A tighter tolerance does not improve learning: while topics are still rough, fully converged
    documents commit to a few of them too early (docs/studies/topics.md).
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
    """Compute exp ψ(x), ψ the digamma function, for float32 x > 0, with relative error 2e-5 above
    1e-30.

    ψ(x) = ψ(x + 4) − Σ_{i<4} 1/(x + i), and exp ψ(h + ½) = h + 1/(24h) − 37/(5760h³) + O(h⁻⁵).

    >>> exp_digamma(np.array([1.0, 10.0], np.float32)).round(4)
    array([0.5615, 9.5044], dtype=float32)
    """
    first, second = x * (x + 1), (x + 2) * (x + 3)
    twice = x + x
    falls = (twice + 1) / first + (twice + 5) / second
    h = x + np.float32(3.5)
    inverse = np.float32(1.0) / h
    high = h + inverse * (np.float32(1 / 24) - np.float32(37 / 5760) * inverse * inverse)
    return np.maximum(high * np.exp(-falls), MIN_THETA)


def _converged(own: Array, counts: Array, alpha: np.float32, tolerance: float, most: int) -> Array:
    """Iterate γ of a block of documents until it converges; `own` has shape documents × words ×
    topics.
    """
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
    """Compute Σ_k u_k t_wk, documents × words."""
    return np.matmul(own, theta[:, :, None])[:, :, 0]


def _blocks(documents: Documents, topics: int) -> Iterator[tuple[Array, int]]:
    """Yield blocks of documents with the same padded length, longest first, of about BLOCK numbers
    each.
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
    """Round a length up to 16, 32, 48, 64, 96, 128, 192, …; it depends only on the document's own
    length.

    >>> padded_length(np.array([1, 33, 70])).tolist()
    [16, 48, 96]
    """
    octave = np.floor(np.log2(lengths)).astype(np.int64)
    step = np.maximum(16, 2**octave // 2)
    return -(-lengths // step) * step


def _places(documents: Documents, rows: Array, length: int) -> tuple[Array, Array]:
    """Return the indices of a block's counts, padded with each document's first index, and a mask
    of the real ones.
    """
    first = documents.indptr[rows][:, None]
    valid = np.arange(length) < (documents.indptr[rows + 1][:, None] - first)
    return np.where(valid, first + np.arange(length), first), valid
