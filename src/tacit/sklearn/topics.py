"""`LDA`: topics of documents, with or without privacy, as a scikit-learn estimator.

The fit is stochastic variational Bayes (Hoffman, Blei and Bach 2010). The posterior of the word
probabilities of topic k is Dirichlet(λ_k). Step t = 0, 1, … takes a batch of S of the D documents
and sets, for every topic k and word w,

    λ_kw ← (1 − ρ_t) λ_kw + ρ_t (η + (D/S) Σ_d n_dw φ_dwk),      ρ_t = (τ₀ + t)^−κ.

The sum is over the documents d of the batch, n_dw is the count of word w in document d, and φ_dwk
is the probability that word w in document d belongs to topic k. η is `topic_word_prior`, τ₀ is
`learning_offset` and κ is `learning_decay`.

A fit is a plan with one party, in which every round is one step. Sampling, computation, accounting
and charging are therefore the same as in other runs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from tacit.arrays import Arrays
from tacit.data.bags import DOCUMENTS_COLUMN, document_texts, ledger_form
from tacit.data.documents import Documents, check_documents, check_vocabulary
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.fitting.charged import NO_LEDGER, fit_ledger
from tacit.methods import Clipped, ExpectedStatistics, LocalMethod, PrivateStatistics
from tacit.methods.batches import SamplingName, rate_of
from tacit.models.lda import TopicModel, perplexity
from tacit.models.lda.denoise import DenoiseName
from tacit.models.lda.estep import Array
from tacit.models.lda.table import TopicTable
from tacit.party.charge import Charging, Datasets, ledger_charging
from tacit.plan.calibrate import Settled
from tacit.plan.checks import Live
from tacit.plan.plan import Plan, first_factors, make_plan
from tacit.privacy.accounting import ACCOUNTANTS, epsilon, supported
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import TRUST, Guarantee
from tacit.privacy.ledger.fingerprint import DatasetId
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.settings import Privacy
from tacit.pvi import divide
from tacit.results.diagnostics import counted_clipping
from tacit.server.schedule import PowerDamping, Synchronous
from tacit.server.state import ServerState, initial_state

CORPUS = "corpus"
"""Name of the only party."""


class LDA:
    """Latent Dirichlet allocation of documents given as counts of words.

    The arguments are named as in scikit-learn's `LatentDirichletAllocation`. `privacy` is required:
    "none", or `tacit.Privacy(…)`, whose unit is a document. `fit` makes `max_iter` passes over the
    documents, in batches of `batch_size`. With privacy every step samples a batch. Each of its
    documents is resampled to `document_words` words, and its statistics are clipped to the norm
    `clip_share`·`document_words`. `tacit.models.lda.denoise` describes the post-processing of the
    noisy sums.

    Parameters
    ----------
    n_components
        Number of topics.
    privacy
        A `tacit.Privacy`, or "none".
    doc_topic_prior, topic_word_prior
        Dirichlet parameters of the topics of a document and of the words of a topic; 1/n_components
        if left out.
    learning_decay, learning_offset
        Exponent and offset of the step size of stochastic inference.
    max_iter
        Passes over the documents in `fit`.
    batch_size
        Documents per batch.
    total_samples
        Total number of documents. `partial_fit` needs it, and so does a private `fit` whose
        adjacency is add-or-remove-one, for which it must be public.
    mean_change_tol, max_doc_update_iter
        Stopping criteria of the iteration for a document.
    sampling
        How a private fit samples its batches: "poisson", with `batch_size` documents on average, or
        "without-replacement", with exactly `batch_size` documents.
    document_words
        Number of words to which a private fit resamples every document.
    clip_share
        Norm to which a private fit clips a document's statistics, as a share of the largest
        possible norm.
    denoise
        Post-processing of the noisy sums.
    count_clipped
        Release the share of clipped documents (`clipped_`) and charge it with every noisy sum.
    n_jobs
        Number of threads.
    random_state
        Seed of the starting point and of the order of documents.

    Examples
    --------
    >>> counts = np.array([[4, 4, 0, 0], [5, 3, 0, 0], [0, 0, 4, 4], [0, 0, 3, 6]])
    >>> model = LDA(2, privacy="none", max_iter=30, batch_size=4).fit(counts)
    >>> model.transform(counts).argmax(axis=1)[[0, 2]].tolist() in ([0, 1], [1, 0])
    True
    """

    components_: Array
    """Dirichlet parameters λ of the topics, an array of shape (topics, words)."""
    n_features_in_: int
    n_batch_iter_: int
    """Number t of batches used."""
    guarantee_: Guarantee | None
    """Guarantee of all steps so far, without other runs; None without privacy."""
    settled_: Settled | None
    """Clip, noise and events of the last private call, in units of clip_share·document_words; None
    without privacy."""
    clipped_: Clipped | None
    """Share of clipped documents in the last batch, with the sd of its noise; None if clipped
    documents were not counted.
    """
    _memory: Arrays | None = None
    """Average of the noisy sums so far, with its noise; None unless `denoise` is "shrink"."""

    def __init__(
        self,
        n_components: int = 10,
        *,
        privacy: Literal["none"] | Privacy,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        learning_decay: float = 0.7,
        learning_offset: float = 1.0,
        max_iter: int = 1,
        batch_size: int = 4096,
        total_samples: int | None = None,
        mean_change_tol: float = 1e-3,
        max_doc_update_iter: int = 30,
        sampling: SamplingName = "poisson",
        document_words: int = 500,
        clip_share: float = 0.05,
        denoise: DenoiseName = "shrink",
        count_clipped: bool = False,
        n_jobs: int = 1,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.privacy = privacy
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.learning_decay = learning_decay
        self.learning_offset = learning_offset
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.total_samples = total_samples
        self.mean_change_tol = mean_change_tol
        self.max_doc_update_iter = max_doc_update_iter
        self.sampling: SamplingName = sampling
        self.document_words = document_words
        self.clip_share = clip_share
        self.denoise: DenoiseName = denoise
        self.count_clipped = count_clipped
        self.n_jobs = n_jobs
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name.

        Parameters
        ----------
        deep
            Ignored; there are no nested estimators.
        """
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **settings: Any) -> LDA:
        """Change settings by name.

        Parameters
        ----------
        **settings
            Arguments of the constructor.
        """
        for name, value in settings.items():
            if name not in _parameters():
                raise ConfigError(f"LDA has no setting {name!r}; it has {', '.join(_parameters())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None, target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(sparse=True, positive_only=True),
        )  # fmt: skip

    def __repr__(self) -> str:
        """Show settings only, never fitted values."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"LDA({shown})"

    def fit(self, X: Any, y: Any = None) -> LDA:
        """Fit the topics; topics of an earlier fit are discarded.

        Parameters
        ----------
        X
            Counts of words, one row per document.
        y
            Ignored.
        """
        del y
        self._check()
        documents = check_documents(X)
        count = documents.shape[0]
        if self.total_samples is None and self._size_is_private:
            raise ConfigError(
                "privacy.adjacency = 'add-or-remove-one' without total_samples; the number of"
                " documents is then private: set total_samples to a public number"
            )
        total = count if self.total_samples is None else self.total_samples
        private = isinstance(self.privacy, Privacy)
        if private and self.sampling == "without-replacement" and total != count:
            raise ConfigError(
                f"total_samples = {total} with {count} documents; sampling without"
                " replacement needs the actual number: leave total_samples out"
            )
        drawn, weight = (total, 1.0) if private else (count, total / count)
        batch = min(self.batch_size, drawn)
        steps = self.max_iter * math.ceil(drawn / batch)
        plan = self._plan(documents, CORPUS, drawn, rate_of(batch, drawn), weight, steps=steps)
        return self._carry_out(plan, documents)

    def partial_fit(self, X: Any, y: Any = None) -> LDA:
        """Make one more step, with these documents as its batch.

        `total_samples` must be the total number of documents. With privacy every call is one
        release over these documents, and `guarantee_` assumes that a document may be in every call.
        The noise must be set by `noise_multiplier`, because the number of calls is unknown.

        Parameters
        ----------
        X
            Counts of words, one row per document.
        y
            Ignored.
        """
        del y
        self._check()
        started = hasattr(self, "components_")
        documents = check_documents(X, words=self.n_features_in_ if started else None)
        if self.total_samples is None:
            raise ConfigError(
                "partial_fit without total_samples; set it to the total number of documents"
            )
        if started and self._noise != self._kind_of_noise:
            raise ConfigError(
                f"partial_fit with noise {self._kind_of_noise!r} after steps with noise"
                f" {self._noise!r}; no guarantee covers both: use one kind, or start again"
                " with fit"
            )
        if isinstance(self.privacy, Privacy) and self.privacy.noise_multiplier is None:
            raise ConfigError(
                f"privacy.epsilon = {self.privacy.epsilon} with partial_fit; the noise cannot be"
                " computed from ε, because the number of calls is unknown: set noise_multiplier"
                " instead of epsilon, and read the resulting ε from guarantee_"
            )
        # Under add-or-remove-one the batch's size is private and the scale uses the declared one.
        size = self.batch_size if self._size_is_private else documents.shape[0]
        before = self.n_batch_iter_ if started else 0
        # Each call is a separate party, so that its seeded noise differs.
        name, weight = f"batch {before}", self.total_samples / size
        plan = self._plan(documents, name, size, 1.0, weight, steps=1, before=before)
        return self._carry_out(plan, documents, before, resumed=started)

    def _plan(
        self, documents: Documents, party: str, units: int, rate: float, weight: float,
        *, steps: int, before: int = 0,
    ) -> Plan:  # fmt: skip
        """Make a plan of `steps` steps, each over a batch that is a share `rate` of the documents.

        `units` is the public number of documents; `before` is the number of earlier steps.
        """
        private = self.privacy if isinstance(self.privacy, Privacy) else None
        shrinks = private is not None and self.denoise == "shrink"
        method: LocalMethod = ExpectedStatistics(sampling_rate=rate, batches="shuffled")
        if private is not None:
            method = PrivateStatistics(
                sampling_rate=rate, sampling=self.sampling, noise_aware=shrinks,
                repair="none" if shrinks else "truncate", count_clipped=self.count_clipped,
            )  # fmt: skip
        damping = _Steps(
            offset=self.learning_offset, decay=self.learning_decay, before=before,
            replaces=shrinks and (before == 0 or self._memory is None),
        )  # fmt: skip
        plan = make_plan(
            self._model(documents.shape[1], weight),
            {party: {}},  # accounted for before any document is read
            method=method, seed=self.random_state % 2**32,
            schedule=Synchronous(rounds=steps, tolerance=0.0, damping=damping),
            privacy=private, trust=TRUST["central"], live=Live(total_units=units, one_party=True),
        )  # fmt: skip
        return replace(
            plan, parties={party: {DOCUMENTS_COLUMN: documents}}, live=None, report_steps=False
        )

    def _carry_out(
        self, plan: Plan, documents: Documents, before: int = 0, *, resumed: bool = False
    ) -> LDA:
        """Run the plan. If `resumed`, start from the current topics."""
        start, earlier = initial_state(plan.rules, first_factors(plan)), ()
        if resumed:
            learnt = divide({"log": self.components_ - 1.0}, plan.model.prior(plan.family))
            start = initial_state(plan.rules, dict.fromkeys(plan.parties, learnt))
            start, earlier = replace(start, memory=self._memory), self._released

        def keep(state: ServerState, log: object = None) -> None:
            del log
            self.components_ = state.q["log"] + 1.0
            self.n_batch_iter_ = before + state.round
            self._memory = state.memory if self.denoise == "shrink" else None
            self.clipped_ = counted_clipping(plan, state.memory)

        def datasets(ledger: Ledger) -> dict[str, DatasetId]:
            form = ledger_form(documents.shape[1])
            return dict.fromkeys(plan.parties, ledger.identify(form, document_texts(documents)))

        with self._charged(plan, datasets) as charging:
            self.n_features_in_, self._noise = documents.shape[1], self._kind_of_noise
            keep(start)
            self._promise(plan, earlier)
            carry_out(plan, charging=charging, observe=keep, start=start)
        return self

    @contextmanager
    def _charged(self, plan: Plan, datasets: Datasets) -> Iterator[Charging | None]:
        """Open the ledger that is charged: the ledger in `privacy.ledger` or, if it is not set, the
        user's default ledger.

        A ledger in `privacy.ledger` must have a budget for the documents.
        """
        named = None if plan.privacy is None else plan.privacy.ledger
        if named not in (None, NO_LEDGER):
            with ledger_charging(plan.privacy, plan.settled, datasets, run="topics") as charging:
                yield charging
            return
        with fit_ledger(plan, None, None, datasets) as charged:
            yield None if charged is None else charged.charging

    def _promise(self, plan: Plan, earlier: tuple[GaussianEvent, ...]) -> None:
        """Set `guarantee_`, which covers all earlier steps and those of this plan."""
        self.guarantee_, self.settled_, self._released = plan.guarantee, None, earlier
        if self.guarantee_ is None or plan.privacy is None:
            return
        (self.settled_,) = plan.settled.values()
        self._released = (*earlier, *self.settled_.all_events)
        if earlier:
            terms = plan.privacy.delta, plan.privacy.adjacency
            spent = epsilon(self._released, *terms, accountant=plan.privacy.accountant)
            self.guarantee_ = msgspec.structs.replace(self.guarantee_, epsilon=spent)

    def transform(self, X: Any) -> Array:
        """Return the expected topic shares of each document, shape (documents, topics).

        The shares are computed from these documents without noise, so no guarantee covers them.

        Parameters
        ----------
        X
            Counts of words, one row per document.
        """
        documents = check_documents(X, words=self._fitted())
        gamma = self._model(self.n_features_in_).expect(self.components_, documents).gamma
        return gamma / gamma.sum(axis=1, keepdims=True)

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """Call `fit`, then return the result of `transform`.

        Parameters
        ----------
        X
            Counts of words, one row per document.
        y
            Ignored.
        """
        return self.fit(X, y).transform(X)

    def perplexity(
        self, X: Any, *, form: Literal["completion", "bound"] = "completion", seed: int = 0
    ) -> float:
        """Return the per-word perplexity of held-out documents; see `tacit.models.lda.perplexity`.

        It is not meaningful on training documents, and after a private fit it would be an uncharged
        release.

        Parameters
        ----------
        X
            Counts of words, one row per document.
        form
            How the perplexity is computed.
        seed
            Seed of everything random.
        """
        documents = check_documents(X, words=self._fitted())
        common = {"alpha": self._model(self.n_features_in_).doc_topic_prior, "threads": self.n_jobs}
        if form == "bound":
            return perplexity.bound(self.components_, documents, **common)
        if form == "completion":
            return perplexity.completion(self.components_, documents, seed=seed, **common)
        raise ConfigError(f"form = {form!r}; choose 'completion' or 'bound'")

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the logarithm of the per-word perplexity of documents; a larger score is
        better.

        The perplexity is computed by `perplexity` with form="completion".

        Parameters
        ----------
        X
            Counts of words, one row per document.
        y
            Ignored.
        """
        del y
        return -math.log(self.perplexity(X))

    def epsilons(self) -> dict[str, float | None]:
        """Return the ε of all releases according to each accountant, at the δ of the guarantee.

        Keys are the names of the accountants. The value is None if an accountant does not support
        the releases.

        `guarantee_` has the ε of `privacy.accountant`. Every ε is an upper bound, so the smallest
        one may be chosen afterwards.
        """
        self._fitted()
        if self.guarantee_ is None:
            raise ConfigError("no private step was made, so there is no ε; fit with privacy first")
        guarantee, events = self.guarantee_, self._released
        return {
            name: None
            if any(supported(event, guarantee.adjacency, name) for event in events)
            else epsilon(events, guarantee.delta, guarantee.adjacency, accountant=name)
            for name in ACCOUNTANTS
        }

    def topics(self, vocabulary: Any, *, top: int = 10) -> TopicTable:
        """Return the most probable words of each topic.

        Parameters
        ----------
        vocabulary
            The word of each column.
        top
            Number of words per topic.
        """
        return TopicTable.of(self.components_, check_vocabulary(vocabulary, self._fitted()), top)

    def _model(self, words: int, weight: float = 1.0) -> TopicModel:
        return TopicModel(
            self.n_components, words=words, document_weight=weight,
            doc_topic_prior=self.doc_topic_prior, topic_word_prior=self.topic_word_prior,
            document_words=self.document_words, clip_share=self.clip_share,
            tolerance=self.mean_change_tol, most_steps=self.max_doc_update_iter,
            start_seed=self.random_state, threads=self.n_jobs,
        )  # fmt: skip

    @property
    def _kind_of_noise(self) -> str:
        """Kind of the noise: "none", "secret" or "with a known seed". Steps with different kinds of
        noise have no common guarantee.
        """
        if not isinstance(self.privacy, Privacy):
            return "none"
        return "secret" if self.privacy.insecure_noise_seed is None else "with a known seed"

    @property
    def _size_is_private(self) -> bool:
        return isinstance(self.privacy, Privacy) and self.privacy.adjacency == "add-or-remove-one"

    def _fitted(self) -> int:
        if not hasattr(self, "components_"):
            raise ConfigError("this LDA is not fitted; call fit first")
        return self.n_features_in_

    def _check(self) -> None:
        if self.privacy != "none" and not isinstance(self.privacy, Privacy):
            raise ConfigError(
                f"privacy = {self.privacy!r}; give tacit.Privacy(epsilon=…, delta=…), or 'none' to"
                " learn without privacy"
            )
        if isinstance(self.privacy, Privacy) and self.privacy.unit != "record":
            raise ConfigError(
                f"privacy.unit = {self.privacy.unit!r}; use 'record', which is one document"
            )
        for name in ("n_components", "max_iter", "batch_size", "total_samples",
                     "max_doc_update_iter", "document_words", "n_jobs"):  # fmt: skip
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and not (whole and value >= 1):
                raise ConfigError(f"{name} = {value!r}; it must be a whole number, at least 1")
        if not 0 < self.mean_change_tol < math.inf:
            raise ConfigError(f"mean_change_tol = {self.mean_change_tol}; it must be finite, > 0")
        if not 0.5 <= self.learning_decay <= 1:
            raise ConfigError(
                f"learning_decay = {self.learning_decay}; it must be in [0.5, 1]: with a"
                " smaller value noise does not average out, with a larger one learning stops"
            )
        if not 1 <= self.learning_offset < math.inf:
            raise ConfigError(f"learning_offset = {self.learning_offset}; it must be at least 1")
        for name, words in (
            ("denoise", get_args(DenoiseName)),
            ("sampling", get_args(SamplingName)),
        ):
            if getattr(self, name) not in words:
                allowed = " or ".join(map(repr, words))
                raise ConfigError(f"{name} = {getattr(self, name)!r}; choose {allowed}")


@dataclass(frozen=True, kw_only=True)
class _Steps(PowerDamping):
    """Step sizes ρ that continue after `before` earlier steps."""

    before: int
    replaces: bool
    """True if the first step has ρ = 1 and thus replaces the starting point."""

    def at(self, round_number: int) -> float:
        first = self.replaces and round_number == 1
        return 1.0 if first else super().at(round_number + self.before)


def _parameters() -> list[str]:
    return [name for name in inspect.signature(LDA.__init__).parameters if name != "self"]
