"""The ledger on disk: one SQLite file, its key and a copy of its head.

    ledger.sqlite   header, entries, head (written with each batch), stored replies, noise secrets
                    of charges without a stored reply, and keyed hashes of the records of each data
                    set; mode 0600
    ledger.key      32 secret bytes
    ledger.head     a copy of the head, written after the commit and before `charge` returns

Why two heads: the head inside the database shows if the last entries were deleted. The head outside
shows if the whole database was restored from an older copy. It is written after the commit. A crash
before it is written is harmless, because `charge` has not returned and nothing has been released.

SQLite settings: with journal_mode = DELETE, a commit removes the journal. Only synchronous = EXTRA
then syncs the directory. WAL mode is not used, because SQLite silently truncates a damaged log at
the first bad frame, and because a closed ledger should be one file that can be copied.

How secrets are erased: `secure_delete` overwrites a deleted row with zeros. The journal still
contains the old page and is therefore overwritten too.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tacit.errors import ConfigError, DataError
from tacit.privacy.ledger.chain import (
    ADVICE,
    COLUMNS,
    FIELDS,
    FORMAT,
    Entry,
    Head,
    Header,
    check_head,
    first_hash,
    make_head,
)
from tacit.privacy.ledger.fingerprint import KEY_BYTES
from tacit.privacy.ledger.key import load_key
from tacit.support.storage import UNUSABLE, cannot_write, is_storage_trouble, write_durably
from tacit.support.type_info import prepare

BUSY_TIMEOUT_S = 60.0
_SCHEMA = (
    """CREATE TABLE header (id INTEGER PRIMARY KEY CHECK (id = 0), format INTEGER NOT NULL,
       created TEXT NOT NULL, salt BLOB NOT NULL)""",
    """CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 0), count INTEGER NOT NULL,
       hash BLOB NOT NULL, code BLOB NOT NULL)""",
    """CREATE TABLE entries (seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL,
       dataset TEXT NOT NULL, run TEXT NOT NULL, request TEXT NOT NULL, attempt INTEGER NOT NULL,
       unit TEXT NOT NULL, relation TEXT NOT NULL, purpose TEXT NOT NULL, body TEXT NOT NULL,
       previous BLOB NOT NULL, hash BLOB NOT NULL)""",
    "CREATE TABLE replies (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    """CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
       BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER entries_are_never_deleted BEFORE DELETE ON entries
       BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
)
_NOISE_SECRETS = """CREATE TABLE noise_secrets (seq INTEGER PRIMARY KEY, content TEXT NOT NULL,
       secret BLOB NOT NULL, code BLOB NOT NULL)"""
_RECORDS = """CREATE TABLE records (seq INTEGER PRIMARY KEY, elements BLOB NOT NULL,
       columns BLOB NOT NULL)"""
"""Ledgers of earlier versions lack this table, or this one and `noise_secrets`. Opening such a
ledger adds them.
"""
_ADDED = (_NOISE_SECRETS, _RECORDS)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_HEAD = ("count", "hash", "code")
_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
_PAGE = f"SELECT {', '.join(COLUMNS)} FROM entries WHERE seq > ? ORDER BY seq LIMIT 1000"
_INSERT = f"INSERT INTO entries ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


class NoiseSecret(NamedTuple):
    """Secret from which the noise of a charged reply is drawn; it is stored until the reply is
    stored.
    """

    seq: int
    """Number of the charge's entry."""
    content: str
    secret: bytes
    code: bytes


