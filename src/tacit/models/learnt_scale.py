"""The default prior of regressions: the scales of coefficients are learned with them.

Used if the user declares no `prior_sd`. With φ the coefficients in the units of their columns (per
standard deviation of a number, per level of a category) and u the unit of the predictor (1 on a log
or logit scale, `noise_sd` for linear regression),

    φ_g ~ Student-t(ν = 4, scale τ) in every column g, all its levels and outputs together,
    τ ~ half-normal(u), at least u/64.

A Student-t is a scale mixture of normals: each column has its own scale, and all columns together
determine τ. Both are integrated out: the scales are parameters of the model, not estimates that are
treated as known. The intercept has a Student-t of scale 10 u at the mean of the columns. The
posterior does not depend on the units of the columns.

With R_g = Σ φ² over column g the density is a function h(R) of these sums alone,

    h(R) = log ∫ p(τ) Π_g τ^(−n_g) (1 + R_g/ντ²)^(−(ν + n_g)/2) dτ,

convex in R, so that E_q[log p] ≥ h(E_q[R]): for a normal q this bound acts as a normal prior with
precisions c_g = −2 ∂h/∂R_g = E[(ν + n_g)/(ντ² + R_g)], the average over τ given R.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Array, namespace
from tacit.data.schema.layout import Layout

FREEDOM = 4.0
"""Degrees of freedom ν: how closely the scale of a column follows the common scale. Above 2 the
variance is finite.
"""
GRID = np.exp2(np.linspace(-6.0, 3.0, 121))
"""Values of τ/u over which the density h is summed."""
CONSTANT_SCALE = 10.0
"""Scale of the intercept, in units of u."""
CONSTANT = -1
"""Value of `column` for the intercept."""


def column_numbers(layout: Layout, outputs: int = 1, further: int = 0) -> np.ndarray:
    """Return the column number of each coefficient, the same for all levels of a category. It is −1
    for the intercept.

    It is also −1 for `further` parameters, which belong to no column.
    """
    sources = list(dict.fromkeys(one.source for one in layout if one.kind != "intercept"))
    column = [CONSTANT if f.kind == "intercept" else sources.index(f.source) for f in layout]
    numbers = [*column * outputs, *[CONSTANT] * further]
    return np.array(numbers, dtype=np.int64)


class PriorTerm(NamedTuple):
    """A lower bound of E_q[log p(θ)] up to a constant, and the precisions c of φ that it
    implies.
    """

    value: float
    precision: np.ndarray


class LearntScalePrior(NamedTuple):
    """The prior with learned scales, a density of φ = transform @ (θ − mean)."""

    mean: np.ndarray
    transform: np.ndarray
    column: np.ndarray
    """Column of each coefficient (`column_numbers`)."""
    unit: float = 1.0
    """The unit u of the predictor."""

    def term(self, mean: np.ndarray, root: np.ndarray) -> PriorTerm:
        """Return the prior's term for q = N(mean, root·rootᵀ)."""
        inner = self.transform @ root
        square = np.square(self.transform @ (mean - self.mean)) + np.sum(inner * inner, axis=1)
        return self.term_of(square)

    def term_of(self, square: np.ndarray) -> PriorTerm:
        """Return the prior's term as a function of E_q[φ²] of each coefficient."""
        free, size = self.column >= 0, self._sizes
        sums = np.bincount(self.column[free], square[free], len(size)) / self.unit**2
        each = np.square(GRID) * FREEDOM + sums[:, None]
        fits = _log_prior() - 0.5 * (FREEDOM + size) @ np.log(each) + FREEDOM * len(size) * _LOGS
        top = np.max(fits)
        weights = np.exp(fits - top)
        total = np.sum(weights)
        own = (FREEDOM + size) * (1.0 / each @ weights) / total / self.unit**2
        precision = np.zeros(len(square))
        precision[free] = own[self.column[free]]
        value = float(top + np.log(total))
        if not np.all(free):
            wide = FREEDOM * (CONSTANT_SCALE * self.unit) ** 2 + np.sum(square[~free])
            degrees = FREEDOM + np.sum(~free)
            precision[~free] = degrees / wide
            value -= 0.5 * degrees * np.log(wide)
        return PriorTerm(float(value), precision)

    def variance_without_records(
        self, mean: np.ndarray, covariance: np.ndarray, *, exact: bool
    ) -> np.ndarray:
        """Return the variance that each coordinate of θ would have without any records about it,
        given the learned scales.

        It is comparable with the variances of the posterior whose moments are given. For an exact
        posterior it is the variance of Student-t draws, ν/(ν − 2)·E[τ² | R]. For a normal q, where
        the prior acts as a normal with precisions c, it is 1/c: with E[τ²] instead, an unknown τ
        would look like information.
        """
        free = self.column >= 0
        square = np.square(self.transform @ (mean - self.mean))
        square += np.sum((self.transform @ covariance) * self.transform, axis=1)
        variance = 1.0 / self.term_of(square).precision
        if exact:
            sums = np.bincount(self.column[free], square[free], len(self._sizes)) / self.unit**2
            weights = self.scale_weights(sums)
            common = float(weights @ np.square(GRID) / np.sum(weights))
            scale = np.where(free, common, CONSTANT_SCALE**2) * self.unit**2
            variance = FREEDOM / (FREEDOM - 2.0) * scale
        return np.sum(np.square(np.linalg.inv(self.transform)) * variance, axis=1)

    def scale_weights(self, sums: np.ndarray) -> np.ndarray:
        """Return p(τ | R) on `GRID` up to a factor, from R/u² of each column."""
        each = np.square(GRID) * FREEDOM + sums[:, None]
        degrees = FREEDOM + self._sizes
        fits = _log_prior() - 0.5 * degrees @ np.log(each) + FREEDOM * len(sums) * _LOGS
        return np.exp(fits - np.max(fits))

    def log_density(self, theta: Array) -> Array:
        """Return log p(θ) of each row of θ up to a constant; NumPy or JAX."""
        xp = namespace(theta)
        squares = xp.square((theta - self.mean) @ self.transform.T)
        free, size = self.column >= 0, self._sizes
        members = (self.column[:, None] == np.arange(len(size))).astype(np.float64)
        sums = squares @ members / self.unit**2
        degrees = FREEDOM + size
        rest = _log_prior() + FREEDOM * len(size) * _LOGS
        if theta.ndim == 1:
            fits = rest - 0.5 * xp.log(FREEDOM * np.square(GRID)[:, None] + sums) @ degrees
        else:  # one value of τ after the other, because all at once may not fit into memory
            fits = xp.stack(
                [
                    one - 0.5 * xp.log(FREEDOM * scale**2 + sums) @ degrees
                    for one, scale in zip(rest, GRID, strict=True)
                ]
            )
        top = xp.max(fits, axis=0)
        found = top + xp.log(xp.sum(xp.exp(fits - top), axis=0))
        if not np.all(free):
            wide = FREEDOM * (CONSTANT_SCALE * self.unit) ** 2
            beyond = squares @ (1.0 * ~free)
            found = found - 0.5 * (FREEDOM + np.sum(~free)) * xp.log(wide + beyond)
        return found

    @property
    def widest_sd(self) -> np.ndarray:
        """Prior sd of each coordinate of θ if the scale τ is u, its largest likely value."""
        scale = np.where(self.column >= 0, 1.0, CONSTANT_SCALE) * self.unit
        return np.sqrt(np.sum(np.square(np.linalg.inv(self.transform) * scale), axis=1))

    @property
    def _sizes(self) -> np.ndarray:
        """Number n_g of coefficients of each column."""
        return np.bincount(self.column[self.column >= 0])


