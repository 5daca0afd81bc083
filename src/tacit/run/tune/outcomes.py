"""Targets for made-up records: θ from the model's prior, y from the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tacit.data.synthetic import Bounds, Outcome
from tacit.errors import ConfigError
from tacit.expfam import MeanFieldGaussian
from tacit.models import (
    GeneralisedLinear,
    Model,
    PoissonRegression,
    Records,
    SoftmaxRegression,
)

if TYPE_CHECKING:
    from tacit.models.numpyro.model import NumPyroModel

LOGIT_SD = 2.0
"""Logits that vary by more would make a problem that is easier than most real ones."""
LOG_RATE_SD = 1.0
"""The same for the logarithms of rates."""
TINY = 1e-12


def outcome_of(model: Model) -> Outcome:
    """What y is for records that have none yet.

    θ is drawn from the prior (of a NumPyro model: from its Gaussian stand-in). Of a Bernoulli or
    categorical output the logits are then divided by a constant so that their standard deviation
    over the records is at most 2, of counts the log-rates so that theirs is at most 1, of a bounded
    number the means so that theirs is at most a quarter of the bounds' width, and moved between the
    bounds: which for a model that is linear in θ is another θ. A NumPyro model simulates its own
    observed site, as it is.
    """

    def outcome(records: Records, bounds: Bounds, rng: np.random.Generator) -> np.ndarray:
        family = MeanFieldGaussian(model.dimension)
        location, scale = family.location_scale(model.prior(family))
        theta = location + scale * rng.standard_normal(model.dimension)
        size = len(records["y"])
        if model.kind == "numpyro":
            return _simulated(cast("NumPyroModel", model), theta, records, rng)
        if isinstance(model, SoftmaxRegression):
            eta = _at_most(records["x"] @ model.rows(theta).T, LOGIT_SD)
            return np.argmax(eta + rng.gumbel(size=eta.shape), axis=1).astype(np.float64)
        if isinstance(model, GeneralisedLinear):
            mean = logit = records["x"] @ theta
        else:
            mean = np.asarray(model.response(theta, records), np.float64)
            logit = np.log(np.maximum(mean, TINY)) - np.log(np.maximum(1 - mean, TINY))
        if model.output == "bernoulli":
            logit = _at_most(logit, LOGIT_SD)
            return (rng.random(size) * (1 + np.exp(-logit)) < 1).astype(np.float64)
        if isinstance(model, PoissonRegression):
            return rng.poisson(model.inverse_link(_at_most(mean, LOG_RATE_SD))).astype(np.float64)
        noise_sd = cast("Any", model).noise_sd
        return _between(mean, bounds) + noise_sd * rng.standard_normal(size)

    return outcome


def _at_most(values: np.ndarray, sd: float) -> np.ndarray:
    return values * min(1.0, sd / max(float(np.std(values)), TINY))


def _between(mean: np.ndarray, bounds: Bounds) -> np.ndarray:
    if bounds is None:
        return mean
    quarter = (bounds[1] - bounds[0]) / 4
    mean = _at_most(mean, quarter)
    middle = float(np.mean(mean))
    return mean + np.clip(middle, bounds[0] + quarter, bounds[1] - quarter) - middle


def _simulated(
    model: NumPyroModel, theta: np.ndarray, records: Records, rng: np.random.Generator
) -> np.ndarray:
    draws = model.predictive(theta[None], records, seed=int(rng.integers(2**31)))
    size = len(records["y"])
    shapes = {name: np.shape(value)[1:] for name, value in draws.items()}
    if len(draws) != 1 or (size,) not in shapes.values():
        raise ConfigError(
            f"model.kind = 'numpyro' observes sites of shapes {shapes} for {size} records; made-up "
            "records are for one observed number a record: name its argument y"
        )
    (value,) = draws.values()
    return np.asarray(value[0], np.float64)
