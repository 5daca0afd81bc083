"""Batch sampling exactly as accounted for, in compiled code with fixed shapes.

Poisson sampling has a random batch size. A batch is processed in chunks of fixed length, padded and
masked, until all selected units are used. No unit of a large batch is dropped, nothing is computed
twice, and an empty batch gives an empty sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tacit.arrays import whole_blocks
from tacit.privacy.bounded import Array, Bounded, add_disjoint
from tacit.privacy.mechanisms import Drawn
from tacit.support.compiler import jax, jnp

WORD_BITS = 32
Clipped = Callable[[Array, Array], Bounded]
"""Function from (rows, mask) to the bounded sum over the rows whose mask is 1."""


def poisson_mask(key: Array, present: Array, rate: Array) -> Array:
    """Return the mask of a batch that contains each present unit independently, with probability ≤
    `rate`.

    32 random bits are compared with ⌊rate·2³²⌋, so that the probability is never above `rate` and
    at most 2⁻³² below it.
    """
    # The generator makes 64 bits at a time, enough for two units.
    pairs = jax.random.bits(key, (-(-present.shape[0] // 2),), jnp.uint64)
    bits = jax.lax.bitcast_convert_type(pairs, jnp.uint32).reshape(-1)[: present.shape[0]]
    rate = jnp.asarray(rate, jnp.float64)
    threshold = jnp.minimum(jnp.floor(rate * 2.0**32), 2.0**32 - 1).astype(jnp.uint32)
    return (present != 0) & ((bits < threshold) | (rate >= 1.0))


def chunk_length(rate: float, units: int) -> int:
    """Return a chunk length that nearly always holds a complete Poisson batch: mean plus 4 sd.

    It is a multiple of the block size, or all units: the numbers of a record must not depend on its
    position in a chunk.
    """
    mean = rate * units
    length = math.ceil(mean + 4.0 * math.sqrt(mean * (1.0 - rate)) + 1.0)
    return max(1, min(units, whole_blocks(length)))


def poisson_sum(
    key: Array, present: Array, rate: Array, length: int, clipped: Clipped
) -> tuple[Bounded, Drawn]:
    """Return the sum of the units' clipped contributions over a Poisson batch.

    `length` only sets array shapes: a longer batch takes a second chunk. The chunks contain
    different units, so their sum has the same bound as one of them.
    """
    words = _packed(poisson_mask(key, present, rate))
    rank = jnp.cumsum(jax.lax.population_count(words).astype(jnp.int32))
    count = rank[-1]

    def chunk(number: Array) -> Bounded:
        wanted = number * length + jnp.arange(1, length + 1, dtype=jnp.int32)
        word = jnp.minimum(jnp.searchsorted(rank, wanted), rank.shape[0] - 1)
        before = jnp.where(word > 0, rank[word - 1], 0)
        rows = WORD_BITS * word + _place(words[word], wanted - before)
        return clipped(jnp.minimum(rows, present.shape[0] - 1), wanted <= count)

    def more(carry: tuple[Array, Bounded]) -> tuple[Array, Bounded]:
        number, total = carry
        return number + 1, add_disjoint(total, chunk(number))

    first = (jnp.ones_like(count), chunk(jnp.zeros_like(count)))
    _, total = jax.lax.while_loop(lambda carry: carry[0] * length < count, more, first)
    return total, Drawn(rate=jnp.asarray(rate, jnp.float64))


def _packed(mask: Array) -> Array:
    """Pack the mask into words of 32 bits, with the first unit in the lowest bit of the first
    word.
    """
    mask = jnp.pad(mask, (0, -mask.shape[0] % WORD_BITS)).reshape(-1, WORD_BITS)
    bits = mask.astype(jnp.uint32) << jnp.arange(WORD_BITS, dtype=jnp.uint32)
    return jnp.sum(bits, axis=1, dtype=jnp.uint32)


def _place(words: Array, number: Array) -> Array:
    """Return the position of the `number`-th set bit of a word (`number` ≥ 1); 31 if there are
    fewer.
    """
    place = jnp.zeros_like(number)
    for width in (16, 8, 4, 2, 1):
        low = jax.lax.population_count(words & jnp.uint32(2**width - 1)).astype(number.dtype)
        above = number > low
        number = jnp.where(above, number - low, number)
        words = jnp.where(above, words >> width, words)
        place = jnp.where(above, place + width, place)
    return place


def subset_rows(key: Array, present: Array, length: int) -> Array:
    """Return the first `length` rows of a random order in which present units precede absent ones.

    Rows are ordered by 52 random bits each: a tie, which would favour the earlier row, has a
    probability below n²·2⁻⁵³.
    """
    order = jax.random.uniform(key, present.shape, jnp.float64)
    order = jnp.where(present != 0, order, 2.0)
    return jax.lax.top_k(-order, length)[1]


def subset_sum(
    key: Array, present: Array, batch: Array, length: int, clipped: Clipped
) -> tuple[Bounded, Drawn]:
    """Return the sum over a uniformly random subset of `batch` of the present units.

    `length` is an upper bound on `batch` that sets array shapes. The caller ensures that there are
    enough units.
    """
    rows = subset_rows(key, present, length)
    chosen = (jnp.arange(length) < batch) & (present[rows] != 0)
    total = jnp.sum(present != 0)
    return clipped(rows, chosen), Drawn(batch=jnp.asarray(batch), total=total)
