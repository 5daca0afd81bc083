"""Computation of replies: one compiled function for one or many parties.

`tacit.party.agent` does the rest: recall, charge, conclude, keep.
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
    """Released arrays, loss, finiteness flag, privacy cost and the method's new memory."""

    released: Arrays
    loss: float | None
    finite: bool
    cost: Any = None
    memory: Natural | None = None


class SinglePartyComputer:
    """Computes updates for a single party, whose records are arranged once."""

    def __init__(
        self,
        agreement: Agreement,
        party: str,
        records: Records,
        settled: Settled | None = None,
        memory_at: Callable[[str, int], Natural | None] | None = None,
        rows: int | None = None,
    ) -> None:
        """Arrange the records.

        Parameters
        ----------
        agreement
            The parties' side of the plan.
        party
            The party's name.
        records
            The party's records.
        settled
            The party's privacy terms in a private run.
        memory_at
            Function that returns the method's memory before a visit (`Store.memory_at`).
        rows
            Length to which the records are padded; by default as in every engine.
        """
        arranged = agreement.method.arrange(party, records, agreement.seed)
        rows = rows or padded_rows(arranged.weights.shape[agreement.method.variable_axis])
        self.agreement, self.settled = agreement, settled
        self._memory_at = memory_at
        on_device = not agreement.method.in_numpy(agreement.model)
        self._stack = stack_records([arranged], rows, agreement.method, on_device=on_device)
        self._rehearsed: set[str] = set()

    def rehearse(self, requests: Sequence[Request]) -> None:
        """Compile and test the programs for these requests, before they are charged."""
        for request in requests:
            check_start(self.agreement, request)
            if request.stage not in self._rehearsed:
                memories = [self._memory(request)]
                rehearse(self.agreement, *self._stack, [request], [self.settled], memories)
                self._rehearsed.add(request.stage)

    def compute(self, requests: Sequence[Request], keys: Mapping[str, bytes]) -> dict[str, Update]:
        """Return the updates by request id. A private request was charged before and has a noise
        key.
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

    `stack` holds the parties' records padded to one length, one request per party. Length and
    number of parties determine the compiled shape. The requests must carry the same q, as in a
    synchronous round, and be of one stage. `keys` are the noise keys of charged requests; without a
    key or a seed, a fresh key is drawn.
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
    """Return the stage of these requests, the task arrays per party, and the shared arrays."""
    first = requests[0]
    if any(
        r.q is not first.q or r.public is not first.public or r.initial != first.initial
        for r in requests
    ):
        raise ValueError("answer_many needs requests that carry the same q and public arrays")
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
    """Make one party's task from its row of `task_parts`."""
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
    """Compile the computation for these requests and run it on rows of zeros.

    Failures (compilation, memory, a method that releases other events than it declares) occur here,
    before anything is charged and independently of the records. The result is discarded.
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
    """Refuse a q from which no computation can start; call this before the charge."""
    start = _start(agreement, request)
    if start is not None:
        _begun(agreement, start, request)


def _start(agreement: Agreement, request: Request) -> Natural | None:
    """Return the starting point of the local computation: q, or the model's start while q is the
    prior.

    None for a stage that does not use q.
    """
    if request.q is None:
        return None
    own = request.initial and not agreement.method.starts_at_q
    start = agreement.model.start(agreement.family) if own else None
    return start or request.q


def _stacked_factors(requests: Sequence[Request]) -> Arrays | None:
    """Stack the parties' factors, one row each; None if the stage does not use them."""
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
            "not positive definite within rounding; lower schedule.damping, or scale the columns "
            "similarly"
        ) from None


def _stacked_memories(
    agreement: Agreement, requests: Sequence[Request], memories: Sequence[Natural | None]
) -> Natural | None:
    """Stack what the method stored at each party (its memory), one row per party; initial values at
    the first visit.
    """
    start = agreement.method.memory(agreement.model, agreement.family)
    if start is None:
        return None
    for request, memory in zip(requests, memories, strict=True):
        require_memory(agreement, request, memory)
    known = [start if memory is None else memory for memory in memories]
    return {name: np.stack([memory[name] for memory in known]) for name in start}


def require_memory(agreement: Agreement, request: Request, memory: Natural | None) -> None:
    """Refuse to answer if the method's memory of this party is missing; call this before the
    charge.
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
    """Return terms, keys and integer noise, one row per request; None for a method without
    privacy.
    """
    if not agreement.method.private:
        return None
    known = [one for one in settled or () if one is not None]
    if len(known) != len(requests):
        raise ValueError("a private method needs settled terms for every request")
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
    """Return the noise of every release, (requests, releases, numbers), which depends on the
    secrets alone.

    It is drawn before the records are read, so that its timing does not depend on them.
    """
    first = now[0]
    if not first:
        return np.zeros((len(now), 0, 0), np.int64)
    if len(first) != 1 or first[0].lattice is None:
        raise ValueError(f"a visit has one kind of release, on a lattice; {first} was settled")
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
    """Return a function that computes damped updates of several parties; data are its arguments.

    It is compiled and mapped over parties or, if the method computes in NumPy, a loop over them.
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
    """Return the public random key of a seed, party and visit."""
    key = jax.random.fold_in(jax.random.key(words[0]), words[1])
    return jax.random.fold_in(key, words[2])


def stack_records(
    parties: Sequence[Arranged], rows: int, method: LocalMethod, *, on_device: bool = True
) -> tuple[Records, np.ndarray]:
    """Stack the records of several parties to one array per column, padded to `rows`; also return
    the weights.

    Padding repeats the party's first record: an artificial one could lie outside the model's
    support and give NaN, which weight 0 does not remove. A sparse matrix stays sparse and is padded
    with empty rows.
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
    """Return a sparse matrix padded with empty rows; it shares the values of the given matrix."""
    ends = np.pad(matrix.indptr, (0, rows - matrix.shape[0]), mode="edge")
    parts = (matrix.data, matrix.indices, ends)
    return type(matrix)(parts, shape=(rows, matrix.shape[1]))


def padded_rows(count: int) -> int:
    """Return the padded number of rows of one party: the next of 64·2^(k/2), whatever the other
    parties.

    It is rounded up to whole blocks (`whole_blocks`).

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
    """Return 32 bits that represent a party's name in seeds; they are the same on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
