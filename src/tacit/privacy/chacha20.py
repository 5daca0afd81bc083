"""The ChaCha20 stream as a random generator of JAX, for secret random numbers.

JAX's default generator, Threefry-2x32, has 64-bit keys. An attacker with one release and a guess
about the records could try all keys. Secret random numbers therefore come from the ChaCha20 block
function (RFC 8439), which is registered as a JAX key type:

    random bits      block(key, counter = 0, 1, …, nonce = (0, 0, "bits"))
    split            block(key, counter = number,  nonce = (0, 0, "spli")), its first 8 words
    fold_in          block(key, counter = data,    nonce = (0, 0, "fold")), its first 8 words

All operations are element-wise integer arithmetic. The bits are therefore the same on every
machine, compiled or not, alone or in a batch. A simulation with a known seed uses Threefry keys, so
that published numbers stay reproducible; it has no privacy guarantee. JAX selects the generator by
the type of the key.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as jax_random

WORDS = 8
_BLOCK = 16
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
_BITS, _SPLIT, _FOLD = (int.from_bytes(name, "little") for name in (b"bits", b"spli", b"fold"))
_MAX_BLOCKS = 2**32
Array = Any


# Compiled once per number of blocks even if the caller is not compiled; inlined if it is. The four
# columns of a state are mixed together, as arrays of shape (4, blocks): one operation per word
# would take several times longer to compile.
@functools.partial(jax.jit, static_argnames="nonce", inline=True)
def chacha_blocks(key: Array, counter: Array, nonce: tuple[int, int, int]) -> Array:
    """Return the ChaCha20 block of each 32-bit counter.

    The result has the shape (len(counter), 16), with words of 32 bits.
    """
    counter = jnp.asarray(counter, jnp.uint32)
    fixed = jnp.concatenate([_CONSTANTS, key, jnp.zeros(1, jnp.uint32), np.array(nonce, np.uint32)])
    start = jnp.broadcast_to(fixed[:, None], (_BLOCK, len(counter))).at[12].set(counter)
    start = start.reshape((4, 4, len(counter)))
    mixed = jax.lax.fori_loop(0, 10, lambda _, rows: _double_round(rows), tuple(start))
    return (jnp.stack(mixed) + start).reshape((_BLOCK, len(counter))).T


def _double_round(rows: tuple[Array, ...]) -> tuple[Array, ...]:
    # One round on the columns, and one on the diagonals: these are columns after rotating the rows.
    a, b, c, d = _quarter_rounds(*rows)
    a, b, c, d = _quarter_rounds(a, _turned(b, 1), _turned(c, 2), _turned(d, 3))
    return a, _turned(b, 3), _turned(c, 2), _turned(d, 1)


def _turned(row: Array, by: int) -> Array:
    return jnp.concatenate([row[by:], row[:by]])


def _quarter_rounds(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    for left, right in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, left)
        c = c + d
        b = _rotated(b ^ c, right)
    return a, b, c, d


def _rotated(words: Array, bits: int) -> Array:
    return (words << bits) | (words >> (32 - bits))


def _seed(_: Array) -> Array:
    """Raise an error for `jax.random.key(seed, impl=…)`, because a key from an integer seed is not
    secret.
    """
    raise TypeError("a secret noise key cannot be made from an integer; use secret_key()")


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    blocks = chacha_blocks(key, jnp.arange(count, dtype=jnp.uint32), (0, 0, _SPLIT))
    return blocks[:, :WORDS].reshape((*shape, WORDS))


def _fold_in(key: Array, data: Array) -> Array:
    return chacha_blocks(key, jnp.asarray(data, jnp.uint32)[None], (0, 0, _FOLD))[0, :WORDS]


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape))
    words = -(-size * bit_width // 32)
    blocks = -(-words // _BLOCK)
    if blocks > _MAX_BLOCKS:
        raise ValueError(
            f"{size} random numbers are too many for one key; draw them in parts, each with a "
            "key from fold_in"
        )
    counter = jnp.arange(blocks, dtype=jnp.uint32)
    stream = chacha_blocks(key, counter, (0, 0, _BITS)).reshape(-1)
    dtype = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}[bit_width]
    if bit_width == 64:
        pairs = stream.reshape(-1, 2).astype(jnp.uint64)
        values = pairs[:, 0] | (pairs[:, 1] << np.uint64(32))
    elif bit_width == 32:
        values = stream
    else:
        values = jax.lax.bitcast_convert_type(stream, dtype).reshape(-1)
    return values[:size].reshape(shape)


CHACHA20 = jax_random.define_prng_impl(
    key_shape=(WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="tacit_chacha20",
    tag="chacha20",
)
