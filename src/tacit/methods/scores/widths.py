"""Expected widths of intervals, from public facts before anything is released.

Whitened scores in d dimensions are approximated by u = r·v with r standard normal, |v|² = d and
independent directions, as for a regression with normal errors. If scores are clipped to norm C =
a√d, the clip multiplies u by c = min(1, a/|r|). In one direction, the clipped score of a record
then has slope H = E[c r²] and variance V = E[c² r²], and noise of variance σ̄² in the sum of n
records adds σ̄²/n. The width of an interval is

    √(V + σ̄²/n)/H   times the width without privacy,

where the scale of the map W (`tacit.methods.scores.party`) is chosen to minimise the width. The
coefficient of a level with a share p of the records depends on scores of length |r|√(d − 1 + 1/p),
which are clipped more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tacit.methods.scores.estimate import MOST_STEPS, SCALE_STEP
from tacit.methods.scores.party import CLIP

WIDE = 1.6
"""Width of intervals, relative to that without privacy, above which a warning is given."""


class Widths(NamedTuple):
    """Widths of intervals relative to those without privacy."""

    usual: float
    rare: float
    """If a level has a smaller share of the records, the interval of its coefficient exceeds
    `WIDE`.
    """


def expected_widths(dimension: int, noise: float, records: int) -> Widths:
    """Return expected widths; `noise` is the sd of the noise in the weighted mean of the main
    scores.
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
    """Return √(V + extra)/H for c = min(1, clip/|r|) and standard normal r."""
    outside = math.erfc(clip / math.sqrt(2.0))
    density = math.exp(-0.5 * clip**2) / math.sqrt(2.0 * math.pi)
    inside = 1.0 - outside - 2.0 * clip * density  # E[r²; |r| < clip]
    slope = inside + 2.0 * clip * density  # E[|r|; |r| > clip] is twice the density
    return math.sqrt(inside + clip**2 * outside + extra) / slope
