"""Monte-Carlo standard errors of means and standard deviations that are computed from weighted
draws.

Let wᵢ be normalised importance weights, fᵢ the values of a quantity at the draws, m its weighted
mean and v its weighted variance. By the delta method, the error of m is about Σ wᵢ(fᵢ − m) and that
of v about Σ wᵢ((fᵢ − m)² − v), both with expectation 0. Draws are made in pairs that mirror each
other, so that the variance of a sum is the sum of squares over pairs.

Draws of q also have the exact mean and covariance of q. Averages of linear functions, of squares
and of products of coordinates have no error then, and the part of each term that such functions
explain is left out (as for control variates).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tacit.models import Model

MOST_MEAN_ERROR = 0.033
"""Largest accepted standard error of a mean, in posterior sds: three of them are 0.1 sd."""
MOST_SD_ERROR = 0.04
"""Largest standard error of a standard deviation, as a share of it, without more draws."""
CAUTIONED_SD_ERROR = 0.05
"""A larger relative standard error of a standard deviation gives a caution: two of them are 10 %.

It is above `MOST_SD_ERROR`, because more draws hardly reduce this error if a marginal has long
tails, as with the default prior of regressions and few records.
"""
EXPLAINED_SHARE = 8
"""Exact averages are used if there are at least this many draws per explaining function."""
Sites = Callable[[np.ndarray], np.ndarray]
"""Maps draws of θ, one per row, to the quantities that users see, one row per draw."""


class Precision(NamedTuple):
    """Standard errors of the quantities with the largest errors."""

    mean_error: float
    """Largest standard error of a mean, in posterior sds."""
    sd_error: float
    """Largest relative standard error of a standard deviation."""

    @property
    def enough(self) -> bool:
        """True if both errors are within the limits."""
        return self.mean_error <= MOST_MEAN_ERROR and self.sd_error <= MOST_SD_ERROR

    @property
    def worst(self) -> float:
        """The larger of the two errors, relative to its limit."""
        return max(self.mean_error / MOST_MEAN_ERROR, self.sd_error / MOST_SD_ERROR)


EXACT = Precision(0.0, 0.0)
"""Precision of a normal q, of which any number of draws can be made."""


def shown_sites(model: Model) -> Sites | None:
    """Return a function that maps draws of θ to the quantities of the model that users see, such as
    the sites of a NumPyro model; None if these are θ itself.
    """
    if type(model).constrain is Model.constrain:
        return None

    def sites(theta: np.ndarray) -> np.ndarray:
        values = model.constrain(theta).values()
        return np.concatenate([np.reshape(one, (len(theta), -1)) for one in values], axis=1)

    return sites


def precision_of(
    theta: np.ndarray,
    log_weights: np.ndarray,
    sites: Sites | None = None,
    exact: np.ndarray | None = None,
) -> Precision:
    """Return the largest standard error of a mean, and the largest one of a standard deviation.

    Both are the largest over the coordinates of θ and, if `sites` is given, over the quantities
    that users see.

    Parameters
    ----------
    theta
        Draws, one per row. The second half mirrors the first half.
    log_weights
        Normalised log-weights.
    sites
        Function that computes the shown quantities.
    exact
        Standard normal values from which the draws were computed, if their mean is exactly 0 and
        their second moment exactly the identity.
    """
    values = theta
    if sites is not None:
        shown = np.asarray(sites(theta), np.float64)
        values = np.concatenate([theta, shown], axis=1)
    weights = np.exp(log_weights)
    used = weights > 0
    finite = np.all(np.isfinite(values[used]), axis=0)
    values = np.where(used[:, None], values[:, finite], 0.0)
    centre = weights @ values
    apart = values - centre
    variance = weights @ np.square(apart)
    size = np.maximum(np.max(np.abs(values), axis=0), 1e-300)
    moving = np.sqrt(variance) > 1e-9 * size  # constant entries, such as those of a Cholesky factor
    apart, variance = apart[:, moving], variance[moving]
    if not len(variance):
        return EXACT
    scaled = apart / np.sqrt(variance)
    first = weights[:, None] * scaled
    second = weights[:, None] * (np.square(scaled) - 1.0)
    if exact is not None and len(exact) >= EXPLAINED_SHARE * (2 * exact.shape[1] + 1):
        first, second = _unexplained(exact, scaled, first, second)
    broken = 0.0 if bool(np.all(finite)) else np.inf
    return Precision(
        max(broken, float(np.max(_standard_error(first)))),
        max(broken, 0.5 * float(np.max(_standard_error(second)))),
    )


def _standard_error(terms: np.ndarray) -> np.ndarray:
    half = len(terms) // 2
    return np.sqrt(np.sum(np.square(terms[:half] + terms[half:]), axis=0))


def _unexplained(
    exact: np.ndarray, scaled: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return both kinds of terms without the parts that functions with exact averages explain.

    These functions are the coordinates of `exact`, their squares and, for each quantity, the square
    of the linear function of `exact` that is nearest to it.
    """
    basis = np.linalg.qr(np.column_stack([np.ones(len(exact)), exact, np.square(exact)]))[0]
    slopes = exact.T @ scaled / len(exact)
    square = np.square(exact @ slopes)
    square -= basis @ (basis.T @ square)
    length = np.sqrt(np.sum(np.square(square), axis=0))
    square /= np.where(length > 1e-9, length, np.inf)
    found = []
    for terms in (first, second):
        rest = terms - basis @ (basis.T @ terms)
        found.append(rest - square * np.sum(square * rest, axis=0))
    return found[0], found[1]
