"""A request is answered once: replays cost nothing, and neither do answers that were lost."""

import pytest
from ledger_worker import EVENT, TERMS, zcdp

from tacit.errors import PrivacyBudgetError
from tacit.privacy.ledger.ledger import Ledger


def test_a_stored_reply_is_replayed_to_the_byte_after_reopening(path, ledger, dataset):
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    assert ledger.recall("run", "r1") is None
    body = bytes(range(256)) * 400
    assert ledger.store_reply("run", "r1", body) == body
    ledger.close()
    with Ledger(path, epsilon=zcdp) as again:
        assert again.recall("run", "r1") == body
        assert again.recall("run", "r2") is None
        assert [row.state for row in again.entries() if row.kind == "charge"] == ["answered"]


def test_a_reply_needs_a_charge_and_is_never_replaced(ledger, dataset):
    with pytest.raises(PrivacyBudgetError, match="was not charged"):
        ledger.store_reply("run", "r1", b"secret")
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    ledger.store_reply("run", "r1", b"noisy")
    before = ledger.receipt()
    assert ledger.store_reply("run", "r1", b"noisy") == b"noisy"
    with pytest.raises(PrivacyBudgetError, match="a different reply"):
        ledger.store_reply("run", "r1", b"other noise")
    assert not ledger.charge(dataset, "run", "r1", [EVENT], **TERMS).new
    assert ledger.receipt() == before
    assert ledger.recall("run", "r1") == b"noisy"


def test_answer_charges_computes_stores_and_then_replays(ledger, dataset):
    drawn = []

    def compute(_key):
        assert ledger.spent(dataset).charges == 1, "charged before anything is computed"
        drawn.append(b"noise")
        return b"noise"

    for _ in range(3):
        assert ledger.answer(dataset, "run", "r1", [EVENT], compute=compute, **TERMS) == b"noise"
    assert drawn == [b"noise"]
    assert ledger.spent(dataset).charges == 1


def test_a_lost_answer_is_made_again_for_the_same_charge(path, ledger, dataset):
    keys = []

    def fails(key):
        keys.append(key)
        raise RuntimeError("power cut")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            ledger.answer(dataset, "run", "r1", [EVENT], compute=fails, **TERMS)
    with Ledger(path, epsilon=zcdp) as again:  # as after a crash
        body = again.answer(dataset, "run", "r1", [EVENT], compute=lambda key: key, **TERMS)
    assert keys == [body, body]
    assert [row.attempt for row in ledger.entries() if row.kind == "charge"] == [1]
    assert ledger.spent(dataset).epsilon == zcdp([EVENT], 1e-5, "add-or-remove-one")


def test_answer_computes_nothing_beyond_the_budget(ledger, dataset):
    def compute(_key):
        raise AssertionError("computed")

    with pytest.raises(PrivacyBudgetError, match="budget"):
        ledger.answer(dataset, "run", "r1", [EVENT] * 1000, compute=compute, **TERMS)
