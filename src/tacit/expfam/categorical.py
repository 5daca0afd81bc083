"""Categorical: θ is one of K unit vectors, T(θ) its first K − 1 entries, h = 1.

λₖ = log pₖ/p_K for k < K: with all K entries the natural parameters would not be identified.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace
from tacit.expfam.base import Family, Mean, Natural


class Categorical(Family):
    """One of `dimension` levels, as a vector of zeros and a single 1.

    The usual parameter is the probability of each level. The family suits an unknown level, such as
    which of several hypotheses holds.

    Parameters
    ----------
    dimension
        Number of levels K, at least 2.

    Examples
    --------
    >>> family = Categorical(3)
    >>> q = family.natural(probability=np.array([0.2, 0.3, 0.5]))
    >>> family.location_scale(q)[0].round(3)
    array([0.2, 0.3, 0.5])
    """

    kind: ClassVar[str] = "categorical"

    def __init__(self, dimension: int) -> None:
        self.dimension = int(dimension)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"linear": (self.dimension - 1,)}

    def natural(self, *, probability: Array) -> Natural:
        log = namespace(probability).log(probability)
        return {"linear": log[..., :-1] - log[..., -1:]}

    def usual(self, natural: Natural) -> dict[str, Array]:
        return {"probability": _softmax(natural["linear"])}

    def statistics(self, theta: Array) -> Mean:
        return {"linear": theta[..., :-1]}

    def mean(self, natural: Natural) -> Mean:
        return {"linear": _softmax(natural["linear"])[..., :-1]}

    def from_mean(self, mean: Mean) -> Natural:
        first = np.asarray(mean["linear"], np.float64)
        rest = 1.0 - first.sum(axis=-1, keepdims=True)
        return self.natural(probability=np.concatenate([first, rest], axis=-1))

    def log_partition(self, natural: Natural) -> Array:
        """Compute log(1 + Σₖ e^λₖ) without overflow."""
        logits = _logits(natural["linear"])
        xp = namespace(logits)
        most = xp.max(logits)
        return most + xp.log(xp.sum(xp.exp(logits - most)))

    def expected_log_base(self, natural: Natural) -> Array:
        return 0.0

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        import jax

        level = jax.random.categorical(key, _logits(natural["linear"]), shape=shape)
        return jax.nn.one_hot(level, self.dimension, dtype=np.float64)

    def is_proper(self, natural: Natural) -> bool:
        return bool(np.all(np.isfinite(np.asarray(natural["linear"]))))

    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        location = _softmax(natural["linear"])
        return location, namespace(location).sqrt(location * (1.0 - location))

    def __repr__(self) -> str:
        return f"Categorical({self.dimension})"


def _logits(linear: Array) -> Array:
    xp = namespace(linear)
    return xp.concatenate([linear, xp.zeros_like(linear[..., :1])], axis=-1)


def _softmax(linear: Array) -> Array:
    logits = _logits(linear)
    xp = namespace(logits)
    each = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    return each / xp.sum(each, axis=-1, keepdims=True)
