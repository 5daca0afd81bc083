"""Two classes of one size, by leaving out records of the larger one at random."""

from __future__ import annotations

import numpy as np

from tacit.errors import DataError

BALANCE = 3
"""The purpose that keeps this random stream of a seed apart from the others (see federation)."""


def balance_rng(seed: int) -> np.random.Generator:
    """The stream that both a reader and the federation draw with, so that they agree."""
    return np.random.default_rng([seed, BALANCE])


def surplus(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mark the rows of the larger class that are more than the smaller one has.

    >>> int(surplus(np.array([0, 0, 0, 1]), np.random.default_rng(0)).sum())
    2
    """
    positive = np.flatnonzero(y == 1)
    negative = np.flatnonzero(y != 1)
    larger, smaller = sorted((positive, negative), key=len, reverse=True)
    if not len(smaller):
        raise DataError(
            f"data.balance = true, but all {len(y)} records are of one class; check the outcome, or"
            " leave balance out"
        )
    out = np.zeros(len(y), dtype=bool)
    if len(larger) > len(smaller):
        out[rng.permutation(larger)[len(smaller) :]] = True
    return out


def surplus_note(out: int, left: int) -> str:
    """What to write into the result: which records there are depends on everybody's labels."""
    return (
        f"balance: {out} records of the larger class left out, {left} records remain; how many was"
        " counted over all parties' labels, which no privacy guarantee covers"
    )
