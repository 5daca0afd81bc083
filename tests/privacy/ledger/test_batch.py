"""Many data sets at once: one transaction, all or nothing, and counted together."""

import msgspec
import numpy as np
import pytest
from ledger_worker import EVENT, TERMS, asks_of, budget_of, zcdp

from tacit.errors import ConfigError, DataError, PrivacyBudgetError
from tacit.privacy.events import GaussianEvent
from tacit.privacy.ledger.ledger import Ledger, LineageWarning, ReleaseRequest, Reply
from tacit.privacy.ledger.store import Store


@pytest.fixture
def parties(ledger):
    found = [ledger.first_version_id([], {"y": np.full(3, float(i))}) for i in range(4)]
    ledger.set_budgets(dict.fromkeys(found, budget_of()), reason="test")
    return found


def ask(dataset, request, events=(EVENT,), **others):
    given = {"dataset": dataset, "run": "run", "request": request, "events": events}
    return ReleaseRequest(**{**given, **TERMS, **others})


def room_for(count):
    """A budget that allows so many EVENTs, exactly."""
    events = [msgspec.structs.replace(EVENT, count=count)]
    return budget_of(zcdp(events, 1e-5, "add-or-remove-one"))


def test_a_batch_is_charged_in_the_order_of_the_asks(path, ledger, parties):
    charges = ledger.charge_many(asks_of(parties, "run", 1))
    assert [charge.new for charge in charges] == [True] * 4
    assert [charge.seq for charge in charges] == [5, 6, 7, 8]
    assert [charge.dataset for charge in charges] == parties
    again = ledger.charge_many(asks_of(parties[::-1], "run", 2) + asks_of(parties, "run", 1))
    assert [charge.new for charge in again] == [True] * 4 + [False] * 4
    assert again[4:] == [msgspec.structs.replace(charge, new=False) for charge in charges]
    with Ledger(path, epsilon=zcdp) as other:
        assert [other.spent(each).charges for each in parties] == [2] * 4
        assert other.verify().sound


def test_a_batch_is_one_write_to_the_disk(ledger, parties, monkeypatch):
    written = []
    for name in ("append", "publish"):
        real = getattr(Store, name)
        monkeypatch.setattr(Store, name, lambda *a, n=name, f=real: (written.append(n), f(*a))[1])
    ledger.answer_many(asks_of(parties, "run", 1), lambda asks: [b"noise"] * len(asks))
    assert written == ["append", "publish"] * 2
    ledger.answer_many(asks_of(parties, "run", 1), lambda _: [])
    assert len(written) == 4, "a replay writes nothing"


def test_one_budget_passed_and_nobody_is_charged(ledger, parties):
    ledger.set_budget(parties[2], room_for(1), reason="less")
    ledger.charge_many(asks_of(parties, "run", 1))
    before = ledger.receipt()
    with pytest.raises(PrivacyBudgetError, match=f"data set {parties[2].short}: spent"):
        ledger.charge_many(asks_of(parties, "run", 2))
    with pytest.raises(PrivacyBudgetError, match=parties[2].short):
        ledger.answer_many(asks_of(parties, "run", 2), lambda _: pytest.fail("computed"))
    unknown = ledger.first_version_id([], {"y": np.zeros(9)})
    with pytest.raises(PrivacyBudgetError, match=f"{unknown.short} has no privacy budget"):
        ledger.charge_many(asks_of([parties[0], unknown], "run", 2))
    assert ledger.receipt() == before
    assert [charge.new for charge in ledger.charge_many(asks_of(parties, "run", 1))] == [False] * 4


