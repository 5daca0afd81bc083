"""Group privacy: the guarantee for several units, derived from the guarantee for one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tacit.privacy.accounting import epsilon
from tacit.privacy.events import Adjacency, GaussianEvent

MAX_EPSILON = 1e6


def group_guarantee(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return (ε, δ) for a group of `size` units, computed from (ε, δ) for one unit.

    For a group of t units the guarantee is (tε, δ(e^{tε} − 1)/(e^ε − 1)) (MEng eq. 3.8). The second
    number is at most 1.

    >>> epsilon, delta = group_guarantee(0.5, 1e-6, 2)
    >>> epsilon, round(1e6 * delta, 6)
    (1.0, 2.648721)
    """
    together = size * epsilon
    if together > 700 or epsilon <= 0:
        return together, 1.0 if epsilon > 0 else min(1.0, size * delta)
    return together, min(1.0, delta * math.expm1(together) / math.expm1(epsilon))


def group_epsilon(
    events: Sequence[GaussianEvent], delta: float, adjacency: Adjacency, size: int
) -> float | None:
    """Return ε at δ for a group of t = `size` units; None if there is no useful bound.

    Without sampling, t units move a sum by at most t times the clip. ε is computed with this larger
    clip.

    With sampling, `group_guarantee` is used: if the releases are (ε₁, δ₁)-private for one unit,
    they are (t·ε₁, δ)-private for the group, provided that δ₁(e^{tε₁} − 1)/(e^{ε₁} − 1) ≤ δ. The
    result is the smallest t·ε₁ over several values of δ₁.
    """
    if size == 1:
        return epsilon(events, delta, adjacency)
    if all(event.sampling is None for event in events):
        moved = [msgspec.structs.replace(event, clip=event.clip * size) for event in events]
        found = epsilon(moved, delta, adjacency)
        return found if found < MAX_EPSILON else None
    # The δ for one unit is smaller than the group's; search over a few powers of ten.
    best: float | None = None
    for power in range(1, 300, 6):
        small = delta * 10.0**-power
        one = epsilon(events, small, adjacency)
        together, total = group_guarantee(one, small, size)
        if total <= delta and (best is None or together < best):
            best = together
        if together > MAX_EPSILON or (best is not None and together > 2 * best):
            break
    return best
