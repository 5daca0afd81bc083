"""Find where a number lies within its declared bounds, from noisy counts over the fine grid.

Public bounds may be far wider than the values. Twelve knots over wide bounds describe neither their
location nor their spread, and the noise in empty cells hides it. The fine grid shows the part of
the range in which the values are, and gives counts over a dozen knots within that part.

Let f be the counts of the fine cells as shares, with noise of sd s. If all values were uniform in a
window of w of K cells, the log-likelihood of the window would be, up to a constant,

    (2 f(window) − 1)/(2 w s²),    against (2 · 1 − 1)/(2 K s²) for the whole range.

The window that maximises it contains most values, for normal ones those within 1.6 standard
deviations. It is made twice as wide, and doubled again as long as the dozen knots over the whole
range, which have less noise, show values outside of it, or leave room for more than a few percent
of them: a tail of 5 % may have most of the variance. The whole range is used if that takes more
than half of it, or if the likelihood ratio is not far above what noise alone attains over all
windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tacit.methods.scoring.party import FINE, KNOTS

EVIDENCE = 12.0
"""Log-likelihood ratio above which a window is used. Noise alone attains about the logarithm of the
number of windows (2⁸ positions, a few widths).
"""
WIDER = 2.0
"""Width of the part of the range that is used, as a multiple of the best window's width."""
OUTSIDE, MOST_OUTSIDE, DOUBTS = 0.005, 0.04, 1.5
"""Share of values that may lie outside the part; largest share outside that noise may hide; number
of noise standard deviations in that test.
"""
MOST = 0.5
"""Largest share of the range that counts as a part of it."""
WIDTHS = np.unique(np.round(np.geomspace(1.0, MOST * FINE, 29)).astype(np.int64))


class Grid(NamedTuple):
    """Counts of one number over equidistant knots, and the sd of the noise in each."""

    knots: np.ndarray
    counts: np.ndarray
    noise_sd: float


def part_of(
    counts: np.ndarray, noise_sd: float, rough: Grid, records: float
) -> tuple[int, int] | None:
    """Find the first and last fine cell of the part of the range that has the values; None for all
    of it.

    `rough` are the counts over the whole range.
    """
    share, noise = counts / records, max(noise_sd / records, 1e-9)
    total = np.append(0.0, np.cumsum(share))
    best, first, width = -np.inf, 0, FINE
    for size in WIDTHS:
        inside = total[size:] - total[:-size]
        place = int(np.argmax(inside))
        gain = (2.0 * inside[place] - 1.0) / size
        if gain > best:
            best, first, width = gain, place, int(size)
    if (best - 1.0 / FINE) / (2.0 * noise**2) < EVIDENCE:
        return None
    middle, reach = first + 0.5 * (width - 1), 0.5 * WIDER * max(width, 2)
    while True:
        low = max(0, int(np.floor(middle - reach)))
        high = min(FINE - 1, int(np.ceil(middle + reach)))
        if high - low + 1 > MOST * FINE:
            return None
        outside, doubt = _outside(rough, low, high, records)
        if outside - doubt <= OUTSIDE and outside + doubt <= MOST_OUTSIDE:
            return low, high
        reach *= 2.0


def _outside(rough: Grid, low: int, high: int, records: float) -> tuple[float, float]:
    """Return the share of values outside the given fine cells, and how much of it noise can
    explain.

    All values between two cells are counted at the knots around them.
    """
    ratio = (KNOTS - 1) / (FINE - 1)
    first, last = int(np.floor(low * ratio)), int(np.ceil(high * ratio))
    inside = float(np.sum(rough.counts[first : last + 1])) / records
    noise = rough.noise_sd / records * np.sqrt(last - first + 1)
    return 1.0 - inside, DOUBTS * noise


def rebinned(
    counts: np.ndarray, noise_sd: float, within: tuple[int, int], knots: np.ndarray
) -> Grid:
    """Convert counts on the fine grid to counts over `KNOTS` knots that cover the cells `within`.

    A hat over r cells is a sum of fine hats with weights 1 − |i|/r, whose squares add up to
    (2r² + 1)/(3r). Cells outside are taken to be empty.
    """
    low, high = within
    stride = max(1, -(-(high - low) // (KNOTS - 1)))
    length = stride * (KNOTS - 1)
    first = int(np.clip((low + high - length) // 2, 0, FINE - 1 - length))
    cells = np.arange(FINE)
    kept = np.where((cells >= low) & (cells <= high), counts, 0.0)
    places = first + stride * np.arange(KNOTS)
    hats = np.maximum(0.0, 1.0 - np.abs(cells - places[:, None]) / stride)
    spacing = (knots[-1] - knots[0]) / (FINE - 1)
    noise = noise_sd * np.sqrt((2.0 * stride**2 + 1.0) / (3.0 * stride))
    return Grid(knots[0] + spacing * places, hats @ kept, float(noise))
