"""Check that columns are in units that private counts can describe."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tacit.data.schema.layout import Layout
from tacit.errors import DataError
from tacit.methods.scoring.marginals import MISSING
from tacit.methods.scoring.party import KNOTS, Counted, counted
from tacit.models import Model, Records
from tacit.models.capabilities import Scores

MOST_OUTSIDE = 0.05
"""Largest share of a column's values that may be outside the range in which it is counted."""
LEAST_SPREAD = 0.01
"""Smallest standard deviation of a column, as a share of that range."""
MOST_AT_END = 0.25
"""Largest share of values that released counts may have at an end that is not a declared bound."""


def counted_columns(model: Scores) -> Counted:
    """Return how the columns of a model are counted."""
    likelihood = model.score_likelihood()
    return counted(model.layout, likelihood.largest, likelihood.smallest, likelihood.levels)


def check_units(model: Model, parties: Mapping[str, Records]) -> None:
    """Refuse plain records in units that the counts of private scoring cannot describe.

    A private method takes no range from the data. Undeclared columns are assumed to be
    standardised. Values far outside that range would be counted at its ends, and values close
    together would all be counted between two knots. Curvature and posterior would then be wrong.
    This check uses the records if one process has all of them, before anything is charged. Whether
    it refuses depends on the records, but its message does not.
    """
    if not isinstance(model, Scores):
        return
    what = counted_columns(model)
    bias = any(feature.kind == "intercept" for feature in model.layout)
    for place, low, high in zip(what.numbers, what.low, what.high, strict=True):
        x = np.concatenate([np.asarray(one["x"], np.float64)[:, place] for one in parties.values()])
        seen = unfit_values(x, low, high, centred=bias)
        if seen is None:
            continue
        name = model.layout[place].source
        raise DataError(
            f"column {name!r}: private scoring counts it in [{low:g}, {high:g}], but {seen}; "
            "declare public bounds in the model's layout, tacit.data.schema.layout.Feature("
            f"'numeric', {name!r}, low, high), or scale the column with public constants, e.g. "
            "(x − 60)/15"
        )


def unfit_values(x: np.ndarray, low: float, high: float, *, centred: bool = True) -> str | None:
    """Return why the values of a column cannot be counted in [low, high]; None if they can.

    `centred`: the spread is measured from the mean, which an intercept absorbs, otherwise from 0.
    The message contains no number computed from the records, because nothing is charged for one.
    """
    if float(np.mean((x < low) | (x > high))) > MOST_OUTSIDE:
        return "many of its values are outside"
    spread = math.sqrt(np.mean(np.square(x - (np.mean(x) if centred else 0.0))))
    if np.ptp(x) != 0 and spread < LEAST_SPREAD * (high - low):
        return "its values cover only a small part of that range"
    return None


def counted_at_end(
    layout: Layout, what: Counted, counts: np.ndarray, noise_sd: float
) -> str | None:
    """Check whether released counts show many values at an end that is not a declared bound.

    The last knot there contains everything beyond it. Returns a text with column, share and end.
    """
    first = sum(len(group) for group in what.groups)
    hats = counts[first : first + KNOTS * len(what.numbers)].reshape(-1, KNOTS)
    for row, place in enumerate(what.numbers):
        feature, total = layout[place], max(float(np.sum(hats[row])), 1.0)
        for knot, end, bound in (
            (0, what.low[row], feature.low),
            (-1, what.high[row], feature.high),
        ):
            share = (hats[row, knot] - MISSING * noise_sd) / total
            if end != bound and share > MOST_AT_END:
                return (
                    f"about {hats[row, knot] / total:.0%} of the values of {feature.source!r} are "
                    f"counted at {end:g}, the end of the range that is assumed for the column"
                )
    return None


def counted_outside(model: Model, counts: np.ndarray, noise_sd: float) -> str | None:
    """Return why a column is probably not in the units assumed for its counts, or None."""
    assert isinstance(model, Scores)
    seen = counted_at_end(model.layout, counted_columns(model), counts, noise_sd)
    if seen is None:
        return None
    return f"{seen}; declare low and high without center and scale, or other ones"
