"""The Wikipedia counts: found, checked, split."""

import hashlib

import numpy as np
import pytest
from scipy import sparse

from tacit.data.readers import corpus
from tacit.datasets import load_corpus
from tacit.errors import ConfigError, DataError


@pytest.fixture
def wiki(tmp_path, monkeypatch):
    """A corpus of 20 documents over 5 words in place of the real one."""
    folder = tmp_path / "wiki"
    folder.mkdir()
    counts = np.random.default_rng(0).poisson(2.0, (20, 5)).astype(np.uint16)
    sparse.save_npz(folder / "enwiki_2008_bow.npz", sparse.csr_matrix(counts))
    (folder / "dictnostops.txt").write_text("a\nb\nc\nd\ne\n")

    def recorded(name):
        return name, hashlib.sha256((folder / name).read_bytes()).hexdigest()

    monkeypatch.setattr(corpus, "VOCABULARY", recorded("dictnostops.txt"))
    monkeypatch.setitem(corpus.COUNTS, "enwiki_2008", recorded("enwiki_2008_bow.npz"))
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    return folder, counts


def test_it_is_split_at_random_and_whole(wiki):
    _, counts = wiki
    found = load_corpus(held_out=6)
    assert repr(found) == "Corpus(14 + 6 documents, 5 words)"
    assert found.vocabulary == ("a", "b", "c", "d", "e")
    both = np.vstack([found.train.toarray(), found.test.toarray()])
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, counts.tolist()))
    assert not np.array_equal(both, counts)
    again, other = load_corpus(held_out=6), load_corpus(held_out=6, seed=1)
    assert np.array_equal(again.test.toarray(), found.test.toarray())
    assert not np.array_equal(other.test.toarray(), found.test.toarray())


def test_what_is_missing_changed_or_unknown_is_refused(wiki, monkeypatch, tmp_path):
    folder, _ = wiki
    with pytest.raises(ConfigError, match="held_out = 20"):
        load_corpus(held_out=20)
    with pytest.raises(ConfigError, match="not a corpus"):
        load_corpus("dewiki")
    (folder / "dictnostops.txt").write_text("a\nb\nc\nd\nf\n")
    with pytest.raises(DataError, match="SHA-256"):
        load_corpus(held_out=6)
    (folder / "dictnostops.txt").unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    with pytest.raises(DataError, match=r"dictnostops\.txt is missing"):
        load_corpus(held_out=6)
