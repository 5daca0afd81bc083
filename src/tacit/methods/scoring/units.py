"""Whether columns are in units that the counts of private scoring describe."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tacit.errors import DataError
from tacit.methods.scoring.marginals import MISSING
from tacit.methods.scoring.party import KNOTS, Counted, counted
from tacit.models import Model, Records
from tacit.models.capabilities import Scores

MOST_OUTSIDE = 0.05
"""Of the values of a column that may lie outside of the range in which it is counted,"""
LEAST_SPREAD = 0.01
"""how much of that range its standard deviation must be,"""
MOST_AT_END = 0.25
"""and how many values released counts may show at an end that is not a declared bound."""


def counted_columns(model: Scores) -> Counted:
    """How the columns of a model are counted."""
    likelihood = model.score_likelihood()
    return counted(model.layout, likelihood.largest, likelihood.smallest, likelihood.levels)


def check_units(model: Model, parties: Mapping[str, Records]) -> None:
    """Refuse plain records in units that the counts of private scoring cannot describe.

    A private method takes no range from the data. Where none is declared, columns are taken for
    standardised ones. Values far outside would be counted at the ends of that range and values
    close together between two knots: curvature and posterior would be wrong. This check reads the
    records where a fit has all of them, before anything is released. That there is an error
    depends on them; its words do not.
    """
    if not isinstance(model, Scores):
        return
    what = counted_columns(model)
    bias = any(feature.kind == "intercept" for feature in model.layout)
    for place, low, high in zip(what.numbers, what.low, what.high, strict=True):
        x = np.concatenate([np.asarray(one["x"], np.float64)[:, place] for one in parties.values()])
        seen = in_other_units(x, low, high, float(np.mean(x)) if bias else 0.0)
        if seen is None:
            continue
        name = model.layout[place].source
        raise DataError(
            f"column {name!r}: private scoring counts it in [{low:g}, {high:g}], but {seen}; "
            "declare public bounds in the model's layout, tacit.data.schema.layout.Feature("
            f"'numeric', {name!r}, low, high), or scale the column with public constants, e.g. "
            "(x − 60)/15"
        )


def in_other_units(column: np.ndarray, low: float, high: float, about: float) -> str | None:
    """Why a column is not in the units of the range in which it is counted, if it is not.

    The words hold no number of the records: nothing was charged for one.
    """
    if float(np.mean((column < low) | (column > high))) > MOST_OUTSIDE:
        return "many of its values are outside"
    spread = math.sqrt(np.mean(np.square(column - about)))
    if np.ptp(column) > 0 and spread < LEAST_SPREAD * (high - low):
        return "its values vary by a small part of that only"
    return None


def counted_outside(model: Model, counts: np.ndarray, noise_sd: float) -> str | None:
    """Why released counts show a column in other units than its counts assume, if they do.

    Of an end that is not a declared bound, the last knot holds everything beyond it.
    """
    assert isinstance(model, Scores)
    what = counted_columns(model)
    first = sum(len(group) for group in what.groups)
    hats = counts[first : first + KNOTS * len(what.numbers)].reshape(-1, KNOTS)
    for row, place in enumerate(what.numbers):
        feature, total = model.layout[place], max(float(np.sum(hats[row])), 1.0)
        for knot, end, bound in (
            (0, what.low[row], feature.low),
            (-1, what.high[row], feature.high),
        ):
            share = (hats[row, knot] - MISSING * noise_sd) / total
            if end != bound and share > MOST_AT_END:
                return (
                    f"about {hats[row, knot] / total:.0%} of the values of {feature.source!r} are "
                    f"counted at {end:g}, the end of what private scoring takes for the column's "
                    "range; declare low and high without center and scale, or other ones"
                )
    return None
