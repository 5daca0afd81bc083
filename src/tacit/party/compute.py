"""Computation of replies: one compiled function for one or many parties.

`tacit.party.agent` does everything else: it charges requests and stores replies.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Arrays, Natural, namespace, whole_blocks
from tacit.errors import DataError
from tacit.expfam import Family
from tacit.methods import Arranged, LocalMethod, Task, Terms
from tacit.models import Model, Records
from tacit.plan.agreement import Agreement
from tacit.plan.calibrate import Settled
from tacit.privacy.events import GaussianEvent, LaplaceEvent
from tacit.privacy.lattice import draw_each
from tacit.privacy.mechanisms import LatticeTerms, check_released
from tacit.privacy.noise_key import batch_key_data, secret_key, seeded_key, wrap_noise_key
from tacit.server.messages import UPDATE, Request
from tacit.support.compiler import jax, jnp
from tacit.support.trees import tree_map, unstacked

MIN_PADDED_ROWS = 64


class Update(NamedTuple):
    """What a party computed for one request.

    It has the arrays to release, the loss, whether all numbers are finite, the privacy cost, and
    the new memory of the method.
    """

    released: Arrays
    loss: float | None
    finite: bool
    cost: Any = None
    memory: Natural | None = None


class SinglePartyComputer:
    """Computes the updates of one party.

    The party's records are prepared for the method and padded once, not at each visit.
    """

    def __init__(
        self,
        agreement: Agreement,
        party: str,
        records: Records,
        settled: Settled | None = None,
        memory_at: Callable[[str, int], Natural | None] | None = None,
        rows: int | None = None,
    ) -> None:
        """Prepare and pad the records.

        Parameters
        ----------
        agreement
            The part of the plan that all parties share.
        party
            The party's name.
        records
            The party's records.
        settled
            Clip, noise and events of the party in a private run.
        memory_at
            Function that returns the method memory before a visit (`Store.memory_at`).
        rows
            Number of rows to which the records are padded; by default `padded_rows`.
        """
        arranged = agreement.method.arrange(party, records, agreement.seed)
        rows = rows or padded_rows(arranged.weights.shape[agreement.method.variable_axis])
        self.agreement, self.settled = agreement, settled
        self._memory_at = memory_at
        on_device = not agreement.method.in_numpy(agreement.model)
        self._stack = stack_records([arranged], rows, agreement.method, on_device=on_device)
        self._rehearsed: set[str] = set()

    def rehearse(self, requests: Sequence[Request]) -> None:
        """Compile the programs for these requests and test them on artificial records.

        This is called before the requests are charged.
        """
        for request in requests:
            check_start(self.agreement, request)
            if request.stage not in self._rehearsed:
                memories = [self._memory(request)]
                rehearse(self.agreement, *self._stack, [request], [self.settled], memories)
                self._rehearsed.add(request.stage)

    def compute(self, requests: Sequence[Request], keys: Mapping[str, bytes]) -> dict[str, Update]:
        """Return the updates for these requests, by request id.

        `keys` has the noise keys of the charged requests, by request id.
        """
        found = {}
        for request in requests:
            memory, key = self._memory(request), keys.get(request.id)
            (found[request.id],) = answer_many(
                self.agreement, *self._stack, [request], [self.settled], [memory], [key]
            )
        return found

    def _memory(self, request: Request) -> Natural | None:
        if self._memory_at is None:
            return None
        return self._memory_at(request.party, request.visit)


def answer_many(
    agreement: Agreement,
    stack: Records,
    weights: np.ndarray,
    requests: Sequence[Request],
    settled: Sequence[Settled | None] | None = None,
    memories: Sequence[Natural | None] | None = None,
    keys: Sequence[bytes | None] | None = None,
) -> list[Update]:
    """Compute the updates of several parties in one call of a compiled function.

    `stack` and `weights` are the results of `stack_records`. The other sequences have one entry per
    party. All requests must have the same stage, q and public arrays, as in a synchronous round. If
    a noise key is None, a new random key is used or, in a simulation, a key derived from the seed.
    """
    stage, own, shared = task_parts(agreement, requests, settled, memories, keys)
    method = agreement.method
    run = compiled(method, agreement.model.compiled_as, agreement.family, method.program(stage))
    released, loss, finite, cost, kept = tree_map(np.asarray, run(stack, weights, own, shared))
    updates = [
        Update(
            method.stage_released(stage, {name: value[i] for name, value in released.items()}),
            None if loss is None else float(loss[i]),
            bool(finite[i]),
        )
        for i in range(len(requests))
    ]
    if cost is not None or kept is not None:
        each = zip(updates, unstacked((cost, kept), len(updates)), strict=True)
        updates = [one._replace(cost=cost, memory=kept) for one, (cost, kept) in each]
    return updates


def task_parts(
    agreement: Agreement,
    requests: Sequence[Request],
    settled: Sequence[Settled | None] | None = None,
    memories: Sequence[Natural | None] | None = None,
    keys: Sequence[bytes | None] | None = None,
) -> tuple[str, Any, Any]:
    """Return the stage of these requests and the arrays for their computation.

    The arrays are two tuples: arrays with one row per party, and arrays that all parties share.
    """
    first = requests[0]
    if any(
        r.q is not first.q or r.public is not first.public or r.initial != first.initial
        for r in requests
    ):
        raise ValueError(
            "the requests have different q or public arrays; call answer_many once for each q"
        )
    (stage,) = {r.stage for r in requests}
    start = _start(agreement, first)
    begun = None if start is None else _begun(agreement, start, first)
    # Results of BLAS depend on the order of axes in memory, which transport does not preserve.
    public = tree_map(lambda value: np.asarray(value, order="C"), first.public)
    public = agreement.method.program_public(stage, public)
    shared = (first.q, start, np.bool_(first.initial), begun, public)
    words = [[agreement.seed, party_word(r.party), r.visit] for r in requests]
    own = (
        np.array(words, dtype=np.uint32),
        np.array([r.damping for r in requests]),
        _stacked_factors(requests),
        _private_parts(agreement, requests, settled, keys or [None] * len(requests)),
        _stacked_memories(agreement, requests, memories or [None] * len(requests)),
    )
    return stage, own, shared


def make_task(
    method: LocalMethod, stage: str, records: Any, weights: Any, own: Any, shared: Any
) -> Task:
    """Make the task of one party.

    `own` is the party's row of the arrays from `task_parts`, and `shared` are the arrays that all
    parties share.
    """
    words, damping, factor, private, memory = own
    q, start, initial, begun, public = shared
    task = Task(records, weights.astype(method.dtype), q, factor, start, initial, words[2])
    if private is not None:
        terms, secret, noise = private
        task = task._replace(terms=terms, secret=wrap_noise_key(secret), noise=noise)
    task = task._replace(stage=stage, memory=memory, damping=damping, begun=begun)
    return task._replace(words=words, public=public)


def rehearse(
    agreement: Agreement,
    stack: Records,
    weights: np.ndarray,
    requests: Sequence[Request],
    settled: Sequence[Settled | None],
    memories: Sequence[Natural | None],
) -> None:
    """Compile the computation for these requests and run it on artificial records.

    The result is discarded. An error (in compilation, for lack of memory, or because privacy events
    differ from those in `settled`) then occurs before anything is charged, and does not depend on
    the records.
    """
    if agreement.model.traceable:
        zeros = tree_map(lambda column: namespace(column).zeros_like(column), stack)
    else:
        zeros = agreement.model.stand_in(stack)  # zeros may be invalid records
        if zeros is None:
            return
    for request, one, update in zip(
        requests,
        settled,
        answer_many(agreement, zeros, weights, requests, settled, memories),
        strict=True,
    ):
        if one is not None:
            check_released(update.cost, one.events_at(request.visit), request.party)


def check_start(agreement: Agreement, request: Request) -> None:
    """Raise a DataError if no computation can start from the q of this request.

    This is called before the charge.
    """
    start = _start(agreement, request)
    if start is not None:
        _begun(agreement, start, request)


def _start(agreement: Agreement, request: Request) -> Natural | None:
    """Return the natural parameters at which the local computation starts; None if the stage does
    not use q.

    The start is q itself, except that the model may define another start if q is still the prior.
    """
    if request.q is None:
        return None
    own = request.initial and not agreement.method.starts_at_q
    start = agreement.model.start(agreement.family) if own else None
    return start or request.q


def _stacked_factors(requests: Sequence[Request]) -> Arrays | None:
    factors = [r.factor for r in requests if r.factor is not None]
    if not factors:
        return None
    return {name: np.stack([factor[name] for factor in factors]) for name in factors[0]}


def _begun(agreement: Agreement, start: Natural, request: Request) -> Any:
    try:
        return agreement.method.begin(agreement.family, start)
    except (np.linalg.LinAlgError, ValueError):  # ValueError: a number is not finite
        raise DataError(
            f"party {request.party!r}, visit {request.visit}: the covariance of the received q is "
            "not positive definite, perhaps because of rounding; lower schedule.damping, or scale "
            "all columns to a similar range"
        ) from None


def _stacked_memories(
    agreement: Agreement, requests: Sequence[Request], memories: Sequence[Natural | None]
) -> Natural | None:
    """Return the method memories of the parties as arrays with one row per party.

    A party at its first visit has the initial memory of the method.
    """
    start = agreement.method.memory(agreement.model, agreement.family)
    if start is None:
        return None
    for request, memory in zip(requests, memories, strict=True):
        require_memory(agreement, request, memory)
    known = [start if memory is None else memory for memory in memories]
    return {name: np.stack([memory[name] for memory in known]) for name in start}


def require_memory(agreement: Agreement, request: Request, memory: Natural | None) -> None:
    """Raise a DataError if the method needs a memory of earlier visits and it is missing.

    This is called before the charge.
    """
    kept = agreement.method.memory(agreement.model, agreement.family) is not None
    if kept and memory is None and request.visit > 0:
        raise DataError(
            f"party {request.party!r}, visit {request.visit}: the method's memory of earlier "
            "visits is missing, so the reply would be wrong; restore the party's state directory "
            "or start a new run"
        )


def _private_parts(
    agreement: Agreement,
    requests: Sequence[Request],
    settled: Sequence[Settled | None] | None,
    keys: Sequence[bytes | None],
) -> tuple[Terms, np.ndarray, np.ndarray] | None:
    """Return clips and noise levels, random keys, and integer noise; None for a method without
    privacy.

    Each result has one row per request.
    """
    if not agreement.method.private:
        return None
    known = [one for one in settled or () if one is not None]
    if len(known) != len(requests):
        raise ValueError(
            "a private method needs clip, noise and events for every request; give one entry of "
            "`settled` per request"
        )
    seed = agreement.insecure_noise_seed
    if seed is None:
        secrets = [secret_key() if key is None else key for key in keys]
    else:
        secrets = [seeded_key(seed, r.party, r.visit) for r in requests]
    data = [batch_key_data(secret, simulated=seed is not None) for secret in secrets]
    now = [one.events_at(r.visit) for r, one in zip(requests, known, strict=True)]
    lattices = [[event.lattice for event in events if event.lattice] for events in now]
    terms = Terms(
        clip=np.array([one.clip for one in known]),
        noise_sd=np.array([one.noise_sd for one in known]),
        shares=np.array([float(one.shares) for one in known]),
        units=np.array([one.units for one in known]),
        releases=np.array([one.releases for one in known]),
        clips=np.array([[event.clip for event in events] for events in now]),
        noise_sds=np.array([[event.noise_sd for event in events] for events in now]),
        progress=np.array(
            [r.visit / max(1, one.visits - 1) for r, one in zip(requests, known, strict=True)]
        ),
        lattice=LatticeTerms(
            bits=np.array([one[0].bits if one else 0 for one in lattices]),
            units=np.array([one[0].units if one else 0 for one in lattices]),
        ),
    )
    return terms, np.stack(data), _noise(secrets, now)


def _noise(secrets: Sequence[bytes], now: Sequence[tuple[GaussianEvent, ...]]) -> np.ndarray:
    """Return the integer noise of every release, of shape (requests, releases, numbers).

    The noise is drawn before the records are read, so that the time of drawing does not depend on
    the records.
    """
    first = now[0]
    if not first:
        return np.zeros((len(now), 0, 0), np.int64)
    if len(first) != 1 or first[0].lattice is None:
        raise ValueError(
            f"a visit has the events {first}, but only one event with a lattice is supported; "
            "change the events of the method"
        )
    count, numbers = first[0].count, first[0].lattice.numbers
    found = np.empty((len(now), count * numbers), np.int64)
    bits = [event.lattice.bits for (event,) in now if event.lattice is not None]
    law = "laplace" if isinstance(first[0], LaplaceEvent) else "gaussian"
    for k in set(bits):
        rows = [row for row, own in enumerate(bits) if own == k]
        found[rows] = draw_each([secrets[row] for row in rows], count * numbers, k, law)
    return found.reshape(len(now), count, numbers)


@functools.lru_cache(maxsize=64)
def compiled(
    method: LocalMethod, model: Model, family: Family, stage: str = UPDATE
) -> Callable[..., Any]:
    """Return a function of (records, weights, own, shared) that computes the updates of several
    parties.

    `own` and `shared` are the arrays of `task_parts`. The function is compiled and vectorised over
    parties. If the method computes in NumPy, it is a loop over parties instead.
    """
    in_numpy = method.in_numpy(model)

    def one(records: Any, weights: Any, own: Any, shared: Any) -> Any:
        task = make_task(method, stage, records, weights, own, shared)
        key = visit_key(task.words) if method.uses_key or not in_numpy else None
        answer = method.answer(model, family, key, task)
        released = answer.leaving(task)
        xp = np if in_numpy else jnp
        finite = xp.all(xp.isfinite(0.0 if answer.loss is None else answer.loss)) & answer.sound
        for value in [*released.values(), *(answer.memory or {}).values()]:
            finite = finite & xp.all(xp.isfinite(value))
        return released, answer.loss, finite, answer.cost, answer.memory

    if not in_numpy:
        return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))

    def each(records: Any, weights: Any, own: Any, shared: Any) -> Any:
        # On the CPU these are views: nothing is copied between visits.
        records, weights = tree_map(np.asarray, (records, weights))
        with np.errstate(all="ignore"):  # results are checked instead
            parts = unstacked((records, weights, own), len(weights))
            found = [one(*part, shared=shared) for part in parts]
        return tree_map(lambda *leaves: np.stack(leaves), *found)

    return each


def visit_key(words: Any) -> Any:
    """Return the random key of a visit.

    `words` has the seed, the hash of the party's name (`party_word`) and the number of the visit.
    All three are public.
    """
    key = jax.random.fold_in(jax.random.key(words[0]), words[1])
    return jax.random.fold_in(key, words[2])


def stack_records(
    parties: Sequence[Arranged], rows: int, method: LocalMethod, *, on_device: bool = True
) -> tuple[Records, np.ndarray]:
    """Return the records of several parties as one array per column, and the weights of all rows.

    Each party is padded to `rows` rows. Padding has weight 0 and repeats the first record of the
    party, because the log-likelihood of an artificial record might be NaN, and 0 times NaN is NaN.
    A sparse matrix stays sparse and is padded with empty rows.
    """
    leading = np.max([one.weights.shape for one in parties], axis=0)
    leading[method.variable_axis] = rows
    axes = tuple(int(length) for length in leading)

    def padded(values: Sequence[np.ndarray], dtype: Any, *, fill: bool) -> Any:
        inner = values[0].shape[len(axes) :]
        column = np.zeros((len(values), *axes, *inner), dtype=dtype)
        for i, value in enumerate(values):
            if fill:
                column[i] = value[(0,) * len(axes)]
                if len(axes) == 2:  # pad a unit with its own records
                    column[i, : len(value)] = value[:, :1]
            column[(i, *(slice(length) for length in value.shape[: len(axes)]))] = value
        return jax.device_put(column) if on_device else column

    stack = {}
    for name in parties[0].records:
        if _is_sparse(parties[0].records[name]):
            stack[name] = np.empty(len(parties), object)
            stack[name][:] = [_lengthened(one.records[name], rows) for one in parties]
            continue
        columns = [np.asarray(one.records[name]) for one in parties]
        floating = np.issubdtype(columns[0].dtype, np.floating)
        stack[name] = padded(columns, method.dtype if floating else columns[0].dtype, fill=True)
    return stack, padded([one.weights for one in parties], method.dtype, fill=False)


def _is_sparse(column: Any) -> bool:
    module = sys.modules.get("scipy.sparse")
    return module is not None and module.issparse(column)


def _lengthened(matrix: Any, rows: int) -> Any:
    """Return the sparse matrix with empty rows added at the end. The stored values are not
    copied.
    """
    ends = np.pad(matrix.indptr, (0, rows - matrix.shape[0]), mode="edge")
    parts = (matrix.data, matrix.indices, ends)
    return type(matrix)(parts, shape=(rows, matrix.shape[1]))


def padded_rows(count: int) -> int:
    """Return the number of rows to which `count` records of a party are padded.

    Candidates are 64·2^(k/2) for k = 0, 1, …, rounded up to whole blocks (`whole_blocks`). The
    result is the smallest candidate that is at least `count`.

    >>> [padded_rows(n) for n in (1, 64, 65, 129, 193, 1000)]
    [64, 64, 128, 192, 256, 1024]
    """
    rows, half_octaves = MIN_PADDED_ROWS, 0
    while whole_blocks(rows) < count:
        half_octaves += 1
        rows = math.ceil(MIN_PADDED_ROWS * 2 ** (half_octaves / 2))
    return whole_blocks(rows)


@functools.cache
def party_word(name: str) -> int:
    """Return a 32-bit hash of a party's name, from which seeds are made. It is the same on every
    machine.
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
