"""Several processes on one ledger, and processes that are killed at any moment."""

import os
import random
import time

import ledger_worker as worker
import numpy as np
import pytest
from ledger_worker import EVENT, TERMS, budget_of, zcdp

from tacit.privacy.accounting.filters import GAUSSIAN_SHARE
from tacit.privacy.events import GaussianEvent
from tacit.privacy.ledger.ledger import Ledger, audit

LONG_S = 60


def joined(process):
    process.join(LONG_S)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def released(path):
    return path.read_text().split("\n")[:-1] if path.exists() else []


def charged(path):
    with Ledger(path, epsilon=zcdp) as ledger:
        return [f"{row.run} {row.request}" for row in ledger.entries() if row.kind == "charge"]


def test_kill_at_random_moments_never_shows_less_than_was_released(processes, place, path):
    with Ledger(path, create=True, epsilon=zcdp) as ledger:
        dataset = ledger.identify([], {"y": np.ones(3)})
        ledger.set_budget(dataset, budget_of(1e6), reason="test")
    side, rng = place / "released", random.Random(7)
    for trial in range(24):
        begun = processes.Event()
        args = (path, dataset, f"run{trial}", side, begun)
        child = processes.Process(target=worker.charge_forever, args=args)
        child.start()
        assert begun.wait(LONG_S)
        time.sleep(rng.uniform(0, 0.02))
        child.kill()
        joined(child)
        report = audit(path)
        assert report.sound, report.problems
        sent, paid = released(side), charged(path)
        assert set(sent) <= set(paid)
        assert len(paid) == len(set(paid))
        assert len(paid) - len(sent) <= trial + 1, "at most one lost charge a crash"
    assert len(released(side)) >= 24
    with Ledger(path, epsilon=zcdp) as ledger:
        lower = zcdp([EVENT] * len(released(side)), 1e-5, "add-or-remove-one")
        epsilon = ledger.spent(dataset).epsilon
        assert epsilon is not None
        assert epsilon >= lower


@pytest.mark.parametrize(
    ("point", "there"),
    [("before the commit", 0), ("before the head", 1), ("inside the head", 1)],
)
def test_kill_at_each_point_of_a_charge(processes, path, ledger, dataset, point, there):
    child = processes.Process(target=worker.die_at, args=(path, dataset, point, True))
    child.start()
    assert joined(child) == -9
    assert audit(path).sound, "a crash is no alarm"
    with Ledger(path, epsilon=zcdp) as again:
        assert again.spent(dataset).charges == there
        assert again.charge(dataset, "run", "doomed", [EVENT], **TERMS).new == (not there)
    assert audit(path).sound


@pytest.mark.parametrize("point", ["inside the head", "before the key", "after the key"])
def test_kill_while_a_ledger_is_made(processes, path, point):
    child = processes.Process(target=worker.die_at, args=(path, None, point, False))
    child.start()
    assert joined(child) == -9
    with Ledger(path, create=True, epsilon=zcdp) as ledger:
        assert ledger.entries() == []
    assert audit(path).sound


def test_two_processes_cannot_overspend_together(processes, place, path):
    """Room for 41 charges: whoever comes 42nd is refused, whichever process it is."""
    room = 41
    events = [GaussianEvent(clip=1.0, noise_sd=40.0, count=room)]
    limit = zcdp(events, GAUSSIAN_SHARE * 1e-5, "add-or-remove-one")
    with Ledger(path, create=True, epsilon=zcdp) as ledger:
        dataset = ledger.identify([], {"y": np.ones(3)})
        ledger.set_budget(dataset, budget_of(limit), reason="test")
        side, gate = place / "released", processes.Event()
        children = [
            processes.Process(
                target=worker.charge_until_refused, args=(path, dataset, f"p{i}", side, gate)
            )
            for i in range(3)
        ]
        for child in children:
            child.start()
        gate.set()
        assert [joined(child) for child in children] == [0, 0, 0]
        lines = released(side)
        assert lines.count("refused BudgetExceededError") == 3
        assert len(lines) - 3 == room == ledger.spent(dataset).charges
        assert ledger.spent(dataset).epsilon <= limit
    assert audit(path).sound


def test_one_request_in_several_processes_is_charged_and_answered_once(
    processes, place, path, ledger, dataset
):
    side, gate = place / "released", processes.Event()
    children = [
        processes.Process(target=worker.answer_once, args=(path, dataset, side, gate))
        for _ in range(4)
    ]
    for child in children:
        child.start()
    gate.set()
    assert [joined(child) for child in children] == [0] * 4
    sent = {line for line in released(side) if line.startswith("sent")}
    assert len(sent) == 1, "one request, one answer"
    stored = ledger.recall("run", "same")
    assert stored is not None
    assert sent == {f"sent {stored.hex()}"}
    assert ledger.spent(dataset).charges == 1


def test_processes_that_make_a_ledger_at_once_make_one(processes, place, path):
    side, gate = place / "made", processes.Event()
    children = [
        processes.Process(target=worker.create_together, args=(path, side, gate)) for _ in range(4)
    ]
    for child in children:
        child.start()
    gate.set()
    assert [joined(child) for child in children] == [0] * 4
    assert len(set(released(side))) == 1
    assert len(released(side)) == 4
    assert os.listdir(path.parent).count("ledger.key") == 1  # noqa: PTH208
