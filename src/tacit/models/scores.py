"""What private scoring needs of a likelihood: a bounded score and its moments under the model.

A record's score in θ is ψ(y, η)·z with η = z·θ, or ψ ⊗ z where η is several numbers. ψ must be
bounded whatever y is, and have expectation zero where the model is right, or the clipped sum would
be biased:

* Bernoulli: ψ = y − p, |ψ| ≤ max(p, 1 − p);
* Poisson with y ≤ Y declared: ψ = y − μ, |ψ| ≤ max(μ, Y − μ);
* categorical of K levels: ψ = e_y − p, K numbers, ‖ψ‖² = 1 − 2p_y + ‖p‖² ≤ 1 − 2 min p + ‖p‖²;
* Gaussian of known sd σ: ψ = clip((y − η)/σ, ±k)/σ, |ψ| ≤ k/σ (Huber 1964); the normal density is
  even, so that clipping does not move the expectation from zero. k is the server's choice. Where
  y has public bounds they bound ψ too.

Everything is written once for NumPy (the server) and JAX (the parties).
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


class ExpectedScores(NamedTuple):
    """What the server expects of scores at its last θ, over synthetic records."""

    curvature: Array
    """H, the expected slope,"""
    sampling: Array
    """V, the sampling variance,"""
    widened: Array
    """r, what the width of q adds to scores,"""
    change: Array
    """and how scores change from each θₜ to the last, a row a round."""


class ScoreLikelihood(abc.ABC):
    """ψ, its bound, and its expectation, slope and variance under the model."""

    reaches: tuple[float, ...] = (1.0,)
    """Values of k that the server may choose from; one where ψ has none."""
    largest: float | None = None
    """The largest y where it is public: y is then counted too. None: y has no bounds."""
    smallest: float = 0.0
    """The least y, where the largest is public."""
    levels: int = 0
    """K where y is one of K levels: η and ψ then have a last axis of that length, slope and
    variance two; 0 where y is a number."""

    @abc.abstractmethod
    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        """ψ(y, η)."""

    @abc.abstractmethod
    def bound(self, eta: Array, reach: Array) -> Array:
        """sup over y of |ψ(y, η)|: what makes the clip blind to the label."""

    @abc.abstractmethod
    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        """E[ψ(y, η)] for y from the model at η = `truth`; 0 for truth = η."""

    @abc.abstractmethod
    def slope(self, eta: Array, reach: Array) -> Array:
        """∂ expected / ∂ truth at truth = η: the information that ψ carries about η."""

    @abc.abstractmethod
    def variance(self, eta: Array, reach: Array) -> Array:
        """Var ψ for y from the model at η."""

    @property
    def outputs(self) -> int:
        """How many numbers η is."""
        return max(1, self.levels)

    def link(self, mean: Any) -> Any:
        """η for which E[y] is that; asked for only where y is counted."""
        raise NotImplementedError

    def step(self, reach: float) -> float:
        """How far, in root mean square of η, one round may move."""
        del reach
        return 1.0

    # What the server makes of it, in NumPy. `z` are the rows of synthetic records, each of which
    # stands for records/len(z) real ones; θ is on z.

    def expected_scores(
        self, z: np.ndarray, records: float, points: np.ndarray, width: np.ndarray, reach: float
    ) -> ExpectedScores:
        """At the last of `points`, (T, d); `width` is Var_q(η) of z's rows.

        Where η is one number: averages over q by quadrature over it.
        """
        length = np.sqrt(np.sum(z * z, axis=1))
        eta = z @ points.T
        bounds = np.maximum(self.bound(eta, reach) * length[:, None], 1.0)
        now, weight = eta[:, -1:], 1.0 / bounds[:, -1]
        around = now + np.sqrt(width)[:, None] * NODES
        slope = self.slope(around, reach) @ NODE_WEIGHTS
        curvature = weighted_moment(z, weight * slope, records)
        variance = self.variance(around, reach) @ NODE_WEIGHTS
        sampling = weighted_moment(z, weight**2 * variance, records)
        widened = self.expected(around, now, reach) @ NODE_WEIGHTS
        widened = (records / len(z)) * ((weight * widened) @ z)
        change = self.expected(now, eta, reach) / bounds
        return ExpectedScores(curvature, sampling, widened, (records / len(z)) * (change.T @ z))

    def no_width(self, rows: int) -> np.ndarray:
        """The width of a q without any."""
        return np.zeros(rows)

    def predictor_width(self, z: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Var_q(η) of z's rows, of θ's covariance."""
        return np.maximum(np.sum((z @ covariance) * z, axis=1), 0.0)

    def rms_change(self, z: np.ndarray, move: np.ndarray) -> float:
        """Root mean square of the change of η, for a move of θ."""
        return float(np.sqrt(np.mean(np.square(z @ move))))

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
        """Covariance of what an error in the second moment puts into H(θ − θ̄).

        H is about κn times the covariance of z = B y, κ the mean of its weights. An error of
        variance Dᵢⱼ in that of y is one of covariance (κn)² B diag(D s) B in H(θ − θ̄), s being the
        expected squares of θ − θ̄ on y: posterior variances `spread`, and squares of m − θ̄ = `gap`;
        `told` takes weights on z to those on y.
        """
        size = np.trace(curvature) / max(np.sum(z * z) / len(z), 1e-300)
        square = np.sum((told @ spread) * told, axis=1) + np.square(told @ gap)
        return (bend * (size**2 * (doubt @ square))) @ bend


def weighted_moment(z: np.ndarray, weight: np.ndarray, records: float) -> np.ndarray:
    """n E[w zzᵀ] over the rows of z."""
    root = z * np.sqrt(weight * (records / len(z)))[:, None]
    return root.T @ root
