"""Sources of documents: a synthetic corpus, Wikipedia, and the user's files.

A record is the word counts of one document. The vocabulary is public and the same for all parties.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tacit.data.bags import document_records, document_texts, ledger_form
from tacit.data.config import DataConfig, PartitionConfig
from tacit.data.documents import Documents, check_documents
from tacit.data.federation import HOLD_OUT, PARTITION, Federation
from tacit.data.partition import Rows, balanced, held_out_rows
from tacit.data.readers.cohort import GENERATE
from tacit.data.readers.corpus import load_corpus
from tacit.data.source_rows import SourceRows, with_unused
from tacit.errors import DataError

DEFAULT_DOCUMENTS = 600
OUTCOME = "words"
COUNTS_FILE, VOCABULARY_FILE = "counts.npz", "vocabulary.txt"
THEMES = {
    "weather": "rain wind cloud storm snow frost sun thunder mist breeze drizzle hail",
    "kitchen": "bread salt flour oven butter onion pepper stew pan spoon cheese soup",
    "harbour": "boat anchor sail tide rope dock crew cargo net gull pier wave",
    "garden": "seed soil rose hedge spade bulb moss lawn root petal weed branch",
    "music": "song drum violin choir tune chord rhythm flute concert melody organ bass",
}
EVERYWHERE = "day time place people year thing way part hand side"


def corpus_federation(data: DataConfig, partition: PartitionConfig, seed: int) -> Federation:
    """Read documents and distribute them at random over `partition.parties` parties of equal size.

    Held-out documents are the test records.
    """
    documents, vocabulary = read_documents(data, seed)
    held = held_out_rows(documents.shape[0], data.held_out, np.random.default_rng([seed, HOLD_OUT]))
    train = np.flatnonzero(~held)
    dealt = balanced(len(train), partition.parties, np.random.default_rng([seed, PARTITION]))
    rows = {name: train[part] for name, part in dealt.items()}
    return assembled(documents, vocabulary, data, rows, held)


def corpus_party(data: DataConfig, name: str, seed: int) -> Federation:
    """Read the documents of one party.

    Held-out documents are the test records.
    """
    documents, vocabulary = read_documents(data, seed)
    held = held_out_rows(documents.shape[0], data.held_out, np.random.default_rng([seed, HOLD_OUT]))
    return assembled(documents, vocabulary, data, {name: np.flatnonzero(~held)}, held)


def corpus_schema(data: DataConfig) -> Federation:
    """Return a federation that shows the public vocabulary of a corpus, without its documents.

    Its only record is one artificial document that contains every word once.
    """
    vocabulary = read_vocabulary(data)
    example = check_documents(np.ones((1, len(vocabulary)), np.int32))
    nobody = np.zeros(1, dtype=bool)
    found = assembled(example, vocabulary, data, {"example": np.arange(1)}, nobody)
    found.raw.clear()
    return found


def read_vocabulary(data: DataConfig) -> tuple[str, ...]:
    """Return the words of the vocabulary, in the order of the columns of the word counts.

    Documents are read for the source "wikipedia" only.
    """
    if data.source == "synthetic-topics":
        return (*" ".join(THEMES.values()).split(), *EVERYWHERE.split())
    if data.source == "wikipedia":
        return load_corpus(held_out=0).vocabulary
    path = Path(data.vocabulary or Path(str(data.path)) / VOCABULARY_FILE).expanduser()
    try:
        words = tuple(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"data.vocabulary: {path} cannot be read ({error}); give a text file with one word"
            " per line, in the order of the columns of the counts"
        ) from None
    twice = [word for word, count in Counter(words).items() if count > 1]
    if not words or twice:
        what = f"the word {twice[0]!r} more than once" if twice else "no word"
        raise DataError(f"data.vocabulary: {path} has {what}; list each word once")
    return words


def read_documents(data: DataConfig, seed: int) -> tuple[Documents, tuple[str, ...]]:
    """Return the word counts (one row per document, one column per word) and the words of the
    vocabulary.
    """
    if data.source == "wikipedia":
        corpus = load_corpus(held_out=0)
        counts: Any = corpus.train
        if data.records is not None:
            counts = counts[: data.records]  # already in random order
        return check_documents(counts), corpus.vocabulary
    vocabulary = read_vocabulary(data)
    if data.source == "synthetic-topics":
        rng = np.random.default_rng([seed, GENERATE])
        return check_documents(_made_up(data.records or DEFAULT_DOCUMENTS, rng)), vocabulary
    path = Path(str(data.path)).expanduser()
    path = path / COUNTS_FILE if path.is_dir() else path
    from scipy import sparse

    if not path.is_file():
        raise DataError(
            f"data.path: there is no file {path}; write the matrix of word counts (one row per"
            " document, one column per word) to it with scipy.sparse.save_npz"
        )
    try:
        counts = sparse.load_npz(path)
    except (OSError, ValueError, KeyError, BadZipFile):
        raise DataError(
            f"data.path: {path} is not a sparse matrix; write the matrix of word counts (one row"
            " per document, one column per word) with scipy.sparse.save_npz"
        ) from None
    try:
        return check_documents(counts, words=len(vocabulary)), vocabulary
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def assembled(
    documents: Documents,
    vocabulary: tuple[str, ...],
    data: DataConfig,
    rows: Rows,
    held: np.ndarray,
) -> Federation:
    """Make a federation from documents.

    `rows` has the documents of each party, and `held` marks held-out documents. A record has a
    fixed number of different words. If a document has more, its rarest words are dropped.
    """
    different = np.diff(documents.indptr)
    width = data.different_words or int(different.max())
    notes = ()
    if (different > width).any():
        notes = (
            f"{np.mean(different > width):.2%} of the documents have more than {width} different"
            " words; their rarest words are dropped",
        )
    if data.held_out > 0 and not held.any():
        held_out = f"data.held_out = {data.held_out} holds out no document; raise it for a test"
        notes = (*notes, held_out)

    def records(part: np.ndarray) -> dict[str, np.ndarray]:
        return document_records(documents[part], width=width)

    return Federation(
        parties={name: records(part) for name, part in rows.items()},
        test=records(np.flatnonzero(held)) if held.any() else None,
        names=vocabulary,
        outcome=OUTCOME,
        output="other",
        scaling=data.scaling,
        notes=notes,
        raw={name: document_texts(documents[part]) for name, part in rows.items()},
        source=SourceRows(
            with_unused(rows, np.arange(documents.shape[0])),
            lambda part: document_texts(documents[part]),
        ),
        known_by=ledger_form(len(vocabulary)),
    )


def _made_up(count: int, rng: np.random.Generator) -> np.ndarray:
    """Generate word counts of documents, most of which are about one or two themes.

    On average a quarter of the words are in `EVERYWHERE`; these words occur in all themes.
    """
    own, common = len(next(iter(THEMES.values())).split()), len(EVERYWHERE.split())
    themes = len(THEMES)
    falling = 1.0 / np.arange(2, own + 2)
    topics = np.zeros((themes, themes * own + common))
    for theme in range(themes):
        topics[theme, theme * own : (theme + 1) * own] = 0.75 * falling / falling.sum()
    topics[:, -common:] = 0.25 / common
    chances = rng.dirichlet(np.full(themes, 0.15), count) @ topics
    lengths = rng.integers(20, 80, count)
    return rng.multinomial(lengths, chances / chances.sum(axis=1, keepdims=True))
