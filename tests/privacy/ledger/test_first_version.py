"""A ledger that version 0.1 wrote: its words were others, its budgets and charges still count."""

import sqlite3
from pathlib import Path

import pytest

from tacit.privacy.events import GaussianEvent
from tacit.privacy.ledger.ledger import Budget, BudgetExceededError, Ledger

DUMP = Path(__file__).with_name("ledger_0_1.sql")
KEY = "b05e90cbf1576371db0d6d049107e44cea03955aa57cf6ee63bad656d2891048"
HEAD = """{"salt":"mlzrOdkRZokULAhSGAqskw==","count":6,
"hash":"6vP/57v9ihd9PZJws/bhOxiylXLkegBe9LUx0a8xVEI=",
"code":"fsbluuT89tAiZEh2UuFoLiRx9pMUvpDDkozKapom01A="}"""
NORTH = "44f82e0a4a70059ffe7af28161224883.b7bc15e110a943cdb02789479fceeb77"
SOUTH = "0a73e507814c2e2cbc2e70410272ed54.5de0c97f4ff25395fc5a66d7d14a60e1"
RECEIPT = "6:eaf3ffe7bbfd8a177d3d9270b3f6e13b18b29572e47a005ef4b531d1af315442"


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(DUMP.read_text())
    database.close()
    path.with_suffix(".key").write_bytes(bytes.fromhex(KEY))
    path.with_suffix(".head").write_text(HEAD)
    for file in tmp_path.iterdir():
        file.chmod(0o600)
    return path


def test_budgets_and_charges_are_read(old):
    with Ledger(old) as ledger:
        assert [str(one) for one in ledger.datasets()] == [NORTH, SOUTH]
        assert ledger.budget(NORTH) == Budget(
            epsilon=3.0, delta=1e-5, adjacency="replace-one", unit="record"
        )
        assert ledger.budget(SOUTH) == Budget(
            epsilon=2.0, delta=1e-6, adjacency="add-or-remove-one", unit="person"
        )
        spent = ledger.spent(NORTH)
        assert spent.as_one_run == pytest.approx(1.356467364457055)
        assert spent.as_one_run < spent.epsilon < 1.02 * spent.as_one_run  # two runs
        assert ledger.remaining(SOUTH) == pytest.approx(1.9237577029421356)
        assert ledger.recall("run-1", "north.1") == b"stored reply"
        kinds = [row.kind for row in ledger.entries()]
    assert kinds == ["budget", "budget", "charge", "reply", "charge", "charge"]


def test_it_is_verified_as_it_was_written(old):
    with Ledger(old) as ledger:
        assert ledger.verify(RECEIPT).sound
        assert ledger.receipt() == RECEIPT
    with sqlite3.connect(old) as database:
        database.execute("DROP TRIGGER entries_are_never_changed")
        database.execute("UPDATE entries SET kind = 'budget' WHERE seq = 1")
    database.close()
    with pytest.raises(Exception, match="entry 1 was changed"):
        Ledger(old)


def test_new_entries_follow_old_ones(old):
    event = GaussianEvent(clip=1.0, noise_sd=8.0)
    with Ledger(old) as ledger:
        north = ledger.datasets()[0]
        terms = {"unit": "record", "adjacency": "replace-one"}
        ledger.charge(north, "run-3", "north.1", [event], **terms)
        with pytest.raises(BudgetExceededError, match="budget"):
            ledger.charge(north, "run-3", "north.2", [event] * 50, **terms)
        budget = Budget(epsilon=4.0, delta=1e-5, adjacency="replace-one", unit="record")
        ledger.set_budget(north, budget, reason="board of 5 May", raising=True)
    with Ledger(old) as ledger:
        assert ledger.budget(NORTH) == budget
        assert ledger.verify(RECEIPT).sound