def test_asks_for_one_data_set_are_counted_together(ledger, dataset):
    ledger.set_budget(dataset, room_for(5), reason="less")
    ledger.charge_many([ask(dataset, "a"), ask(dataset, "b")])
    before = ledger.receipt()
    with pytest.raises(PrivacyBudgetError, match="budget"):
        ledger.charge_many([ask(dataset, name) for name in "cdef"])
    assert ledger.receipt() == before
    repeated = [ask(dataset, name) for name in "abcde"]
    assert [c.new for c in ledger.charge_many(repeated)] == [False, False, True, True, True]
    assert ledger.spent(dataset).remaining == 0.0


def test_asks_for_a_family_are_counted_together(ledger, dataset):
    newer = ledger.first_version_id(["schema"], {"y": np.arange(6.0)})
    renamed = ledger.first_version_id(["other"], {"y": np.arange(5.0)})
    ledger.link(newer, dataset, reason="test")
    ledger.set_budget(newer, room_for(2), reason="less")
    family = [dataset, newer, renamed]
    before = ledger.receipt()
    with pytest.raises(PrivacyBudgetError, match="budget"):
        ledger.charge_many(asks_of(family, "run", 1))
    assert ledger.receipt() == before
    assert len(ledger.charge_many(asks_of(family[1:], "run", 1))) == 2


def test_terms_of_one_batch_may_differ(ledger, dataset):
    """Under one budget, each ask counts in its own terms."""
    by_person = ask(dataset, "b", unit="person")
    ledger.charge_many([ask(dataset, "a"), by_person])
    both = [EVENT, GaussianEvent(clip=2.0, noise_sd=EVENT.noise_sd)]
    assert ledger.spent(dataset).epsilon == pytest.approx(zcdp(both, 1e-5, "add-or-remove-one"))


def test_a_request_twice_in_a_batch_is_refused(ledger, dataset):
    twice = [ask(dataset, "a"), ask(dataset, "a", content="otherwise")]
    before = ledger.receipt()
    for call in (
        lambda: ledger.charge_many(twice),
        lambda: ledger.answer_many(twice, lambda _: pytest.fail("computed")),
        lambda: ledger.store_replies([Reply("run", "a", b"1"), Reply("run", "a", b"2")]),
    ):
        with pytest.raises(ConfigError, match="in one batch twice"):
            call()
    assert ledger.receipt() == before


def test_nothing_asked_is_nothing_done(ledger, dataset):
    before = ledger.receipt()
    assert ledger.charge_many([]) == []
    assert ledger.store_replies([]) == []
    assert ledger.recall_many([]) == []
    assert ledger.answer_many([], lambda _: pytest.fail("computed")) == []
    ledger.set_budgets({}, reason="none")
    assert ledger.receipt() == before


def test_replies_are_stored_together_or_not_at_all(path, ledger, parties):
    ledger.charge_many(asks_of(parties[:3], "run", 1))
    bodies = [bytes([i]) * 2000 for i in range(4)]
    replies = [Reply("run", f"1.{i}", body) for i, body in enumerate(bodies)]
    before = ledger.receipt()
    with pytest.raises(PrivacyBudgetError, match=r"1\.3 of run run was not charged"):
        ledger.store_replies(replies)
    assert ledger.receipt() == before
    ledger.store_reply(*replies[1])
    other = replies[1]._replace(body=b"other noise")
    with pytest.raises(PrivacyBudgetError, match="a different reply"):
        ledger.store_replies([replies[0], other, replies[2]])
    assert ledger.recall("run", "1.0") is None
    assert ledger.store_replies(replies[:3]) == bodies[:3]
    places = [reply[:2] for reply in replies]
    with Ledger(path, epsilon=zcdp) as again:
        assert again.recall_many(places) == [*bodies[:3], None]
        assert again.verify().sound


def test_a_changed_reply_stops_the_round(ledger, parties):
    def noise(opened):
        return [one.release.request.encode() for one in opened]

    ledger.answer_many(asks_of(parties, "run", 1), noise)
    ledger._log.store.db.execute("UPDATE replies SET body = x'00' WHERE seq = 10")
    with pytest.raises(DataError, match=r"1\.1 of run run is missing or was changed"):
        ledger.answer_many(asks_of(parties, "run", 1), noise)