_LOGS = np.log(GRID)


def _log_prior() -> np.ndarray:
    """Return log p(τ) dτ of a half-normal distribution on `GRID`, which is evenly spaced in log
    τ.
    """
    return _LOGS - 0.5 * np.square(GRID)


def units_of_columns(layout: Layout, information: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (scale, centre) of each column of x, from the information matrix Σ w xxᵀ.

    The scale of a number is its standard deviation; the scale of a 0/1 column is 1. Without an
    intercept scales are root mean squares, and only their ratios are identified: their geometric
    mean is 1.
    """
    kinds = np.array([feature.kind for feature in layout])
    square = np.diagonal(information)
    constant = np.flatnonzero(kinds == "intercept")
    scale, centre = np.ones(len(layout)), np.zeros(len(layout))
    number = (kinds == "numeric") & np.isfinite(square) & (square > 0)
    if len(constant) and square[constant[0]] > 0:
        total = square[constant[0]]
        centre = information[constant[0]] / total
        variance = square / total - np.square(centre)
        # x² = x for zeros and ones; a column without variance has no scale.
        number &= np.abs(square / total - centre) > BINARY * square / total
        number &= variance > ROUNDED * np.square(centre)
        scale[number] = np.sqrt(variance[number])
        centre[constant] = 0.0
    elif np.any(number):
        size = np.sqrt(square[number])
        scale[number] = size / np.exp(np.mean(np.log(size)))
    return scale, centre


BINARY = 1e-9
ROUNDED = 1e-12


def scale_transform(
    layout: Layout, scale: np.ndarray, centre: np.ndarray, outputs: int = 1
) -> np.ndarray:
    """Return the matrix from θ to φ: coefficients per `scale` of a column, intercept at
    `centre`.
    """
    transform = np.diag(scale)
    for place, feature in enumerate(layout):
        if feature.kind == "intercept":
            transform[place] = centre
            transform[place, place] = 1.0
    return np.kron(np.eye(outputs), transform)


def learnt_scale_prior(
    mean: np.ndarray,
    layout: Layout,
    information: np.ndarray,
    unit: float,
    sd: np.ndarray | None = None,
) -> LearntScalePrior:
    """Return the prior for columns with this information matrix Σ w xxᵀ, by `scaled_prior`."""
    return scaled_prior(mean, layout, *units_of_columns(layout, information), unit, sd)


def scaled_prior(
    mean: np.ndarray,
    layout: Layout,
    scale: np.ndarray,
    centre: np.ndarray,
    unit: float,
    sd: np.ndarray | None = None,
) -> LearntScalePrior:
    """Return the prior for columns with this scale and centre.

    Parameters that belong to no column come after the coefficients and have the scale `sd`.
    """
    outputs, further = divmod(len(mean), len(layout))
    transform = scale_transform(layout, scale, centre, outputs)
    if further:
        assert sd is not None, "parameters without a column have a declared scale"
        whole = np.zeros((len(mean), len(mean)))
        whole[:-further, :-further] = transform
        whole[-further:, -further:] = np.diag(CONSTANT_SCALE * unit / sd[-further:])
        transform = whole
    return LearntScalePrior(mean, transform, column_numbers(layout, outputs, further), unit)
