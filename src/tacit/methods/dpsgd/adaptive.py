"""A clip that follows a quantile of the contributions' norms, estimated privately.

What is clipped to C is cᵢ/S, with a scale S that everybody knows: it travels beside q as log S.
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
from collections.abc import Callable, Sequence

import numpy as np

from tacit.expfam import Natural
from tacit.pvi import product
from tacit.server.combine import Combine, Memory, Run

SCALE = "log_scale"
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

    def step(
        q: Natural, updates: Sequence[Natural], memory: Memory | None, number: int
    ) -> tuple[Natural, Memory | None]:
        total = product(updates[0], updates[1:])[SCALE] / run.damping_at(number)
        asked = units * len(updates) / run.parties
        share = np.clip(total / asked + 0.5, 0.0, 1.0)
        moved = np.clip(q[SCALE] + RATE * (target - share), -FARTHEST, FARTHEST)
        scale = float(np.exp(q[SCALE]))
        combine = make(run._replace(noise_sd=lambda at: scale * run.noise_sd(at)))
        following, memory = combine(_bare(q), [_bare(one) for one in updates], memory, number)
        return {**following, SCALE: moved}, memory

    return step


def _bare(natural: Natural) -> Natural:
    return {name: value for name, value in natural.items() if name != SCALE}
