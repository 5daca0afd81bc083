"""Predictions of a posterior by `Model.predict`."""

from __future__ import annotations

import numpy as np

from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.models import Model, Records
from tacit.models.predictive import Prediction


def predict(
    model: Model,
    family: Family,
    natural: Natural,
    records: Records,
    *,
    draws: int = 100,
    seed: int = 0,
) -> Prediction:
    """Return the posterior predictive mean and log density of each record.

    `draws` and `seed` are used only by models without a closed form or quadrature.
    Records of a regression may have no y; their log densities are then NaN.

    >>> from tacit.expfam import MeanFieldGaussian
    >>> from tacit.models import NormalMean
    >>> family = MeanFieldGaussian(1)
    >>> q = family.natural(mean=np.array([2.0]), sd=np.array([1.0]))
    >>> predict(NormalMean(noise_sd=1.0), family, q, {"y": np.array([2.0])}).sd
    array([1.41421356])
    """
    if not family.is_proper(natural):
        raise ConfigError(
            f"q is not a proper {family.kind} distribution and cannot predict; "
            "use a q with positive and finite precision"
        )
    unknown = model.x_columns is not None and "y" not in records
    if unknown:
        records = records | {"y": np.zeros(len(records["x"]))}
    found = model.predict(family, natural, records, draws=draws, seed=seed)
    if unknown:
        found = found._replace(log_density=np.full(len(records["x"]), np.nan))
    return found
