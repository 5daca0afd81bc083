"""Exact discrete Gaussian and Laplace noise on a public lattice, from a ChaCha20 keystream.

A release is rounded to integer multiples of a public step γ and integer noise is added, so that the
low bits of a floating-point number reveal nothing (Mironov 2012). The noise of a party has the
distribution P(X = x) ∝ exp(−x²/2s²) over the integers with s = 2^k, and γ = (noise sd of the
party)/s. The proofs are in docs/methods/lattice.md, the integer sensitivity in
`tacit.privacy.events.Lattice`.

**Sampler.** X = ±(u + s·v) with k uniform bits u and P(v) ∝ exp(−v²/2), accepted with probability
exp(−u(u + 2sv)/2s²), where "−0" is rejected. For pure ε the distribution is P(X = x) ∝ exp(−|x|/s)
instead: P(v) ∝ exp(−v), accepted with probability exp(−u/s). A decision compares a uniform real
number U, whose binary digits come from the keystream, with a probability p. The first 64 digits are
compared with a floating-point value of p. If the two are closer than the error bound of p (2⁻⁴⁰, or
one unit of 2⁻⁶⁴ in the table of v), p is enclosed by integers and more digits are drawn until U and
p differ. The distribution is therefore exact if `numpy.exp` errs by less than 2⁻⁴¹.

A key of 256 bits determines an infinite sequence of noise, independent of how it is divided into
draws: a lost answer is computed again with the same noise.
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
    """The 64-bit words of the ChaCha20 stream of a key, in order.

    It cannot be used in a forked process, because parent and child would draw the same noise.
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
        """Return the next words as uint64."""
        if os.getpid() != self._process:
            raise TacitError(
                "this noise stream was made in another process: after a fork both would draw the "
                "same noise; make a new stream in the child"
            )
        return np.frombuffer(self._cipher.update(bytes(8 * count)), "<u8")


Law = Literal["gaussian", "laplace"]
"""Distribution of the noise: P(X = x) ∝ exp(−x²/2s²) or ∝ exp(−|x|/s)."""


class DiscreteNoise:
    """The sequence of discrete noise that one key determines, with parameter s = 2^`bits`.

    Numbers that were drawn but not yet used are kept, so that many short draws cost as much as a
    long one.
    """

    law: ClassVar[Law]

    def __init__(self, key: bytes, bits: int = LEAST_BITS) -> None:
        """Start at the first number.

        Parameters
        ----------
        key
            32 secret bytes.
        bits
            k of s = 2^k.
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
        """Draw `count` numbers before they are needed."""
        self._ready, self._count = [self.draw(count), *self._ready], self._count + count


class DiscreteGaussian(DiscreteNoise):
    """P(X = x) ∝ exp(−x²/2s²)."""

    law = "gaussian"


class DiscreteLaplace(DiscreteNoise):
    """P(X = x) ∝ exp(−|x|/s)."""

    law = "laplace"


NOISE: dict[Law, type[DiscreteNoise]] = {"gaussian": DiscreteGaussian, "laplace": DiscreteLaplace}


def draw_each(
    keys: Sequence[bytes], count: int, bits: int = LEAST_BITS, law: Law = "gaussian"
) -> np.ndarray:
    """Return the first `count` numbers of each key's sequence, (keys, count), as `DiscreteNoise`
    would.
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
    """Fill one row per key from one vectorised pass over all their candidates."""
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
    """Return k if the sampler supports it."""
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"bits = {bits}; it must be in 1 … {MOST_BITS}")
    return int(bits)


def accepted(words: np.ndarray, bits: int, digits: Keystream, law: Law = "gaussian") -> np.ndarray:
    """Return the accepted candidates in order; `digits` has further binary digits for close
    decisions.
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
    """Return the value of each candidate, whether it is accepted, and whether floats are too
    imprecise to decide.
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
    """Return one candidate, computed by integer arithmetic alone; None if it is rejected."""
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
    """Integers that enclose a scaled number x: low ≤ x·2^m ≤ high."""

    low: int
    high: int


class _Uniform:
    """A uniform real number in [0, 1) whose binary digits are drawn on demand."""

    def __init__(self, first: int, digits: Keystream) -> None:
        self._digits, self.value, self.bits = digits, first, 64

    def more(self) -> None:
        """Draw 64 more digits."""
        self.value = (self.value << 64) | int(self._digits.words(1)[0])
        self.bits += 64

    def is_below_exp(self, a: int, b: int) -> bool:
        """True if U < exp(−a/b)."""
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
    """Enclose exp(−a/b)·2^bits by integers, from the series of exp(a/b) with directed rounding."""
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


def _level(uniform: _Uniform, law: Law) -> int:
    """Draw v with P(v) ∝ exp(−v²/2) or exp(−v): the number of cumulative probabilities ≤ U."""
    while True:
        for value, bounds in enumerate(_cumulative(uniform.bits, law)):
            if uniform.value + 1 <= bounds.low:
                return value
            if uniform.value < bounds.high:
                break
        uniform.more()


@functools.lru_cache(maxsize=8)
def _cumulative(bits: int, law: Law) -> tuple[Bounds, ...]:
    """Enclose Σ_{j ≤ v} P(j)·2^bits by integers for v = 0, 1, …, as far as P(v) affects the
    digits.
    """
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
    """Return ⌊F(v)·2^64⌋ for the cumulative probabilities F that are below 1 − 2⁻⁶⁴."""
    thresholds = []
    for bounds in _cumulative(4 * _TABLE_BITS, law):
        low, high = (one >> (3 * _TABLE_BITS) for one in bounds)
        if low >= (1 << _TABLE_BITS) - 1:
            break
        if low != high:  # impossible for these constants
            raise ArithmeticError("a cumulative probability lies on a multiple of 2^-64")
        thresholds.append(low)
    return np.array(thresholds, np.uint64)


LatticeVector = np.ndarray
"""int64 multiples of a public step. Sums over parties are sums mod 2^64, exact in any order."""


def lattice_sum(vectors: Sequence[LatticeVector]) -> LatticeVector:
    """Return the sum of the parties' vectors mod 2^64, as a secure sum computes it.

    >>> lattice_sum([np.array([1, 2]), np.array([3, -4])]).tolist()
    [4, -2]
    """
    total = np.zeros(np.shape(vectors[0]), np.uint64)
    for vector in vectors:
        if vector.dtype != np.int64:
            raise TypeError(f"a lattice vector is int64, not {vector.dtype}")
        total = total + vector.view(np.uint64)
    return total.view(np.int64)
