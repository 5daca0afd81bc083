"""Images: read from idx files whose content is checked, however they were packed."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from tacit.data.readers.download import REGISTRY, PublicFile
from tacit.errors import ConfigError, DataError
from tacit_studies.images import load_images

NAMES = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of a few images, and a registry that knows them."""
    rng = np.random.default_rng(0)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mnist").mkdir()
    files = []
    for name, count in zip(NAMES, (40, 9), strict=True):
        grey = rng.choice([0, 100, 127, 128, 255], size=(count, 28, 28)).astype(np.uint8)
        head = np.array([2051, count, 28, 28], ">i4").tobytes()
        body = head + grey.tobytes()
        (tmp_path / "mnist" / name).write_bytes(gzip.compress(body))
        digest = hashlib.sha256(body).hexdigest()
        files.append(PublicFile(name=name, url="", sha256=digest, size=1, unpacked=True))
    monkeypatch.setitem(REGISTRY, "mnist", tuple(files))
    return tmp_path / "mnist"


def grey_of(folder: Path, name: str) -> np.ndarray:
    body = gzip.decompress((folder / name).read_bytes())[16:]
    return np.frombuffer(body, np.uint8).reshape(-1, 784)


def test_threshold_and_chance_make_zeros_and_ones(folder):
    grey = grey_of(folder, NAMES[0])
    images = load_images()
    np.testing.assert_array_equal(images.train["x"], grey > 127)
    assert images.test["x"].shape == (9, 784)
    drawn = load_images(binarise="stochastic", seed=1).train["x"]
    assert np.all(drawn[grey == 0] == 0)
    assert np.all(drawn[grey == 255] == 1)
    share = drawn[grey == 100].mean()
    assert abs(share - 100 / 255) < 4.5 * np.sqrt(0.25 / np.sum(grey == 100))
    with pytest.raises(ConfigError, match="binarise = 'grey'"):
        load_images(binarise="grey")  # pyright: ignore[reportArgumentType]


def test_another_packing_is_the_same_file_and_another_content_is_not(folder):
    before = load_images().train["x"]
    path = folder / NAMES[0]
    body = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(body, compresslevel=1, mtime=7))
    np.testing.assert_array_equal(load_images().train["x"], before)
    for wrong in (gzip.compress(body[:-1]), b"no gzip file"):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match="SHA-256"):
            load_images()


def test_parties_share_out_every_image_once(folder):
    images = load_images()
    parties = images.parties(3, seed=2)
    assert [len(one["x"]) for one in parties.values()] == [14, 13, 13]
    together = np.concatenate([one["x"] for one in parties.values()])
    assert sorted(map(bytes, together)) == sorted(map(bytes, images.train["x"]))
    assert repr(images) == "Images(40 + 9 of 28 × 28)"
    with pytest.raises(ConfigError, match="41 parties"):
        images.parties(41)
