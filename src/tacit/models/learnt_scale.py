"""The default prior of regressions, whose scales are learned together with the coefficients.

It is used if the user declares no `prior_sd`. Let φ be the coefficients in the units of their
columns: per standard deviation of a numeric column, and per level of a categorical column. Let u be
the unit of the predictor: 1 on a log or logit scale, and `noise_sd` for linear regression. The
prior is

    φ_g ~ Student-t(ν = 4, scale τ) in every column g, for all its levels and outputs together,
    τ ~ half-normal(u), at least u/64.

A Student-t is a scale mixture of normals, so each column has a separate scale, and all columns
together determine τ. These scales are parameters of the model and are integrated out. They are not
estimates that are treated as known. The intercept, which is the predictor at the mean of the
columns, has a Student-t prior of scale 10 u. The posterior does not depend on the units of the
columns.

Let column g have n_g coefficients, and R_g be the sum of their squares φ². The log-density depends
only on these sums:

    h(R) = log ∫ p(τ) Π_g τ^(−n_g) (1 + R_g/ντ²)^(−(ν + n_g)/2) dτ.

h is convex in R, and therefore E_q[log p] ≥ h(E_q[R]). For a normal q, this bound has the same
effect as a normal prior with the precisions c_g = −2 ∂h/∂R_g. They are averages over τ given R: c_g
= E[(ν + n_g)/(ντ² + R_g)].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.arrays import Array, namespace
from tacit.data.schema.layout import Layout

FREEDOM = 4.0
"""Degrees of freedom ν. The larger ν is, the closer the scales of the columns are to the common
scale. For ν > 2 the variance is finite.
"""
GRID = np.exp2(np.linspace(-6.0, 3.0, 121))
"""Values of τ/u at which the integrand in h is evaluated; the integral is computed as a sum."""
CONSTANT_SCALE = 10.0
"""Scale of the intercept's prior, as a multiple of the unit u of the predictor."""
CONSTANT = -1
"""Value of `column` for the intercept."""


def column_numbers(layout: Layout, outputs: int = 1, further: int = 0) -> np.ndarray:
    """Return, for each parameter, the index of the data column to which it belongs.

    All levels of a categorical column have the same index. The parameters are `outputs` blocks of
    coefficients, each in the order of `layout`, followed by `further` other parameters. Intercepts
    and these other parameters belong to no column and have the index −1.
    """
    sources = list(dict.fromkeys(one.source for one in layout if one.kind != "intercept"))
    column = [CONSTANT if f.kind == "intercept" else sources.index(f.source) for f in layout]
    numbers = [*column * outputs, *[CONSTANT] * further]
    return np.array(numbers, dtype=np.int64)


class PriorTerm(NamedTuple):
    """A lower bound of E_q[log p(θ)], up to a constant, and the normal prior that has the same
    effect on q.

    `value` is the bound, and `precision` contains the precision of each scaled coefficient in that
    normal prior.
    """

    value: float
    precision: np.ndarray


