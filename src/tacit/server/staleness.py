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
    """Estimate how often other updates have already moved q by the step of this update.

    q is the server's approximation of the posterior, and `change` is a party's update of q. `sent`
    is the q that was sent to the party with the request, and `now` is the current q.

    The result is s = max(0, ⟨u, v⟩)/⟨u, u⟩, where ⟨·, ·⟩ is the inner product. u is the shift of
    q's location that the full update would cause now. v is the shift of q's location since the
    request was sent. Both shifts are divided by the scale of q. If k other updates have made the
    same step since then, s = k. If q has not moved, or has moved only at right angles to u, s = 0.
    Precisions are not compared, because each party adds its own precision.
    """
    location, scale = family.location_scale(now)
    step = (family.location_scale(multiply(now, change))[0] - location) / scale
    since = (location - family.location_scale(sent)[0]) / scale
    length = float(np.sum(step * step))
    return max(0.0, float(np.sum(step * since))) / length if length > 0 else 0.0


def damped(rules: Rules, state: ServerState, request: Open, reply: Reply) -> Reply:
    """Return the reply with its update multiplied by the damping of `StalenessDamping`; unchanged
    if the schedule has another damping.

    The damping is positive, so it does not change the q at which all updates are zero.
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
