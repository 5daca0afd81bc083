"""Dirichlet: T(θ) = log θ, λ = α − 1, h = 1, on the simplex."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tacit.arrays import Array, namespace, special
from tacit.expfam.base import Family, Mean, Natural
from tacit.expfam.digamma import inverse_digamma


class Dirichlet(Family):
    """A distribution over probability vectors of `dimension` entries.

    The usual parameter is the concentration α. With α = 1 in all entries the distribution is
    uniform.

    Parameters
    ----------
    dimension
        Number of coordinates of θ.

    Examples
    --------
    >>> family = Dirichlet(3)
    >>> family.location_scale(family.natural(concentration=np.array([1.0, 2.0, 3.0])))[0].round(3)
    array([0.167, 0.333, 0.5  ])
    """

    kind: ClassVar[str] = "dirichlet"

    def __init__(self, dimension: int) -> None:
        self.dimension = int(dimension)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"log": (self.dimension,)}

    def natural(self, *, concentration: Array) -> Natural:
        return {"log": concentration - 1.0}

    def usual(self, natural: Natural) -> dict[str, Array]:
        return {"concentration": natural["log"] + 1.0}

    def statistics(self, theta: Array) -> Mean:
        return {"log": namespace(theta).log(theta)}

    def mean(self, natural: Natural) -> Mean:
        concentration = natural["log"] + 1.0
        sp = special(concentration)
        total = concentration.sum(axis=-1, keepdims=True)
        return {"log": sp.digamma(concentration) - sp.digamma(total)}

    def from_mean(self, mean: Mean) -> Natural:
        return {"log": _concentration(np.asarray(mean["log"])) - 1.0}

    def log_partition(self, natural: Natural) -> Array:
        concentration = natural["log"] + 1.0
        sp, xp = special(concentration), namespace(concentration)
        return xp.sum(sp.gammaln(concentration)) - xp.sum(sp.gammaln(concentration.sum(axis=-1)))

    def expected_log_base(self, natural: Natural) -> Array:
        return 0.0

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        import jax

        return jax.random.dirichlet(key, natural["log"] + 1.0, shape, dtype=np.float64)

    def is_proper(self, natural: Natural) -> bool:
        log = np.asarray(natural["log"])
        return bool(np.all(np.isfinite(log)) and np.all(log > -1))

    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        concentration = natural["log"] + 1.0
        total = concentration.sum(axis=-1, keepdims=True)
        location = concentration / total
        scale = namespace(concentration).sqrt(location * (1.0 - location) / (total + 1.0))
        return location.reshape(-1), scale.reshape(-1)

    def __repr__(self) -> str:
        return f"Dirichlet({self.dimension})"


class Dirichlets(Dirichlet):
    """`count` independent Dirichlet distributions over the same `width` entries, one per row.

    θ is the rows one after the other; the usual parameter is the concentration, count × width.

    >>> family = Dirichlets(2, 3)
    >>> family.location_scale(family.natural(concentration=np.ones((2, 3))))[0].round(3)
    array([0.333, 0.333, 0.333, 0.333, 0.333, 0.333])
    """

    kind: ClassVar[str] = "dirichlets"

    def __init__(self, count: int, width: int) -> None:
        self.count, self.width = int(count), int(width)
        super().__init__(self.count * self.width)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"log": (self.count, self.width)}

    def statistics(self, theta: Array) -> Mean:
        rows = theta.reshape(*theta.shape[:-1], self.count, self.width)
        return {"log": namespace(theta).log(rows)}

    def from_mean(self, mean: Mean) -> Natural:
        rows = [_concentration(row) for row in np.asarray(mean["log"])]
        return {"log": np.stack(rows) - 1.0}

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        return super().sample(key, natural, (*shape, self.count)).reshape(*shape, self.dimension)

    def __repr__(self) -> str:
        return f"Dirichlets({self.count}, {self.width})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dirichlets) and self.shapes == other.shapes

    def __hash__(self) -> int:
        return hash((type(self), self.count, self.width))


def _concentration(mean_log: Array, *, steps: int = 200) -> Array:
    """Find α such that E[log θ] = `mean_log`, by Newton's method on the (concave) likelihood of α.

    The Hessian is a diagonal plus a rank-one matrix, so a step costs O(d).
    """
    from scipy.special import digamma, polygamma

    alpha = inverse_digamma(mean_log + digamma(float(mean_log.size)))
    for _ in range(steps):
        total = alpha.sum()
        gradient = digamma(total) - digamma(alpha) + mean_log
        diagonal = -polygamma(1, alpha)
        shared = polygamma(1, total)
        offset = np.sum(gradient / diagonal) / (1.0 / shared + np.sum(1.0 / diagonal))
        step = (gradient - offset) / diagonal
        scale = 1.0
        while np.any(alpha - scale * step <= 0.0):
            scale *= 0.5
        alpha = alpha - scale * step
        if np.max(np.abs(step) / alpha) < 1e-14:
            break
    return alpha
