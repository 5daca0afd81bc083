"""`TopicModel`: latent Dirichlet allocation as a conjugate-exponential model of documents.

β_k ~ Dirichlet(η) for every topic k, θ_d ~ Dirichlet(α) for every document d, a topic z ~ θ_d for
every word and the word itself from β_z (Blei, Ng and Jordan 2003). q(β) is one Dirichlet
distribution per topic, and a document's expected statistics at q are n_w φ_wk ≥ 0: the number of
its words w of topic k (`tacit.models.lda.estep`). Their sum over documents is added to q's
concentration.

**With privacy** each document is first resampled to N = `document_words` words, so that short and
long documents have equal weight (VIPS, section 4). The unit of its statistics is a·N, a =
`clip_share`: a clip of 1 is VIPS's a·N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tacit.data.bags import DOCUMENTS_COLUMN, check_document_records, documents_of, one_word_each
from tacit.data.documents import Documents, check_vocabulary
from tacit.errors import ConfigError
from tacit.expfam import Dirichlets, Family, Natural
from tacit.models.base import Model, ModelSchema, Output, Records
from tacit.models.lda.estep import Expected, expect, word_table
from tacit.models.lda.perplexity import bound, completion, document_bounds
from tacit.models.lda.resample import resampled
from tacit.models.lda.table import TopicTable, topic_rows
from tacit.models.settings import TopicSettings
from tacit.models.statistics import Statistics

Array = Any
REFERENCE_WORDS = 100
"""With resampling, `tolerance` applies to γ of a document with this many words (γ grows with
them).
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicStatistics(Statistics):
    """Expected word counts n_w φ_wk per topic, divided by `unit`, of the documents `rows` among
    `length` documents; zero for the others.
    """

    found: Expected
    rows: np.ndarray
    length: int
    unit: float

    def norms(self) -> np.ndarray:
        return self._spread(self.found.norms() / self.unit)

    def l1_norms(self) -> np.ndarray:
        """Return the number of words of each document, because its statistics divide them among
        topics.
        """
        return self._spread(self.found.l1_norms() / self.unit)

    def least(self) -> np.ndarray:
        return self._spread(self.found.least())

    def total(self, weights: Array) -> np.ndarray:
        return self.found.total(np.asarray(weights)[self.rows]) / self.unit

    def _spread(self, values: np.ndarray) -> np.ndarray:
        found = np.zeros(self.length)
        found[self.rows] = values
        return found


