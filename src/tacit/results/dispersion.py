"""Compare the variance of outcomes with the variance implied by a model that has no free variance.

The width of posterior intervals of such a model (`tacit.models.capabilities.ImpliedVariance`)
depends on the implied variance and not on the actual variance of the outcomes. The ratio of
observed to implied variance and its p-value are computed from the `DispersionSums` of all parties.
The p-value uses a gamma distribution with the same first three moments as the sum under the model.
A misfit is reported only if the p-value is significant and the ratio is large enough to matter,
because with many records even a difference that does not matter for intervals is significant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tacit.arrays import Natural
from tacit.expfam import Gaussian
from tacit.models import Model, Records
from tacit.models.capabilities import ComparesCounts, DispersionSums, ImpliedVariance

SIGNIFICANT = 1e-3
"""Two-sided p-values below this are significant."""
MATERIAL = 1.1
"""Variances that differ by at least this factor matter: intervals are then 5 % too narrow or too
wide.
"""


COMPARED_DRAWS = 128
"""Number of draws of θ over which sums are averaged."""


class Dispersion(NamedTuple):
    """Comparison of the outcomes' variance with the variance implied by the model."""

    ratio: float
    """Observed variance divided by implied variance."""
    p_value: float

    @property
    def clear(self) -> bool:
        """True if the model's variance is significantly wrong, by an amount that matters."""
        material = not 1.0 / MATERIAL < self.ratio < MATERIAL
        return material and self.p_value < SIGNIFICANT


def dispersion_of(sums: np.ndarray | DispersionSums) -> Dispersion | None:
    """Compare observed with implied variance, given `DispersionSums` over all records.

    Returns None if the implied variance is not positive or the sums are not finite.

    >>> dispersion_of(np.array([0.0, 200.0, 800.0, 100.0])).ratio
    1.0
    """
    excess, variance, third, scale = (float(one) for one in sums)
    if not (variance > 0 and third > 0 and scale > 0 and math.isfinite(excess)):
        return None
    from scipy.special import gammainc, gammaincc

    shape = 4.0 * variance**3 / third**2
    at = max(0.0, shape + excess * math.sqrt(shape / variance))
    p_value = min(1.0, 2.0 * float(min(gammainc(shape, at), gammaincc(shape, at))))
    return Dispersion(max(0.0, 1.0 + excess / scale), p_value)


def comparable(model: Model) -> ImpliedVariance | ComparesCounts | None:
    """Return the model if its variance can be compared with the records, otherwise None."""
    if isinstance(model, ImpliedVariance):
        return model
    return model if isinstance(model, ComparesCounts) and model.observes_counts else None


def measured_dispersion(
    model: Model, family: Gaussian, q: Natural, parties: Mapping[str, Records]
) -> Dispersion | None:
    """Compare the variance of the outcomes of these records with the variance that the model
    implies; return None for models that imply no variance.
    """
    compared = comparable(model)
    if compared is None:
        return None
    if not isinstance(compared, ImpliedVariance):
        return _of_draws(compared, family, q, parties)
    total, free = np.zeros(len(DispersionSums._fields)), family.free(q)
    for records in parties.values():
        eta, variance = family.free_project(free, np.asarray(records["x"], np.float64))
        y = np.asarray(records["y"], np.float64)
        total += compared.dispersion_sums(np.asarray(eta), np.asarray(variance), y, np.ones(len(y)))
    return dispersion_of(total)


def _of_draws(
    model: ComparesCounts, family: Gaussian, q: Natural, parties: Mapping[str, Records]
) -> Dispersion | None:
    import jax

    thetas = family.sample(jax.random.key(0), q, (COMPARED_DRAWS,))
    every = [records for records in parties.values() if records]
    joined = {name: np.concatenate([one[name] for one in every]) for name in every[0]}
    return dispersion_of(model.count_sums(thetas, joined))
