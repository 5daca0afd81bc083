"""`LDA`: topics of documents, with or without privacy, as a scikit-learn estimator.

Stochastic variational Bayes (Hoffman, Blei and Bach 2010): q(β_k) = Dirichlet(λ_k) for every topic
k; step t = 0, 1, … takes a batch of S of the D documents and moves

    λ ← (1 − ρ_t) λ + ρ_t (η + (D/S) Σ_d n_dw φ_dwk),      ρ_t = (τ₀ + t)^−κ.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from tacit.data.documents import Documents, check_documents, check_vocabulary
from tacit.errors import ConfigError
from tacit.local.batches import SamplingName
from tacit.models.topics import TopicModel, perplexity
from tacit.models.topics.denoise import DenoiseName, Noisy, shrink
from tacit.models.topics.estep import Array
from tacit.privacy.accounting import ACCOUNTANTS, epsilon, supported
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.settings import Privacy
from tacit.privacy.settle import Settled
from tacit.topics.private import Payment, Steps
from tacit.topics.show import TopicTable


class LDA:
    """Latent Dirichlet allocation of documents given as counts of words.

    The names are scikit-learn's, of `LatentDirichletAllocation`, so that this takes its place in a
    notebook, a pipeline or a search. `privacy` has to be said: "none", or `tacit.Privacy(…)`, whose
    unit is then a document. `fit` makes `max_iter` passes in batches of `batch_size`; a private
    batch is drawn anew in every step (`sampling`: "poisson", with that size on average, or
    "without-replacement"), each of its documents is resampled to `document_words` words, and its
    statistics are clipped to `clip_share`·`document_words` in norm. `denoise` says what is made of
    the noisy sums: see `tacit.models.topics.denoise`.

    >>> counts = np.array([[4, 4, 0, 0], [5, 3, 0, 0], [0, 0, 4, 4], [0, 0, 3, 6]])
    >>> model = LDA(2, privacy="none", max_iter=30, batch_size=4).fit(counts)
    >>> model.transform(counts).argmax(axis=1)[[0, 2]].tolist() in ([0, 1], [1, 0])
    True
    """

    components_: Array
    """λ: the concentration of each topic, topics × words."""
    n_features_in_: int
    n_batch_iter_: int
    """t: how many batches were learnt from."""
    guarantee_: Guarantee | None
    """What everything learnt so far promises, counted on its own; None without privacy."""
    settled_: Settled | None
    """Clip, noise and events of the last private call, in units of clip_share·document_words; None
    without privacy."""

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
        self.n_jobs = n_jobs
        self.random_state = random_state

    # What scikit-learn asks of an estimator.

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name."""
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **settings: Any) -> LDA:
        """Change settings by name."""
        for name, value in settings.items():
            if name not in _parameters():
                raise ConfigError(f"LDA has no setting {name!r}; it has {', '.join(_parameters())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(sparse=True, positive_only=True),
        )

    def __repr__(self) -> str:
        """Settings only: never what was learnt from documents."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"LDA({shown})"

    # Learning.

    def fit(self, X: Any, y: Any = None) -> LDA:
        """Learn from scratch."""
        del y
        self._check()
        documents = check_documents(X)
        self._start(documents.shape[1])
        self._check_kept()
        if isinstance(self.privacy, Privacy):
            self._fit_privately(documents, self.privacy)
            return self
        order = np.random.default_rng([self.random_state, 1])
        total = self._total(documents.shape[0])
        for _ in range(self.max_iter):
            rows = order.permutation(documents.shape[0])
            for first in range(0, len(rows), self.batch_size):
                self._learn(documents[rows[first : first + self.batch_size]], total)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> LDA:
        """One more step, with these documents as its batch.

        `total_samples` must say how many documents there are in all. With privacy every call is one
        release over all of these documents, and `guarantee_` counts the calls as if one document
        had been in each: the noise has to be given as `noise_multiplier`, because how many calls
        there will be is not known.
        """
        del y
        self._check()
        started = hasattr(self, "components_")
        documents = check_documents(X, words=self.n_features_in_ if started else None)
        if self.total_samples is None:
            raise ConfigError(
                "partial_fit without total_samples; say how many documents there are in all"
            )
        if not started:
            self._start(documents.shape[1])
        self._check_kept()
        if isinstance(self.privacy, Privacy):
            self._step_privately(documents, self.privacy)
        else:
            self._learn(documents, self._total(documents.shape[0]))
        return self

    def _check_kept(self) -> None:
        """Refuse a step that `guarantee_` could not speak for together with the earlier ones."""
        seeded = isinstance(self.privacy, Privacy) and self.privacy.noise_seed is not None
        now = "none" if self.privacy == "none" else "with a known seed" if seeded else "secret"
        if self._noise not in (None, now):
            raise ConfigError(
                f"partial_fit with noise {now!r} after steps with noise {self._noise!r}; no"
                " guarantee holds for both together: keep to one kind, or begin anew with fit"
            )
        self._noise = now

    def _start(self, words: int) -> None:
        self.n_features_in_ = words
        self.components_ = self._model.start(self._model.own_family)["log"] + 1.0
        self.n_batch_iter_ = 0
        self.guarantee_, self.settled_ = None, None
        self._noise: str | None = None
        self._noisy: Noisy | None = None
        self._released: tuple[GaussianEvent, ...] = ()

    def _learn(self, batch: Documents, total: int) -> None:
        found = self._model.expect(self.components_, batch)
        self._move(found.total(), total / batch.shape[0])

    def _move(self, statistics: Array, scale: float) -> None:
        """The M-step."""
        rho, aim = self._rho, self._eta + scale * statistics
        self.components_ = (1.0 - rho) * self.components_ + rho * aim
        self.n_batch_iter_ += 1

    def _move_denoised(self, noisy: Array, noise_sd: float) -> None:
        """The M-step with a release in place of the statistics."""
        if self.denoise == "zero":
            self._move(np.maximum(noisy, 0.0), 1.0)
            return
        before = self._noisy or Noisy(average=np.zeros_like(noisy), noise_sd=0.0)
        rho = self._rho if self._noisy is not None else 1.0
        self._noisy = before.moved(noisy, noise_sd, rho)
        self.components_ = self._eta + shrink(self._noisy)
        self.n_batch_iter_ += 1

    def _fit_privately(self, documents: Documents, privacy: Privacy) -> None:
        total = self._total(documents.shape[0])
        if self.sampling == "without-replacement" and total != documents.shape[0]:
            raise ConfigError(
                f"total_samples = {total} with {documents.shape[0]} documents; a batch without"
                " replacement is drawn from those that are here: leave total_samples out"
            )
        batch = min(self.batch_size, total)
        steps = Steps.priced(
            self._model, privacy, steps=self.max_iter * math.ceil(total / batch), total=total,
            batch=batch, sampling=self.sampling,
        )  # fmt: skip
        payment = Payment(privacy, documents, privacy.relation)
        try:
            payment.require_room(steps.settled.all_events)
            if payment.counts:
                steps.rehearse(self.components_, documents.shape)
            for step in range(steps.settled.visits):
                self.settled_, self.guarantee_ = steps.settled, steps.settled.guarantee
                self._release(documents, steps, payment, step)
        finally:
            payment.close()

    def _step_privately(self, documents: Documents, privacy: Privacy) -> None:
        if privacy.noise_multiplier is None:
            raise ConfigError(
                f"privacy.epsilon = {privacy.epsilon} with partial_fit; how often it will be called"
                " is not known: give noise_multiplier, and read guarantee_"
            )
        # Under add-or-remove the batch's size is private and the scale uses the declared one.
        known = privacy.relation == "substitute"
        size = documents.shape[0] if known else self.batch_size
        steps = Steps.priced(
            self._model, privacy, steps=1, total=size, batch=size, sampling="poisson"
        )
        settled = steps.settled
        events = (*self._released, *settled.events_at(0))
        spent = epsilon(events, privacy.delta, privacy.relation, accountant=privacy.accountant)
        payment = Payment(privacy, documents, privacy.relation)
        try:
            payment.require_room(settled.events_at(0))
            if payment.counts:
                steps.rehearse(self.components_, documents.shape)
            self.settled_ = settled
            self.guarantee_ = msgspec.structs.replace(settled.guarantee, epsilon=spent)
            scale = self._total(size) / size
            self._release(documents, steps, payment, self.n_batch_iter_, scale)
        finally:
            payment.close()

    def _release(
        self, documents: Documents, steps: Steps, payment: Payment, step: int, scale: float = 1.0
    ) -> None:
        """One private step: pay, compute behind the wall, release, learn from the release alone."""
        events = steps.settled.events_at(step)
        payment.pay(step, events)
        self._released += events
        found = steps.release(self.components_, documents, step)
        self._move_denoised(scale * found, scale * steps.noise_sd)

    # Using it.

    def transform(self, X: Any) -> Array:
        """E[θ], documents × topics. It is as private as the documents that are asked about."""
        documents = check_documents(X, words=self._fitted())
        gamma = self._model.expect(self.components_, documents).gamma
        return gamma / gamma.sum(axis=1, keepdims=True)

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """`fit`, then `transform`."""
        return self.fit(X, y).transform(X)

    def perplexity(
        self, X: Any, *, form: Literal["completion", "bound"] = "completion", seed: int = 0
    ) -> float:
        """Per word, of documents that were held out; see `tacit.models.topics.perplexity`.

        On documents that were learnt from it says little, and after a private fit it would be a
        release that nobody has paid for.
        """
        documents = check_documents(X, words=self._fitted())
        common = {"alpha": self._model.alpha, "threads": self.n_jobs}
        if form == "bound":
            return perplexity.bound(self.components_, documents, **common)
        if form == "completion":
            return perplexity.completion(self.components_, documents, seed=seed, **common)
        raise ConfigError(f"form = {form!r}; choose 'completion' or 'bound'")

    def score(self, X: Any, y: Any = None) -> float:
        """−log of the completion perplexity: larger is better, for a search over settings."""
        del y
        return -math.log(self.perplexity(X))

    def epsilons(self) -> dict[str, float | None]:
        """ε of what was released, by each accountant at the guarantee's δ; None: it has no bound.

        The guarantee is that of `privacy.accountant`; choosing the least of them afterwards is not
        a loss of privacy, since each of them is a valid bound.
        """
        self._fitted()
        if self.guarantee_ is None:
            raise ConfigError("nothing private was learnt; there is no ε")
        guarantee, events = self.guarantee_, self._released
        return {
            name: None
            if any(supported(event, guarantee.relation, name) for event in events)
            else epsilon(events, guarantee.delta, guarantee.relation, accountant=name)
            for name in ACCOUNTANTS
        }

    def topics(self, vocabulary: Any, *, top: int = 10) -> TopicTable:
        """The most probable words of each topic."""
        return TopicTable.of(self.components_, check_vocabulary(vocabulary, self._fitted()), top)

    # Settings.

    @property
    def _model(self) -> TopicModel:
        return TopicModel(
            self.n_components,
            words=self.n_features_in_,
            doc_topic_prior=self.doc_topic_prior,
            topic_word_prior=self.topic_word_prior,
            document_words=self.document_words,
            clip_share=self.clip_share,
            tolerance=self.mean_change_tol,
            most_steps=self.max_doc_update_iter,
            start_seed=self.random_state,
            threads=self.n_jobs,
        )

    @property
    def _rho(self) -> float:
        return (self.learning_offset + self.n_batch_iter_) ** -self.learning_decay

    @property
    def _eta(self) -> float:
        return self._model.eta

    def _total(self, documents: int) -> int:
        private = isinstance(self.privacy, Privacy) and self.privacy.relation == "add-or-remove"
        if self.total_samples is None:
            if private:
                raise ConfigError(
                    "privacy.relation = 'add-or-remove' without total_samples; how many documents"
                    " there are is then private: declare a public number"
                )
            return documents
        return self.total_samples

    def _fitted(self) -> int:
        if not hasattr(self, "components_"):
            raise ConfigError("this LDA has not learnt anything yet; call fit first")
        return self.n_features_in_

    def _check(self) -> None:
        if self.privacy != "none" and not isinstance(self.privacy, Privacy):
            raise ConfigError(
                f"privacy = {self.privacy!r}; give tacit.Privacy(epsilon=…, delta=…), or 'none' to"
                " learn without"
            )
        for name in ("n_components", "max_iter", "batch_size", "total_samples",
                     "max_doc_update_iter", "document_words", "n_jobs"):  # fmt: skip
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and not (whole and value >= 1):
                raise ConfigError(f"{name} = {value!r}; it must be a whole number, at least 1")
        if not 0 < self.mean_change_tol < math.inf:
            raise ConfigError(
                f"mean_change_tol = {self.mean_change_tol}; it must be a finite number > 0"
            )
        if not 0.5 <= self.learning_decay <= 1:
            raise ConfigError(
                f"learning_decay = {self.learning_decay}; it must be in [0.5, 1]: slower does not"
                " forget noise, faster stops learning"
            )
        if not 1 <= self.learning_offset < math.inf:
            raise ConfigError(f"learning_offset = {self.learning_offset}; it must be at least 1")
        if self.denoise not in get_args(DenoiseName):
            raise ConfigError(f"denoise = {self.denoise!r}; choose 'shrink' or 'zero'")
        if self.sampling not in ("poisson", "without-replacement"):
            raise ConfigError(
                f"sampling = {self.sampling!r}; choose 'poisson' or 'without-replacement'"
            )


def _parameters() -> list[str]:
    return [name for name in inspect.signature(LDA.__init__).parameters if name != "self"]
