"""Rows of tables and figures of a posterior, on the user's scale."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tacit.results.posterior import Posterior

NORMAL_95 = 1.959963984540054
"""Half-width, in standard deviations, of a normal's central 95 % interval."""


MOST_DECIMALS = 6
LARGE = 1e7
"""Numbers with more decimals or at least this large are shown with an exponent."""


def to_precision(value: float | None, sd: float) -> str:
    """Format a number with the precision of its standard deviation.

    The number of decimals shows three significant digits of `sd`.

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
    """True if it can have either sign, so that excluding 0 is meaningful."""

    @property
    def clear(self) -> bool:
        """True if the interval excludes 0 and the quantity can have either sign."""
        return self.real and (self.low > 0 or self.high < 0)

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """Mean, sd and interval as text, to the precision of the sd."""
        mean, sd, low, high = (
            to_precision(value, self.sd) for value in (self.mean, self.sd, self.low, self.high)
        )
        return mean, sd, low, high


def site_summary(posterior: Posterior, seed: int) -> dict[str, dict[str, Any]]:
    """Mean, sd and central 95 % interval of each element of the model's quantities.

    `real` is true if a quantity is an untransformed coordinate of θ, which can have either sign,
    unlike a scale or a probability. Empty for models whose θ needs no transformation.
    """
    summary = {}
    if not posterior.model.listed:  # avoid draws of half a million coordinates
        return summary
    sites = posterior.draws(seed=seed)
    theta = posterior.sample(seed=seed) if sites else np.zeros((0, 0))
    place = {name: index for index, name in enumerate(posterior.names)}
    for name, draws in sites.items():
        for index in np.ndindex(draws.shape[1:]):
            column = draws[(slice(None), *index)]
            label = f"{name}[{','.join(map(str, index))}]" if index else name
            low, high = np.quantile(column, [0.025, 0.975])
            summary[label] = {
                "mean": float(column.mean()),
                "sd": float(column.std()),
                "low": float(low),
                "high": float(high),
                "real": label in place and bool(np.allclose(column, theta[:, place[label]])),
            }
    return summary


def shown_rows(posterior: Posterior) -> list[Shown]:
    """Rows of tables and figures: a model's sites, or its coefficients."""
    sites = site_summary(posterior, seed=0)
    if sites:
        return [Shown(name, **site) for name, site in sites.items()]
    low, high = posterior.interval()
    return [
        Shown(name, float(m), float(s), float(a), float(b))
        for name, m, s, a, b in zip(
            posterior.names, posterior.mean, posterior.sd, low, high, strict=True
        )
    ]
