"""From a configuration and its data to the objects that they name."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from tacit.data import Federation
from tacit.engines.driver import Driver
from tacit.engines.in_process import InProcess
from tacit.errors import ConfigError
from tacit.methods import METHODS, LocalMethod
from tacit.methods.whitening import whitened
from tacit.models import Model, ModelSchema
from tacit.models.base import TARGETS
from tacit.models.registry import SUITED, build_model, model_class, settings_class
from tacit.run.config import Config, DampingConfig
from tacit.server.schedule import SCHEDULES, Schedule


def make_model(config: Config, federation: Federation) -> Model:
    """The model that a configuration names, for the columns that its data have."""
    options = config.model
    kind = options.kind
    if kind == "auto":
        regression = SUITED[federation.output]
        kind = "gaussian-mean" if config.data.source == "gaussian-mean" else regression
    _check_output(kind, federation)
    options.check_keys(kind)
    table = settings_class(kind)
    keys = {field.name: getattr(options, field.name) for field in msgspec.structs.fields(table)}
    return build_model(kind, table(**keys), ModelSchema.of(federation, config.seed))


def make_method(config: Config) -> LocalMethod | None:
    """The local method that a configuration names; None for "auto"."""
    options = msgspec.structs.asdict(config.method)
    kind = options.pop("kind")
    if kind != "auto":
        share, bound = options.pop("whiten"), options.pop("whiten_bound")
        if share is not None or bound is not None:
            plain = msgspec.structs.replace(config.method, whiten=None, whiten_bound=None)
            inner = make_method(msgspec.structs.replace(config, method=plain))
            return whitened(inner, share, bound)
    given = {key: value for key, value in options.items() if value is not None}
    if kind == "auto":
        if given:
            raise ConfigError(
                f"method.{next(iter(given))} is set but method.kind is 'auto'; name the method, "
                "e.g. method.kind = 'gradient-vi'"
            )
        return None
    method = METHODS[kind]
    known = sorted(options.keys() & getattr(method, "__dataclass_fields__", {}).keys())
    for key in given:
        if key not in known:
            raise ConfigError(
                f"method.{key} has no meaning for method.kind = {kind!r}, which takes "
                f"{', '.join(known) or 'no keys'}; leave it out"
            )
    return method(**given)


def make_schedule(config: Config) -> Schedule:
    """The schedule that a configuration names."""
    options = msgspec.structs.asdict(config.schedule)
    kind = options.pop("kind")
    if isinstance(config.schedule.damping, DampingConfig):
        options["damping"] = config.schedule.damping.made()
    return SCHEDULES[kind](**options)


def make_engine(config: Config) -> Callable[..., Driver]:
    """The engine that a configuration names, if what it needs is installed."""
    if config.engine.kind == "in-process":
        return InProcess
    from tacit.engines.ray import RayEngine, import_ray

    import_ray(own=config.engine.address is None)
    return functools.partial(
        RayEngine,
        address=config.engine.address,
        actors=config.engine.actors,
        wall_clock=config.engine.clock == "wall",
    )


def _check_output(kind: str, federation: Federation) -> None:
    """Refuse a model that has no likelihood for what the target is."""
    serves = model_class(kind).serves
    if federation.output in serves:
        return
    documents = federation.output == "other"
    if documents or serves == ("other",):
        what, other = ("documents", "lda") if documents else ("no documents", "auto")
        raise ConfigError(
            f"model.kind = {kind!r}, but the records are {what}; use model.kind = {other!r}"
        )
    raise ConfigError(
        f"model.kind = {kind!r}, but target {federation.target!r} is "
        f"{TARGETS[federation.output]}; use model.kind = {SUITED[federation.output]!r} or "
        "'auto'"
    )
