"""The default prior of regressions in `NaturalSolver`, whose scales are learned at the server.

The density of this prior depends on the scales of the columns (`tacit.models.learnt_scale`). These
scales are computed from the Hessian of the log-likelihood at the first candidate, θ = 0. At θ = 0
all records have equal weight, so the Hessian is Σ xxᵀ over the records x, times a constant. No
further exchange is needed, because this Hessian is released anyway.

For a normal q, E_q[log p] of the prior p is replaced by the lower bound that
`tacit.models.learnt_scale` derives. Importance weights use the exact density of the prior, so they
show whether the bound is loose.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays, solve_lower
from tacit.expfam.quadrature import weighing_draws
from tacit.methods.natural.move import Place
from tacit.models.capabilities import LearnsScale
from tacit.models.learnt_scale import (
    CONSTANT_SCALE,
    FREEDOM,
    GRID,
    LearntScalePrior,
    column_numbers,
    learnt_scale_prior,
)

TRANSFORM = "prior.transform"
"""Name, in the server's memory, of the matrix that converts θ to the scaled coefficients φ."""
TURNS, FEW_TURNS, MANY = 60, 8, 256
"""Largest number of iterations in which the prior's precisions are adapted to q: `TURNS`, or
`FEW_TURNS` if there are more than `MANY` parameters.
"""
AGREED = 1e-5
ROUNDED_INFORMATION = 1e-26
"""Smallest information about a coefficient, as a share of the largest one, that is not rounding.
Both are in units of the covariance root of the request.
"""
SEED = 0x5CA1E
"""Public fixed seed, so that every server draws the same numbers."""
COMPONENTS, WARM_UP, THINNING = 512, 200, 4
HEAVY_TAILS = 3.0
"""Degrees of freedom of the mixture's Student-t distributions, in addition to one per parameter."""


class ScaleFacts(NamedTuple):
    """Facts about a prior with learned scales that are known before a run.

    `mean` is the prior mean, `column` the column number of each parameter, and `unit` the scale of
    the linear predictor.
    """

    mean: np.ndarray
    column: np.ndarray
    unit: float
    model: LearnsScale

    @classmethod
    def of(cls, model: object) -> ScaleFacts | None:
        """Return the facts about the prior of a model, or None if the scales of the prior are
        declared instead of learned.
        """
        if not isinstance(model, LearnsScale) or model.scale_unit is None:
            return None
        mean = np.asarray(model.prior_mean, np.float64)
        column = column_numbers(model.layout, *divmod(len(mean), len(model.layout)))
        return cls(mean, column, model.scale_unit, model)

    def with_units(self, public: Arrays, hessian: np.ndarray) -> np.ndarray:
        """Return the matrix that converts θ to scaled coefficients φ.

        The scales of the columns are computed from `hessian`, the Hessian of the log-likelihood of
        all records at the first requested point.
        """
        layout = self.model.layout
        size = len(layout)
        inverse = solve_lower(public["root"][0], np.eye(len(self.mean)))
        information = (-inverse.T @ hessian[0] @ inverse)[:size, :size]
        # A column that is 0 for all records, such as a centred constant, has no information but for
        # rounding, which is no scale. In units of the root, all other columns have far more.
        within = np.diagonal(information) * np.sum(np.square(public["root"][0][:size]), axis=1)
        empty = ~(within > ROUNDED_INFORMATION * np.max(within))
        information[empty], information[:, empty] = 0.0, 0.0
        sd = np.asarray(self.model.prior_sd, np.float64)
        return learnt_scale_prior(self.mean, layout, information, self.unit, sd).transform

    def prior(self, transform: np.ndarray) -> LearntScalePrior:
        """Return the prior, given the matrix that `with_units` returns."""
        return LearntScalePrior(self.mean, transform, self.column, self.unit)


def with_learnt_scales(
    prior: LearntScalePrior, place: Place, spread: float, *, full: bool
) -> Place:
    """Return `place` with the value and derivatives of the log-prior added. `full` is False for a
    mean-field q.

    The prior acts as a normal prior whose precisions depend on q. The precisions are computed for
    the q after a full step, with a quadratic approximation of the likelihood. The run then needs as
    few steps as with a fixed prior. If `spread` is 0, `place` is a point, at which the density of
    the prior may be infinite. A normal prior with the scale `prior.unit` is then used instead.
    """
    inner = prior.transform @ place.root
    middle = prior.transform @ (place.mean - prior.mean)
    if spread == 0:
        scale = np.where(prior.column >= 0, 1.0, CONSTANT_SCALE) * prior.unit
        value, precision = -0.5 * float(np.sum(np.square(middle / scale))), scale**-2.0
    else:
        value, precision = prior.term_of(
            np.square(middle) + spread**2 * np.sum(inner * inner, axis=1)
        )
        precision = _settled(prior, place, inner, middle, precision, full=full)
    return place._replace(
        energy=place.energy + value,
        gradient=place.gradient - inner.T @ (precision * middle),
        hessian=place.hessian - (inner.T * precision) @ inner,
    )


