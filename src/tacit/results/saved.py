"""Save and load fits.

A saved fit is the public part of a run directory: result.json, posterior.npz and events.jsonl. It
is shareable: in a private fit it contains only functions of the charged releases and of public
facts.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Array
from tacit.data.schema.layout import Feature
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, FullGaussian, Natural, make_family
from tacit.expfam.rooted import RootedGaussian, stored_for
from tacit.models import Model, Records
from tacit.models.registry import model_class
from tacit.results.posterior import Posterior
from tacit.results.summary import (
    AT_PARTY,
    PARTY_SCHEMA,
    DataFacts,
    ModelFacts,
    PartyResult,
    PartyRow,
    PrivacyFacts,
    Result,
    decode,
    public_of,
    read_part,
    read_result,
    read_text,
    write_result,
)
from tacit.support.public_files import EVENTS, POSTERIOR, RESULT
from tacit.support.storage import sync_directory, write_text, writing


class StoredModel(Model):
    """Replaces the model of a loaded fit if the model could not be stored, e.g. a NumPyro function.

    A `StoredModel` has the kind and the parameter names of the original model. Methods that need
    the original model raise an error, which says how to load the fit with its model.
    """

    traceable = False

    def __init__(self, kind: str, names: tuple[str, ...], listed: bool) -> None:
        self.kind, self.names, self.listed = kind, names, listed  # pyright: ignore[reportAttributeAccessIssue]

    def refusal(self) -> ConfigError:
        """Return the error that says how to load the fit with its model."""
        return ConfigError(
            f"this fit was loaded without its model ({self.kind!r} cannot be stored); give it: "
            "tacit.load(path, model=model)"
        )

    def log_likelihood(self, theta: Array, records: Records) -> Array:
        raise self.refusal()

    def response(self, theta: Array, records: Records) -> Array:
        raise self.refusal()

    def constrain(self, theta: Array) -> dict[str, Array]:
        raise self.refusal()

    def prior(self, family: Family) -> Natural:
        raise self.refusal()


def model_settings(model: Model) -> dict[str, Any] | None:
    """Return the constructor's arguments as JSON; None if an argument has no JSON form.

    Parameters
    ----------
    model
        Any model. Its constructor's arguments are read from the attributes of the same names.
    """
    settings = {}
    for name in inspect.signature(type(model)).parameters:
        if name in model.undeclared:
            continue
        try:
            settings[name] = _as_json(getattr(model, name))
        except (AttributeError, TypeError):
            return None
    return settings


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        same = value.ndim == 1 and value.size > 0 and bool(np.all(value == value[0]))
        return _as_json(value[0].item() if same else value.tolist())
    if isinstance(value, np.generic):
        return _as_json(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity; `float` reads it again
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


def read_model(facts: ModelFacts, names: tuple[str, ...]) -> Model:
    """Return the model that a result describes; a `StoredModel` if the model could not be stored.

    Parameters
    ----------
    facts
        The "model" block of result.json.
    names
        Names of the coordinates, for a model that could not be stored.
    """
    settings = facts.settings
    if settings is None:
        return StoredModel(facts.kind, names, bool(names))
    try:
        made = model_class(facts.kind)
    except ConfigError:  # a package that is not installed here
        return StoredModel(facts.kind, names, bool(names))
    return made(**{name: _as_argument(name, value) for name, value in settings.items()})


def _as_argument(name: str, value: Any) -> Any:
    if name == "layout":
        return tuple(Feature(k, source, float(low), float(high)) for k, source, low, high in value)
    return tuple(value) if isinstance(value, list) else value


def write_posterior(path: Path, posterior: Posterior) -> None:
    """Write names, means, sds and natural parameters as a NumPy archive, durably."""
    part = path.with_name("posterior.part.npz")
    arrays = {f"natural/{key}": value for key, value in posterior.natural.items()}
    with writing(path):
        with part.open("wb") as file:
            np.savez(
                file,
                **{key: np.array(values) for key, values in posterior.table().items()},
                **arrays,  # pyright: ignore[reportArgumentType]
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)  # noqa: PTH105 - atomic on every platform
        sync_directory(path.parent)


def write_saved(folder: Path, result: Result, posterior: Posterior, history: Any) -> None:
    """Write a fit's public part into a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty directory; choose another path")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_posterior(folder / POSTERIOR, posterior)
    write_text(folder / EVENTS, "".join(json.dumps(line) + "\n" for line in history))
    write_result(folder / RESULT, result)


class Predictor(NamedTuple):
    """The parts of a finished run that predictions need."""

    posterior: Posterior
    data: DataFacts
    cautions: list[str]


