"""Balance two classes by dropping random records of the larger class."""

from __future__ import annotations

import numpy as np

from tacit.errors import DataError

BALANCE = 3
"""Id of the random stream that balancing uses (other streams: `tacit.data.federation`)."""


def balance_rng(seed: int) -> np.random.Generator:
    """Return the random generator for balancing.

    The same seed gives the same generator, so that readers and the federation drop the same rows.
    """
    return np.random.default_rng([seed, BALANCE])


def surplus(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a mask of the rows to drop, so that both classes have the same number of rows.

    >>> int(surplus(np.array([0, 0, 0, 1]), np.random.default_rng(0)).sum())
    2
    """
    positive = np.flatnonzero(y == 1)
    negative = np.flatnonzero(y != 1)
    larger, smaller = sorted((positive, negative), key=len, reverse=True)
    if not len(smaller):
        raise DataError(
            f"data.balance = true, but all {len(y)} records have the same class; check the"
            " outcome, or leave data.balance out"
        )
    out = np.zeros(len(y), dtype=bool)
    if len(larger) > len(smaller):
        out[rng.permutation(larger)[len(smaller) :]] = True
    return out


def surplus_note(out: int, left: int) -> str:
    """Return a note that `out` records were dropped by balancing and `left` records remain."""
    return (
        f"balance: {out} records of the larger class left out, {left} records remain; the"
        " number depends on all parties' labels, which no privacy guarantee covers"
    )
