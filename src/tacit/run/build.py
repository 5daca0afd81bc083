"""From a configuration and its data to the objects that they name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from tacit.data import Federation
from tacit.data.records import len_records
from tacit.data.schema.layout import Layout
from tacit.engines.driver import Driver
from tacit.engines.in_process import InProcess
from tacit.errors import ConfigError
from tacit.methods import METHODS, LocalMethod
from tacit.methods.whitening import whitened
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    Model,
    NeuralNetwork,
    NormalMean,
    PoissonRegression,
    SoftmaxRegression,
    TopicModel,
)
from tacit.models.base import Output
from tacit.run.config import Config, DampingConfig
from tacit.server.schedule import SCHEDULES, Schedule

SUITED = {
    "bernoulli": "logistic",
    "gaussian": "linear",
    "categorical": "softmax",
    "other": "lda",
}
"""What model.kind = "auto" is for what the target is."""
TARGETS = {"bernoulli": "yes/no", "gaussian": "numeric", "categorical": "one of several levels"}
SERVES = {
    "logistic": ("bernoulli",),
    "linear": ("gaussian",),
    "poisson": ("gaussian",),
    "gaussian-mean": ("gaussian",),
    "softmax": ("categorical",),
    "bnn": ("bernoulli", "gaussian"),
}
"""Which targets a model has a likelihood for; one that is not here takes any."""


def make_model(config: Config, federation: Federation) -> Model:
    """The model that a configuration names, for the columns that its data have."""
    options = config.model
    kind = options.kind
    if kind == "auto":
        regression = SUITED[federation.output]
        kind = "gaussian-mean" if config.data.source == "gaussian-mean" else regression
    _check_output(kind, federation)
    options.check_keys(kind)
    if kind == "bnn" and federation.output != "gaussian" and options.noise_sd != 1.0:
        raise ConfigError(
            f"model.noise_sd = {options.noise_sd} has no effect: target {federation.target!r} is "
            f"{TARGETS[federation.output]}; leave it out"
        )
    if kind == "numpyro":
        return _numpyro_model(config, federation)
    if kind == "lda":
        return _topic_model(
            len(federation.names), options.topics, options.doc_topic_prior,
            options.topic_word_prior, options.document_words, options.clip_share,
            options.document_steps, config.seed,
        )  # fmt: skip
    # Only a network starts from the seed; equal models of any run are then one object.
    seed = config.seed if kind == "bnn" else 0
    numbers = (options.prior_mean, options.prior_sd, options.noise_sd, options.hidden)
    y_bounds = _count_bounds(config, federation) if kind == "poisson" else federation.y_bounds
    schema = (federation.layout, y_bounds, federation.levels)
    return _built_in(kind, federation.names, federation.output, *numbers, seed, *schema)


@functools.lru_cache(maxsize=32)
def _built_in(
    kind: str,
    names: tuple[str, ...],
    output: Output,
    prior_mean: float,
    prior_sd: float,
    noise_sd: float,
    hidden: int,
    seed: int,
    layout: Layout | None,
    y_bounds: tuple[float, float] | None,
    levels: tuple[str, ...],
) -> Model:
    """One object for equal models: what one run compiled serves the next in the same process."""
    prior = {"prior_mean": prior_mean, "prior_sd": prior_sd}
    if kind == "logistic":
        return LogisticRegression(names, **prior, layout=layout)
    if kind == "linear":
        known = LinearRegression.from_schema(layout, y_bounds)
        return LinearRegression(names, noise_sd=noise_sd, **prior, **known)
    if kind == "poisson":
        return PoissonRegression(names, **prior, **PoissonRegression.from_schema(layout, y_bounds))
    if kind == "softmax":
        known = SoftmaxRegression.from_schema(layout, y_bounds, levels)
        return SoftmaxRegression(names, **prior, **known)
    if kind == "gaussian-mean":
        return NormalMean(noise_sd=noise_sd, **prior)
    return NeuralNetwork(
        names, hidden=hidden, output=output, noise_sd=noise_sd, prior_sd=prior_sd, start_seed=seed
    )


@functools.lru_cache(maxsize=32)
def _topic_model(
    words: int,
    topics: int,
    alpha: float | None,
    eta: float | None,
    document_words: int,
    clip_share: float,
    steps: int,
    seed: int,
) -> TopicModel:
    """One object for equal models."""
    return TopicModel(
        topics,
        words=words,
        doc_topic_prior=alpha,
        topic_word_prior=eta,
        document_words=document_words,
        clip_share=clip_share,
        most_steps=steps,
        start_seed=seed,
    )


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
    documents = federation.output == "other"
    if documents != (kind == "lda"):
        what, other = ("documents", "lda") if documents else ("no documents", "auto")
        raise ConfigError(
            f"model.kind = {kind!r}, but the records are {what}; use model.kind = {other!r}"
        )
    if federation.output not in SERVES.get(kind, (federation.output,)):
        raise ConfigError(
            f"model.kind = {kind!r}, but target {federation.target!r} is "
            f"{TARGETS[federation.output]}; use model.kind = {SUITED[federation.output]!r} or "
            "'auto'"
        )


def _count_bounds(config: Config, federation: Federation) -> tuple[float, float] | None:
    """Of counts: as the target is declared, or as model.largest says where it is not."""
    declared, largest = federation.y_bounds, config.model.largest
    if largest is None or declared is None:
        return declared if largest is None else (0.0, largest)
    if largest != declared[1]:
        raise ConfigError(
            f"model.largest = {largest:g}, but target {federation.target!r} is declared up to "
            f"{declared[1]:g}; leave model.largest out"
        )
    return declared


def _numpyro_model(config: Config, federation: Federation) -> Model:
    from tacit.models import from_numpyro

    place, colon, name = (config.model.program or "").rpartition(":")
    if not colon:
        raise ConfigError(
            f"model.program = {config.model.program!r}; write 'package.module:function' or "
            "'path/to/file.py:function'"
        )
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location("tacit_user_model", place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(place)
    except (ImportError, OSError, SyntaxError) as error:
        raise ConfigError(f"model.program = {config.model.program!r}: {error}") from error
    if not hasattr(module, name):
        raise ConfigError(f"model.program = {config.model.program!r}; {place} has no {name!r}")
    largest = max(federation.parties.values(), key=len_records)
    example = {key: value[:8] for key, value in largest.items()}
    return from_numpyro(
        getattr(module, name), example, static=config.model.static, seed=config.seed
    )