def test_answer_many_computes_only_what_it_cannot_recall(ledger, parties):
    given = []

    def noise(opened):
        charged = {one.request for one in ledger.charges("run")}
        assert {one.release.request for one in opened} <= charged
        given.append([one.release.dataset for one in opened])
        return [f"{one.release.request}#{len(given)}".encode() for one in opened]

    asks = asks_of(parties, "run", 1)
    assert ledger.answer_many(asks[1:3], noise) == [b"1.1#1", b"1.2#1"]
    assert given == [parties[1:3]]
    assert ledger.answer_many(asks, noise) == [b"1.0#2", b"1.1#1", b"1.2#1", b"1.3#2"]
    assert given[1:] == [[parties[0], parties[3]]]
    assert ledger.answer_many(asks, noise) == [b"1.0#2", b"1.1#1", b"1.2#1", b"1.3#2"]
    assert len(given) == 2
    assert [ledger.spent(each).charges for each in parties] == [1, 1, 1, 1]


def test_a_failed_round_is_asked_again_for_the_same_charges(ledger, parties):
    asks, keys = asks_of(parties, "run", 1), []

    def compute(opened, bodies):
        keys.append([one.key for one in opened])
        if bodies is None:
            raise RuntimeError
        return bodies

    with pytest.raises(ValueError, match="3 replies for 4 requests"):
        ledger.answer_many(asks, lambda opened: compute(opened, [b"noise"] * 3))
    with pytest.raises(RuntimeError):
        ledger.answer_many(asks, lambda opened: compute(opened, None))
    assert ledger.recall_many([ask.place for ask in asks]) == [None] * 4
    bodies = ledger.answer_many(asks, lambda opened: compute(opened, [b"noise"] * 4))
    assert bodies == [b"noise"] * 4
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys[0])) == 4
    assert [ledger.spent(each).charges for each in parties] == [1] * 4


def test_an_answer_that_another_process_stored_first_is_not_replaced(path, ledger, parties):
    asks = asks_of(parties, "run", 1)

    def late(given):
        with Ledger(path, epsilon=zcdp) as other:
            other.answer_many([given[0].release], lambda _: [b"first"])
        return [b"second"] * len(given)

    with pytest.raises(PrivacyBudgetError, match="a different reply"):
        ledger.answer_many(asks, late)
    assert ledger.recall_many([ask.place for ask in asks]) == [b"first", None, None, None]
    assert [ledger.spent(each).charges for each in parties] == [1, 1, 1, 1]


def test_an_ask_keeps_what_it_was_given(dataset):
    events = [EVENT]
    made = ask(dataset, "r1", events)
    events.append(EVENT)
    assert made.events == (EVENT,)
    assert made in {made}


def test_budgets_are_set_together_or_not_at_all(ledger, dataset):
    newer = ledger.first_version_id(["schema"], {"y": np.arange(6.0)})
    with pytest.raises(PrivacyBudgetError, match="--raise"):
        ledger.set_budgets({newer: budget_of(), dataset: budget_of(2.0)}, reason="more")
    assert ledger.budget(newer) is None
    ledger.link(newer, dataset, reason="test")
    with pytest.raises(PrivacyBudgetError, match=r"is ε = 0\.5 .*; the new budget ε = 0\.6"):
        ledger.set_budgets({newer: budget_of(0.5), dataset: budget_of(0.6)}, reason="both")
    ledger.set_budgets({newer: budget_of(0.6), dataset: budget_of(0.5)}, reason="both")
    assert ledger.budget(newer) == budget_of(0.5)
    ledger.charge_many([ask(dataset, "r1")])
    third = ledger.first_version_id(["schema"], {"y": np.arange(7.0)})
    with pytest.warns(LineageWarning, match=dataset.short):
        ledger.set_budgets({third: budget_of()}, reason="its own")
