"""Expected sufficient statistics of conjugate-exponential models.

In such a model, perhaps after augmentation with latent variables, log p(record, latent | θ) =
⟨T(record, latent), T(θ)⟩ + const. Given q(θ), the natural parameters of the best update are then
those of the prior plus the sum of E[T(record, latent)] over records, where the expectation is over
the latent variables given q (VIPS, eqs 4–6). `Model.statistics` computes these expectations at the
party, and only their sum leaves the party. A model provides norms and weighted sums, in closed form
if possible, so that the statistics of single records need not be formed.
"""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array, computed_once, kept_rows, namespace, unit_rows
from tacit.expfam import Family, FullGaussian, Natural

ROOT = float(np.sqrt(2.0))


class Working(NamedTuple):
    """Records whose log-likelihood is s·(x·θ) − ½ω(x·θ)² up to a constant.

    `x` has shape (n, d). `slope` is s and `weight` is ω, both of shape (n,). The sufficient
    statistics of a record are s·x and ω·xxᵀ.
    """

    x: Array
    slope: Array
    weight: Array


class Statistics(abc.ABC):
    """Expected sufficient statistics of records under q, scaled such that the norm of a record's
    statistics is typically about 1.

    The statistics of a record must depend only on q and that record. If they also depended on other
    records in the batch, clipping would not bound the effect of one record.
    """

    @abc.abstractmethod
    def norms(self) -> Array:
        """Return the L2 norm of each record's statistics, as a float64 array of shape (n,)."""

    def l1_norms(self) -> Array:
        """Return the L1 norm of each record's statistics, which Laplace noise needs. Not all models
        provide these norms.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def total(self, weights: Array) -> Any:
        """Return Σᵢ weightᵢ·statisticsᵢ over records i, in float64, in the form that a party
        releases. Records of weight 0 are ignored.
        """

    def least(self) -> Array | None:
        """Return one number per record. If it is at least 0, no coordinate of the record's
        statistics is negative.

        The result is None if statistics of this kind are often negative.
        """
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Quadratic(Statistics):
    """Statistics of records whose log-likelihood is s·(x·θ) − ½ω(x·θ)² (`Working`), for a Gaussian
    q.

    Let κ be `balance`, a factor on the second moments. For a full covariance, the statistics of a
    record are s·x and κω·xxᵀ. The matrix is released as its upper triangle, with off-diagonal
    entries times √2, so that the norm of the released numbers is the Frobenius norm. For a
    mean-field q with the public mean m, the statistics are the score (s − ωx·m)x and the diagonal
    κωx². All statistics are divided by `unit`.

    Clipping a record is equivalent to giving it a smaller weight: it multiplies s and ω by the same
    number.
    """

    family: Family
    q: Natural
    parts: Working
    balance: float = 1.0
    unit: float = 1.0

    def norms(self) -> Array:
        """Return the L2 norm of each record's statistics."""
        # Scale x before squaring: an underflowing square would be missing from the norm.
        x, largest = unit_rows(self.parts.x)
        slope, weight = self._terms
        xp = namespace(x)
        squares = xp.sum(x * x, axis=1)
        fourth = xp.square(squares) if whole(self.family) else xp.sum(xp.square(x * x), axis=1)
        first, second = slope * largest, self.balance * weight * largest * largest
        return xp.sqrt(xp.square(first) * squares + xp.square(second) * fourth) / self.unit

    def l1_norms(self) -> Array:
        """Return the L1 norm of each record's statistics."""
        # For a full covariance the norm is |s|·‖x‖₁ + κω(‖x‖² + √2·Σ_{i<j} |xᵢxⱼ|). For a
        # mean-field q, s is replaced by s − ωx·m, and the last sum is left out.
        x, largest = unit_rows(self.parts.x)
        slope, weight = self._terms
        xp = namespace(x)
        absolute, squares = xp.sum(xp.abs(x), axis=1), xp.sum(x * x, axis=1)
        second = squares
        if whole(self.family):
            second = squares + ROOT / 2.0 * xp.maximum(xp.square(absolute) - squares, 0.0)
        first = xp.abs(slope) * largest * absolute
        return (first + self.balance * xp.abs(weight) * largest * largest * second) / self.unit

    @functools.cached_property
    def _terms(self) -> tuple[Array, Array]:
        # Returns s (for a mean-field q with mean m: s − ωx·m) and ω of each record. If s and ωx·m
        # nearly cancel, their difference is mostly rounding error. Norms and sums therefore use the
        # same computed value.
        x, slope, weight = (value.astype(np.float64) for value in self.parts)
        if not whole(self.family):
            slope = slope - weight * (x @ _mean(self.q))
        return computed_once((slope, weight))

    def total(self, weights: Array) -> dict[str, Array]:
        """Return the weighted sums over records of the first moments ("linear") and of the second
        moments ("precision").
        """
        weights = weights.astype(np.float64)
        xp = namespace(weights)
        x, slope, weight = (kept_rows(weights, value) for value in (self.parts.x, *self._terms))
        weights = weights / self.unit
        weighted = weights * weight
        if whole(self.family):
            rows, columns, root = _triangle(self.family.dimension)
            second = ((x * weighted[:, None]).T @ x)[rows, columns] * root
        else:
            second = weighted @ xp.square(x)
        return {"linear": (weights * slope) @ x, "precision": self.balance * second}


def gaussian_factor(
    family: Family, q: Natural, total: dict[str, Array], balance: float = 1.0
) -> Natural:
    """Return the natural parameters of a factor. `total` is the sum of the records' `Quadratic`
    statistics and may contain noise.
    """
    second = total["precision"] / balance
    if not whole(family):
        return {"linear": total["linear"] + second * _mean(q), "quadratic": -0.5 * second}
    rows, columns, root = _triangle(family.dimension)
    places = np.zeros((family.dimension,) * 2, int)
    places[rows, columns] = np.arange(len(rows))
    matrix = (second / root)[places + np.triu(places, 1).T]
    return {
        "linear": total["linear"],
        "quadratic": -0.5 * matrix.reshape(family.shapes["quadratic"]),
    }


def whole(family: Family) -> bool:
    """True if all entries of the matrices xxᵀ are released; False for a mean-field family, for
    which only their diagonals are released.
    """
    return isinstance(family, FullGaussian) or family.dimension == 1


def _mean(q: Natural) -> Array:
    return q["linear"] / (-2.0 * q["quadratic"])


def _triangle(dimension: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.triu_indices(dimension)
    return rows, columns, np.where(rows == columns, 1.0, ROOT)
