"""The default prior of private scoring: scales of the coefficients learnt from the releases.

Of `tacit.models.learnt_scale`, met with a Gaussian likelihood of information J and pull b, both in
φ. Given the ratios λ_g of the columns' scales to the common one, all posteriors N(·) of a fixed τ
have the eigenvectors of DJD in common, D = diag(λ u). Their mixture over τ is therefore known: it
has the mean and the average covariance that a normal prior of precision

    P = D⁻¹ V diag(1/E[τ²/(1 + τ²e)] − e) Vᵀ D⁻¹,    DJD = V diag(e) Vᵀ,

would give, and the covariance of the means besides. The scale is integrated out, so that intervals
are no narrower where the signal is weak. λ_g² follows by E[φ²/τ²], as in variational inference.
Post-processing only: it costs no budget.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.models.learnt_scale import CONSTANT_SCALE, FREEDOM, LearntScalePrior

SCALES = np.exp2(np.arange(-6.0, 3.25, 0.25))
"""τ/u over which the mixture is a sum."""
REFITS = 6


class Integrated(NamedTuple):
    """In φ: the precision of the normal prior that does the same, and the covariance of means."""

    precision: np.ndarray
    between: np.ndarray


def integrated(prior: LearntScalePrior, information: np.ndarray, pull: np.ndarray) -> Integrated:
    """The mixture over τ of posteriors with information J and pull b = J(estimate) in φ."""
    free, unit = prior.column >= 0, prior.unit
    column, size = prior.column[free], np.bincount(prior.column[free])
    degrees = FREEDOM + np.sum(~free)
    wide = FREEDOM * (CONSTANT_SCALE * unit) ** 2
    constant = degrees / wide
    square = np.square(SCALES)
    log_prior = np.log(SCALES) - 0.5 * square
    ratio = np.ones(len(size))
    outer, inner = np.ix_(~free, free), np.ix_(free, free)
    corner = information[np.ix_(~free, ~free)]
    for turn in range(REFITS):
        scale = unit * np.sqrt(ratio)[column]
        own = corner + constant * np.eye(len(corner))
        carried = np.linalg.solve(own, information[outer])
        rest = information[inner] - information[outer].T @ carried
        values, vectors = np.linalg.eigh(scale[:, None] * rest * scale)
        values = np.maximum(values, 0.0)
        basis = scale[:, None] * vectors
        along = basis.T @ (pull[free] - carried.T @ pull[~free])
        gain = square[:, None] / (1.0 + square[:, None] * values)
        fits = log_prior - 0.5 * np.sum(np.log1p(square[:, None] * values), axis=1)
        fits += 0.5 * gain @ np.square(along)
        weights = np.exp(fits - np.max(fits))
        weights /= np.sum(weights)
        if turn == REFITS - 1:
            break
        means = (gain * along) @ basis.T
        seen = (np.square(means) + gain @ np.square(basis).T).T @ (weights / square)
        ratio = (FREEDOM + np.bincount(column, seen) / unit**2) / (FREEDOM + size)
        here = np.linalg.solve(own, pull[~free]) - carried @ (weights @ means)
        constant = degrees / (wide + np.sum(np.square(here)))
    typical = weights @ gain
    apart = np.sqrt(weights)[:, None] * (gain - typical) * along
    precision = constant * np.diag(1.0 * ~free)
    back = vectors / scale[:, None]
    precision[inner] = (back * (1.0 / typical - values)) @ back.T
    between = np.zeros_like(precision)
    moved = apart @ basis.T
    shift = np.zeros((len(SCALES), len(free)))
    shift[:, free], shift[:, ~free] = moved, -moved @ carried.T
    between = shift.T @ shift
    return Integrated(precision, between)
