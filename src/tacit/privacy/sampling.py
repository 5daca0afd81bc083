"""Batch sampling in compiled code with arrays of fixed shape, exactly as accountants assume it.

The size of a Poisson batch is random. A batch is processed in chunks of fixed length, padded and
masked, until all selected units are used. No unit of a large batch is dropped, and an empty batch
gives a sum of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tacit.arrays import whole_blocks
from tacit.privacy.bounded import Array, Bounded, add_disjoint
from tacit.privacy.mechanisms import Drawn
from tacit.support.compiler import jax, jnp

WORD_BITS = 32
BLOCK_UNITS = 64
"""Number of units that `summed_in_blocks` computes at a time."""
Clipped = Callable[[Array, Array], Bounded]
"""Function from (rows, mask) to the bounded sum over the rows whose mask is 1."""


def poisson_mask(key: Array, present: Array, rate: Array) -> Array:
    """Return the mask of a Poisson batch, in which each present unit is included independently.

    The probability of inclusion is `rate`, rounded down to a multiple of 2⁻³².
    """
    # The generator makes 64 bits at a time, enough for two units.
    pairs = jax.random.bits(key, (-(-present.shape[0] // 2),), jnp.uint64)
    bits = jax.lax.bitcast_convert_type(pairs, jnp.uint32).reshape(-1)[: present.shape[0]]
    rate = jnp.asarray(rate, jnp.float64)
    threshold = jnp.minimum(jnp.floor(rate * 2.0**32), 2.0**32 - 1).astype(jnp.uint32)
    return (present != 0) & ((bits < threshold) | (rate >= 1.0))


def chunk_length(rate: float, units: int) -> int:
    """Return an array length that nearly always holds a complete Poisson batch.

    It is the expected batch size plus 4 standard deviations, rounded up to a multiple of the block
    size of `whole_blocks`, and at most the number of units.
    """
    mean = rate * units
    length = math.ceil(mean + 4.0 * math.sqrt(mean * (1.0 - rate)) + 1.0)
    return max(1, min(units, whole_blocks(length)))


def poisson_sum(
    key: Array, present: Array, rate: Array, length: int, clipped: Clipped
) -> tuple[Bounded, Drawn]:
    """Return the sum of clipped contributions over a Poisson batch, and how the batch was drawn.

    `clipped(rows, mask)` computes the clipped sum over the rows whose mask is 1. `length` is the
    number of rows per chunk; a larger batch is processed in several chunks. Every unit is in only
    one chunk. One unit therefore moves the sum over all chunks by no more than the sum over its
    chunk, and both have the same clip.
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
    """Pack the mask into words of 32 bits; the first unit is the lowest bit of the first word."""
    mask = jnp.pad(mask, (0, -mask.shape[0] % WORD_BITS)).reshape(-1, WORD_BITS)
    bits = mask.astype(jnp.uint32) << jnp.arange(WORD_BITS, dtype=jnp.uint32)
    return jnp.sum(bits, axis=1, dtype=jnp.uint32)


def _place(words: Array, number: Array) -> Array:
    """Return the position of the `number`-th 1 bit of each word, counted from the lowest bit; 31 if
    the word has fewer 1 bits.
    """
    place = jnp.zeros_like(number)
    for width in (16, 8, 4, 2, 1):
        low = jax.lax.population_count(words & jnp.uint32(2**width - 1)).astype(number.dtype)
        above = number > low
        number = jnp.where(above, number - low, number)
        words = jnp.where(above, words >> width, words)
        place = jnp.where(above, place + width, place)
    return place


