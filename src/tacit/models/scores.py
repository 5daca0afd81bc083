"""Bounded scores of likelihoods and their moments, for private scoring.

A record's score in θ is ψ(y, η)·z with η = z·θ, or ψ ⊗ z if η is several numbers. ψ must be bounded
for all y and have expectation zero under the model, or the clipped sum would be biased:

* Bernoulli: ψ = y − p, |ψ| ≤ max(p, 1 − p);
* Poisson with y ≤ Y declared: ψ = y − μ, |ψ| ≤ max(μ, Y − μ);
* categorical of K levels: ψ = e_y − p, K numbers, ‖ψ‖² = 1 − 2p_y + ‖p‖² ≤ 1 − 2 min p + ‖p‖²;
* Gaussian of known sd σ: ψ = clip((y − η)/σ, ±k)/σ, |ψ| ≤ k/σ (Huber 1964); the normal density is
  even, so that clipping does not move the expectation from zero. The server chooses k. Public
  bounds on y also bound ψ.

The code works with NumPy (server) and JAX (parties).
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


class ExpectedScores(NamedTuple):
    """Expectations of scores at the server's last θ, over synthetic records."""

    curvature: Array
    """Expected slope H of the scores."""
    sampling: Array
    """Sampling variance V of the scores."""
    widened: Array
    """Contribution r of q's variance to the expected scores."""
    change: Array
    """Change of the expected score from each θₜ to the last θ, one row per round."""


class ScoreLikelihood(abc.ABC):
    """The score ψ(y, η) of a likelihood, with its bound and its moments under the model."""

    reaches: tuple[float, ...] = (1.0,)
    """Limits k of ψ from which the server may choose; a single value if ψ has no limit."""
    largest: float | None = None
    """Largest y if it is public, so that y can be counted; None if y has no bounds."""
    smallest: float = 0.0
    """Smallest y, if the largest is public."""
    levels: int = 0
    """K if y is one of K levels: η and ψ then have a last axis of that length, slope and variance
    two such axes. 0 if y is a number.
    """

    @abc.abstractmethod
    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        """Return ψ(y, η)."""

    @abc.abstractmethod
    def bound(self, eta: Array, reach: Array) -> Array:
        """Return the supremum over y of |ψ(y, η)|, which makes the clip label-agnostic."""

    @abc.abstractmethod
    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        """Return E[ψ(y, η)] for y from the model with predictor `truth`; 0 if `truth` = η."""

    @abc.abstractmethod
    def slope(self, eta: Array, reach: Array) -> Array:
        """Return the derivative of `expected` in `truth` at η: the information about η in ψ."""

    @abc.abstractmethod
    def variance(self, eta: Array, reach: Array) -> Array:
        """Return the variance of ψ for y from the model at η."""

    @property
    def least_bound(self) -> float:
        """Smallest value over η of sup |ψ| / sd(ψ); about 1 for most likelihoods.

        The clip of private scoring, and with it the noise, is at least this large relative to the
        standard deviation of a record's score.
        """
        return 1.0

    @property
    def outputs(self) -> int:
        """Number of predictors per record."""
        return max(1, self.levels)

    def link(self, mean: Any) -> Any:
        """Return the predictor η with E[y] = `mean`; used only if y is counted."""
        raise NotImplementedError

    def step(self, reach: float) -> float:
        """Return the largest root mean square change of η per round."""
        del reach
        return 1.0

    # The server's computations, in NumPy. `z` are the rows of synthetic records, each of which
    # represents records/len(z) real ones; θ is on z.

    def expected_scores(
        self, z: np.ndarray, records: float, points: np.ndarray, width: np.ndarray, reach: float
    ) -> ExpectedScores:
        """Return the expected scores at the last row of `points`, which has shape (T, d). `width`
        is the variance of η under q for each row of z.

        If η is one number, averages over q are by quadrature.
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
        """Return `width` for a q without variance."""
        return np.zeros(rows)

    def predictor_width(self, z: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Return `width`: the variance of η for each row of z, from the covariance of θ."""
        return np.maximum(np.sum((z @ covariance) * z, axis=1), 0.0)

    def rms_change(self, z: np.ndarray, move: np.ndarray) -> float:
        """Return the root mean square change of η due to a change of θ."""
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
        """Return the covariance of the error in H(θ − θ̄) that is due to an error in the second
        moment.

        H is about κn times the covariance of z = B y, where κ is the mean of its weights. An error
        of variance Dᵢⱼ in the covariance of y gives an error of covariance (κn)² B diag(D s) B in
        H(θ − θ̄), where s are the expected squares of θ − θ̄ on y: posterior variances `spread`,
        and squares of m − θ̄ = `gap`; `told` maps weights on z to weights on y.
        """
        size = np.trace(curvature) / max(np.sum(z * z) / len(z), 1e-300)
        square = np.sum((told @ spread) * told, axis=1) + np.square(told @ gap)
        return (bend * (size**2 * (doubt @ square))) @ bend


def weighted_moment(z: np.ndarray, weight: np.ndarray, records: float) -> np.ndarray:
    """Return n E[w zzᵀ], averaged over the rows of z, where n = `records`."""
    root = z * np.sqrt(weight * (records / len(z)))[:, None]
    return root.T @ root