class TopicModel(Model):
    """`topics` distributions over a vocabulary, from documents given as `document_records`.

    `doc_topic_prior` is α and `topic_word_prior` η, both 1/topics by default. A document's E-step
    ends after `most_steps`, or once its γ changes by less than `tolerance` on average. `start_seed`
    draws the initial topics, because equal topics would stay equal. Set `document_weight` if the
    documents are a sample of a larger corpus.

    Parameters
    ----------
    topics
        Number of topics.
    words
        Size of the vocabulary.
    doc_topic_prior
        Dirichlet parameter of the topics of a document; 1/topics if left out.
    topic_word_prior
        Dirichlet parameter of the words of a topic; 1/topics if left out.
    document_words
        Largest number of words of a document; longer ones are resampled.
    clip_share
        Norm of a document's statistics to which a private method clips, as a share of the largest
        possible one.
    document_weight
        Weight of each document in the likelihood.
    tolerance
        Change at which the iteration for a document stops.
    most_steps
        Largest number of iterations for a document.
    start_seed
        Seed of the starting point, which all parties share.
    threads
        Number of threads of the E step.

    Examples
    --------
    >>> model = TopicModel(2, words=3)
    >>> model.own_family, model.dimension, model.names[5]
    (Dirichlets(2, 3), 6, 'topic 1, word 2')
    """

    kind: ClassVar[str] = "topics"
    Settings = TopicSettings
    serves: ClassVar[tuple[Output, ...]] = ("other",)
    seeded: ClassVar[bool] = True
    output: Output = "other"
    traceable: ClassVar[bool] = False
    ties_at_prior: ClassVar[bool] = True
    nonnegative_statistics: ClassVar[bool] = True
    listed: ClassVar[bool] = False

    def __init__(
        self,
        topics: int,
        *,
        words: int,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        document_words: int = 500,
        clip_share: float = 0.05,
        document_weight: float = 1.0,
        tolerance: float = 1e-3,
        most_steps: int = 30,
        start_seed: int = 0,
        threads: int = 1,
    ) -> None:
        for name, value in (
            ("topics", topics), ("words", words), ("document_words", document_words),
            ("most_steps", most_steps), ("threads", threads),
        ):  # fmt: skip
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not (whole and value >= 1):
                raise ConfigError(f"{name} = {value!r}; it must be a whole number, at least 1")
        self.topics, self.words = int(topics), int(words)
        self.doc_topic_prior = 1.0 / topics if doc_topic_prior is None else float(doc_topic_prior)
        self.topic_word_prior = (
            1.0 / topics if topic_word_prior is None else float(topic_word_prior)
        )
        for name, value in (
            ("doc_topic_prior", self.doc_topic_prior), ("topic_word_prior", self.topic_word_prior),
            ("tolerance", tolerance), ("document_weight", document_weight),
        ):  # fmt: skip
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} = {value}; it must be a finite number > 0")
        if not 0 < clip_share <= 1:
            raise ConfigError(f"clip_share = {clip_share}; it must be in (0, 1]")
        self.document_words, self.clip_share = int(document_words), float(clip_share)
        self.document_weight = float(document_weight)
        self.tolerance, self.most_steps = float(tolerance), int(most_steps)
        self.start_seed, self.threads = int(start_seed), int(threads)

    @classmethod
    def build(cls, settings: TopicSettings, schema: ModelSchema) -> TopicModel:
        return cls(
            settings.topics,
            words=len(schema.names),
            doc_topic_prior=settings.doc_topic_prior,
            topic_word_prior=settings.topic_word_prior,
            document_words=settings.document_words,
            clip_share=settings.clip_share,
            most_steps=settings.document_steps,
            start_seed=schema.seed,
        )

    @property
    def dimension(self) -> int:
        return self.topics * self.words

    @cached_property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Names of the coordinates, made on demand because there may be half a million."""
        return tuple(f"topic {k}, word {w}" for k in range(self.topics) for w in range(self.words))

    def topic_table(self, natural: Natural, vocabulary: Sequence[str], top: int) -> TopicTable:
        """Return the most probable words of each topic."""
        words = check_vocabulary(vocabulary, self.words)
        return TopicTable.of(natural["log"] + 1.0, words, top)

    def result_tables(self, natural: Natural, names: Sequence[str]) -> dict[str, Any]:
        return {"topics": topic_rows(natural["log"] + 1.0, names)}

    @property
    def own_family(self) -> Family:
        return Dirichlets(self.topics, self.words)

    @property
    def statistics_have_l1_norms(self) -> bool:
        return True

    @property
    def statistics_unit(self) -> float:
        return self.document_weight * self._norm_unit

    @property
    def _norm_unit(self) -> float:
        """Number of words of one document by which norms are divided."""
        return self.clip_share * self.document_words

    def prior(self, family: Family) -> Natural:
        return {"log": np.full(family.shapes["log"], self.topic_word_prior - 1.0)}

    def start(self, family: Family) -> Natural:
        """Return random topics as the starting point, as in other libraries."""
        rng = np.random.default_rng([self.start_seed, 0])
        return {"log": rng.gamma(100.0, 0.01, family.shapes["log"]) - 1.0}

    def check_records(self, party: str, records: Records) -> None:
        check_document_records(party, records, self.words)

    def stand_in(self, records: Records) -> Records:
        """Return artificial documents with one word each."""
        if DOCUMENTS_COLUMN in records:
            found = np.empty(len(records[DOCUMENTS_COLUMN]), object)
            found[:] = [one_word_each(*matrix.shape) for matrix in records[DOCUMENTS_COLUMN]]
            return {DOCUMENTS_COLUMN: found}
        blank = {name: np.zeros(one.shape, one.dtype) for name, one in records.items()}
        blank["counts"][..., 0] = 1
        return blank

    def documents(self, records: Records) -> Documents:
        """Convert records to sparse counts."""
        return documents_of(records, self.words)

    def expect(
        self, concentration: np.ndarray, documents: Documents, *, stretch: float = 1.0
    ) -> Expected:
        """Return q(z, θ) of documents given q(β), iterated to `stretch` times the tolerance."""
        return expect(
            word_table(concentration),
            documents,
            alpha=self.doc_topic_prior,
            tolerance=stretch * self.tolerance,
            most_steps=self.most_steps,
            threads=self.threads,
        )

    def statistics(
        self,
        family: Family,
        q: Natural,
        records: Records,
        weights: Array,
        *,
        balance: float = 1.0,
        key: Array = None,
    ) -> TopicStatistics:
        del family, balance
        weights = np.asarray(weights)
        rows = np.flatnonzero(weights)
        everybody = len(rows) == len(weights)
        batch = documents_of(records, self.words, None if everybody else rows)
        stretch = 1.0
        if key is not None:
            import jax

            rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
            batch = resampled(batch, self.document_words, rng)
            stretch = max(1.0, self.document_words / REFERENCE_WORDS)
        found = self.expect(np.asarray(q["log"]) + 1.0, batch, stretch=stretch)
        return TopicStatistics(found=found, rows=rows, length=len(weights), unit=self._norm_unit)

    def factor(self, family: Family, q: Natural, total: Any, *, balance: float = 1.0) -> Natural:
        del family, q, balance
        return {"log": self.statistics_unit * total}

    def measured(self, natural: Natural, records: Records, seed: int) -> dict[str, float]:
        """Return the per-word perplexities: see `tacit.models.lda.perplexity`."""
        concentration, documents = natural["log"] + 1.0, self.documents(records)
        common = {"alpha": self.doc_topic_prior, "threads": self.threads}
        return {
            "completion_perplexity": completion(concentration, documents, seed=seed, **common),
            "bound_perplexity": bound(concentration, documents, **common),
        }

    def log_likelihood(self, theta: Array, records: Records) -> np.ndarray:
        """Return the largest lower bound on log p(document | β) over q(z, θ), in NumPy."""
        beta = np.asarray(theta).reshape(self.topics, self.words)
        return document_bounds(np.log(beta), self.documents(records), alpha=self.doc_topic_prior)

    def response(self, theta: Array, records: Records) -> np.ndarray:
        """Raise an error, because documents have no y."""
        raise ConfigError("model 'topics' predicts words, not a target; measure its perplexity")
