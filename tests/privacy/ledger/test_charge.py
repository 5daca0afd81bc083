"""Charge, then speak: what is paid, what is refused, and what a second asking does."""

import math
import os
import secrets
import stat
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_worker import EVENT, TERMS, budget_of, zcdp

from tacit.errors import ConfigError, DataError, PrivacyBudgetError
from tacit.privacy.accounting.filters import GAUSSIAN_SHARE
from tacit.privacy.events import GaussianEvent, Poisson
from tacit.privacy.ledger.ledger import Ledger


def test_a_charge_is_there_after_reopening_and_adds_up_over_runs(path, ledger, dataset):
    for run in ("a", "b"):
        charge = ledger.charge(dataset, run, "r1", [EVENT], **TERMS)
        assert charge.new
    ledger.close()
    with Ledger(path, epsilon=zcdp) as again:
        spent = again.spent(dataset)
    assert spent.as_one_run == zcdp([EVENT, EVENT], 1e-5, "add-or-remove-one")
    assert spent.epsilon == zcdp([EVENT, EVENT], GAUSSIAN_SHARE * 1e-5, "add-or-remove-one")
    assert (spent.charges, spent.releases, spent.family) == (2, 2, 1)
    assert spent.remaining == 1.0 - spent.epsilon


def test_what_would_pass_the_budget_is_refused_and_leaves_no_trace(ledger, dataset):
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    before = ledger.receipt()
    big = GaussianEvent(clip=1.0, noise_sd=4.0)
    with pytest.raises(PrivacyBudgetError) as refused:
        ledger.charge(dataset, "run", "r2", [big], **TERMS)
    text = str(refused.value)
    assert refused.value.exit_code == 3
    for part in ("spent ε = 0.12", "requested ε = 1.2", "together 1.2", "> ε = 1 at", "--raise"):
        assert part in text
    assert "\n" not in text
    assert ledger.receipt() == before


def test_the_budget_itself_may_be_reached_exactly(ledger, path):
    some = ledger.identify([], {"y": np.ones(3)})
    exact = zcdp([GaussianEvent(clip=1.0, noise_sd=40.0, count=3)], 1e-5, "add-or-remove-one")
    ledger.set_budget(some, budget_of(exact), reason="all of it")
    for number in range(3):
        ledger.charge(some, "run", f"r{number}", [EVENT], **TERMS)
    with pytest.raises(PrivacyBudgetError):
        ledger.charge(some, "run", "r3", [EVENT], **TERMS)


def test_without_a_budget_nothing_is_allowed(ledger):
    unknown = ledger.identify([], {"y": np.ones(3)})
    for ask in (
        lambda: ledger.charge(unknown, "run", "r1", [EVENT], **TERMS),
        lambda: ledger.check(unknown, [EVENT], **TERMS),
    ):
        with pytest.raises(PrivacyBudgetError, match=rf"tacit ledger budget {unknown}"):
            ask()
    assert ledger.spent(unknown).epsilon is None


def test_check_spends_nothing_and_agrees_with_charge(ledger, dataset):
    before = ledger.receipt()
    run = [GaussianEvent(clip=1.0, noise_sd=40.0, count=30)]
    budget = ledger.check(dataset, run, **TERMS)
    assert budget.fits
    assert budget.spent == 0.0
    assert budget.total == budget.requested == zcdp(run, 1e-5, "add-or-remove-one")
    assert not ledger.check(dataset, run * 3, **TERMS).fits
    assert ledger.receipt() == before


@pytest.mark.parametrize("answer", [math.nan, -1.0, math.inf])
def test_an_accountant_without_an_answer_allows_nothing(path, ledger, dataset, answer):
    with (
        Ledger(path, epsilon=lambda *_: answer) as other,
        pytest.raises(PrivacyBudgetError, match="accountant"),
    ):
        other.charge(dataset, "run", "r1", [EVENT], **TERMS)
    assert ledger.spent(dataset).charges == 0


def test_the_same_request_again_is_the_stored_charge(path, ledger, dataset):
    first = ledger.charge(dataset, "run", "r1", [EVENT], purpose="round 1", **TERMS)
    again = ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    with Ledger(path, epsilon=zcdp) as other:
        elsewhere = other.charge(dataset, "run", "r1", [EVENT], **TERMS)
    assert again == elsewhere
    assert (first.new, again.new) == (True, False)
    assert (again.seq, again.purpose) == (first.seq, "round 1")
    assert ledger.spent(dataset).charges == 1


def test_a_repeat_is_answered_even_when_nothing_is_left(ledger, dataset):
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    ledger.set_budget(dataset, budget_of(0.01), reason="enough")
    assert not ledger.charge(dataset, "run", "r1", [EVENT], **TERMS).new
    with pytest.raises(PrivacyBudgetError, match="budget"):
        ledger.charge(dataset, "run", "r2", [EVENT], **TERMS)


def test_another_release_under_the_same_request_is_refused(ledger, dataset):
    ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    quieter = GaussianEvent(clip=1.0, noise_sd=41.0)
    with pytest.raises(PrivacyBudgetError, match="another release"):
        ledger.charge(dataset, "run", "r1", [quieter], **TERMS)
    with pytest.raises(PrivacyBudgetError, match="another release"):
        ledger.charge(dataset, "run", "r1", [EVENT], unit="party", adjacency="add-or-remove-one")


