"""Pad parties of unequal size to few lengths, so that few shapes are compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_PADDING_RATIO = 1.25


def bucket_lengths(sizes: Sequence[int], most: int, *, cheap_rows: int = 0) -> list[int]:
    """Choose at most `most` lengths to which the parties' records are padded, in ascending order.

    A party with n records is padded to the smallest length that is at least n. The result has the
    fewest lengths with which padding adds at most a quarter more rows. A total of up to
    `cheap_rows` rows is always accepted, because compiling one more program costs more than
    padding. The lengths are found by dynamic programming over the distinct sizes.

    >>> bucket_lengths([1, 1, 1, 100], 2)
    [1, 100]
    >>> bucket_lengths([5, 6, 7], 1)
    [7]
    >>> bucket_lengths([1, 1, 1, 100], 2, cheap_rows=400)
    [100]
    """
    distinct, counts = np.unique(np.asarray(sizes), return_counts=True)
    cumulative = np.concatenate([[0], np.cumsum(counts)])
    number = len(distinct)
    best = np.full((min(most, number) + 1, number + 1), np.inf)
    best[0, 0] = 0.0
    back = np.zeros(best.shape, dtype=int)
    for used in range(1, best.shape[0]):
        for end in range(1, number + 1):
            rows = best[used - 1, :end] + (cumulative[end] - cumulative[:end]) * distinct[end - 1]
            back[used, end] = int(np.argmin(rows))
            best[used, end] = rows[back[used, end]]
    total = best[:, number]
    bound = max(MAX_PADDING_RATIO * float(np.sum(sizes)), float(total.min()), cheap_rows)
    bearable = total <= bound
    used, end = int(np.argmax(bearable)), number
    lengths = []
    while end > 0:
        lengths.append(int(distinct[end - 1]))
        end, used = back[used, end], used - 1
    return lengths[::-1]


ROWS_PER_CALL = 16_384
CALL_COST_ROWS = 512  # cost of a call, in rows


def batch_size(parties: int, length: int) -> int:
    """Choose how many parties of one padded length to compute per call: a compromise between few
    calls and little padding of the last call.

    >>> batch_size(10, 4_000), batch_size(1_000, 40)
    (2, 334)
    """
    most = min(parties, max(1, ROWS_PER_CALL // length))
    sizes = range(1, most + 1)
    return min(sizes, key=lambda size: -(-parties // size) * (size * length + CALL_COST_ROWS))
