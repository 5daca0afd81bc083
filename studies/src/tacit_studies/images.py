"""Binary images, for models of unlabelled records: MNIST's handwritten digits.

A record is one image, {"x": 784 zeros and ones}, row by row. Images have no named columns and no
target, so they are loaded here and not through a table.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tacit.data.readers.download import local_files
from tacit.errors import ConfigError

SOURCE = "mnist"
SIDE = 28
THRESHOLD = 127
HEADER_BYTES = 16

Binarise = Literal["threshold", "stochastic"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Training and test records."""

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]

    def __repr__(self) -> str:
        """Sizes only, never the images."""
        sizes = f"{len(self.train['x'])} + {len(self.test['x'])}"
        return f"Images({sizes} of {SIDE} × {SIDE})"

    def parties(self, count: int, *, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
        """Distribute the training records at random to `count` parties of nearly equal size."""
        x = self.train["x"]
        if not 1 <= count <= len(x):
            raise ConfigError(f"{count} parties for {len(x)} images; choose 1 to {len(x)}")
        order = np.random.default_rng([seed, count]).permutation(len(x))
        return {f"site-{m}": {"x": x[rows]} for m, rows in enumerate(np.array_split(order, count))}


def load_images(*, binarise: Binarise = "threshold", seed: int = 0) -> Images:
    """MNIST's 60,000 + 10,000 digits as zeros and ones; `tacit data fetch mnist` gets the files.

    "threshold" is 1 above 127. "stochastic" draws each pixel once, with its grey value over 255 as
    the probability (Salakhutdinov and Murray 2008). Published bounds are of either kind; the two
    kinds are not comparable.
    """
    if binarise not in ("threshold", "stochastic"):
        raise ConfigError(f"binarise = {binarise!r}; choose 'threshold' or 'stochastic'")
    folder = local_files(SOURCE)
    rng = np.random.default_rng([seed, 0x1D8])
    grey = (_read(folder / f"{name}-images-idx3-ubyte.gz") for name in ("train", "t10k"))
    made = (
        one > THRESHOLD if binarise == "threshold" else rng.integers(255, size=one.shape) < one
        for one in grey
    )
    train, test = ({"x": one.astype(np.uint8)} for one in made)
    return Images(train=train, test=test)


def _read(path: Path) -> np.ndarray:
    """The bytes after the header of an idx file, one row per image."""
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=HEADER_BYTES).reshape(-1, SIDE**2)
