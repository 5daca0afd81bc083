"""Make model, method, schedule and engine from a configuration."""

from __future__ import annotations

from collections.abc import Callable

from tacit.data import Federation
from tacit.engines.driver import Driver
from tacit.errors import ConfigError
from tacit.methods import LocalMethod
from tacit.models import Model, ModelSchema
from tacit.models.base import OUTCOMES
from tacit.models.registry import DEFAULT_KINDS, build_model, model_class, settings_class
from tacit.models.settings import AutoModel
from tacit.run.config import Config
from tacit.server.schedule import Schedule
from tacit.support.tables import given


def make_model(config: Config, federation: Federation) -> Model:
    """Return the configured model, for the columns of the data."""
    settings = config.model
    if isinstance(settings, AutoModel):
        kind = "normal-mean" if config.data.source == "normal-mean" else None
        kind = kind or DEFAULT_KINDS[federation.output]
        settings = settings_class(kind)(**given(settings))
    _check_output(settings.kind, federation)
    return build_model(settings.kind, settings, ModelSchema.of(federation, config.seed))


def make_method(config: Config) -> LocalMethod | None:
    """Return the configured local method; None for "auto"."""
    return config.method.make()


def make_schedule(config: Config) -> Schedule:
    """Return the configured schedule."""
    return config.schedule.make()


def make_engine(config: Config) -> Callable[..., Driver]:
    """Return the configured engine; raise an error if a package is missing."""
    return config.engine.make()


def _check_output(kind: str, federation: Federation) -> None:
    serves = model_class(kind).serves
    if federation.output in serves:
        return
    if not federation.outcome or not settings_class(kind).needs_outcome:
        have, need = ("has no", "needs an") if not federation.outcome else ("names an", "has no")
        advice = "name it" if not federation.outcome else 'leave it out, or write "~ age + weight"'
        raise ConfigError(
            f"model.kind = {kind!r} {need} outcome, but this study {have} outcome"
            f"{'' if not federation.outcome else f' ({federation.outcome!r})'}: {advice}"
        )
    documents = federation.output == "other"
    if documents or serves == ("other",):
        what, other = ("documents", "topics") if documents else ("no documents", "auto")
        raise ConfigError(
            f"model.kind = {kind!r}, but the records are {what}; use model.kind = {other!r}"
        )
    raise ConfigError(
        f"model.kind = {kind!r}, but outcome {federation.outcome!r} is "
        f"{OUTCOMES[federation.output]}; use model.kind = {DEFAULT_KINDS[federation.output]!r} or "
        "'auto'"
    )
