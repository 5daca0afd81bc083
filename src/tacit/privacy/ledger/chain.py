"""The ledger's data structure: entries in a keyed hash chain, and the head that ends it.

    hash_0 = H(format, created, salt)        hash_n = H(hash_{n-1}, entry n)
    head   = (n, hash_n, H(salt, n, hash_n))

H is BLAKE2b keyed with the party's key, with a personalisation for each of the three uses. Without
the key, an entry cannot be edited, inserted, moved or removed undetected, and no valid head can be
made for a truncated chain.
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
    """Identity of the ledger; its salt reveals entries of another ledger with the same key."""

    format: int
    created: str
    salt: bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the ledger. Fields that a kind does not need are empty.

    `body` is JSON: the events of a plan or of a charge, the numbers of a budget, the older data set
    of a link, the keyed hash and the number of a data set's record hashes, the keyed hash and the
    length of a reply.
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
    """Number of entries and hash of the last one, with an authentication code."""

    salt: bytes
    count: int
    hash: bytes
    code: bytes


FIELDS = Entry.__struct_fields__
COLUMNS = tuple({"adjacency": "relation"}.get(name, name) for name in FIELDS)
"""Columns of the entries table, in the order of `FIELDS`; `adjacency` has its name of version
0.1.
"""
_HASHED = FIELDS[:-1]


def _hash(key: bytes, use: bytes, *fields: str | int | bytes) -> bytes:
    """Return a keyed hash of fields, each prefixed by type and length so that encodings are
    unique.
    """
    state = hashlib.blake2b(key=key, person=use, digest_size=32)
    for field in fields:
        raw = field if isinstance(field, bytes) else str(field).encode()
        tag = {bytes: b"b", int: b"i", str: b"s"}[type(field)]
        state.update(tag + len(raw).to_bytes(8, "big") + raw)
    return state.digest()


def first_hash(key: bytes, header: Header) -> bytes:
    """Return the hash that precedes the first entry."""
    return _hash(key, b"tacit.header", header.format, header.created, header.salt)


def sealed(key: bytes, entry: Entry) -> Entry:
    """Return the entry with its hash."""
    fields = (getattr(entry, name) for name in _HASHED)
    return msgspec.structs.replace(entry, hash=_hash(key, b"tacit.entry", *fields))


def reply_hash(key: bytes, run: str, request: str, body: bytes) -> str:
    """Return the digest of a stored reply, which is kept in the chain."""
    return _hash(key, b"tacit.reply", run, request, body).hex()


def records_hash(key: bytes, dataset: str, elements: bytes, columns: bytes) -> str:
    """Return the digest of a data set's record hashes, which is kept in the chain."""
    return _hash(key, b"tacit.records", dataset, elements, columns).hex()


def noise_code(key: bytes, charge: tuple[str, str, int], content: str, secret: bytes) -> bytes:
    """Return a code that binds a noise secret to its charge (run, request, attempt) and request
    content.
    """
    return _hash(key, b"tacit.noise", *charge, content, secret)


def noise_key(secret: bytes, run: str, request: str, content: str) -> bytes:
    """Return the noise key of one reply. Any other request or request content gets unrelated
    noise.
    """
    return _hash(secret, b"tacit.draw", run, request, content)


def make_head(key: bytes, salt: bytes, count: int, last: bytes) -> Head:
    """Return the head of a chain of `count` entries whose last hash is `last`."""
    code = _hash(key, b"tacit.head", salt, count, last)
    return Head(salt=salt, count=count, hash=last, code=code)


def check_head(key: bytes, salt: bytes, head: Head, where: str) -> None:
    """Refuse a head that was not made with this key for this ledger."""
    made = make_head(key, salt, head.count, head.hash)
    if not (head.salt == salt and hmac.compare_digest(made.code, head.code)):
        raise DataError(f"{where} was not written by this ledger's key; {ADVICE}")


def follow(key: bytes, rows: Iterable[tuple], count: int, last: bytes) -> Iterator[Entry]:
    """Yield the entries in `rows`, after checking that each follows its predecessor.

    `count` and `last` give the end of the chain so far. A misplaced or changed row is refused.
    Names of version 0.1 are hashed as written and then converted.
    """
    for row in rows:
        entry = read_row(row, count + 1)
        problem = fault(key, entry, count, last)
        if problem:
            raise DataError(f"ledger {problem}; {ADVICE}")
        count, last = entry.seq, entry.hash
        yield modern(entry)


def modern(entry: Entry) -> Entry:
    """Convert the names of version 0.1 in a checked entry."""
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
    """Convert a row to an entry; refuse it if the types do not match."""
    try:
        return msgspec.convert(dict(zip(FIELDS, row, strict=True)), prepare(Entry))
    except msgspec.ValidationError as error:
        raise DataError(f"ledger entry {place} cannot be read ({error}); {ADVICE}") from error


def fault(key: bytes, entry: Entry, count: int, last: bytes) -> str | None:
    """Describe why `entry` cannot follow entry `count` with hash `last`, or None."""
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
