"""Group records by person and keep all records of a person together.

A guarantee for persons covers all records of a person at one party. It protects the person only if
no other party has records of the same person. For a fair test, no person may have both training and
test records.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import polars as pl

from tacit.arrays import by_appearance
from tacit.data.partition import Rows, floor, named
from tacit.data.prepare import as_text, missing_cells
from tacit.errors import ConfigError, DataError


def read_persons(series: pl.Series, there: np.ndarray, gaps: Sequence[str] = ()) -> np.ndarray:
    """Return the person of each row where `there` is True, as an integer from 0.

    A missing person in one of these rows raises an error.
    """
    text = as_text(series)
    text = text.set(missing_cells(text, gaps), None)
    absent = text.is_null().to_numpy() & there
    if absent.any():
        raise DataError(
            f'column "{series.name}", data row {int(np.argmax(absent)) + 1}: the value is missing,'
            " so the record has no person; fill in the value (data.person names this column)"
        )
    _, inverse = np.unique(text.to_numpy()[there].astype(str), return_inverse=True)
    return by_appearance(inverse)


def refuse_shared(
    rows: Rows, persons: np.ndarray, setting: str, *, own_tables: str | None = None
) -> None:
    """Raise an error if two parties have records of the same person.

    Each party would protect only its own records of that person. `own_tables` is the name of the
    person column if every party has a separate table. The same identifier may then mean different
    persons, and the error says so.
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
            " identifiers are local to each table, make them differ between parties (add the"
            " party's name); otherwise keep each person with one party"
        )
    if shared:
        raise DataError(
            f"{setting} gives {shared} of {len(owners)} persons to more than one party, and each "
            "party would protect only its own records of them; keep persons together with"
            ' partition.kind = "balanced", keep one record per person, or leave data.person out'
        )


def balanced_persons(persons: np.ndarray, parties: int, rng: np.random.Generator) -> Rows:
    """Distribute persons over parties of similar size.

    Persons with the most records come first, and each goes to the party with the fewest records so
    far. The sizes of parties then differ by at most the number of records of one person.
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
    """Return a mask of rows to hold out: all rows of some persons, at most `fraction` of all rows.

    If `groups` has the rows of each party, every party holds out persons up to this fraction of its
    rows, and at least one person per party is not held out. Then one more person of some randomly
    chosen parties is held out, until the overall fraction is reached.
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
