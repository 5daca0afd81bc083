"""Exact discrete Gaussian and Laplace noise on a public lattice, from a ChaCha20 keystream.

A release is rounded to integer multiples of a public step, and integer noise is added, so that the
low bits of floating-point numbers reveal nothing (Mironov 2012). The noise X of a party is a
discrete Gaussian: P(X = x) ∝ exp(−x²/2s²) for integers x, where s = 2^k. The step is the noise
standard deviation of the party divided by s. For pure ε, X is discrete Laplace noise instead: P(X =
x) ∝ exp(−|x|/s). The proofs are in docs/methods/lattice.md.

**Sampler.** Noise is drawn by rejection. Draw an integer u of k uniform bits, an integer v ≥ 0 with
P(v) ∝ exp(−v²/2), and a random sign. The candidate is ±(u + s·v). It is accepted with probability
exp(−u(u + 2sv)/2s²), and −0 is rejected. For Laplace noise, P(v) ∝ exp(−v) and the candidate is
accepted with probability exp(−u/s).

**Exactness.** A candidate is accepted if a uniform number is below the probability p. The binary
digits of the uniform number come from the keystream. Its first 64 digits are compared with a
floating-point value of p. If the difference is within the error of p, more digits are drawn, and p
is computed with integers to as many digits, until the comparison is certain. The distribution is
therefore exact if the error of `numpy.exp` is below 2⁻⁴¹.

A key of 256 bits determines an infinite sequence of noise. The sequence does not depend on how many
numbers are drawn at a time. A lost reply is therefore computed again with the same noise.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from tacit.errors import TacitError

KEY_BYTES = 32
LEAST_BITS, MOST_BITS = 20, 40
"""Smallest and largest k of the noise parameter s = 2^k."""
CHUNK = 1 << 15
"""Candidates per chunk: small enough for the processor's cache."""
ENCLOSURE = 2.0**-40
"""If a uniform number U and a probability p differ by at most this, integer arithmetic decides
whether U < p.
"""
RING_BITS = 62
"""The sum over all parties stays below 2^62, so that 64-bit sums do not wrap."""
_WORDS = 3  # per candidate: u and sign; v; acceptance
_TABLE_BITS = 64
_STREAM, _DIGITS = b"noise\0\0\0", b"digits\0\0"


class Keystream:
    """The ChaCha20 stream of a key, as a sequence of 64-bit words.

    A stream cannot be used in a forked process, because parent and child would draw the same noise.
    """

    def __init__(self, key: bytes, nonce: bytes) -> None:
        """Start at the first word.

        Parameters
        ----------
        key
            32 secret bytes.
        nonce
            8 bytes; streams of one key with different nonces are independent.
        """
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        if len(key) != KEY_BYTES:
            raise ValueError(f"the noise key has {len(key)} bytes; it must have {KEY_BYTES}")
        # The first 8 of these 16 bytes are the block counter, which starts at 0.
        algorithm = algorithms.ChaCha20(key, bytes(8) + nonce)
        self._cipher = Cipher(algorithm, mode=None).encryptor()
        self._process = os.getpid()

    def words(self, count: int) -> np.ndarray:
        """Return the next `count` words of the stream, as uint64."""
        if os.getpid() != self._process:
            raise TacitError(
                "this noise stream was made in another process: after a fork both would draw the "
                "same noise; make a new stream in the child"
            )
        return np.frombuffer(self._cipher.update(bytes(8 * count)), "<u8")


Law = Literal["gaussian", "laplace"]
"""Distribution of the noise: P(X = x) ∝ exp(−x²/2s²) or ∝ exp(−|x|/s)."""


class DiscreteNoise:
    """The sequence of discrete noise that a key determines, with parameter s = 2^`bits`.

    Numbers that were drawn but not yet returned are stored, so that many short draws take no longer
    than one long draw.
    """

    law: ClassVar[Law]

    def __init__(self, key: bytes, bits: int = LEAST_BITS) -> None:
        """Start at the beginning of the key's sequence.

        Parameters
        ----------
        key
            32 secret bytes.
        bits
            k: the noise has the parameter s = 2^k.
        """
        self.bits = check_bits(bits)
        self._stream = Keystream(key, _STREAM)
        self._digits = Keystream(key, _DIGITS)
        self._ready: list[np.ndarray] = []
        self._count = 0

    def draw(self, count: int) -> np.ndarray:
        """Return the next `count` numbers of the sequence, as int64."""
        while self._count < count:
            # More than 0.6 of the candidates are accepted. A chunk's length changes no number.
            wanted = min(CHUNK, int(1.5 * (count - self._count)) + 32)
            words = self._stream.words(_WORDS * wanted).reshape(wanted, _WORDS)
            found = accepted(words, self.bits, self._digits, self.law)
            self._ready.append(found)
            self._count += len(found)
        joined = np.concatenate([np.zeros(0, np.int64), *self._ready])
        self._ready, self._count = [joined[count:]], len(joined) - count
        return joined[:count]

    def ahead(self, count: int) -> None:
        """Draw the next `count` numbers of the sequence and store them for later calls of
        `draw`.
        """
        self._ready, self._count = [self.draw(count), *self._ready], self._count + count


