"""What the ledger consists of: entries in a keyed hash chain, and the head that ends it.

    hash_0 = H(format, created, salt)        hash_n = H(hash_{n-1}, entry n)
    head   = (n, hash_n, H(salt, n, hash_n))

H is BLAKE2b keyed with the party's key, with a personalisation for each of the three uses. Without
the key no entry can be edited, inserted, moved or taken out of the middle unnoticed, and no head
can be made for a chain that was cut short.
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
Kind = Literal["budget", "link", "charge", "reply"]
OLD_KINDS = {"ceiling": "budget"}
OLD_ADJACENCY = {"substitute": "replace-one", "add-or-remove": "add-or-remove-one"}
"""Words of ledgers that version 0.1 has written."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Which ledger this is; the salt keeps entries of another ledger with the same key out."""

    format: int
    created: str
    salt: bytes


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the ledger. Fields that a kind does not need are empty.

    `body` is JSON: the events of a charge, the numbers of a budget, the older data set of a link,
    the keyed hash and the length of a reply.
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
    """How many entries there are and the hash of the last one, under a code of authentication."""

    salt: bytes
    count: int
    hash: bytes
    code: bytes


FIELDS = Entry.__struct_fields__
COLUMNS = tuple({"adjacency": "relation"}.get(name, name) for name in FIELDS)
"""Of the table of entries, in the order of `FIELDS`; one kept the name that 0.1 gave it."""
_HASHED = FIELDS[:-1]


def _hash(key: bytes, use: bytes, *fields: str | int | bytes) -> bytes:
    """Keyed hash of fields, each after its type and length: no two lists share an encoding."""
    state = hashlib.blake2b(key=key, person=use, digest_size=32)
    for field in fields:
        raw = field if isinstance(field, bytes) else str(field).encode()
        tag = {bytes: b"b", int: b"i", str: b"s"}[type(field)]
        state.update(tag + len(raw).to_bytes(8, "big") + raw)
    return state.digest()


def first_hash(key: bytes, header: Header) -> bytes:
    """What the first entry follows."""
    return _hash(key, b"tacit.header", header.format, header.created, header.salt)


def sealed(key: bytes, entry: Entry) -> Entry:
    """The entry with its hash."""
    fields = (getattr(entry, name) for name in _HASHED)
    return msgspec.structs.replace(entry, hash=_hash(key, b"tacit.entry", *fields))


def reply_hash(key: bytes, run: str, request: str, body: bytes) -> str:
    """What the chain remembers of a stored reply."""
    return _hash(key, b"tacit.reply", run, request, body).hex()


def noise_code(key: bytes, charge: tuple[str, str, int], content: str, secret: bytes) -> bytes:
    """Binds a stored noise secret to its charge (run, request, attempt) and to what was asked."""
    return _hash(key, b"tacit.noise", *charge, content, secret)


def noise_key(secret: bytes, run: str, request: str, content: str) -> bytes:
    """The noise key of one answer. Another request or content has unrelated noise."""
    return _hash(secret, b"tacit.draw", run, request, content)


def make_head(key: bytes, salt: bytes, count: int, last: bytes) -> Head:
    """The head of a chain of `count` entries that ends with `last`."""
    code = _hash(key, b"tacit.head", salt, count, last)
    return Head(salt=salt, count=count, hash=last, code=code)


def check_head(key: bytes, salt: bytes, head: Head, where: str) -> None:
    """Refuse a head that was not made with this key for this ledger."""
    made = make_head(key, salt, head.count, head.hash)
    if not (head.salt == salt and hmac.compare_digest(made.code, head.code)):
        raise DataError(f"{where} was not written by this ledger's key; {ADVICE}")


def follow(key: bytes, rows: Iterable[tuple], count: int, last: bytes) -> Iterator[Entry]:
    """The entries of `rows`, each checked to be the one that follows what came before.

    `count` and `last` say where the chain stood; a row out of place or changed is refused. Words
    of version 0.1 are hashed as they were written and then read as those of today.
    """
    for row in rows:
        entry = read_row(row, count + 1)
        problem = fault(key, entry, count, last)
        if problem:
            raise DataError(f"ledger {problem}; {ADVICE}")
        count, last = entry.seq, entry.hash
        yield modern(entry)


def modern(entry: Entry) -> Entry:
    """A checked entry in today's words."""
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
    """A row as an entry, or a refusal if it does not have an entry's types."""
    try:
        return msgspec.convert(dict(zip(FIELDS, row, strict=True)), prepare(Entry))
    except msgspec.ValidationError as error:
        raise DataError(f"ledger entry {place} cannot be read ({error}); {ADVICE}") from error


def fault(key: bytes, entry: Entry, count: int, last: bytes) -> str | None:
    """What is wrong with `entry` as the successor of entry `count`, whose hash is `last`."""
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
"""A damaged ledger is never repaired: a repaired one would show less than was spent."""