class Store:
    """Reads and writes the ledger's files, without interpreting the entries."""

    def __init__(self, path: Path) -> None:
        """Connect to an existing file; `create_store` creates one."""
        _check_name(path)
        self.path = path
        self.key_path, self.head_path = path.with_suffix(".key"), path.with_suffix(".head")
        if not path.exists():
            _refuse_remains(path)
            raise ConfigError(
                f"there is no ledger at {path}; create one by setting a budget: tacit ledger budget"
            )
        mode = stat.S_IMODE(path.stat().st_mode)
        if os.name == "posix" and mode & _OTHERS:
            raise DataError(
                f"{path} has mode {mode:04o}; it holds noise secrets that other users can"
                f" read: chmod 600 {path}"
            )
        self._holds_secrets = False
        """True if the present transaction's journal may hold a noise secret."""
        with self.errors():
            self.db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                isolation_level=None,
                timeout=BUSY_TIMEOUT_S,
                check_same_thread=False,  # the ledger has its own lock
            )
            try:
                self._settle()
            except BaseException:
                self.db.close()
                raise

    def _settle(self) -> None:
        pragmas = ("synchronous=EXTRA", "fullfsync=ON", "trusted_schema=OFF")
        for pragma in (*pragmas, "secure_delete=ON", "temp_store=MEMORY"):
            self.db.execute(f"PRAGMA {pragma}")
        (mode,) = self.db.execute("PRAGMA journal_mode=DELETE").fetchone()
        if mode != "delete":
            raise DataError(
                f"{self.path} cannot be stored durably here (journal mode {mode}); move the state"
                " directory to a local disk"
            )

    def unlock(self) -> None:
        """Read the key and the header."""
        self.key = load_key(self.key_path)
        with self.errors():
            row = self.db.execute("SELECT format, created, salt FROM header").fetchone()
        try:
            self.header = msgspec.convert(
                dict(zip(Header.__struct_fields__, row or (), strict=True)), prepare(Header)
            )
        except (msgspec.ValidationError, ValueError) as error:
            raise DataError(f"{self.path} has no readable header ({error}); {ADVICE}") from error
        if self.header.format != FORMAT:
            raise DataError(
                f"{self.path} has format {self.header.format}; this version reads {FORMAT}: use the"
                " version of tacit that wrote it"
            )
        self.first = first_hash(self.key, self.header)

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Lock the ledger for other writers. All changes are committed together, or undone after an
        error.
        """
        with self.errors():
            self._holds_secrets = False
            try:
                self.db.execute("BEGIN IMMEDIATE")
                yield
                with self._overwritten_journal():
                    self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    @contextmanager
    def _overwritten_journal(self) -> Iterator[None]:
        """Overwrite the journal with zeros after the commit, if it contains noise secrets."""
        path = self.path.with_name(self.path.name + "-journal")
        if not (self._holds_secrets and os.name == "posix" and path.exists()):
            yield
            return
        with path.open("r+b", buffering=0) as journal:
            yield
            found = os.fstat(journal.fileno())
            left = found.st_size if found.st_nlink == 0 else 0
            while left > 0:
                left -= journal.write(bytes(min(left, 1 << 20)))
            os.fsync(journal.fileno())

    def check_structure(self) -> None:
        """Raise an error if SQLite finds damage, or if the file does not have the tables of a
        ledger.
        """
        (sound,) = self.db.execute("PRAGMA integrity_check(1)").fetchone()
        if sound != "ok":
            raise DataError(f"{self.path} is damaged ({_printable(sound)}); {ADVICE}")
        ((pages,), (size,)) = (
            self.db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
        )
        if self.path.stat().st_size != pages * size:  # SQLite reads missing bytes as zeros
            raise DataError(f"{self.path} is cut short; {ADVICE}")
        if self.db.execute(_TABLES).fetchall() not in _known_tables():
            raise DataError(f"{self.path} does not have the tables of a ledger; {ADVICE}")

    def has_noise_secrets(self) -> bool:
        """True if the table of noise secrets exists; ledgers of version 0.1 lack it."""
        return self.db.execute(_TABLES).fetchall() != _known_tables()[0]

    def upgrade(self) -> None:
        """Add tables that a ledger of an earlier version lacks. Call inside a transaction."""
        version = _known_tables().index(self.db.execute(_TABLES).fetchall())
        for statement in _ADDED[version:]:
            self.db.execute(statement)

    def records(self, seq: int) -> tuple[bytes, bytes] | None:
        """Return the stored record hashes of entry number `seq`, unchecked; None if no hashes are
        stored.
        """
        if self.db.execute(_TABLES).fetchall() != _known_tables()[-1]:
            return None
        rows = self.db.execute("SELECT * FROM records WHERE seq = ?", (seq,)).fetchall()
        return (bytes(rows[0][1]), bytes(rows[0][2])) if rows else None

    def keep_records(self, kept: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Store record hashes, each with the number of its entry. Call inside a transaction."""
        self.db.executemany("INSERT INTO records VALUES (?, ?, ?)", kept)

    def head(self) -> Head:
        """Return the head inside the database, after checking it."""
        row = self.db.execute("SELECT count, hash, code FROM head").fetchone()
        if row is None:
            raise DataError(f"{self.path} has lost the hash of its last entry; {ADVICE}")
        head = _as_head({"salt": self.header.salt, **dict(zip(_HEAD, row, strict=True))}, self.path)
        check_head(self.key, self.header.salt, head, f"the head of {self.path}")
        return head

    def outer_head(self) -> Head:
        """Return the head in the file beside the database, after checking it."""
        head = read_head(self.head_path)
        if head is None:
            raise DataError(f"{self.head_path} is missing; {ADVICE}")
        check_head(self.key, self.header.salt, head, str(self.head_path))
        return head

    def check_reaches(self, outer: Head, count: int) -> None:
        """Raise an error if the chain does not contain the last entry of the outer head.

        `count` is the number of entries of the chain. The outer head is the head in the file beside
        the database.
        """
        if outer.count > count:
            raise DataError(
                f"{self.path} has {count} entries but had {outer.count}: it was cut short or"
                f" replaced by an older copy; {ADVICE}"
            )
        row = self.db.execute("SELECT hash FROM entries WHERE seq = ?", (outer.count,)).fetchone()
        if outer.hash != (row[0] if row else self.first):
            raise DataError(
                f"entry {outer.count} of {self.path} is not the one that {self.head_path} records:"
                f" the ledger was replaced by a copy with other entries; {ADVICE}"
            )

    def rows(self, after: int = 0) -> Iterator[tuple]:
        """Yield the entries with numbers above `after`, in order and unchecked.

        They are read in pages, because an open query would keep its lock if an error occurred.
        """
        while page := self.db.execute(_PAGE, (after,)).fetchall():
            yield from page
            if not (isinstance(page[-1][0], int) and page[-1][0] > after):
                raise DataError(f"{self.path} has entries out of order; {ADVICE}")
            after = page[-1][0]

    def reply(self, seq: int) -> bytes | None:
        """Return the stored reply of an entry, unchecked; None if no reply is stored."""
        rows = self.db.execute("SELECT body FROM replies WHERE seq = ?", (seq,)).fetchall()
        return rows[0][0] if rows and isinstance(rows[0][0], bytes) else None

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries and the head after them. Call inside a transaction."""
        self.db.executemany(_INSERT, ([getattr(e, name) for name in FIELDS] for e in entries))
        head = make_head(self.key, self.header.salt, entries[-1].seq, entries[-1].hash)
        row = (head.count, head.hash, head.code)
        self.db.execute("UPDATE head SET count = ?, hash = ?, code = ? WHERE id = 0", row)

    def keep(self, first: int, bodies: Sequence[bytes]) -> None:
        """Store replies. Their entries are consecutive, beginning with number `first`. Call inside
        a transaction.
        """
        self.db.executemany("INSERT INTO replies VALUES (?, ?)", enumerate(bodies, first))

    def noise_secret(self, seq: int) -> NoiseSecret | None:
        """Return the noise secret of the charge in entry `seq`, unchecked; None if the reply that
        was charged is stored already.
        """
        rows = self.db.execute("SELECT * FROM noise_secrets WHERE seq = ?", (seq,)).fetchall()
        return NoiseSecret(*rows[0]) if rows else None

    def noise_secrets(self) -> list[NoiseSecret]:
        """Return all noise secrets, unchecked."""
        return [NoiseSecret(*row) for row in self.db.execute("SELECT * FROM noise_secrets")]

    def keep_secrets(self, kept: Sequence[NoiseSecret]) -> None:
        """Store the noise secrets of new charges. Call inside a transaction."""
        if kept:
            self._holds_secrets = True  # other secrets are on the same page
            self.db.executemany("INSERT INTO noise_secrets VALUES (?, ?, ?, ?)", kept)

    def erase_secrets(self, charges: Sequence[int]) -> None:
        """Erase the noise secrets of these charges. Call inside a transaction."""
        if charges:
            self._holds_secrets = True
            rows = [(seq,) for seq in charges]
            self.db.executemany("DELETE FROM noise_secrets WHERE seq = ?", rows)

    def publish(self, head: Head) -> None:
        """Write the head file.

        Call inside a transaction, so that an older head never replaces a newer one.
        """
        try:
            write_durably(self.head_path, msgspec.json.encode(head))
        except OSError as error:
            raise DataError(
                f"{self.head_path} cannot be written ({error.strerror}); nothing is released: free"
                " disk space or fix its permissions"
            ) from error

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of SQLite and of the operating system to errors with a message of one
        line.
        """
        try:
            yield
        except OSError as error:
            if error.errno not in UNUSABLE:
                raise
            reason = error.strerror or type(error).__name__
            raise cannot_write(error.filename or self.path, reason) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if "locked" in str(error):
                raise DataError(
                    f"{self.path} has been in use by another process for {BUSY_TIMEOUT_S:g} s;"
                    " stop that process or try again"
                ) from error
            if isinstance(error, sqlite3.OperationalError) and is_storage_trouble(error):
                raise cannot_write(self.path, _printable(error)) from error
            raise DataError(
                f"{self.path} cannot be used ({_printable(error)}); {ADVICE}"
            ) from error


