"""The [model] tables of tacit's models. Importing this module loads no array library.

Each table is a subclass of `ModelSettings`, whose tag is the kind of the model. A model in another
package declares its table in its own file, as a subclass of `ModelSettings` or `PriorSettings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from tacit.support.tables import Table
from tacit.support.validation import Count, Finite, Positive, StandardDeviation, UpToOne


class ModelSettings(Table, frozen=True, kw_only=True, tag_field="kind"):
    """The [model] table of a configuration. Its keys depend on `kind`."""

    place: ClassVar[str] = "model"
    needs_outcome: ClassVar[bool] = True
    """False for a model of the columns, which has no outcome."""
    counts: ClassVar[bool] = False
    """True if the outcome is a count, which is not rescaled."""
    renamed: ClassVar[Mapping[str, str]] = {
        "largest": "max_count",
        "program": "function",
        "static": "arguments",
    }

    @property
    def kind(self) -> str:
        """The value of `kind` in the table."""
        return str(self.__struct_config__.tag)


class AutoModel(ModelSettings, frozen=True, kw_only=True, tag="auto"):
    """Settings of the kind "auto". The outcome determines the model: logistic, softmax or linear
    regression, or topics for documents.
    """

    prior_mean: Finite | None = None
    """Prior mean of every coefficient; default 0."""
    prior_sd: StandardDeviation | None = None
    """Prior standard deviation of every coefficient; by default the scales are learned."""


class PriorSettings(ModelSettings, frozen=True, kw_only=True, tag="prior"):
    """Settings of a model with the prior N(prior_mean, prior_sd²) for each coordinate of θ."""

    prior_mean: Finite = 0.0
    """Prior mean of every coefficient."""
    prior_sd: StandardDeviation = 1.0
    """Prior standard deviation of every coefficient."""


class RegressionSettings(ModelSettings, frozen=True, kw_only=True, tag="regression"):
    """Settings of a regression. Each coefficient has the prior N(prior_mean, prior_sd²), or a prior
    with learned scales.
    """

    prior_mean: Finite = 0.0
    """Prior mean of every coefficient."""
    prior_sd: StandardDeviation | None = None
    """Prior standard deviation of every coefficient; by default learned from the records or
    releases if the method supports it, and 1 otherwise.
    """


class LogisticSettings(RegressionSettings, frozen=True, kw_only=True, tag="logistic"):
    """Logistic regression, for an outcome that is yes or no."""


class SoftmaxSettings(RegressionSettings, frozen=True, kw_only=True, tag="softmax"):
    """Softmax regression, for an outcome of several levels."""


class LinearSettings(RegressionSettings, frozen=True, kw_only=True, tag="linear"):
    """Linear regression, for a numeric outcome."""

    noise_sd: StandardDeviation | None = None
    """Standard deviation of the outcome around its mean; by default unknown and inferred."""


class NormalMeanSettings(PriorSettings, frozen=True, kw_only=True, tag="normal-mean"):
    """Mean of a normal distribution with known noise."""

    noise_sd: StandardDeviation = 1.0
    """Standard deviation of the records around the mean."""


class PoissonSettings(RegressionSettings, frozen=True, kw_only=True, tag="poisson"):
    """Poisson regression, for an outcome that is a count."""

    counts: ClassVar[bool] = True
    max_count: Annotated[float, Meta(ge=1)] | None = None
    """Upper bound on the counts; by default the declared high of the outcome."""


class NegativeBinomialSettings(
    RegressionSettings, frozen=True, kw_only=True, tag="negative-binomial"
):
    """Negative binomial regression with known dispersion, for counts that vary more than Poisson
    counts.
    """

    advice: ClassVar[Mapping[str, str]] = {
        "dispersion": "give r of the variance μ + μ²/r, e.g. 2.0; if it is unknown, use a NumPyro "
        "model with NegativeBinomial2"
    }

    counts: ClassVar[bool] = True
    dispersion: StandardDeviation
    """The r in the variance μ + μ²/r of counts with mean μ."""
    max_count: Annotated[float, Meta(ge=1)] | None = None
    """Upper bound on the counts; by default the declared high of the outcome."""


class StudentSettings(RegressionSettings, frozen=True, kw_only=True, tag="student"):
    """Linear regression with Student-t noise of known scale, for an outcome with outliers."""

    df: Annotated[float, Meta(gt=2)] = 4.0
    """Degrees of freedom of the noise, more than 2."""
    scale: StandardDeviation = 1.0
    """Scale of the noise; its standard deviation is scale·√(df/(df − 2))."""


class NeuralNetworkSettings(ModelSettings, frozen=True, kw_only=True, tag="neural-network"):
    """A Bayesian neural network with one hidden layer."""

    prior_sd: StandardDeviation = 1.0
    """Prior standard deviation of every weight."""
    hidden: Count = 50
    """Number of hidden units."""
    noise_sd: StandardDeviation = 1.0
    """For a numeric outcome: its standard deviation around the output."""


class NumPyroSettings(ModelSettings, frozen=True, kw_only=True, tag="numpyro"):
    """A NumPyro model that has one plate, whose elements are the records."""

    advice: ClassVar[Mapping[str, str]] = {
        "function": 'name the model, e.g. "package.module:function" or "path/to/file.py:function"'
    }

    function: str
    """"package.module:function" or "path/to/file.py:function"."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further keyword arguments that are not records."""
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    """Public facts about columns: a number of levels, or the smallest and largest value."""


class TopicSettings(ModelSettings, frozen=True, kw_only=True, tag="topics"):
    """Latent Dirichlet allocation, for documents."""

    topics: Count = 10
    """Number of topics."""
    doc_topic_prior: Positive | None = None
    """Dirichlet parameter of the topics of a document; default 1/topics."""
    topic_word_prior: Positive | None = None
    """Dirichlet parameter of the words of a topic; default 1/topics."""
    document_words: Count = 500
    """Number of words drawn from each document in a private run."""
    clip_share: UpToOne = 0.05
    """Norm to which a document is clipped with method.clip = 1, as a share of document_words."""
    document_steps: Count = 30
    """Largest number of iterations for the topics of a document."""


class MixtureSettings(ModelSettings, frozen=True, kw_only=True, tag="mixture"):
    """A Gaussian mixture, which describes clusters of records. There is no outcome."""

    needs_outcome: ClassVar[bool] = False

    components: Count = 3
    """Number of components (clusters)."""
    concentration: Positive | None = None
    """Dirichlet parameter of the weights; default 1/components."""


class FactorSettings(ModelSettings, frozen=True, kw_only=True, tag="factors"):
    """Probabilistic principal components or factor analysis. There is no outcome."""

    needs_outcome: ClassVar[bool] = False
    factors: Count = 2
    """Number of factors."""
    noise: Literal["common", "columns"] = "common"
    """"common": one noise variance (probabilistic PCA); "columns": one per column."""


class BeliefNetworkSettings(ModelSettings, frozen=True, kw_only=True, tag="belief-network"):
    """A sigmoid belief network with one hidden layer, for columns that have two levels each. There
    is no outcome.
    """

    needs_outcome: ClassVar[bool] = False
    hidden: Count = 50
    """Number of hidden units."""
    prior_sd: StandardDeviation = 1.0
    """Prior standard deviation of every weight."""
    sweeps: Count = 10
    """Number of updates of the hidden units of each record."""