class LearntScalePrior(NamedTuple):
    """The prior with learned scales, as a density of the scaled coefficients φ = transform @ (θ −
    mean).
    """

    mean: np.ndarray
    transform: np.ndarray
    column: np.ndarray
    """Column of each coefficient (`column_numbers`)."""
    unit: float = 1.0
    """The unit u of the predictor."""

    def term(self, mean: np.ndarray, root: np.ndarray) -> PriorTerm:
        """Return a lower bound of E_q[log p(θ)] for q = N(mean, root·rootᵀ), and the precisions of
        the normal prior that has the same effect on q.
        """
        inner = self.transform @ root
        square = np.square(self.transform @ (mean - self.mean)) + np.sum(inner * inner, axis=1)
        return self.term_of(square)

    def term_of(self, square: np.ndarray) -> PriorTerm:
        """Return the same as `term`, given `square`, the expected square of each scaled coefficient
        under q.
        """
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
        """Return the variance of each coordinate of θ without information from records, given the
        learned scales.

        It is compared with the posterior variance to find coordinates about which the records
        contain little information. `mean` and `covariance` are those of the posterior; a vector
        `covariance` contains the variances of independent coordinates. If `exact` is True, the
        posterior is exact, and the variance is that of a Student-t distribution whose scale is
        averaged over its posterior. Otherwise the posterior is a normal q, and the variance is that
        of the equivalent normal prior.
        """
        # The variance of a Student-t with ν degrees of freedom and scale τ is ν/(ν − 2)·E[τ²]. For
        # a normal q, E[τ²] would be too large if τ is uncertain: records without information would
        # seem to be informative.
        free = self.column >= 0
        square = np.square(self.transform @ (mean - self.mean)) + self._variances(covariance)
        variance = 1.0 / self.term_of(square).precision
        if exact:
            sums = np.bincount(self.column[free], square[free], len(self._sizes)) / self.unit**2
            weights = self.scale_weights(sums)
            common = float(weights @ np.square(GRID) / np.sum(weights))
            scale = np.where(free, common, CONSTANT_SCALE**2) * self.unit**2
            variance = FREEDOM / (FREEDOM - 2.0) * scale
        return self._square_of_inverse(variance)

    def _variances(self, covariance: np.ndarray) -> np.ndarray:
        """Return the variance of each coordinate of φ, given the covariance matrix of θ or a vector
        of variances.
        """
        dense, independent = self._dense_rows, covariance.ndim == 1
        own = covariance if independent else np.diagonal(covariance)
        found = np.square(np.diagonal(self.transform)) * own
        rows = self.transform[dense]
        moved = rows * covariance if independent else rows @ covariance
        found[dense] = np.sum(moved * rows, axis=1)
        return found

    def _square_of_inverse(self, variance: np.ndarray) -> np.ndarray:
        """Return the variance of each coordinate of θ, given the variances of the coordinates of φ,
        which are independent.
        """
        dense = self._dense_rows
        # φ_j = s_j θ_j outside of the dense rows, in which φ = A θ_dense + B θ_other.
        others = np.ones(len(variance), dtype=bool)
        others[dense] = False
        scale = np.diagonal(self.transform)[others]
        found = np.empty(len(variance))
        found[others] = variance[others] / np.square(scale)
        inner = np.linalg.inv(self.transform[np.ix_(dense, dense)])
        reach = inner @ (self.transform[dense][:, others] / scale)
        found[dense] = np.square(inner) @ variance[dense] + np.square(reach) @ variance[others]
        return found

    @property
    def _dense_rows(self) -> np.ndarray:
        """Indices of the rows of `transform` with entries off the diagonal, which belong to
        intercepts.
        """
        outside = self.transform != 0.0
        np.fill_diagonal(outside, False)
        return np.flatnonzero(np.any(outside, axis=1))

    def scale_weights(self, sums: np.ndarray) -> np.ndarray:
        """Return the posterior density of the common scale τ at the values τ/`unit` in `GRID`, up
        to a factor.

        `sums` contains, for each column, the sum of squares of its scaled coefficients divided by
        `unit`².
        """
        each = np.square(GRID) * FREEDOM + sums[:, None]
        degrees = FREEDOM + self._sizes
        fits = _log_prior() - 0.5 * degrees @ np.log(each) + FREEDOM * len(sums) * _LOGS
        return np.exp(fits - np.max(fits))

    def log_density(self, theta: Array) -> Array:
        """Return log p(θ) up to a constant, for a vector θ or for each row of a matrix θ. The
        result is a NumPy or JAX array, like θ.
        """
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

    def log_density_slope(self, theta: np.ndarray) -> np.ndarray:
        """Return the gradient of `log_density` for each row of a matrix θ."""
        middle = (theta - self.mean) @ self.transform.T
        squares, free, size = np.square(middle), self.column >= 0, self._sizes
        members = (self.column[:, None] == np.arange(len(size))).astype(np.float64)
        sums = squares @ members / self.unit**2
        degrees = FREEDOM + size
        rest = _log_prior() + FREEDOM * len(size) * _LOGS
        each = FREEDOM * np.square(GRID)[:, None, None] + sums
        fits = rest[:, None] - 0.5 * np.log(each) @ degrees
        weights = np.exp(fits - np.max(fits, axis=0))
        weights /= np.sum(weights, axis=0)
        pull = np.einsum("gn,gnc->nc", weights, degrees / each) / self.unit**2
        inner = -(pull @ members.T) * middle
        if not np.all(free):
            wide = FREEDOM * (CONSTANT_SCALE * self.unit) ** 2
            beyond = squares @ (1.0 * ~free)
            factor = (FREEDOM + np.sum(~free)) / (wide + beyond)
            inner = np.where(free, inner, -factor[:, None] * middle)
        return inner @ self.transform

    @property
    def widest_sd(self) -> np.ndarray:
        """Prior scale of each coordinate of θ if the learned common scale is `unit`, which is large
        under its half-normal prior.
        """
        scale = np.where(self.column >= 0, 1.0, CONSTANT_SCALE) * self.unit
        return np.sqrt(self._square_of_inverse(np.square(scale)))

    @property
    def _sizes(self) -> np.ndarray:
        return np.bincount(self.column[self.column >= 0])


