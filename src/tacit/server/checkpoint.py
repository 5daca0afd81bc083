"""The server's state on disk: one SQLite file, one transaction per update.

A crash at any moment leaves the last committed state intact. Only changes are written. They can be
found quickly, because the state is immutable and an unchanged part is therefore the same object as
before. A file that SQLite or the decoder cannot read, or whose checksums do not match, raises an
error and is not repaired.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from tacit.arrays import Natural
from tacit.errors import DataError
from tacit.server.messages import Reply, Stage, pack_natural, unpack_natural
from tacit.server.state import Factor, Log, Open, Published, ServerState
from tacit.support.storage import writing

FORMAT = 4
"""Format of the file. Version 0.1 wrote format 0, with other contents."""
OTHER_RUN = (
    "{path} belongs to another configuration, other records or another ledger; resume with the "
    "config.toml, the records and the ledger of that run, or choose another --out"
)
_SCHEMA = """
CREATE TABLE scalars (id INTEGER PRIMARY KEY CHECK (id = 0), body BLOB NOT NULL);
CREATE TABLE factors (party TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE visits (party TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE posteriors (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE requests (id TEXT PRIMARY KEY, place INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE replies (party TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE arrays (name TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE memories (party TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE secret (id INTEGER PRIMARY KEY CHECK (id = 0), body BLOB NOT NULL);
CREATE TABLE log (place INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL);
"""
PAGE_BYTES = 32768
LOG_PAGES = 32
"""Number of pages (1 MB) in SQLite's write-ahead log after which it is copied into the file."""
_BULKY = (
    "q", "factors", "open", "issued", "arrived", "previous", "total", "memory", "public",
)  # fmt: skip
_SCALARS = tuple(f.name for f in fields(ServerState) if f.name not in _BULKY)
_NAMED = {-1: "q", -2: "previous", -3: "total", -6: "public"}
"""Attributes of `ServerState` in the table `posteriors`, by row number."""
Kept = tuple[Natural, int | None, Natural | None]
"""A party's memory, the visit that produced it, and the memory before that visit."""
_MALFORMED = (KeyError, ValueError, TypeError, AttributeError)


class Checkpoint:
    """The durable copy of a `ServerState` and of the log of a run."""

    def __init__(self, path: Path, *, digest: str) -> None:
        """Open or create the file; `digest` identifies the configuration to which the state
        belongs.
        """
        self.path = path
        try:
            if not path.exists():
                with writing(path):
                    _create(path, digest)
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            # By default SQLite lets the log grow to 1,000 pages, 32 MB.
            self._db.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
            self._db.execute(f"PRAGMA journal_size_limit={LOG_PAGES * PAGE_BYTES}")
            (sound,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if sound != "ok":
                raise sqlite3.DatabaseError(sound)
            (written_as,) = self._db.execute("PRAGMA user_version").fetchone()
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables:
                raise sqlite3.DatabaseError("it is empty")
            if written_as != FORMAT:
                self.close()
                raise DataError(
                    f"{path} has checkpoint format {written_as}, but this version of tacit reads "
                    f"{FORMAT}; finish that run with the version that started it, or start again "
                    "with another --out"
                )
            found = self._db.execute("SELECT digest FROM run").fetchone()
        except sqlite3.DatabaseError as error:
            raise self._unreadable(error) from error
        if found is None:
            self.close()
            raise self._unreadable(ValueError("no configuration digest"))
        if found[0] != digest:
            self.close()
            raise DataError(OTHER_RUN.format(path=path))
        self._saved: ServerState | None = None

    def save(self, state: ServerState, log: Log = ()) -> None:
        """Write the changes since the last save, and the log, in one transaction."""
        with writing(self.path), _transaction(self._db):
            self._put(state, log)
        self._saved = state

    def adopt(self, digest: str, state: ServerState | None, log: Log = ()) -> None:
        """Assign the checkpoint to another configuration and save the state, in one transaction."""
        with writing(self.path), _transaction(self._db):
            self._db.execute("UPDATE run SET digest = ?", (digest,))
            if state is not None:
                self._put(state, log)
        self._saved = state

    def _put(self, state: ServerState, log: Log) -> None:
        old, db = self._saved, self._db
        self._put_posteriors(state, old)
        self._put_memory(state, old)
        self._put_factors(state, old)
        if old is None or old.open is not state.open:
            before = {} if old is None else old.open
            gone = [(key,) for key in before if key not in state.open]
            db.executemany("DELETE FROM requests WHERE id = ?", gone)
            rows = [
                (key, int(key[1:]), _pack_request(value))
                for key, value in state.open.items()
                if before.get(key) is not value
            ]
            db.executemany("REPLACE INTO requests VALUES (?, ?, ?)", rows)
        self._put_replies(state, old)
        values = {name: getattr(state, name) for name in _SCALARS}
        scalars = _pack(values | {"remembered": list(state.memory or {})})
        db.execute("REPLACE INTO scalars VALUES (0, ?)", (scalars,))
        db.executemany("INSERT INTO log (body) VALUES (?)", [(_pack(line),) for line in log])

    def load(self) -> tuple[ServerState, Log] | None:
        """Return the last committed state and the full log, or None if nothing was saved yet."""
        try:
            return self._load()
        except (sqlite3.DatabaseError, msgspec.MsgspecError, *_MALFORMED) as error:
            raise self._unreadable(error) from error

    def keep(self, memories: dict[str, Kept]) -> None:
        """Write the method memory of each of these parties. Call this before the server uses the
        replies that were computed together with these memories.
        """
        rows = [
            (name, _keyed(name, [pack_natural(memory), visit, earlier and pack_natural(earlier)]))
            for name, (memory, visit, earlier) in memories.items()
        ]
        with writing(self.path), _transaction(self._db):
            self._db.executemany("REPLACE INTO memories VALUES (?, ?)", rows)

    def kept(self) -> dict[str, Kept]:
        """Return the method memory that was written last for each party."""
        try:
            rows = self._db.execute("SELECT party, body FROM memories")
            return {party: _kept(_unkeyed(party, body)) for party, body in rows}
        except (sqlite3.DatabaseError, msgspec.MsgspecError, *_MALFORMED) as error:
            raise self._unreadable(error) from error

    def secret(self) -> tuple[int, ...]:
        """Return 256 random bits that were drawn when the file was created and are the same in
        every copy.
        """
        try:
            (body,) = self._db.execute("SELECT body FROM secret").fetchone()
        except (sqlite3.DatabaseError, *_MALFORMED) as error:
            raise self._unreadable(error) from error
        return (int.from_bytes(body, "big"),)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _load(self) -> tuple[ServerState, Log] | None:
        db = self._db
        scalars = db.execute("SELECT body FROM scalars").fetchone()
        if scalars is None:
            return None
        named: dict[int, Natural] = {}
        issued: dict[int, Published] = {}
        for number, raw in db.execute("SELECT number, body FROM posteriors"):
            body = _unkeyed(number, raw)
            if number < 0:
                named[number] = unpack_natural(body)
            else:
                issued[number] = Published(*(unpack_natural(part) for part in body))
        memory: Natural = {}
        for name, raw in db.execute("SELECT name, body FROM arrays"):
            memory |= unpack_natural(_unkeyed(name, raw))
        visits = {p: _unkeyed(p, b) for p, b in db.execute("SELECT party, body FROM visits")}
        factors = {}
        for party, body in db.execute("SELECT party, body FROM factors ORDER BY rowid"):
            version, count = visits[party]
            factors[party] = Factor(unpack_natural(_unkeyed(party, body)), version, count)
        requests = []
        for (body,) in db.execute("SELECT body FROM requests ORDER BY place"):
            *parts, stage, factor = _unpack(body)
            factor = None if factor is None else unpack_natural(factor)
            requests.append(Open(*parts, stage=Stage(*stage), factor=factor))
        replies = {}
        for party, body in db.execute("SELECT party, body FROM replies ORDER BY rowid"):
            key, version, released, loss = _unkeyed(party, body)
            replies[party] = Reply(key, party, version, unpack_natural(released), loss)
        values: dict[str, Any] = _unpack(scalars[0])
        values["waiting"] = tuple(values["waiting"])
        memory = {name: memory[name] for name in values.pop("remembered")}
        for name in ("heard", "absent", "left"):
            values[name] = frozenset(values[name])
        state = ServerState(
            q=named[-1],
            previous=named.get(-2),
            total=named.get(-3),
            memory=memory or None,
            public=named[-6],
            issued=issued,
            factors=factors,
            open={request.id: request for request in requests},
            arrived=replies,
            **values,
        )
        log = tuple(_unpack(body) for (body,) in db.execute("SELECT body FROM log ORDER BY place"))
        self._saved = replace(state)
        return state, log

    def _put_posteriors(self, state: ServerState, old: ServerState | None) -> None:
        now = _posteriors(state)
        before = {} if old is None else _posteriors(old)
        for number in before.keys() - now.keys():
            self._db.execute("DELETE FROM posteriors WHERE number = ?", (number,))
        for number, natural in now.items():
            if before.get(number) is not natural:
                packed = (
                    [pack_natural(part) for part in natural]
                    if isinstance(natural, Published)
                    else pack_natural(natural)
                )
                row = (number, _keyed(number, packed))
                self._db.execute("REPLACE INTO posteriors VALUES (?, ?)", row)

    def _put_memory(self, state: ServerState, old: ServerState | None) -> None:
        """Write the arrays of the server's memory that have changed, one row each."""
        now, before = state.memory or {}, {} if old is None else old.memory or {}
        if now is before:
            return
        gone = [(name,) for name in before if name not in now]
        self._db.executemany("DELETE FROM arrays WHERE name = ?", gone)
        for name, array in now.items():
            if before.get(name) is not array:
                row = (name, _keyed(name, pack_natural({name: array})))
                self._db.execute("REPLACE INTO arrays VALUES (?, ?)", row)

    def _put_factors(self, state: ServerState, old: ServerState | None) -> None:
        """Write factors, versions and visit counts that have changed."""
        before = {} if old is None else old.factors
        for party, factor in state.factors.items():
            known = before.get(party)
            if known is factor:
                continue
            counts = _keyed(party, [factor.version, factor.visits])
            self._db.execute("REPLACE INTO visits VALUES (?, ?)", (party, counts))
            if known is None or known.natural is not factor.natural:
                body = _keyed(party, pack_natural(factor.natural))
                self._db.execute("REPLACE INTO factors VALUES (?, ?)", (party, body))

    def _put_replies(self, state: ServerState, old: ServerState | None) -> None:
        before = {} if old is None else old.arrived
        if before is state.arrived:
            return
        gone = [(party,) for party in before if party not in state.arrived]
        self._db.executemany("DELETE FROM replies WHERE party = ?", gone)
        for party, reply in state.arrived.items():
            if before.get(party) is not reply:
                parts = [reply.id, reply.version, pack_natural(reply.released), reply.loss]
                row = (party, _keyed(party, parts))
                self._db.execute("REPLACE INTO replies VALUES (?, ?)", row)

    def _unreadable(self, error: Exception) -> DataError:
        reason = " ".join(str(error).split())
        return DataError(
            f"{self.path} cannot be read ({reason}); restore it from a copy or start again with "
            "another --out"
        )


def configuration_of(path: Path) -> str | None:
    """Return the digest of the configuration of a checkpoint; None if there is no checkpoint."""
    if not path.exists():
        return None
    try:
        db = sqlite3.connect(path, isolation_level=None)
        try:
            found = db.execute("SELECT digest FROM run").fetchone()
        finally:
            db.close()
    except sqlite3.DatabaseError:
        return None  # opening the checkpoint reports the fault
    return None if found is None else str(found[0])


def _pack_request(request: Open) -> bytes:
    factor = None if request.factor is None else pack_natural(request.factor)
    return _pack([*request[:-2], list(request.stage), factor])


def _kept(body: Any) -> Kept:
    memory, visit, earlier = body
    return unpack_natural(memory), visit, earlier and unpack_natural(earlier)


def _posteriors(state: ServerState) -> dict[int, Natural | Published]:
    """Return the contents of the table `posteriors`, by row number."""
    named: dict[int, Any] = {number: getattr(state, name) for number, name in _NAMED.items()}
    return {number: q for number, q in named.items() if q is not None} | state.issued


def _create(path: Path, digest: str) -> None:
    """Create an empty checkpoint atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    db = sqlite3.connect(part, isolation_level=None)
    db.execute(f"PRAGMA user_version={FORMAT}")
    db.execute(f"PRAGMA page_size={PAGE_BYTES}")  # factors are large: fewer pages per factor
    db.executescript(_SCHEMA + "CREATE TABLE run (digest TEXT NOT NULL);")
    db.execute("INSERT INTO run VALUES (?)", (digest,))
    db.execute("INSERT INTO secret VALUES (0, ?)", (secrets.token_bytes(32),))
    db.close()
    os.replace(part, path)  # noqa: PTH105 - atomic on every platform


class _transaction:  # noqa: N801 - reads as a statement
    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.db.execute("COMMIT")
        elif self.db.in_transaction:  # a full disk may have ended the transaction
            self.db.execute("ROLLBACK")


def _pack(value: Any) -> bytes:
    """Return a CRC-32 checksum of 4 bytes, followed by the value encoded with MessagePack.

    The checksum is needed because SQLite does not detect changed bytes.
    """
    body = msgspec.msgpack.encode(value)
    return zlib.crc32(body).to_bytes(4, "big") + body


def _unpack(raw: bytes) -> Any:
    if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
        raise ValueError("checksum mismatch")
    return msgspec.msgpack.decode(raw[4:])


def _keyed(key: Any, value: Any) -> bytes:
    """Pack a value together with the key of its row, so that one checksum covers both."""
    return _pack([key, value])


def _unkeyed(key: Any, raw: bytes) -> Any:
    own, value = _unpack(raw)
    if own != key:
        raise ValueError(f"the row with key {key!r} has the content of row {own!r}")
    return value
