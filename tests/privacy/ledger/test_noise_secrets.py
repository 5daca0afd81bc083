"""The noise of a lost answer: kept with the charge, for one content, and erased with the reply."""

import shutil
import sqlite3

import numpy as np
import pytest
from ledger_worker import EVENT, TERMS, budget_of, zcdp

from tacit.errors import DataError, PrivacyBudgetError
from tacit.privacy.events import GaussianEvent
from tacit.privacy.ledger.ledger import Ledger, ReleaseRequest, Reply
from tacit.privacy.ledger.verify import audit


def ask(dataset, request="r1", content="q", **changes):
    return ReleaseRequest(
        dataset=dataset, run="run", request=request, content=content,
        **{**TERMS, "events": [EVENT], **changes},
    )  # fmt: skip


def opened(ledger, *asks):
    """The keys of asks that have no reply."""
    return [one.key for one in ledger.open_many(asks)[1]]


def secrets_in(path):
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT secret FROM noise_secrets ORDER BY seq").fetchall()
    db.close()
    return [row[0] for row in rows]


def test_one_key_per_request_and_the_same_after_reopening(path, ledger, dataset):
    keys = opened(ledger, ask(dataset), ask(dataset, "r2"))
    assert len({*keys, *secrets_in(path)}) == 4, "what is used is derived from what is stored"
    assert all(len(key) == 32 for key in keys)
    with Ledger(path, epsilon=zcdp) as again:
        assert opened(again, ask(dataset), ask(dataset, "r2")) == keys
        assert again.spent(dataset).charges == 2
    assert audit(path).sound


def test_another_content_under_the_same_request_is_refused(ledger, dataset):
    """Two questions with one noise: the difference of the answers would be exact."""
    opened(ledger, ask(dataset, content="q"))
    before = ledger.receipt()
    for other in ("another q", ""):
        with pytest.raises(PrivacyBudgetError, match="charged with different content"):
            opened(ledger, ask(dataset, content=other))
    with pytest.raises(PrivacyBudgetError, match="charged with different content"):
        ledger.answer(dataset, "run", "r1", [EVENT], compute=lambda key: key, **TERMS)
    assert ledger.receipt() == before


def test_a_refused_batch_charges_nothing_and_keeps_no_secret(path, ledger, dataset):
    opened(ledger, ask(dataset))
    dear = ask(dataset, "r3", events=[GaussianEvent(clip=1.0, noise_sd=0.1)])
    for bad in (ask(dataset, content="other"), dear):
        with pytest.raises(PrivacyBudgetError, match=r"different content|privacy budget"):
            ledger.open_many([ask(dataset, "r2"), bad])
    assert len(secrets_in(path)) == ledger.spent(dataset).charges == 1


def test_the_secret_is_erased_with_the_reply_in_every_file(path, ledger, dataset):
    (key,) = opened(ledger, ask(dataset))
    opened(ledger, ask(dataset, "r2"))
    first, second = secrets_in(path)
    assert first in path.read_bytes(), "this test looks in the right place"
    ledger.store_replies([Reply("run", "r1", b"reply")])
    assert secrets_in(path) == [second]
    for file in path.parent.iterdir():
        body = file.read_bytes()
        assert first not in body
        assert key not in body
    assert opened(ledger, ask(dataset)) == [], "answered"
    assert audit(path).sound


def test_a_journal_that_held_a_secret_is_overwritten(path, ledger, dataset):
    """Its blocks belong to no file after the commit, and are read here through an open file."""
    opened(ledger, ask(dataset))
    (secret,) = secrets_in(path)
    store = ledger._log.store
    original = type(store).erase_secrets
    journal = path.with_name(path.name + "-journal")
    descriptors = []

    def erase(charges):
        original(store, charges)
        descriptors.append(journal.open("rb"))

    store.erase_secrets = erase
    ledger.store_replies([Reply("run", "r1", b"reply")])
    (file,) = descriptors
    with file:
        body = file.read()
    assert len(body) > 512, "there was a journal"
    assert secret not in body
    assert not any(body)
    assert not journal.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE noise_secrets SET secret = zeroblob(32)",
        "UPDATE noise_secrets SET content = 'other'",
        "UPDATE noise_secrets SET code = zeroblob(32)",
        "UPDATE noise_secrets SET secret = 7",
        "UPDATE noise_secrets SET secret = (SELECT secret FROM noise_secrets WHERE seq = 3), "
        "code = (SELECT code FROM noise_secrets WHERE seq = 3) WHERE seq = 2",
    ],
)
def test_a_secret_that_was_not_stored_here_is_refused(path, ledger, dataset, statement):
    """Whoever can write to the file must not choose the noise."""
    opened(ledger, ask(dataset), ask(dataset, "r2"))
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()
    with pytest.raises((DataError, PrivacyBudgetError), match=r"was changed|different content"):
        opened(ledger, ask(dataset))
    report = audit(path)
    assert not report.sound
    assert "noise secret" in report.problems[0]


