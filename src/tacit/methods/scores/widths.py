"""Expected widths of intervals, computed from public facts before anything is released.

**Model of the scores.** The whitened score of a record in d dimensions is approximated by u = r·v,
as for a regression with normal errors. Here r is a standard normal variable, and v is a random
vector of length √d.

**Clipping.** Scores are clipped to norm a√d, which multiplies u by c = min(1, a/|r|). In one
direction, the clipped score then has the slope H = E[c r²] and the variance V = E[c² r²]. If the
sum over n records has noise of variance σ̄², the noise adds σ̄²/n to V. The width of an interval is

    √(V + σ̄²/n)/H   times the width without privacy.

The scale of the map W (`tacit.methods.scores.party`) is chosen to minimise this width.

**Rare levels.** The coefficient of a level with a share p of the records depends on scores of
length |r|√(d − 1 + 1/p), which are clipped more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.methods.scores.estimate import MOST_STEPS, SCALE_STEP
from tacit.methods.scores.party import CLIP

WIDE = 1.6
"""A warning is given if intervals are more than this many times as wide as without privacy."""


class Widths(NamedTuple):
    """Expected widths of intervals, divided by those without privacy."""

    usual: float
    rare: float
    """If a level has less than this share of the records, the width of the interval of its
    coefficient, relative to that without privacy, is above `WIDE`.
    """


def expected_widths(dimension: int, noise: float, records: int) -> Widths:
    """Return the expected widths of intervals for `dimension` parameters and `records` records,
    relative to those without privacy.

    `noise` is the sd of the noise in the weighted mean of the score sums after the burn-in.
    """
    extra = noise**2 / records
    scales = SCALE_STEP ** np.arange(-MOST_STEPS, MOST_STEPS + 1.0)
    widths = [width(CLIP / scale, extra / scale**2) for scale in scales]
    best = int(np.argmin(widths))
    clip, extra = CLIP / scales[best], extra / scales[best] ** 2
    shares = np.geomspace(1.0, 1.0 / records, 200)
    longer = np.sqrt((dimension - 1.0 + 1.0 / shares) / dimension)
    wide = [width(clip / length, extra) > WIDE for length in longer]
    rare = float(shares[wide.index(True)]) if any(wide) else 0.0
    return Widths(widths[best], rare)


def width(clip: float, extra: float) -> float:
    """Return the width of an interval relative to that without privacy, √(V + extra)/H.

    V and H are the variance and slope of a whitened score that is clipped to norm `clip`·√d, for d
    parameters. `extra` is the variance of the noise divided by the number of records.
    """
    outside = math.erfc(clip / math.sqrt(2.0))
    density = math.exp(-0.5 * clip**2) / math.sqrt(2.0 * math.pi)
    inside = 1.0 - outside - 2.0 * clip * density  # E[r²; |r| < clip]
    slope = inside + 2.0 * clip * density  # E[|r|; |r| > clip] is twice the density
    return math.sqrt(inside + clip**2 * outside + extra) / slope
