"""How much can be heard through the noise of a plan, at best."""

from __future__ import annotations

import math

from tacit.methods import PrivateMethod
from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan

POOR = 1.0


def signal(plan: Plan, settled: Settled) -> float:
    """‖signal‖ / ‖noise‖ over a whole run if every unit contributed its full clip in one direction.

    A sum of n sampled contributions has norm at most rate·n·C; its noise has norm s√d. Over T
    releases of a thing that hardly changes the ratio grows like √T, and the messages of shares
    that are added up like their number. Real contributions disagree, so the truth is below this.
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