def test_a_secret_put_back_after_its_reply_is_found_and_never_used(path, ledger, dataset):
    opened(ledger, ask(dataset))
    with sqlite3.connect(path) as db:
        (row,) = db.execute("SELECT * FROM noise_secrets").fetchall()
    ledger.store_replies([Reply("run", "r1", b"reply")])
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO noise_secrets VALUES (?, ?, ?, ?)", row)
    db.close()
    replies, wanted = ledger.open_many([ask(dataset)])
    assert (replies, wanted) == ([b"reply"], [])
    assert "was not erased" in audit(path).problems[0]


def test_a_copy_from_before_the_reply_gives_the_same_answer_or_none(path, place, ledger, dataset):
    """All files of a backup put back together: no receipt, no alarm, and still one answer."""
    (key,) = opened(ledger, ask(dataset))
    shutil.copytree(path.parent, place / "backup")
    ledger.store_replies([Reply("run", "r1", key)])
    ledger.close()
    shutil.rmtree(path.parent)
    shutil.copytree(place / "backup", path.parent)
    with Ledger(path, epsilon=zcdp) as again:
        assert opened(again, ask(dataset)) == [key], "the reply that was sent, once more"
        with pytest.raises(PrivacyBudgetError, match="different content"):
            opened(again, ask(dataset, content="another q"))


def test_the_database_alone_put_back_is_refused(path, place, ledger, dataset):
    opened(ledger, ask(dataset))
    shutil.copy(path, place / "older")
    ledger.store_replies([Reply("run", "r1", b"reply")])
    ledger.close()
    shutil.copy(place / "older", path)
    with pytest.raises(DataError, match="older copy"):
        Ledger(path, epsilon=zcdp)


def as_version_0_1(path):
    """The file without the tables that version 0.1 did not have."""
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE noise_secrets")
        db.execute("DROP TABLE records")
    db.close()


def test_a_ledger_of_version_0_1_is_read_and_goes_on(path, ledger, dataset):
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    ledger.charge(dataset, "run", "r2", [EVENT], **TERMS)
    ledger.store_reply("run", "r2", b"reply")
    receipt = ledger.receipt()
    ledger.close()
    as_version_0_1(path)
    assert audit(path, receipt).sound
    with Ledger(path, epsilon=zcdp) as again:
        assert again.receipt() == receipt
        assert again.recall("run", "r2") == b"reply"
        assert [one.request for one in again.paid_for("run")] == ["r2"]
        # Nothing is known of the noise of the other one: another draw has its price.
        opened(again, ask(dataset, "r1"))
        assert [(row.request, row.attempt) for row in again.entries() if row.kind == "charge"] == [
            ("r1", 1), ("r2", 1), ("r1", 2),
        ]  # fmt: skip
        assert {one.request for one in again.paid_for("run")} == {"r1", "r2"}
    assert audit(path, receipt).sound


def test_a_file_that_others_can_read_is_refused(path, ledger):
    ledger.close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(DataError, match=r"mode 0640.*chmod 600"):
        Ledger(path, epsilon=zcdp)


def test_the_price_of_a_run_is_the_lowest_budget_that_it_fits_under(ledger):
    fresh = ledger.identify(["other"], {"y": np.arange(7.0)})
    events = [GaussianEvent(clip=1.0, noise_sd=40.0, count=3)]
    terms = {"unit": "record", "adjacency": "add-or-remove-one"}
    price = ledger.price(fresh, events, delta=1e-5, **terms)
    assert price == zcdp(events, 1e-5, "add-or-remove-one")
    ledger.set_budget(fresh, budget_of(price), reason="exactly that")
    opened(ledger, *(ask(fresh, f"r{n}") for n in range(3)))
    assert ledger.price(fresh, events, delta=1e-5, **terms) > price, "after what was spent"
    with pytest.raises(PrivacyBudgetError, match="privacy budget"):
        opened(ledger, ask(fresh, "r3"))
