"""Share of clipped units in a private run, measured after a simulation.

Whether a unit is clipped depends on its exact records, so showing the share of clipped units would
need a charge. It is therefore measured only in a simulation, in which the noise has a known seed.
The share is computed at the final q without noise, for all units or a random sample of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam import Family, Natural
from tacit.methods import Arranged, Clipped, PrivateMethod
from tacit.models import Model, Records
from tacit.party.compute import make_task, stack_records, task_parts, visit_key
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled
from tacit.server.messages import Request

MAX_UNITS = 10_000
"""Largest number of sampled units over all parties, for which the standard error of the share is at
most 0.5 %.
"""


def clipped_share(
    agreement: Agreement,
    parties: Mapping[str, Records],
    settled: Mapping[str, Settled],
    q: Natural,
    public: Arrays,
    factors: Mapping[str, Natural],
    memories: Mapping[str, Natural | None],
) -> Clipped | None:
    """Return the share of units whose contributions are clipped at q, estimated from a sample of
    units.

    A method may clip several kinds of contributions. If the clipping of some kinds biases q, the
    largest share of these kinds is returned; otherwise it is the largest share of all kinds. The
    result is None if the noise is secret, because the share is not private. It is also None if the
    method cannot measure the share.
    """
    method = agreement.method
    if agreement.insecure_noise_seed is None or not isinstance(method, PrivateMethod):
        return None
    groups: dict[tuple[str, str], list[Request]] = {}
    for party in parties:
        if settled[party].visits < 1:
            continue
        for visit, setting in method.clipped_visits(settled[party].visits).items():
            stage = method.stage_at(visit)
            request = Request(
                "",
                party,
                visit,
                0,
                q if stage.needs_q else None,
                factors[party] if stage.needs_factor else None,
                1.0,
                initial=False,
                stage=stage.name,
                public=public,
            )
            groups.setdefault((stage.name, setting), []).append(request)
    rows = {
        party: _chosen(method.arrange(party, records, agreement.seed), agreement, len(parties))
        for party, records in parties.items()
    }
    found = []
    for (stage, setting), requests in groups.items():
        share = _share_of(agreement, requests, rows, settled, memories)
        if share is None:
            return None
        biases = method.clipping_biases(agreement.model, stage)
        found.append(Clipped(biases, share, setting))
    return max(found, default=None)


def _chosen(arranged: Arranged, agreement: Agreement, parties: int) -> tuple[Arranged, float]:
    """Return a random sample of a party's rows, and the number of rows that each sampled row
    represents.
    """
    count, most = arranged.weights.shape[0], max(1, MAX_UNITS // parties)
    if count <= most:
        return arranged, 1.0
    chosen = np.sort(np.random.default_rng(agreement.seed).choice(count, most, replace=False))
    records = {name: value[chosen] for name, value in arranged.records.items()}
    return Arranged(records, arranged.weights[chosen]), count / most


def _share_of(
    agreement: Agreement,
    requests: list[Request],
    rows: Mapping[str, tuple[Arranged, float]],
    settled: Mapping[str, Settled],
    memories: Mapping[str, Natural | None],
) -> float | None:
    import jax

    names = [request.party for request in requests]
    length = max(rows[name][0].weights.shape[0] for name in names)
    stack, weights = stack_records([rows[name][0] for name in names], length, agreement.method)
    stage, own, shared = task_parts(
        agreement,
        requests,
        [settled[name] for name in names],
        [memories.get(name) for name in names],
    )
    count = _counting(agreement.method, agreement.model.compiled_as, agreement.family, stage)
    counted = count(stack, weights, own, shared)
    if counted is None:
        return None
    shortened, units = (np.asarray(part, dtype=np.float64) for part in jax.tree.leaves(counted))
    scale = np.array([rows[name][1] for name in names])
    return float(np.sum(scale * shortened) / max(1.0, float(np.sum(scale * units))))


@functools.lru_cache(maxsize=16)
def _counting(
    method: PrivateMethod, model: Model, family: Family, stage: str
) -> Callable[..., Any]:
    """Return a function that computes, for each party, the number of clipped units and of all
    units.
    """
    import jax
    import jax.numpy as jnp

    from tacit.privacy.bounded import Tally

    def one(records: Any, weights: Any, own: Any, shared: Any) -> Any:
        task = make_task(method, stage, records, weights, own, shared)
        key = visit_key(task.words) if model.traceable or method.uses_key else None
        found = method.contributions(model, family, key, task, Tally(jnp.ones(()), jnp.inf))
        if found is None:
            return None
        bounded, present = found
        units = jnp.sum(present)
        return 0.5 * units - bounded.value[1], units

    if model.traceable:

        def mapped(records: Any, weights: Any, own: Any, shared: Any) -> Any:
            return jax.lax.map(
                lambda row: one(row[0], row[1], row[2], shared), (records, weights, own)
            )

        return jax.jit(mapped)

    def each(records: Any, weights: Any, own: Any, shared: Any) -> Any:
        records, weights = jax.tree.map(np.asarray, (records, weights))
        parts = [
            jax.tree.map(lambda leaf, i=i: leaf[i], (records, weights, own))
            for i in range(len(weights))
        ]
        found = [one(part[0], part[1], part[2], shared) for part in parts]
        return None if None in found else jax.tree.map(lambda *leaves: np.stack(leaves), *found)

    return each
