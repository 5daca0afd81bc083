"""Secret noise keys: 256 bits from the operating system, or a known seed in a simulation.

A secret key is expanded by ChaCha20 (`tacit.privacy.chacha20`). A simulation with a known seed uses
Threefry keys and has no guarantee. The length of the key data tells the two generators apart.
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
    """JAX key from key data: 8 words make a secret ChaCha20 key, 2 a simulation key."""
    from tacit.privacy.chacha20 import CHACHA20

    return jax.random.wrap_key_data(data, impl=CHACHA20 if data.shape[-1] == WORDS else None)


def secret_key_data() -> np.ndarray:
    """A fresh key of 256 bits from the operating system's entropy."""
    return key_data(secrets.token_bytes(KEY_BYTES))


def key_data(secret: bytes) -> np.ndarray:
    """A stored secret of 32 bytes as key data."""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"the noise key has {len(secret)} bytes; it must have {KEY_BYTES}")
    return np.frombuffer(secret, "<u4").astype(np.uint32)


def seeded_key_data(seed: int, party: str, visit: int) -> np.ndarray:
    """A noise key for a repeatable simulation."""
    body = f"{seed}/{visit}/{party}".encode()
    return np.frombuffer(hashlib.blake2b(body, digest_size=8).digest(), np.uint32).copy()
