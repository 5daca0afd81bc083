"""Proposal distributions that are fitted to weighted draws: mixtures of Student-t distributions.

The mixture is fitted by the EM algorithm, in coordinates in which the weighted draws have mean 0
and covariance I, so that the result does not depend on units. One component is not fitted: it is
centred at the weighted mean and is wider than the draws, so that importance weights stay bounded
where the fitted components have no mass. Draws come in pairs that mirror each other at the centre
of their component.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

MOST_COMPONENTS = 10
DRAWS_PER_MOMENT = 10
"""Effective draws per component and parameter that are required to fit a component."""
TURNS = 20
WIDE_SHARE = 0.2
"""Share of draws from the component that is not fitted."""
WIDE = 1.5
"""Scale of this component, in standard deviations of the weighted draws."""
FREEDOM = 3.0
"""Degrees of freedom of each component, in addition to one per parameter."""
LEAST_SHARE = 0.02


class Mixture(NamedTuple):
    """A mixture of Student-t distributions."""

    shares: np.ndarray
    centres: np.ndarray
    roots: np.ndarray
    """Lower-triangular roots of the scale matrices."""

    def log_density(self, theta: np.ndarray) -> np.ndarray:
        """Return the log-density at each row of `theta`, up to a constant."""
        size = theta.shape[1]
        degrees = FREEDOM + size
        parts = []
        for share, centre, root in zip(*self, strict=True):
            z = np.linalg.solve(root, (theta - centre).T)
            volume = float(np.sum(np.log(np.diagonal(root))))
            tail = 0.5 * (degrees + size) * np.log1p(np.sum(z * z, axis=0) / degrees)
            parts.append(math.log(share) - volume - tail)
        return np.logaddexp.reduce(np.stack(parts), axis=0)

    def draw(self, count: int, seed: int) -> np.ndarray:
        """Return draws of which the second half mirrors the first half. Numbers of draws of the
        components are in proportion to their shares.
        """
        size, half = self.centres.shape[1], count // 2
        rng = np.random.default_rng([size, count, seed, 0xADA7])
        ends = np.round(np.cumsum(self.shares) * half / np.sum(self.shares)).astype(int)
        which = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        degrees = FREEDOM + size
        noise = rng.standard_normal((half, size))
        noise *= np.sqrt(degrees / rng.chisquare(degrees, (half, 1)))
        steps = np.einsum("sij,sj->si", self.roots[which], noise)
        return np.concatenate([self.centres[which] + steps, self.centres[which] - steps])


def fitted(theta: np.ndarray, log_weights: np.ndarray, seed: int) -> Mixture:
    """Fit a mixture to weighted draws.

    The number of components is limited by the number of effective draws.

    >>> draws = np.random.default_rng(0).normal(size=(400, 2))
    >>> mixture = fitted(draws, np.full(400, -np.log(400.0)), 0)
    >>> bool(abs(mixture.shares.sum() - 1.0) < 1e-9)
    True
    """
    size = theta.shape[1]
    weights = np.exp(log_weights)
    weights = weights / np.sum(weights)
    mean = weights @ theta
    apart = theta - mean
    covariance = (apart * weights[:, None]).T @ apart
    scale = np.sqrt(np.maximum(np.diagonal(covariance), 1e-300))
    inner = covariance / np.outer(scale, scale) + 1e-6 * np.eye(size)
    root = scale[:, None] * np.linalg.cholesky(inner)
    points = np.linalg.solve(root, apart.T).T
    effective = 1.0 / float(np.sum(weights * weights))
    most = int(np.clip(effective / (DRAWS_PER_MOMENT * (size + 1)), 1, MOST_COMPONENTS))
    shares, centres, inners = _by_em(points, weights, effective, most, seed)
    shares = np.r_[WIDE_SHARE, (1.0 - WIDE_SHARE) * shares]
    centres = np.concatenate([mean[None], mean + centres @ root.T])
    roots = np.concatenate([WIDE * root[None], root @ inners])
    return Mixture(shares, centres, roots)


def _by_em(
    points: np.ndarray, weights: np.ndarray, effective: float, most: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return shares, centres and covariance roots of a normal mixture fitted to weighted points.

    Covariances are shrunk towards a multiple of I, with the weight of a few draws. Components with
    few draws are left out.
    """
    size = points.shape[1]
    rng = np.random.default_rng([size, most, seed, 0xE31])
    centres = points[rng.choice(len(points), most, p=weights, replace=True)]
    typical = most ** (-2.0 / size) * np.eye(size)
    shares, covariances = np.full(most, 1.0 / most), np.stack([typical] * most)
    for _ in range(TURNS):
        logs = []
        for share, centre, covariance in zip(shares, centres, covariances, strict=True):
            lower = np.linalg.cholesky(covariance)
            z = np.linalg.solve(lower, (points - centre).T)
            volume = np.sum(np.log(np.diagonal(lower)))
            logs.append(np.log(share) - volume - 0.5 * np.sum(z * z, axis=0))
        stacked = np.stack(logs)
        each = weights * np.exp(stacked - np.logaddexp.reduce(stacked, axis=0))
        shares = np.sum(each, axis=1)
        kept = shares > min(LEAST_SHARE, 0.5 / most)
        each, shares = each[kept], shares[kept]
        centres = each @ points / shares[:, None]
        covariances = np.stack(
            [
                (((points - centre) * (row * effective)[:, None]).T @ (points - centre)
                 + (size + 2.0) * typical) / (share * effective + size + 2.0)
                for centre, row, share in zip(centres, each, shares, strict=True)
            ]
        )  # fmt: skip
    return shares / np.sum(shares), centres, np.linalg.cholesky(covariances)
