"""Masks: uniform 64-bit words from a 256-bit seed, added modulo 2⁶⁴."""

from __future__ import annotations

import hashlib

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.errors import PeerError

Words = np.ndarray
"""A vector of uint64, with arithmetic modulo 2⁶⁴."""


def mask(seed: bytes, length: int) -> Words:
    """Return the first `length` words of ChaCha20's keystream; each `seed` must be used only
    once.
    """
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), "<u8").astype(np.uint64)


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Compute the X25519 secret that two parties share; keys of small order are refused."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise PeerError("a public key is malformed or of small order; make a new one") from None


def derive(secret: bytes, *context: bytes | str | int) -> bytes:
    """Derive a 256-bit key from a shared secret and everything in `context`."""
    return HKDF(SHA256(), 32, salt=None, info=bound(*context)).derive(secret)


def bound(*context: bytes | str | int) -> bytes:
    """Return the SHA-256 of all parts of a context.

    Each part is preceded by its length, so different lists of parts never give the same bytes.
    """
    out = b""
    for part in context:
        raw = part if isinstance(part, bytes) else str(part).encode()
        out += len(raw).to_bytes(4, "big") + raw
    return hashlib.sha256(out).digest()


def pair_seed(
    private: X25519PrivateKey, public: bytes, roster: bytes, names: tuple[str, str], *of: str | int
) -> bytes:
    """Derive the seed of the mask that two parties share in one slot; both derive the same seed."""
    return derive(agree(private, public), b"pair", roster, *sorted(names), *of)
