"""Linear systems with a matrix that is only known by its products with chosen directions.

If the rows of Q are an orthonormal basis of the directions so far, the solution of A x = b within
their span is Qᵀ(QAQᵀ)⁻¹Q b, and its residual is known without another product. New directions are
the residuals themselves. This is the method of conjugate gradients with a block of directions at a
time; all directions are kept, so that rounding errors do not accumulate and every right-hand side
uses all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

LEAST_NORM = 1e-8
"""A direction counts as rounding error if orthogonalisation reduces its norm below this share."""
LEAST_EIGENVALUE = 1e-8
"""Smallest eigenvalue that is used, relative to the largest one."""

LEAST_MISSING = 1e-6
"""If the mean square residual of unit vectors is below this, it is rounding error, and the inverse
is known.
"""

Products = Callable[[np.ndarray], np.ndarray]


class Solved(NamedTuple):
    """Approximate solutions of a linear system within a subspace; one row per right-hand side."""

    solution: np.ndarray
    residual: np.ndarray
    definite: bool
    """True if the matrix was positive definite in the span; otherwise absolute eigenvalues were
    used.
    """

    def share(self, right: np.ndarray) -> np.ndarray:
        """Return the norm of each residual relative to the norm of its right-hand side."""
        whole = np.linalg.norm(right, axis=1)
        return np.linalg.norm(self.residual, axis=1) / np.where(whole > 0, whole, 1.0)


class Subspace(NamedTuple):
    """Known directions, one per row, and the product of each with the likelihood's part of the
    matrix A.
    """

    directions: np.ndarray
    products: np.ndarray

    @classmethod
    def empty(cls, size: int) -> Subspace:
        return cls(np.zeros((0, size)), np.zeros((0, size)))

    def joined(self, directions: np.ndarray, products: np.ndarray) -> Subspace:
        """Return the subspace with further directions; zero rows, which pad a request, are left
        out.
        """
        kept = np.any(directions != 0, axis=1)
        return Subspace(
            np.concatenate([self.directions, directions[kept]]),
            np.concatenate([self.products, products[kept]]),
        )

    def rescaled(self, ratio: np.ndarray) -> Subspace:
        """Return the same subspace in the coordinates z·ratio."""
        return Subspace(self.directions * ratio, self.products / ratio)

    def basis(self) -> tuple[np.ndarray, np.ndarray]:
        """Return an orthonormal basis Q of the directions and the products AQ, one row per
        direction.
        """
        if not len(self.directions):
            return self.directions, self.products
        orthonormal, upper = np.linalg.qr(self.directions.T)
        return orthonormal.T, np.linalg.solve(upper.T, self.products)

    def solved(self, basis: tuple[np.ndarray, np.ndarray], more: Products, right: np.ndarray):
        """Solve (A + more) x = right for each row of `right`, given `basis`."""
        rows, products = basis
        products = products + more(rows)
        if not len(rows):
            return Solved(np.zeros_like(right), right, True)
        inner = rows @ products.T
        values, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
        floor = LEAST_EIGENVALUE * np.max(np.abs(values))
        weights = ((right @ rows.T) @ vectors / np.maximum(np.abs(values), floor)) @ vectors.T
        return Solved(weights @ rows, right - weights @ products, bool(values[0] > floor))

    def diagonal_of_inverse(
        self,
        basis: tuple[np.ndarray, np.ndarray],
        more: Products,
        signs: np.ndarray,
        solution: np.ndarray,
    ) -> tuple[np.ndarray, float]:
        """Estimate the diagonal of (A + more)⁻¹, and the relative standard error of its mean.

        The part within the span, M = Qᵀ(QAQᵀ)⁻¹Q ≤ A⁻¹, is known. The missing part of coordinate j
        is rᵀA⁻¹r for the residual r of its unit vector, about κ|r|². The sum over coordinates is
        estimated by zᵀA⁻¹z for random signs z (the rows of `signs`, solved by `solution`), which
        gives κ: with many coordinates this is far less noisy than separate estimates for each
        coordinate.
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

    def new_directions(self, wanted: np.ndarray, count: int, seed: int) -> np.ndarray:
        """Return `count` rows that are orthonormal and orthogonal to the known directions, the rows
        of `wanted` first.

        Random rows are added to reach the count, and zeros if the space is exhausted.
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
