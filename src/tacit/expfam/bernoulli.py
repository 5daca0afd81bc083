"""Independent Bernoulli variables: T(θ) = θ, λ = log p/(1 − p), h = 1, on {0, 1}."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace, softplus
from tacit.expfam.base import Family, Mean, Natural


class Bernoulli(Family):
    """`dimension` independent variables that are 0 or 1.

    The usual parameter is the probability of 1. The family suits a binary unknown, such as which of
    two hypotheses holds: the log-odds of the parties add up.

    Parameters
    ----------
    dimension
        Number of coordinates of θ.

    Examples
    --------
    >>> family = Bernoulli(2)
    >>> q = family.natural(probability=np.array([0.5, 0.9]))
    >>> family.location_scale(q)[1].round(3)
    array([0.5, 0.3])
    """

    kind: ClassVar[str] = "bernoulli"

    def __init__(self, dimension: int) -> None:
        self.dimension = int(dimension)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"linear": (self.dimension,)}

    def natural(self, *, probability: Array) -> Natural:
        xp = namespace(probability)
        return {"linear": xp.log(probability) - xp.log1p(-probability)}

    def usual(self, natural: Natural) -> dict[str, Array]:
        return {"probability": _sigmoid(natural["linear"])}

    def statistics(self, theta: Array) -> Mean:
        return {"linear": theta}

    def mean(self, natural: Natural) -> Mean:
        return {"linear": _sigmoid(natural["linear"])}

    def from_mean(self, mean: Mean) -> Natural:
        return self.natural(probability=np.asarray(mean["linear"], np.float64))

    def log_partition(self, natural: Natural) -> Array:
        return namespace(natural["linear"]).sum(softplus(natural["linear"]))

    def expected_log_base(self, natural: Natural) -> Array:
        return 0.0

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        import jax

        probability = self.usual(natural)["probability"]
        return jax.random.bernoulli(key, probability, (*shape, self.dimension)).astype(np.float64)

    def is_proper(self, natural: Natural) -> bool:
        return bool(np.all(np.isfinite(np.asarray(natural["linear"]))))

    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        up, down = _sigmoid(natural["linear"]), _sigmoid(-natural["linear"])
        return up, namespace(up).sqrt(up * down)

    def __repr__(self) -> str:
        return f"Bernoulli({self.dimension})"


def _sigmoid(logit: Array) -> Array:
    """Return sigmoid(`logit`) without overflow; small results are accurate too."""
    xp = namespace(logit)
    small = xp.exp(-xp.abs(logit))
    return xp.where(logit > 0, 1.0 / (1.0 + small), small / (1.0 + small))
