"""Convert documents between two forms: records of fixed width, and sparse counts.

The records of n documents are {"words": array (n, width), "counts": array (n, width)}. Both arrays
contain integers. A row lists the words of a document and how often each occurs; unused entries have
the count 0. If all documents are in one process, the records may also be {"documents": sparse
matrix of counts}.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tacit.data.documents import Documents, check_documents, rows_of
from tacit.errors import DataError

Array = np.ndarray
Rows = dict[str, Any]
DOCUMENTS_COLUMN = "documents"
"""Name of the column that holds all documents as one sparse matrix."""


def document_records(counts: Any, *, words: int | None = None, width: int | None = None) -> Rows:
    """Convert a matrix of word counts (documents × words) to records.

    All parties of a run must use the same `width`. A document with more different words keeps its
    most frequent ones.

    Parameters
    ----------
    counts
        Counts of words, one row per document.
    width
        Largest number of different words per document; by default the largest in the data.
    words
        Size of the vocabulary, which is the required number of columns; by default any number is
        allowed.

    Examples
    --------
    >>> {name: value.tolist() for name, value in document_records([[2, 0, 1]]).items()}
    {'words': [[0, 2]], 'counts': [[2, 1]]}
    """
    documents = check_documents(counts, words=words)
    lengths = np.diff(documents.indptr)
    width = int(lengths.max()) if width is None else int(width)
    if not width >= 1:
        raise DataError(f"width = {width}; it must be at least 1")
    if lengths.max() > width:
        documents = _shortened(documents, width)
        lengths = np.diff(documents.indptr)
    place = rows_of(documents), np.arange(documents.nnz) - np.repeat(documents.indptr[:-1], lengths)
    shape = (documents.shape[0], width)
    found = {"words": np.zeros(shape, np.int32), "counts": np.zeros(shape, np.int32)}
    found["words"][place] = documents.indices
    found["counts"][place] = documents.data
    return found


def documents_of(records: Rows, words: int, kept: Array | None = None) -> Documents:
    """Convert records to a sparse matrix of counts.

    `kept` selects rows; None selects all. The records must have been checked.
    """
    if DOCUMENTS_COLUMN in records:
        return records[DOCUMENTS_COLUMN] if kept is None else records[DOCUMENTS_COLUMN][kept]
    index, counts = (np.asarray(records[name]) for name in ("words", "counts"))
    if kept is not None:
        index, counts = index[kept], counts[kept]
    there = counts > 0
    ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    data = counts[there].astype(np.float32)
    from scipy import sparse

    return sparse.csr_array((data, index[there], ends), shape=(len(counts), words))


def one_word_each(count: int, words: int) -> Documents:
    """Return `count` documents with one word each, as a sparse matrix over a vocabulary of `words`
    words.
    """
    from scipy import sparse

    parts = (np.ones(count, np.float32), np.arange(count) % words, np.arange(count + 1))
    return sparse.csr_array(parts, shape=(count, words))


def check_document_records(party: str, records: Rows, words: int) -> None:
    """Raise an error if the records are not documents over a vocabulary of `words` words."""
    if DOCUMENTS_COLUMN in records:
        check_documents(records[DOCUMENTS_COLUMN], words=words)
        return
    missing = [name for name in ("words", "counts") if name not in records]
    if missing:
        raise DataError(
            f"party {party!r} has no column {missing[0]!r}, only {', '.join(records)}; make records"
            " with tacit.datasets.document_records(counts)"
        )
    index, counts = (np.asarray(records[name]) for name in ("words", "counts"))
    if index.ndim != 2 or index.shape != counts.shape or index.dtype.kind not in "iu":
        raise DataError(
            f"party {party!r}: words has shape {index.shape} and type {index.dtype}, and counts has"
            f" shape {counts.shape}; give both the shape (documents, width), and words as integers"
        )
    _check_cells(party, index, counts, words)


def _check_cells(party: str, index: Array, counts: Array, words: int) -> None:
    there = counts != 0
    wrong = there & ((index < 0) | (index >= words))
    if wrong.any():
        row, at = np.argwhere(wrong)[0]
        raise DataError(
            f"party {party!r}, document {row}: word number {index[row, at]} is not in the "
            f"vocabulary, which has the numbers 0 to {words - 1}; use the same vocabulary, in the "
            "same order, at all parties"
        )
    ordered = np.sort(np.where(there, index, -1 - np.arange(index.shape[1])), axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        row = int(np.argmax((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)))
        raise DataError(
            f"party {party!r}, document {row} lists a word twice; add up the two counts"
        )
    try:
        from scipy import sparse

        flat = sparse.csr_array(
            (counts[there], index[there], np.concatenate([[0], np.cumsum(there.sum(axis=1))])),
            shape=(len(counts), words),
        )
        check_documents(flat)
    except DataError as error:
        raise DataError(f"party {party!r}, {error}") from None


def document_texts(documents: Documents) -> Rows:
    """Return one text per document. A ledger computes the fingerprint of the data set from these
    texts.
    """
    words, counts = documents.indices.astype("<u4"), documents.data.astype("<u4")
    texts = [
        words[a:b].tobytes().hex() + "." + counts[a:b].tobytes().hex()
        for a, b in pairwise(documents.indptr.tolist())
    ]
    return {"document": np.array(texts, object)}


def ledger_form(words: int) -> dict[str, Any]:
    """Return a description of documents over `words` words, which is part of the data set's id in a
    ledger.
    """
    return {"documents": "counts of words", "words": words}


def _shortened(documents: Documents, width: int) -> Documents:
    """Return the documents reduced to their `width` most frequent words.

    Of equally frequent words, those that come first in the vocabulary are kept.
    """
    order = np.lexsort((documents.indices, -documents.data, rows_of(documents)))
    rank = np.empty(documents.nnz, np.int64)
    rank[order] = np.arange(documents.nnz)
    rank -= np.repeat(documents.indptr[:-1], np.diff(documents.indptr))
    found = documents.copy()
    found.data = np.where(rank < width, documents.data, np.float32(0.0))
    found.eliminate_zeros()
    return found
