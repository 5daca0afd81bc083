"""Made-up documents for the tests of topics."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from tacit.data.bags import document_texts, ledger_form
from tacit.data.documents import check_documents
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.ledger import Ledger


def planted(documents: int, seed: int = 0, words: int = 30, topics: int = 3) -> sparse.csr_array:
    """Documents of which each has words of mostly one of three disjoint sets."""
    rng = np.random.default_rng(seed)
    own = np.kron(np.eye(topics), np.ones(words // topics)) + 0.02
    own /= own.sum(axis=1, keepdims=True)
    mixture = rng.dirichlet(np.full(topics, 0.1), documents)
    chances = mixture @ own
    sizes = rng.integers(10, 60, documents)
    rows = [rng.multinomial(*pair) for pair in zip(sizes, chances, strict=True)]
    return sparse.csr_array(np.array(rows))


def identified(ledger: Ledger, counts: sparse.csr_array) -> DatasetId:
    """What a ledger calls these documents."""
    documents = check_documents(counts)
    return ledger.identify(ledger_form(documents.shape[1]), document_texts(documents))
