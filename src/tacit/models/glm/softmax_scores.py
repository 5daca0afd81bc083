"""Expectations that the server computes in private scoring of an outcome with K levels.

θ has one weight for each level and each of the d features z of a record: K·d numbers. A record has
K predictors η, and the probabilities of its levels are p = softmax η. Its score is (e_y − p) ⊗ z,
where e_y is the one-hot vector of the outcome y. Clipping multiplies the score by a weight w.

Let n be the number of records, and C = diag p − ppᵀ the covariance of e_y. The slope of the summed
scores is H = n E[w C ⊗ zzᵀ], and their sampling variance is V = n E[w² C ⊗ zzᵀ]. C, and thus H, is
0 for changes that are the same for all levels. In these directions q stays at the prior, and the
noise of the scores is ignored.

Averages over q are computed over K − 1 contrasts of the predictors, at fixed public points
(`normal_points`). Everything else is as for a single predictor (`tacit.methods.scoring.server`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.arrays import Array, namespace
from tacit.expfam.quadrature import normal_points
from tacit.models.glm.softmax import contrasts, root_of
from tacit.models.scores import ExpectedScores, ScoreLikelihood

POINTS = 32


@dataclass(frozen=True)
class CategoricalLikelihood(ScoreLikelihood):
    """Score of an outcome y ∈ {0 … K − 1} whose levels have the probabilities softmax η."""

    levels: int  # pyright: ignore[reportGeneralTypeIssues]

    def link(self, mean: Any) -> Any:
        return np.log(mean)

    def probabilities(self, eta: Array) -> Array:
        """Compute p = softmax η without overflow."""
        xp = namespace(eta)
        p = xp.exp(eta - xp.max(eta, axis=-1, keepdims=True))
        return p / xp.sum(p, axis=-1, keepdims=True)

    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        return (y[..., None] == np.arange(self.levels)) - self.probabilities(eta)

    def bound(self, eta: Array, reach: Array) -> Array:
        return self.bound_of(self.probabilities(eta))

    def bound_of(self, p: Array) -> Array:
        """Return √(1 − 2 min p + ‖p‖²) for probabilities p. It is the norm of the score e_y − p if
        y is the least probable level, and e_y its one-hot vector.
        """
        xp = namespace(p)
        return xp.sqrt(1.0 - 2.0 * xp.min(p, axis=-1) + xp.sum(p * p, axis=-1))

    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        return self.probabilities(truth) - self.probabilities(eta)

    def slope(self, eta: Array, reach: Array) -> Array:
        p = self.probabilities(eta)
        return np.eye(self.levels) * p[..., None] - p[..., None] * p[..., None, :]

    def variance(self, eta: Array, reach: Array) -> Array:
        return self.slope(eta, reach)

    def expected_scores(
        self, z: np.ndarray, records: float, points: np.ndarray, width: np.ndarray, reach: float
    ) -> ExpectedScores:
        del reach
        return _expected_scores(self, z, records, points, width)

    def no_width(self, rows: int) -> np.ndarray:
        return np.zeros((rows, self.levels - 1, self.levels - 1))

    def predictor_width(self, z: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Return the covariance of the K − 1 contrasts of the predictors under q, for each row of
        z.

        `covariance` is that of the coefficients of z. The result has shape (n, K − 1, K − 1).
        """
        basis, d = contrasts(self.levels), z.shape[1]
        whole = covariance.reshape(self.levels, d, self.levels, d)
        blocks = np.einsum("kr,kilj,ls->rsij", basis, whole, basis)
        return np.moveaxis(np.sum((z @ blocks) * z, axis=-1), -1, 0)

    def rms_change(self, z: np.ndarray, move: np.ndarray) -> float:
        """Return the root mean square change of the log-odds if the coefficients of z change by
        `move`.

        The mean is over records and pairs of levels.
        """
        # For the change ξ of a record's contrasts, the squared changes of all K(K − 1)/2 pairs add
        # up to K‖ξ‖².
        xi = z @ (move.reshape(self.levels, -1).T @ contrasts(self.levels))
        return float(np.sqrt(2.0 * np.mean(np.sum(xi * xi, axis=1)) / (self.levels - 1)))

    def curvature_doubt(
        self,
        z: np.ndarray,
        bend: np.ndarray,
        told: np.ndarray,
        doubt: np.ndarray,
        curvature: np.ndarray,
        spread: np.ndarray,
        gap: np.ndarray,
    ) -> np.ndarray:
        """Return the covariance of the error in H(θ − θ̄) that results from noise in a released
        second moment.

        `ScoreLikelihood.curvature_doubt` defines the symbols and the arguments.
        """
        # H is about n C̄ ⊗ M, where C̄ is the mean over records of C = diag p − ppᵀ, and M is the
        # second moment of z = B y. An error E in the second moment of y, with variances D_ij, adds
        # n C̄ ⊗ B E B to H. Let u_lj be the coefficient of y_j at level l in θ − θ̄. Before
        # multiplication by B, coordinate i of level k then changes by n Σ_l C̄_kl Σ_j E_ij u_lj.
        # The covariance of these changes between levels k and k′ is n² Σ_j D_ij (C̄ G_j C̄)_kk′,
        # where G_j = E[u_·j u_·jᵀ].
        levels, d = self.levels, z.shape[1]
        size = max(float(np.sum(z * z)) / len(z), 1e-300)
        mean = np.trace(curvature.reshape(levels, d, levels, d), axis1=1, axis2=3) / size  # n C̄
        whole = spread.reshape(levels, d, levels, d)
        far = gap.reshape(levels, d) @ told.T
        square = np.einsum("ji,kilm,jm->jkl", told, whole, told) + np.einsum("kj,lj->jkl", far, far)
        square = mean @ square @ mean
        each = np.tensordot(doubt, square, axes=1)  # (d, K, K)
        return np.einsum("ai,ikl,bi->kalb", bend, each, bend).reshape(levels * d, levels * d)


