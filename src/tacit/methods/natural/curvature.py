"""Repair of symmetric matrices that should be positive definite: eigenvalues become positive."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array, namespace

LEAST_EIGENVALUE = 1e-6
"""Smallest eigenvalue of a repaired matrix after it has been scaled to a diagonal of ones."""


class AbsoluteEigen(NamedTuple):
    """A repaired symmetric matrix, stored as diag(scale)·V·diag(values)·Vᵀ·diag(scale) with V =
    `vectors`.
    """

    scale: Array
    vectors: Array
    values: Array
    """Eigenvalues, at least `LEAST_EIGENVALUE`."""
    definite: Array
    """True if no repair was necessary."""

    def solve(self, right: Array, damping: Array | float = 0.0) -> Array:
        """Return the inverse of the repaired matrix times the vector `right`.

        `damping` is added to the eigenvalues `values` before the inversion.
        """
        inner = (self.vectors.T @ (right / self.scale)) / (self.values + damping)
        return (self.vectors @ inner) / self.scale

    @property
    def log_determinant(self) -> Array:
        """Log-determinant of the repaired matrix."""
        xp = namespace(self.values)
        return xp.sum(xp.log(self.values)) + 2.0 * xp.sum(xp.log(self.scale))

    @property
    def inverse_root(self) -> Array:
        """A matrix R such that R Rᵀ is the inverse of the matrix in which non-positive eigenvalues
        were replaced.
        """
        xp = namespace(self.values)
        return (self.vectors / xp.sqrt(self.values)) / self.scale[:, None]


def absolute_eigen(matrix: Array) -> AbsoluteEigen:
    """Repair a symmetric matrix that may not be positive definite.

    The matrix is scaled to a diagonal of ones. Each eigenvalue of the scaled matrix is then
    replaced by its absolute value, or by `LEAST_EIGENVALUE` if that is larger. Because of the
    scaling, the result does not depend on the scales of the coordinates.
    """
    xp = namespace(matrix)
    diagonal = xp.abs(xp.diagonal(matrix))
    scale = xp.sqrt(xp.where(diagonal > 0, diagonal, 1.0))
    scaled = matrix / (scale[:, None] * scale[None, :])
    scaled = 0.5 * (scaled + scaled.T)
    if xp is np and not np.all(np.isfinite(scaled)):  # JAX returns NaN where NumPy raises
        values, vectors = np.full(len(scaled), np.nan), np.full_like(scaled, np.nan)
    else:
        values, vectors = xp.linalg.eigh(scaled)
    return AbsoluteEigen(
        scale,
        vectors,
        xp.maximum(xp.abs(values), LEAST_EIGENVALUE),
        xp.min(values) > LEAST_EIGENVALUE,
    )


def lower_root(root: np.ndarray) -> np.ndarray:
    """Return the lower-triangular matrix L with positive diagonal and L·Lᵀ = root·rootᵀ."""
    upper: Any = np.linalg.qr(root.T, mode="r")
    signs = np.where(np.diagonal(upper) < 0, -1.0, 1.0)
    return (upper * signs[:, None]).T
