"""Check whether the result of a run without privacy depends on one party.

The server knows every party's factor, so it can divide a factor out of q to get the posterior
without that party. The shift of a coordinate is the difference between its two posterior means, in
standard deviations of the posterior without the party. If a shift is larger than `MOST_SHIFT`, the
party contradicts the others, because its records differ or its updates are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tacit.expfam import Family, Gaussian, Natural
from tacit.pvi import divide
from tacit.results.cautions import Caution

MOST_SHIFT = 3.0
"""A party is reported only if a posterior mean shifts by more than this without the party, in
standard deviations of the posterior without the party.
"""
MORE_THAN_USUAL = 1.3
"""A shift is also reported only if it is larger than this factor times the largest shift expected
by chance, which increases with the number of coefficients.
"""
MOST_PARTIES = 20
"""With this many parties or more the check is skipped."""


def dependence_cautions(
    family: Family, q: Natural, factors: Mapping[str, Natural], names: Sequence[str]
) -> list[Caution]:
    """Return a caution for each party without which a posterior mean would be very different.

    `names` are the names of the coordinates of θ.
    """
    if not isinstance(family, Gaussian) or not 2 <= len(factors) < MOST_PARTIES:
        return []
    # Expected maximum of that many standard normals.
    usual = math.sqrt(2.0 * math.log(2.0 * len(factors) * family.dimension))
    most = max(MOST_SHIFT, MORE_THAN_USUAL * usual)
    mean = np.asarray(family.location_scale(q)[0])
    found = []
    for party, factor in factors.items():
        rest = divide(q, factor)
        if not family.is_proper(rest):
            continue
        other, sd = (np.asarray(value) for value in family.location_scale(rest))
        shift = np.abs(mean - other) / sd
        worst = int(np.argmax(shift))
        if not shift[worst] > most:
            continue
        name = names[worst] if worst < len(names) else f"coordinate {worst}"
        text = (
            f"The result depends on party {party!r}: without it {name!r} moves from "
            f"{mean[worst]:.4g} to {other[worst]:.4g}, by {shift[worst]:.2g} sd of the posterior "
            "of the others; compare its records with those of the other parties."
        )
        found.append(Caution("one-party", text))
    return found
