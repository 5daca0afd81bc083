"""Make neighbouring data sets, in which one unit is replaced by records of various sizes, signs and
labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tacit.methods.private import PERSON
from tacit.models import Records
from tacit.privacy.events import Adjacency
from tacit.privacy.guarantee import Unit

SENTINELS = (999.0, 9.0, -1.0, 99.0)
"""Numbers that often represent a missing value."""
SIZES = (0.0, 1e-30, 1e-2, 1.0, 50.0, 1e9, 1e18, 1e30)
ALIGNED = 40
"""Number of records in `aligned_neighbours`."""
LARGE = 50.0


def neighbours_of(
    records: Records, unit: Unit, adjacency: Adjacency, rng: np.random.Generator
) -> list[list[Records]]:
    """Return two groups of data sets. Each data set differs from the first of its group in one
    unit.

    In the first group, the records of all other units are the given records. In the second group,
    the records of all other units are equal and extreme.
    """
    return [
        _around(rest, records, unit, adjacency, rng) for rest in (records, _pulled(records, -1.0))
    ]


def aligned_neighbours(
    records: Records, unit: Unit, adjacency: Adjacency, rng: np.random.Generator
) -> list[Records]:
    """Return data sets of `ALIGNED` records, each of which differs from the first in one unit.

    All other records are equal and large, and their contributions have the same direction, so that
    the sum is much larger than the contribution of a unit. If one unit changes what the others
    contribute, the sum moves by more than the clip. Labels are those of `records`, followed by the
    smallest label.
    """
    rest = repeated(records, ALIGNED)
    known = len(next(iter(records.values())))
    if "counts" in rest:
        rest = {name: np.repeat(value[:1], ALIGNED, axis=0) for name, value in rest.items()}
    elif "y" in rest and _labels(rest) is None:
        rest["y"] = np.full_like(rest["y"], 1e9)
    elif "y" in rest:
        rest["y"][known - 1 : -1] = np.min(rest["y"])
        rest["y"][-1] = records["y"][-1]
    if "x" in rest:
        size = LARGE if "y" in rest else np.max(rest["x"])
        rest["x"] = np.full_like(rest["x"], size)
    rest = with_persons(rest) if unit == "person" else rest
    return _around(rest, records, unit, adjacency, rng)


def _around(
    rest: Records, records: Records, unit: Unit, adjacency: Adjacency, rng: np.random.Generator
) -> list[Records]:
    """Return `rest` and data sets in which one unit of it is replaced, or is left out."""
    sets = [rest] if adjacency == "replace-one" else [_without(rest, unit), rest]
    return [*sets, *(_replaced(rest, row, unit) for row in _rows(records, rng))]


def repeated(records: Records, count: int) -> Records:
    """Return `count` records, which are the given ones in turn, without person codes."""
    rows = np.arange(count) % len(next(iter(records.values())))
    return {name: np.asarray(value)[rows] for name, value in records.items() if name != PERSON}


def _labels(records: Records) -> np.ndarray | None:
    """Return the different values of y if they are labels or small counts; otherwise None."""
    labels = np.unique(records["y"]) if "y" in records else np.zeros(1)
    return labels if set(labels) <= set(range(16)) else None


def _rows(records: Records, rng: np.random.Generator) -> Iterator[Records]:
    """Yield single records of every size, sign and label, and records filled with `SENTINELS`. For
    documents, yield documents with few and with many words.
    """
    if "counts" in records:
        yield from _documents(records)
        return
    labels = _labels(records)
    labels = np.array([0.0, 1.0, -1.0, 1e9, -1e9]) if labels is None else labels
    shape = np.shape(records["x"])[1:] if "x" in records else ()
    for size, label in itertools.product(SIZES, labels):
        signs = (np.ones(shape), rng.choice([-1.0, 1.0], size=shape))
        for sign in signs if size or label == labels[0] else signs[:1]:
            row = {name: np.asarray(value[:1]).copy() for name, value in records.items()}
            if "x" in row:
                row["x"] = (size * sign)[None].astype(row["x"].dtype)
            if "y" in row:
                row["y"] = np.array([label], row["y"].dtype)
            yield row
    known = _labels(records)
    for value in SENTINELS:
        row = {name: np.asarray(column[:1]).copy() for name, column in records.items()}
        for name, column in row.items():
            if name == "y" and known is not None:
                column[:] = known[-1]
            elif name in ("x", "y") or column.dtype.kind == "f":
                column[:] = value
        yield row


def _documents(records: Records) -> Iterator[Records]:
    """Yield documents with one distinct word, and one with as many distinct words as fit into the
    array.
    """
    width = np.shape(records["words"])[1]
    for count, word in itertools.product((1, 50, 10_000), range(min(4, width))):
        row = {name: np.zeros_like(records[name][:1]) for name in records}
        row["words"][0, 0], row["counts"][0, 0] = word, count
        yield row
    row = {name: np.zeros_like(records[name][:1]) for name in records}
    row["words"][0], row["counts"][0] = np.arange(width), 1
    yield row


def _pulled(records: Records, sign: float) -> Records:
    """Return records that are all equal and extreme, so that one different record has the largest
    effect.
    """
    found = {name: np.asarray(value).copy() for name, value in records.items()}
    if "x" in found and "y" in found:
        found["x"] = np.full_like(found["x"], 1e-2)
        if _labels(found) is None:
            found["y"] = np.full_like(found["y"], sign * 1e9)
        else:
            found["y"] = np.full_like(found["y"], np.min(found["y"]))
    return found


def with_persons(records: Records) -> Records:
    """Return the records with a column that identifies persons. The last two records belong to the
    same person, and every other record to a different person.
    """
    count = len(next(iter(records.values())))
    return {**records, PERSON: np.minimum(np.arange(count), count - 2)}


def _of_unit(records: Records, unit: Unit) -> np.ndarray:
    count = len(next(iter(records.values())))
    if unit == "party":
        return np.ones(count, bool)
    if unit == "person":
        return records[PERSON] == np.max(records[PERSON])
    return np.arange(count) == count - 1


def _replaced(records: Records, row: Records, unit: Unit) -> Records:
    own = _of_unit(records, unit)
    found = {name: np.asarray(value).copy() for name, value in records.items()}
    for name in found:
        if name != PERSON:
            found[name][own] = row[name]
    if unit == "person":  # a new person has a new id, here the smallest
        found[PERSON][own] = np.min(records[PERSON]) - 1
    return found


def _without(records: Records, unit: Unit) -> Records:
    own = _of_unit(records, unit)
    if unit == "party":  # an absent party sends nothing: its sum counts as 0
        return records
    return {name: np.asarray(value)[~own] for name, value in records.items()}
