"""Expected sufficient statistics of conjugate-exponential models.

If a model, perhaps after augmentation with latent variables, has log p(record, latent | θ) =
⟨T(record, latent), T(θ)⟩ + const, the optimal update given q(θ) is the prior times the sum of
E[T(record, latent)] over records, with the expectation over the latent variables given q (VIPS, eqs
4–6). `Model.statistics` computes the expectations at the party, and only their sum leaves it. A
model provides norms and weighted sums, in closed form if possible, so that no record's statistics
need to be formed.
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
    """Records whose log-likelihood has the terms s·(x·θ) − ½ω(x·θ)²: x is (n, d), s and ω are (n,).

    A conjugate update sums their statistics, s·x and ω·xxᵀ.
    """

    x: Array
    slope: Array
    weight: Array


class Statistics(abc.ABC):
    """Expected statistics E[T(record)] of some records at q, scaled such that a norm of 1 is
    typical.

    A record's values must depend only on that record and q, not on the rest of the batch. Otherwise
    clipping one record's contribution would not bound its effect.
    """

    @abc.abstractmethod
    def norms(self) -> Array:
        """Compute the norm of each record's contribution to `total`, (n,), in float64."""

    def l1_norms(self) -> Array:
        """Compute the L1 norm of each record's statistics, for Laplace noise; not always
        available.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def total(self, weights: Array) -> Any:
        """Compute Σ wᵢ·statisticsᵢ, in the form in which it is released, in float64. Ignores
        records of weight 0.
        """

    def least(self) -> Array | None:
        """Return a lower bound on the coordinates of each record's statistics; None if they may be
        negative.
        """
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Quadratic(Statistics):
    """Statistics of `Working` terms for a Gaussian q; `balance` is the precision's share κ.

    With full covariance a record contributes (s·x, κω·xxᵀ). The matrix is released as its upper
    triangle with off-diagonal entries times √2, so that the norm is the Frobenius norm and noise of
    the same standard deviation in every coordinate is isotropic. With a mean-field q the pair is
    (score, diagonal): (s − ωx·m)x and κ·ωx², where m is the mean of q, which is public; b = score +
    Λ∘m. Everything is divided by `unit`.

    A clipped record is equivalent to a record of smaller weight: its scaled contribution is still a
    term s·(x·θ) − ½ω(x·θ)² of a log-likelihood.
    """

    family: Family
    q: Natural
    parts: Working
    balance: float = 1.0
    unit: float = 1.0

    def norms(self) -> Array:
        """Compute norms from ‖(s·x, κω·xxᵀ)‖² = s²‖x‖² + κ²ω²‖x‖⁴."""
        # Scale x before squaring: an underflowing square would be missing from the norm.
        x, largest = unit_rows(self.parts.x)
        slope, weight = self._terms
        xp = namespace(x)
        squares = xp.sum(x * x, axis=1)
        fourth = xp.square(squares) if whole(self.family) else xp.sum(xp.square(x * x), axis=1)
        first, second = slope * largest, self.balance * weight * largest * largest
        return xp.sqrt(xp.square(first) * squares + xp.square(second) * fourth) / self.unit

    def l1_norms(self) -> Array:
        """Compute |s|·‖x‖₁ + κω(‖x‖² + √2·Σ_{i<j} |xᵢxⱼ|); off-diagonal entries are released times
        √2.

        Twice the last sum is ‖x‖₁² − ‖x‖². With a mean-field q it is omitted.
        """
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
        """Return s (or s − ωx·m for a mean-field q with mean m) and ω, used for both norm and sum.

        For a distant m they are dominated by rounding errors.
        """
        x, slope, weight = (value.astype(np.float64) for value in self.parts)
        if not whole(self.family):
            slope = slope - weight * (x @ _mean(self.q))
        return computed_once((slope, weight))

    def total(self, weights: Array) -> dict[str, Array]:
        """Compute Σ wᵢ·(sᵢxᵢ, κωᵢxᵢxᵢᵀ)."""
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
    """Return λ of the factor, given a total of `Quadratic` statistics, which may include noise."""
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
    """True if the full xxᵀ is released; otherwise its diagonal, and the score at q's mean."""
    return isinstance(family, FullGaussian) or family.dimension == 1


def _mean(q: Natural) -> Array:
    return q["linear"] / (-2.0 * q["quadratic"])


def _triangle(dimension: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.triu_indices(dimension)
    return rows, columns, np.where(rows == columns, 1.0, ROOT)
