"""Partitioners: map party names to row numbers.

Every row belongs to exactly one party.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tacit.errors import ConfigError, DataError

Rows = dict[str, np.ndarray]


def floor(value: float) -> int:
    """Return ⌊value⌋ with a tolerance for rounding errors: 100 · (1 - 0.9) gives 10."""
    return math.floor(value + 1e-9)


def named(prefix: str, parts: Sequence[np.ndarray]) -> Rows:
    """Name the parties by zero-padded numbers from 1."""
    width = len(str(len(parts)))
    return {f"{prefix}-{number:0{width}d}": rows for number, rows in enumerate(parts, start=1)}


def _refuse_too_many(parties: int, records: int) -> None:
    if parties > records:
        raise ConfigError(
            f"partition.parties = {parties}; there are only {records} training records:"
            " use fewer parties or hold out less"
        )


def balanced(records: int, parties: int, rng: np.random.Generator) -> Rows:
    """Distribute rows at random; sizes differ by at most one.

    >>> rows = balanced(7, 3, np.random.default_rng(0))
    >>> {name: len(part) for name, part in rows.items()}
    {'party-1': 3, 'party-2': 2, 'party-3': 2}
    """
    _refuse_too_many(parties, records)
    return named("party", np.array_split(rng.permutation(records), parties))


def by_label(labels: np.ndarray, order: Sequence[str], column: str | None = None) -> Rows:
    """Make one party per label in `order`, which must contain all labels. No party may be empty."""
    index = {name: position for position, name in enumerate(order)}
    codes = np.array([index[label] for label in labels.tolist()], dtype=np.int64)
    sorted_rows = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(order))
    for name, count in zip(order, counts, strict=True):
        if count == 0:
            if column is None:
                raise DataError(f'party "{name}" has no records; leave it out, or give it records')
            raise DataError(
                f'party "{name}" (a level of column "{column}") has no records; remove the level'
                " or give the party data"
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
    """Split rows so that half of the parties are small with skewed labels, the others large and
    random.

    With n records, M parties, ρ = `size_skew`, κ = `label_skew` and λ the fraction of the
    majority label, a small party has ⌊(n/M)(1-ρ)⌋ records, of which the fraction λ + (1-λ)κ has
    the majority label (Heikkilä et al., TMLR 2023, Appendix B). The paper's large parties have
    ⌊(n/M)(1+ρ)⌋; the few records left over by rounding go to large parties here.
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
            f"partition.label_skew = {label_skew}; it needs an outcome of two classes: set it to 0"
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
    """Return the rows of the small parties as an array of shape (small, size)."""
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
                f"partition.label_skew = {label_skew}; {small} small parties would each need"
                f" {each} {name} records but there are {there}: move label_skew towards 0, or"
                " raise size_skew"
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
    """Mark the rows to hold out; at least one row, or one per group, is left.

    With natural parties, each holds out ⌊fraction · size⌋ rows or one more, so that no site is
    emptied by chance. The parties that hold out one more are chosen at random up to the overall
    fraction, so that many tiny sites still give a test set.
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
