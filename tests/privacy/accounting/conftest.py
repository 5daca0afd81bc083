"""An accountant that shares no code with the package: it rounds every privacy loss down."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr

Mixture = list[tuple[float, float]]  # weights and means of unit normals
Pair = tuple[Mixture, Mixture]


def _density(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    return sum(w * np.exp(-((x - m) ** 2) / 2) for w, m in mixture) / np.sqrt(2 * np.pi)


def _cdf(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    return sum(w * ndtr(x - m) for w, m in mixture)


@pytest.fixture(scope="session")
def density() -> Callable[[Mixture, np.ndarray], np.ndarray]:
    return _density


@pytest.fixture(scope="session")
def delta_from_below() -> Callable[..., float]:
    """A lower bound of δ(ε) of a product of pairs (P, Q), given as [(pair, count), …].

    Every cell of a fine partition of the line puts its mass at the smaller loss of its two ends,
    rounded down to the grid; the losses are composed by FFT. Valid for monotone losses.
    """

    def bound(pairs: list[tuple[Pair, int]], epsilon: float, *, grid=2e-4, size=2**19) -> float:
        spectrum, offset, mean = np.ones(size // 2 + 1, dtype=complex), 0, 0.0
        for (p, q), count in pairs:
            means = [m for _, m in (*p, *q)]
            x = np.linspace(min(means) - 8, max(means) + 8, 100_001)
            losses = np.log(_density(p, x)) - np.log(_density(q, x))
            cells = np.floor(np.minimum(losses[1:], losses[:-1]) / grid).astype(int)
            mass = np.bincount(cells - cells.min(), weights=np.diff(_cdf(p, x)), minlength=size)
            spectrum = spectrum * np.fft.rfft(mass) ** count
            offset += count * int(cells.min())
            mean += count * float(mass @ (np.arange(size) + cells.min()))
        # The transform is periodic: its window is centred on the mean of the composed loss.
        first = int(mean) - size // 2
        losses = np.arange(first, first + size)
        composed = np.fft.irfft(spectrum, size)[(losses - offset) % size]
        return float(composed @ -np.expm1(np.minimum(0.0, epsilon - losses * grid)))

    return bound
