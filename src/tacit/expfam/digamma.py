"""The inverse of the digamma function (Minka 2000, "Estimating a Dirichlet", appendix C)."""

from __future__ import annotations

import numpy as np


def inverse_digamma(value: np.ndarray, *, steps: int = 8) -> np.ndarray:
    """Return x > 0 with digamma(x) = value, by Newton steps from an asymptotic approximation.

    >>> from scipy.special import digamma
    >>> inverse_digamma(digamma(np.array([0.1, 1.0, 30.0]))).round(12)
    array([ 0.1,  1. , 30. ])
    """
    from scipy.special import digamma, polygamma

    value = np.asarray(value, dtype=np.float64)
    # Both branches are computed for every value; keep the second away from its pole at digamma(1).
    small = -1.0 / (np.minimum(value, -2.22) - digamma(1.0))
    x = np.where(value >= -2.22, np.exp(value) + 0.5, small)
    for _ in range(steps):
        x = x - (digamma(x) - value) / polygamma(1, x)
    return x
