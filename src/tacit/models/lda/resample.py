"""Resample documents to a fixed number of words."""

from __future__ import annotations

import numpy as np

from tacit.data.documents import Documents

WORDS_PER_BLOCK = 1_000_000
"""Largest number of words drawn at a time, to limit memory."""
MAX_LISTED_WORDS = 20_000_000
"""If a block of documents has at most this many words, the words are written out as a list and
drawn by index. A longer list would need too much memory. Draws then use binary search, which is
slower.
"""


def resampled(documents: Documents, words: int, rng: np.random.Generator) -> Documents:
    """Replace each document by `words` words that are drawn from it with replacement.

    The draws for a document do not depend on the content of other documents.
    """
    kept = np.empty(documents.nnz, np.float32)
    ends = documents.indptr
    step = max(1, WORDS_PER_BLOCK // words)
    for first in range(0, documents.shape[0], step):
        rows = slice(ends[first], ends[min(first + step, documents.shape[0])])
        counts = documents.data[rows].astype(np.int64)
        passed = np.cumsum(counts)
        above = passed[ends[first + 1 : first + step + 1] - ends[first] - 1]
        each = np.diff(above, prepend=0)[:, None]
        at = (rng.random((len(each), words)) * each).astype(np.int64)
        at += above[:, None] - each
        if passed[-1] <= MAX_LISTED_WORDS:
            drawn = np.repeat(np.arange(len(counts)), counts)[at]
        else:  # the same words, found by search
            drawn = np.searchsorted(passed, at, side="right")
        kept[rows] = np.bincount(drawn.ravel(), minlength=len(counts))
    found = documents.copy()
    found.data = kept
    found.eliminate_zeros()
    return found
