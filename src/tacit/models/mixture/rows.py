"""The party's computations for a mixture: statistics of single records, with known norms.

**Contribution of a record.** Let r be the responsibilities of the K components for the record, with
r ≥ 0 and Σₖ rₖ = 1. Let uₖ be its coordinates for component k: Fₖ(y − mₖ) with public mₖ and Fₖ, or
the same coordinates for all components. With constants a + c = 1 and a radius R, let

    zₖ = (√a, √c·uₖ/R).

The record contributes the matrices rₖ·zₖzₖᵀ of all components. Each matrix is packed as its upper
triangle, with off-diagonal entries times √2.

**Norms.** The norm of a contribution is √(Σₖ rₖ²(a + c‖uₖ‖²/R²)²), which is at most 1 if all ‖uₖ‖ ≤
R. Contributions of two records have the inner product Σₖ rₖrₖ'(zₖ·zₖ')² ≥ 0. Replacing a record
therefore moves the clipped sum by at most √2, for any number of components.

The statistics of a record are computed by elementwise operations, so that they do not depend on
other records, not even by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.arrays import Array
from tacit.models.conjugate import RowStatistics
from tacit.models.statistics import Statistics

CONSTANT = 0.4
"""The constant a of the module docstring, which is the share of the count in the largest norm."""


class Units(NamedTuple):
    """Factors by which the count, linear and quadratic terms of a packed row are multiplied.
    `radius` is R and `constant` is a in the module docstring.
    """

    radius: float
    constant: float = CONSTANT

    @property
    def count(self) -> float:
        return self.constant

    @property
    def linear(self) -> float:
        return np.sqrt(2.0 * self.constant * (1.0 - self.constant)) / self.radius

    @property
    def quadratic(self) -> float:
        return (1.0 - self.constant) / self.radius**2


def outer_rows(y: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return the packed matrix zzᵀ of each row of y, and the norms of these matrices.

    z is computed from the row as in the module docstring, with y as coordinates.
    """
    rows, columns = np.triu_indices(y.shape[1])
    root = np.where(rows == columns, 1.0, np.sqrt(2.0))
    packed = np.empty((len(y), 1 + y.shape[1] + len(rows)))
    packed[:, 0] = units.count
    packed[:, 1 : 1 + y.shape[1]] = units.linear * y
    for place, (i, j) in enumerate(zip(rows, columns, strict=True)):
        packed[:, 1 + y.shape[1] + place] = (units.quadratic * root[place]) * (y[:, i] * y[:, j])
    return packed, units.count + units.quadratic * squared_lengths(y)


def diagonal_rows(y: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return packed statistics (count, y, y²) of each row of y, and their norms.

    They contain only the count, sum and sum of squares of each column, not products of different
    columns.
    """
    # With a, c and R as in the module docstring, column j has zⱼ = (√a, √c·yⱼ/R) and contributes
    # the matrix zⱼzⱼᵀ/√d. The norm is √(Σⱼ (a + c yⱼ²/R²)²/d), and the inner product of two rows is
    # Σⱼ (zⱼ·zⱼ')²/d ≥ 0. The d equal entries a/√d are packed as the single number a.
    d = y.shape[1]
    root = np.sqrt(d)
    packed = np.empty((len(y), 1 + 2 * d))
    packed[:, 0] = units.count
    packed[:, 1 : 1 + d] = (units.linear / root) * y
    packed[:, 1 + d :] = (units.quadratic / root) * (y * y)
    squares = np.zeros(len(y))
    for column in y.T:
        squares = squares + np.square(units.count + units.quadratic * (column * column))
    return packed, np.sqrt(squares / d)


def product_statistics(weights: np.ndarray, packed: np.ndarray, norms: np.ndarray) -> RowStatistics:
    """Return the statistics of records: the outer product of each record's responsibilities
    (`weights`) and its packed row. `norms` are the norms of the packed rows.
    """
    sizes = np.sqrt(squared_lengths(weights)) * norms
    return RowStatistics(left=weights, right=packed, sizes=sizes)


@dataclass(frozen=True, kw_only=True, eq=False)
class ComponentStatistics(Statistics):
    """Statistics of records in the coordinates of each component, multiplied by responsibilities.

    Parameters
    ----------
    weights
        Responsibilities of the K components for each of n records, of shape (n, K).
    coordinates
        Coordinates of all records for each component: K arrays of shape (n, d).
    units
        Factors by which the count, linear and quadratic terms are multiplied.
    """

    weights: np.ndarray
    coordinates: Sequence[np.ndarray]
    units: Units

    def norms(self) -> np.ndarray:
        squares = np.zeros(len(self.weights))
        for weight, u in zip(self.weights.T, self.coordinates, strict=True):
            size = self.units.count + self.units.quadratic * squared_lengths(u)
            squares = squares + np.square(weight * size)
        return np.sqrt(squares)

    def total(self, weights: Array) -> np.ndarray:
        weights = np.asarray(weights, np.float64)
        kept = weights > 0
        share = np.where(kept, weights, 0.0)
        parts = []
        for weight, u in zip(self.weights.T, self.coordinates, strict=True):
            packed, _ = outer_rows(np.where(kept[:, None], u, 0.0), self.units)
            parts.append((share * np.where(kept, weight, 0.0)) @ packed)
        return np.concatenate(parts)


def squared_lengths(rows: np.ndarray) -> np.ndarray:
    """Return the squared norm of every row."""
    squares = np.zeros(len(rows))
    for column in rows.T:
        squares = squares + column * column
    return squares


def rowwise_product(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return rows @ matrixᵀ. BLAS is not used, because its rounding may depend on the number of
    rows.
    """
    result = np.zeros((len(rows), len(matrix)))
    for i, weights in enumerate(matrix):
        for j, weight in enumerate(weights):
            result[:, i] = result[:, i] + weight * rows[:, j]
    return result


def nearest_cells(y: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return a one-hot vector for each row of y, which marks the nearest centre. Of equally near
    centres, the first one is marked.
    """
    squares = np.zeros((len(y), len(centres)))
    for j in range(y.shape[1]):
        squares = squares + np.square(y[:, j, None] - centres[:, j])
    return np.eye(len(centres))[np.argmin(squares, axis=1)]


def own_coordinates(y: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> list[np.ndarray]:
    """Return the coordinates factorₖ·(y − meanₖ) of all records, as one array for each
    component k.
    """
    return [rowwise_product(y - one, matrix) for one, matrix in zip(mean, factor, strict=True)]


def responsibilities(coordinates: Sequence[np.ndarray], log_weight: np.ndarray) -> np.ndarray:
    """Return the responsibilities rₖ ∝ exp(log_weightₖ − ½‖uₖ‖²) of each record, where uₖ are its
    `coordinates` for component k.
    """
    squares = np.stack([squared_lengths(u) for u in coordinates], axis=1)
    logs = log_weight - 0.5 * squares
    weights = np.exp(logs - np.max(logs, axis=1, keepdims=True))
    whole = np.zeros(len(weights))
    for column in weights.T:
        whole = whole + column
    return weights / whole[:, None]
