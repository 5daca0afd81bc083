"""Expectations of the server in private scoring with K outcome levels.

θ has one weight per level and column, (K·d,), and a record's η is K numbers. A score is (e_y − p) ⊗
z, p = softmax η. With C = diag p − ppᵀ, the covariance of e_y, its slope is H = n E[w C ⊗ zzᵀ], and
its sampling variance V = n E[w² C ⊗ zzᵀ]. C, and thus H, is 0 in the directions common to all
levels; there q stays at the prior and the noise of the scores is ignored.

Averages over q are over ξ = Qᵀη, K − 1 numbers, at the points of `normal_points`: public and fixed.
The rest is as for one output (`tacit.methods.scoring.server`).
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
    """y ∈ {0 … K − 1} with probabilities softmax η."""

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
        """Compute √(1 − 2 min p + ‖p‖²), the residual's length if y is the least probable level."""
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
        """Compute Cov_q(ξ) for each row of z, (n, K − 1, K − 1); `covariance` is that of θ in the
        coordinates of z.
        """
        basis, d = contrasts(self.levels), z.shape[1]
        whole = covariance.reshape(self.levels, d, self.levels, d)
        blocks = np.einsum("kr,kilj,ls->rsij", basis, whole, basis)
        return np.moveaxis(np.sum((z @ blocks) * z, axis=-1), -1, 0)

    def rms_change(self, z: np.ndarray, move: np.ndarray) -> float:
        """Compute the root mean square change of log-odds, over records and pairs of levels, that
        `move` causes.

        Σ over pairs (η_k − η_l)² = K‖ξ‖², and there are K(K − 1)/2 pairs.
        """
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
        """Compute the covariance of the error in H(θ − θ̄) that an error in the second moment
        causes.

        H is about n C̄ ⊗ M, where M is the second moment of z = B y and C̄ its mean block. An error
        E with variances Dᵢⱼ in the second moment of y adds n C̄ ⊗ B E B to H: with u_l the weights
        of level l on y, coordinate i of level k gets n Σ_l C̄_kl Σ_j E_ij u_lj. So the covariance
        between levels k and k′ of one coordinate i is n² Σ_j D_ij (C̄ G_j C̄)_kk′ with G_j = E[u_·j
        u_·jᵀ], computed from posterior covariances `spread` and squares of m − θ̄ = `gap`; `told`
        maps weights on z to weights on y.
        """
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
    """Compute expected scores at the last row of `points`, which has shape (T, K·d) and acts on z.
    `width` is Cov_q(ξ) for each row of z.
    """
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
    """Compute E_q[p] (n, K) and E_q[ppᵀ] (n, K, K)."""
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
    """Compute n E[B ⊗ zzᵀ] over the rows of z, each with its symmetric K×K block B."""
    levels, width = blocks.shape[1], z.shape[1]
    found = np.empty((levels, width, levels, width))
    for row in range(levels):
        for column in range(row + 1):
            block = (z * (blocks[:, row, column] * (records / len(z)))[:, None]).T @ z
            found[row, :, column] = found[column, :, row] = 0.5 * (block + block.T)
    return found.reshape(levels * width, levels * width)
