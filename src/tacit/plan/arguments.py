"""Convert and validate the arguments of `tacit.fit`.

Names and classes are converted to objects. Other values raise an error with a suggestion.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tacit.data import Federation
from tacit.errors import ConfigError, DataError
from tacit.methods import METHODS, LocalMethod
from tacit.models import Model, Records
from tacit.models.capabilities import Coefficients
from tacit.server.schedule import SCHEDULES, Schedule
from tacit.support.argument_names import column_key

RECORDS = "a dictionary of arrays such as {'x': (n, columns), 'y': (n,)}"


def as_schedule(value: Any) -> Schedule | None:
    """Return a schedule; `value` is its name, its class or the schedule itself. None stays None."""
    return _made("schedule", value, Schedule, SCHEDULES)


def as_method(value: Any) -> LocalMethod | None:
    """Return a local method; `value` is its name, its class or the method itself.

    The result is None for None and for "auto".
    """
    return None if value == "auto" else _made("method", value, LocalMethod, METHODS)


def _made(argument: str, value: Any, base: type, kinds: Mapping[str, type]) -> Any:
    if value is None or isinstance(value, base):
        return value
    if isinstance(value, type) and issubclass(value, base):
        return value()
    if isinstance(value, str) and value in kinds:
        return kinds[value]()
    example = next(iter(kinds.values())).__name__
    raise ConfigError(
        f"{argument} = {value!r}; {_advice(value, kinds)} (to set options, give an object such as "
        f"tacit.{example}())"
    )


def _advice(value: Any, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}"


def as_seed(value: Any) -> int:
    """Convert a value to an integer, or raise a ConfigError.

    The range is checked later, when the plan is made.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"seed = {value!r}; give a whole number from 0 to {2**32 - 1}") from None


def check_callback(value: Any) -> None:
    """Raise a ConfigError if a callback is neither callable nor None."""
    if value is not None and not callable(value):
        raise ConfigError(f"callback = {value!r}; give a function of (state, log), or leave it out")


def check_model(model: Any) -> None:
    """Raise a ConfigError if the value is neither a model nor a model class."""
    if isinstance(model, Model) or (isinstance(model, type) and issubclass(model, Model)):
        return
    hint = "convert a NumPyro function with tacit.from_numpyro(function, example), or "
    raise ConfigError(
        f"model = {_shown(model)}; {hint if callable(model) else ''}give a model such as "
        "tacit.models.LogisticRegression(('age', 'sex'))"
    )


def as_parties(parties: Any) -> dict[str, Records]:
    """Return the records of each party as a dictionary of NumPy arrays, or raise a DataError."""
    if not isinstance(parties, dict):
        raise DataError(
            f"the parties are a {_shown(parties)}; give a dictionary from party names to "
            f"records, each {RECORDS}, or a federation from tacit.datasets.load('file', path=…, "
            "outcome=…, columns=…)"
        )
    for name, records in parties.items():
        if not isinstance(name, str):
            raise DataError(f"party name {name!r} is not a string; use {str(name)!r}")
        check_columns(f"party {name!r}", records)
    return {
        name: {key: np.asarray(column) for key, column in records.items()}
        for name, records in parties.items()
    }


def check_columns(owner: str, records: Any) -> None:
    """Raise a DataError if the records are not a dictionary of numeric arrays.

    `owner` is the beginning of error messages, such as "party 'north'".
    """
    if not isinstance(records, dict):
        raise DataError(
            f"the records of {owner} are a {type(records).__name__}; give {RECORDS}, or for "
            "documents tacit.datasets.document_records(counts, width=…)"
        )
    for key, column in records.items():
        try:
            array = np.asarray(column)
        except ValueError:
            raise DataError(
                f"{owner}, column {key!r}: its rows differ in length; give all rows the same length"
            ) from None
        if array.ndim == 0:
            raise DataError(
                f"{owner}, column {key!r} is the single value {_shown(column)}; give an array with "
                "one value or row per record"
            )
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"{owner}, column {key!r} holds {_content(array)}, not real numbers; recode labels "
                "and levels as 0, 1, …, or declare the column as categorical in tacit.datasets.load"
            )


def check_test(parties: dict[str, Records], test: Any) -> None:
    """Raise a DataError if the held-out records are invalid. This is called before a fit is
    charged.
    """
    if test is None:
        return
    check_columns("test", test)
    form = {key: np.shape(column)[1:] for key, column in next(iter(parties.values())).items()}
    lengths = {key: len(column) for key, column in test.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"the columns of argument test have different lengths {lengths}; give one entry per "
            "record"
        )
    for key in form:
        if key not in test and key not in ("x", "y"):
            continue  # such as the person of a record
        if key not in test:
            raise DataError(f"argument test has no column {key!r}; add it, or leave test out")
        if np.shape(test[key])[1:] != form[key]:
            raise DataError(
                f"argument test, column {key!r} has rows of shape {np.shape(test[key])[1:]}, but "
                f"the rows of the parties' records have shape {form[key]}; prepare the held-out "
                "records in the same way as the parties' records"
            )
        column = np.asarray(test[key])
        if column.dtype.kind == "f" and not np.all(np.isfinite(column)):
            raise DataError(
                f"argument test, column {key!r}: a value is not finite; correct it, or drop the "
                "record"
            )