def test_unknown_events_and_bad_names_are_refused(ledger, dataset):
    with pytest.raises(ConfigError, match="unknown event of type str"):
        ledger.charge(dataset, "run", "r1", ["gaussian"], **TERMS)
    with pytest.raises(ConfigError, match="events is empty"):
        ledger.charge(dataset, "run", "r1", [], **TERMS)
    for bad in ("", "=cmd|x", "a b", "\x1b[2J", "x" * 129, "a\n"):
        with pytest.raises(ConfigError, match="run = "):
            ledger.charge(dataset, bad, "r1", [EVENT], **TERMS)
        with pytest.raises(ConfigError, match="request = "):
            ledger.charge(dataset, "run", bad, [EVENT], **TERMS)
    with pytest.raises(ConfigError, match="purpose"):
        ledger.charge(dataset, "run", "r1", [EVENT], purpose="\x07", **TERMS)
    with pytest.raises(ConfigError, match="unit"):
        ledger.charge(dataset, "run", "r1", [EVENT], unit="house", adjacency="replace-one")
    with pytest.raises(ConfigError, match="adjacency"):
        ledger.charge(dataset, "run", "r1", [EVENT], unit="record", adjacency="remove")


@given(
    st.lists(
        st.builds(
            GaussianEvent,
            clip=st.floats(1e-300, 1e300),
            noise_sd=st.floats(1e-300, 1e300),
            count=st.integers(1, 2**40),
            sampling=st.none() | st.builds(Poisson, rate=st.floats(1e-9, 1)),
            nonnegative=st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_events_come_back_from_disk_to_the_last_bit(place, events):
    where = place / secrets.token_hex(8) / "ledger.sqlite"
    with Ledger(where, create=True, epsilon=lambda *_: 0.5) as ledger:
        some = ledger.identify([], {"y": np.ones(2)})
        ledger.set_budget(some, budget_of(), reason="test")
        ledger.charge(some, "run", "r1", events, **TERMS)
    with Ledger(where, epsilon=lambda *_: 0.5) as ledger:
        stored = ledger.charge(some, "run", "r1", events, **TERMS)
    assert list(stored.events) == events


def test_equal_events_reach_the_accountant_merged(path, ledger, dataset):
    seen = []
    with Ledger(path, epsilon=lambda *a: seen.append(a) or zcdp(*a)) as other:
        for number in range(5):
            other.charge(dataset, "run", f"r{number}", [EVENT, EVENT], **TERMS)
        other.check(dataset, [EVENT], **TERMS, run="run")
    events, delta, adjacency = seen[4]
    assert events == (GaussianEvent(clip=1.0, noise_sd=40.0, count=10),)
    assert (delta, adjacency) == (1e-5, "add-or-remove-one")
    assert len(seen) == 7, "what is known is not asked again"


def test_a_thousand_charges(ledger):
    some = ledger.identify([], {"y": np.ones(3)})
    ledger.set_budget(some, budget_of(1e6), reason="a long study")
    for number in range(1000):
        ledger.charge(some, "run", f"r{number}", [EVENT], **TERMS)
    assert ledger.spent(some).charges == 1000


def test_threads_share_one_ledger(ledger, dataset):
    threads = [
        threading.Thread(
            target=lambda i=i: ledger.charge(dataset, f"run{i}", "r1", [EVENT], **TERMS)
        )
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.spent(dataset).charges == 8


def test_files_are_for_their_owner_only(path, ledger, dataset):
    for name in ("ledger.sqlite", "ledger.key", "ledger.head"):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "ledger.head",
        "ledger.key",
        "ledger.sqlite",
    ]


def test_opening_makes_nothing_unless_told_to(path):
    with pytest.raises(ConfigError, match="no ledger"):
        Ledger(path)
    assert not path.exists()
    with pytest.raises(ConfigError, match="sqlite"):
        Ledger(path.with_suffix(".db"), create=True)


def test_a_ledger_is_not_closed_while_another_thread_uses_it(ledger):
    """SQLite would use freed memory."""
    began, finish, order = threading.Event(), threading.Event(), []

    def use():
        with ledger._log.writing():
            began.set()
            assert finish.wait(30)
            ledger._log.store.head()
            order.append("used")

    def close():
        ledger.close()
        order.append("closed")

    threads = [threading.Thread(target=one) for one in (use, close)]
    threads[0].start()
    assert began.wait(30)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    finish.set()
    for one in threads:
        one.join(30)
    assert order == ["used", "closed"]


def test_a_ledger_is_not_used_across_a_fork(ledger, dataset, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DataError, match="fork"):
        ledger.spent(dataset)


def test_an_interrupted_update_is_not_half_believed(ledger, dataset, monkeypatch):
    from tacit.privacy.ledger import log as ledger_log

    real = ledger_log.State.apply

    def stop(self, entry):
        real(self, entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger_log.State, "apply", stop)
    with pytest.raises(KeyboardInterrupt):
        ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    monkeypatch.undo()
    assert ledger.spent(dataset).charges == 1
    assert not ledger.charge(dataset, "run", "r1", [EVENT], **TERMS).new


def test_a_full_disk_releases_nothing(ledger, dataset, monkeypatch):
    from tacit.privacy.ledger import store as ledger_store

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger_store, "write_durably", full)
    with pytest.raises(DataError, match="nothing is released"):
        ledger.charge(dataset, "run", "r1", [EVENT], **TERMS)
    monkeypatch.undo()
    assert not ledger.charge(dataset, "run", "r1", [EVENT], **TERMS).new