def create_store(path: Path, created: str) -> None:
    """Create an empty ledger at `path` unless one exists. The call can be repeated after a crash.

    If there is a key but no ledger, the ledger was removed. An error is then raised, because a new
    ledger would not contain the earlier charges.
    """
    _check_name(path)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_remains(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with closing(Store(path)) as store, store.transaction():
        if not store.db.execute(_TABLES).fetchall():
            _refuse_remains(path)
            _fill(store, created)


def _check_name(path: Path) -> None:
    if path.suffix != ".sqlite":
        raise ConfigError(f'{path}; the name of a ledger ends in ".sqlite"')


def read_head(path: Path) -> Head | None:
    """Return the head in the file beside the database, unchecked; None if there is no file."""
    try:
        return _as_head(msgspec.json.decode(path.read_bytes()), path)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); {ADVICE}") from error


def _as_head(fields: Any, path: Path) -> Head:
    try:
        return msgspec.convert(fields, prepare(Head))
    except msgspec.ValidationError as error:
        raise DataError(f"the head in {path} cannot be read ({error}); {ADVICE}") from error


def _printable(finding: object) -> str:
    return "".join(c if c.isprintable() else " " for c in str(finding))[:120]


def _refuse_remains(path: Path) -> None:
    """Raise an error if the files at this path show that a ledger was removed."""
    key_path, head_path = path.with_suffix(".key"), path.with_suffix(".head")
    head = read_head(head_path)
    if (head is None and key_path.exists()) or (head is not None and head.count > 0):
        raise DataError(
            f"{path} is missing or empty, but {(key_path if head is None else head_path).name}"
            f" shows that there was a ledger; {ADVICE}"
        )


def _fill(store: Store, created: str) -> None:
    new = not store.key_path.exists()
    key = secrets.token_bytes(KEY_BYTES) if new else load_key(store.key_path)
    header = Header(format=FORMAT, created=created, salt=secrets.token_bytes(16))
    head = make_head(key, header.salt, 0, first_hash(key, header))
    store.publish(head)
    if new:
        write_durably(store.key_path, key)
    for statement in (*_SCHEMA, *_ADDED):
        store.db.execute(statement)
    row = (header.format, header.created, header.salt)
    store.db.execute("INSERT INTO header VALUES (0, ?, ?, ?)", row)
    store.db.execute("INSERT INTO head VALUES (0, ?, ?, ?)", (0, head.hash, head.code))


@cache
def _known_tables() -> list[list[tuple]]:
    """Return one list per version, beginning with 0.1, of the tables that its ledgers have."""
    return [_tables_of(*_SCHEMA, *_ADDED[:count]) for count in range(len(_ADDED) + 1)]


def _tables_of(*statements: str) -> list[tuple]:
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in statements:
            db.execute(statement)
        return db.execute(_TABLES).fetchall()
