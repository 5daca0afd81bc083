"""Group privacy: the guarantee for several units, derived from the guarantee for one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tacit.privacy.accounting import epsilon
from tacit.privacy.events import Adjacency, GaussianEvent

MAX_EPSILON = 1e6


def group_guarantee(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return the guarantee (tε, δ(e^{tε} − 1)/(e^ε − 1)) for t units (MEng eq. 3.8), with δ at most
    1.

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
    """Compute ε at δ for t units at once from the releases; None if there is no useful bound.

    Without sampling, t units move a sum by at most t·C, which gives a far smaller ε than eq. 3.8.
    Sampled batches may contain any number of the t units, so the general bound applies: the
    smallest ε with t·ε₁ ≥ ε and δ(e^{tε₁} − 1)/(e^{ε₁} − 1) ≤ δ.
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
