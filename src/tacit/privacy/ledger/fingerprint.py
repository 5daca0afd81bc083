"""Ids of data sets in the ledger.

An id consists of a hash of the public schema and a keyed hash of the records, which
`tacit.privacy.ledger.records` computes. Up to version 0.1 the second part was a hash of the
training records of one run. `fingerprint` still computes it, to find charges in ledgers of that
version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tacit.errors import ConfigError, DataError

KEY_BYTES = 32
_SIZE = 16
_FORM = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32})")


class DatasetId(NamedTuple):
    """Id of a data set: `schema` is a hash of its public schema, and `content` a keyed hash of its
    records.

    >>> str(DatasetId.parse("0" * 32 + "." + "a" * 32))[30:36]
    '00.aaa'
    """

    schema: str
    content: str

    @classmethod
    def parse(cls, text: str) -> DatasetId:
        """Make an id from its text, `str(id)`."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ConfigError(
                f'"{text[:80]}" is not a data set id (two 32-digit hexadecimal numbers joined by a'
                " point); copy one from: tacit ledger show --all"
            )
        return cls(*found.groups())

    def __str__(self) -> str:
        return f"{self.schema}.{self.content}"

    @property
    def short(self) -> str:
        """The first 8 digits of `content`, for display."""
        return self.content[:8]


def fingerprint(schema: Any, records: Mapping[str, np.ndarray], key: bytes) -> DatasetId:
    """Compute the id of a data set as in version 0.1.

    `records` has columns of equal length. The id does not depend on the order of rows and columns.
    Pass the records as they are stored, before any split or preparation. Otherwise a different
    held-out share would count as a new data set with a new budget. `schema` is any JSON value.

    Formal guarantee: `content` is a pseudo-random function of the multiset of records under `key`
    (BLAKE2b keyed with 32 bytes). Without the key, it reveals at most whether two data sets of this
    party are equal.

    >>> one = fingerprint([], {"y": np.array([1.0, 2.0])}, bytes(32))
    >>> one == fingerprint([], {"y": np.array([2.0, 1.0])}, bytes(32))
    True
    >>> one.content == fingerprint([], {"y": np.array([2.0, 1.5])}, bytes(32)).content
    False
    """
    check_key(key)
    public = hash_of_schema(schema)
    names = sorted(records)
    count = _common_length(records)
    columns = {name: np.asarray(records[name]) for name in names}
    layout = [(name, *_layout(name, column)) for name, column in columns.items()]
    head = msgspec.json.encode(layout)
    rows = [_cells(column) for column in columns.values()]
    # Each record is hashed with the layout, so that different layouts never share a record's hash.
    # The sorted hashes are then hashed together, so that the order of records does not matter.
    start = hashlib.blake2b(head, digest_size=_SIZE, key=key, person=b"tacit.record")
    hashes = []
    for cells in zip(*rows, strict=True):
        record = start.copy()
        record.update(b"".join(cells))
        hashes.append(record.digest())
    whole = hashlib.blake2b(head, digest_size=_SIZE, key=key, person=b"tacit.content")
    whole.update(count.to_bytes(8, "big") + b"".join(sorted(hashes)))
    return DatasetId(public, whole.hexdigest())


def hash_of_schema(schema: Any) -> str:
    """Return the hash of a public schema, which is the first half of a data set's id."""
    text = msgspec.json.encode(schema, order="sorted")
    return hashlib.blake2b(text, digest_size=_SIZE, person=b"tacit.schema").hexdigest()


def check_key(key: bytes) -> None:
    """Raise an error if a key does not have 32 bytes."""
    if not len(key) == KEY_BYTES:
        raise DataError(
            f"the ledger's key has {len(key)} bytes; it must have {KEY_BYTES}: restore ledger.key"
            " from a copy"
        )


def _common_length(records: Mapping[str, np.ndarray]) -> int:
    lengths = {name: len(np.atleast_1d(column)) for name, column in records.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()) > 0:
        raise DataError(
            f"columns have lengths {lengths}; all columns must have the same number of records, at"
            " least 1: check the source"
        )
    return next(iter(lengths.values()))


def _layout(name: str, column: np.ndarray) -> tuple[str, list[int]]:
    """Return the type of a column and the shape of its cells, which are part of the fingerprint."""
    if column.ndim < 1 or column.dtype.kind not in "biufMmUO":
        raise DataError(
            f'column "{name}" has type {column.dtype} and shape {column.shape}; a fingerprint'
            " needs numbers, times or text, one value per record: convert the column"
        )
    kind = column.dtype.kind
    meaning = {"U": "text", "O": "text", "M": column.dtype.str[1:], "m": column.dtype.str[1:]}
    return meaning.get(kind, kind), list(column.shape[1:])


def _cells(column: np.ndarray) -> list[bytes]:
    """Return the bytes of each record's cell.

    Cells have a fixed width or begin with their length, so that joined cells are unambiguous.
    """
    count, kind = len(column), column.dtype.kind
    flat = column.reshape(count, -1)
    if kind in "UO":
        return [b"".join(map(_text, row)) for row in flat.tolist()]
    if kind == "f":
        # Normalise zero and NaN: file readers differ in their sign and payload.
        flat = np.where(np.isnan(flat), np.nan, flat.astype("<f8") + 0.0)
    wide = {"b": "u1", "i": "<i8", "u": "<u8", "f": "<f8"}.get(kind, column.dtype.newbyteorder("<"))
    flat = np.ascontiguousarray(flat, dtype=wide)
    raw = flat.tobytes()
    width = flat.shape[1] * flat.itemsize
    return [raw[a:b] for a, b in pairwise(accumulate([0] + [width] * count))]


def _text(value: Any) -> bytes:
    """Return the bytes of a text, preceded by its length; a missing value and an empty text
    differ.
    """
    if value is None:
        return b"\xff" * 8
    if not isinstance(value, str):
        raise DataError(
            f"a text column contains a value of type {type(value).__name__}; convert the column to"
            " numbers or to text"
        )
    raw = value.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "big") + raw
