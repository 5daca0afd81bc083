"""Which models a configuration can name: kind → class and [model] table.

A model is one file and one line. The line is an entry point in the pyproject.toml of its package,

    [project.entry-points."tacit.models"]
    cloglog = "my_package:CloglogRegression"

or, for this process only, `tacit.models.register(CloglogRegression)`. A model of tacit itself has
its line in `SHIPPED`. Nothing is imported before a kind is named.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tacit.errors import ConfigError
from tacit.models.settings import AutoModel, ModelSettings
from tacit.support.tables import Kinds
from tacit.support.validation import choose_from

if TYPE_CHECKING:
    from tacit.models.base import Model, ModelSchema

M = TypeVar("M", bound="type[Model]")
GROUP = "tacit.models"
SETTINGS = "tacit.models.settings"


class Entry(NamedTuple):
    """Where a shipped model is; its table is named too, so that reading a file loads no model."""

    model: str
    settings: str


SHIPPED = {
    "logistic": Entry("tacit.models.glm.logistic:LogisticRegression", "LogisticSettings"),
    "softmax": Entry("tacit.models.glm.softmax:SoftmaxRegression", "SoftmaxSettings"),
    "linear": Entry("tacit.models.glm.linear:LinearRegression", "LinearSettings"),
    "poisson": Entry("tacit.models.glm.poisson:PoissonRegression", "PoissonSettings"),
    "normal-mean": Entry("tacit.models.normal_mean:NormalMean", "NormalMeanSettings"),
    "neural-network": Entry("tacit.models.bnn:NeuralNetwork", "NeuralNetworkSettings"),
    "numpyro": Entry("tacit.models.numpyro.model:NumPyroModel", "NumPyroSettings"),
    "topics": Entry("tacit.models.lda.model:TopicModel", "TopicSettings"),
}
WITHOUT_TABLE = {"belief-network": "tacit.models.belief.model:BeliefNetwork"}
"""Models that a stored fit may name and a configuration cannot."""
SUITED = {
    "bernoulli": "logistic",
    "gaussian": "linear",
    "categorical": "softmax",
    "other": "topics",
}
"""What kind = "auto" is for what the target is."""
_registered: dict[str, type[Model]] = {}


def register(model: M) -> M:
    """Let configurations of this process name a model by its `kind`; usable as a decorator.

    Parameters
    ----------
    model
        A subclass of `Model` with its own `kind` and `Settings`.
    """
    kind = model.kind
    if kind in SHIPPED or kind in WITHOUT_TABLE or kind == "auto":
        raise ConfigError(f"model kind {kind!r} is tacit's own; choose another kind")
    _check(kind, model)
    _registered[kind] = model
    return model


def model_kinds() -> tuple[str, ...]:
    """Every kind that a configuration can name, the shipped ones first."""
    return tuple(dict.fromkeys((*SHIPPED, *sorted(_installed()), *_registered)))


def model_class(kind: str) -> type[Model]:
    """The model of a kind; a ConfigError with the nearest kind if there is none."""
    if kind in SHIPPED:
        return _imported(SHIPPED[kind].model)
    if kind in WITHOUT_TABLE:
        return _imported(WITHOUT_TABLE[kind])
    if kind in _registered:
        return _registered[kind]
    installed = _installed()
    if kind not in installed:
        raise ConfigError(f"model.kind = {kind!r}; {choose_from(kind, ('auto', *model_kinds()))}")
    entry = installed[kind]
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"model.kind = {kind!r}: its entry point {entry.value} cannot be loaded ({error}); "
            "repair or uninstall that package"
        ) from error
    return _check(kind, found)


def settings_class(kind: str) -> type[ModelSettings]:
    """The [model] table of a kind; of a shipped one without loading an array library."""
    if kind in SHIPPED:
        return _imported(f"{SETTINGS}:{SHIPPED[kind].settings}")
    return model_class(kind).Settings


class _ModelKinds(Kinds[ModelSettings]):
    """The [model] tables of all kinds; installed ones are looked for only if no other is meant."""

    def __iter__(self) -> Iterator[str]:
        return iter(("auto", *model_kinds()))

    def __contains__(self, kind: object) -> bool:
        return kind == "auto" or kind in SHIPPED or kind in model_kinds()

    def __getitem__(self, kind: str) -> type[ModelSettings]:
        return AutoModel if kind == "auto" else settings_class(kind)


MODEL_SETTINGS = _ModelKinds(
    ModelSettings,
    {},
    default="auto",
    renamed={"bnn": "neural-network", "lda": "topics", "gaussian-mean": "normal-mean"},
)


def build_model(kind: str, settings: ModelSettings, schema: ModelSchema) -> Model:
    """The model that a [model] table describes, for the columns of a public schema.

    Equal descriptions give one object, so that what one run compiled serves the next in the same
    process.
    """
    return build(model_class(kind), settings, schema)


def build(model: type[Model], settings: ModelSettings, schema: ModelSchema) -> Model:
    """As `build_model`, of a class."""
    if not model.seeded:
        schema = schema.with_seed(0)
    if model.reads_example:
        return model.build(settings, schema)
    return _built(model, settings, schema)


@functools.lru_cache(maxsize=32)
def _built(model: type[Model], settings: ModelSettings, schema: ModelSchema) -> Model:
    return model.build(settings, schema)


def _installed() -> dict[str, EntryPoint]:
    return {one.name: one for one in entry_points(group=GROUP) if one.name not in SHIPPED}


def _check(kind: str, model: Any) -> Any:
    """The class, if it is a model of that kind whose table has the same tag."""
    from tacit.models.base import Model

    if not (isinstance(model, type) and issubclass(model, Model)):
        raise ConfigError(f"model.kind = {kind!r} is registered as {model!r}; give a Model class")
    tag = model.Settings.__struct_config__.tag
    for what, name in (("kind", model.kind), ("Settings tag", tag)):
        if name != kind:
            raise ConfigError(
                f"model kind {kind!r}: {model.__name__} has the {what} {name!r}; make them equal"
            )
    return model


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
