"""Keyed hashes with which a ledger recognises the same records in different data sets.

A data set is a set of records. Its id does not depend on the split, the order or the columns that a
run uses. The ledger stores a 64-bit keyed hash of every record, with which it detects records that
two data sets share. Without the ledger's key, guesses about a record cannot be tested against its
hash.

Equal records of one data set are numbered (first copy, second copy, …) before they are hashed.
Parties among which one table is divided therefore share no hash, even if the table has equal rows.

The records of each party are hashed a second time, independently of the other parties and without
missing values. They are hashed once with all columns and, if some columns have the same value in
all records of the party, again without each of these columns and without all of them. The ledger
thus recognises a party's records in two kinds of tables: a table of all parties that has a further
column with the party's name, and a table that got columns of missing values when it was
concatenated with another table. Parties of one table may have such hashes in common without sharing
a record.

Values are compared by their meaning, independent of reader and type: text that contains a number
counts as this number, a boolean as 0 or 1, an ISO date as a time, and "NA" as a missing value.

The hash of a record changes if one of its columns is changed. The ledger therefore also compares
columns. For a column of measurements (numbers without repeated values) it stores hashes of a sample
of the values. For another column of numbers it stores one hash of all values and their frequencies,
but only if equal frequencies in an unrelated table are very unlikely. Data sets with such a column
in common are treated as if they had the same records.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from tacit.errors import DataError
from tacit.privacy.ledger.fingerprint import DatasetId, check_key, hash_of_schema

SAMPLE = 64
"""Number of hashes that are stored per column of measurements: the smallest hashes of its values.
"""
MOST_COLUMNS = 64
CHANCE = 2.0**-40
"""One hash of all values and frequencies of a column is stored only if a bootstrap sample of the
column has the same frequencies with at most this probability.
"""
LEAST_DISTINCT = 24
"""Smallest number of distinct values of a column for which one hash of all values is stored. A
column of months has fewer, and its frequencies follow the calendar.
"""
MOST_CONSTANT = 8
"""If a party has at most this many constant columns, its records are also hashed without each of
them. If there are more, the records are only hashed without all of them.
"""
_FORMAT = 2**64 - 1
"""Marker at the start of stored hashes that include `rows` and `fewer`. Earlier versions stored
sorted hashes of records without this marker.
"""
_NAN = float("nan")
_MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none")
_WORDS = {"false": 0.0, "true": 1.0} | dict.fromkeys(_MISSING, _NAN)
"""Texts that some file readers convert to booleans or missing values, with the number that each is
converted to here.
"""
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:$|[ T]\d\d:)")


class HashedRecords(NamedTuple):
    """The id of a data set, and the keyed hashes that the ledger stores for it."""

    id: DatasetId
    elements: np.ndarray
    """Sorted 64-bit hashes of the records and, if there is a person column, of the persons."""
    columns: np.ndarray
    """One row of `SAMPLE` hashes per column. For a column of measurements they are hashes of
    sampled values; for another column they are derived from one hash of all its values.
    """
    rows: np.ndarray
    """Hashes of the party's records, computed without missing values and independently of the other
    parties; empty in data sets of earlier versions.
    """
    fewer: np.ndarray
    """Hashes like `rows`, but without one or all of the columns that have the same value in all
    records.
    """

    def packed(self) -> tuple[bytes, bytes]:
        """Return the hashes as two byte strings, from which `unpacked` restores them."""
        head = np.array([_FORMAT, len(self.elements), len(self.rows)], "<u8")
        hashes = np.concatenate([head, self.elements, self.rows, self.fewer])
        return hashes.astype("<u8").tobytes(), self.columns.astype("<u8").tobytes()


def unpacked(id: DatasetId, elements: bytes, columns: bytes) -> HashedRecords:
    """Make `HashedRecords` from the byte strings that `HashedRecords.packed` returned."""
    sampled = np.frombuffer(columns, "<u8").reshape(-1, SAMPLE)
    hashes, none = np.frombuffer(elements, "<u8"), np.empty(0, "<u8")
    if len(hashes) == 0 or hashes[0] != _FORMAT:
        return HashedRecords(id, hashes, sampled, none, none)
    first, second = 3 + int(hashes[1]), 3 + int(hashes[1]) + int(hashes[2])
    return HashedRecords(id, hashes[3:first], sampled, hashes[first:second], hashes[second:])


def hash_records(
    schema: Any, parties: Mapping[str, Mapping[str, Any]], key: bytes, *, person: str | None = None
) -> dict[str, HashedRecords]:
    """Hash the records of several parties that have no record in common.

    Formal guarantee: every hash is a pseudo-random function of a record, a person or a value under
    `key` (AES-128 under keys derived by BLAKE2b). Without the key, the hashes reveal only which
    data sets of this ledger have records in common.

    Parameters
    ----------
    schema
        Public schema, any JSON value.
    parties
        Columns of equal length for each party, with all records, before any split or preparation.
    key
        The ledger's key.
    person
        Column that identifies the person of a record.
    """
    check_key(key)
    keyed = _Keyed(key)
    hashed = {name: keyed.rows(columns) for name, columns in parties.items()}
    numbered = keyed.numbered([whole for whole, *_ in hashed.values()])
    found = {}
    for (name, columns), elements in zip(parties.items(), numbered, strict=True):
        if person is not None and person in columns:
            elements = np.concatenate([elements, keyed.persons(person, columns[person])])
        elements = np.unique(elements)
        sampled = keyed.sampled(columns)
        whole = hashlib.blake2b(key=key, digest_size=16, person=b"tacit.records")
        whole.update(elements.astype("<u8").tobytes())
        _, own, less = hashed[name]
        alone = np.unique(keyed.numbered([own])[0])
        fewer = [keyed.numbered([own - constant])[0] for constant in less]
        found[name] = HashedRecords(
            DatasetId(hash_of_schema(schema), whole.hexdigest()), elements, sampled, alone,
            np.unique(np.concatenate(fewer)) if fewer else np.empty(0, np.uint64),
        )  # fmt: skip
    return found


class _Keyed:
    """Keyed hashes of rows, persons and columns, with keys derived from the ledger's key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._ciphers: dict[bytes, Any] = {}

    def rows(self, columns: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Hash each row by adding up a 128-bit hash of column name and value over the columns.

        Returns the sums over all values, the sums over values that are not missing, and a list of
        terms. Subtracting a term from the second sums removes one constant column, or all constant
        columns, from the hashes.
        """
        total = np.zeros((_common_length(columns), 2), np.uint64)
        present = np.zeros_like(total)
        constant: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        varying = False
        for name, values in _flat(columns):
            cells = self._cells(b"cell", name, values)
            missing = (cells == self._cells(b"cell", name, np.array([_NAN]))).all(axis=1)
            total += cells
            present += np.where(missing[:, None], np.uint64(0), cells)
            if not (cells == cells[0]).all():
                varying = True
            elif not missing[0]:
                constant.append(cells[0])
                labels += [cells[0]] if values.dtype.kind != "f" else []
        for name, matrix in _sparse(columns):
            cells = self._sparse_rows(name, matrix)
            total, present, varying = total + cells, present + cells, True
        # If every column is constant, only the numbers identify a record: remove only text columns.
        if not varying:
            constant = labels if len(labels) < len(constant) else []
        together = [np.add.reduce(constant)] if len(constant) > 1 else []
        each = constant if len(constant) <= MOST_CONSTANT else []
        return total, present, [*each, *together]

    def numbered(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Return a 64-bit hash of each row.

        Copies of a row are numbered before they are hashed, so that their hashes differ.
        """
        whole = np.concatenate(rows)
        order = np.lexsort((whole[:, 1], whole[:, 0]))
        place = whole[order]
        new = np.ones(len(place), bool)
        new[1:] = (place[1:] != place[:-1]).any(axis=1)
        starts = np.flatnonzero(new)
        copy = np.empty(len(place), np.uint64)
        copy[order] = np.arange(len(place)) - np.repeat(
            starts, np.diff(np.append(starts, len(place)))
        )
        whole[:, 1] += copy
        hashed = self._encrypt(b"record", whole)[:, 0]
        return np.split(hashed, np.cumsum([len(one) for one in rows])[:-1])

    def persons(self, name: str, values: Any) -> np.ndarray:
        """Return the hashes of the different persons in a column."""
        (column,) = (one for _, one in _flat({name: values}))
        return np.unique(self._cells(b"person", name, column)[:, 0])

    def sampled(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Return `SAMPLE` hashes per column, in one row, for the columns that can be compared with
        those of other tables.
        """
        times = {name for name, one in columns.items() if np.asarray(one).dtype.kind in "Mm"}
        kept, others = [], []
        for name, values in _flat(columns):
            found = self._sample(values)
            if found is not None:
                kept.append(found)
            elif values.dtype.kind == "f" and name not in times:
                others.append(values)
        whole = [self._whole_column(values) for values in others]
        kept += [one for one in whole if one is not None]
        return np.array(kept[:MOST_COLUMNS], np.uint64).reshape(-1, SAMPLE)

    def _sample(self, values: np.ndarray) -> np.ndarray | None:
        """Return the `SAMPLE` smallest hashes of a column's values; None if the column does not
        contain measurements.
        """
        if values.dtype.kind != "f" or len(values) < 2 * SAMPLE:
            return None
        fractional = values[np.isfinite(values) & (values != np.rint(values))]
        if len(fractional) < max(2 * SAMPLE, len(values) / 2):
            return None
        hashes = self._cells(b"value", "", fractional)[:, 0]
        smallest = np.unique(np.partition(hashes, 2 * SAMPLE - 1)[: 2 * SAMPLE])
        # Without repeated values unrelated records share few of them.
        return smallest[:SAMPLE] if len(smallest) == 2 * SAMPLE else None

    def _whole_column(self, values: np.ndarray) -> np.ndarray | None:
        # `SAMPLE` hashes that are equal to those of another column, of any name, if it has the same
        # numbers with the same frequencies; otherwise all of them differ. None if the frequencies
        # could be equal by chance or by design.
        values = values[np.isfinite(values)]
        numbers, counts = np.unique(values, return_counts=True)
        if len(numbers) < LEAST_DISTINCT or not _is_irregular(numbers, counts):
            return None
        if _log_chance(counts) > math.log(CHANCE):
            return None
        hashes = self._cells(b"value", "", numbers)[:, 0]
        state = hashlib.blake2b(key=self._key, digest_size=8, person=b"tacit.column")
        state.update(hashes.astype("<u8").tobytes() + counts.astype("<u8").tobytes())
        blocks = np.arange(2 * SAMPLE, dtype=np.uint64).reshape(SAMPLE, 2)
        blocks[:, 1] = int.from_bytes(state.digest(), "little")
        return np.sort(self._encrypt(b"column", blocks)[:, 0])

    def _cells(self, use: bytes, name: str, values: np.ndarray) -> np.ndarray:
        """Return a 128-bit hash of each value of a column."""
        blocks = np.empty((len(values), 2), np.uint64)
        blocks[:, 1] = self._tag(name)
        if values.dtype.kind == "f":
            blocks[:, 0] = _bits(values)
            return self._encrypt(use, blocks)
        cells = values.tolist()
        number = {cell: place for place, cell in enumerate(dict.fromkeys(cells))}
        read = [_number(cell) for cell in number]
        codes = _bits(np.array([_NAN if isinstance(one, str) else one for one in read]))
        texts = np.array([isinstance(one, str) for one in read])
        codes[texts] = [self._tag(one) for one in read if isinstance(one, str)]
        places = np.fromiter(map(number.__getitem__, cells), np.int64, len(cells))
        blocks[:, 0] = codes[places]
        blocks[:, 1] += texts[places].astype(np.uint64)
        return self._encrypt(use, blocks)

    def _sparse_rows(self, name: str, matrix: Any) -> np.ndarray:
        """Hash each row of a sparse matrix: the sum of the hashes of its stored numbers."""
        csr = matrix.tocsr()
        csr.sum_duplicates()
        blocks = np.empty((csr.nnz, 2), np.uint64)
        blocks[:, 0] = _bits(csr.data.astype(np.float64))
        blocks[:, 1] = csr.indices.astype(np.uint64) + np.uint64(self._tag(name))
        cells = np.vstack([np.zeros((1, 2), np.uint64), self._encrypt(b"cell", blocks)])
        ends = np.cumsum(cells, axis=0)[csr.indptr]
        return ends[1:] - ends[:-1]

    def _tag(self, text: str) -> int:
        state = hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8, person=b"tacit.tag"
        )
        return int.from_bytes(state.digest(), "little")

    def _encrypt(self, use: bytes, blocks: np.ndarray) -> np.ndarray:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        if use not in self._ciphers:
            own = hashlib.blake2b(use, key=self._key, digest_size=16, person=b"tacit.cells")
            # One block per value: equal values shall have equal hashes.
            self._ciphers[use] = Cipher(algorithms.AES(own.digest()), modes.ECB())
        raw = self._ciphers[use].encryptor().update(np.ascontiguousarray(blocks).tobytes())
        return np.frombuffer(raw, np.uint64).reshape(-1, 2)


def _log_chance(counts: np.ndarray) -> float:
    # Log-probability of `counts` under the multinomial distribution with their own shares; no
    # other shares give a larger one.
    total = np.sum(counts)
    logs = counts * np.log(counts / total) - [math.lgamma(one + 1.0) for one in counts.tolist()]
    return float(math.lgamma(total + 1.0) + np.sum(logs))


def _is_irregular(numbers: np.ndarray, counts: np.ndarray) -> bool:
    """True if the distinct numbers of a column and their counts look like random draws.

    Row numbers, calendars, strata and designs have equal counts or equal distances instead.
    """
    # If numbers repeat often, neighbouring counts a and b of random draws differ such that
    # (a − b)²/(a + b) is about 1 on average; otherwise distances between numbers have a coefficient
    # of variation of about 1. Half of either is required.
    if np.mean(counts) >= 3.0:
        apart, both = np.diff(counts), counts[1:] + counts[:-1]
        return float(np.mean(np.square(apart) / both)) >= 0.5
    gaps = np.diff(numbers)
    return len(numbers) >= 100 and float(np.var(gaps)) >= 0.5 * float(np.mean(gaps)) ** 2


def _flat(columns: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the values (float64 or objects) of each column, and of each column of a
    matrix.
    """
    for name, column in sorted(columns.items()):
        if _is_sparse(column):
            continue
        values = np.asarray(column)
        kind = values.dtype.kind
        if kind not in "biufMmUO" or values.ndim < 1:
            raise DataError(
                f'column "{name}" has type {values.dtype} and shape {values.shape}; a ledger needs'
                " numbers, times or text, one value per record: convert the column"
            )
        if kind in "Mm":
            unit = values.dtype.str[1:2] + "8[us]"
            values = np.where(np.isnat(values), _NAN, values.astype(unit).astype(np.int64))
        if kind in "biufMm":
            values = values.astype(np.float64)
        wide = values.reshape(len(values), -1)
        for place in range(wide.shape[1]):
            yield (name if values.ndim == 1 else f"{name}[{place}]"), wide[:, place]


def _sparse(columns: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((name, one) for name, one in sorted(columns.items()) if _is_sparse(one))


def _is_sparse(column: Any) -> bool:
    return hasattr(column, "tocsr")


def _common_length(columns: Mapping[str, Any]) -> int:
    lengths = {name: int(np.shape(one)[0]) for name, one in columns.items() if np.ndim(one)}
    if len(lengths) != len(columns) or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(
            f"columns have lengths {lengths}; all columns must have the same number of records, at"
            " least 1: check the source"
        )
    return next(iter(lengths.values()))


def _bits(values: np.ndarray) -> np.ndarray:
    """Return the 64 bits of each number. Numbers that are not integers are first rounded to
    float32.

    A number therefore has the same bits whether it was stored as float32 or as float64.
    """
    with np.errstate(over="ignore"):
        short = values.astype(np.float32).astype(np.float64)
    same = np.where(values == np.rint(values), values, short)
    same = np.where(np.isnan(values), _NAN, same + 0.0)
    return np.ascontiguousarray(same, "<f8").view(np.uint64).copy()


def _number(cell: Any) -> float | str:
    """Convert a cell to a float if it is a number, or if its text is a number, a boolean or a date.
    Return NaN for a missing value, and the text for other cells.
    """
    if cell is None or cell == "":
        return _NAN
    if isinstance(cell, int | float | np.number):
        return float(cell)
    if not isinstance(cell, str):
        raise DataError(
            f"a text column contains a value of type {type(cell).__name__}; convert the column to"
            " numbers or to text"
        )
    text = cell.strip()
    try:
        return float(text)
    except ValueError:
        pass
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _DATE.match(text):
        with contextlib.suppress(ValueError):
            return _microseconds(datetime.fromisoformat(text))
    return text


def _microseconds(time: datetime) -> float:
    """Return the microseconds from 1970 to a time; a time without a zone is read as UTC."""
    apart = time.replace(tzinfo=time.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return float(apart // timedelta(microseconds=1))
