"""Shamir's secret sharing of 256-bit secrets, in the field of integers modulo 2²⁵⁶ + 297."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

PRIME = 2**256 + 297
SHARE_BYTES = 33


def split(
    secret: int, points: Sequence[int], threshold: int, below: Callable[[int], int] | None = None
) -> list[int]:
    """Split a secret into shares at distinct points ≠ 0; any `threshold` shares determine the
    secret.

    Parameters
    ----------
    secret
        From 0 to PRIME − 1.
    points
        Evaluation points of the polynomial, one per recipient.
    threshold
        Number of shares that determine the secret; fewer reveal nothing.
    below
        Function that returns a uniform random integer below its argument; by default from the
        operating system.
    """
    if not 0 <= secret < PRIME:
        raise ValueError("the secret must be from 0 to PRIME − 1")
    if not 1 <= threshold <= len(points) or len(set(points)) != len(points) or 0 in points:
        raise ValueError("points must be distinct and not 0, and at least as many as `threshold`")
    draw = secrets.randbelow if below is None else below
    coefficients = [secret, *(draw(PRIME) for _ in range(threshold - 1))]
    shares = []
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        shares.append(value)
    return shares


def lagrange_at_zero(points: Sequence[int]) -> dict[int, int]:
    """Return weights w with Σ w[x]·f(x) = f(0) for polynomials f of degree below the number of
    points.
    """
    weights = {}
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights[point] = above * pow(below, -1, PRIME) % PRIME
    return weights


def combine(shares: Mapping[int, int], weights: Mapping[int, int]) -> int:
    """Return the secret that the shares determine.

    `shares` maps points to shares, and `weights` is `lagrange_at_zero` of these points.
    """
    return sum(weight * shares[point] for point, weight in weights.items()) % PRIME


def to_bytes(share: int) -> bytes:
    """Encode a share as 33 bytes, most significant first."""
    return share.to_bytes(SHARE_BYTES, "big")


def is_share(raw: bytes) -> bool:
    """True if the bytes encode a share: a number from 0 to PRIME − 1 in `SHARE_BYTES` bytes."""
    return len(raw) == SHARE_BYTES and int.from_bytes(raw, "big") < PRIME


def from_bytes(raw: bytes) -> int:
    """Decode a share; raises ValueError if it is not in the field."""
    if not is_share(raw):
        raise ValueError("the bytes are not a share: a number from 0 to PRIME − 1 in 33 bytes")
    return int.from_bytes(raw, "big")
