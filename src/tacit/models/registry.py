"""Registry of models: finds the model class and the [model] table of each `model.kind`.

A new model needs one file and one registration. The registration is an entry point in the
pyproject.toml of its package,

    [project.entry-points."tacit.models"]
    cloglog = "my_package:CloglogRegression"

or, for one process only, a call of `tacit.models.register(CloglogRegression)`. The models of tacit
are listed in `SHIPPED`. A model is imported when its kind is first used.
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
    """Import path of a model class of this library, and the name of its settings class.

    The settings class is in another module, so that reading a configuration does not import the
    model.
    """

    model: str
    settings: str


SHIPPED = {
    "logistic": Entry("tacit.models.glm.logistic:LogisticRegression", "LogisticSettings"),
    "softmax": Entry("tacit.models.glm.softmax:SoftmaxRegression", "SoftmaxSettings"),
    "linear": Entry("tacit.models.glm.linear:LinearRegression", "LinearSettings"),
    "poisson": Entry("tacit.models.glm.poisson:PoissonRegression", "PoissonSettings"),
    "negative-binomial": Entry(
        "tacit.models.glm.negative_binomial:NegativeBinomialRegression", "NegativeBinomialSettings"
    ),
    "student": Entry("tacit.models.glm.student:StudentRegression", "StudentSettings"),
    "normal-mean": Entry("tacit.models.normal_mean:NormalMean", "NormalMeanSettings"),
    "neural-network": Entry("tacit.models.bnn:NeuralNetwork", "NeuralNetworkSettings"),
    "numpyro": Entry("tacit.models.numpyro.model:NumPyroModel", "NumPyroSettings"),
    "belief-network": Entry("tacit.models.belief.model:BeliefNetwork", "BeliefNetworkSettings"),
    "topics": Entry("tacit.models.lda.model:TopicModel", "TopicSettings"),
    "factors": Entry("tacit.models.factors:FactorModel", "FactorSettings"),
    "mixture": Entry("tacit.models.mixture.model:GaussianMixture", "MixtureSettings"),
}
WITHOUT_TABLE = {"linear-unknown-noise": "tacit.models.glm.normal:NormalRegression"}
"""Models that a stored fit may contain although no configuration can name them."""
DEFAULT_KINDS = {
    "bernoulli": "logistic",
    "gaussian": "linear",
    "categorical": "softmax",
    "other": "topics",
}
"""Dict from the kind of the outcome to the kind of model that "auto" chooses."""
_registered: dict[str, type[Model]] = {}


def register(model: M) -> M:
    """Register a model class under its `kind` in this process. Can be used as a decorator.

    Parameters
    ----------
    model
        A subclass of `Model` that defines `kind` and `Settings`.
    """
    kind = model.kind
    if kind in SHIPPED or kind in WITHOUT_TABLE or kind == "auto":
        raise ConfigError(f"model kind {kind!r} is reserved by tacit; choose another kind")
    _check(kind, model)
    _registered[kind] = model
    return model


def model_kinds() -> tuple[str, ...]:
    """List all values of `model.kind`, except "auto". The models of this library come first."""
    return tuple(dict.fromkeys((*SHIPPED, *sorted(_installed()), *_registered)))


def model_class(kind: str) -> type[Model]:
    """Return the model class of a kind. Raise a ConfigError with a suggestion if there is none."""
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
            "repair or uninstall the package that provides it"
        ) from error
    return _check(kind, found)


def settings_class(kind: str) -> type[ModelSettings]:
    """Return the class that represents the [model] table of a kind. For models of this library, no
    array library is imported.
    """
    if kind in SHIPPED:
        return _imported(f"{SETTINGS}:{SHIPPED[kind].settings}")
    return model_class(kind).Settings


class _ModelKinds(Kinds[ModelSettings]):
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
    """Build a model from its [model] table and the public schema of the records.

    Equal arguments give the same object, so that compiled functions are reused within a process.
    """
    return build(model_class(kind), settings, schema)


def build(model: type[Model], settings: ModelSettings, schema: ModelSchema) -> Model:
    """Build a model as `build_model` does, for a given model class."""
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
    from tacit.models.base import Model

    if not (isinstance(model, type) and issubclass(model, Model)):
        raise ConfigError(
            f"model.kind = {kind!r} is registered as {model!r}; register a subclass of Model"
        )
    tag = model.Settings.__struct_config__.tag
    for what, name in (("kind", model.kind), ("Settings tag", tag)):
        if name != kind:
            raise ConfigError(
                f"{model.__name__} is registered as model kind {kind!r}, but its {what} is "
                f"{name!r}; make the two equal"
            )
    return model


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
