"""Synthetic covariates of private scores: made-up rows with the released marginals and moment.

No record is in them. They give expectations over x: the information of θ, the slope and the
variance of scores. Counts and second moment are those of private scoring
(`tacit.methods.scoring`), of a matrix with one more column, a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tacit.data.schema.layout import INTERCEPT, Layout
from tacit.errors import DataError
from tacit.methods.scoring.marginals import MISSING, Marginals, marginals
from tacit.methods.scoring.party import KNOTS, Counted, counted
from tacit.methods.scoring.synthetic import _shrunk, _transport, independent, triangle
from tacit.models.outcomes import Covariates

ROWS = 1024
"""Number of synthetic records."""
CONSTANT_SCALE = 1e-3
"""Of the constant in z: it is there for the counts, and takes no share of the moment's norm."""
MOST_OUTSIDE, LEAST_SPREAD, MOST_AT_END = 0.05, 0.01, 0.25
"""Values outside of a column's range, its spread as a part of that range, and values that released
counts may show at an end that is not a declared bound."""
MATCHES = 8
"""Turns in which the correlations of u = z/|z| are matched."""


class Design(NamedTuple):
    """What is counted: the columns of the covariates, with one constant among them."""

    layout: Layout
    counted: Counted
    own: int
    """How many of the columns are the covariates' own; the constant follows them."""

    @property
    def numbers(self) -> int:
        """How many columns are not constant."""
        return sum(feature.kind != "intercept" for feature in self.layout)


def design_of(covariates: Covariates) -> Design:
    """From the public schema alone."""
    layout = covariates.layout
    own = len(layout)
    if not any(feature.kind == "intercept" for feature in layout):
        layout = (*layout, INTERCEPT)
    return Design(layout, counted(layout, None), own)


def described(design: Design, counts: np.ndarray, noise_sd: float, records: float) -> Marginals:
    """Marginals from noisy counts; `records` is 0 where their number is not public.

    A number that is shared by its two nearest knots, h apart, has a variance that is larger by
    h²/6 on average.
    """
    found = marginals(design.layout, design.counted, counts, noise_sd, records)
    what, variance = design.counted, found.variance.copy()
    for place, low, high in zip(what.numbers, what.low, what.high, strict=True):
        knot = (high - low) / (KNOTS - 1)
        finest = (0.04 * (high - low)) ** 2
        variance[place] = max(variance[place] - knot**2 / 6.0, finest)
    return found._replace(variance=variance)


def public_scale(design: Design, found: Marginals) -> np.ndarray:
    """The scale of the map z = scale∘(x − centre) of the second moment."""
    scale = 1.0 / np.sqrt(found.variance)
    constant = [feature.kind == "intercept" for feature in design.layout]
    return np.where(constant, CONSTANT_SCALE, scale)


def synthetic_rows(
    design: Design,
    found: Marginals,
    moment: np.ndarray | None = None,
    noise_sd: float = 0.0,
) -> np.ndarray:
    """Rows of the covariates' own columns; independent of each other without a moment."""
    scale = public_scale(design, found)
    z = independent(design.layout, design.counted, found, scale, ROWS)
    if moment is not None:
        z = _correlated(design, found, z, moment, noise_sd)
    return (found.centre + z / scale)[:, : design.own]


def check_ranges(design: Design, tables: Sequence[np.ndarray]) -> None:
    """Refuse plain records in units that the counts cannot describe.

    A private method takes no range from the data. Where none is declared, numbers are counted
    between −3 and 3. This check reads the records of a simulation, before anything is released:
    its error is the only thing that depends on them.
    """
    what = design.counted
    for place, low, high in zip(what.numbers, what.low, what.high, strict=True):
        column = np.concatenate([table[:, place] for table in tables])
        outside = float(np.mean((column < low) | (column > high)))
        spread = float(np.std(column))
        if outside <= MOST_OUTSIDE and (spread == 0.0 or spread >= LEAST_SPREAD * (high - low)):
            continue
        name = design.layout[place].source
        seen = (
            f"{outside:.0%} of its values are outside"
            if outside > MOST_OUTSIDE
            else f"its values vary by {spread:.2g} only"
        )
        raise DataError(
            f"column {name!r}: private scores count it in [{low:g}, {high:g}], but {seen}; declare "
            f"its public bounds, from_numpyro(…, columns={{{name.split('[')[0]!r}: (low, high)}}), "
            "or scale the column with public constants, e.g. (x − 60)/15"
        )


def counted_at_ends(design: Design, counts: np.ndarray, noise_sd: float) -> str | None:
    """Why released counts show a column in other units than its counts assume, if they do."""
    what = design.counted
    first = sum(len(group) for group in what.groups)
    hats = counts[first : first + KNOTS * len(what.numbers)].reshape(-1, KNOTS)
    for row, place in enumerate(what.numbers):
        feature, total = design.layout[place], max(float(np.sum(hats[row])), 1.0)
        for knot, end, bound in (
            (0, what.low[row], feature.low),
            (-1, what.high[row], feature.high),
        ):
            share = (hats[row, knot] - MISSING * noise_sd) / total
            if end != bound and share > MOST_AT_END:
                return (
                    f"about {hats[row, knot] / total:.0%} of the values of {feature.source!r} are "
                    f"counted at {end:g}, the end of the range that is assumed for the column; "
                    "declare its low and high"
                )
    return None


def _correlated(
    design: Design, found: Marginals, z: np.ndarray, moment: np.ndarray, noise_sd: float
) -> np.ndarray:
    """z with the correlations that the released moment of z/|z| shows beyond its noise."""
    free = np.array([feature.kind != "intercept" for feature in design.layout])
    between = np.triu(np.outer(free, free), 1)
    for group in design.counted.groups:
        between[np.ix_(group, group)] = False  # known: at most one level at a time
    spread = _spread(z)
    outer = np.outer(spread, spread)
    seen = (triangle(moment, len(free)) / found.records / outer)[between]
    noise = (np.square(noise_sd / found.records) / 2.0 / np.square(outer))[between]
    wanted = np.zeros_like(outer)
    wanted[between] = _shrunk(seen, noise)[0]
    wanted = wanted + wanted.T
    sd = np.sqrt(np.maximum(np.mean(z * z, axis=0), 1e-12))[free]
    standard = z[:, free] / sd
    before = standard.T @ standard / len(z)
    among = (between | between.T)[np.ix_(free, free)]
    known = np.where(among, 0.0, before)
    change, moved = wanted[np.ix_(free, free)], z.copy()
    for _ in range(MATCHES):
        moved[:, free] = standard @ _transport(before, known + change) * sd
        spread = _spread(moved)
        unit = _unit(moved)
        have = (unit.T @ unit / len(z) / np.outer(spread, spread))[np.ix_(free, free)]
        gap = np.where(among, wanted[np.ix_(free, free)] - have, 0.0)
        change = np.where(among, np.clip(change + gap, -0.98, 0.98), 0.0)
    return moved


def _unit(z: np.ndarray) -> np.ndarray:
    length = np.sqrt(np.sum(z * z, axis=1, keepdims=True))
    return z / np.where(length > 0, length, 1.0)


def _spread(z: np.ndarray) -> np.ndarray:
    """Root mean squares of the columns of u."""
    return np.sqrt(np.maximum(np.mean(np.square(_unit(z)), axis=0), 1e-12))
