"""Upper bound on the signal-to-noise ratio of a planned run."""

from __future__ import annotations

import math

from tacit.methods import PrivateMethod
from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan

POOR = 1.0
"""A ratio of signal to noise below this is reported as poor."""


def signal(plan: Plan, settled: Settled) -> float:
    """Return an upper bound on the norm of the signal divided by the norm of the noise, over a run.

    The bound assumes that all contributions have the norm `clip` and the same direction. A sum over
    n units that are sampled at a rate r then has the norm r·n·clip. Noise of standard deviation s
    in d numbers has the norm s√d. Over T releases the ratio grows like √T. If several messages are
    summed before the noise is complete, the ratio is multiplied by their number.
    """
    assert isinstance(plan.method, PrivateMethod)
    total = 0.0
    released = plan.method.numbers(plan.model.dimension)
    for event in settled.all_events:
        rate = 1.0 if event.sampling is None else event.sampling.rate
        units = getattr(plan.method, "shards", None) or settled.units
        most = rate * units * event.clip * settled.shares
        total += event.count * (most / (event.noise_sd * math.sqrt(released))) ** 2
    return math.sqrt(total)
