"""Check that columns are on a scale that private counts can describe."""

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
"""Smallest standard deviation of a column, as a share of the range in which it is counted."""
MOST_AT_END = 0.25
"""Largest share of values that may be counted at an end of the range that is not declared."""


def counted_columns(model: Scores) -> Counted:
    """Return the columns of a model that private scoring counts, with the range of each column."""
    likelihood = model.score_likelihood()
    return counted(model.layout, likelihood.largest, likelihood.smallest, likelihood.levels)


def check_units(model: Model, parties: Mapping[str, Records]) -> None:
    """Raise a DataError if the values of a numeric column do not fit the range in which private
    scoring counts them.

    A private method computes no range from the records, so a column without declared bounds is
    assumed to be standardised. Values far outside the range would be counted at its ends, and
    values close together would all be counted between two knots. The posterior would then be wrong.
    The check is made before anything is charged, and only if one process has all records. Whether
    an error is raised depends on the records, but the message contains no number that is computed
    from them.
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
    """Return the reason why private scoring cannot count the values `x` of a column, or None if it
    can.

    Private scoring counts the values at a few points between `low` and `high`. It cannot count the
    values if many of them are outside these bounds. It cannot count them either if their spread is
    much smaller than the range between the bounds, unless all values are equal. The spread is the
    root mean square of the distances from the mean if `centred` is true, because an intercept
    absorbs the mean. Otherwise the distances from 0 are used.

    The reason contains no number that is computed from the records, because this check is not
    charged to the budget.
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
    """Return a message if the released counts show many values at an end of a column's range;
    otherwise return None.

    Ends that are declared bounds are not checked. The count at an end includes all values beyond
    it. The message contains the column, the share and the end.
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
    """Return the reason why a column is probably not on the scale assumed for its counts, or None
    if the counts give no such reason.
    """
    assert isinstance(model, Scores)
    seen = counted_at_end(model.layout, counted_columns(model), counts, noise_sd)
    if seen is None:
        return None
    return f"{seen}; declare low and high without center and scale, or a different center and scale"
