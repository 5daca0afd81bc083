"""Whoever changes the files without the key is found out, and nothing is ever repaired."""

import os
import shutil
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_worker import EVENT, TERMS, budget_of, zcdp

from tacit.errors import DataError
from tacit.privacy.ledger.ledger import Ledger, audit


@pytest.fixture
def kept(path):
    """A closed ledger with a budget, six charges and three replies: its path and data set."""
    with Ledger(path, create=True, epsilon=zcdp) as ledger:
        some = ledger.first_version_id(["schema"], {"y": np.arange(5.0)})
        ledger.set_budget(some, budget_of(), reason="test")
        for number in range(6):
            ledger.charge(some, "run", f"r{number}", [EVENT], **TERMS)
        for number in range(3):
            ledger.store_reply("run", f"r{number}", os.urandom(700))
    return path, some


def meaning(path, *, create=False):
    """All that a reader of the ledger is told; None if it is refused."""
    try:
        with Ledger(path, create=create, epsilon=zcdp) as ledger:
            rows = ledger.entries()
            spent = [ledger.spent(dataset) for dataset in ledger.datasets()]
            replies = [ledger.recall("run", f"r{number}") for number in range(6)]
            return rows, spent, replies
    except DataError as error:
        return None if str(error).isprintable() else str(error)


def sql(path, *statements):
    """What somebody with a database tool does: the triggers only keep honest hands off."""
    db = sqlite3.connect(path)
    triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(statement)
    for _, text in triggers:
        db.execute(text)
    db.commit()
    db.close()


CHANGES = {
    "noise edited": ["UPDATE entries SET body = replace(body, '40.0', '41.0') WHERE seq = 3"],
    "budget edited": ["UPDATE entries SET body = replace(body, '1.0', '9.0') WHERE seq = 1"],
    "dataset edited": ["UPDATE entries SET dataset = replace(dataset, 'a', 'b') WHERE seq = 3"],
    "kind edited": ["UPDATE entries SET kind = 'reply' WHERE seq = 3"],
    "time edited": ["UPDATE entries SET time = '2020-01-01T00:00:00.000Z' WHERE seq = 3"],
    "attempt edited": ["UPDATE entries SET attempt = 2 WHERE seq = 3"],
    "purpose edited": ["UPDATE entries SET purpose = 'x' WHERE seq = 3"],
    "type edited": ["UPDATE entries SET run = x'72756e' WHERE seq = 3"],
    "last entries deleted": ["DELETE FROM entries WHERE seq > 8"],
    "all entries deleted": ["DELETE FROM entries"],
    "an entry deleted": ["DELETE FROM entries WHERE seq = 4"],
    "deleted and renumbered": [
        "DELETE FROM entries WHERE seq = 4",
        "UPDATE entries SET seq = seq - 1 WHERE seq > 4",
        "UPDATE head SET count = count - 1",
    ],
    "rows swapped": [
        "UPDATE entries SET seq = -1 WHERE seq = 3",
        "UPDATE entries SET seq = 3 WHERE seq = 4",
        "UPDATE entries SET seq = 4 WHERE seq = -1",
    ],
    "an entry added": [
        "INSERT INTO entries SELECT 11, time, kind, dataset, run, 'r9', attempt, unit, relation,"
        " purpose, body, previous, hash FROM entries WHERE seq = 3"
    ],
    "shorter, head made to fit": [
        "DELETE FROM entries WHERE seq > 8",
        "UPDATE head SET count = 8, hash = (SELECT hash FROM entries WHERE seq = 8)",
    ],
    "head deleted": ["DELETE FROM head"],
    "head without meaning": ["UPDATE head SET hash = 7"],
    "header deleted": ["DELETE FROM header"],
    "header edited": ["UPDATE header SET created = '2020-01-01T00:00:00.000Z'"],
    "salt edited": ["UPDATE header SET salt = x'00'"],
    "newer format": ["UPDATE header SET format = 2"],
    "a trigger added": [
        "CREATE TRIGGER quiet AFTER INSERT ON entries BEGIN DELETE FROM replies; END"
    ],
    "a table dropped": ["DROP TABLE replies"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_by_hand_is_refused_and_named(kept, change):
    path, _ = kept
    sql(path, *CHANGES[change])
    before = path.read_bytes()
    with pytest.raises(DataError) as refused:
        Ledger(path, epsilon=zcdp)
    assert "\n" not in str(refused.value)
    report = audit(path)
    assert not report.sound
    assert path.read_bytes() == before, "never repaired"


@pytest.mark.parametrize(
    "change", ["UPDATE replies SET body = x'00' WHERE seq = 9", "DELETE FROM replies WHERE seq = 9"]
)
def test_a_changed_reply_is_not_sent(kept, change):
    path, _ = kept
    sql(path, change)
    with Ledger(path, epsilon=zcdp) as ledger:
        assert ledger.recall("run", "r0") is not None
        with pytest.raises(DataError, match="missing or was changed"):
            ledger.recall("run", "r1")
        assert not ledger.verify().sound


def test_triggers_keep_honest_hands_off(kept):
    db = sqlite3.connect(kept[0])
    for statement in ("DELETE FROM entries", "UPDATE entries SET run = 'x'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(statement)
    db.close()


def test_a_running_process_notices_that_entries_went_away(kept):
    path, dataset = kept
    older = path.with_name("older")
    shutil.copy(path, older)
    with Ledger(path, epsilon=zcdp) as ledger:
        ledger.charge(dataset, "run", "r7", [EVENT], **TERMS)
        path.write_bytes(older.read_bytes())
        with pytest.raises(DataError, match="entries but had"):
            ledger.charge(dataset, "run", "r8", [EVENT], **TERMS)
        with pytest.raises(DataError):
            ledger.charge(dataset, "run", "r8", [EVENT], **TERMS)


def test_an_older_copy_of_the_database_alone_is_refused(kept):
    path, dataset = kept
    older = path.with_name("older")
    shutil.copy(path, older)
    with Ledger(path, epsilon=zcdp) as ledger:
        ledger.charge(dataset, "run", "r7", [EVENT], **TERMS)
    shutil.copy(older, path)
    with pytest.raises(DataError, match="older copy"):
        Ledger(path, epsilon=zcdp)
    assert "has 10 entries but had 11" in audit(path).problems[0]


def test_a_copy_that_went_its_own_way_is_refused(kept, place):
    path, dataset = kept
    fork = place / "fork" / path.name
    shutil.copytree(path.parent, fork.parent)
    for where, request in ((path, "mine"), (fork, "theirs")):
        with Ledger(where, epsilon=zcdp) as ledger:
            ledger.charge(dataset, "run", request, [EVENT], **TERMS)
    shutil.copy(fork, path)
    with pytest.raises(DataError, match="is not the one that"):
        Ledger(path, epsilon=zcdp)


def test_everything_put_back_together_is_shown_by_a_receipt_only(kept, place):
    path, dataset = kept
    shutil.copytree(path.parent, place / "backup")
    with Ledger(path, epsilon=zcdp) as ledger:
        ledger.charge(dataset, "run", "r7", [EVENT], **TERMS)
        receipt = ledger.receipt()
        assert ledger.verify(receipt).sound
        ledger.charge(dataset, "run", "r8", [EVENT], **TERMS)
        assert ledger.verify(receipt).sound, "an older receipt stays valid"
    shutil.rmtree(path.parent)
    shutil.copytree(place / "backup", path.parent)
    assert audit(path).sound, "the documented limit"
    assert "restored" in audit(path, receipt).problems[0]
    assert not audit(path, "nonsense").sound


@pytest.mark.parametrize("gone", [".sqlite", ".key", ".head"])
def test_a_missing_file_is_refused_even_where_one_may_be_made(kept, gone):
    path, _ = kept
    path.with_suffix(gone).unlink()
    for create in (False, True):
        with pytest.raises(DataError, match="missing"):
            Ledger(path, create=create, epsilon=zcdp)
    assert not audit(path).sound


@pytest.mark.parametrize("gone", [(".sqlite", ".head"), (".sqlite", ".key")])
def test_what_is_left_of_a_ledger_keeps_a_new_one_away(kept, gone):
    path, _ = kept
    for suffix in gone:
        path.with_suffix(suffix).unlink()
    with pytest.raises(DataError, match="there was a ledger"):
        Ledger(path, create=True, epsilon=zcdp)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(kept, mode):
    path, _ = kept
    path.with_suffix(".key").chmod(mode)
    with pytest.raises(DataError, match=rf"{mode:04o}.*chmod 600"):
        Ledger(path, epsilon=zcdp)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), bytes(32)])
