"""An actor that hosts many parties: their records on benches, one compiled function for all."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from typing import Any

from threadpoolctl import threadpool_limits

from tacit.arrays import Arrays, Natural
from tacit.engines.batching import Benches
from tacit.engines.compilations import compilations
from tacit.engines.ray.cluster import import_ray
from tacit.engines.ray.pack import Answered, Asked, pack_updates, unpack_requests
from tacit.engines.ray.runner import limit_threads
from tacit.models import Records
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled


class Host:
    """Answers for its parties. It keeps nothing between calls but their records.

    What a party remembers comes with the question and goes back with the answer, and whatever is
    charged was charged before, so that a host can be lost at any moment.
    """

    def __init__(
        self,
        agreement: Agreement,
        parties: Mapping[str, Records],
        settled: Mapping[str, Settled],
        batch_parties: bool,
        everybody: bool,
        threads: int,
    ) -> None:
        limit_threads(threads)
        threadpool_limits(limits=threads, user_api="blas")
        compilations()  # count from now on
        self._busy_s = 0.0
        self._benches = Benches(agreement, settled)
        self._benches.seat(parties, batch_parties=batch_parties, everybody=everybody)

    def compute(self, carried: tuple[Natural | None, Arrays], asked: Asked) -> Answered:
        """Updates for requests that share q and public arrays, and are paid for."""
        requests, memories, keys = unpack_requests(*carried, asked)
        started = time.perf_counter()
        found = self._benches.compute(requests, memories, keys)
        self._busy_s += time.perf_counter() - started
        return pack_updates(found)

    def rehearse(self, carried: tuple[Natural | None, Arrays], asked: Asked) -> None:
        """Compile and try out what these requests need; nothing is charged yet."""
        requests, memories, _ = unpack_requests(*carried, asked)
        self._benches.rehearse(requests, memories)

    def report(self) -> dict[str, Any]:
        """Who and how large this process is, what it has compiled and how long it computed."""
        count, seconds = compilations()
        return {
            "pid": os.getpid(),
            "node": import_ray().get_runtime_context().get_node_id(),
            "compilations": count,
            "compile_s": seconds,
            "busy_s": self._busy_s,
            "cpu_s": time.process_time(),
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
