"""Natural-gradient steps of a normal distribution q in coordinates in which it is standard
normal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural.curvature import lower_root
from tacit.methods.natural.stages import FAILED

EIGENVALUES = (0.25, 1e6)
"""Bounds on the precision after one step, relative to the precision before the step."""
MOST_EXTRAPOLATED = 1.0
"""Steps whose KL divergence exceeds this many nats are not extrapolated."""
LEAST_RATIO, STEADY, LONGEST_STEP = 0.4, 0.2, 4.0
"""The next step is extrapolated if the ratio of successive steps is at least `LEAST_RATIO` and
changes by at most `STEADY`. `LONGEST_STEP` is the greatest length of an extrapolated step.
"""


class Place(NamedTuple):
    """A normal distribution q = N(mean, root·rootᵀ) with the gradient and Hessian of the expected
    log-joint.

    A `Place` may also describe the single point `mean`. Derivatives are with respect to z at z = 0,
    where θ = mean + root·z.
    """

    mean: np.ndarray
    root: np.ndarray
    energy: float
    """Evidence lower bound up to a constant; for a point, the log-joint."""
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def failed(self) -> bool:
        return not self.energy > 0.1 * FAILED

    def pack(self) -> Arrays:
        return {f"place.{name}": np.asarray(value) for name, value in self._asdict().items()}

    @classmethod
    def unpack(cls, memory: Arrays) -> Place | None:
        if "place.mean" not in memory:
            return None
        parts = {name: memory[f"place.{name}"] for name in cls._fields}
        return cls(**parts)._replace(energy=float(parts["energy"]))


class Move(NamedTuple):
    """A natural-gradient step from a `Place`, in the coordinates z with θ = mean + root·z.

    `vectors` are the eigenvectors of the negative Hessian in z. `precision` has the precision of q
    along each of them after a step of length 1. Before the step, all these precisions are 1.
    """

    vectors: np.ndarray
    precision: np.ndarray
    gradient: np.ndarray
    """Gradient in the coordinates of the eigenvectors."""
    definite: bool

    @property
    def divergence(self) -> float:
        """KL(q after ‖ q before), in nats, for a step of length 1."""
        shift = self.gradient / self.precision
        spread = np.sum(1.0 / self.precision - 1.0 + np.log(self.precision))
        return 0.5 * float(spread + shift @ shift)

    def taken(self, place: Place, length: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of q, and a root of its covariance, after a step of length `length` from
        `place`.
        """
        precision = np.maximum((1.0 - length) + length * self.precision, EIGENVALUES[0])
        shift = self.vectors @ (length * self.gradient / precision)
        root = place.root @ (self.vectors / np.sqrt(precision))
        return place.mean + place.root @ shift, lower_root(root)


def move_of(place: Place, *, full: bool = True) -> Move:
    """Return the natural-gradient step from `place`. `full` is True for a q with full covariance,
    False for a mean-field q.
    """
    bend = -place.hessian
    values, vectors = np.linalg.eigh(bend)
    definite = bool(np.all(values > 0))
    clipped = np.clip(np.abs(values), *EIGENVALUES)
    if full:
        return Move(vectors, clipped, vectors.T @ place.gradient, definite)
    # The precision of a mean-field q is the diagonal; the step of its mean uses the whole matrix.
    precision = np.clip(np.abs(np.diagonal(bend)), *EIGENVALUES)
    shift = vectors @ ((vectors.T @ place.gradient) / clipped)
    return Move(np.eye(len(precision)), precision, shift * precision, definite)


def extrapolated(changes: np.ndarray) -> float:
    """Return the length of the next step, given the KL divergences `changes` of the last three full
    steps.

    If steps shrink by a constant factor r, the next step and all later steps add up to 1/(1 − r)
    times the next step. The result is then min(1/(1 − r), `LONGEST_STEP`). If steps do not shrink
    in this way, the result is 1.

    >>> float(extrapolated(np.array([0.4, 0.1, 0.025])))
    2.0
    """
    if len(changes) < 3 or not np.all((changes > 0) & (changes < MOST_EXTRAPOLATED)):
        return 1.0
    early, late = np.sqrt(changes[1:] / changes[:-1])
    steady = LEAST_RATIO < late < 1.0 and abs(late - early) < STEADY * late
    return min(1.0 / (1.0 - late), LONGEST_STEP) if steady else 1.0


def log_volume(root: np.ndarray) -> float:
    """Return the logarithm of the absolute determinant of a triangular matrix."""
    return float(np.sum(np.log(np.abs(np.diagonal(root)))))