def test_another_key_is_refused(kept, key):
    path, _ = kept
    path.with_suffix(".key").write_bytes(key)
    with pytest.raises(DataError, match=r"bytes|not written with this ledger's key"):
        Ledger(path, epsilon=zcdp)


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8192, -4096, -1])
def test_a_truncated_file_is_refused(kept, size):
    path, _ = kept
    body = path.read_bytes()
    path.write_bytes(body[: size if size >= 0 else len(body) + size])
    for create in (False, True):
        assert meaning(path, create=create) is None
    assert not audit(path).sound


@pytest.mark.parametrize("suffix", [".sqlite", ".key", ".head"])
def test_changed_bytes_never_change_what_the_ledger_says(kept, suffix):
    path, _ = kept
    target = path.with_suffix(suffix)
    body, said = target.read_bytes(), meaning(path)
    others = {p: p.read_bytes() for p in path.parent.iterdir()}
    refused = 0
    changes = st.lists(
        st.tuples(st.integers(0, len(body) - 1), st.integers(1, 255)), min_size=1, max_size=6
    )

    @settings(max_examples=300 if suffix == ".sqlite" else 60)
    @given(changes)
    def attack(bytes_to_change):
        nonlocal refused
        damaged = bytearray(body)
        for place, flip in bytes_to_change:
            damaged[place] ^= flip
        target.write_bytes(damaged)
        found = meaning(path)
        refused += found is None
        assert found is None or found == said
        for other, content in others.items():
            other.write_bytes(content)

    attack()
    assert refused >= (20 if suffix == ".sqlite" else 40), "most of these files is not free space"


def test_every_byte_of_an_entry_counts(kept):
    """Exhaustive where chance is not enough: each byte of one entry, one bit of it changed."""
    path, _ = kept
    body, said = path.read_bytes(), meaning(path)
    start = body.index(b'"noise_sd":40.0')
    for place in range(start - 260, start + 120):
        damaged = bytearray(body)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        found = meaning(path)
        assert found is None or found == said
    path.write_bytes(body)
    assert meaning(path) == said
