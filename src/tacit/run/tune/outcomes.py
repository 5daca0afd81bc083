"""Simulate outcomes of synthetic records: draw θ from the model's prior, then y from the model."""

from __future__ import annotations

import numpy as np

from tacit.data.synthetic import Bounds, Outcome
from tacit.errors import ConfigError
from tacit.expfam import MeanFieldGaussian
from tacit.models import Model, Records
from tacit.models.capabilities import Simulates


def outcome_of(model: Model) -> Outcome:
    """Return a function that simulates outcomes y for given records.

    It draws θ from the prior (for a NumPyro model, from a Gaussian approximation of the prior) and
    then y from the model given θ.
    """
    if not isinstance(model, Simulates):
        raise ConfigError(
            f"model.kind = {model.kind!r} cannot simulate outcomes, which tune needs; add a "
            "`simulate` method to the model (docs/extending.md)"
        )
    draws_y: Simulates = model

    def outcome(records: Records, bounds: Bounds, rng: np.random.Generator) -> np.ndarray:
        family = MeanFieldGaussian(model.dimension)
        location, scale = family.location_scale(model.prior(family))
        theta = location + scale * rng.standard_normal(model.dimension)
        return draws_y.simulate(theta, records, rng, bounds)

    return outcome
