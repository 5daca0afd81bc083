"""Attack on the least significant bits of a release.

Suppose that a sampler adds noise in floating point, as a function of a uniform number of 52 bits.
The result can then be only some of the floating-point numbers, and which ones depends on the exact
sum (Mironov 2012). An attacker who knows the sampler and two possible sums can test which of them
could have given the released number. A release of integers on a public lattice does not have this
weakness; for such releases the frequencies of the lowest bits are compared.
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
    """Return a lower bound on ε from the lowest bits of releases.

    Parameters
    ----------
    released
        Releases of the two neighbouring data sets, (draws, d) each, integers or floating-point
        numbers.
    sums
        Exact sums of the two data sets, (d,) each.
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
    """Return a boolean array: which of `values` could be a release with the exact sum `total`.

    The noise is assumed to come from jax.random.normal: a release is total + noise_sd·√2·erfinv(u),
    rounded to floating point, where u is one of the uniform numbers that JAX can draw.
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
    """Return the log-likelihood ratios of the lowest bits, for the second half of each sample.

    The likelihoods are estimated from the first half of each sample.
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
