"""Draws, predictions and log densities in ArviZ's format, for ArviZ 0.2x and 1.x."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacit.data.records import len_records
from tacit.errors import ConfigError, DataError
from tacit.models import Model, Records
from tacit.models.capabilities import SimulatesOutcomes
from tacit.models.glm.normal import LOG_NOISE
from tacit.models.outcomes import OutcomeLaw

if TYPE_CHECKING:
    from tacit.results.posterior import Posterior

RECORD = "record"
JOINT = "outcome"
"""Name under which the log density of a record with several outcomes is stored."""
PREDICTIVE_STREAM = 1


def arviz_tree(groups: dict[str, dict[str, np.ndarray]], **named: Any) -> Any:
    """Convert groups to InferenceData (ArviZ up to version 0.2x) or DataTree (later versions)."""
    try:
        import arviz
    except ImportError:
        raise ConfigError("ArviZ is not installed; install it: pip install tacit[arviz]") from None
    if "posterior" in inspect.signature(arviz.from_dict).parameters:
        return arviz.from_dict(**groups, **named)
    return arviz.from_dict(groups, **named)


class OwnUnits(NamedTuple):
    """Functions and numbers that convert draws of θ and outcomes to the user's units."""

    terms: tuple[str, ...]
    coefficients: Callable[[np.ndarray], np.ndarray]
    """Converts draws of θ to draws of the coefficients of `terms`."""
    center: float = 0.0
    scale: float = 1.0


def arviz_of(
    posterior: Posterior,
    count: int,
    *,
    seed: int,
    records: Records | None,
    units: OwnUnits | None = None,
) -> Any:
    """Convert draws of a posterior, and optionally groups that describe records, to ArviZ's format.

    Parameters
    ----------
    posterior
        The posterior.
    count, seed
        Number and seed of the draws.
    records
        Prepared records with their outcomes, which add the groups of `record_groups`; None adds no
        groups.
    units
        Conversion to the user's units; the coefficients are then named `beta`. None keeps θ, named
        `theta`, unchanged.
    """
    theta = posterior.sample(count, seed=seed)
    if units is None:
        values = {"theta": theta}
        dims, coords = {"theta": ["name"]}, {"name": list(posterior.names)}
    else:
        values = {"beta": units.coefficients(theta)}
        dims, coords = {"beta": ["term"]}, {"term": list(units.terms)}
        if LOG_NOISE in posterior.names:
            values["noise_sd"] = units.scale * np.exp(theta[:, -1])
    values |= posterior.draws(count, seed=seed)
    groups = {"posterior": {name: value[None] for name, value in values.items()}}
    if records is not None:
        found = record_groups(posterior.model, theta, records, seed)
        groups |= found if units is None else _in_units(found, units)
    return arviz_tree(groups, coords=coords, dims=dims | record_dims(groups))


def _in_units(
    groups: dict[str, dict[str, np.ndarray]], units: OwnUnits
) -> dict[str, dict[str, np.ndarray]]:
    """Convert outcomes and their log densities to the original unit of the outcome."""
    if (units.center, units.scale) == (0.0, 1.0):
        return groups
    return {
        group: {
            name: value - math.log(units.scale)
            if group == "log_likelihood"
            else units.center + units.scale * value
            for name, value in values.items()
        }
        for group, values in groups.items()
    }


def record_groups(
    model: Model, theta: np.ndarray, records: Records, seed: int
) -> dict[str, dict[str, np.ndarray]]:
    """Compute the groups log_likelihood, observed_data and posterior_predictive at draws of θ.

    The last two are left out for models whose outcomes cannot be simulated.

    Parameters
    ----------
    model
        The model.
    theta
        Draws of shape (draws, dimension).
    records
        Prepared records with their outcomes.
    seed
        Seed of the simulated outcomes.
    """
    import jax

    records = {key: np.asarray(value) for key, value in records.items()}
    if len_records(records) == 0:
        raise DataError("data has no records; give at least one")
    if model.x_columns is not None and "y" not in records:
        raise DataError("data has no outcome; log densities need the observed outcome of a record")
    model.check_records("data", records)  # JAX would clamp an index out of range
    density = jax.jit(
        lambda draws: jax.lax.map(lambda one: model.log_likelihood(one, records), draws)
    )
    try:
        logs = np.asarray(density(theta), np.float64)[None]
    except jax.errors.TracerArrayConversionError:  # a model in NumPy
        raise ConfigError(
            f"model {model.kind!r} has no log densities for ArviZ; leave the records out"
        ) from None
    law = _law(model)
    if law is None:
        return {"log_likelihood": {JOINT: logs}}
    observed = _named(jax.vmap(lambda row: law.observed(_batch(row)))(records))
    drawn = _named(_simulated(law, theta, records, seed))
    name = next(iter(observed)) if len(observed) == 1 else JOINT
    return {
        "log_likelihood": {name: logs},
        "observed_data": observed,
        "posterior_predictive": {key: value[None] for key, value in drawn.items()},
    }


def record_dims(groups: dict[str, dict[str, np.ndarray]]) -> dict[str, list[str]]:
    """Return the names of the dimensions of every variable that has one value per record."""
    found = groups.get("observed_data", {})
    dims = {name: [RECORD] for name, value in found.items() if value.ndim == 1}
    return dims | {name: [RECORD] for name in groups.get("log_likelihood", {})}


def _simulated(law: OutcomeLaw, theta: np.ndarray, records: Records, seed: int) -> Any:
    """Simulate one outcome per draw and record."""
    import jax

    count = len_records(records)

    def of_draw(pair: Any) -> Any:
        draw, key = pair

        def of_record(row: Any, own: Any) -> Any:
            return law.sample(law.parameters(draw, _batch(row)), own)

        return jax.vmap(of_record)(records, jax.random.split(key, count))

    root = jax.random.fold_in(jax.random.key(seed), PREDICTIVE_STREAM)
    keys = jax.random.split(root, len(theta))
    return jax.jit(lambda pairs: jax.lax.map(of_draw, pairs))((theta, keys))


def _law(model: Model) -> OutcomeLaw | None:
    if not isinstance(model, SimulatesOutcomes):
        return None
    try:
        return model.outcome_law()
    except ConfigError:
        return None


def _batch(row: Records) -> Records:
    """Return one record as a batch of length 1."""
    return {key: value[None] for key, value in row.items()}


def _named(values: Any) -> dict[str, np.ndarray]:
    named = values if isinstance(values, dict) else {"y": values}
    squeezed = {}
    for name, value in named.items():
        array = np.asarray(value)
        # A NumPyro site in a plate over one record has an axis of length 1 for it.
        squeezed[name] = array[..., 0] if array.ndim > 1 and array.shape[-1] == 1 else array
    return squeezed
