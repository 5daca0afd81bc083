"""Secret noise: ChaCha20 as published, the same bits alone and in a batch, 256 bits of key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from tacit.privacy.bounded import clip_units
from tacit.privacy.chacha20 import chacha_blocks
from tacit.privacy.lattice import Keystream, draw_each
from tacit.privacy.mechanisms import Gaussian
from tacit.privacy.noise_key import batch_key_data, secret_key, seeded_key, wrap_noise_key

pytestmark = pytest.mark.full_optimisation

BOUNDED = clip_units({"a": jnp.ones((2, 3))}, 1.0)


def secret_key_data():
    return batch_key_data(secret_key())


def test_a_block_is_that_of_rfc_8439():
    """Section 2.3.2: key 00…1f, counter 1, nonce 00:00:00:09:00:00:00:4a:00:00:00:00."""
    key = np.frombuffer(bytes(range(32)), "<u4")
    block = chacha_blocks(key, np.array([1], np.uint32), (0x09000000, 0x4A000000, 0))[0]
    assert np.asarray(block).astype("<u4").tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


def test_random_bits_are_the_key_stream_of_an_independent_implementation():
    data = secret_key_data()
    nonce = bytes(4) + bytes(8) + b"bits"  # 32-bit counter 0, then (0, 0, "bits")
    cipher = Cipher(algorithms.ChaCha20(data.astype("<u4").tobytes(), nonce), mode=None)
    stream = cipher.encryptor().update(bytes(1000))
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        count = 1000 // np.dtype(dtype).itemsize
        bits = jax.random.bits(wrap_noise_key(data), (count,), dtype)
        assert np.asarray(bits).tobytes() == stream[: bits.nbytes], dtype


def test_every_bit_of_the_key_matters():
    data = secret_key_data()
    seen = {np.asarray(jax.random.bits(wrap_noise_key(data), (4,))).tobytes()}
    for word in range(8):
        for bit in (0, 31):
            other = data.copy()
            other[word] ^= np.uint32(1 << bit)
            seen.add(np.asarray(jax.random.bits(wrap_noise_key(other), (4,))).tobytes())
    assert len(seen) == 17


def test_the_same_bits_alone_and_in_a_batch_compiled_and_not():
    data = np.stack([secret_key_data() for _ in range(5)])

    def noise(one):
        first, second = jax.random.split(wrap_noise_key(one))
        drawn = jax.random.normal(jax.random.fold_in(first, 7), (3, 5), jnp.float32)
        steps = jax.random.split(second, 4)
        total, _ = jax.lax.scan(lambda c, k: (c + jax.random.uniform(k), None), 0.0, steps)
        return jax.random.key_data(second), jax.random.bits(first, (33,)), drawn, total

    alone = [noise(one) for one in data]
    together = jax.jit(jax.vmap(noise))(data)
    for number, one in enumerate(alone):
        keys, bits, drawn, total = jax.tree.map(lambda leaf, n=number: leaf[n], together)
        assert np.array_equal(keys, one[0])
        assert np.array_equal(bits, one[1])
        # A normal number is a function of the bits that may be rounded otherwise when compiled.
        np.testing.assert_allclose(drawn, one[2], rtol=1e-6)
        np.testing.assert_allclose(total, one[3], rtol=1e-12)


def test_split_and_folded_keys_have_unrelated_streams():
    key = wrap_noise_key(secret_key_data())
    keys = [key, *jax.random.split(key, 8), *(jax.random.fold_in(key, n) for n in range(8))]
    streams = [np.asarray(jax.random.bits(one, (64,), jnp.uint64)) for one in keys]
    words = np.concatenate(streams)
    assert len(set(words.tolist())) == len(words), "64-bit words of 17 streams collide"


def test_normal_noise_is_normal():
    drawn = np.asarray(jax.random.normal(wrap_noise_key(secret_key_data()), (20_000,)))
    assert stats.kstest(drawn, "norm").pvalue > 1e-6


def test_secret_keys_are_all_different_and_usable():
    keys = [secret_key_data() for _ in range(200)]
    assert len({key.tobytes() for key in keys}) == 200
    assert {(key.dtype, key.shape) for key in keys} == {(np.dtype("uint32"), (8,))}
    noise = draw_each([secret_key()], 3)[0]
    assert np.all(np.isfinite(Gaussian(noise_sd=1.0).release(noise, BOUNDED).value["a"]))


def test_a_secret_key_is_never_made_from_an_integer():
    impl = jax.random.key_impl(wrap_noise_key(secret_key_data()))
    with pytest.raises(TypeError, match=r"secret_key\(\)"):
        jax.random.key(3, impl=impl)
    with pytest.raises(ValueError, match="8 bytes"):
        batch_key_data(bytes(8))


def test_a_simulation_draws_its_batches_with_the_generator_of_jax():
    data = batch_key_data(seeded_key(5, "site-0", 3), simulated=True)
    same = jax.random.normal(jax.random.wrap_key_data(data), (4,))
    assert np.array_equal(jax.random.normal(wrap_noise_key(data), (4,)), same)


def test_noise_and_batches_of_one_key_are_different_streams():
    """Same key, other nonces: no 64-bit word of one stream occurs in the other."""
    key = secret_key()
    bits = np.asarray(jax.random.bits(wrap_noise_key(batch_key_data(key)), (4096,), jnp.uint64))
    for nonce in (b"noise\0\0\0", b"digits\0\0"):
        assert not set(Keystream(key, nonce).words(4096).tolist()) & set(bits.tolist())