def _content(array: np.ndarray) -> str:
    kind = {"U": "text", "S": "bytes", "c": "complex numbers", "M": "dates"}.get(array.dtype.kind)
    return kind or f"values of type {array.dtype}"


def _shown(value: Any) -> str:
    simple = isinstance(value, str | int | float | type(None))
    return repr(value)[:60] if simple else type(value).__name__


def check_bounded(federation: Federation) -> None:
    """Raise a ConfigError if a column lacks public bounds or levels.

    Bounds or levels that were read from records do not count until the user confirms them.
    """
    columns = () if federation.schema is None else federation.schema.columns
    drafts = [column.name for column in columns if column.draft]
    if drafts:
        more = f" and {len(drafts) - 1} more" if len(drafts) > 1 else ""
        raise ConfigError(
            f"{column_key(drafts[0])}.draft = true{more}: its bounds or levels were read from "
            "records, and a private run needs public ones; confirm or replace them, then remove "
            "draft"
        )
    if federation.unbounded:
        names = ", ".join(federation.unbounded[:5])
        raise ConfigError(
            f"a private run needs public bounds, but these columns have none: {names}; declare "
            "low and high, or the levels of a category, in [columns] (bounds that are read from "
            "the records are not private)"
        )


def check_declared(model: Model, parties: dict[str, Records]) -> tuple[str, ...]:
    """Raise a DataError if a value is outside its declared bounds; return the columns without
    bounds.

    This is for records that are given as arrays, which are never changed. Records of a `Federation`
    are clipped to their bounds instead.
    """
    if not isinstance(model, Coefficients):
        facts = getattr(model, "columns", None)  # of `tacit.from_numpyro`
        declared: Mapping[str, Any] = facts if isinstance(facts, Mapping) else {}
        codes = {column for column, one in declared.items() if isinstance(one, int)}
        codes |= set(getattr(model, "index_ranges", ()))  # `Model.check_records` refuses those
        bounds = {column: one for column, one in declared.items() if column not in codes}
        for name, records in parties.items():
            _check_within(name, records, bounds)
        columns = next(iter(parties.values()), {}) if model.listed else ()
        return tuple(name for name in columns if name not in declared)
    for name, records in parties.items():
        x = np.asarray(records["x"]) if "x" in records else np.zeros((0, len(model.layout)))
        if x.ndim != 2 or x.shape[1] != len(model.layout) or x.dtype.kind not in "fiub":
            continue  # the plan reports what is wrong with it
        for place, feature in enumerate(model.layout):
            slack = 1e-9 * (1.0 + abs(feature.low) + abs(feature.high))
            column = x[:, place]
            inside = (column >= feature.low - slack) & (column <= feature.high + slack)
            if feature.kind != "intercept" and math.isfinite(slack) and not np.all(inside):
                raise DataError(
                    f"party {name!r}, column {feature.source!r}: a value is outside the "
                    f"declared bounds [{feature.low:g}, {feature.high:g}]; clip the column, e.g. "
                    "numpy.clip(column, low, high), or declare wider bounds"
                )
    return tuple(
        feature.source
        for feature in model.layout
        if feature.kind == "numeric" and not math.isfinite(feature.high - feature.low)
    )


def _check_within(
    party: str, records: Records, declared: Mapping[str, tuple[float, float]]
) -> None:
    for column, (low, high) in declared.items():
        values = np.asarray(records.get(column, ()))
        if values.dtype.kind in "fiub" and not np.all((values >= low) & (values <= high)):
            raise DataError(
                f"party {party!r}, column {column!r}: a value is outside the declared bounds "
                f"[{low:g}, {high:g}]; clip the column, e.g. numpy.clip(column, low, high), or "
                "declare wider bounds"
            )


def _check_fits(model: type[Model], federation: Federation) -> None:
    if not model.listed and model.Settings.needs_outcome:
        raise ConfigError(
            f"model = {model.__name__} is a class; pass an instance, e.g. "
            f"{model.__name__}(10, words={len(federation.names)})"
        )
    needed = getattr(model, "output", None)
    if needed in ("bernoulli", "gaussian", "categorical") and needed != federation.output:
        raise ConfigError(
            f"model = {model.__name__} is for a {needed} outcome, but outcome "
            f"{federation.outcome!r} is {federation.output}; choose another model"
        )
