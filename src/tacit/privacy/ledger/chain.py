"""The ledger's data structure: a chain of entries, each with a keyed hash of its predecessor.

    hash_0 = H(format, created, salt)        hash_n = H(hash_{n-1}, entry n)
    head   = (n, hash_n, H(salt, n, hash_n))

H is the hash function BLAKE2b with the party's secret key. The head contains the number n of
entries and the hash of the last one. Without the key, an entry cannot be changed, inserted, moved
or removed without detection, and no valid head can be made for a truncated chain.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from tacit.errors import DataError
from tacit.support.type_info import prepare

FORMAT = 1
Kind = Literal["budget", "link", "records", "plan", "charge", "reply", "close"]
OLD_KINDS = {"ceiling": "budget"}
OLD_ADJACENCY = {"substitute": "replace-one", "add-or-remove": "add-or-remove-one"}
"""Names of adjacencies in ledgers written by version 0.1, with their present names."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a ledger.

    The random salt differs between ledgers with the same key, so that an entry copied from another
    ledger is detected.
    """

    format: int
    created: str
    salt: bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the ledger. Fields that a kind of entry does not need are empty.

    `body` is JSON, and its contents depend on the kind of the entry. A plan or a charge has its
    events, a budget its ε, δ, unit and adjacency, and a link the id of the older data set. An entry
    for the record hashes of a data set has the number of hashes and a keyed hash of all of them. A
    reply has its length and its keyed hash.
    """

    seq: int
    time: str
    kind: Kind | Literal["ceiling"]
    dataset: str
    run: str = ""
    request: str = ""
    attempt: int = 0
    unit: str = ""
    adjacency: str = ""
    purpose: str = ""
    body: str
    previous: bytes
    hash: bytes = b""


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of entries of a ledger and hash of the last one, with an authentication code."""

    salt: bytes
    count: int
    hash: bytes
    code: bytes


FIELDS = Entry.__struct_fields__
COLUMNS = tuple({"adjacency": "relation"}.get(name, name) for name in FIELDS)
"""Columns of the entries table, in the order of `FIELDS`. The column of `adjacency` is still called
"relation", as in version 0.1.
"""
_HASHED = FIELDS[:-1]


def _hash(key: bytes, use: bytes, *fields: str | int | bytes) -> bytes:
    """Return a keyed hash of the fields."""
    # Each field is preceded by its type and length, so that the encoding is unique.
    state = hashlib.blake2b(key=key, person=use, digest_size=32)
    for field in fields:
        raw = field if isinstance(field, bytes) else str(field).encode()
        tag = {bytes: b"b", int: b"i", str: b"s"}[type(field)]
        state.update(tag + len(raw).to_bytes(8, "big") + raw)
    return state.digest()


def first_hash(key: bytes, header: Header) -> bytes:
    """Return the hash to which the first entry refers; it is computed from the header."""
    return _hash(key, b"tacit.header", header.format, header.created, header.salt)


def sealed(key: bytes, entry: Entry) -> Entry:
    """Return a copy of the entry that contains its hash."""
    fields = (getattr(entry, name) for name in _HASHED)
    return msgspec.structs.replace(entry, hash=_hash(key, b"tacit.entry", *fields))


def reply_hash(key: bytes, run: str, request: str, body: bytes) -> str:
    """Return a keyed hash of a stored reply. An entry of the ledger contains this hash."""
    return _hash(key, b"tacit.reply", run, request, body).hex()


def records_hash(key: bytes, dataset: str, elements: bytes, columns: bytes) -> str:
    """Return a keyed hash of the record hashes of a data set. An entry of the ledger contains
    it.
    """
    return _hash(key, b"tacit.records", dataset, elements, columns).hex()


def noise_code(key: bytes, charge: tuple[str, str, int], content: str, secret: bytes) -> bytes:
    """Return an authentication code of a noise secret.

    It is valid only for one charge, given as (run, request, attempt), and one content of the
    request.
    """
    return _hash(key, b"tacit.noise", *charge, content, secret)


def noise_key(secret: bytes, run: str, request: str, content: str) -> bytes:
    """Return the noise key of one reply.

    The same secret gives an unrelated key for any other request or content of a request.
    """
    return _hash(secret, b"tacit.draw", run, request, content)


def make_head(key: bytes, salt: bytes, count: int, last: bytes) -> Head:
    """Return the head of a chain of `count` entries whose last hash is `last`."""
    code = _hash(key, b"tacit.head", salt, count, last)
    return Head(salt=salt, count=count, hash=last, code=code)


def check_head(key: bytes, salt: bytes, head: Head, where: str) -> None:
    """Raise an error if a head was not made with this key for this ledger."""
    made = make_head(key, salt, head.count, head.hash)
    if not (head.salt == salt and hmac.compare_digest(made.code, head.code)):
        raise DataError(f"{where} was not written with this ledger's key; {ADVICE}")


def follow(key: bytes, rows: Iterable[tuple], count: int, last: bytes) -> Iterator[Entry]:
    """Yield the entries in `rows`, after checking that each follows its predecessor.

    `count` and `last` are the number and the hash of the entry before the first row. A misplaced or
    changed row raises an error. Names that version 0.1 used for kinds and adjacencies are converted
    after the check.
    """
    for row in rows:
        entry = read_row(row, count + 1)
        problem = fault(key, entry, count, last)
        if problem:
            raise DataError(f"ledger {problem}; {ADVICE}")
        count, last = entry.seq, entry.hash
        yield modern(entry)


def modern(entry: Entry) -> Entry:
    """Convert the names that version 0.1 used for kinds of entries and for adjacencies."""
    adjacency = OLD_ADJACENCY.get(entry.adjacency, entry.adjacency)
    if entry.kind not in OLD_KINDS:
        return msgspec.structs.replace(entry, adjacency=adjacency)
    budget = msgspec.json.decode(entry.body)
    old = budget.pop("relation", None)
    budget["adjacency"] = OLD_ADJACENCY.get(old, old)
    return msgspec.structs.replace(
        entry,
        kind=OLD_KINDS[entry.kind],
        adjacency=adjacency,
        body=msgspec.json.encode(budget).decode(),
    )


def read_row(row: tuple, place: int) -> Entry:
    """Convert a row of the database to an entry; raise an error if a type is wrong."""
    try:
        return msgspec.convert(dict(zip(FIELDS, row, strict=True)), prepare(Entry))
    except msgspec.ValidationError as error:
        raise DataError(f"ledger entry {place} cannot be read ({error}); {ADVICE}") from error


def fault(key: bytes, entry: Entry, count: int, last: bytes) -> str | None:
    """Return the reason why `entry` cannot be the next entry of the chain; None if `entry` is
    valid.

    `count` and `last` are the number and the hash of the entry before it.
    """
    if entry.seq != count + 1:
        return f"entry {count + 1} is missing: the next one is {entry.seq}"
    if not hmac.compare_digest(sealed(key, entry).hash, entry.hash):
        return f"entry {entry.seq} was changed: its hash does not match its content"
    if not hmac.compare_digest(entry.previous, last):
        return f"entry {entry.seq} does not follow entry {count}: entries were moved or replaced"
    return None


ADVICE = (
    "nothing is charged or released: find out who changed it (tacit ledger verify), then restore"
    " the ledger from a copy"
)
"""Advice in errors about a damaged ledger, which is never repaired: a repair could understate what
was spent.
"""
