"""Batches of parties that are computed in one compiled call.

Parties are padded to a few lengths and computed one batch at a time. Without batching, each party
is a batch of one, padded as it would be over a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.data.records import len_records
from tacit.engines.padding import batch_size, bucket_lengths
from tacit.errors import DataError
from tacit.expfam import Natural
from tacit.methods import Arranged, GradientVI, NaturalVI, PrivateMethod
from tacit.models import Records
from tacit.models.prior import PRIOR_PARTY, PriorAsLikelihood, prior_records
from tacit.party import compute as party_side
from tacit.party.compute import Update
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled
from tacit.server.messages import Request

MAX_LENGTHS = 3
CHEAP_ROWS = 32_768
MAX_BATCHED_PARAMETERS = 256


@dataclass(frozen=True, eq=False)
class _Batch:
    """Parties whose updates are computed together, with their records padded to one length."""

    agreement: Agreement
    names: tuple[str, ...]
    stack: Records
    weights: np.ndarray


class PartyBatches:
    """Computes the updates of all parties of this process, in batches of parties."""

    def __init__(self, agreement: Agreement, settled: Mapping[str, Settled]) -> None:
        self.agreement, self.settled = agreement, settled
        self._batch_of: dict[str, _Batch] = {}
        self._rehearsed: set[tuple[_Batch, str]] = set()

    def add(
        self, parties: Mapping[str, Records], *, batch_parties: bool, all_at_once: bool
    ) -> None:
        """Arrange parties in batches; `all_at_once` is true if all get requests at the same
        time.
        """
        method = self.agreement.method
        arranged = {}
        for name, records in parties.items():
            if not len_records(records) > 0:
                raise DataError(f"party {name!r} has no records; leave it out or give it some")
            arranged[name] = method.arrange(name, records, self.agreement.seed)
        sizes = {name: one.weights.shape[method.variable_axis] for name, one in arranged.items()}
        if batch_parties:
            lengths = bucket_lengths(list(sizes.values()), MAX_LENGTHS, cheap_rows=CHEAP_ROWS)
        else:
            lengths = sorted({party_side.padded_rows(size) for size in sizes.values()})
        for below, length in zip([0, *lengths], lengths, strict=False):
            names = [name for name, size in sizes.items() if below < size <= length]
            model = self.agreement.model
            together = batch_parties and all_at_once and not method.in_numpy(model)
            # Replies of larger models are matrices that would all be in memory at once.
            together = together and model.dimension <= MAX_BATCHED_PARAMETERS
            if isinstance(method, PrivateMethod) and method.hides_lengths:
                # How many parties have arrays of one length depends on secret numbers of records,
                # and numbers may be rounded differently in a batch of another size.
                together = False
            size = batch_size(len(names), length) if together else 1
            for start in range(0, len(names), size):
                group = {name: arranged[name] for name in names[start : start + size]}
                self._add(self.agreement, group, length, size)

    def add_prior(self) -> None:
        """Add the prior pseudo-party, for a prior outside the family."""
        agreement = prior_agreement(self.agreement)
        arranged = agreement.method.arrange(PRIOR_PARTY, prior_records(), agreement.seed)
        self._add(agreement, {PRIOR_PARTY: arranged}, 1, 1)

    def compute(
        self,
        requests: Sequence[Request],
        memories: Mapping[str, Natural | None],
        keys: Mapping[str, bytes] | None = None,
    ) -> dict[str, Update]:
        """Return the updates for these requests. Both the result and the noise keys `keys` are
        dicts with request ids as keys.
        """
        found: dict[str, Update] = {}
        for batch, _, full in self._calls(requests):
            updates = party_side.answer_many(
                batch.agreement, batch.stack, batch.weights, full, self._terms(full),
                [memories.get(request.party) for request in full],
                [(keys or {}).get(request.id) for request in full],
            )  # fmt: skip
            for name, request, update in zip(batch.names, full, updates, strict=True):
                if request.party == name and request.id not in found:
                    found[request.id] = update
        return found

    def rehearse(self, requests: Sequence[Request], memories: Mapping[str, Natural | None]) -> None:
        """Compile and test the programs for these requests, without records, before they are
        charged.
        """
        for batch, stage, full in self._calls(requests):
            party_side.check_start(batch.agreement, full[0])
            if (batch, stage) not in self._rehearsed:
                party_side.rehearse(
                    batch.agreement, batch.stack, batch.weights, full, self._terms(full),
                    [memories.get(request.party) for request in full],
                )  # fmt: skip
                self._rehearsed.add((batch, stage))

    def _terms(self, requests: Sequence[Request]) -> list[Settled | None]:
        return [self.settled.get(request.party) for request in requests]

    def _calls(self, requests: Sequence[Request]) -> Iterator[tuple[_Batch, str, list[Request]]]:
        """Yield batches of parties, each with a stage and one request per party of the batch.

        A party of the batch without a request is computed with the request of another party, and
        its result is not used.
        """
        for stage in dict.fromkeys(request.stage for request in requests):
            waiting = {r.party: r for r in requests if r.stage == stage}
            for batch in dict.fromkeys(self._batch_of[name] for name in waiting):
                asked = [waiting[name] for name in batch.names if name in waiting]
                # The batch always has the same size, so that nothing is compiled again.
                yield batch, stage, [waiting.get(name, asked[0]) for name in batch.names]

    def _add(
        self, agreement: Agreement, group: dict[str, Arranged], length: int, size: int
    ) -> None:
        names = [*group, *([next(iter(group))] * (size - len(group)))]
        arranged = [group[name] for name in names]
        method, on_device = agreement.method, not agreement.method.in_numpy(agreement.model)
        stack, weights = party_side.stack_records(arranged, length, method, on_device=on_device)
        batch = _Batch(agreement, tuple(names), stack, weights)
        self._batch_of.update(dict.fromkeys(names, batch))


def prior_agreement(agreement: Agreement) -> Agreement:
    """Return model, family and method of the prior pseudo-party, whose log-likelihood is log
    p(θ).
    """
    method = agreement.method
    return Agreement(
        PriorAsLikelihood(agreement.model),
        agreement.family,
        method if isinstance(method, GradientVI | NaturalVI) else GradientVI(),
        agreement.seed,
    )
