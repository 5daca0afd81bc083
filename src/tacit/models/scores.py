"""Bounded scores of likelihoods and their moments, for private scoring.

Let z be the features of a record, η = z·θ its predictor and y its outcome. The score in θ is ψ(y,
η)·z, where ψ is the derivative of log p(y | η) in η, possibly clipped. If a record has several
predictors, the score is ψ ⊗ z. ψ must be bounded for all y and have expectation zero under the
model; otherwise the clipped sum would be biased. The likelihoods have the following ψ and bounds:

* Bernoulli with probability p: ψ = y − p, |ψ| ≤ max(p, 1 − p);
* Poisson with rate μ and declared y ≤ Y: ψ = y − μ, |ψ| ≤ max(μ, Y − μ);
* categorical with probabilities p of K levels and the one-hot vector e_y: ψ = e_y − p,
  ‖ψ‖² = 1 − 2p_y + ‖p‖² ≤ 1 − 2 min p + ‖p‖²;
* Gaussian with known standard deviation σ: ψ = clip((y − η)/σ, ±k)/σ, |ψ| ≤ k/σ (Huber 1964).
  The normal density is symmetric, so that clipping does not change the expectation of zero. The
  server chooses k. Public bounds on y also bound ψ.

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
    """Expectations of sums of scores at the current θ of the server, computed from synthetic
    records.
    """

    curvature: Array
    """Expected slope H of the scores."""
    sampling: Array
    """Sampling variance V of the scores."""
    widened: Array
    """Contribution r of q's variance to the expected scores."""
    change: Array
    """Change of the expected score from the θ of each round to the last θ, one row per round."""


class ScoreLikelihood(abc.ABC):
    """The score ψ(y, η) of a likelihood, with its bound and its moments under the model.

    y is the outcome and η the predictor of a record. The argument `reach` of the methods is the
    number of standard deviations at which the server clips residuals, chosen from `reaches`.
    Likelihoods whose score is bounded without clipping ignore it.
    """

    reaches: tuple[float, ...] = (1.0,)
    """Values of `reach` from which the server chooses; one value if `reach` is ignored."""
    largest: float | None = None
    """Largest y, if it is public; the mean of y is then released for the starting point. None if y
    has no bounds, or has levels.
    """
    smallest: float = 0.0
    """Smallest y; used only if `largest` is not None."""
    levels: int = 0
    """K if y is one of K levels; 0 if y is a number.

    With levels, η and ψ have a last axis of length K, and `slope` and `variance` return arrays with
    two such axes.
    """

    @abc.abstractmethod
    def residual(self, y: Array, eta: Array, reach: Array) -> Array:
        """Return the score ψ(y, η) for η = `eta`."""

    @abc.abstractmethod
    def bound(self, eta: Array, reach: Array) -> Array:
        """Return the largest |ψ(y, η)| over all y. Clipping by this bound is label-agnostic."""

    @abc.abstractmethod
    def expected(self, truth: Array, eta: Array, reach: Array) -> Array:
        """Return the expected score E[ψ(y, η)] for η = `eta` if the outcome y has the predictor
        `truth`. It is 0 if `truth` is η.
        """

    @abc.abstractmethod
    def slope(self, eta: Array, reach: Array) -> Array:
        """Return the derivative of `expected` in `truth`, at truth = η. It is the information about
        η that the score contains.
        """

    @abc.abstractmethod
    def variance(self, eta: Array, reach: Array) -> Array:
        """Return the variance of the score ψ(y, η) if the outcome y has the predictor η."""

    @property
    def least_bound(self) -> float:
        """The minimum over η of max_y |ψ(y, η)| / sd(ψ(y, η)), where sd is the standard deviation
        over outcomes y with the predictor η. It is about 1 for most likelihoods.

        The clip of private scoring is at least this many standard deviations of a record's score,
        and the noise is proportional to the clip.
        """
        return 1.0

    @property
    def outputs(self) -> int:
        """Number of predictors η of each record: one, or one per level of y."""
        return max(1, self.levels)

    def link(self, mean: Any) -> Any:
        """Return the predictor η at which E[y] = `mean`. It is needed only if `largest` is not
        None.
        """
        raise NotImplementedError

    def step(self, reach: float) -> float:
        """Return how far θ may move in one round, measured by the root mean square change of η over
        records.
        """
        del reach
        return 1.0

    # The server's computations, in NumPy. `z` are the rows of synthetic records, each of which
    # represents records/len(z) real ones; θ are the coefficients of z.

    def expected_scores(
        self, z: np.ndarray, records: float, points: np.ndarray, width: np.ndarray, reach: float
    ) -> ExpectedScores:
        """Return the expected sums of scores at the last row of `points`. The rows of `points` are
        the values of θ in all rounds.

        `z` are the features of synthetic records, which represent `records` real ones. `width` is
        the variance of η under q for each row of z. Averages over q are computed by quadrature.
        This implementation is for a single predictor η per record.
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
        """Return the argument `width` of `expected_scores` for a q with variance 0."""
        return np.zeros(rows)

    def predictor_width(self, z: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Return the variance of η = z·θ for each row z, if θ has this covariance matrix."""
        return np.maximum(np.sum((z @ covariance) * z, axis=1), 0.0)

    def rms_change(self, z: np.ndarray, move: np.ndarray) -> float:
        """Return the root mean square change of η over the rows of z if θ changes by `move`."""
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
        """Return the covariance of the error in H(θ − θ̄) that results from noise in a released
        second moment.

        H is the expected slope of the summed scores, and θ̄ is the point at which the scores were
        computed. H is about c·E[zzᵀ] with a scalar c. The features are z = B y, where y are the
        centred and scaled columns and B is a symmetric matrix. Entry (i, j) of the released second
        moment of y has noise of variance Dᵢⱼ. The error of H(θ − θ̄) then has the covariance c² B
        diag(D s) B, where s are the expected squares of the coordinates of T(θ − θ̄) and T is
        `told`.

        Parameters
        ----------
        z
            Rows of synthetic records.
        bend
            The matrix B.
        told
            The matrix T, which converts coefficients of z to coefficients of y.
        doubt
            The variances D.
        curvature
            The expected slope H.
        spread
            Posterior covariance of θ.
        gap
            Posterior mean of θ − θ̄.
        """
        size = np.trace(curvature) / max(np.sum(z * z) / len(z), 1e-300)
        square = np.sum((told @ spread) * told, axis=1) + np.square(told @ gap)
        return (bend * (size**2 * (doubt @ square))) @ bend


def weighted_moment(z: np.ndarray, weight: np.ndarray, records: float) -> np.ndarray:
    """Return `records` times the mean of weight·zzᵀ over the rows of z."""
    root = z * np.sqrt(weight * (records / len(z)))[:, None]
    return root.T @ root
