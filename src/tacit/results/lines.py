"""Find other modes of a posterior on lines through its mean.

Importance weights cannot detect a mode in which there are no draws. The posterior density is
therefore also evaluated on one line for each coordinate of θ: the coordinate changes by up to
`REACH` standard deviations, and the others by the amounts that their correlations with it imply. If
the density falls along a line and rises again more than `FAR` standard deviations from the mean,
and if the part of the line behind the valley has at least the share `RELEVANT` of the mass on the
line, there is another mode that the result does not describe. A tail that only falls slowly is no
mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FAR = 4.0
REACH, SPACING = 60.0, 0.5
"""Length of a line in each direction, and distance of its points, in standard deviations."""
RISE = 1.0
"""Smallest increase of the log-density behind a valley."""
RELEVANT = 1e-3
STEPS = np.arange(-REACH, REACH + 0.5 * SPACING, SPACING)


def line_points(mean: np.ndarray, root: np.ndarray, most: int) -> np.ndarray:
    """Return the points of one line per coordinate, of shape (lines, points, coordinates).

    There are at most `most` points in all.
    """
    covariance = root @ root.T
    count = min(len(mean), most // len(STEPS))
    slopes = covariance[:count] / np.sqrt(np.diagonal(covariance))[:count, None]
    return mean + STEPS[:, None] * slopes[:, None, :]


def mode_on_lines(density: np.ndarray, names: Sequence[str]) -> str | None:
    """Return the description of the point with the highest density behind a valley, or None.

    Parameters
    ----------
    density
        Log-density at the points of `line_points`, of shape (lines, points).
    names
        Names of the coordinates of θ.
    """
    density = np.where(np.isfinite(density), density, -np.inf)
    best, found = -np.inf, None
    for line, name in zip(density, names, strict=False):
        top = float(np.max(line))
        if top == -np.inf:
            continue
        mass = np.exp(line - top)
        for side in (line[STEPS >= 0], line[STEPS <= 0][::-1]):
            at = _behind_valley(side)
            if at is None:
                continue
            share = float(np.sum(np.exp(side[at:] - top)) / np.sum(mass))
            place = at + int(np.argmax(side[at:]))
            if share >= RELEVANT and side[place] > best:
                away = SPACING * place
                best, found = side[place], f"{name} about {away:.0f} standard deviations away"
    return found


def _behind_valley(side: np.ndarray) -> int | None:
    """Return the index of the lowest point before the density rises again beyond `FAR`; None if it
    does not rise.
    """
    lowest = np.minimum.accumulate(side)
    risen = (side > lowest + RISE) & (np.arange(len(side)) * SPACING > FAR)
    if not np.any(risen):
        return None
    highest = int(np.argmax(np.where(risen, side, -np.inf)))
    return int(np.argmin(side[: highest + 1]))