_LOGS = np.log(GRID)


def _log_prior() -> np.ndarray:
    # log p(τ) + log τ for the half-normal prior on `GRID`; log τ accounts for the even spacing in
    # log τ.
    return _LOGS - 0.5 * np.square(GRID)


def units_of_columns(layout: Layout, information: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale and the centre of each column of x, computed from the matrix Σ w xxᵀ.

    The scale of a numeric column is its standard deviation, and that of a 0/1 column is 1. The
    centre is the mean of the column. Without an intercept, all centres are 0, and the scales of
    numeric columns are proportional to their root mean squares, with geometric mean 1.
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
    """Return the matrix that converts coefficients θ to scaled coefficients φ.

    Each coefficient is multiplied by the `scale` of its column. The intercept is replaced by the
    predictor at x = `centre`. There is one such block of coefficients for each output.
    """
    transform = np.diag(scale)
    for place, feature in enumerate(layout):
        if feature.kind == "intercept":
            transform[place] = centre
            transform[place, place] = 1.0
    return transform if outputs == 1 else np.kron(np.eye(outputs), transform)


def learnt_scale_prior(
    mean: np.ndarray,
    layout: Layout,
    information: np.ndarray,
    unit: float,
    sd: np.ndarray | None = None,
) -> LearntScalePrior:
    """Return the prior for columns with the matrix `information` = Σ w xxᵀ, from which their scales
    are computed.

    The other arguments are those of `scaled_prior`.
    """
    return scaled_prior(mean, layout, *units_of_columns(layout, information), unit, sd)


def scaled_prior(
    mean: np.ndarray,
    layout: Layout,
    scale: np.ndarray,
    centre: np.ndarray,
    unit: float,
    sd: np.ndarray | None = None,
) -> LearntScalePrior:
    """Return the prior for columns with the given scales and centres.

    `mean` is the prior mean of θ, and `unit` is the typical size of the predictor. θ may contain
    further parameters after the coefficients. Their prior scales are the last entries of `sd`.
    """
    outputs, further = divmod(len(mean), len(layout))
    transform = scale_transform(layout, scale, centre, outputs)
    if further:
        assert sd is not None, "sd is needed for parameters that belong to no column"
        whole = np.zeros((len(mean), len(mean)))
        whole[:-further, :-further] = transform
        whole[-further:, -further:] = np.diag(CONSTANT_SCALE * unit / sd[-further:])
        transform = whole
    return LearntScalePrior(mean, transform, column_numbers(layout, outputs, further), unit)
