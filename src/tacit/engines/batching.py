"""Parties of one process on benches: many answered by one compiled call.

Parties are padded to a few lengths and answered a bench at a time; where they are not batched each
has a bench of its own, padded as it would be over a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.data.records import len_records
from tacit.engines.padding import bench_size, bucket_lengths
from tacit.errors import DataError
from tacit.expfam import Natural
from tacit.methods import Arranged, GradientVI, NaturalVI
from tacit.models import Records
from tacit.models.prior import PRIOR_PARTY, PriorAsLikelihood, prior_records
from tacit.party import compute as party_side
from tacit.party.compute import Update
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled
from tacit.server.messages import Request

MOST_LENGTHS = 3
CHEAP_ROWS = 32_768


@dataclass(frozen=True, eq=False)
class _Bench:
    """Parties that answer together: their records in one array, padded to one length."""

    agreement: Agreement
    names: tuple[str, ...]
    stack: Records
    weights: np.ndarray


class Benches:
    """The parties that answer here, each with its seat."""

    def __init__(self, agreement: Agreement, settled: Mapping[str, Settled]) -> None:
        self.agreement, self.settled = agreement, settled
        self._bench_of: dict[str, _Bench] = {}
        self._rehearsed: set[tuple[_Bench, str]] = set()

    def seat(self, parties: Mapping[str, Records], *, batch_parties: bool, everybody: bool) -> None:
        """Give every party a seat; with `everybody` all of them are asked at once."""
        method = self.agreement.method
        arranged = {}
        for name, records in parties.items():
            if not len_records(records) > 0:
                raise DataError(f"party {name!r} has no records; leave it out or give it some")
            arranged[name] = method.arrange(name, records, self.agreement.seed)
        sizes = {name: one.weights.shape[method.variable_axis] for name, one in arranged.items()}
        if batch_parties:
            lengths = bucket_lengths(list(sizes.values()), MOST_LENGTHS, cheap_rows=CHEAP_ROWS)
        else:
            lengths = sorted({party_side.padded_rows(size) for size in sizes.values()})
        for below, length in zip([0, *lengths], lengths, strict=False):
            names = [name for name, size in sizes.items() if below < size <= length]
            together = batch_parties and everybody and self.agreement.model.traceable
            seats = bench_size(len(names), length) if together else 1
            for start in range(0, len(names), seats):
                group = {name: arranged[name] for name in names[start : start + seats]}
                self._seat(self.agreement, group, length, seats)

    def seat_prior(self) -> None:
        """A prior outside the family is a party too, and sits with the server."""
        agreement = prior_agreement(self.agreement)
        arranged = agreement.method.arrange(PRIOR_PARTY, prior_records(), agreement.seed)
        self._seat(agreement, {PRIOR_PARTY: arranged}, 1, 1)

    def compute(
        self,
        requests: Sequence[Request],
        memories: Mapping[str, Natural | None],
        keys: Mapping[str, bytes] | None = None,
    ) -> dict[str, Update]:
        """Updates by request id, those of one stage together; `keys` are noise keys by id."""
        found: dict[str, Update] = {}
        for bench, _, full in self._calls(requests):
            updates = party_side.answer_many(
                bench.agreement, bench.stack, bench.weights, full, self._terms(full),
                [memories.get(request.party) for request in full],
                [(keys or {}).get(request.id) for request in full],
            )  # fmt: skip
            for name, request, update in zip(bench.names, full, updates, strict=True):
                if request.party == name and request.id not in found:
                    found[request.id] = update
        return found

    def rehearse(self, requests: Sequence[Request], memories: Mapping[str, Natural | None]) -> None:
        """Compile and try out what these requests need and none before them did; no record is used.

        Best before they are charged.
        """
        for bench, stage, full in self._calls(requests):
            party_side.check_start(bench.agreement, full[0])
            if (bench, stage) not in self._rehearsed:
                party_side.rehearse(
                    bench.agreement, bench.stack, bench.weights, full, self._terms(full),
                    [memories.get(request.party) for request in full],
                )  # fmt: skip
                self._rehearsed.add((bench, stage))

    def _terms(self, requests: Sequence[Request]) -> list[Settled | None]:
        return [self.settled.get(request.party) for request in requests]

    def _calls(self, requests: Sequence[Request]) -> Iterator[tuple[_Bench, str, list[Request]]]:
        """Those of one stage together, one bench at a time; one request for each of its seats."""
        for stage in dict.fromkeys(request.stage for request in requests):
            waiting = {r.party: r for r in requests if r.stage == stage}
            for bench in dict.fromkeys(self._bench_of[name] for name in waiting):
                asked = [waiting[name] for name in bench.names if name in waiting]
                # A seat that is empty or was not asked repeats a request: one shape, one program.
                yield bench, stage, [waiting.get(name, asked[0]) for name in bench.names]

    def _seat(
        self, agreement: Agreement, group: dict[str, Arranged], length: int, seats: int
    ) -> None:
        names = [*group, *([next(iter(group))] * (seats - len(group)))]
        arranged = [group[name] for name in names]
        stack, weights = party_side.stack_records(arranged, length, agreement.method)
        bench = _Bench(agreement, tuple(names), stack, weights)
        self._bench_of.update(dict.fromkeys(names, bench))


def prior_agreement(agreement: Agreement) -> Agreement:
    """The prior is a party too: it sits with the server and its likelihood is log p(θ)."""
    method = agreement.method
    return Agreement(
        PriorAsLikelihood(agreement.model),
        agreement.family,
        method if isinstance(method, GradientVI | NaturalVI) else GradientVI(),
        agreement.seed,
    )
