"""A party's half of a mixture: statistics of single records, bounded and with known norms.

With a + c = 1 and zₖ = (√a, √c·uₖ/R), a record contributes ⊕ₖ rₖ·zₖzₖᵀ, r ≥ 0 and Σr = 1. uₖ are
its coordinates: the same for all components, or Fₖ(y − mₖ) for component k with public mₖ and Fₖ.
The norm is √(Σₖ rₖ²(a + c‖uₖ‖²/R²)²): at most 1 if all ‖uₖ‖ ≤ R. Two contributions have the inner
product Σₖ rₖrₖ'(zₖ·zₖ')² ≥ 0, so that replacing a record moves the clipped sum by at most √2, for
any number of components. Matrices are packed as upper triangles with off-diagonals times √2.

Values of a record are computed by elementwise operations, so that they do not depend on other
records, to the last bit.
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
"""The share a of the count in a record's norm."""


class Units(NamedTuple):
    """Factors of count, linear and quadratic terms in a packed row, for the radius R."""

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
    """Return zzᵀ of each row of y as a packed row, and its norm a + c‖y‖²/R²."""
    rows, columns = np.triu_indices(y.shape[1])
    root = np.where(rows == columns, 1.0, np.sqrt(2.0))
    packed = np.empty((len(y), 1 + y.shape[1] + len(rows)))
    packed[:, 0] = units.count
    packed[:, 1 : 1 + y.shape[1]] = units.linear * y
    for place, (i, j) in enumerate(zip(rows, columns, strict=True)):
        packed[:, 1 + y.shape[1] + place] = (units.quadratic * root[place]) * (y[:, i] * y[:, j])
    return packed, units.count + units.quadratic * squared_lengths(y)


def diagonal_rows(y: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return the diagonal form ⊕ⱼ zⱼzⱼᵀ/√d, zⱼ = (√a, √c·yⱼ/R), packed as (a, yⱼ …, yⱼ² …), and its
    norm.

    Its squared norm is Σⱼ (a + c yⱼ²/R²)²/d, and inner products are Σⱼ (zⱼ·zⱼ')²/d ≥ 0. The d equal
    constants are summed as one number.
    """
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
    """Return the statistics r ⊗ T for responsibilities r and rows T of known norm."""
    sizes = np.sqrt(squared_lengths(weights)) * norms
    return RowStatistics(left=weights, right=packed, sizes=sizes)


@dataclass(frozen=True, kw_only=True, eq=False)
class ComponentStatistics(Statistics):
    """Statistics of records in the coordinates of each component, times responsibilities.

    Parameters
    ----------
    weights
        Responsibilities r, (n, K).
    coordinates
        uₖ of all records, one (n, d) array per component.
    units
        Units of the packed numbers.
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
    """Return ‖row‖² of every row."""
    squares = np.zeros(len(rows))
    for column in rows.T:
        squares = squares + column * column
    return squares


def rowwise_product(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return rows @ matrixᵀ without BLAS, whose rounding may depend on the number of rows."""
    result = np.zeros((len(rows), len(matrix)))
    for i, weights in enumerate(matrix):
        for j, weight in enumerate(weights):
            result[:, i] = result[:, i] + weight * rows[:, j]
    return result


def nearest_cells(y: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return a one-hot vector of the nearest centre for each row; ties go to the first centre."""
    squares = np.zeros((len(y), len(centres)))
    for j in range(y.shape[1]):
        squares = squares + np.square(y[:, j, None] - centres[:, j])
    return np.eye(len(centres))[np.argmin(squares, axis=1)]


def own_coordinates(y: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> list[np.ndarray]:
    """Return factorₖ·(y − meanₖ) of all records, for each component k."""
    return [rowwise_product(y - one, matrix) for one, matrix in zip(mean, factor, strict=True)]


def responsibilities(coordinates: Sequence[np.ndarray], log_weight: np.ndarray) -> np.ndarray:
    """Return r ∝ exp(log weightₖ − ½‖uₖ‖²); equal values where all components are impossible."""
    squares = np.stack([squared_lengths(u) for u in coordinates], axis=1)
    logs = log_weight - 0.5 * squares
    weights = np.exp(logs - np.max(logs, axis=1, keepdims=True))
    whole = np.zeros(len(weights))
    for column in weights.T:
        whole = whole + column
    return weights / whole[:, None]