def _settled(
    prior: LearntScalePrior,
    place: Place,
    inner: np.ndarray,
    middle: np.ndarray,
    precision: np.ndarray,
    *,
    full: bool,
) -> np.ndarray:
    """Return precisions of the prior that agree with the q after a full step.

    This q depends on the precisions, so they are found by fixed-point iteration from `precision`.
    """
    for _ in range(TURNS if len(middle) <= MANY else FEW_TURNS):
        form = (inner.T * precision) @ inner - place.hessian
        try:
            covariance = np.linalg.inv(0.5 * (form + form.T))
        except np.linalg.LinAlgError:
            return precision
        shift = covariance @ (place.gradient - inner.T @ (precision * middle))
        if not full:
            covariance = np.diag(1.0 / np.diagonal(form))
        square = np.square(middle + inner @ shift) + np.sum((inner @ covariance) * inner, axis=1)
        if not np.all(square >= 0) or not np.all(np.isfinite(square)):
            return precision
        following = prior.term_of(square).precision
        change = np.max(np.abs(np.log(following / precision)))
        precision = following
        if change < AGREED:
            break
    return precision


def mixture_draws(
    prior: LearntScalePrior,
    place: Place,
    mean: np.ndarray,
    root: np.ndarray,
    count: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws of θ from an approximation of the posterior, and the logarithms of their
    densities up to a constant.

    The approximation is used if the posterior is wider than q = N(mean, root·rootᵀ). Scales of the
    prior are drawn from their posterior, given the quadratic approximation of the likelihood at
    `place`. Given the scales, θ is drawn from a Student-t distribution, because the tails of a
    likelihood are often heavier than normal. The caller corrects the approximation by importance
    weights. All random numbers come from a fixed seed. `count` is the number of draws; by default
    it is that of `weighing_draws`.
    """
    rng = np.random.default_rng(SEED)
    size = len(mean)
    inner = prior.transform @ place.root
    back = np.linalg.inv(inner)
    middle = prior.transform @ (place.mean - prior.mean)
    seen = prior.term(mean, root).precision
    slope = back.T @ (place.gradient + inner.T @ (seen * middle))
    form = -back.T @ (place.hessian + (inner.T * seen) @ inner) @ back
    values, vectors = np.linalg.eigh(0.5 * (form + form.T))
    form = (vectors * np.maximum(values, 0.0)) @ vectors.T
    start = prior.transform @ (mean - prior.mean)
    states = _scale_states(prior, form, slope + form @ middle, start, rng)
    # Each state gets about the same number of draws, even if their number does not divide evenly.
    half = (count or len(weighing_draws(size))) // 2
    each = [half // len(states) + (k < half % len(states)) for k in range(len(states))]
    degrees = HEAVY_TAILS + size
    noise = rng.standard_normal((half, size))
    noise *= np.sqrt(degrees / rng.chisquare(degrees, (half, 1)))
    pairs = zip(states, np.split(noise, np.cumsum(each)[:-1]), strict=True)
    steps = np.concatenate([np.linalg.solve(one[1].T, normal.T).T for one, normal in pairs])
    centres = np.repeat([where for where, _ in states], each, axis=0)
    drawn = np.concatenate([centres + steps, centres - steps])
    densities = np.stack(
        [
            np.log(count) + _log_student(drawn, *state, degrees)
            for state, count in zip(states, each, strict=True)
            if count
        ]
    )
    theta = prior.mean + np.linalg.solve(prior.transform, drawn.T).T
    return theta, np.logaddexp.reduce(densities, axis=0)


def _log_student(
    drawn: np.ndarray, where: np.ndarray, factor: np.ndarray, degrees: float
) -> np.ndarray:
    """Return the log-density, up to a constant, of the rows of `drawn` under a Student-t
    distribution with centre `where` and precision factor·factorᵀ.
    """
    square = np.sum(np.square((drawn - where) @ factor), axis=1)
    volume = np.sum(np.log(np.diagonal(factor)))
    return volume - 0.5 * (degrees + drawn.shape[1]) * np.log1p(square / degrees)


def _scale_states(
    prior: LearntScalePrior,
    form: np.ndarray,
    linear: np.ndarray,
    phi: np.ndarray,
    rng: np.random.Generator,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw the scales of the prior by Gibbs sampling.

    Return, for each draw, the conditional mean of the scaled coefficients φ and the Cholesky factor
    of their conditional precision. The likelihood is exp(linear·φ − ½ φᵀ form φ). Each iteration
    draws the common scale of all columns, then the precision of each column, then φ.
    """
    from scipy.special import gammaincinv

    free, unit = prior.column >= 0, prior.unit
    column, sizes = prior.column[free], np.bincount(prior.column[free])
    count, thinning = (COMPONENTS, THINNING) if len(phi) <= MANY // 4 else (COMPONENTS // 4, 2)
    precision, states = np.zeros(len(phi)), []
    for turn in range(WARM_UP + count * thinning):
        square = np.square(phi)
        sums = np.bincount(column, square[free], len(sizes)) / unit**2
        chances = np.cumsum(prior.scale_weights(sums))
        number = np.searchsorted(chances, rng.random() * chances[-1])
        scale = GRID[min(int(number), len(GRID) - 1)]
        local = gammaincinv(0.5 * (FREEDOM + sizes), rng.random(len(sizes)))
        local = 2.0 * local / (FREEDOM * scale**2 + sums) / unit**2
        precision[free] = local[column]
        if not np.all(free):
            wide = FREEDOM * (CONSTANT_SCALE * unit) ** 2 + np.sum(square[~free])
            shape = 0.5 * (FREEDOM + np.sum(~free))
            precision[~free] = 2.0 * gammaincinv(shape, rng.random()) / wide
        factor = np.linalg.cholesky(form + np.diag(precision))
        where = np.linalg.solve(factor.T, np.linalg.solve(factor, linear))
        phi = where + np.linalg.solve(factor.T, rng.standard_normal(len(phi)))
        if turn >= WARM_UP and (turn - WARM_UP) % thinning == 0:
            states.append((where, factor))
    return states
