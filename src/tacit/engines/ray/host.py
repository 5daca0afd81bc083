"""Ray actor that computes the updates of many parties in batches."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from threadpoolctl import threadpool_limits

from tacit.arrays import Arrays, Natural
from tacit.engines.batching import PartyBatches
from tacit.engines.compilations import compilations
from tacit.engines.ray.cluster import import_ray
from tacit.engines.ray.pack import Answered, Asked, pack_updates, unpack_requests
from tacit.engines.ray.runner import limit_threads
from tacit.models import Records
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled
from tacit.support.process import peak_memory_bytes


class Host:
    """Computes updates for its parties; keeps only their records between calls.

    Method memories are sent with requests and updates, and requests are charged before they are
    sent. If a host is lost, neither memories nor charges are lost.
    """

    def __init__(
        self,
        agreement: Agreement,
        parties: Mapping[str, Records],
        settled: Mapping[str, Settled],
        batch_parties: bool,
        all_at_once: bool,
        threads: int,
    ) -> None:
        limit_threads(threads)
        threadpool_limits(limits=threads, user_api="blas")
        compilations()  # start counting
        self._busy_s = 0.0
        self._batches = PartyBatches(agreement, settled)
        self._batches.add(parties, batch_parties=batch_parties, all_at_once=all_at_once)

    def compute(self, carried: tuple[Natural | None, Arrays], asked: Asked) -> Answered:
        """Compute the updates for charged requests that have the same q and public arrays."""
        requests, memories, keys = unpack_requests(*carried, asked)
        started = time.perf_counter()
        found = self._batches.compute(requests, memories, keys)
        self._busy_s += time.perf_counter() - started
        return pack_updates(found)

    def rehearse(self, carried: tuple[Natural | None, Arrays], asked: Asked) -> None:
        """Compile and test the programs for these requests, before they are charged."""
        requests, memories, _ = unpack_requests(*carried, asked)
        self._batches.rehearse(requests, memories)

    def report(self) -> dict[str, Any]:
        """Return the process id, node, memory, compilations and computing time of this process."""
        count, seconds = compilations()
        return {
            "pid": os.getpid(),
            "node": import_ray().get_runtime_context().get_node_id(),
            "compilations": count,
            "compile_s": seconds,
            "busy_s": self._busy_s,
            "cpu_s": time.process_time(),
            "memory_mb": peak_memory_bytes() / 2**20,
        }
