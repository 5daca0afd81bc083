"""The name of a data set in the ledger: the same records always get the same name.

Budget is spent on records, so the ledger must recognise them from run to run. The name is a hash of
the public schema and a keyed hash of the content. Without the party's key nobody can test a guess
about a record against it; with it, one changed value gives another name.
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
    """Who the records are: `schema` hashes what is public, `content` what is not.

    >>> str(DatasetId.parse("0" * 32 + "." + "a" * 32))[30:36]
    '00.aaa'
    """

    schema: str
    content: str

    @classmethod
    def parse(cls, text: str) -> DatasetId:
        """The inverse of `str`."""
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
        """Enough for a person to tell two data sets apart."""
        return self.content[:8]


def fingerprint(schema: Any, records: Mapping[str, np.ndarray], key: bytes) -> DatasetId:
    """The id of `records` (columns of equal length), whatever the order of records and columns.

    Give the records as they are kept, before any split or preparation: otherwise another share of
    held-out records would be a new data set with a budget of its own. `schema` is anything that
    JSON can say.

    Formal guarantee: `content` is a pseudo-random function of the multiset of records under `key`
    (BLAKE2b keyed with 32 bytes). Whoever lacks the key learns at most whether two data sets of
    this party are equal.

    >>> one = fingerprint([], {"y": np.array([1.0, 2.0])}, bytes(32))
    >>> one == fingerprint([], {"y": np.array([2.0, 1.0])}, bytes(32))
    True
    >>> one.content == fingerprint([], {"y": np.array([2.0, 1.5])}, bytes(32)).content
    False
    """
    check_key(key)
    text = msgspec.json.encode(schema, order="sorted")
    public = hashlib.blake2b(text, digest_size=_SIZE, person=b"tacit.schema").hexdigest()
    names = sorted(records)
    count = _common_length(records)
    columns = {name: np.asarray(records[name]) for name in names}
    layout = [(name, *_layout(name, column)) for name, column in columns.items()]
    head = msgspec.json.encode(layout)
    rows = [_cells(column) for column in columns.values()]
    # Each record is hashed with the layout, so that no two layouts share a record's hash; the
    # sorted hashes are then hashed as one, so that the order of records does not matter.
    start = hashlib.blake2b(head, digest_size=_SIZE, key=key, person=b"tacit.record")
    hashes = []
    for cells in zip(*rows, strict=True):
        record = start.copy()
        record.update(b"".join(cells))
        hashes.append(record.digest())
    whole = hashlib.blake2b(head, digest_size=_SIZE, key=key, person=b"tacit.content")
    whole.update(count.to_bytes(8, "big") + b"".join(sorted(hashes)))
    return DatasetId(public, whole.hexdigest())


def check_key(key: bytes) -> None:
    """Refuse a key that is not 32 bytes: a short one can be guessed."""
    if not len(key) == KEY_BYTES:
        raise DataError(
            f"the ledger's key has {len(key)} bytes; it must have {KEY_BYTES}: restore ledger.key"
            " from a copy"
        )


def _common_length(records: Mapping[str, np.ndarray]) -> int:
    lengths = {name: len(np.atleast_1d(column)) for name, column in records.items()}
    if len(set(lengths.values())) != 1 or not min(lengths.values()) > 0:
        raise DataError(
            f"columns of lengths {lengths}; a data set has columns of one length and at least one"
            " record: check the source"
        )
    return next(iter(lengths.values()))


def _layout(name: str, column: np.ndarray) -> tuple[str, list[int]]:
    """How the bytes of a cell are to be read, so that equal bytes mean equal values."""
    if column.ndim < 1 or column.dtype.kind not in "biufMmUO":
        raise DataError(
            f'column "{name}" has type {column.dtype} and shape {column.shape}; a fingerprint is'
            " made of numbers, times and texts, one cell a record: convert it"
        )
    kind = column.dtype.kind
    meaning = {"U": "text", "O": "text", "M": column.dtype.str[1:], "m": column.dtype.str[1:]}
    return meaning.get(kind, kind), list(column.shape[1:])


def _cells(column: np.ndarray) -> list[bytes]:
    """One self-delimiting byte string a record."""
    count, kind = len(column), column.dtype.kind
    flat = column.reshape(count, -1)
    if kind in "UO":
        return [b"".join(map(_text, row)) for row in flat.tolist()]
    if kind == "f":
        # One zero and one NaN: readers of files differ in sign and payload, not in meaning.
        flat = np.where(np.isnan(flat), np.nan, flat.astype("<f8") + 0.0)
    wide = {"b": "u1", "i": "<i8", "u": "<u8", "f": "<f8"}.get(kind, column.dtype.newbyteorder("<"))
    flat = np.ascontiguousarray(flat, dtype=wide)
    raw = flat.tobytes()
    width = flat.shape[1] * flat.itemsize
    return [raw[a:b] for a, b in pairwise(accumulate([0] + [width] * count))]


def _text(value: Any) -> bytes:
    """Length first, so that "ab", "c" is not "a", "bc"; a missing value is not an empty text."""
    if value is None:
        return b"\xff" * 8
    if not isinstance(value, str):
        raise DataError(
            f"a column of texts holds a {type(value).__name__}; convert the column to numbers or to"
            " texts"
        )
    raw = value.encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "big") + raw
