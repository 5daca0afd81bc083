"""A party: request -> (reply, new state). The same code under every engine.

`recall` and `conclude` are the party's side of the protocol; between them stands the arithmetic
of its local method. `step` runs the three for one party. An engine that answers for many parties
at once calls `recall`, one batched `answer`, and `conclude`: nothing else differs.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tacit.errors import DataError
from tacit.expfam import Family, Natural
from tacit.local import LocalMethod, Task
from tacit.messages import Reply, Request
from tacit.models import Model, Records
from tacit.pvi import damped_update

PAD_TO = 32


@dataclass(frozen=True)
class Agreement:
    """What every party of a run has agreed on. Hashable by identity of its parts."""

    model: Model
    family: Family
    method: LocalMethod
    seed: int


class PartyState(NamedTuple):
    """What a party remembers between requests: its answer to the last one."""

    last: Reply | None = None


class Update(NamedTuple):
    """Δₘ as arrays, the loss, and whether all of it is finite."""

    delta: Natural
    loss: float
    finite: bool


def step(
    agreement: Agreement, records: Records, state: PartyState, request: Request
) -> tuple[Reply, PartyState]:
    """Answer one request of one party."""
    known = recall(state, request)
    if known is not None:
        return known, state
    stack, counts = stack_records([records], padded_rows(len_records(records)), agreement.method)
    return conclude(request, answer_many(agreement, stack, counts, [request])[0])


def recall(state: PartyState, request: Request) -> Reply | None:
    """The stored reply if this id was answered before: nothing is computed or drawn again."""
    if state.last is not None and state.last.id == request.id:
        return state.last
    return None


def conclude(request: Request, update: Update) -> tuple[Reply, PartyState]:
    """The reply to a request from the update, refused if a number in it is not finite."""
    if not update.finite:
        raise DataError(
            f"party {request.party!r}, visit {request.visit}: its update is not finite; lower "
            "method.learning_rate or method.step_size, or look for extreme values in its data"
        )
    reply = Reply(request.id, request.party, request.version, update.delta, update.loss)
    return reply, PartyState(last=reply)


def answer_many(
    agreement: Agreement, stack: Records, counts: np.ndarray, requests: Sequence[Request]
) -> list[Update]:
    """The updates of several parties in one call of one compiled function.

    `stack` holds the records of these parties, one request each, padded to one length; length and
    number of parties are the compiled shape. The requests must carry one and the same q, as those
    of a synchronous round do: what depends on q alone is then computed once for all of them.
    """
    first = requests[0]
    if any(r.q is not first.q or r.initial != first.initial for r in requests):
        raise ValueError("answer_many is for requests that carry the same q")
    start = agreement.model.start(agreement.family) if first.initial else None
    shared = (first.q, start or first.q, np.bool_(first.initial))
    words = [[agreement.seed, party_word(r.party), r.visit] for r in requests]
    own = (
        np.array(words, dtype=np.uint32),
        np.array([r.damping for r in requests]),
        {name: np.stack([r.factor[name] for r in requests]) for name in first.factor},
    )
    run = compiled(agreement.method, agreement.model, agreement.family)
    delta, losses, finite = run(stack, counts, own, shared)
    delta = {name: np.asarray(value) for name, value in delta.items()}
    return [
        Update({name: value[i] for name, value in delta.items()}, float(loss), bool(sound))
        for i, (loss, sound) in enumerate(zip(np.asarray(losses), np.asarray(finite), strict=True))
    ]


@functools.lru_cache(maxsize=64)
def compiled(method: LocalMethod, model: Model, family: Family) -> Callable[..., Any]:
    """Answer and damped update, mapped over parties and jitted. Data are arguments, no closure."""
    import jax
    import jax.numpy as jnp

    def one(records: Any, count: Any, own: Any, shared: Any) -> Any:
        words, damping, factor = own
        q, start, initial = shared
        weights = (jnp.arange(len_records(records)) < count).astype(method.dtype)
        key = jax.random.key(words[0])
        key = jax.random.fold_in(jax.random.fold_in(key, words[1]), words[2])
        answer = method.answer(
            model, family, key, Task(records, weights, q, factor, start, initial)
        )
        delta = damped_update(answer.natural, q, damping)
        finite = jnp.isfinite(answer.loss)
        for value in delta.values():
            finite = finite & jnp.all(jnp.isfinite(value))
        return delta, answer.loss, finite

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))


def stack_records(
    parties: Sequence[Records], rows: int, method: LocalMethod
) -> tuple[Records, np.ndarray]:
    """Records of several parties as one device array a column, padded to `rows`.

    Padding repeats the party's first record: a made-up one could lie outside the model's support
    and turn the zero that its weight makes of it into NaN.
    """
    import jax

    counts = np.array([len_records(records) for records in parties], dtype=np.int32)
    stack = {}
    for name in parties[0]:
        first = np.asarray(parties[0][name])
        dtype = method.dtype if np.issubdtype(first.dtype, np.floating) else first.dtype
        column = np.empty((len(parties), rows, *first.shape[1:]), dtype=dtype)
        for i, records in enumerate(parties):
            column[i, : counts[i]] = records[name]
            column[i, counts[i] :] = records[name][0]
        stack[name] = jax.device_put(column)
    return stack, counts


def len_records(records: Records) -> int:
    """Number of records."""
    return len(next(iter(records.values())))


def padded_rows(count: int) -> int:
    """The padded length of a party on its own: the next of 32·2^(k/2), whatever others hold.

    >>> [padded_rows(n) for n in (1, 32, 33, 46, 47, 1000)]
    [32, 32, 46, 46, 64, 1024]
    """
    rows, half_octaves = PAD_TO, 0
    while rows < count:
        half_octaves += 1
        rows = math.ceil(PAD_TO * 2 ** (half_octaves / 2))
    return rows


@functools.cache
def party_word(name: str) -> int:
    """32 bits of a party's name, for its random numbers: the same on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
