"""Synthetic covariates of private scores: rows with the released marginals and moment.

They contain no record. They give expectations over x: the information of θ, and the slope and
variance of scores. Counts and second moment are computed as in private scoring
(`tacit.methods.scoring`), for a matrix with an additional constant column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tacit.data.schema.layout import INTERCEPT, Layout
from tacit.errors import DataError
from tacit.methods.scoring.marginals import Marginals, marginals
from tacit.methods.scoring.party import Counted, counted
from tacit.methods.scoring.synthetic import correlated, independent, triangle
from tacit.methods.scoring.units import counted_at_end, unfit_values
from tacit.models import Model
from tacit.models.capabilities import Scores
from tacit.models.outcomes import Covariates
from tacit.models.scores import ScoreLikelihood

ROWS = 1024
"""Number of synthetic records."""
CONSTANT_SCALE = 1e-3
"""Scale of the constant in z: small, because the constant is only needed for the counts."""


class Design(NamedTuple):
    """The columns that are counted: those of the covariates, and one constant."""

    layout: Layout
    counted: Counted
    own: int
    """Number of covariate columns; the constant follows them."""

    @property
    def numbers(self) -> int:
        """Number of columns that are not constant."""
        return sum(feature.kind != "intercept" for feature in self.layout)


def design_of(covariates: Covariates, likelihood: ScoreLikelihood | None = None) -> Design:
    """Return the columns to count: covariates by the public schema, and an outcome with bounds."""
    layout = covariates.layout
    own = len(layout)
    if not any(feature.kind == "intercept" for feature in layout):
        layout = (*layout, INTERCEPT)
    largest = None if likelihood is None else likelihood.largest
    smallest = 0.0 if likelihood is None else likelihood.smallest
    return Design(layout, counted(layout, largest, smallest), own)


def counted_outcome(model: Model) -> ScoreLikelihood | None:
    """Return the likelihood of a regression on one predictor whose outcome has public bounds,
    because the outcome's mean gives a starting point; None for other models.
    """
    likelihood = model.score_likelihood() if isinstance(model, Scores) else None
    bounded = likelihood is not None and likelihood.largest is not None and not likelihood.levels
    return likelihood if bounded else None


def described(design: Design, counts: np.ndarray, noise_sd: float, records: float) -> Marginals:
    """Estimate marginals from noisy counts; `records` is 0 if the number of records is not
    public.
    """
    return marginals(design.layout, design.counted, counts, noise_sd, records)


def public_scale(design: Design, found: Marginals) -> np.ndarray:
    """Return `scale` of the map z = scale∘(x − centre) for the second moment, so that E|z|² = 1."""
    scale = 1.0 / np.sqrt(found.variance)
    constant = [feature.kind == "intercept" for feature in design.layout]
    return np.where(constant, CONSTANT_SCALE, scale) / math.sqrt(max(design.numbers, 1))


def synthetic_rows(
    design: Design,
    found: Marginals,
    moment: np.ndarray | None = None,
    noise_sd: float = 0.0,
) -> np.ndarray:
    """Return synthetic rows of the covariates' columns; without a moment the columns are
    independent.
    """
    scale = public_scale(design, found)
    layout, what = design.layout, design.counted
    if moment is None:
        z = independent(layout, what, found, scale, ROWS)
    else:
        clean = _clean_moment(design, moment, noise_sd)
        z = correlated(layout, what, found, scale, clean, noise_sd, ROWS).z
    return (found.centre + z / scale)[:, : design.own]


def _clean_moment(design: Design, moment: np.ndarray, noise_sd: float) -> np.ndarray:
    """Return the second moment with less noise in the entries of columns that are not constant."""
    matrix = triangle(moment, len(design.layout))
    free = np.array([feature.kind != "intercept" for feature in design.layout])
    inner = np.ix_(free, free)
    matrix[inner] = denoised(matrix[inner], noise_sd / math.sqrt(2.0))
    upper = np.triu_indices(len(matrix))
    return matrix[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))


def denoised(seen: np.ndarray, noise_sd: float) -> np.ndarray:
    """Return the expected symmetric matrix given a matrix with independent normal noise in its
    entries.

    `noise_sd` is the noise off the diagonal; on the diagonal it is √2 times as large, as in a
    released moment, so that the noise has the same distribution in every basis. Noise spreads
    eigenvalues. If nothing is known about the eigenvectors, the expectation keeps them and replaces
    each eigenvalue λ by λ − 2·noise_sd²·Σⱼ 1/(λ − λⱼ), here with terms that are bounded near λ.
    """
    values, vectors = np.linalg.eigh(seen)
    gaps = values[:, None] - values
    pushed = np.sum(gaps / (np.square(gaps) + (2.0 * noise_sd) ** 2 + 1e-300), axis=1)
    return (vectors * (values - 2.0 * noise_sd**2 * pushed)) @ vectors.T


def check_ranges(design: Design, tables: Sequence[np.ndarray]) -> None:
    """Refuse plain records in units that the counts cannot describe.

    A private method takes no range from the data. Undeclared numbers are counted between −3 and 3.
    See `check_units`.
    """
    what = design.counted
    for place, low, high in zip(what.numbers, what.low, what.high, strict=True):
        column = np.concatenate([table[:, place] for table in tables])
        seen = unfit_values(column, low, high)
        if seen is None:
            continue
        name = design.layout[place].source
        raise DataError(
            f"column {name!r}: private scores count it in [{low:g}, {high:g}], but {seen}; declare "
            f"its public bounds, from_numpyro(…, columns={{{name.split('[')[0]!r}: (low, high)}}), "
            "or scale the column with public constants, e.g. (x − 60)/15"
        )


def counted_at_ends(design: Design, counts: np.ndarray, noise_sd: float) -> str | None:
    """Return why a column is probably not in the units assumed for its counts, or None."""
    seen = counted_at_end(design.layout, design.counted, counts, noise_sd)
    return None if seen is None else f"{seen}; declare its low and high"
