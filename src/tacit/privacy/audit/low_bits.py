"""Attack on the least significant bits of a release.

Noise of the form fl(sum + sd·f(u)) with a uniform u of 52 bits reaches only some floating-point
numbers, which depend on the sum (Mironov 2012). An attacker who knows the two possible sums and the
sampler's f can test which of them reaches a released number. Integers on a public lattice have no
such bits; for these the lowest bits are compared.
"""

from __future__ import annotations

import numpy as np

from tacit.privacy.audit.bounds import CONFIDENCE, threshold_epsilon

_WINDOW = 4
_BITS = 8


def low_bits_epsilon(
    released: tuple[np.ndarray, np.ndarray],
    sums: tuple[np.ndarray, np.ndarray],
    noise_sd: float,
    delta: float,
    *,
    confidence: float = CONFIDENCE,
) -> float:
    """Return a lower bound on ε from the low bits of released numbers, integers or floating point.

    Parameters
    ----------
    released
        Releases of the two neighbouring data sets, (draws, d) each.
    sums
        Their exact sums, (d,) each.
    noise_sd
        Standard deviation of the noise.
    delta
        δ of the claim.
    confidence
        Probability that the bound holds.
    """
    if all(np.issubdtype(one.dtype, np.integer) for one in released):
        scores = _integer_scores(*released)
    else:
        scores = tuple(
            reachable(one, sums[0], noise_sd).sum(axis=1)
            - reachable(one, sums[1], noise_sd).sum(axis=1)
            for one in released
        )
    return threshold_epsilon(scores[0], scores[1], delta, confidence=confidence)


def reachable(values: np.ndarray, total: np.ndarray, noise_sd: float) -> np.ndarray:
    """Return a mask of the values that fl(total + noise_sd·√2·erfinv(u)) attains for some u of
    jax.random.normal.
    """
    import jax
    import jax.numpy as jnp
    from scipy.special import erf

    kind = values.dtype.type
    mantissa = np.finfo(kind).nmant
    scale, low = kind(noise_sd), np.nextafter(kind(-1), kind(0))
    uniform = (erf((values - total) / noise_sd / np.sqrt(2.0)) + 1.0) / 2.0
    place = np.rint(uniform * 2.0**mantissa)
    found = np.zeros(values.shape, bool)
    inverse = jax.jit(lambda u: np.sqrt(2).astype(kind) * jax.lax.erf_inv(u))
    for move in range(-_WINDOW, _WINDOW + 1):
        drawn = ((place + move) * 2.0**-mantissa).astype(kind)
        drawn = np.clip(drawn, 0, kind(1) - kind(2.0**-mantissa))
        u = np.maximum(low, drawn * (kind(1) - low) + low)
        noise = np.asarray(inverse(jnp.asarray(u, kind)))
        found |= kind(total) + scale * noise == values
        # Compilers may add and multiply with one rounding.
        wide = total.astype(np.longdouble) + np.longdouble(scale) * noise.astype(np.longdouble)
        found |= wide.astype(kind) == values
    return found


def _integer_scores(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log-likelihood ratios of the lowest bits, with frequencies from the first half of the
    draws.

    Only the second half is scored, so that the frequencies are not fitted to the scored draws.
    """
    bits = [one & (2**_BITS - 1) for one in (first, second)]
    half = len(bits[0]) // 2
    scores = [np.zeros(len(one) - half) for one in bits]
    for column in range(first.shape[1]):
        tables = [np.log(np.bincount(one[:half, column], minlength=2**_BITS) + 1.0) for one in bits]
        ratio = tables[0] - tables[1]
        for score, one in zip(scores, bits, strict=True):
            score += ratio[one[half:, column]]
    return scores[0], scores[1]
