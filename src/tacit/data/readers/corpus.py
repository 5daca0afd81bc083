"""Word counts of documents for topic models: English Wikipedia over a public vocabulary.

The counts are not published, so they cannot be downloaded. The files are expected in
TACIT_DATA/wiki or in the cache, and are used only if their SHA-256 is correct.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.readers.download import cache_folder
from tacit.errors import ConfigError, DataError

SOURCE = "wiki"
VOCABULARY = ("dictnostops.txt", "1c586145a2c993e578b3ee3b4b7de0dbe647f35f54a310b29994d7be9000b655")
COUNTS = {
    "enwiki_2008": (
        "enwiki_2008_bow.npz",
        "e7ebdbaec167778f9a471e6e423427d48332998568f14e7eabbb095e10024ced",
    ),
    "enwiki_early": (
        "enwiki_early_bow.npz",
        "5d79e456d3e9e9b4987c21e97c2b5d9e294099912aad63c3ca827363a08f1d9b",
    ),
}
"""File and SHA-256 of each corpus: 145,647 mostly short articles of late 2008, and the 25,886
oldest articles, which are long.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Word counts of documents, divided at random into training and test documents.

    Parameters
    ----------
    train, test
        Counts of words, one row per document.
    vocabulary
        The word of each column.
    """

    train: Any
    test: Any
    vocabulary: tuple[str, ...]

    def __repr__(self) -> str:
        """Return the numbers of documents and words as text."""
        sizes = f"{self.train.shape[0]} + {self.test.shape[0]} documents"
        return f"Corpus({sizes}, {len(self.vocabulary)} words)"


def load_corpus(name: str = "enwiki_2008", *, held_out: int = 2000, seed: int = 0) -> Corpus:
    """Load Wikipedia articles as scipy.sparse counts, split at random into training and test.

    The split is random because the files are ordered by the age of the articles.

    Parameters
    ----------
    name
        Name of the corpus.
    held_out
        Number of test documents.
    seed
        Seed of the split.
    """
    if name not in COUNTS:
        raise ConfigError(f'"{name}" is not a corpus; choose from {", ".join(COUNTS)}')
    from scipy import sparse

    counts: Any = sparse.csr_array(sparse.load_npz(_checked(*COUNTS[name])).astype(np.int32))
    if not 0 <= held_out < counts.shape[0]:
        raise ConfigError(f"held_out = {held_out}; it must be from 0 to {counts.shape[0] - 1}")
    words = _checked(*VOCABULARY).read_text(encoding="utf-8").split()
    order = np.random.default_rng(seed).permutation(counts.shape[0])
    split = counts.shape[0] - held_out
    return Corpus(train=counts[order[:split]], test=counts[order[split:]], vocabulary=tuple(words))


def folder() -> Path:
    """Check the file with the word counts of Wikipedia and return its folder."""
    return _checked(*COUNTS["enwiki_2008"]).parent


def present() -> bool:
    """True if the files with the words and word counts of Wikipedia exist."""
    files = [COUNTS["enwiki_2008"][0], VOCABULARY[0]]
    return all(any((folder / file).is_file() for folder in _folders()) for file in files)


def _folders() -> list[Path]:
    given = os.environ.get("TACIT_DATA")
    own = [Path(given).expanduser() / SOURCE] if given else []
    return [*own, cache_folder() / SOURCE]


def _checked(file: str, sha256: str) -> Path:
    folders = _folders()
    for folder in folders:
        path = folder / file
        if path.is_file():
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            if found != sha256:
                raise DataError(f"{path} has SHA-256 {found}, expected {sha256}; replace the file")
            return path
    raise DataError(
        f"{file} is missing and cannot be downloaded; put a copy in {folders[0]}, or set TACIT_DATA"
        f" to a folder that contains {SOURCE}/{file}"
    )
