"""Synthetic covariates of private scores: rows with the released marginals and second moment.

The rows contain no values of any record. They are used to compute expectations over covariates x,
namely the information about θ, and the slope and variance of scores. Counts and second moment are
computed as in private scoring (`tacit.methods.scoring`), for a matrix with an additional constant
column.
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
"""Scale of the constant column in z. It is small, because only the counts need this column."""


class Design(NamedTuple):
    """The columns whose values are counted: the covariates, a constant, and the outcome if it has
    public bounds.
    """

    layout: Layout
    counted: Counted
    own: int
    """Number of covariate columns. If none of them is constant, a constant column follows."""

    @property
    def numbers(self) -> int:
        """Number of columns that are not constant."""
        return sum(feature.kind != "intercept" for feature in self.layout)


def design_of(covariates: Covariates, likelihood: ScoreLikelihood | None = None) -> Design:
    """Return the columns to count: the covariates, a constant, and the outcome if `likelihood` has
    public bounds for it.
    """
    layout = covariates.layout
    own = len(layout)
    if not any(feature.kind == "intercept" for feature in layout):
        layout = (*layout, INTERCEPT)
    largest = None if likelihood is None else likelihood.largest
    smallest = 0.0 if likelihood is None else likelihood.smallest
    return Design(layout, counted(layout, largest, smallest), own)


def counted_outcome(model: Model) -> ScoreLikelihood | None:
    """Return the likelihood of a model with one linear predictor and an outcome with public bounds,
    or None for other models.

    The values of such an outcome are counted, because their mean gives a starting point.
    """
    likelihood = model.score_likelihood() if isinstance(model, Scores) else None
    bounded = likelihood is not None and likelihood.largest is not None and not likelihood.levels
    return likelihood if bounded else None


def described(design: Design, counts: np.ndarray, noise_sd: float, records: float) -> Marginals:
    """Return estimates of the columns' marginal distributions, from noisy counts.

    `noise_sd` is the sd of the noise in a count. `records` is the number of records, or 0 if it is
    not public.
    """
    return marginals(design.layout, design.counted, counts, noise_sd, records)


def public_scale(design: Design, found: Marginals) -> np.ndarray:
    """Return the scale of each column in z = scale∘(x − centre). The second moment of z is
    released.

    The columns of z that are not constant have equal variances, and E|z|² is about 1.
    """
    scale = 1.0 / np.sqrt(found.variance)
    constant = [feature.kind == "intercept" for feature in design.layout]
    return np.where(constant, CONSTANT_SCALE, scale) / math.sqrt(max(design.numbers, 1))


def synthetic_rows(
    design: Design,
    found: Marginals,
    moment: np.ndarray | None = None,
    noise_sd: float = 0.0,
) -> np.ndarray:
    """Return `ROWS` synthetic rows of covariates with the released marginals `found`.

    `moment` is the released second moment, with noise of sd `noise_sd`. Without it, the columns are
    drawn independently.
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
    """Return the released second moment with less noise.

    Only entries of columns that are not constant are changed.
    """
    matrix = triangle(moment, len(design.layout))
    free = np.array([feature.kind != "intercept" for feature in design.layout])
    inner = np.ix_(free, free)
    matrix[inner] = denoised(matrix[inner], noise_sd / math.sqrt(2.0))
    upper = np.triu_indices(len(matrix))
    return matrix[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))


def denoised(seen: np.ndarray, noise_sd: float) -> np.ndarray:
    """Return an estimate of a symmetric matrix from `seen`, which is the matrix plus normal noise.

    The noise has the sd `noise_sd` off the diagonal and √2·`noise_sd` on the diagonal, so its
    distribution is the same in every orthonormal basis. Noise moves eigenvalues apart. The estimate
    has the eigenvectors of `seen`, and each eigenvalue λ is replaced by λ − 2·noise_sd²·Σⱼ 1/(λ −
    λⱼ), where λⱼ are the other eigenvalues. Terms with |λ − λⱼ| below about 2·noise_sd are reduced.
    """
    values, vectors = np.linalg.eigh(seen)
    gaps = values[:, None] - values
    pushed = np.sum(gaps / (np.square(gaps) + (2.0 * noise_sd) ** 2 + 1e-300), axis=1)
    return (vectors * (values - 2.0 * noise_sd**2 * pushed)) @ vectors.T


def check_ranges(design: Design, tables: Sequence[np.ndarray]) -> None:
    """Raise a DataError if the values of a column do not fit the range in which they are counted.

    A private method computes no range from the records. Numeric columns without declared bounds are
    therefore counted between −3 and 3. `tacit.methods.scoring.units.check_units` explains when
    records are checked.
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
            f"its public bounds with tacit.from_numpyro(…, columns={{{name.split('[')[0]!r}: (low, "
            "high)}), or scale the column with public constants, e.g. (x − 60)/15"
        )


def counted_at_ends(design: Design, counts: np.ndarray, noise_sd: float) -> str | None:
    """Return the reason why a column is probably not on the scale assumed for its counts, or None
    if the counts give no such reason.
    """
    seen = counted_at_end(design.layout, design.counted, counts, noise_sd)
    return None if seen is None else f"{seen}; declare its low and high"
