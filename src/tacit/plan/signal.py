"""Upper bound on the signal-to-noise ratio of a planned run."""

from __future__ import annotations

import math

from tacit.methods import PrivateMethod
from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan

POOR = 1.0
"""A ratio of signal to noise below this is reported as poor."""


def signal(plan: Plan, settled: Settled) -> float:
    """Return ‖signal‖ / ‖noise‖ over a run if all units contributed the full clip in one direction.

    A sum of n sampled contributions has norm at most rate·n·C; its noise has norm s√d. Over T
    releases of a nearly constant quantity the ratio grows like √T; with shared noise, it grows with
    the number of messages added up. Real contributions differ in direction, so the actual ratio is
    lower.
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