class DiscreteGaussian(DiscreteNoise):
    """Discrete Gaussian noise: P(X = x) ∝ exp(−x²/2s²) for integers x, with s = 2^`bits`."""

    law = "gaussian"


class DiscreteLaplace(DiscreteNoise):
    """Discrete Laplace noise: P(X = x) ∝ exp(−|x|/s) for integers x, with s = 2^`bits`."""

    law = "laplace"


NOISE: dict[Law, type[DiscreteNoise]] = {"gaussian": DiscreteGaussian, "laplace": DiscreteLaplace}


def draw_each(
    keys: Sequence[bytes], count: int, bits: int = LEAST_BITS, law: Law = "gaussian"
) -> np.ndarray:
    """Return the first `count` numbers of the noise sequence of each key, as an array (keys,
    count).

    The numbers are those that `DiscreteNoise` returns for the same key.
    """
    check_bits(bits)
    distinct = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    if len(distinct) < len(keys):  # simulated noise of one party in many alternative data sets
        return draw_each(list(distinct), count, bits, law)[[distinct[key] for key in keys]]
    found = np.empty((len(keys), count), np.int64)
    if count == 0:
        return found
    wanted = int(1.5 * count) + 32
    together = max(1, CHUNK // wanted)
    for first in range(0, len(keys), together):
        some = keys[first : first + together]
        if wanted > CHUNK or len(some) == 1:
            for row, key in enumerate(some, start=first):
                found[row] = NOISE[law](key, bits).draw(count)
            continue
        _draw_together(found[first : first + together], some, wanted, bits, law)
    return found


def _draw_together(
    found: np.ndarray, keys: Sequence[bytes], wanted: int, bits: int, law: Law
) -> None:
    streams = [Keystream(key, _STREAM).words(_WORDS * wanted) for key in keys]
    words = np.concatenate(streams).reshape(-1, _WORDS)
    values, taken, unclear = candidates(words, bits, law)
    taken, unclear = taken.reshape(len(keys), wanted), unclear.reshape(len(keys), wanted)
    values, count = values.reshape(len(keys), wanted), found.shape[1]
    for row, key in enumerate(keys):
        kept = values[row][taken[row]]
        if unclear[row].any() or len(kept) < count:
            kept = NOISE[law](key, bits).draw(count)
        found[row] = kept[:count]


def check_bits(bits: int) -> int:
    """Return `bits`, or raise a ValueError if the sampler does not support it."""
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"bits = {bits}; it must be from 1 to {MOST_BITS}")
    return int(bits)


def accepted(words: np.ndarray, bits: int, digits: Keystream, law: Law = "gaussian") -> np.ndarray:
    """Return the accepted candidates of the rejection sampler, in order.

    Each row of `words` determines one candidate. `digits` provides further random digits for a
    candidate if its first 64 digits are not enough to decide.
    """
    values, taken, unclear = candidates(words, bits, law)
    if unclear.any():
        for place in np.flatnonzero(unclear):
            value = refined([int(word) for word in words[place]], bits, digits, law)
            values[place], taken[place] = (0, False) if value is None else (value, True)
    return values[taken]


