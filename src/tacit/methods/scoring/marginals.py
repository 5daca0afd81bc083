"""Marginals from noisy counts, and the public map z = scale∘(x − centre) based on them.

**Why the scale matters.** A clipped score has the same noise in every coordinate of z. Let v =
E[z²] be the variance of a coordinate of z, f the variance of its column of x, and σ the sd of the
noise. The information about the coefficient of the column is proportional to f v/σ².

**Optimal scale.** Let τ be the prior sd of a coefficient, n the number of records, and κ the
information of a clipped record about its predictor. The expected loss Σ f/(1/τ² + n²κ²f v/σ²), with
Σ v = 1, is minimised by

    v = max(0, c − b/f),    b = σ²/(nκτ)²,

where the constant c makes the sum 1. Columns that are too rare to be detected in the noise get v =
0.

**Compromise.** The norm of z must not vary too much between records, because the clip shortens the
longest z most. The scale is therefore √(v/√f) instead of √(v/f).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tacit.data.schema.layout import Layout
from tacit.methods.scoring.party import KNOTS, Counted

INFORMATION = 0.15
"""Approximate information κ of a clipped record about its linear predictor η."""
DIRECTIONS, FEWEST_DIRECTIONS = 24, 8
"""Largest and smallest number of directions in which z is shortened (R in `flattened`)."""
MISSING = 3.0
"""A deviation of up to this many standard deviations of the noise is attributed to the noise."""
LEAST_SHARE = 0.02
"""Smallest v of a coordinate, as a share of c (module docstring). No coordinate is dropped."""


class Marginals(NamedTuple):
    """Estimated mean and variance of each column, and histograms of numeric columns over knots."""

    records: float
    centre: np.ndarray
    variance: np.ndarray
    knots: np.ndarray
    histograms: np.ndarray
    frequencies: tuple[np.ndarray, ...]
    outcome: Any
    """Mean of y, or the frequencies of its K levels; None if y is not counted."""
    centre_error: np.ndarray
    """Variance of the error in each centre due to noise."""
    variance_error: np.ndarray
    """Variance of the error in each variance due to noise."""


def simplex(values: np.ndarray) -> np.ndarray:
    """Return the nearest non-negative vector with sum 1.

    >>> simplex(np.array([0.9, 0.3, -0.1]))
    array([0.8, 0.2, 0. ])
    """
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(falling > excess)[-1]
    return np.maximum(values - excess[last], 0.0)


def marginals(
    layout: Layout, what: Counted, counts: np.ndarray, noise_sd: float, records: float
) -> Marginals:
    """Return the marginal distributions of the columns, estimated from noisy counts.

    `noise_sd` is the sd of the noise in one count. `records` is the number of records, or 0 if it
    is not public.
    """
    outcome, first = None, len(counts) - what.outcomes
    counts, outcomes = counts[:first], counts[first:]
    split = np.cumsum([len(group) for group in what.groups])
    levels, hats = (
        counts[: split[-1] if len(split) else 0],
        counts[split[-1] if len(split) else 0 :],
    )
    hats = hats.reshape(len(what.numbers), KNOTS)
    if not records:
        columns = [*np.split(levels, split[:-1]), *hats] if len(split) else [*hats]
        sums = [column.sum() for column in columns or [outcomes]]
        records = max(noise_sd, 1.0, float(np.mean(sums)))  # `max` skips a NaN here
    # If a count is zero, the true count may still be about a quarter of the noise's sd.
    least = min(0.1, max(0.5, 0.25 * noise_sd) / records)
    if what.largest is not None:
        share = float(np.clip(simplex(outcomes / records)[1], least, 1.0 - least))
        outcome = what.smallest + (what.largest - what.smallest) * share
    if what.levels:
        shares = np.maximum(simplex(outcomes / records), least)
        outcome = shares / np.sum(shares)
    moments = _Moments.zero(len(layout))
    noise = _Noise(noise_sd, records, least)
    frequencies = [
        _count_levels(moments, group, count, noise)
        for group, count in zip(what.groups, np.split(levels, split[:-1]), strict=False)
    ]
    knots = np.linspace(what.low, what.high, KNOTS, axis=-1).reshape(len(what.numbers), KNOTS)
    histograms = np.zeros_like(knots)
    for row, place in enumerate(what.numbers):
        finest = (0.04 * (what.high[row] - what.low[row])) ** 2  # smallest variance
        histograms[row] = _count_numbers(moments, place, hats[row], knots[row], finest, noise)
    centre, variance = moments.centre, moments.variance
    if not any(feature.kind == "intercept" for feature in layout):
        variance, centre = variance + centre**2, np.zeros(len(layout))  # no intercept absorbs it
    return Marginals(
        records, centre, variance, knots, histograms, tuple(frequencies), outcome,
        moments.centre_error, moments.variance_error,
    )  # fmt: skip


class _Noise(NamedTuple):
    """The noise in the counts.

    `sd` is the sd of the noise in one count, and `least` is the smallest estimate of a frequency.
    """

    sd: float
    records: float
    least: float

    @property
    def share_variance(self) -> float:
        """The variance of the noise in a share: a noisy count divided by the number of records."""
        return (self.sd / self.records) ** 2


class _Moments(NamedTuple):
    """Mean and variance of each column, and the variances of their errors.

    `_count_levels` and `_count_numbers` write to these arrays.
    """

    centre: np.ndarray
    variance: np.ndarray
    centre_error: np.ndarray
    variance_error: np.ndarray

    @classmethod
    def zero(cls, columns: int) -> _Moments:
        return cls(np.zeros(columns), np.ones(columns), *np.zeros((2, columns)))


def _count_levels(moments: _Moments, group: Any, count: np.ndarray, noise: _Noise) -> np.ndarray:
    """Write the estimates for the indicator columns of one category to `moments`, and return the
    frequencies of its levels.
    """
    share = np.maximum(count / noise.records, 0.0)
    # The shares add up to 1 unless more records lack a level than the noise explains. Otherwise
    # noise that all levels have in common would be taken for information.
    if count.sum() + MISSING * noise.sd * np.sqrt(len(count)) > noise.records:
        share = simplex(share)
    share = np.clip(share, noise.least, 1.0 - noise.least)
    variance = share * (1.0 - share)
    moments.centre[group], moments.variance[group] = share, variance
    moments.centre_error[group] = np.minimum(noise.share_variance, variance)
    moments.variance_error[group] = np.square(1.0 - 2.0 * share) * np.minimum(
        noise.share_variance, share**2
    )
    return share


def _count_numbers(
    moments: _Moments,
    place: int,
    count: np.ndarray,
    knots: np.ndarray,
    finest: float,
    noise: _Noise,
) -> np.ndarray:
    """Write the estimates for one numeric column to `moments`, and return its histogram over the
    knots.
    """
    share = simplex(count / noise.records)
    mean = share @ knots
    # A number is shared by its two nearest knots, h apart: that adds h²/6 on average.
    sharing = (knots[1] - knots[0]) ** 2 / 6.0
    variance = max(share @ (knots - mean) ** 2 - sharing, finest)
    square = np.square(knots - mean)[share > 0]
    moments.centre[place], moments.variance[place] = mean, variance
    moments.centre_error[place] = min(noise.share_variance * np.sum(square), variance)
    moments.variance_error[place] = noise.share_variance * np.sum(np.square(square - variance))
    return share


def scales(found: Marginals, prior_sd: np.ndarray, score_sd: float) -> np.ndarray:
    """Return the scale of each column in z = scale∘(x − centre), such that E‖z‖² = 1.

    A column gets a small scale if noise would hide all information about its coefficient.
    `score_sd` is the sd of the noise in the mean of the scores of all rounds.
    """
    hidden = (score_sd / (found.records * INFORMATION * prior_sd)) ** 2 / found.variance
    rising = np.sort(hidden)
    levels = (1.0 + np.cumsum(rising)) / np.arange(1, len(rising) + 1)
    level = levels[np.flatnonzero(levels > rising)[-1]]
    share = np.maximum(level - hidden, LEAST_SHARE * level)
    scale = np.sqrt(share / np.sqrt(found.variance))
    return scale / np.sqrt(np.sum(np.square(scale) * found.variance))


def apart(what: Counted, found: Marginals, scale: np.ndarray) -> np.ndarray:
    """Return the matrix that subtracts from coefficients the part that all levels of a category
    share.

    The coefficients are those of z = scale∘(x − centre). If every record has one of the levels, the
    common part does not change the predictor of any record.
    """
    matrix = np.eye(len(scale))
    for group, share in zip(what.groups, found.frequencies, strict=True):
        if share.sum() > 1.0 - 1e-9:
            common = share * scale[group] / share.sum()
            matrix[np.ix_(group, group)] -= np.outer(1.0 / scale[group], common)
    return matrix


def direction_rows(columns: int) -> int:
    """Return the number of rows of the matrix that `flattened` returns, for a z with this many
    columns.
    """
    return max(1, min(DIRECTIONS, columns // 2))


def flattened(z: np.ndarray, free: np.ndarray, noise: float) -> np.ndarray:
    """Return the matrix W of the map z′ = (I − WᵀW) z, which shortens the directions in which z
    varies most.

    The noise is the same in every direction of z. The clip is a bound on ‖z‖, which for correlated
    columns depends mostly on a few directions. Shortening these directions reduces the relative
    noise in all others.

    Let vₖ and lₖ be the eigenvectors and eigenvalues of the second moment of z, in decreasing order
    of lₖ. For the first R of them, row k of W is √(1 − gₖ)·vₖ with gₖ = √(l/lₖ), where l is
    eigenvalue number R + 1. The map z′ then has the second moment l in each of these directions.
    The constant is not mixed with other columns.

    R is the number of eigenvalues above `noise`, which is the largest eigenvalue of noise alone. R
    is at least `FEWEST_DIRECTIONS` and at most `DIRECTIONS`.
    """
    moment = z.T @ z / len(z)
    moment[np.ix_(free, ~free)] = moment[np.ix_(~free, free)] = 0.0
    values, vectors = np.linalg.eigh(moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    directions = np.zeros((direction_rows(z.shape[1]), z.shape[1]))
    seen = int(np.count_nonzero(values > noise))
    most = min(max(seen, FEWEST_DIRECTIONS), DIRECTIONS, z.shape[1] // 2)
    floor = max(values[most], 1e-6 * values[0])
    shorter = np.sqrt(floor / np.maximum(values[:most], floor))
    directions[:most] = np.sqrt(1.0 - shorter)[:, None] * vectors[:, :most].T
    return directions
