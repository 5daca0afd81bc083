"""Gaussian families whose natural parameters carry public sums beside q.

A method may need more than q to go on from: counts, a second moment, what was released so far.
They add up over parties and rounds as natural parameters do, so they travel as such: every request,
reply and checkpoint has them, and nothing else in the house has to know. As a distribution a member
is its Gaussian part alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.arrays import Array
from tacit.expfam.base import Mean, Natural
from tacit.expfam.gaussian import FullGaussian, Gaussian, MeanFieldGaussian

Sums = dict[str, tuple[int, ...]]


class SummedGaussian(Gaussian):
    """What the two have in common; made by `with_sums`."""

    sums: Sums
    """Names and shapes of what is carried."""

    def __init__(self, dimension: int, sums: Sums) -> None:
        super().__init__(dimension)
        taken = sorted(set(sums) & {"linear", "quadratic"})
        if taken:
            raise ValueError(f"{taken[0]!r} is a natural parameter of q itself")
        self.sums = dict(sums)

    @property
    def shapes(self) -> Sums:
        return super().shapes | self.sums  # pyright: ignore[reportAbstractUsage]

    def natural(self, **usual: Array) -> Natural:
        return super().natural(**usual) | self._nothing()  # pyright: ignore[reportAbstractUsage]

    def from_mean(self, mean: Mean) -> Natural:
        return super().from_mean(mean) | self._nothing()  # pyright: ignore[reportAbstractUsage]

    def from_free(self, free: dict[str, Array]) -> Natural:
        return super().from_free(free) | self._nothing()  # pyright: ignore[reportAbstractUsage]

    def is_proper(self, natural: Natural) -> bool:
        finite = all(np.all(np.isfinite(natural[name])) for name in self.sums)
        return finite and super().is_proper(natural)  # pyright: ignore[reportAbstractUsage]

    def _nothing(self) -> Natural:
        return {name: np.zeros(shape) for name, shape in self.sums.items()}

    def __eq__(self, other: Any) -> bool:
        return super().__eq__(other) and self.sums == other.sums

    def __hash__(self) -> int:
        return hash((type(self), self.dimension, tuple(sorted(self.sums.items()))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dimension}, {self.sums})"


class SummedMeanField(SummedGaussian, MeanFieldGaussian):
    """Independent normals and sums."""


class SummedFull(SummedGaussian, FullGaussian):
    """A normal with any covariance, and sums."""


def with_sums(family: Gaussian, sums: Sums) -> SummedGaussian:
    """The family, carrying these sums.

    >>> with_sums(MeanFieldGaussian(2), {"counts": (3,)}).zero()["counts"]
    array([0., 0., 0.])
    """
    kind = SummedFull if isinstance(family, FullGaussian) else SummedMeanField
    return kind(family.dimension, sums)


def without_sums(family: Any, natural: Natural) -> tuple[Any, Natural]:
    """The plain family and λ of the distribution; any other family as it is."""
    if not isinstance(family, SummedGaussian):
        return family, natural
    kind = FullGaussian if isinstance(family, FullGaussian) else MeanFieldGaussian
    plain = kind(family.dimension)
    return plain, {name: natural[name] for name in plain.shapes}
