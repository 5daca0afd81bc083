"""Independent gammas: T(θ) = (log θ, θ), λ = (a − 1, −b), h = 1, on the positive reals."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace, special
from tacit.expfam.base import Family, Mean, Natural


class Gamma(Family):
    """`dimension` independent gamma variables with shapes a and rates b.

    Parameters
    ----------
    dimension
        Number of coordinates of θ.

    Examples
    --------
    >>> family = Gamma(1)
    >>> family.location_scale(family.natural(shape=np.array([4.0]), rate=np.array([2.0])))[0]
    array([2.])
    """

    kind: ClassVar[str] = "gamma"

    def __init__(self, dimension: int) -> None:
        self.dimension = int(dimension)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"log": (self.dimension,), "linear": (self.dimension,)}

    def natural(self, *, shape: Array, rate: Array) -> Natural:
        return {"log": shape - 1.0, "linear": -rate}

    def usual(self, natural: Natural) -> dict[str, Array]:
        return {"shape": natural["log"] + 1.0, "rate": -natural["linear"]}

    def statistics(self, theta: Array) -> Mean:
        return {"log": namespace(theta).log(theta), "linear": theta}

    def mean(self, natural: Natural) -> Mean:
        shape, rate = natural["log"] + 1.0, -natural["linear"]
        xp = namespace(shape, rate)
        return {"log": special(shape).digamma(shape) - xp.log(rate), "linear": shape / rate}

    def from_mean(self, mean: Mean) -> Natural:
        location = np.asarray(mean["linear"], dtype=np.float64)
        shape = _shape(np.log(location) - np.asarray(mean["log"], dtype=np.float64))
        return self.natural(shape=shape, rate=shape / location)

    def log_partition(self, natural: Natural) -> Array:
        shape, rate = natural["log"] + 1.0, -natural["linear"]
        xp = namespace(shape, rate)
        return xp.sum(special(shape).gammaln(shape) - shape * xp.log(rate))

    def expected_log_base(self, natural: Natural) -> Array:
        return 0.0

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        import jax

        usual = self.usual(natural)
        draws = jax.random.gamma(key, usual["shape"], (*shape, self.dimension), dtype=np.float64)
        return draws / usual["rate"]

    def is_proper(self, natural: Natural) -> bool:
        log, linear = np.asarray(natural["log"]), np.asarray(natural["linear"])
        finite = np.all(np.isfinite(log)) and np.all(np.isfinite(linear))
        return bool(finite and np.all(log > -1) and np.all(linear < 0))

    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        shape, rate = natural["log"] + 1.0, -natural["linear"]
        return shape / rate, namespace(shape).sqrt(shape) / rate

    def __repr__(self) -> str:
        return f"Gamma({self.dimension})"


def _shape(gap: Array, *, steps: int = 60) -> Array:
    """Return the number a for which log a − digamma(a) = `gap`; `gap` must be positive."""
    from scipy.special import digamma, polygamma

    a = (3.0 - gap + np.sqrt((gap - 3.0) ** 2 + 24.0 * gap)) / (12.0 * gap)
    for _ in range(steps):
        error = np.log(a) - digamma(a) - gap
        a = a * np.exp(-error / (1.0 - a * polygamma(1, a)))
        if np.all(np.abs(error) < 1e-15):
            break
    return a