def _expected_scores(
    likelihood: CategoricalLikelihood,
    z: np.ndarray,
    records: float,
    points: np.ndarray,
    width: np.ndarray,
) -> ExpectedScores:
    # `points` has shape (T, K·d); the scores are expected at its last row. `width` is the
    # covariance of the contrasts ξ under q for each row of z.
    levels, each = likelihood.levels, records / len(z)
    length = np.sqrt(np.sum(z * z, axis=1))
    eta = np.moveaxis(points.reshape(len(points), levels, -1) @ z.T, 2, 0)  # (rows, T, K)
    p = likelihood.probabilities(eta)
    bounds = np.maximum(likelihood.bound_of(p) * length[:, None], 1.0)
    now, weight = p[:, -1], 1.0 / bounds[:, -1]
    mean, second = _averaged(likelihood, eta[:, -1], width)
    spread = np.eye(levels) * mean[:, None] - second
    change = each * np.einsum("ntk,nd->tkd", (now[:, None] - p) / bounds[:, :, None], z)
    return ExpectedScores(
        kronecker_mean(z, spread * weight[:, None, None], records),
        kronecker_mean(z, spread * np.square(weight)[:, None, None], records),
        each * (((mean - now) * weight[:, None]).T @ z).reshape(-1),
        change.reshape(len(points), -1),
    )


def _averaged(
    likelihood: CategoricalLikelihood, eta: np.ndarray, width: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return E_q[p] (n, K) and E_q[ppᵀ] (n, K, K), where p are the probabilities of the levels."""
    basis = contrasts(likelihood.levels)
    nodes, weights = normal_points(likelihood.levels - 1, POINTS)
    steps = basis @ root_of(width)  # (n, K, K − 1)
    mean, second = np.zeros_like(eta), np.zeros((*eta.shape, eta.shape[1]))
    for node, weight in zip(nodes, weights, strict=True):
        p = likelihood.probabilities(eta + steps @ node)
        mean += weight * p
        second += weight * (p[:, :, None] * p[:, None])
    return mean, second


def kronecker_mean(z: np.ndarray, blocks: np.ndarray, records: float) -> np.ndarray:
    """Return `records` times the mean of B ⊗ zzᵀ over the rows of z, where B is the symmetric
    matrix of that row in `blocks`.
    """
    levels, width = blocks.shape[1], z.shape[1]
    found = np.empty((levels, width, levels, width))
    for row in range(levels):
        for column in range(row + 1):
            block = (z * (blocks[:, row, column] * (records / len(z)))[:, None]).T @ z
            found[row, :, column] = found[column, :, row] = 0.5 * (block + block.T)
    return found.reshape(levels * width, levels * width)
