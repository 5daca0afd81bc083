"""The [method] table of a configuration: one struct per kind of method, and the registry of all
kinds.

A key that is left out has the method's default. This module imports no array library, because only
`MethodSettings.make` imports the method. To add a method, subclass `MethodSettings` and register
the subclass in one of three ways: in `METHOD_SETTINGS`, as an entry point of the group
"tacit.methods" in another package, or with `METHOD_SETTINGS.register` for one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Literal

from tacit.errors import TacitError
from tacit.support.tables import Kinds, Table, given
from tacit.support.validation import Count, Fraction, Positive, UpToOne

if TYPE_CHECKING:
    from tacit.methods.base import LocalMethod

Precision = Literal["float32", "float64"]


class MethodSettings(Table, frozen=True, kw_only=True, tag_field="kind"):
    """How each party computes its update; the keys depend on `kind`."""

    place: ClassVar[str] = "method"
    renamed: ClassVar[Mapping[str, str]] = {
        "rate": "sampling_rate",
        "once": "one_shot",
        "share": "statistics_share",
        "most_noise": "max_noise",
        "averaged_share": "average_last",
    }
    builds: ClassVar[str]
    """The method's class, as "module:name"."""

    @property
    def kind(self) -> str:
        """Value of method.kind in a configuration file."""
        return str(self.__struct_config__.tag)

    @classmethod
    def method(cls) -> type[LocalMethod]:
        """The class of the method that this table configures."""
        module, _, name = cls.builds.partition(":")
        return getattr(import_module(module), name)

    def make(self) -> LocalMethod | None:
        """Return the method with these settings, or None if the plan chooses the method."""
        return self.method()(**given(self))


class AutoMethod(MethodSettings, frozen=True, kw_only=True, tag="auto"):
    """The plan chooses the method by model, privacy and schedule. There are no further keys."""

    def make(self) -> None:
        return None


class ExactSettings(MethodSettings, frozen=True, kw_only=True, tag="exact"):
    """The closed-form update of a conjugate model. Not private."""

    builds = "tacit.methods.exact:Exact"
    dtype: Precision | None = None
    """Floating-point type of the records."""


class NaturalVISettings(MethodSettings, frozen=True, kw_only=True, tag="natural"):
    """Natural-gradient variational inference for any differentiable model. Not private."""

    builds = "tacit.methods.natural.method:NaturalVI"
    steps: Count | None = None
    """Steps of fixed length per round. If neither steps nor step_size is set, step lengths are
    chosen automatically.
    """
    step_size: UpToOne | None = None
    """Length of each step."""
    dtype: Precision | None = None
    """Floating-point type of the records."""
    sampling: bool | None = None
    """True to sample the posterior by Hamiltonian Monte Carlo if the fit is not trusted without it.
    """


class GradientVISettings(MethodSettings, frozen=True, kw_only=True, tag="gradient-vi"):
    """Adam steps on the local ELBO, for any model with a log-likelihood. Not private."""

    builds = "tacit.methods.gradient:GradientVI"
    steps: Count | None = None
    """Adam steps per round."""
    batch_size: Count | None = None
    """Records drawn for each step; by default all of them."""
    learning_rate: Positive | None = None
    """Adam's learning rate at the start of each round."""
    draws: Count | None = None
    """Draws of the parameters for each gradient, if it has no closed form."""
    adam_epsilon: Positive | None = None
    """Adam's ε, which is added to the root mean square of a gradient."""
    dtype: Precision | None = None
    """Floating-point type of the records."""


class PrivateSettings(MethodSettings, frozen=True, kw_only=True):
    """Keys of the private methods that clip contributions to a user-defined norm."""

    clip: Positive | None = None
    """Norm to which the contribution of each unit is clipped."""
    clip_end: Positive | None = None
    """Clip in the last round, relative to that in the first round."""
    noise_end: Positive | None = None
    """Noise multiplier in the last round, relative to that in the first round."""
    dtype: Precision | None = None
    """Floating-point type of the records."""


class WhitenedSettings(PrivateSettings, frozen=True, kw_only=True):
    """Keys of the private methods that support whitened features."""

    whiten: Fraction | None = None
    """Share of the budget for a noisy second moment by which the features are whitened. By default
    they are not whitened.
    """
    whiten_bound: Positive | None = None
    """Norm to which the features are clipped for the second moment of `whiten`. It applies only
    there.
    """

    def faults(self) -> Iterator[str | TacitError]:
        for key, other in (("whiten", "whiten_bound"), ("whiten_bound", "whiten")):
            if getattr(self, key) is not None and getattr(self, other) is None:
                yield (
                    f"method.{other} is missing; method.{key} = {getattr(self, key)} needs it: "
                    "whiten is a share of the budget, e.g. 0.1, and whiten_bound a norm, e.g. the "
                    "square root of the number of columns that are not 0 in a record"
                )

    def make(self) -> LocalMethod:
        keys = given(self)
        share, bound = keys.pop("whiten", None), keys.pop("whiten_bound", None)
        inner = self.method()(**keys)
        if share is None or bound is None:
            return inner
        from tacit.methods.whitening import whitened

        return whitened(inner, share, bound)


METHOD_SETTINGS: Kinds[MethodSettings] = Kinds(
    MethodSettings,
    {
        "auto": "tacit.methods.settings:AutoMethod",
        "exact": "tacit.methods.settings:ExactSettings",
        "natural": "tacit.methods.settings:NaturalVISettings",
        "gradient-vi": "tacit.methods.settings:GradientVISettings",
        "expected-statistics": "tacit.methods.statistics.settings:ExpectedStatisticsSettings",
        "dp-sgd": "tacit.methods.dpsgd.settings:DPSGDSettings",
        "dp-scoring": "tacit.methods.scoring.settings:PrivateScoringSettings",
        "dp-scores": "tacit.methods.scores.settings:PrivateScoresSettings",
        "dp-updates": "tacit.methods.update.settings:PrivateUpdateSettings",
        "dp-statistics": "tacit.methods.statistics.settings:PrivateStatisticsSettings",
        "dp-hybrid": "tacit.methods.statistics.settings:HybridSettings",
        "conjugate": "tacit.methods.conjugate.settings:ConjugateSettings",
        "dp-conjugate": "tacit.methods.conjugate.settings:PrivateConjugateSettings",
    },
    default="auto",
    group="tacit.methods",
    renamed={
        "natural-vi": "natural",
        "dpsgd": "dp-sgd",
        "private-scoring": "dp-scoring",
        "private-update": "dp-updates",
        "private-statistics": "dp-statistics",
        "hybrid": "dp-hybrid",
    },
)
