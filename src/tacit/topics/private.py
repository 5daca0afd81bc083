"""One private step of topics in one place, and who pays for it.

The arithmetic is `PrivateStatistics`, the mechanism of every model with expected statistics: a
batch is drawn, each of its documents is resampled to N words, the E-step gives its expected
statistics n_w φ_wk ≥ 0, these are clipped to norm a·N, summed, and noise is added once. What is
here is what a party does around that: its secret key, the price, the ledger.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from tacit.data.bags import WHOLE, document_texts, ledger_form
from tacit.data.documents import Documents
from tacit.errors import ConfigError, PrivacyError
from tacit.local import PrivateStatistics, Task, Terms
from tacit.local.batches import SamplingName
from tacit.models.topics import TopicModel
from tacit.privacy.events import GaussianEvent, Relation
from tacit.privacy.fingerprint import DatasetId
from tacit.privacy.guarantee import TRUST
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import check_released
from tacit.privacy.noise_key import secret_key_data, seeded_key_data, wrap_noise_key
from tacit.privacy.settings import Privacy
from tacit.privacy.settle import PartyShape, Settled, settle

CORPUS = "corpus"
"""The one party of a private fit in one place."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """So many releases of one kind, priced before any document is read."""

    model: TopicModel
    method: PrivateStatistics
    settled: Settled
    noise_seed: int | None

    @classmethod
    def priced(
        cls,
        model: TopicModel,
        privacy: Privacy,
        *,
        steps: int,
        total: int,
        batch: int,
        sampling: SamplingName,
    ) -> Steps:
        """Batches of so many out of `total` documents, which is a public number."""
        if privacy.unit != "record":
            raise ConfigError(
                f"privacy.unit = {privacy.unit!r}; topics are learnt from documents: protect a"
                " 'record', which is one document"
            )
        method = PrivateStatistics(
            rate=rate_of(batch, total), sampling=sampling, relation=privacy.relation
        ).suited(model)
        method.check(model, model.own_family)
        shapes = {CORPUS: PartyShape(visits=steps, units=total)}
        settled = settle(privacy, method, shapes, trust=TRUST["central"])[CORPUS]
        return cls(model=model, method=method, settled=settled, noise_seed=privacy.noise_seed)

    @property
    def noise_sd(self) -> float:
        """Of the noise in what `release` gives."""
        return self.settled.noise_sd * self.model.statistics_unit / self.method.rate

    def release(self, concentration: np.ndarray, documents: Documents, step: int) -> np.ndarray:
        """Noisy statistics of all documents at q, from a batch of them; paid for before."""
        seed = self.noise_seed
        data = secret_key_data() if seed is None else seeded_key_data(seed, CORPUS, step)
        events = self.settled.events_at(step)
        q = {"log": concentration - 1.0}
        task = Task(
            records={WHOLE: documents},
            weights=np.ones(documents.shape[0], np.float32),
            q=q,
            factor=q,  # all of it is replaced: what is left of the answer is the statistics
            start=q,
            initial=False,
            visit=step,
            terms=self._terms(events),
            secret=wrap_noise_key(jnp.asarray(data)),
        )
        answer = self.method.answer(self.model, self.model.own_family, None, task)
        check_released(answer.cost, events, CORPUS)
        return np.asarray(answer.natural["log"])

    def rehearse(self, concentration: np.ndarray, shape: tuple[int, int]) -> None:
        """Compile and run a step on documents of one word each, before anything is charged."""
        count, words = shape
        rows = np.arange(count)
        made_up = csr_array((np.ones(count, np.float32), (rows, rows % words)), shape=shape)
        self.release(concentration, made_up, 0)

    def _terms(self, events: Sequence[GaussianEvent]) -> Terms:
        settled = self.settled
        return Terms(
            clip=settled.clip,
            noise_sd=settled.noise_sd,
            shares=float(settled.shares),
            units=settled.units,
            releases=settled.releases,
            clips=np.array([event.clip for event in events]),
            noise_sds=np.array([event.noise_sd for event in events]),
            progress=0.0,
        )


def rate_of(batch: int, total: int) -> float:
    """batch/total, such that ⌊rate·total⌋ is the batch."""
    rate = min(1.0, batch / total)
    return rate if math.floor(rate * total) >= min(batch, total) else math.nextafter(rate, 1.0)


def identify(ledger: Ledger, documents: Documents) -> DatasetId:
    """The name of a set of documents under the ledger's key, whatever their order."""
    return ledger.identify(ledger_form(documents.shape[1]), document_texts(documents))


class Payment:
    """Charges every step to the ledger before it is computed; nothing without a ledger."""

    def __init__(self, privacy: Privacy, documents: Documents, relation: Relation) -> None:
        self._relation: Relation = relation
        self._ledger: Ledger | None = None
        if privacy.ledger is None:
            return
        if privacy.noise_seed is not None:
            raise ConfigError(
                f"privacy.noise_seed = {privacy.noise_seed} with privacy.ledger; noise from a known"
                " seed guarantees nothing and is charged nowhere: leave out one of the two"
            )
        self._ledger = Ledger.open(Path(privacy.ledger).expanduser())
        self._dataset = identify(self._ledger, documents)
        self._run = f"lda-{secrets.token_hex(12)}"

    @property
    def counts(self) -> bool:
        """Whether anything is charged."""
        return self._ledger is not None

    def require_room(self, events: Sequence[GaussianEvent]) -> None:
        """Refuse a fit that would pass the ceiling later. Spends nothing."""
        if self._ledger is None:
            return
        budget = self._ledger.check(self._dataset, events, unit="record", relation=self._relation)
        if not budget.fits:
            raise PrivacyError(
                f"this fit asks for ε = {budget.asked:.4g} after {budget.spent:.4g} was spent,"
                f" together {budget.total:.4g} > ceiling {budget.ceiling.epsilon:.4g}"
                f" (δ = {budget.ceiling.delta:g}, {budget.ceiling.relation} a"
                f" {budget.ceiling.unit}); ask for less, or have the operator raise it"
            )

    def pay(self, step: int, events: Sequence[GaussianEvent]) -> None:
        """Before the step's noise is drawn."""
        if self._ledger is not None:
            self._ledger.charge(
                self._dataset, self._run, f"step-{step}", events, unit="record",
                relation=self._relation, purpose=f"topics, step {step}",
            )  # fmt: skip

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()
