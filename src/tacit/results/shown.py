"""Rows of tables and figures of a posterior, on the user's scale."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.expfam import Gaussian
from tacit.expfam.quadrature import standardised
from tacit.expfam.rooted import RootedGaussian
from tacit.models import Model
from tacit.results.posterior import Posterior
from tacit.results.summary import PartyResult, Result, Site

NORMAL_95 = 1.959963984540054
"""Half-width, in standard deviations, of a normal's central 95 % interval."""


SUMMARY_DRAWS = 4000
MOST_DECIMALS = 6
LARGE = 1e7
"""Numbers this large, or with too many decimals, are shown with an exponent."""


def to_precision(value: float | None, sd: float) -> str:
    """Format a number with the precision of its standard deviation.

    The number of decimals is chosen such that `sd` would have three significant digits.

    >>> to_precision(0.25, 0.0361), to_precision(6.9e-06, 3.6e-06), to_precision(1234.5, 250.0)
    ('0.2500', '6.90e-06', '1234')
    """
    if value is None:
        return "–"
    if not math.isfinite(value) or not 0 < sd < math.inf:
        return f"{value:.4g}"
    decimals = 2 - math.floor(math.log10(sd))
    if decimals <= MOST_DECIMALS and abs(value) < LARGE:
        return f"{value:.{max(0, decimals)}f}"
    if round(value, decimals) == 0:
        return "0"
    return f"{value:.{max(0, math.floor(math.log10(abs(value))) + decimals)}e}"


class Shown(NamedTuple):
    """A quantity with its central 95 % interval."""

    name: str
    mean: float
    sd: float
    low: float
    high: float
    real: bool = True
    """True if the quantity can be positive or negative, so that excluding 0 is meaningful."""

    @property
    def clear(self) -> bool:
        """True if the interval excludes 0 and the quantity can have either sign."""
        return self.real and (self.low > 0 or self.high < 0)

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """Return mean, sd and interval as text, to the precision of the sd."""
        mean, sd, low, high = (
            to_precision(value, self.sd) for value in (self.mean, self.sd, self.low, self.high)
        )
        return mean, sd, low, high


def site_summary(posterior: Posterior, seed: int, level: float = 0.95) -> dict[str, Site]:
    """Return the posterior mean, sd and central interval of the model's quantities, on their
    original scale.

    A model may compute named quantities, such as a scale or a probability, from its parameter
    vector θ. The result has one entry for each element of each quantity. The interval contains the
    probability `level`. All numbers are computed from draws of the posterior with the seed `seed`.

    The field `real` of an entry is true if the element is equal to a coordinate of θ. Such an
    element can have either sign, unlike a scale or a probability. The result is empty if the model
    does not transform θ, or if the model has too many parameters to list.
    """
    summary = {}
    if not posterior.model.listed:  # avoid draws of half a million coordinates
        return summary
    if type(posterior.model).constrain is Model.constrain:
        return summary
    theta, weights = representative_draws(posterior, seed)
    sites = {name: np.asarray(value) for name, value in posterior.model.constrain(theta).items()}
    place = {name: index for index, name in enumerate(posterior.names)}
    for name, draws in sites.items():
        for index in np.ndindex(draws.shape[1:]):
            column = draws[(slice(None), *index)]
            label = f"{name}[{','.join(map(str, index))}]" if index else name
            low, high = weighted_quantiles(column, weights, (0.5 - level / 2, 0.5 + level / 2))
            mean = float(weights @ column)
            summary[label] = Site(
                mean=mean,
                sd=math.sqrt(float(weights @ np.square(column - mean))),
                low=low,
                high=high,
                real=label in place and bool(np.allclose(column, theta[:, place[label]])),
            )
    return summary


def representative_draws(posterior: Posterior, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return draws of θ and their weights, for tables. For a normal posterior, the weighted draws
    have exactly its mean and covariance.
    """
    family, natural = posterior.family, posterior.natural
    if isinstance(family, RootedGaussian):
        weighted = family.draws(natural)
        if weighted is not None:
            return weighted
    if not isinstance(family, Gaussian):
        draws = posterior.sample(SUMMARY_DRAWS, seed=seed)
        return draws, np.full(len(draws), 1.0 / len(draws))
    free = family.free(natural)
    noise = np.random.default_rng(seed).standard_normal((SUMMARY_DRAWS // 2, family.dimension))
    noise, weights = standardised(noise)
    return np.asarray(family.free_draw(free, noise)), weights


def weighted_quantiles(
    values: np.ndarray, weights: np.ndarray, levels: tuple[float, ...]
) -> list[float]:
    """Compute quantiles of weighted draws, with linear interpolation.

    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.full(3, 1 / 3), (0.5,))
    [2.0]
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) - 0.5 * weights[order]
    return [float(np.interp(level, reached, values[order])) for level in levels]


def shown_rows(posterior: Posterior) -> list[Shown]:
    """Make the rows of tables and figures: one for each quantity that the model computes from θ
    (`site_summary`). If there are none, make one row for each coordinate of θ.
    """
    sites = site_summary(posterior, seed=0)
    if sites:
        return site_rows(sites)
    low, high = posterior.interval()
    return [
        Shown(name, float(m), float(s), float(a), float(b))
        for name, m, s, a, b in zip(
            posterior.names, posterior.mean, posterior.sd, low, high, strict=True
        )
    ]


def site_rows(sites: dict[str, Site]) -> list[Shown]:
    """Make one row for each site, a quantity that the model computes from θ (`site_summary`)."""
    return [
        Shown(name, site.mean, site.sd, site.low, site.high, site.real)
        for name, site in sites.items()
    ]


def result_rows(result: Result | PartyResult) -> list[Shown]:
    """Make the rows of a stored result: one for each of its sites (`site_summary`) or, if it has
    none, one for each coordinate of θ.
    """
    if isinstance(result, Result) and result.sites:
        return site_rows(result.sites)
    table = result.posterior
    columns = zip(table.names, table.mean, table.sd, strict=True)
    return [Shown(n, m, s, m - NORMAL_95 * s, m + NORMAL_95 * s) for n, m, s in columns]
