"""Convert formulas and data frames to the model and the federation of a fit."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.data import Federation
from tacit.data.formula import Formula, parse_formula
from tacit.data.frames import is_table
from tacit.data.prepare import warn_outside
from tacit.data.records import pooled
from tacit.data.schema.schema import Schema
from tacit.data.study import WHERE_CALLED, federation_from, open_parties
from tacit.errors import ConfigError, DataError
from tacit.models import Model, ModelSchema, Records
from tacit.models.base import OUTCOMES
from tacit.models.registry import DEFAULT_KINDS, build, model_class, model_kinds, settings_class
from tacit.models.settings import AutoModel, LinearSettings, ModelSettings
from tacit.results.raw_records import prepared_records
from tacit.support.table_reader import read_table
from tacit.support.tables import given
from tacit.support.validation import near_word

WITHOUT_FORMULA = ("normal-mean", "numpyro", "topics")
"""Kinds of models that do not read the columns of a formula."""
Family = str | Mapping[str, Any]
"""The likelihood: its name, or the [model] table of a study file as a dictionary."""


class Study(NamedTuple):
    """Model, records and held-out records of a fit."""

    model: Any
    data: Any
    test: Any


def read_study(
    model: Any,
    data: Any,
    *,
    private: bool,
    party: str | None,
    schema: Schema | None,
    family: Family,
    person: str | None,
    test: Any,
    seed: int,
) -> Study:
    """Convert a formula and data frames; other models and records are returned unchanged.

    Parameters
    ----------
    model
        A formula, a model or the class of one.
    data
        Records: data frames, files or any other form that `tacit.fit` accepts.
    private
        True: bounds and levels must come from the schema.
    party, schema, family, person, test, seed
        Arguments of `tacit.fit`.
    """
    if schema is not None and not isinstance(schema, Schema):
        raise ConfigError(
            f"schema = {type(schema).__name__}; give tacit.Schema(bounds={{…}}, levels={{…}}), or "
            "tacit.Schema.from_toml(path)"
        )
    if isinstance(model, str):
        if "~" not in model:
            raise ConfigError(
                f'model = {model!r}; give a formula such as "died ~ age + C(sex)", or a model such '
                "as tacit.models.LogisticRegression"
            )
        return _of_formula(model, data, private, party, schema, family, person, test, seed)
    if callable(model) and not isinstance(model, type | Model):
        model = _of_function(model, data, private, party)
    if isinstance(data, Federation) or not _holds_frames(data):
        _refuse_unused(party=party, schema=schema, family=family, person=person)
        return Study(model, data, test)
    columns = model.record_columns if isinstance(model, Model) else None
    if columns is None:
        raise DataError(
            "data frames and files need a formula, which names their columns, e.g. tacit.fit("
            '"died ~ age + C(sex)", records, …); or prepare them for a model with '
            "tacit.Federation.from_frame(records, formula, …)"
        )
    _refuse_unused(schema=schema, family=family, person=person)
    return Study(model, _arrays(data, party, columns), _test_arrays(test, columns))


def _of_function(function: Any, data: Any, private: bool, party: str | None) -> Model:
    """Convert a NumPyro function to a model; its arguments are columns of the records."""
    name = getattr(function, "__name__", type(function).__name__)
    wrapped = f"tacit.from_numpyro({name}, example, …)"
    if private or isinstance(data, Federation):
        facts = ", columns={'age': (18, 100), 'sex': 2}" if private else ""
        why = "privacy" if private else "a federation"
        raise ConfigError(
            f"model = {name} is a function, which cannot be combined with {why}, because a "
            "function is converted to a model with the help of some records: give "
            f"tacit.from_numpyro({name}, example{facts}), with a few synthetic records as the "
            "example"
            + (" and public bounds or numbers of levels of the columns" if private else "")
        )
    from tacit.models.numpyro.model import from_numpyro

    known = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if _holds_frames(data):
        first = next(iter(open_parties(data, party).values()))
        columns = tuple(one.name for one in known if one.name in first.names)
        parties = _arrays(data, party, columns) if columns else {}
    else:
        parties = data if isinstance(data, dict) else {}
    records = max((one for one in parties.values() if isinstance(one, dict)), key=_rows, default={})
    if any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values()):
        records = {one.name: records[one.name] for one in known if one.name in records}
    missing = [one.name for one in known if one.default is one.empty and one.name not in records]
    if missing or not records:
        found = f"the argument {', '.join(missing)} is not a column of the records"
        found = found if missing else "none of its arguments is a column of the records"
        raise ConfigError(
            f"model = {name} is a function, and its arguments must be columns of the records, but "
            f"{found}; give the arguments the names of columns, or, for arguments that are not "
            f"records, give {wrapped} with arguments={{…}}"
        )
    arrays = {key: np.asarray(value) for key, value in records.items()}
    return from_numpyro(function, {key: value[:8] for key, value in arrays.items() if value.ndim})


def _rows(records: Records) -> int:
    return len(next(iter(records.values()), ()))


def _holds_frames(data: Any) -> bool:
    """Return True for a data frame or file, and for a dict from party names to these."""
    each = list(data.values()) if isinstance(data, dict) else [data]
    return any(isinstance(one, str | Path) or is_table(one) for one in each)


def _refuse_unused(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None and value != "auto":
            raise ConfigError(
                f"{name} = {value!r} has no effect here, because it needs a formula and data "
                "frames; leave it out"
            )


def _of_formula(
    text: str,
    data: Any,
    private: bool,
    party: str | None,
    schema: Schema | None,
    family: Family,
    person: str | None,
    test: Any,
    seed: int,
) -> Study:
    formula = parse_formula(text)
    if isinstance(data, Federation):
        raise ConfigError(
            f"model = {text!r} is a formula, but the records are a Federation, whose columns are "
            "prepared already; give the data frame in place of the Federation, or a model such as "
            "tacit.models.LogisticRegression in place of the formula"
        )
    settings = _settings(family)
    _check_outcome(settings, formula)
    serves = None if isinstance(settings, AutoModel) else model_class(settings.kind).serves
    numeric = None
    if serves is not None:
        numeric = True if serves == ("gaussian",) else False if "gaussian" not in serves else None
    share = 0.0
    if isinstance(test, int | float):
        if isinstance(test, bool) or not 0 <= test < 1:
            raise ConfigError(
                f"test = {test!r}; give a share of the records to hold out, in [0, 1), or give "
                "held-out records"
            )
        share = float(test)
    federation = federation_from(
        data,
        formula,
        party=party,
        schema=schema,
        person=person,
        held_out=share,
        private=private,
        counts=settings.counts,
        numeric=numeric,
        seed=seed,
    )
    if test is not None and not isinstance(test, int | float):
        assert federation.schema is not None
        held = prepared_records(federation.schema, test, "test", outcome=True, declare=True)
        columns = federation.schema.columns
        warn_outside(held.clipped, columns, "values of test", stacklevel=WHERE_CALLED - 2)
        federation = replace(federation, test=held.records)
    return Study(_built(settings, federation, private), federation, None)


def _check_outcome(settings: ModelSettings, formula: Formula) -> None:
    """Refuse a formula with an outcome if the family has none, and a formula without an outcome if
    the family needs one.
    """
    if settings.needs_outcome == bool(formula.outcome):
        return
    if formula.outcome:
        raise ConfigError(
            f"family = {settings.kind!r} has no outcome, but the formula has {formula.outcome!r}; "
            'write it as "~ age + weight"'
        )
    raise ConfigError(
        f"family = {settings.kind!r} needs an outcome before ~; without one use family='mixture' "
        "or another model of the columns themselves"
    )


def _settings(family: Family) -> ModelSettings:
    """Return the [model] table of a family; refuse kinds of models that read no columns."""
    if isinstance(family, Mapping):
        settings = read_table(dict(family), ModelSettings, "family")
    elif family == "auto":
        settings = AutoModel()
    else:
        kinds = [kind for kind in model_kinds() if kind not in WITHOUT_FORMULA]
        if family not in kinds:
            near = near_word(str(family), kinds)
            advice = f"did you mean {near!r}?" if near else f"choose from {', '.join(kinds)}"
            raise ConfigError(
                f"family = {family!r}; {advice} (for the form of the posterior, use posterior=…)"
            )
        settings = read_table({"kind": family}, ModelSettings, "family")
    if settings.kind in WITHOUT_FORMULA:
        raise ConfigError(
            f"family = {settings.kind!r} cannot be combined with a formula, because this model "
            "does not read the columns of a formula: give a model in place of the formula"
        )
    return settings


def _built(settings: ModelSettings, federation: Federation, private: bool) -> Model:
    """Return the model of this family for the columns of a federation."""
    if isinstance(settings, AutoModel):
        kind = DEFAULT_KINDS[federation.output]
        settings = settings_class(kind)(**given(settings))
    kind = settings.kind
    if federation.output not in model_class(kind).serves:
        raise ConfigError(
            f"family = {kind!r}, but outcome {federation.outcome!r} is "
            f"{OUTCOMES[federation.output]}; use family = {DEFAULT_KINDS[federation.output]!r}"
        )
    if isinstance(settings, LinearSettings) and settings.noise_sd is None and not private:
        _refuse_exact(federation)
    return build(model_class(kind), settings, ModelSchema.of(federation))


def _refuse_exact(federation: Federation) -> None:
    """Refuse records from which a regression cannot estimate its noise: too few, or fitted
    exactly.
    """
    whole = pooled(federation.parties)
    x, y = whole["x"], whole["y"]
    rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    free = len(y) - np.linalg.matrix_rank(x)
    if free < 1:
        raise DataError(
            f"{len(y)} records are too few to infer the noise of a regression with {x.shape[1]} "
            "coefficients; use fewer columns, or family={'kind': 'linear', 'noise_sd': …}"
        )
    if not float(np.sqrt(rest @ rest / free)) > 1e-9:
        raise DataError(
            f"outcome {federation.outcome!r} is an exact function of the columns, so the noise "
            "of a regression is 0; remove the columns that determine it"
        )


def _arrays(data: Any, party: str | None, columns: tuple[str, ...]) -> dict[str, Records]:
    """Return the named columns of each party's frame as plain arrays."""
    wanted = (*columns, *(() if party is None else (party,)))
    frames = {name: frame.select(wanted) for name, frame in open_parties(data, party).items()}
    if party is not None:
        import polars as pl

        from tacit.data.prepare import names_of

        whole = pl.concat(list(frames.values()))
        labels = names_of(whole[party])
        if labels.null_count():
            raise DataError(
                f'column "{party}": a value is missing, so the record has no party; fill it in, or '
                "remove the record"
            )
        frames = {str(name): whole.filter(labels == name) for name in sorted(set(labels.to_list()))}
    return {
        name: {key: _array(frame[key], key, name) for key in columns}
        for name, frame in frames.items()
    }


def _test_arrays(test: Any, columns: tuple[str, ...]) -> Any:
    if test is None or isinstance(test, dict):
        return test
    return _arrays(test, None, columns)["records"]


def _array(series: Any, name: str, party: str) -> np.ndarray:
    if not (series.dtype.is_numeric() or series.dtype == bool):
        raise DataError(
            f'party "{party}", column "{name}" has type {series.dtype}; a NumPyro model needs '
            "numbers: recode levels as 0, 1, …"
        )
    if series.null_count():
        raise DataError(
            f'party "{party}", column "{name}": a value is missing; fill it in, or remove the '
            "record"
        )
    return series.to_numpy()
