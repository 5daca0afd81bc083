"""Second-moment statistics of a mixture: bounded rows, noisy sums and their repair.

With a + c = 1 and z = (√a, √c·y/R), a record contributes r ⊗ zzᵀ, r ≥ 0 and Σr = 1, whose norm is
‖r‖(a + c‖y‖²/R²): at most 1 if ‖y‖ ≤ R. Two contributions have the inner product ⟨r, r'⟩(z·z')² ≥
0, so replacing a record moves the clipped sum by at most √2, for any number of components. Matrices
are packed as upper triangles with off-diagonals times √2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.models.conjugate import RowStatistics

CONSTANT = 0.4
"""a: the share of the count in a record's norm."""
LEAST_EIGENVALUE = 0.05
"""Smallest variance of a component in any direction, relative to the pooled one; only with
noise.
"""


class Units(NamedTuple):
    """Units of the packed numbers, for d columns and the radius R."""

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
    """zzᵀ of each row of y as one packed row, and its norm a + c‖y‖²/R²."""
    rows, columns = np.triu_indices(y.shape[1])
    root = np.where(rows == columns, 1.0, np.sqrt(2.0))
    squares = np.zeros(len(y))
    for column in y.T:
        squares = squares + column * column
    packed = np.empty((len(y), 1 + y.shape[1] + len(rows)))
    packed[:, 0] = units.count
    packed[:, 1 : 1 + y.shape[1]] = units.linear * y
    for place, (i, j) in enumerate(zip(rows, columns, strict=True)):
        packed[:, 1 + y.shape[1] + place] = (units.quadratic * root[place]) * (y[:, i] * y[:, j])
    return packed, units.count + units.quadratic * squares


def diagonal_rows(y: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """The diagonal form ⊕ⱼ zⱼzⱼᵀ/√d with zⱼ = (√a, √c·yⱼ/R): (a, yⱼ …, yⱼ² …) and its norm.

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
    """r ⊗ T for responsibilities r and rows T of known norm."""
    squares = np.zeros(len(weights))
    for column in weights.T:
        squares = squares + column * column
    return RowStatistics(left=weights, right=packed, sizes=np.sqrt(squares) * norms)


class Moments(NamedTuple):
    """Counts (K,), sums (K, d) and second moments (K, d, d), and the sd of the noise in each."""

    count: np.ndarray
    linear: np.ndarray
    quadratic: np.ndarray
    count_sd: float = 0.0
    linear_sd: float = 0.0
    quadratic_sd: float = 0.0
    """Noise on the diagonal; off the diagonal it is 1/√2 of this."""

    @property
    def noisy(self) -> bool:
        return self.count_sd > 0.0


def read_moments(
    total: np.ndarray, columns: int, units: Units, noise_sd: float, *, diagonal: bool = False
) -> Moments:
    """Unpack sums of `outer_rows` or `diagonal_rows`, one row per component."""
    d = columns
    if diagonal:
        total = total.reshape(-1, 1 + 2 * d)
        root = np.sqrt(d)
        second = np.zeros((len(total), d, d))
        second[:, np.arange(d), np.arange(d)] = total[:, 1 + d :] * (root / units.quadratic)
        scales = units.count, units.linear / root, units.quadratic / root
    else:
        rows, places = np.triu_indices(d)
        total = total.reshape(-1, 1 + d + len(rows))
        upper = total[:, 1 + d :] / np.where(rows == places, 1.0, np.sqrt(2.0)) / units.quadratic
        second = np.zeros((len(total), d, d))
        second[:, rows, places] = upper
        second[:, places, rows] = upper
        scales = units.count, units.linear, units.quadratic
    return Moments(
        total[:, 0] / scales[0],
        total[:, 1 : 1 + d] / scales[1],
        second,
        *(noise_sd / scale for scale in scales),
    )


class Repaired(NamedTuple):
    """Counts, means and covariances of components; covariances are positive definite."""

    count: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


def repaired(found: Moments) -> Repaired:
    """Moments corrected to be possible sums of statistics, shrunk if they are mostly noise.

    Counts are at least their noise. A covariance is shrunk towards the pooled one by the share of
    its squared distance that is explained by noise (James and Stein 1961). Means are not shrunk,
    because components that move towards each other would share their records. Without noise only
    the counts are kept positive.
    """
    count = np.maximum(found.count, max(found.count_sd, 1e-10))
    everything = np.sum(count)
    mean = found.linear / count[:, None]
    second = found.quadratic / count[:, None, None]
    covariance = second - mean[:, :, None] * mean[:, None, :]
    if not found.noisy:
        return Repaired(count, mean, covariance)
    pooled = np.einsum("k,kij->ij", count, covariance) / everything
    return Repaired(count, mean, _shrunk(covariance, pooled, found, count))


def _shrunk(
    covariance: np.ndarray, pooled: np.ndarray, found: Moments, count: np.ndarray
) -> np.ndarray:
    """Covariances relative to the pooled one, shrunk towards it by their share of noise."""
    d = len(pooled)
    root = positive_root(pooled, found.quadratic_sd * np.sqrt(len(count)) / np.sum(count))
    inverse = np.linalg.inv(root)
    squares = inverse.T @ inverse
    # E‖ANAᵀ‖² for symmetric noise N of variance t² on the diagonal and t²/2 off it.
    size = 0.5 * (np.trace(squares) ** 2 + np.sum(squares * squares))
    noise = size * np.square(found.quadratic_sd / count)
    result = np.empty_like(covariance)
    for place, matrix in enumerate(covariance):
        relative = inverse @ matrix @ inverse.T
        away = float(np.sum(np.square(relative - np.eye(d))))
        kept = max(0.0, 1.0 - noise[place] / max(away, 1e-300))
        sizes, axes = np.linalg.eigh(np.eye(d) + kept * (relative - np.eye(d)))
        whole = (axes * np.maximum(sizes, LEAST_EIGENVALUE)) @ axes.T
        result[place] = root @ whole @ root.T
    return 0.5 * (result + np.swapaxes(result, 1, 2))


def positive_root(matrix: np.ndarray, noise_sd: float) -> np.ndarray:
    """A symmetric root of a noisy covariance, whose eigenvalues are at least their noise."""
    sizes, axes = np.linalg.eigh(0.5 * (matrix + matrix.T))
    least = max(noise_sd, 1e-6 * float(np.max(np.abs(sizes))), 1e-12)
    return (axes * np.sqrt(np.maximum(sizes, least))) @ axes.T
