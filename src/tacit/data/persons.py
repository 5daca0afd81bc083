"""Group records by person and keep them together.

A guarantee for persons covers all records of a person at one party. It covers the person only if no
other party has records of them. A test is fair only if it has no person in common with the training
data.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import polars as pl

from tacit.arrays import by_appearance
from tacit.data.partition import Rows, floor, named
from tacit.data.prepare import as_text
from tacit.errors import ConfigError, DataError


def read_persons(series: pl.Series, there: np.ndarray, gaps: Sequence[str] = ()) -> np.ndarray:
    """Return the person code of each remaining row; a missing person is an error."""
    text = as_text(series)
    text = text.set(text.is_in(gaps), None)
    absent = text.is_null().to_numpy() & there
    if absent.any():
        raise DataError(
            f'column "{series.name}", data row {int(np.argmax(absent)) + 1}: the value is missing,'
            " so the record has no person; fill it in (data.person names the column)"
        )
    _, inverse = np.unique(text.to_numpy()[there].astype(str), return_inverse=True)
    return by_appearance(inverse)


def refuse_shared(
    rows: Rows, persons: np.ndarray, setting: str, *, own_tables: str | None = None
) -> None:
    """Refuse parties that share a person: each would protect only its own records of that person.

    `own_tables` is the person column if every party has its own table; its codes may then be local
    to a table.
    """
    owners: dict[int, set[str]] = {}
    for name, part in rows.items():
        for person in np.unique(persons[part]).tolist():
            owners.setdefault(person, set()).add(name)
    shared = sum(len(names) > 1 for names in owners.values())
    if shared and own_tables is not None:
        raise DataError(
            f'column "{own_tables}" has {shared} of {len(owners)} persons in the tables of more '
            "than one party, and each party would protect only its own records of them; if the"
            " codes are local to each table, make them differ between parties (add the party's"
            " name); otherwise keep each person with one party"
        )
    if shared:
        raise DataError(
            f"{setting} gives {shared} of {len(owners)} persons to more than one party, and each "
            "party would protect only its own records of them; keep persons together with"
            ' partition.kind = "balanced", keep one record per person, or leave data.person out'
        )


def balanced_persons(persons: np.ndarray, parties: int, rng: np.random.Generator) -> Rows:
    """Distribute persons at random: those with most records first, each to the smallest party.

    Party sizes then differ by no more than one person's records.
    """
    sizes = np.bincount(persons)
    present = np.flatnonzero(sizes)
    if parties > len(present):
        raise ConfigError(
            f"partition.parties = {parties}; there are only {len(present)} persons in the training"
            " records: use fewer parties or hold out less"
        )
    shuffled = rng.permutation(present)
    smallest = [(0, party) for party in range(parties)]
    owner = np.full(len(sizes), -1, dtype=np.int64)
    for person in shuffled[np.argsort(-sizes[shuffled], kind="stable")].tolist():
        size, party = heapq.heappop(smallest)
        owner[person] = party
        heapq.heappush(smallest, (size + int(sizes[person]), party))
    dealt = owner[persons]
    return named("party", [rng.permutation(np.flatnonzero(dealt == p)) for p in range(parties)])


def held_out_persons(
    persons: np.ndarray,
    fraction: float,
    rng: np.random.Generator,
    groups: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Mark the rows of the persons to hold out, at most `fraction` of all rows.

    As with records, each natural party holds out its share, further persons are drawn up to the
    overall fraction, and every party keeps at least one person.
    """
    sizes = np.bincount(persons)
    out = np.zeros(len(sizes), dtype=bool)
    spare: list[int] = []
    held = 0
    for rows in groups if groups is not None else [np.arange(len(persons))]:
        share = floor(len(rows) * fraction)
        taken = 0
        # Never the last one: at least one person must be left for training.
        *asked, _ = rng.permutation(np.unique(persons[rows])).tolist()
        free = len(asked)
        for person in asked:
            if taken + sizes[person] <= share:
                out[person] = True
                taken += int(sizes[person])
                free -= 1
        if free:
            spare.append(next(person for person in asked if not out[person]))
        held += taken
    for person in rng.permutation(np.array(spare, dtype=np.int64)).tolist():
        if held + sizes[person] <= round(len(persons) * fraction):
            out[person] = True
            held += int(sizes[person])
    return out[persons]
