"""Predictions for new, raw records: means, intervals and draws in the user's units."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl

from tacit.data.frames import raw_frame
from tacit.errors import ConfigError, DataError
from tacit.models import GeneralisedLinear, Model
from tacit.models.capabilities import MixturePredictive, NumPyResponses
from tacit.models.predictive import draw_parameters, project
from tacit.results.posterior import INTERVAL, Posterior
from tacit.results.predict import predict
from tacit.results.raw_records import Prepared, prepared_records, schema_of
from tacit.results.saved import StoredModel
from tacit.results.summary import DataFacts, declared_columns

Kind = Literal["mean", "interval", "draws", "outcomes"]
INTERVAL_DRAWS = 2000
"""Number of draws for intervals that have no closed form."""


class NewRecords(NamedTuple):
    """Prepared new records, the posterior, and a description of the predicted quantity.

    A numeric outcome y was rescaled to (y − `center`)/`scale` for the fit.
    """

    prepared: Prepared
    posterior: Posterior
    what: str
    """Description of the predicted quantity, e.g. "probability of died = yes"."""
    levels: tuple[str, ...]
    """Levels of a categorical outcome."""
    center: float
    scale: float
    codes: tuple[str, ...] = ()
    """Levels of the outcome in the order of y; empty for numbers, and if y = 0 stands for several
    levels.
    """


def read_new(posterior: Posterior, data: DataFacts, records: Any) -> NewRecords:
    """Prepare new records in the same way as those of a fit. They need no outcome.

    Parameters
    ----------
    posterior
        The posterior of the fit.
    data
        How the records of the fit were prepared.
    records
        A data frame of any kind, a dictionary of columns or the path of a file; prepared arrays,
        ``{"x": …}``, are used unchanged.
    """
    model = posterior.model
    if isinstance(model, StoredModel):
        raise model.refusal()
    if not posterior.family.is_proper(posterior.natural):
        raise ConfigError(
            "the posterior is not a proper distribution and cannot predict; fit again"
        )
    center, scale = outcome_unit(model, data)
    named = _words(model, data)
    schema = schema_of(data)
    by_name = schema is None and model.record_columns is not None
    if isinstance(records, dict) and records and (by_name or _is_prepared(records)):
        arrays = {name: np.asarray(column) for name, column in records.items()}
        prepared = Prepared(arrays, np.ones(len(next(iter(arrays.values()))), dtype=bool), {})
    elif schema is not None:
        prepared = prepared_records(schema, records, "new records", keep=tuple(data.keep))
    elif by_name:
        prepared = _by_name(model, records)
    else:
        raise ConfigError(
            "this fit was made from plain arrays without a schema; give the new records as "
            '{"x": array}, with the columns of the training records'
        )
    prepared = _with_outcome(model, prepared)
    if by_name:
        model.check_records("new records", prepared.records)
    return NewRecords(prepared, posterior, *named, center, scale, _codes(model, data))


def _is_prepared(records: dict[str, Any]) -> bool:
    return "x" in records and np.ndim(records["x"]) == 2


def _by_name(model: Model, records: Any) -> Prepared:
    """Return the columns that a model without x reads by name (`Model.record_columns`).

    The outcome may be missing.
    """
    frame = raw_frame(records, "new records")
    names = [name for name in model.record_columns or () if name in frame.names]
    table = frame.select(names)
    arrays = {}
    for name in names:
        column = table[name]
        if not (column.dtype.is_numeric() or column.dtype == pl.Boolean) or column.null_count():
            raise DataError(
                f'new records, column "{name}": the model needs numbers in every record; recode '
                "levels as 0, 1, … and fill in missing values"
            )
        arrays[name] = column.to_numpy()
    return Prepared(arrays, np.ones(frame.rows, dtype=bool), {})


def _with_outcome(model: Model, prepared: Prepared) -> Prepared:
    """Add zeros as column y if the model needs this column; predicted means do not depend on it."""
    takes_y = model.record_columns is None or "y" in model.record_columns
    if not takes_y or "y" in prepared.records:
        return prepared
    zeros = np.zeros(len(prepared.complete))
    return prepared._replace(records=prepared.records | {"y": zeros})


def outcome_unit(model: Model, data: DataFacts) -> tuple[float, float]:
    """Return (center, scale), with which a numeric outcome y was rescaled to (y − center)/scale;
    (0, 1) if the outcome was not rescaled.
    """
    columns = declared_columns(data) or ()
    config = next((one for one in columns if one.name == data.outcome), None)
    if config is None or config.levels or not model.predicts_in_outcome_unit:
        return 0.0, 1.0
    if config.center is None or config.scale is None:
        return 0.0, 1.0
    return config.center, config.scale


def _words(model: Model, data: DataFacts) -> tuple[str, tuple[str, ...]]:
    if model.prediction_words is not None:
        return model.prediction_words
    name = data.outcome or "y"
    if model.output == "bernoulli":
        return f"probability of {name} = {data.positive or 1}", ()
    if model.output == "categorical":
        return f"probability of each level of {name}", tuple(data.levels)
    return f"mean of {name}", ()


def _codes(model: Model, data: DataFacts) -> tuple[str, ...]:
    """Return the levels of the outcome in the order of y = 0, 1, …"""
    if model.output == "categorical":
        return tuple(data.levels)
    columns = declared_columns(data) or ()
    config = next((one for one in columns if one.name == data.outcome), None)
    if model.output != "bernoulli" or config is None or data.positive is None:
        return ()
    others = [level for level in config.levels if level != data.positive]
    return (others[0], data.positive) if len(others) == 1 else ()


def _as_coded(found: np.ndarray, codes: tuple[str, ...]) -> np.ndarray:
    """Replace y = 0, 1, … by the levels of the outcome; levels that are numbers become numbers.

    Booleans stay 0 and 1.
    """
    if not codes or set(codes) == {"false", "true"}:
        return found
    numbers = pl.Series(codes).cast(pl.Float64, strict=False)
    table = np.array(codes, dtype=object) if numbers.null_count() else numbers.to_numpy()
    return table[np.asarray(found).astype(np.int64)]


def predicted(
    new: NewRecords,
    kind: Kind = "mean",
    *,
    level: float = INTERVAL,
    draws: int = 1000,
    seed: int = 0,
) -> np.ndarray | pl.DataFrame:
    """Return predictions for prepared new records.

    Parameters
    ----------
    new
        The records.
    kind
        "mean": E[y | x], which is a probability for a yes/no outcome, and has one column per level
        for an outcome with levels. "interval": a frame with the mean and the ends of a central
        interval. The interval is for a new outcome if it is a number or a count, and for the
        probability otherwise. "draws": the mean given each draw of the parameters. "outcomes": a
        new outcome per draw of the parameters, with the levels of the records: numbers, or an
        array of texts.
    level
        Probability of the intervals.
    draws, seed
        Number and seed of draws.
    """
    if kind not in get_args(Kind):
        raise ConfigError(f"kind = {kind!r}; choose from {', '.join(get_args(Kind))}")
    if not 0 < level < 1:
        raise ConfigError(f"level = {level!r}; it must be between 0 and 1")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ConfigError(f"draws = {draws!r}; give a whole number, at least 1")
    found = _PREDICTIONS[kind](new, level, draws, seed)
    if new.prepared.complete.all():
        return found
    gone = ~new.prepared.complete
    if isinstance(found, pl.DataFrame):
        return found.with_columns(
            pl.when(pl.Series(gone)).then(None).otherwise(pl.col(name)).alias(name)
            for name in found.columns
        )
    if found.dtype == object:  # levels
        found[:, gone] = None
        return found
    found = np.array(found, dtype=np.float64)
    found[gone if kind == "mean" else (slice(None), gone)] = np.nan
    return found


def _mean(new: NewRecords, level: float, draws: int, seed: int) -> np.ndarray:
    del level
    model, q, records = new.posterior.model, new.posterior, new.prepared.records
    if model.record_columns is None:
        found = predict(model, q.family, q.natural, records, draws=draws, seed=seed).mean
    else:
        found = _responses(new, draws, seed).mean(axis=0)
    return new.center + new.scale * np.asarray(found)


def _draws(new: NewRecords, level: float, draws: int, seed: int) -> np.ndarray:
    del level
    return new.center + new.scale * _responses(new, draws, seed)


def _theta(new: NewRecords, draws: int, seed: int) -> np.ndarray:
    q = new.posterior
    if isinstance(q.model, NumPyResponses):  # without a compiler
        return draw_parameters(q.family, q.natural, draws, seed)
    return q.sample(draws, seed=seed)


def _responses(new: NewRecords, draws: int, seed: int) -> np.ndarray:
    """Return E[y | x, θ] for each draw of θ, with shape (draws, n) or (draws, n, levels)."""
    model, records = new.posterior.model, new.prepared.records
    theta = _theta(new, draws, seed)
    if isinstance(model, NumPyResponses):
        return model.responses(theta, records)
    if not model.traceable:
        return np.stack([np.asarray(model.response(draw, records)) for draw in theta])
    import jax

    one = jax.jit(lambda draw: model.response(draw, records))
    return np.stack([np.asarray(one(draw)) for draw in theta])


def _outcomes(new: NewRecords, level: float, draws: int, seed: int) -> np.ndarray:
    del level
    theta = _theta(new, draws, seed)
    means = _responses(new, draws, seed)
    found = new.posterior.model.draw_outcomes(theta, means, new.prepared.records, seed)
    return new.center + new.scale * found


def _coded_outcomes(new: NewRecords, level: float, draws: int, seed: int) -> np.ndarray:
    return _as_coded(_outcomes(new, level, draws, seed), new.codes)


def _interval(new: NewRecords, level: float, draws: int, seed: int) -> pl.DataFrame:
    model = new.posterior.model
    mean = _mean(new, level, draws, seed)
    if mean.ndim == 2 and model.uncalibrated is not None:  # intervals would claim too much
        return pl.DataFrame({name: mean[:, place] for place, name in enumerate(new.levels)})
    if mean.ndim == 2:
        low, high = _quantiles(_responses(new, INTERVAL_DRAWS, seed), level)
        columns = {}
        for place, name in enumerate(new.levels or map(str, range(mean.shape[1]))):
            columns[name] = mean[:, place]
            columns[f"{name} low"], columns[f"{name} high"] = low[:, place], high[:, place]
        return pl.DataFrame(columns)
    name = "probability" if model.output == "bernoulli" else "mean"
    low, high = _ends(new, level, seed)
    return pl.DataFrame({name: mean, "low": low, "high": high})


def _ends(new: NewRecords, level: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper ends of the interval for each record: for the probability of a
    yes/no outcome, and for a new outcome otherwise.
    """
    model, q, records = new.posterior.model, new.posterior, new.prepared.records
    reach = NormalDist().inv_cdf(0.5 + level / 2)
    if isinstance(model, GeneralisedLinear) and model.output == "bernoulli":
        mean, variance = project(model, q.family, q.natural, records["x"])
        sd = np.sqrt(variance)
        low, high = (model.inverse_link(mean + sign * reach * sd) for sign in (-1.0, 1.0))
        return np.minimum(low, high), np.maximum(low, high)
    if isinstance(model, MixturePredictive):
        found = model.mixture(q.family, q.natural, records["x"])
        low, high = (found.quantile(0.5 + sign * level / 2) for sign in (-1.0, 1.0))
        return new.center + new.scale * low, new.center + new.scale * high
    if model.output == "gaussian" and model.record_columns is None:
        found = predict(model, q.family, q.natural, records, draws=INTERVAL_DRAWS, seed=seed)
        if found.sd is not None:
            middle = new.center + new.scale * found.mean
            return middle - reach * new.scale * found.sd, middle + reach * new.scale * found.sd
    draw = _draws if model.output == "bernoulli" else _outcomes
    return _quantiles(draw(new, level, INTERVAL_DRAWS, seed), level)


def _quantiles(values: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.quantile(values, (0.5 - level / 2, 0.5 + level / 2), axis=0)
    return low, high


_PREDICTIONS: dict[str, Callable[..., Any]] = {
    "mean": _mean,
    "interval": _interval,
    "draws": _draws,
    "outcomes": _coded_outcomes,
}
