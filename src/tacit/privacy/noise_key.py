"""Secret noise keys: 256 bits from the operating system, or derived from a known seed in a
simulation.

ChaCha20 expands a key to noise (`tacit.privacy.lattice`) and, with other nonces, to the random
numbers that select batches (`tacit.privacy.chacha20`). A simulation has no privacy guarantee. It
draws its noise in the same way, but selects its batches with Threefry, which compiles faster. The
generator that selects batches follows from the length of the key data.
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
    """Make a JAX key from key data.

    8 words give a secret ChaCha20 key, and 2 words a Threefry key for a simulation.
    """
    from tacit.privacy.chacha20 import CHACHA20

    return jax.random.wrap_key_data(data, impl=CHACHA20 if data.shape[-1] == WORDS else None)


def secret_key() -> bytes:
    """Draw a new key of 256 bits from the operating system's entropy."""
    return secrets.token_bytes(KEY_BYTES)


def seeded_key(seed: int, party: str, visit: int) -> bytes:
    """Derive the noise key of one visit to a party from a seed, for a repeatable simulation."""
    return hashlib.blake2b(f"{seed}/{visit}/{party}".encode(), digest_size=KEY_BYTES).digest()


def batch_key_data(secret: bytes, *, simulated: bool = False) -> np.ndarray:
    """Return the 32-bit words of the JAX key for drawing the batches and simulated outcomes of a
    visit.

    A secret key gives 8 words (256 bits) for ChaCha20. In a simulation the first 2 words (64 bits)
    are returned, for JAX's default generator.
    """
    if len(secret) != KEY_BYTES:
        raise ValueError(f"the noise key has {len(secret)} bytes; it must have {KEY_BYTES}")
    words = np.frombuffer(secret, "<u4").astype(np.uint32)
    return words[:2] if simulated else words
