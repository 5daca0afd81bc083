"""Damp asynchronous updates, depending on how q has moved since their requests were sent."""

from __future__ import annotations

import numpy as np

from tacit.arrays import Natural
from tacit.expfam import Family
from tacit.pvi import multiply, power
from tacit.server.messages import Reply
from tacit.server.schedule import StalenessDamping
from tacit.server.state import Open, Rules, ServerState


def staleness(family: Family, now: Natural, sent: Natural, change: Natural) -> float:
    """Estimate how often the step of an update has already been made since its request was sent.

    s = max(0, ⟨u, v⟩) / ⟨u, u⟩, where u is the shift of q's location that the full update would
    make now, and v is the shift since the request, both relative to q's scale. If k parties have
    sent the same step, s = k. If q has not moved, or has moved in other directions, s = 0.
    Precisions are not compared, because each party adds its own.
    """
    location, scale = family.location_scale(now)
    step = (family.location_scale(multiply(now, change))[0] - location) / scale
    since = (location - family.location_scale(sent)[0]) / scale
    length = float(np.sum(step * step))
    return max(0.0, float(np.sum(step * since))) / length if length > 0 else 0.0


def damped(rules: Rules, state: ServerState, request: Open, reply: Reply) -> Reply:
    """Reduce a reply's update to the share that is applied, if the schedule damps by staleness.

    A damped update is zero only if the update is zero, so damping does not move the fixed point.
    """
    damping = rules.schedule.damping
    if not isinstance(damping, StalenessDamping):
        return reply
    share, sent = damping.least, state.issued[request.posterior].q
    if rules.family.is_proper(multiply(state.q, reply.released)):
        with np.errstate(all="ignore"):
            found = staleness(rules.family, state.q, sent, reply.released)
        if np.isfinite(found):
            share = max(share, 1.0 / (1.0 + found))
    return reply._replace(released=power(reply.released, share))
