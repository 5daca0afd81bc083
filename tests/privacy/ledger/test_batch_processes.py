"""Whole rounds in processes that are killed at any moment, and in several at once."""

import random
import time
from collections import Counter

import ledger_worker as worker
import numpy as np
import pytest
from ledger_worker import EVENT, asks_of, budget_of, zcdp

from tacit.privacy.accounting.filters import GAUSSIAN_SHARE
from tacit.privacy.events import GaussianEvent
from tacit.privacy.ledger.ledger import Ledger, audit

LONG_S = 60
PARTIES = 5


def joined(process):
    process.join(LONG_S)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


@pytest.fixture
def parties(ledger):
    """Data sets with room for more than any test asks."""
    found = [ledger.identify([], {"y": np.full(3, float(i))}) for i in range(PARTIES)]
    ledger.set_budgets(dict.fromkeys(found, budget_of(1e6)), reason="test")
    return found


def rounds(ledger, kind):
    """How many entries of a kind each round of each run has."""
    rows = [row for row in ledger.entries() if row.kind == kind]
    assert len(rows) == len({(row.run, row.request, row.attempt) for row in rows})
    return Counter((row.run, row.request.partition(".")[0]) for row in rows)


def test_kill_at_random_moments_leaves_whole_rounds(processes, place, path, parties):
    sides, rng = [place / f"released{trial}" for trial in range(16)], random.Random(11)
    for trial, side in enumerate(sides):
        begun = processes.Event()
        args = (path, parties, f"run{trial}", side, begun)
        child = processes.Process(target=worker.answer_rounds_forever, args=args)
        child.start()
        assert begun.wait(LONG_S)
        time.sleep(rng.uniform(0, 0.03))
        child.kill()
        joined(child)
    report = audit(path)
    assert report.sound, report.problems
    with Ledger(path, epsilon=zcdp) as again:
        charged, stored = rounds(again, "charge"), rounds(again, "reply")
        assert set(charged.values()) == {PARTIES}, "a round is charged whole or not at all"
        assert set(stored.values()) == {PARTIES}
        assert set(stored) <= set(charged), "no reply without a charge"
        assert len(charged) - len(stored) <= 16, "at most one lost round a crash"
        # A kill may tear the last line of a file; what counts is that whole ones are in the ledger.
        lines = [line.split() for side in sides for line in side.read_text().split("\n")[:-1]]
        assert len(lines) >= 16
        for run, number, *bodies in lines:
            places = [(run, f"{number}.{i}") for i in range(PARTIES)]
            assert again.recall_many(places) == [bytes.fromhex(body) for body in bodies]


@pytest.mark.parametrize(
    ("point", "charged", "stored"),
    [
        ("charges before the commit", 0, 0),
        ("charges before the head", PARTIES, 0),
        ("computing", PARTIES, 0),
        ("replies before the commit", PARTIES, 0),
        ("replies before the head", PARTIES, PARTIES),
    ],
)
def test_kill_at_each_point_of_a_round(processes, path, ledger, parties, point, charged, stored):
    child = processes.Process(target=worker.die_in_answer_many, args=(path, parties, point))
    child.start()
    assert joined(child) == -9
    assert audit(path).sound, "a crash is no alarm"
    kinds = Counter(row.kind for row in ledger.entries())
    assert (kinds["charge"], kinds["reply"]) == (charged, stored)
    given = []

    def compute(opened):
        given.extend(one.release.request for one in opened)
        return [b"again"] * len(opened)

    bodies = ledger.answer_many(asks_of(parties, "run", "doomed"), compute)
    assert bodies == [b"noise" if stored else b"again"] * PARTIES
    assert len(given) == (0 if stored else PARTIES)
    assert Counter(row.kind for row in ledger.entries())["charge"] == PARTIES, (
        "a crash costs nothing"
    )
    assert audit(path).sound


def test_two_processes_with_whole_rounds_cannot_overspend_together(
    processes, place, path, ledger, parties
):
    """The last party has room for 23 rounds: the 24th charges nobody, whoever asks for it."""
    room = 23
    events = [GaussianEvent(clip=1.0, noise_sd=EVENT.noise_sd, count=room)]
    limit = zcdp(events, GAUSSIAN_SHARE * 1e-5, "add-or-remove-one")
    ledger.set_budget(parties[-1], budget_of(limit), reason="less")
    side, gate = place / "released", processes.Event()
    children = [
        processes.Process(
            target=worker.answer_rounds_until_refused, args=(path, parties, f"p{i}", side, gate)
        )
        for i in range(2)
    ]
    for child in children:
        child.start()
    gate.set()
    assert [joined(child) for child in children] == [0, 0]
    lines = side.read_text().split("\n")[:-1]
    assert lines.count("refused BudgetExceededError") == 2
    assert len(lines) - 2 == room
    assert [ledger.spent(each).charges for each in parties] == [room] * PARTIES
    assert ledger.spent(parties[-1]).epsilon <= limit
    assert audit(path).sound
