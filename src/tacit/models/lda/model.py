"""`TopicModel`: latent Dirichlet allocation as a conjugate-exponential model of documents.

Every topic k has a distribution β_k ~ Dirichlet(η) over words, and every document d has shares of
topics θ_d ~ Dirichlet(α). Each word of a document has a topic z ~ θ_d and is drawn from β_z (Blei,
Ng and Jordan 2003). q(β) is one Dirichlet distribution per topic. The expected statistics of a
document under q are the expected numbers of times that each word occurs in each topic
(`tacit.models.lda.estep`). Their sum over documents is added to the Dirichlet parameters of q.

**With privacy** each document is first resampled to N = `document_words` words, so that short and
long documents have equal weight (VIPS, section 4). Its statistics are divided by a·N, where a is
`clip_share`. The clip a·N of VIPS then corresponds to a clip of 1.
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
"""If documents are resampled to N > REFERENCE_WORDS words, `tolerance` is multiplied by
N/REFERENCE_WORDS, because Dirichlet parameters of documents grow with the number of words.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicStatistics(Statistics):
    """The expected number of occurrences of each word in each topic, for each document of a party.

    The statistic of a document for word w and topic k is n_w φ_wk / `unit`. Here n_w is the number
    of times that w occurs in the document, and φ_wk is the probability that such an occurrence
    belongs to topic k. The party has `length` documents. `found` has the statistics of the
    documents with the indices `rows`. The statistics of all other documents are 0.
    """

    found: Expected
    rows: np.ndarray
    length: int
    unit: float

    def norms(self) -> np.ndarray:
        return self._spread(self.found.norms() / self.unit)

    def l1_norms(self) -> np.ndarray:
        """Return the L1 norm of each document's statistics: its number of words divided by
        `unit`.
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
    """Latent Dirichlet allocation: `topics` distributions over the words of a vocabulary.

    Records are documents in the form of `tacit.datasets.document_records`.

    Parameters
    ----------
    topics
        Number of topics.
    words
        Size of the vocabulary.
    doc_topic_prior
        Dirichlet parameter of the shares of topics in a document; by default 1/topics.
    topic_word_prior
        Dirichlet parameter of the word probabilities of a topic; by default 1/topics.
    document_words
        Number of words to which each document is resampled in a private run.
    clip_share
        Norm at which a private method with clip 1 clips the statistics of a document, as a share of
        `document_words`, which is their largest possible norm.
    document_weight
        Weight of each document in the likelihood; more than 1 if the documents are a sample of a
        larger corpus.
    tolerance
        The iteration for a document stops when its Dirichlet parameters change by less than this
        number, on average over topics.
    most_steps
        Largest number of iterations for a document.
    start_seed
        Seed of the initial topics, which are the same for all parties.
    threads
        Number of threads that compute the topics of documents.

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
        """Names of the coordinates of θ. They are made on first use, because there may be half a
        million.
        """
        return tuple(f"topic {k}, word {w}" for k in range(self.topics) for w in range(self.words))

    def topic_table(self, natural: Natural, vocabulary: Sequence[str], top: int) -> TopicTable:
        """Return a table with the `top` most probable words of each topic."""
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
        """Norm at which a document's expected word counts are clipped if `method.clip` is 1. The
        counts are divided by this number.
        """
        return self.clip_share * self.document_words

    def prior(self, family: Family) -> Natural:
        return {"log": np.full(family.shapes["log"], self.topic_word_prior - 1.0)}

    def start(self, family: Family) -> Natural:
        """Return a starting point for q with random topics, because equal topics would stay equal.

        Each Dirichlet parameter is drawn from a gamma distribution with mean 1.
        """
        rng = np.random.default_rng([self.start_seed, 0])
        return {"log": rng.gamma(100.0, 0.01, family.shapes["log"]) - 1.0}

    def check_records(self, party: str, records: Records) -> None:
        check_document_records(party, records, self.words)

    def stand_in(self, records: Records) -> Records:
        """Return artificial documents with the shapes of `records`, each of which contains one
        word.
        """
        if DOCUMENTS_COLUMN in records:
            found = np.empty(len(records[DOCUMENTS_COLUMN]), object)
            found[:] = [one_word_each(*matrix.shape) for matrix in records[DOCUMENTS_COLUMN]]
            return {DOCUMENTS_COLUMN: found}
        blank = {name: np.zeros(one.shape, one.dtype) for name, one in records.items()}
        blank["counts"][..., 0] = 1
        return blank

    def documents(self, records: Records) -> Documents:
        """Convert records to a sparse matrix of word counts, one row per document."""
        return documents_of(records, self.words)

    def expect(
        self, concentration: np.ndarray, documents: Documents, *, stretch: float = 1.0
    ) -> Expected:
        """Compute q(z, θ) of each document: the topics z of its words and the shares θ of its
        topics. `concentration` contains the Dirichlet parameters of the topics. The tolerance is
        `stretch` times that of the model.
        """
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
        """Return two perplexities per word of held-out documents, "completion_perplexity" and
        "bound_perplexity" (`tacit.models.lda.perplexity`).
        """
        concentration, documents = natural["log"] + 1.0, self.documents(records)
        common = {"alpha": self.doc_topic_prior, "threads": self.threads}
        return {
            "completion_perplexity": completion(concentration, documents, seed=seed, **common),
            "bound_perplexity": bound(concentration, documents, **common),
        }

    def log_likelihood(self, theta: Array, records: Records) -> np.ndarray:
        """Return the variational lower bound of log p(document | topics) for each document, in
        NumPy. `theta` contains the word probabilities of all topics.
        """
        beta = np.asarray(theta).reshape(self.topics, self.words)
        return document_bounds(np.log(beta), self.documents(records), alpha=self.doc_topic_prior)

    def response(self, theta: Array, records: Records) -> np.ndarray:
        """Raise a ConfigError, because documents have no outcome y."""
        raise ConfigError("model 'topics' has no outcome to predict; measure its perplexity")
