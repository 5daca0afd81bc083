"""The [model] tables of the kinds that come with tacit; no array library is loaded.

Each is a `ModelSettings` whose tag is the kind. A model in a package of its own declares its table
in its own file, as a subclass of `ModelSettings` or `PriorSettings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tacit.support.tables import Table
from tacit.support.validation import Count, Finite, Positive, StandardDeviation, UpToOne


class ModelSettings(Table, frozen=True, kw_only=True, tag_field="kind"):
    """What is learnt; the keys depend on `kind`."""

    place: ClassVar[str] = "model"
    renamed: ClassVar[Mapping[str, str]] = {
        "largest": "max_count",
        "program": "function",
        "static": "arguments",
    }

    @property
    def kind(self) -> str:
        """The kind of this table in a file."""
        return str(self.__struct_config__.tag)


class AutoModel(ModelSettings, frozen=True, kw_only=True, tag="auto"):
    """The model follows from the outcome: logistic, softmax or linear regression, or topics."""

    prior_mean: Finite | None = None
    """Prior mean of every coefficient; left out: 0."""
    prior_sd: StandardDeviation | None = None
    """Prior standard deviation of every coefficient; left out: 1."""


class PriorSettings(ModelSettings, frozen=True, kw_only=True, tag="prior"):
    """θ ~ N(prior_mean, prior_sd²) in each coordinate."""

    prior_mean: Finite = 0.0
    """Prior mean of every coefficient."""
    prior_sd: StandardDeviation = 1.0
    """Prior standard deviation of every coefficient."""


class LogisticSettings(PriorSettings, frozen=True, kw_only=True, tag="logistic"):
    """Logistic regression, for an outcome that is yes or no."""


class SoftmaxSettings(PriorSettings, frozen=True, kw_only=True, tag="softmax"):
    """Softmax regression, for an outcome of several levels."""


class LinearSettings(PriorSettings, frozen=True, kw_only=True, tag="linear"):
    """Linear regression with known noise, for a numeric outcome."""

    noise_sd: StandardDeviation = 1.0
    """Standard deviation of the outcome around its mean."""


class NormalMeanSettings(PriorSettings, frozen=True, kw_only=True, tag="normal-mean"):
    """The mean of a normal with known noise."""

    noise_sd: StandardDeviation = 1.0
    """Standard deviation of the records around the mean."""


class PoissonSettings(PriorSettings, frozen=True, kw_only=True, tag="poisson"):
    """Poisson regression, for an outcome that is a count."""

    max_count: Annotated[float, Meta(ge=1)] | None = None
    """The largest count of a record; left out: the declared high of the outcome."""


class NeuralNetworkSettings(ModelSettings, frozen=True, kw_only=True, tag="neural-network"):
    """A Bayesian neural network with one hidden layer."""

    prior_sd: StandardDeviation = 1.0
    """Prior standard deviation of every weight."""
    hidden: Count = 50
    """Number of hidden units."""
    noise_sd: StandardDeviation = 1.0
    """For a numeric outcome: its standard deviation around the output."""


class NumPyroSettings(ModelSettings, frozen=True, kw_only=True, tag="numpyro"):
    """A NumPyro model with one plate over records."""

    advice: ClassVar[Mapping[str, str]] = {
        "function": 'name the model, e.g. "package.module:function" or "path/to/file.py:function"'
    }

    function: str
    """"package.module:function" or "path/to/file.py:function"."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further keyword arguments that are not records."""
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    """Public facts about columns: a number of levels, or the least and largest value."""


class TopicSettings(ModelSettings, frozen=True, kw_only=True, tag="topics"):
    """Latent Dirichlet allocation, for documents."""

    topics: Count = 10
    """Number of topics."""
    doc_topic_prior: Positive | None = None
    """Dirichlet parameter of the topics of a document; left out: 1/topics."""
    topic_word_prior: Positive | None = None
    """Dirichlet parameter of the words of a topic; left out: 1/topics."""
    document_words: Count = 500
    """Number of words that a private reply draws from each document."""
    clip_share: UpToOne = 0.05
    """method.clip = 1 is a clip of this share of document_words."""
    document_steps: Count = 30
    """Iterations for the topics of a document, at most."""
