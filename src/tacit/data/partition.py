"""Functions that distribute rows over parties.

The result maps the name of each party to its row numbers. Every row belongs to exactly one party.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tacit.errors import ConfigError, DataError

Rows = dict[str, np.ndarray]


def floor(value: float) -> int:
    """Return ⌊value⌋ with a tolerance for rounding errors; for example, 100 · (1 − 0.9) gives
    10.
    """
    return math.floor(value + 1e-9)


def named(prefix: str, parts: Sequence[np.ndarray]) -> Rows:
    """Return a dict from party names (`prefix` and a zero-padded number from 1) to their rows."""
    width = len(str(len(parts)))
    return {f"{prefix}-{number:0{width}d}": rows for number, rows in enumerate(parts, start=1)}


def _refuse_too_many(parties: int, records: int) -> None:
    if parties > records:
        raise ConfigError(
            f"partition.parties = {parties}; there are only {records} training records:"
            " use fewer parties or hold out less"
        )


def balanced(records: int, parties: int, rng: np.random.Generator) -> Rows:
    """Distribute rows over parties at random; the sizes of parties differ by at most one.

    >>> rows = balanced(7, 3, np.random.default_rng(0))
    >>> {name: len(part) for name, part in rows.items()}
    {'party-1': 3, 'party-2': 2, 'party-3': 2}
    """
    _refuse_too_many(parties, records)
    return named("party", np.array_split(rng.permutation(records), parties))


def by_label(labels: np.ndarray, order: Sequence[str], column: str | None = None) -> Rows:
    """Make one party for each label, in the order of `order`, which must contain all labels.

    A label without rows raises an error.
    """
    index = {name: position for position, name in enumerate(order)}
    codes = np.array([index[label] for label in labels.tolist()], dtype=np.int64)
    sorted_rows = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(order))
    for name, count in zip(order, counts, strict=True):
        if count == 0:
            if column is None:
                raise DataError(f'party "{name}" has no records; leave it out, or give it records')
            raise DataError(
                f'party "{name}" (a level of column "{column}") has no records; remove the level,'
                " or add records of this party"
            )
    return dict(zip(order, np.split(sorted_rows, np.cumsum(counts)[:-1]), strict=True))


def skew(
    y: np.ndarray,
    *,
    parties: int,
    size_skew: float,
    label_skew: float,
    binary: bool,
    rng: np.random.Generator,
) -> tuple[Rows, tuple[str, ...]]:
    """Distribute rows over small parties with skewed labels and large parties (TMLR Appendix B).

    Half of the parties are small. With n records, M parties and ρ = `size_skew`, a small party has
    ⌊(n/M)(1−ρ)⌋ records. If the majority label has the share λ in all records, it has the share λ +
    (1−λ)κ in a small party, where κ = `label_skew`. The other records are distributed at random
    over the large parties. In the paper a large party has ⌊(n/M)(1+ρ)⌋ records; here the large
    parties also get the few records that rounding leaves over.
    """
    n = len(y)
    _refuse_too_many(parties, n)
    small = parties // 2
    large = parties - small
    small_size = floor(n / parties * (1 - size_skew))
    if small_size == 0:
        raise DataError(
            f'party "small-{1:0{len(str(small))}d}" has no records: partition.size_skew ='
            f" {size_skew} with {n} records and {parties} parties; lower size_skew or parties"
        )
    if binary:
        chosen = _skewed_labels(y, small, small_size, label_skew, rng)
    elif label_skew == 0:
        chosen = rng.permutation(n)[: small * small_size].reshape(small, small_size)
    else:
        raise ConfigError(
            f"partition.label_skew = {label_skew}, but the outcome does not have two classes; set "
            "label_skew to 0"
        )
    rest = rng.permutation(np.setdiff1d(np.arange(n), chosen))
    rows = named("small", list(chosen)) | named("large", np.array_split(rest, large))
    over = len(rest) - large * floor(n / parties * (1 + size_skew))
    note = f"skewed partition: {small} small parties of {small_size} records, {large} large ones"
    if parties % 2 == 0 and over > 0:
        note += f"; {over} records left over by rounding went to large parties"
    return rows, (note,)


def _skewed_labels(
    y: np.ndarray, small: int, size: int, label_skew: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the row numbers of the small parties, one row per party, as an array of shape (small,
    size).
    """
    majority = float(np.mean(y) > 0.5)
    with_majority = rng.permutation(np.flatnonzero(y == majority))
    with_minority = rng.permutation(np.flatnonzero(y != majority))
    fraction = len(with_majority) / len(y)
    target = fraction + (1 - fraction) * label_skew
    from_majority = floor(size * target)
    from_minority = size - from_majority
    for name, each, there in (
        ("majority", from_majority, len(with_majority)),
        ("minority", from_minority, len(with_minority)),
    ):
        if not 0 <= each * small <= there:
            raise ConfigError(
                f"partition.label_skew = {label_skew}; each of {small} small parties would need "
                f"{each} records of the {name} label, but all parties together have {there}: move "
                "label_skew towards 0, or raise size_skew"
            )
    return np.hstack(
        [
            with_majority[: small * from_majority].reshape(small, from_majority),
            with_minority[: small * from_minority].reshape(small, from_minority),
        ]
    )


def held_out_rows(
    records: int,
    fraction: float,
    rng: np.random.Generator,
    groups: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Return a mask of the rows to hold out. At least one row is not held out.

    If `groups` has the rows of each party, a party of n rows holds out ⌊fraction·n⌋ of them or one
    more, and at least one is not held out. The parties that hold out one more are chosen at random,
    so that the overall fraction is met even if all parties are tiny.
    """
    held = np.zeros(records, dtype=bool)
    wanted = round(records * fraction)
    if groups is None:
        held[rng.permutation(records)[: min(wanted, records - 1)]] = True
        return held
    spare: list[int] = []
    for rows in groups:
        share = floor(len(rows) * fraction)
        shuffled = rng.permutation(rows)
        held[shuffled[:share]] = True
        if share + 1 < len(rows):
            spare.append(int(shuffled[share]))
    more = max(0, wanted - int(held.sum()))
    held[rng.permutation(np.array(spare, dtype=np.int64))[:more]] = True
    return held
