"""A party: request -> (reply, new state). The same code under every engine.

`recall` and `conclude` are the party's side of the protocol; between them stands the arithmetic
of its local method. `step` runs the three for one party. An engine that answers for many parties
at once calls `recall`, one batched `answer`, and `conclude`: nothing else differs.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tacit.errors import DataError
from tacit.expfam import Family, Natural
from tacit.local import Answer, LocalMethod, Task
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


def step(
    agreement: Agreement, records: Records, state: PartyState, request: Request
) -> tuple[Reply, PartyState]:
    """Answer one request of one party."""
    known = recall(state, request)
    if known is not None:
        return known, state
    stack, counts = stack_records([records], padded_rows(len_records(records)), agreement.method)
    answer = answer_many(agreement, stack, counts, [request])[0]
    return conclude(request, answer)


def recall(state: PartyState, request: Request) -> Reply | None:
    """The stored reply if this id was answered before: nothing is computed or drawn again."""
    if state.last is not None and state.last.id == request.id:
        return state.last
    return None


def conclude(request: Request, answer: Answer) -> tuple[Reply, PartyState]:
    """The reply to a request from the method's answer, refused if a number is not finite."""
    loss = float(answer.loss)
    if not np.isfinite(loss) or not all(np.all(np.isfinite(v)) for v in answer.natural.values()):
        raise DataError(
            f"party {request.party!r}, visit {request.visit}: its update is not finite; lower "
            "method.learning_rate or method.step_size, or look for extreme values in its data"
        )
    delta = damped_update(answer.natural, request.q, request.damping)
    reply = Reply(request.id, request.party, request.version, delta, loss)
    return reply, PartyState(last=reply)


def answer_many(
    agreement: Agreement,
    stack: Records,
    counts: np.ndarray,
    requests: Sequence[Request],
) -> list[Answer]:
    """The method's answers for several parties in one call of one compiled function.

    `stack` holds the records of these parties, one request each, padded to one length. Length and
    number of parties are the compiled shape.
    """
    start = agreement.model.start(agreement.family)
    batch = {
        "q": _stack([request.q for request in requests]),
        "factor": _stack([request.factor for request in requests]),
        "start": _stack([start if r.initial and start else r.q for r in requests]),
        "initial": np.array([r.initial for r in requests]),
    }
    words = np.array(
        [[agreement.seed, party_word(r.party), r.visit] for r in requests], dtype=np.uint32
    )
    run = compiled(agreement.method, agreement.model, agreement.family)
    answer = run(stack, counts, words, batch)
    natural = {name: np.asarray(value) for name, value in answer.natural.items()}
    losses = np.asarray(answer.loss)
    return [
        Answer({name: value[i] for name, value in natural.items()}, losses[i])
        for i in range(len(requests))
    ]


@functools.lru_cache(maxsize=64)
def compiled(method: LocalMethod, model: Model, family: Family) -> Callable[..., Any]:
    """`method.answer` mapped over parties and jitted. Data are arguments, never a closure."""
    import jax
    import jax.numpy as jnp

    def one(records: Any, count: Any, words: Any, natural: Any) -> Answer:
        weights = (jnp.arange(len_records(records)) < count).astype(method.dtype)
        key = jax.random.key(words[0])
        key = jax.random.fold_in(jax.random.fold_in(key, words[1]), words[2])
        return method.answer(model, family, key, Task(records, weights, **natural))

    return jax.jit(jax.vmap(one))


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

    >>> [padded_rows(n) for n in (1, 32, 33, 50, 1000)]
    [32, 32, 46, 64, 1024]
    """
    steps = max(0, int(np.ceil(2 * np.log2(max(count, 1) / PAD_TO) - 1e-9)))
    return int(np.ceil(PAD_TO * 2 ** (steps / 2)))


@functools.cache
def party_word(name: str) -> int:
    """32 bits of a party's name, for its random numbers: the same on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")


def _stack(naturals: Sequence[Natural]) -> Natural:
    return {name: np.stack([natural[name] for natural in naturals]) for name in naturals[0]}