def summed_in_blocks(
    clipped: Callable[[Any, Array], Bounded],
    records: Any,
    weights: Array,
    units: int = BLOCK_UNITS,
) -> Bounded:
    """Return the clipped sum over all units, computed for a fixed number of units at a time.

    A compiler chooses instructions by the lengths of arrays, and different instructions round
    differently. If `clipped` is called with all units, one more unit can therefore change the
    contributions of the others, and for an adversarially chosen q by as much as the clip. Here
    `clipped` is compiled for arrays of one length. It is the body of a loop whose number of
    repetitions is unknown at compile time, so the compiler cannot unroll the loop.

    Parameters
    ----------
    clipped
        Function from (records, weights) to the bounded sum over these records.
    records
        Pytree of arrays with one row per unit.
    weights
        Array with one row per unit. Rows of weight 0 are padding.
    units
        Number of rows for which `clipped` is called.
    """
    count = weights.shape[0]
    blocks = -(-count // units)

    def lengthened(column: Any) -> Array:
        column = jnp.asarray(column)
        more = (blocks * units - count, *column.shape[1:])
        return jnp.concatenate([column, jnp.broadcast_to(column[:1], more)])

    columns = jax.tree.map(lengthened, records)
    padded = lengthened(weights).at[count:].set(0)
    present = jnp.any(padded.reshape(blocks, -1) != 0, axis=1)
    used = jnp.maximum(1, jnp.max(jnp.where(present, jnp.arange(1, blocks + 1), 0)))

    def block(number: Array) -> Bounded:
        def part(column: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(column, number * units, units)

        return clipped(jax.tree.map(part, columns), part(padded))

    def step(number: Array, total: Bounded) -> Bounded:
        return add_disjoint(total, block(number))

    shapes = jax.eval_shape(block, jnp.zeros_like(used))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, used, step, nothing)


def mapped_in_blocks(function: Callable[[Array], Array], rows: Array) -> Array:
    """Return `function` of all rows, computed for `BLOCK_UNITS` rows at a time.

    As in `summed_in_blocks`, the result for a row does not depend on the number of rows.
    """
    count = rows.shape[0]
    blocks = -(-count // BLOCK_UNITS)
    more = jnp.zeros((blocks * BLOCK_UNITS - count, *rows.shape[1:]), rows.dtype)
    rows = jnp.concatenate([rows, more])
    used = jnp.where(jnp.all(rows == rows), blocks, blocks + 1)  # unknown at compile time

    def step(number: Array, mapped: Array) -> Array:
        part = jax.lax.dynamic_slice_in_dim(rows, number * BLOCK_UNITS, BLOCK_UNITS)
        return jax.lax.dynamic_update_slice_in_dim(
            mapped, function(part), number * BLOCK_UNITS, axis=0
        )

    one = jax.eval_shape(function, rows[:BLOCK_UNITS])
    nothing = jnp.zeros((len(rows), *one.shape[1:]), one.dtype)
    return jax.lax.fori_loop(0, used, step, nothing)[:count]


def summed_by_row(parts: Callable[[Any, Array], Any], records: Any, weights: Array) -> Any:
    """Return the sums of `parts` over the rows of each unit, added one after another.

    As in `summed_in_blocks`, the result for a unit does not depend on the largest number of rows of
    other units: `parts` is compiled for one row per unit, and rows of weight 0 add zeros.

    Parameters
    ----------
    parts
        Function from (records, weights) to a pytree of arrays with one row per unit, for records
        with one row per unit.
    records
        Pytree of arrays of shape (units, rows per unit, …).
    weights
        Array of shape (units, rows per unit). Rows of weight 0 are padding.
    """
    places = jnp.arange(1, weights.shape[1] + 1)
    used = jnp.max(jnp.where(jnp.any(weights != 0, axis=0), places, 0))

    def row(number: Array) -> Any:
        def part(column: Any) -> Array:
            return jax.lax.dynamic_slice_in_dim(jnp.asarray(column), number, 1, axis=1)

        return parts(jax.tree.map(part, records), part(weights))

    def step(number: Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, row(number))

    shapes = jax.eval_shape(row, jnp.zeros_like(used))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, used, step, nothing)


def subset_rows(key: Array, present: Array, length: int) -> Array:
    """Return the indices of the first `length` rows of a random order.

    Rows of present units come before rows of absent units. The order is drawn with 52 random bits
    per row. For n rows, two equal draws have a probability below n²·2⁻⁵³; they would favour the
    earlier row.
    """
    order = jax.random.uniform(key, present.shape, jnp.float64)
    order = jnp.where(present != 0, order, 2.0)
    return jax.lax.top_k(-order, length)[1]


def subset_sum(
    key: Array, present: Array, batch: Array, length: int, clipped: Clipped
) -> tuple[Bounded, Drawn]:
    """Return the sum over a uniformly random subset of `batch` present units, and how it was drawn.

    At least `batch` units must be present. `length` is the number of rows that are computed, at
    least `batch`. `clipped(rows, mask)` computes the clipped sum over the rows whose mask is 1.
    """
    rows = subset_rows(key, present, length)
    chosen = (jnp.arange(length) < batch) & (present[rows] != 0)
    total = jnp.sum(present != 0)
    return clipped(rows, chosen), Drawn(batch=jnp.asarray(batch), total=total)
