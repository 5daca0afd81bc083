"""Solve A x = b if only the products of the matrix A with chosen directions are known.

Let the rows of Q be an orthonormal basis of the directions so far. Within their span, the solution
is x = Qᵀ(QAQᵀ)⁻¹Q b, and its residual b − A x is known without another product. The residuals of
several right-hand sides b are the next directions. This is the method of conjugate gradients with a
block of directions at a time. All directions are stored. Rounding errors therefore do not
accumulate, and the solution for every right-hand side uses all directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

LEAST_NORM = 1e-8
"""A direction counts as a rounding error if orthogonalisation leaves less than this share of its
norm.
"""
LEAST_EIGENVALUE = 1e-8
"""Smallest eigenvalue that is used, relative to the largest one."""

LEAST_MISSING = 1e-6
"""If the mean square residual of unit vectors is below this value, it is treated as a rounding
error, and the inverse as known.
"""

Products = Callable[[np.ndarray], np.ndarray]


class Solved(NamedTuple):
    """Approximate solutions and residuals of a linear system within a subspace, one row per
    right-hand side.
    """

    solution: np.ndarray
    residual: np.ndarray
    definite: bool
    """True if the matrix was positive definite in the subspace. Otherwise absolute eigenvalues were
    used.
    """
    least: float = 1.0
    """Smallest eigenvalue of the matrix in the subspace, at least `LEAST_EIGENVALUE` × the largest
    one.
    """

    def share(self, right: np.ndarray) -> np.ndarray:
        """Return the norm of each residual relative to the norm of its right-hand side."""
        whole = np.linalg.norm(right, axis=1)
        return np.linalg.norm(self.residual, axis=1) / np.where(whole > 0, whole, 1.0)

    def missing(self, row: int) -> float:
        """Return |r|²/λ for the residual r of the right-hand side number `row`.

        λ is the smallest known eigenvalue of the matrix A. The result is a bound on rᵀA⁻¹r, unless
        A has smaller eigenvalues outside the subspace.
        """
        return float(self.residual[row] @ self.residual[row]) / self.least


class Subspace(NamedTuple):
    """Known directions, one per row, and the product of each with the matrix of a linear system.

    The matrix is that of the likelihood; the matrix of the prior is added when a system is solved.
    """

    directions: np.ndarray
    products: np.ndarray

    @classmethod
    def empty(cls, size: int) -> Subspace:
        return cls(np.zeros((0, size)), np.zeros((0, size)))

    def joined(self, directions: np.ndarray, products: np.ndarray) -> Subspace:
        """Return the subspace with further directions. Rows of zeros, which pad a request, are left
        out.
        """
        kept = np.any(directions != 0, axis=1)
        return Subspace(
            np.concatenate([self.directions, directions[kept]]),
            np.concatenate([self.products, products[kept]]),
        )

    def rescaled(self, ratio: np.ndarray) -> Subspace:
        """Return the same subspace after a change of coordinates from z to z·ratio."""
        return Subspace(self.directions * ratio, self.products / ratio)

    def basis(self) -> tuple[np.ndarray, np.ndarray]:
        """Return an orthonormal basis of the directions, one vector per row, and the products of
        the matrix with these vectors.
        """
        if not len(self.directions):
            return self.directions, self.products
        orthonormal, upper = np.linalg.qr(self.directions.T)
        return orthonormal.T, np.linalg.solve(upper.T, self.products)

    def solved(self, basis: tuple[np.ndarray, np.ndarray], more: Products, right: np.ndarray):
        """Return approximate solutions x of (A + M) x = b for each row b of `right`.

        A is the matrix whose products with `basis` are known, and `more` multiplies rows by the
        matrix M.
        """
        rows, products = basis
        products = products + more(rows)
        if not len(rows):
            return Solved(np.zeros_like(right), right, True)
        values, vectors, definite = _eigen(rows @ products.T)
        weights = ((right @ rows.T) @ vectors / values) @ vectors.T
        least = float(np.min(values))
        return Solved(weights @ rows, right - weights @ products, definite, least)

    def diagonal_of_inverse(
        self,
        basis: tuple[np.ndarray, np.ndarray],
        more: Products,
        signs: np.ndarray,
        solution: np.ndarray,
    ) -> tuple[np.ndarray, float]:
        """Estimate the diagonal of the inverse of A + M, and the relative standard error of its
        mean.

        A is the matrix whose products with `basis` are known, and `more` multiplies rows by the
        matrix M. Within the span of the basis the inverse is known exactly. The missing part of its
        diagonal entry j is about κ|r|², where r is the residual of the unit vector of coordinate j.
        The constant κ is chosen such that the sum of all diagonal entries is the mean of z·x over
        random sign vectors z. The vectors z are the rows of `signs`, and x, a row of `solution`, is
        the solution for the right-hand side z. With many coordinates, this is far less noisy than a
        separate estimate for each coordinate.
        """
        rows, products = basis
        products = products + more(rows)
        inner = rows @ products.T
        weights = np.linalg.solve(0.5 * (inner + inner.T), rows)
        inside = np.sum(rows * weights, axis=0)
        through = products @ products.T
        lengths = 1.0 - 2.0 * np.sum(products * weights, axis=0)
        lengths = np.maximum(lengths + np.sum(weights * (through @ weights), axis=0), 0.0)
        traces = np.sum(signs * solution, axis=1)
        missing = max(float(np.mean(traces)) - float(np.sum(inside)), 0.0)
        total = float(np.sum(lengths))
        known = total <= LEAST_MISSING * len(lengths)
        found = inside if known else inside + missing / total * lengths
        error = float(np.std(traces) / np.sqrt(len(traces))) / max(float(np.mean(traces)), 1e-300)
        return found, error

    def root_of_inverse(
        self, basis: tuple[np.ndarray, np.ndarray], more: Products, draws: np.ndarray
    ) -> np.ndarray:
        """Return the power −½ of A + M times each row of `draws`, approximated within the subspace.

        A is the matrix whose products with `basis` are known, and `more` multiplies rows by the
        matrix M. The result is accurate for a row if the directions were chosen for that row, and
        far too small otherwise.
        """
        rows, products = basis
        values, vectors, _ = _eigen(rows @ (products + more(rows)).T)
        return ((draws @ rows.T) @ vectors / np.sqrt(values)) @ vectors.T @ rows

    def new_directions(self, wanted: np.ndarray, count: int, seed: int) -> np.ndarray:
        """Return `count` orthonormal rows that are orthogonal to the directions known so far.

        The rows of `wanted` are made orthonormal and returned first. If they are fewer than
        `count`, random rows with the seed `seed` follow. If the space has no further orthogonal
        directions, the remaining rows are 0.
        """
        size = self.directions.shape[1]
        rows, _ = self.basis()
        norms = np.linalg.norm(wanted, axis=1, keepdims=True)
        wanted = wanted[norms[:, 0] > 0] / norms[norms[:, 0] > 0]
        random = np.random.default_rng([size, seed]).standard_normal((count, size)) / np.sqrt(size)
        candidates = np.concatenate([wanted, random])[: size - len(rows)]
        for _ in range(2):
            candidates = candidates - (candidates @ rows.T) @ rows
        orthonormal, upper = np.linalg.qr(candidates.T)
        kept = orthonormal.T[np.abs(np.diagonal(upper)) > LEAST_NORM][:count]
        return np.concatenate([kept, np.zeros((count - len(kept), size))])


def _eigen(inner: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return positive eigenvalues and the eigenvectors of a symmetric matrix, and True if the
    matrix is positive definite.

    Negative eigenvalues are replaced by their absolute values, and very small ones are raised.
    """
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
    floor = LEAST_EIGENVALUE * np.max(np.abs(values))
    return np.maximum(np.abs(values), floor), vectors, bool(values[0] > floor)