def candidates(
    words: np.ndarray, bits: int, law: Law = "gaussian"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three arrays with one entry per row of `words`.

    They are: the candidate of the rejection sampler, whether it is accepted, and whether
    floating-point numbers are too imprecise to decide this.
    """
    first, second, third = words[:, 0], words[:, 1], words[:, 2]
    table = _table(law)
    tens = np.searchsorted(table, second, side="right")
    unclear = second == table[np.maximum(tens, 1) - 1]
    unclear |= tens == len(table)
    size = (first >> np.uint64(64 - bits)).astype(np.int64)
    place = size * 2.0**-bits
    if law == "laplace":
        chance = np.exp(-place)
    else:
        chance = np.exp(-0.5 * place * (place + 2.0 * tens.astype(np.float64)))
    gap = third * 2.0**-64 - chance
    unclear |= np.abs(gap) <= ENCLOSURE
    size += tens << bits
    negative = (first & np.uint64(1)).astype(bool)
    taken = (gap < 0) & ~(negative & (size == 0))
    np.negative(size, out=size, where=negative)
    return size, taken, unclear


def refined(
    words: Sequence[int], bits: int, digits: Keystream, law: Law = "gaussian"
) -> int | None:
    """Return the candidate that `words` determines; None if this candidate is rejected.

    The decision uses exact integer arithmetic.
    """
    first, second, third = words
    s = 1 << bits
    tens = _level(_Uniform(second, digits), law)
    size = first >> (64 - bits)
    negative = bool(first & 1)
    exponent = (size, s) if law == "laplace" else (size * (size + 2 * s * tens), 2 * s * s)
    if not _Uniform(third, digits).is_below_exp(*exponent):
        return None
    value = size + s * tens
    if negative and value == 0:
        return None
    return -value if negative else value


class Bounds(NamedTuple):
    """Two integers, `low` and `high`, with a real number between them, such as a probability times
    2^64.
    """

    low: int
    high: int


class _Uniform:
    """A uniform real number in [0, 1) whose binary digits are drawn on demand."""

    def __init__(self, first: int, digits: Keystream) -> None:
        self._digits, self.value, self.bits = digits, first, 64

    def more(self) -> None:
        """Append 64 random binary digits to this number."""
        self.value = (self.value << 64) | int(self._digits.words(1)[0])
        self.bits += 64

    def is_below_exp(self, a: int, b: int) -> bool:
        """Return whether this number is below exp(−a/b)."""
        if a == 0:
            return True
        while True:
            low, high = exp_bounds(a, b, self.bits)
            if self.value + 1 <= low:
                return True
            if self.value >= high:
                return False
            self.more()


def exp_bounds(a: int, b: int, bits: int) -> Bounds:
    """Return two integers such that exp(−a/b)·2^`bits` is between them."""
    guard = bits + 32 + 2 * (a // b + 1)
    low_term = high_term = low = high = 1 << guard
    number = 0
    while high_term > 1 or 2 * a > b * (number + 1):
        number += 1
        low_term = low_term * a // (b * number)
        high_term = -(-high_term * a // (b * number))
        low, high = low + low_term, high + high_term
        if 2 * a <= b * (number + 1) and high_term <= 1:
            break
    high += 2 * high_term + 1  # the rest is at most a geometric series with ratio ½
    square = 1 << (bits + guard)
    return Bounds(square // high, -(-square // low))


# v ≥ 0 is drawn by inversion, with P(v) ∝ exp(−v²/2), or P(v) ∝ exp(−v) for Laplace noise.
# `_cumulative` has integers that enclose 2^`bits`·P(V ≤ v) for v = 0, 1, …, and `_table` has
# ⌊2^64·P(V ≤ v)⌋.
def _level(uniform: _Uniform, law: Law) -> int:
    while True:
        for value, bounds in enumerate(_cumulative(uniform.bits, law)):
            if uniform.value + 1 <= bounds.low:
                return value
            if uniform.value < bounds.high:
                break
        uniform.more()


@functools.lru_cache(maxsize=8)
def _cumulative(bits: int, law: Law) -> tuple[Bounds, ...]:
    guard = bits + 32
    if law == "laplace":
        terms = [exp_bounds(v, 1, guard) for v in range(guard + 3)]
    else:
        terms = [exp_bounds(v * v, 2, guard) for v in range(int((2 * guard) ** 0.5) + 3)]
    # The terms left out are smaller than the last one, and fall faster than by half.
    low_sum = sum(term.low for term in terms)
    high_sum = sum(term.high for term in terms) + 2 * terms[-1].high
    found, low, high = [], 0, 0
    for term in terms:
        low, high = low + term.low, high + term.high
        found.append(Bounds((low << bits) // high_sum, -(-(high << bits) // low_sum)))
    return tuple(found)


@functools.cache
def _table(law: Law = "gaussian") -> np.ndarray:
    thresholds = []
    for bounds in _cumulative(4 * _TABLE_BITS, law):
        low, high = (one >> (3 * _TABLE_BITS) for one in bounds)
        if low >= (1 << _TABLE_BITS) - 1:
            break
        if low != high:  # impossible for these constants
            raise ArithmeticError(
                "a probability of the noise table cannot be rounded; report this as a bug"
            )
        thresholds.append(low)
    return np.array(thresholds, np.uint64)


LatticeVector = np.ndarray
"""int64 multiples of a public step. Sums over parties are sums mod 2^64, exact in any order."""


def lattice_sum(vectors: Sequence[LatticeVector]) -> LatticeVector:
    """Return the sum of the parties' integer vectors modulo 2^64, as a secure sum computes it.

    >>> lattice_sum([np.array([1, 2]), np.array([3, -4])]).tolist()
    [4, -2]
    """
    total = np.zeros(np.shape(vectors[0]), np.uint64)
    for vector in vectors:
        if vector.dtype != np.int64:
            raise TypeError(f"a vector has type {vector.dtype}; convert it to int64")
        total = total + vector.view(np.uint64)
    return total.view(np.int64)
