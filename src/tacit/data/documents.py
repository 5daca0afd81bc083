"""Validation of documents as counts of words, before anything is computed or charged."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.errors import ConfigError, DataError

LARGEST_COUNT = 2**24
"""Largest allowed count: integers up to this are exact in float32."""

Documents = Any
"""A scipy.sparse.csr_array with one row per document and one column per word: sorted columns,
positive float32 counts.
"""


def check_documents(counts: Any, *, words: int | None = None) -> Documents:
    """Convert counts to the sparse matrix that the topic model needs, or raise a DataError.

    `words` is the required size of the vocabulary; None allows any size.

    >>> check_documents([[2, 0, 1]]).nnz
    2
    """
    found: Any
    from scipy import sparse

    if sparse.issparse(counts):
        found = sparse.csr_array(counts)
    else:
        dense = np.asarray(counts)
        if dense.ndim != 2 or dense.dtype.kind not in "biuf":
            raise DataError(
                f"the documents have shape {dense.shape} and type {dense.dtype}; give a matrix of"
                " counts with one row per document, preferably a scipy.sparse.csr_array"
            )
        found = sparse.csr_array(dense)
    if found.dtype.kind not in "biuf":
        raise DataError(f"the counts have type {found.dtype}; convert them to whole numbers")
    if not (found.shape[0] >= 1 and found.shape[1] >= 1):
        raise DataError(
            f"the documents have shape {found.shape}; give at least one document and one word"
        )
    if words is not None and found.shape[1] != words:
        raise DataError(
            f"the documents are counts of {found.shape[1]} words, but the vocabulary has {words};"
            " use the same vocabulary, in the same order"
        )
    _check_counts(found)
    if not found.has_canonical_format or not found.data.all():
        found = found.copy()
        found.sum_duplicates()
        found.eliminate_zeros()
    lengths = np.diff(found.indptr)
    if not lengths.min() > 0:
        raise DataError(
            f"document {int(np.argmin(lengths))} has no word of the vocabulary; leave it out, e.g."
            " counts[counts.sum(axis=1) > 0]"
        )
    return found.astype(np.float32)


def _check_counts(found: Any) -> None:
    data = found.data
    for wrong, what in (
        (~np.isfinite(data), "is not a number"),
        (data < 0, "is negative"),
        (data != np.floor(data), "is not a whole number"),
        (data > LARGEST_COUNT, f"is above {LARGEST_COUNT}"),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            row = int(np.searchsorted(found.indptr, at, side="right")) - 1
            raise DataError(
                f"document {row}, word {int(found.indices[at])}: count {data[at]:g} {what}; counts"
                " must be whole numbers 0, 1, 2, …"
            )


def rows_of(documents: Documents) -> np.ndarray:
    """Return the row index (the document) of every stored count."""
    return np.repeat(np.arange(documents.shape[0]), np.diff(documents.indptr))


def check_vocabulary(vocabulary: Any, words: int) -> list[str]:
    """Return the words of a vocabulary as text; raise an error if their number is not `words`."""
    found = [str(word) for word in vocabulary]
    if len(found) != words:
        raise ConfigError(
            f"the vocabulary has {len(found)} words, but the documents have {words} columns; give"
            " one word per column, in the order of the columns"
        )
    return found
