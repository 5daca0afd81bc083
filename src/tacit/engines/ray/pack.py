"""Requests and updates of many parties, packed into a few arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.party.compute import Update
from tacit.server.messages import Request

Stack = dict[str, np.ndarray]
Kept = tuple[list[int], Stack]
"""Method memories of some parties: the row numbers of these parties, and the stacked arrays."""


class Asked(NamedTuple):
    """Packed requests, one row per request, without the q that they share."""

    columns: list[tuple[Any, ...]]
    """Columns of the table of requests: id, party, visit, version, damping, `initial` and stage."""
    factors: Stack | None
    memories: Kept | None
    keys: list[bytes | None]
    """Noise keys of charged requests."""


class Answered(NamedTuple):
    """The updates of several requests, packed into arrays with one row per request."""

    columns: list[tuple[Any, ...]]
    """Columns of the table of updates: request id, loss, finiteness flag and cost."""
    released: Stack
    memories: Kept | None


def pack_requests(
    requests: Sequence[Request],
    memories: Mapping[str, Natural | None],
    keys: Mapping[str, bytes],
) -> Asked:
    """Pack requests that share q and public arrays, with method memories and noise keys."""
    rows = [(r.id, r.party, r.visit, r.version, r.damping, r.initial, r.stage) for r in requests]
    kept = [memories.get(request.party) for request in requests]
    secret = [keys.get(request.id) for request in requests]
    factors = [r.factor for r in requests if r.factor is not None]
    return Asked(_columns(rows), _stack(factors) if factors else None, _stack_some(kept), secret)


def unpack_requests(
    q: Natural | None, public: Arrays, asked: Asked
) -> tuple[list[Request], dict[str, Natural | None], dict[str, bytes]]:
    """The inverse of `pack_requests`."""
    rows = list(zip(*asked.columns, strict=True))
    factors = [None] * len(rows) if asked.factors is None else _rows(asked.factors)
    requests = [
        Request(key, party, visit, version, q, factor, damping, initial, stage, public)
        for (key, party, visit, version, damping, initial, stage), factor in zip(
            rows, factors, strict=True
        )
    ]
    memories = _memories(asked.memories, len(requests))
    keys = {r.id: key for r, key in zip(requests, asked.keys, strict=True) if key is not None}
    return requests, {r.party: kept for r, kept in zip(requests, memories, strict=True)}, keys


def pack_updates(found: Mapping[str, Update]) -> Answered:
    """Pack a dict from request ids to updates into a few arrays."""
    updates = list(found.values())
    rows = [(key, one.loss, one.finite, one.cost) for key, one in found.items()]
    kept = _stack_some([one.memory for one in updates])
    return Answered(_columns(rows), _stack([one.released for one in updates]), kept)


def unpack_updates(answered: Answered) -> dict[str, Update]:
    """The inverse of `pack_updates`."""
    count = len(answered.columns[0])
    return {
        key: Update(released, loss, finite, cost, memory)
        for (key, loss, finite, cost), released, memory in zip(
            zip(*answered.columns, strict=True),
            _rows(answered.released),
            _memories(answered.memories, count),
            strict=True,
        )
    }


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True))


def _stack(naturals: Sequence[Natural]) -> Stack:
    return {name: np.stack([one[name] for one in naturals]) for name in naturals[0]}


def _stack_some(kept: Sequence[Natural | None]) -> Kept | None:
    known = {i: one for i, one in enumerate(kept) if one is not None}
    return (list(known), _stack(list(known.values()))) if known else None


def _rows(stack: Stack) -> list[Natural]:
    count = len(next(iter(stack.values())))
    return [{name: value[i] for name, value in stack.items()} for i in range(count)]


def _memories(kept: Kept | None, count: int) -> list[Natural | None]:
    memories: list[Natural | None] = [None] * count
    for i, one in zip(kept[0], _rows(kept[1]), strict=True) if kept else ():
        memories[i] = one
    return memories
