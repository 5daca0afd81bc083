"""The [model] tables of the kinds that come with tacit; no array library is loaded.

Each is a `ModelSettings` whose tag is the kind. A model in a package of its own declares its table
in its own file, as a subclass of `ModelSettings` or `PriorSettings`.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tacit.errors import ConfigError
from tacit.support.validation import check_sd


class ModelSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """The base of all [model] tables: a table without keys of its own."""


class PriorSettings(ModelSettings, frozen=True, tag="prior"):
    """θ ~ N(prior_mean, prior_sd²) in each coordinate."""

    prior_mean: float = 0.0
    prior_sd: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.prior_mean):
            raise ConfigError(f"model.prior_mean = {self.prior_mean}; it must be a finite number")
        check_sd(self.prior_sd, "model.prior_sd")


class LogisticSettings(PriorSettings, frozen=True, tag="logistic"):
    """kind = "logistic"."""


class SoftmaxSettings(PriorSettings, frozen=True, tag="softmax"):
    """kind = "softmax"."""


class LinearSettings(PriorSettings, frozen=True, tag="linear"):
    """kind = "linear"; `noise_sd` is known."""

    noise_sd: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sd(self.noise_sd, "model.noise_sd")


class NormalMeanSettings(LinearSettings, frozen=True, tag="gaussian-mean"):
    """kind = "gaussian-mean"; `noise_sd` is known."""


class PoissonSettings(PriorSettings, frozen=True, tag="poisson"):
    """kind = "poisson"."""

    largest: float | None = None
    """The largest count that a record may hold; None: the target's declared high."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.largest is not None and not 1 <= self.largest < math.inf:
            raise ConfigError(
                f"model.largest = {self.largest}; the largest count is finite and ≥ 1"
            )


class NeuralNetworkSettings(ModelSettings, frozen=True, tag="bnn"):
    """kind = "bnn"."""

    prior_sd: float = 1.0
    hidden: int = 50
    noise_sd: float = 1.0

    def __post_init__(self) -> None:
        check_sd(self.prior_sd, "model.prior_sd")
        check_sd(self.noise_sd, "model.noise_sd")
        if not self.hidden >= 1:
            raise ConfigError(f"model.hidden = {self.hidden}; a hidden layer needs at least 1 unit")


class NumPyroSettings(ModelSettings, frozen=True, tag="numpyro"):
    """kind = "numpyro"."""

    program: str
    """"package.module:function" or "path/to/file.py:function"."""
    static: dict[str, Any] = {}
    """Further keyword arguments that are not records."""


class TopicSettings(ModelSettings, frozen=True, tag="lda"):
    """kind = "lda"."""

    topics: int = 10
    doc_topic_prior: float | None = None
    """α; left out, 1/topics."""
    topic_word_prior: float | None = None
    """η; left out, 1/topics."""
    document_words: int = 500
    """N: how many words a private answer draws from each document."""
    clip_share: float = 0.05
    """a: method.clip = 1 is a clip of a·N words."""
    document_steps: int = 30
    """How long the topics of a document are looked for, at most."""
