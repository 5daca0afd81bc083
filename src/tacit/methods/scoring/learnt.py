"""The default prior of private scoring, whose scales are learned from the releases.

The prior of `tacit.models.learnt_scale` is combined with a Gaussian likelihood of the coefficients
φ. Each coefficient is in the unit of its column. The likelihood has the information J and the
linear term b. The prior sd of the coefficients of column g is τ λ_g u. Here u is the unit of the
predictor, τ the common scale of all columns, and λ_g the relative scale of column g.

**Mixture over τ.** With D = diag(λ u) and the eigenvalues e and eigenvectors V of DJD, the
posteriors for all values of τ have the same eigenvectors. Their mixture over τ can therefore be
computed. The mixture has the mean and the average covariance that result from a normal prior of
precision

    P = D⁻¹ V diag(1/E[τ²/(1 + τ²e)] − e) Vᵀ D⁻¹,    DJD = V diag(e) Vᵀ.

To this covariance, the covariance of the means over τ is added. Because τ is integrated out,
intervals are not too narrow if the signal is weak.

**Relative scales.** λ_g² is updated with E[φ²/τ²], as in variational inference.

All this is post-processing and costs no budget.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.models.learnt_scale import CONSTANT_SCALE, FREEDOM, LearntScalePrior

SCALES = np.exp2(np.arange(-6.0, 3.25, 0.25))
"""Values of the common scale, in units of u, over which the mixture is summed."""
REFITS = 6


class Integrated(NamedTuple):
    """The normal prior that results if the common scale of all coefficients is integrated out.

    `precision` is the precision of the normal prior. `between` is the covariance, over the values
    of the common scale, of the posterior means of the coefficients.
    """

    precision: np.ndarray
    between: np.ndarray


class _Mixture(NamedTuple):
    """Posteriors of the coefficients φ for all values of their common scale τ, in a common basis.

    `weights` are the probabilities of the values of τ, given the releases.
    """

    weights: np.ndarray
    gain: np.ndarray
    """τ²/(1 + τ²e), one row per τ."""
    values: np.ndarray
    vectors: np.ndarray
    basis: np.ndarray
    along: np.ndarray
    carried: np.ndarray
    """Change of the intercept per change of the other coefficients."""
    constant: np.ndarray
    """Mean of the intercept if all other coefficients are 0."""


def integrated(prior: LearntScalePrior, information: np.ndarray, pull: np.ndarray) -> Integrated:
    """Return the normal prior that results if the common scale τ of the coefficients φ is
    integrated out.

    The likelihood of φ is Gaussian with the precision `information` and the linear term `pull`.
    """
    free, unit = prior.column >= 0, prior.unit
    column, size = prior.column[free], np.bincount(prior.column[free])
    degrees = FREEDOM + np.sum(~free)
    wide = FREEDOM * (CONSTANT_SCALE * unit) ** 2
    constant = float(degrees / wide)
    scale = np.full(len(column), unit)
    found = _mixture(free, information, pull, scale, constant)
    for _ in range(REFITS - 1):
        means = (found.gain * found.along) @ found.basis.T
        squares = np.square(means) + found.gain @ np.square(found.basis).T
        seen = squares.T @ (found.weights / np.square(SCALES))
        ratio = (FREEDOM + np.bincount(column, seen) / unit**2) / (FREEDOM + size)
        scale = unit * np.sqrt(ratio)[column]
        here = found.constant - found.carried @ (found.weights @ means)
        constant = float(degrees / (wide + np.sum(np.square(here))))
        found = _mixture(free, information, pull, scale, constant)
    typical = found.weights @ found.gain
    back = found.vectors / scale[:, None]
    precision = constant * np.diag(1.0 * ~free)
    precision[np.ix_(free, free)] = (back * (1.0 / typical - found.values)) @ back.T
    apart = np.sqrt(found.weights)[:, None] * (found.gain - typical) * found.along
    moved = apart @ found.basis.T
    shift = np.zeros((len(SCALES), len(free)))
    shift[:, free], shift[:, ~free] = moved, -moved @ found.carried.T
    return Integrated(precision, shift.T @ shift)


def _mixture(
    free: np.ndarray, information: np.ndarray, pull: np.ndarray, scale: np.ndarray, constant: float
) -> _Mixture:
    """Return the posteriors of the coefficients for all values of their common scale τ.

    The prior sd of each coefficient is τ times its `scale`, and the prior precision of the
    intercept is `constant`.
    """
    outer = information[np.ix_(~free, free)]
    own = information[np.ix_(~free, ~free)] + constant * np.eye(int(np.sum(~free)))
    carried = np.linalg.solve(own, outer)
    rest = information[np.ix_(free, free)] - outer.T @ carried
    values, vectors = np.linalg.eigh(scale[:, None] * rest * scale)
    values = np.maximum(values, 0.0)
    basis = scale[:, None] * vectors
    along = basis.T @ (pull[free] - carried.T @ pull[~free])
    square = np.square(SCALES)[:, None]
    gain = square / (1.0 + square * values)
    fits = np.log(SCALES) - 0.5 * np.square(SCALES)
    fits += 0.5 * gain @ np.square(along) - 0.5 * np.sum(np.log1p(square * values), axis=1)
    weights = np.exp(fits - np.max(fits))
    middle = np.linalg.solve(own, pull[~free])
    weights = weights / np.sum(weights)
    return _Mixture(weights, gain, values, vectors, basis, along, carried, middle)
