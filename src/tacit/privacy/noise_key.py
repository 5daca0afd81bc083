"""Secret noise keys: 256 bits from the operating system, or a known seed in a simulation.

A key is expanded to noise by ChaCha20 (`tacit.privacy.lattice`), and to batches by ChaCha20 in
compiled code (`tacit.privacy.chacha20`), with other nonces. A simulation with a known seed has the
same noise and draws its batches with Threefry, which compiles faster; it has no guarantee. The
length of the key data distinguishes the two generators of batches.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np

from tacit.support.compiler import jax

KEY_BYTES = 32
WORDS = KEY_BYTES // 4
Array = Any


def wrap_noise_key(data: Array) -> Array:
    """Make a JAX key from key data: 8 words make a secret ChaCha20 key, 2 words a simulation
    key.
    """
    from tacit.privacy.chacha20 import CHACHA20

    return jax.random.wrap_key_data(data, impl=CHACHA20 if data.shape[-1] == WORDS else None)


def secret_key() -> bytes:
    """Draw a new key of 256 bits from the operating system's entropy."""
    return secrets.token_bytes(KEY_BYTES)


def seeded_key(seed: int, party: str, visit: int) -> bytes:
    """Derive a noise key for a repeatable simulation."""
    return hashlib.blake2b(f"{seed}/{visit}/{party}".encode(), digest_size=KEY_BYTES).digest()


def batch_key_data(secret: bytes, *, simulated: bool = False) -> np.ndarray:
    """Return the key data for a visit's batches and simulated outcomes.

    A secret key is used in full. A simulation uses 64 bits of it, for JAX's own generator.
    """
    if len(secret) != KEY_BYTES:
        raise ValueError(f"the noise key has {len(secret)} bytes; it must have {KEY_BYTES}")
    words = np.frombuffer(secret, "<u4").astype(np.uint32)
    return words[:2] if simulated else words