def read_predictor(path: Path) -> Predictor:
    """Read the posterior and the schema from a run directory, a state directory of a server or
    party, or a saved fit.
    """
    folder = public_of(path)
    found = decode(read_text(folder / RESULT), dict[str, Any], folder / RESULT).get("schema")
    result = read_part(folder / RESULT, PartyResult) if found == PARTY_SCHEMA else None
    result = read_result(folder) if result is None else result
    if result.model is None or result.data is None:
        raise DataError(
            f"{folder / RESULT} was written by an earlier version and has no schema; run again, or "
            "use the server's state directory"
        )
    table = result.posterior
    model = read_model(result.model, tuple(table.names))
    if isinstance(model, StoredModel):
        raise model.refusal()
    natural = _read_natural(folder / POSTERIOR)
    family = _family(model, table.family, result.model.dimension, natural)
    cautions = [one.text for one in result.every_caution]
    return Predictor(Posterior(model, family, natural), result.data, cautions)


def read_saved(
    path: Path, model: Model | None = None
) -> tuple[Result, Posterior, list[dict[str, Any]]]:
    """Read result, posterior and rounds from a saved fit, the public part of a run directory, or a
    state directory.
    """
    folder = public_of(path)
    found = decode(read_text(folder / RESULT), dict[str, Any], folder / RESULT).get("schema")
    at_party = found == PARTY_SCHEMA
    result = _of_party(folder) if at_party else read_result(folder)
    names = tuple(result.posterior.names)
    model = read_model(result.model, names) if model is None else model
    if names and model.names != names:
        raise ConfigError(
            f"model has the coordinates {', '.join(model.names[:5])} …, the fit in {folder} has "
            f"{', '.join(names[:5])} …; give the model that was fitted"
        )
    natural = _read_natural(folder / POSTERIOR)
    family = _family(model, result.posterior.family, result.model.dimension, natural)
    rounds = [] if at_party else _rounds(folder)  # a party has not seen them
    return result, Posterior(model, family, natural), rounds


def _family(model: Model, kind: str, dimension: int, natural: Natural) -> Family:
    if not isinstance(model, StoredModel) and model.own_family is not None:
        return model.own_family
    family = make_family(kind, dimension)
    expected = {key: value.shape for key, value in family.zero().items()}
    if isinstance(family, FullGaussian) and "root" in natural:
        family = RootedGaussian(family.dimension)
        expected |= stored_for(family.stored_shapes, natural)
    if {key: value.shape for key, value in natural.items()} != expected:
        raise DataError(
            f"{POSTERIOR}: the arrays do not have the shapes {expected} of a {family.kind} "
            "posterior; restore the folder from a backup, or run again"
        )
    return family


def _read_natural(path: Path) -> Natural:
    try:
        with np.load(path) as stored:
            keys = [key for key in stored.files if key.startswith("natural/")]
            natural = {key.removeprefix("natural/"): stored[key] for key in keys}
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from None
    if not all(np.all(np.isfinite(value)) for value in natural.values()):
        raise DataError(f"{path}: a natural parameter is not finite; run again")
    return natural


def _of_party(folder: Path) -> Result:
    """Read the result that a party of a live federation received, and convert it to a `Result`."""
    part = read_part(folder / RESULT, PartyResult)
    if part.model is None or part.data is None:
        raise DataError(
            f"{folder / RESULT} was written by an earlier version and has no model; use the "
            "server's state directory"
        )
    private = part.privacy.startswith("Differential privacy")
    return Result(
        name=part.name,
        seed=0,
        engine=AT_PARTY,
        run=part.run,
        configuration=part.configuration,
        model=part.model,
        method="",
        schedule="",
        rounds=0,
        finished=None,
        exchanges=0,
        refused=0,
        posterior=part.posterior,
        intervals=part.intervals,
        coefficients=part.coefficients,
        metrics={"training": None, "held_out": None},
        parties=[PartyRow(name=part.party)],
        data=part.data,
        privacy=part.guarantee or PrivacyFacts(private=private, statement=part.privacy),
        converged=part.converged,
        why=part.why,
        learned=part.learned,
        cautions=part.cautions,
        clipped=part.clipped,
    )


def _rounds(folder: Path) -> list[dict[str, Any]]:
    path = folder / EVENTS
    try:
        rounds = [json.loads(line) for line in read_text(path).splitlines() if line.strip()]
    except ValueError as error:
        raise _unreadable(path, error) from None
    return list({row["round"]: row for row in rounds if row.get("event") == "round"}.values())


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(
            f"{path} is missing; give the directory of a finished run, or a folder that Fit.save "
            "wrote"
        )
    return DataError(f"{path} cannot be read ({error}); restore it from a backup, or run again")
