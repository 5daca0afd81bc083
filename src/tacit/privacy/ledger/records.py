"""Keyed hashes of records, by which a ledger recognises the same records in other data sets.

A data set is a set of records, independent of the split, order or selection of columns of a run.
The ledger stores a 64-bit keyed hash of every record, so that it detects records that two data sets
share. Without the ledger's key, guesses about a record cannot be tested against its hash.

Equal records of one data set are numbered (first copy, second copy, …), so that parties among which
one table is divided share no record, even if the table contains equal rows.

A party's records are hashed a second time on their own: with and without each column that has one
value for all of them, and without all such columns. Missing values count as if their column did not
exist. So a table with a column of parties' names, divided by it, has hashes in common with files of
the parties that lack this column, and so has a table that was read together with one of more
columns. Parties of one division may have such hashes in common without sharing a record.

Values are compared by their meaning, independent of reader and type: text that contains a number
counts as this number, a boolean as 0 or 1, an ISO date as a time, and "NA" as a missing value.

A record whose columns were changed has a different hash. For that case the ledger also stores a
sample of the values of every column of measurements (numbers without repeated values): data sets
that share such a column are treated as the same records.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from tacit.errors import DataError
from tacit.privacy.ledger.fingerprint import DatasetId, check_key, hash_of_schema

SAMPLE = 64
"""Number of values per column of measurements whose hashes are stored: those with the smallest
hashes.
"""
MOST_COLUMNS = 64
MOST_CONSTANT = 8
"""Constant columns that are left out one at a time; if there are more, only all at once."""
_FORMAT = 2**64 - 1
"""First number of stored hashes that include `rows` and `fewer`; in earlier versions the hashes are
sorted and do not start with it.
"""
_NAN = float("nan")
_MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none")
_WORDS = {"false": 0.0, "true": 1.0} | dict.fromkeys(_MISSING, _NAN)
"""Texts that some readers of the same file convert to booleans or missing values, with their
numbers.
"""
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:$|[ T]\d\d:)")


class HashedRecords(NamedTuple):
    """A data set's id, and the keyed hashes that the ledger stores."""

    id: DatasetId
    elements: np.ndarray
    """Sorted 64-bit hashes of the records and, if there is a person column, of the persons."""
    columns: np.ndarray
    """Hashes of sampled values, one row of `SAMPLE` per column of measurements."""
    rows: np.ndarray
    """Hashes of the party's records on their own, without missing values; empty in data sets of
    earlier versions.
    """
    fewer: np.ndarray
    """The same without one or all of the columns that have one value for all records."""

    def packed(self) -> tuple[bytes, bytes]:
        """Return all arrays as bytes."""
        head = np.array([_FORMAT, len(self.elements), len(self.rows)], "<u8")
        hashes = np.concatenate([head, self.elements, self.rows, self.fewer])
        return hashes.astype("<u8").tobytes(), self.columns.astype("<u8").tobytes()


def unpacked(id: DatasetId, elements: bytes, columns: bytes) -> HashedRecords:
    """The inverse of `HashedRecords.packed`."""
    sampled = np.frombuffer(columns, "<u8").reshape(-1, SAMPLE)
    hashes, none = np.frombuffer(elements, "<u8"), np.empty(0, "<u8")
    if len(hashes) == 0 or hashes[0] != _FORMAT:
        return HashedRecords(id, hashes, sampled, none, none)
    first, second = 3 + int(hashes[1]), 3 + int(hashes[1]) + int(hashes[2])
    return HashedRecords(id, hashes[3:first], sampled, hashes[first:second], hashes[second:])


def hash_records(
    schema: Any, parties: Mapping[str, Mapping[str, Any]], key: bytes, *, person: str | None = None
) -> dict[str, HashedRecords]:
    """Hash the records of parties that share no record.

    Formal guarantee: every hash is a pseudo-random function of a record, a person or a value under
    `key` (AES-128 under keys derived by BLAKE2b). Without the key the hashes reveal which data sets
    of this ledger have records in common, and no more.

    Parameters
    ----------
    schema
        Public schema, any JSON value.
    parties
        Columns of equal length per party, with all records, before any split or preparation.
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
    """Vectorised pseudo-random functions under keys that are derived from the ledger's key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._ciphers: dict[bytes, Any] = {}

    def rows(self, columns: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Hash each row: sum a 128-bit pseudo-random function of name and value over the columns.

        Also returns the sum without missing values, and the terms of columns that may be left out,
        which can be subtracted from it: of constant columns, or, if all columns are constant, of
        constant columns of text, because numbers alone identify such a record.
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
        if not varying:
            constant = labels if len(labels) < len(constant) else []
        together = [np.add.reduce(constant)] if len(constant) > 1 else []
        each = constant if len(constant) <= MOST_CONSTANT else []
        return total, present, [*each, *together]

    def numbered(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Compute 64-bit hashes of rows; equal rows are numbered first, so that their hashes
        differ.
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
        """Compute the hashes of the persons that have a record."""
        (column,) = (one for _, one in _flat({name: values}))
        return np.unique(self._cells(b"person", name, column)[:, 0])

    def sampled(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Return the smallest hashes of the values of each column of measurements."""
        kept = []
        for _, values in _flat(columns):
            if values.dtype.kind != "f" or len(values) < 2 * SAMPLE:
                continue
            fractional = values[np.isfinite(values) & (values != np.rint(values))]
            if len(fractional) < max(2 * SAMPLE, len(values) / 2):
                continue
            hashes = self._cells(b"value", "", fractional)[:, 0]
            smallest = np.unique(np.partition(hashes, 2 * SAMPLE - 1)[: 2 * SAMPLE])
            if len(smallest) == 2 * SAMPLE:  # no repetition: unrelated records share few values
                kept.append(smallest[:SAMPLE])
            if len(kept) == MOST_COLUMNS:
                break
        return np.array(kept, np.uint64).reshape(-1, SAMPLE)

    def _cells(self, use: bytes, name: str, values: np.ndarray) -> np.ndarray:
        """Compute a 128-bit pseudo-random function of each value of a column."""
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
        """Hash each row of a sparse matrix: sum the hashes of its stored numbers."""
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


def _flat(columns: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield columns with one value per record, as float64 or as objects."""
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
            f"columns have lengths {lengths}; all must have one length, at least 1: check the"
            " source"
        )
    return next(iter(lengths.values()))


def _bits(values: np.ndarray) -> np.ndarray:
    """Return 64 bits for each number that are equal even if readers or types round differently."""
    with np.errstate(over="ignore"):
        short = values.astype(np.float32).astype(np.float64)
    same = np.where(values == np.rint(values), values, short)
    same = np.where(np.isnan(values), _NAN, same + 0.0)
    return np.ascontiguousarray(same, "<f8").view(np.uint64).copy()


def _number(cell: Any) -> float | str:
    """Convert a cell to a number, even if it is written as text; NaN if it is missing; else return
    its text.
    """
    if cell is None or cell == "":
        return _NAN
    if isinstance(cell, int | float | np.number):
        return float(cell)
    if not isinstance(cell, str):
        raise DataError(
            f"a text column holds a {type(cell).__name__}; convert the column to numbers or to text"
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
    """Convert a time to microseconds since 1970, as NumPy does; a time without a zone is read as
    UTC.
    """
    apart = time.replace(tzinfo=time.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return float(apart // timedelta(microseconds=1))
