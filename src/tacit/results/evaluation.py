"""Held-out metrics and other optional computations after training; failures become notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tacit.data.federation import Federation
from tacit.data.records import len_records
from tacit.models import Records
from tacit.plan.plan import Plan
from tacit.results import calibration_bins, predict, score
from tacit.results.posterior import Posterior
from tacit.results.summary import Metrics

T = TypeVar("T")
MOST_LOG_UNIT = 700.0
"""Largest absolute logarithm of the factor that converts a density to the original units. With
hundreds of columns the factor could overflow. Above this limit the density is not converted.
"""
MOST_PARTIES = 100
"""If there are more parties than this, metrics per party are not computed."""


class EvaluationWarning(UserWarning):
    """An optional computation failed; the posterior is unaffected."""


@dataclass
class Attempts:
    """Optional computations after training, whose failures are noted instead of raised."""

    failed: dict[str, str] = field(default_factory=dict)
    """Failed computations. Keys are their descriptions, and values are the reasons."""

    def attempt(self, what: str, work: Callable[[], T], *, otherwise: T) -> T:
        """Return the result of `work`; if it fails, note the reason and return `otherwise`."""
        try:
            return work()
        except Exception as error:  # any error: the run was charged
            reason = " ".join(str(error).split()) or type(error).__name__
            self.failed[what] = reason
            return otherwise


def cannot_evaluate(plan: Plan, test: Records | None) -> str | None:
    """Return the reason why held-out metrics cannot be computed; None if they can be computed.

    User-defined models are tested on blank rows with the shape of the records, before anything is
    charged. Other models are not tested.
    """
    if test is None or not plan.model.user_program:
        return None
    import jax

    rows = {key: jax.ShapeDtypeStruct((2, *v.shape[1:]), v.dtype) for key, v in test.items()}
    try:
        jax.eval_shape(plan.model.response, np.zeros(plan.model.dimension), rows)
    except Exception as error:  # user code may raise anything
        return " ".join(str(error).split())
    return None


def measure(
    posterior: Posterior,
    train: Records | None,
    test: Records | None,
    draws: int,
    seed: int,
    unit: float = 1.0,
) -> tuple[dict[str, Any], list[Any] | None]:
    """Compute metrics on training and held-out records, and calibration bins of the held-out
    records.

    `unit` is the scale by which a numeric outcome was divided; metrics are converted back to the
    original unit of the outcome.
    """
    metrics: dict[str, Any] = {"training": None, "held_out": None}
    bins = None
    for split, records in (("training", train), ("held_out", test)):
        if records is None or len_records(records) == 0:
            continue
        if "y" not in records:  # no outcome, or a NumPyro model with another name for it
            if split == "held_out":
                found = posterior.model.measured(posterior.natural, records, seed)
                metrics[split] = None if found is None else _in_unit({**found}, unit)
            continue
        prediction = _predict(posterior, records, draws, seed)
        metrics[split] = _in_unit(score(posterior.model, prediction, records), unit)
        if split == "held_out" and posterior.model.output == "bernoulli":
            bins = calibration_bins(prediction.mean, records["y"])
    return metrics, bins


def measure_parties(
    posterior: Posterior, parties: Mapping[str, Records], draws: int, seed: int, unit: float = 1.0
) -> dict[str, Metrics]:
    """Return the metrics of each party on its own records, by party. The result is empty for models
    without columns x.
    """
    model = posterior.model
    if model.x_columns is None or len(parties) > MOST_PARTIES:
        return {}
    found = {}
    for name, records in parties.items():
        if len_records(records):
            prediction = _predict(posterior, records, draws, seed)
            found[name] = _in_unit(score(model, prediction, records), unit)
    return found


def outcome_unit(federation: Federation | None) -> float:
    """Return the scale by which a numeric outcome was divided; 1 for other outcomes.

    Without an outcome, return the product of the scales of all columns. Dividing the density of a
    record by this product converts it to the original units.
    """
    if federation is None or federation.schema is None:
        return 1.0
    if not federation.outcome:
        scales = [column.affine[1] for column in federation.schema.features if column.affine]
        log_unit = float(np.sum(np.log(scales)))
        return math.exp(log_unit) if abs(log_unit) < MOST_LOG_UNIT else 1.0
    if federation.output != "gaussian":
        return 1.0
    config = federation.schema.declared(federation.outcome)
    return 1.0 if config is None or config.scale is None else config.scale


def _in_unit(metrics: Metrics, unit: float) -> Metrics:
    """Convert metrics of (y − c)/unit to metrics of y."""
    changed = dict(metrics)
    if unit != 1.0 and metrics.get("rmse") is not None:
        changed["rmse"] = unit * (metrics["rmse"] or 0.0)
    if unit != 1.0 and metrics.get("log_predictive_density") is not None:
        changed["log_predictive_density"] = (metrics["log_predictive_density"] or 0.0) - math.log(
            unit
        )
    return changed


def _predict(posterior: Posterior, records: Records, draws: int = 100, seed: int = 0) -> Any:
    return predict(
        posterior.model, posterior.family, posterior.natural, records, draws=draws, seed=seed
    )
