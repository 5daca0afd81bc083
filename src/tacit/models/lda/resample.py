"""Documents of one length: so many words of each, drawn again from its own."""

from __future__ import annotations

import numpy as np

from tacit.data.documents import Documents

DRAWN = 1_000_000
"""Words that are drawn at a time, for the memory it takes."""
LISTED = 20_000_000
"""Words of the documents of such a time that are listed, which is quicker than to search; no more:
one very long document must not be able to fill the memory."""


def resampled(documents: Documents, words: int, rng: np.random.Generator) -> Documents:
    """Each document as exactly `words` words drawn from its own, with replacement.

    Every document's draws are its own: another in its place leaves the others as they are.
    """
    kept = np.empty(documents.nnz, np.float32)
    ends = documents.indptr
    step = max(1, DRAWN // words)
    for first in range(0, documents.shape[0], step):
        rows = slice(ends[first], ends[min(first + step, documents.shape[0])])
        counts = documents.data[rows].astype(np.int64)
        passed = np.cumsum(counts)
        above = passed[ends[first + 1 : first + step + 1] - ends[first] - 1]
        each = np.diff(above, prepend=0)[:, None]
        at = (rng.random((len(each), words)) * each).astype(np.int64)
        at += above[:, None] - each
        if passed[-1] <= LISTED:
            drawn = np.repeat(np.arange(len(counts)), counts)[at]
        else:  # the same places, found one by one
            drawn = np.searchsorted(passed, at, side="right")
        kept[rows] = np.bincount(drawn.ravel(), minlength=len(counts))
    found = documents.copy()
    found.data = kept
    found.eliminate_zeros()
    return found
