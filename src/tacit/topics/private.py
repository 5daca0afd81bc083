"""Private expected statistics of documents (VIPS, Algorithm 2, with its sensitivity corrected).

A document is a record. In a step a batch is drawn, each of its documents is resampled to N words,
the E-step gives its expected statistics n_w φ_wk ≥ 0, these are clipped to norm C = a·N, summed,
and noise is added once:

    s̃ = Σ_{d in batch} min(1, C / ‖s_d‖) s_d + N(0, noise_sd² I).

Everything after that is post-processing: the public scale D/S, negative entries set to zero, the
M-step. The published N/S is the norm of one document; two of them differ by up to √2 of it, because
no entry is negative. That factor comes from `Bounded.nonnegative` and is typed nowhere here.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from tacit.errors import ConfigError, PrivacyError
from tacit.models.topics.counts import Documents
from tacit.models.topics.estep import Array, Expected
from tacit.privacy.bounded import Bounded, clip_sum
from tacit.privacy.events import GaussianEvent, Poisson, Relation, WithoutReplacement
from tacit.privacy.fingerprint import DatasetId
from tacit.privacy.guarantee import TRUST, Aggregation, Unit
from tacit.privacy.ledger import Ledger
from tacit.privacy.mechanisms import WHOLE, Drawn, secret_key_data
from tacit.privacy.sampling import chunk_length, poisson_mask, subset_rows
from tacit.privacy.settings import Privacy
from tacit.privacy.settle import PartyShape, Settled, settle

Key = Any
CORPUS = "corpus"
"""The one party of a private fit in one place."""
DRAWN = 1_000_000
"""Words that are drawn at a time, for the memory it takes."""
SamplingName = Literal["poisson", "without-replacement", "all"]
_subset_rows = jax.jit(subset_rows, static_argnames="length")
_poisson_mask = jax.jit(poisson_mask)


@dataclass(frozen=True, kw_only=True)
class DocumentStatistics:
    """What one step releases, before any document is read: see `tacit.privacy.settle`."""

    kind: ClassVar[str] = "private-statistics"
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain",)
    unit: Unit = "record"
    clip: float
    relation: Relation
    sampling: SamplingName
    batch: int
    total: int
    """How many documents there are: public under substitution, declared under add-or-remove."""

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """One sum of a batch, with noise; every step's is alike."""
        del visit, visits
        sampling = None
        if self.sampling == "poisson":
            sampling = Poisson(rate=self.rate)
        elif self.sampling == "without-replacement":
            sampling = WithoutReplacement(batch=self.batch, total=units)
        return (GaussianEvent(clip=clip, noise_sd=noise_sd, sampling=sampling, nonnegative=True),)

    @property
    def rate(self) -> float:
        """How often a document is in a batch."""
        return 1.0 if self.sampling == "all" else self.batch / self.total

    def settled(self, privacy: Privacy, steps: int) -> Settled:
        """Noise, events and guarantee of so many steps; refuses what this cannot keep."""
        if privacy.unit != "record":
            raise ConfigError(
                f"privacy.unit = {privacy.unit!r}; topics are learnt from documents: protect a"
                " 'record', which is one document"
            )
        shapes = {CORPUS: PartyShape(visits=steps, units=self.total)}
        return settle(privacy, self, shapes, trust=TRUST["central"])[CORPUS]


class Draws:
    """The party's secret randomness: noise, batches, words. Known if a seed was given."""

    def __init__(self, seed: int | None) -> None:
        data: Any = secret_key_data() if seed is None else np.array([0, seed], np.uint32)
        self._key = jax.random.wrap_key_data(data)
        self._words = np.random.default_rng(secrets.randbits(128) if seed is None else [seed, 1])

    def rows(self, step: int, method: DocumentStatistics, documents: int) -> tuple[Array, Drawn]:
        """A batch, drawn as it is accounted for, and how."""
        key = self._fold(step, 0)
        if method.sampling == "all":
            return np.arange(documents), WHOLE
        present = np.ones(documents, np.int8)
        if method.sampling == "poisson":
            chosen = np.asarray(_poisson_mask(key, present, method.rate))
            return np.flatnonzero(chosen), Drawn(rate=np.float64(method.rate))
        rows = np.sort(np.asarray(_subset_rows(key, present, length=method.batch)))
        return rows, Drawn(batch=np.asarray(method.batch), total=np.asarray(documents))

    def noise_key(self, step: int) -> Key:
        """Of a step's noise."""
        return self._fold(step, 1)

    def resampled(self, documents: Documents, words: int) -> Documents:
        """Each document as exactly `words` words drawn from its own, with replacement.

        Every document's draws are its own: another in its place leaves the others as they are.
        """
        kept = np.empty(documents.nnz, np.float32)
        ends = documents.indptr
        step = max(1, DRAWN // words)
        for first in range(0, documents.shape[0], step):
            rows = slice(ends[first], ends[min(first + step, documents.shape[0])])
            counts = documents.data[rows].astype(np.int64)
            above = np.cumsum(counts)[ends[first + 1 : first + step + 1] - ends[first] - 1]
            each = np.diff(above, prepend=0)[:, None]
            at = (self._words.random((len(each), words)) * each).astype(np.int64)
            place = np.repeat(np.arange(len(counts)), counts)  # word by word, where it is counted
            drawn = place[at + (above[:, None] - each)]
            kept[rows] = np.bincount(drawn.ravel(), minlength=len(counts))
        found = documents.copy()
        found.data = kept
        found.eliminate_zeros()
        return found

    def _fold(self, step: int, purpose: int) -> Key:
        return jax.random.fold_in(jax.random.fold_in(self._key, step), purpose)


def clipped(found: Expected, clip: float, length: int) -> Bounded:
    """Σ min(1, C / ‖s_d‖) s_d. `length` pads the batch: its size is compiled for only once."""
    count = found.documents.shape[0]
    padded = max(1, math.ceil(count / length)) * length

    def pad(values: Array) -> Array:
        return np.concatenate([values, np.zeros(padded - count, values.dtype)])

    return clip_sum(
        pad(found.norms()),
        clip,
        pad(np.ones(count)),
        lambda weights: found.total(np.asarray(weights)[:count]),
        least=pad(found.least()),
    )


def batch_length(method: DocumentStatistics, documents: int) -> int:
    """A length that holds nearly every batch."""
    if method.sampling == "poisson":
        return chunk_length(method.rate, documents)
    return documents if method.sampling == "all" else method.batch


def identify(ledger: Ledger, documents: Documents) -> DatasetId:
    """The name of a set of documents under the ledger's key, whatever their order."""
    words, counts = documents.indices.astype("<u4"), documents.data.astype("<u4")
    ends = documents.indptr.tolist()
    texts = [
        words[a:b].tobytes().hex() + "." + counts[a:b].tobytes().hex() for a, b in pairwise(ends)
    ]
    schema = {"documents": "counts of words", "words": documents.shape[1]}
    return ledger.identify(schema, {"document": np.array(texts, object)})


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
