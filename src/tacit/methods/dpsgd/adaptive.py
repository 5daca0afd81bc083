"""A clip that follows a quantile of the contributions' norms, estimated privately.

What is clipped to C is cᵢ/S, with a scale S that everybody knows: requests publish log S.
With every sum a party releases how many of its units were within the clip, as one coordinate more
of the same release: (Σ clip(cᵢ/S), ω Σ ±½). Its norm bound is √(C² + ω²/4), ω = w·C, which is what
is charged; nothing else depends on the records. From the noisy share f of units within the clip the
server sets

    log S ← log S + η(γ − f),

so that S·C walks to the γ-quantile (Andrew et al. 2021, geometric updates). The clip of the event
never changes: where S goes is public, and a sum times a public number is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tacit.server.combine import Combine, RoundSum, Run, Shared

SCALE = "log_scale"
"""The public logarithm of S."""
WITHIN = "within_clip"
"""The released Σ ±½ over the units: were they within the clip?"""
WEIGHT = 0.5
"""w: how much of the clip the count has. At ½ the sum's noise grows by 3 %."""
RATE = 0.5
FARTHEST = 30.0


def tally_clip(clip: float) -> float:
    """The norm bound of a contribution with its count.

    >>> round(tally_clip(1.0), 4)
    1.0308
    """
    return clip * math.sqrt(1.0 + WEIGHT**2 / 4.0)


def adapted(make: Callable[[Run], Combine], run: Run, target: float, units: int) -> Combine:
    """The method's own half on q, told how much noise a scale of S makes, and the scale's walk.

    `units` is how many there are in all, which is public. Updates carry Σ(±½) over their units.
    """

    def step(shared: Shared, answers: RoundSum) -> Shared:
        number = answers.number
        total = answers.total[WITHIN] / run.damping_at(number)
        asked = units * answers.contributors / run.parties
        share = np.clip(total / asked + 0.5, 0.0, 1.0)
        before = shared.public[SCALE]
        moved = np.clip(before + RATE * (target - share), -FARTHEST, FARTHEST)
        scale = float(np.exp(before))
        combine = make(run._replace(noise_sd=lambda at: scale * run.noise_sd(at)))
        following = combine(shared, answers)
        return following._replace(public=shared.public | {SCALE: np.asarray(moved)})

    return step
