"""What people are shown: rows, reports and exports, without secrets."""

import csv
import json

import pytest
from ledger_worker import EVENT, TERMS, budget_of

from tacit.errors import ConfigError, DataError
from tacit.privacy.ledger.ledger import audit


@pytest.fixture
def filled(ledger, dataset):
    ledger.charge(dataset, "run-1", "r1", [EVENT], purpose="=1+1", **TERMS)
    ledger.store_reply("run-1", "r1", b"the reply itself")
    ledger.charge(dataset, "run-1", "r2", [EVENT, EVENT], **TERMS)
    return ledger


def test_rows_say_who_asked_for_what(filled, dataset):
    rows = filled.entries()
    assert [row.kind for row in rows] == ["budget", "charge", "reply", "charge"]
    assert [row.state for row in rows] == ["", "answered", "", "charged"]
    assert [row.seq for row in rows] == [1, 2, 3, 4]
    assert rows[0].detail == {"epsilon": 1.0, "delta": 1e-5, **TERMS}
    assert len(rows[3].detail) == 2
    assert rows[1].detail[0]["noise_sd"] == 40.0
    assert all(row.time.endswith("Z") and row.time[10] == "T" for row in rows)
    assert filled.entries(dataset) == rows


def test_a_sound_ledger_is_reported_sound(filled, path):
    report = filled.verify()
    assert report.sound
    assert report.entries == 4
    assert report.receipt == filled.receipt()
    assert report == audit(path)


def test_a_report_names_every_fault(filled, path):
    db = filled._log.store.db
    db.execute("DROP TRIGGER entries_are_never_changed")
    db.execute("UPDATE entries SET purpose = 'other' WHERE seq IN (2, 4)")
    found = " | ".join(filled.verify().problems)
    for part in ("the tables of a ledger", "entry 2 was changed", "entry 4 was changed"):
        assert part in found
    assert "entry 3" not in found
    with pytest.raises(DataError, match="entry 2 was changed"):
        filled.entries()


def test_a_report_of_no_ledger_says_so(tmp_path):
    report = audit(tmp_path / "ledger.sqlite")
    assert not report.sound
    assert "no ledger" in report.problems[0]
    assert not (tmp_path / "ledger.sqlite").exists()


def test_json_export_has_everything_but_secrets(filled, dataset, path, place):
    filled.export(place / "out.json")
    raw = (place / "out.json").read_bytes()
    read = json.loads(raw)
    assert [entry["seq"] for entry in read["entries"]] == [1, 2, 3, 4]
    assert read["receipt"] == filled.receipt()
    assert read["spent"][0]["epsilon"] == filled.spent(dataset).epsilon
    key = path.with_suffix(".key").read_bytes()
    for secret in (key, key.hex().encode(), b"the reply itself"):
        assert secret not in raw


def test_csv_export_has_the_entries_and_no_formulas(filled, place):
    filled.export(place / "out.csv", "csv")
    with (place / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["budget", "charge", "reply", "charge"]
    assert rows[1]["purpose"] == "'=1+1"
    assert json.loads(rows[1]["detail"])[0]["clip"] == 1.0


def test_exports_are_refused_in_one_line(filled, place):
    with pytest.raises(ConfigError, match="json or csv"):
        filled.export(place / "out.xml", "xml")
    with pytest.raises(DataError, match="cannot be written"):
        filled.export(place / "nowhere" / "out.json")


def test_reading_changes_nothing(filled, dataset, path):
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    filled.spent(dataset)
    filled.entries()
    filled.verify()
    filled.check(dataset, [EVENT], **TERMS)
    filled.recall("run-1", "r1")
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before
    assert filled.budget(dataset) == budget_of()
