"""Adaptive clip: follow a quantile of the contributions' norms, estimated privately.

The scaled contributions cᵢ/S are clipped to C, with a public scale S: requests publish log S. With
every sum a party releases the number of its units within the clip, as an extra coordinate of the
same release: (Σ clip(cᵢ/S), ω Σ ±½). Its norm bound √(C² + ω²/4), ω = w·C, is charged. From the
noisy share f of units within the clip the server sets

    log S ← log S + η(γ − f),

so that S·C converges to the γ-quantile (Andrew et al. 2021, geometric updates). The clip of the
event never changes: S is public, and a sum times a public number is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tacit.server.combine import Combine, RoundSum, Run, Shared

SCALE = "log_scale"
"""The public logarithm of S."""
WITHIN = "within_clip"
"""The released Σ ±½ over the units: +½ if within the clip."""
WEIGHT = 0.5
"""w: weight of the count relative to the clip. At ½ the sum's noise grows by 3 %."""
RATE = 0.5
MAX_LOG_SCALE = 30.0


def tally_clip(clip: float) -> float:
    """Norm bound of a contribution with its count.

    >>> round(tally_clip(1.0), 4)
    1.0308
    """
    return clip * math.sqrt(1.0 + WEIGHT**2 / 4.0)


def adapted(make: Callable[[Run], Combine], run: Run, target: float, units: int) -> Combine:
    """Server half that also updates the scale S, and passes the scaled noise to `make`.

    `units` is the public number of units of all parties. Updates carry Σ(±½) over their units.
    """

    def step(shared: Shared, answers: RoundSum) -> Shared:
        number = answers.number
        total = answers.total[WITHIN] / run.damping_at(number)
        asked = units * answers.contributors / run.parties
        share = np.clip(total / asked + 0.5, 0.0, 1.0)
        before = shared.public[SCALE]
        moved = np.clip(before + RATE * (target - share), -MAX_LOG_SCALE, MAX_LOG_SCALE)
        scale = float(np.exp(before))
        combine = make(run._replace(noise_sd=lambda at: scale * run.noise_sd(at)))
        following = combine(shared, answers)
        return following._replace(public=shared.public | {SCALE: np.asarray(moved)})

    return step
