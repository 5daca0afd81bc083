"""A run that is broken off, at any moment and in any way, goes on to the same bits."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing

import numpy as np
import pytest

from tacit.engines.execute import carry_out
from tacit.errors import DataError
from tacit.methods import NaturalVI
from tacit.models import LinearRegression, LogisticRegression
from tacit.plan.plan import make_plan
from tacit.server.checkpoint import Checkpoint
from tacit.server.messages import Reply
from tacit.server.schedule import Asynchronous, Sequential, Synchronous
from tacit.server.state import initial_state, open_requests
from tacit.server.step import begin, step
from tacit.testing.engine_probe import probe_plan

MODEL = LinearRegression(("a", "b", "c"), prior_sd=1.0)
SCHEDULES = {
    "sequential": Sequential(rounds=2, parties_per_round=3),
    "synchronous": Synchronous(rounds=5, damping=0.5),
    "asynchronous": Asynchronous(rounds=3, damping=0.7),
}

SOLVED = "solved"
"""A run whose steps the server controls: its memory has many arrays."""
KINDS = (*SCHEDULES, SOLVED)


@pytest.fixture(scope="module")
def plans(make_parties):
    parties = make_parties((9, 10, 10, 9))
    made = {
        kind: make_plan(MODEL, parties, family="mean-field", schedule=schedule, seed=5)
        for kind, schedule in SCHEDULES.items()
    }
    parties = make_parties((9, 10, 10, 9), output="bernoulli")
    logistic = LogisticRegression(("a", "b", "c"), prior_sd=1.0)
    return made | {SOLVED: make_plan(logistic, parties, method=NaturalVI(), seed=5)}


@pytest.fixture(scope="module")
def undisturbed(plans):
    return {kind: carry_out(plan) for kind, plan in plans.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint" / "server.sqlite"


class PowerCutError(Exception):
    """The lights go out."""


def crash_after(batches):
    left = iter(range(batches))

    def observe(state, log):
        if next(left, None) is None:
            raise PowerCutError

    return observe


def run_once(plan, path, observe=None, kind=Checkpoint):
    checkpoint = kind(path, digest="d")
    try:
        return carry_out(plan, checkpoint=checkpoint, observe=observe)
    finally:
        checkpoint.close()


def assert_same_state(one, two):
    np.testing.assert_equal(
        {name: getattr(one, name) for name in one.__dataclass_fields__},
        {name: getattr(two, name) for name in two.__dataclass_fields__},
    )


def assert_same_outcome(one, two):
    assert_same_state(one.state, two.state)
    assert one.log == two.log


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_does_not_change_the_answer(plans, undisturbed, path, kind):
    assert_same_outcome(run_once(plans[kind], path), undisturbed[kind])


@pytest.mark.parametrize("kind", SCHEDULES)
def test_what_is_saved_is_loaded_to_the_last_bit_at_every_step(plans, path, kind):
    rules, rng = plans[kind].rules, np.random.default_rng(0)
    state, logged = begin(rules, initial_state(rules)), ()
    writer = Checkpoint(path, digest="d")
    writer.save(state)
    steps = 0
    while not state.finished:
        for reader in (writer, Checkpoint(path, digest="d")):
            loaded, log = reader.load()
            assert_same_state(loaded, state)
            assert log == logged
            assert loaded.q["linear"].dtype == np.float64
            assert isinstance(loaded.waiting, tuple)
            if reader is not writer:
                reader.close()
        request = open_requests(state)[-1]
        delta = {"linear": rng.normal(size=3) / 3, "quadratic": -rng.uniform(size=3) * 1e-17}
        if steps == 3:
            delta["quadratic"] = np.full(3, 1e9)
        reply = Reply(request.id, request.party, request.version, delta, rng.normal())
        state, log = step(rules, state, reply, now=float(rng.uniform()))
        logged = (*logged, *log)
        writer.save(state, log)
        steps += 1
    assert steps == state.exchanges > 4
    assert state.refused
    writer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_after_any_update_changes_no_bit(plans, undisturbed, path, kind):
    plan = plans[kind]
    whole_rounds = kind in ("synchronous", SOLVED)
    ended = undisturbed[kind].state
    batches = ended.round if whole_rounds else ended.exchanges
    for k in range(batches):
        with pytest.raises(PowerCutError):
            run_once(plan, path, crash_after(k))
        assert_same_outcome(run_once(plan, path), undisturbed[kind])
        shutil.rmtree(path.parent)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_inside_a_write_loses_that_write_and_nothing_else(plans, undisturbed, path, kind):
    class Torn(Checkpoint):
        """Fails at its k-th save, when all but the log has been written."""

        saves = 0

        def _put_replies(self, state, old):
            super()._put_replies(state, old)
            Torn.saves += 1
            if Torn.saves == self.fatal:
                raise PowerCutError

    for fatal in (1, 2, 4, 5):
        Torn.fatal, Torn.saves = fatal, 0
        with pytest.raises(PowerCutError):
            run_once(plans[kind], path, kind=Torn)
        assert_same_outcome(run_once(plans[kind], path), undisturbed[kind])
        shutil.rmtree(path.parent)


def test_crashing_at_every_batch_in_turn_still_arrives(plans, undisturbed, path):
    plan = plans["asynchronous"]
    crashes = 0
    while True:
        try:
            outcome = run_once(plan, path, crash_after(0))
        except PowerCutError:
            crashes += 1
            continue
        break
    assert crashes == undisturbed["asynchronous"].state.exchanges
    assert_same_outcome(outcome, undisturbed["asynchronous"])


def test_the_wrong_resumption_would_be_noticed(plans, undisturbed, path):
    """Power: forgetting one open request, or the last digits of q, changes the answer."""
    plan = plans["asynchronous"]
    with pytest.raises(PowerCutError):
        run_once(plan, path, crash_after(4))
    checkpoint = Checkpoint(path, digest="d")
    state, _ = checkpoint.load()
    q = {**state.q, "linear": state.q["linear"] * (1 + 1e-12)}
    checkpoint.save(type(state)(**{**state.__dict__, "q": q}))
    checkpoint.close()
    spoilt = run_once(plan, path).state
    assert not np.array_equal(spoilt.q["linear"], undisturbed["asynchronous"].state.q["linear"])


SLOW_RUN = """
    import sys, time
    from pathlib import Path
    import numpy as np
    from tacit.engines.execute import carry_out
    from tacit.plan.plan import make_plan
    from tacit.models import LinearRegression
    from tacit.server.schedule import Asynchronous, Sequential, Synchronous
    from tacit.server.checkpoint import Checkpoint

    arrays = np.load(sys.argv[1])
    names = sorted({key.split("/")[0] for key in arrays})
    parties = {name: {key: arrays[f"{name}/{key}"] for key in "xy"} for name in names}
    schedule = eval(sys.argv[2])
    plan = make_plan(LinearRegression(("a", "b", "c"), prior_sd=1.0), parties,
                     family="mean-field", schedule=schedule, seed=5)
    def observe(state, log):
        if state.exchanges <= 4:
            print("going", flush=True)
        time.sleep(0.005)
    carry_out(plan, checkpoint=Checkpoint(Path(sys.argv[3]), digest="d"), observe=observe)
"""


@pytest.mark.parametrize(
    "text", ["Asynchronous(rounds=120, damping=0.7)", "Sequential(rounds=120, damping=0.7)"]
)
def test_kill_minus_nine_changes_no_bit(make_parties, tmp_path, path, text):
    """Another process is killed at a random moment; this one goes on from what it left."""
    parties = make_parties((9, 10, 10, 9))
    arrays = {f"{name}/{key}": value for name, p in parties.items() for key, value in p.items()}
    np.savez(tmp_path / "data.npz", **arrays)
    command = [sys.executable, "-c", textwrap.dedent(SLOW_RUN), str(tmp_path / "data.npz")]
    process = subprocess.Popen([*command, text, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    try:
        process.wait(timeout=random.Random(text).uniform(0.2, 0.6))
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    schedule = eval(text, {"Asynchronous": Asynchronous, "Sequential": Sequential})
    plan = make_plan(MODEL, parties, family="mean-field", schedule=schedule, seed=5)
    checkpoint = Checkpoint(path, digest="d")
    left, _ = checkpoint.load()
    assert 0 < left.exchanges < 480
    resumed = carry_out(plan, checkpoint=checkpoint)
    checkpoint.close()
    assert_same_outcome(resumed, carry_out(plan))


@pytest.fixture
def finished(plans, path):
    run_once(plans[SOLVED], path)
    return path


def test_another_configuration_is_refused(finished):
    with pytest.raises(DataError, match="belongs to another configuration, other records or"):
        Checkpoint(finished, digest="another")


def open_and_load(path):
    checkpoint = Checkpoint(path, digest="d")
    try:
        return checkpoint.load()
    finally:
        checkpoint.close()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 0.95])
def test_a_truncated_file_is_refused(finished, share):
    raw = finished.read_bytes()
    assert open_and_load(finished) is not None
    finished.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(DataError, match=r"cannot be read .* restore it from a copy"):
        open_and_load(finished)


def test_a_file_of_another_kind_is_refused(path):
    path.parent.mkdir(parents=True)
    path.write_text("not a database, but long enough to be mistaken for one\n" * 40)
    with pytest.raises(DataError, match="cannot be read"):
        Checkpoint(path, digest="d")


def test_a_changed_byte_is_noticed_wherever_it_is(finished):
    """A flipped byte either is refused or lies where nothing is stored: never another answer."""
    whole = finished.read_bytes()
    expected, expected_log = open_and_load(finished)
    rng, refused = np.random.default_rng(1), 0
    stored = np.flatnonzero(np.frombuffer(whole, np.uint8))
    for place in rng.choice(stored, 150):
        raw = bytearray(whole)
        raw[place] ^= 0x10
        finished.write_bytes(bytes(raw))
        try:
            state, log = open_and_load(finished)
        except DataError:
            refused += 1
            continue
        assert_same_state(state, expected)
        assert log == expected_log
    assert refused > 75


@pytest.mark.parametrize("table", ["scalars", "factors", "posteriors", "arrays", "log"])
def test_a_changed_byte_in_a_stored_value_is_refused(finished, table):
    db = sqlite3.connect(finished)
    (body,) = db.execute(f"SELECT body FROM {table} ORDER BY length(body)").fetchone()
    db.close()
    whole = finished.read_bytes()
    place = whole.find(body[len(body) // 3 :])
    assert place > 0
    raw = bytearray(whole)
    raw[place] ^= 0x01
    finished.write_bytes(bytes(raw))
    with pytest.raises(DataError, match="checksum mismatch"):
        open_and_load(finished)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM posteriors",
        "DELETE FROM arrays",
        "UPDATE scalars SET body = x'00'",
        "UPDATE factors SET body = (SELECT body FROM scalars)",
        "UPDATE posteriors SET body = (SELECT body FROM scalars)",
        "DROP TABLE replies",
    ],
)
def test_a_file_that_makes_no_sense_is_refused(finished, statement):
    db = sqlite3.connect(finished)
    db.execute(statement)
    db.commit()
    db.close()
    with pytest.raises(DataError, match="cannot be read"):
        open_and_load(finished)


def test_a_crash_while_the_file_is_made_leaves_none(path, monkeypatch):
    """Half a schema would be a directory that can be neither resumed nor understood."""

    def lights_out(*_):
        raise PowerCutError

    monkeypatch.setattr("tacit.server.checkpoint.os.replace", lights_out)
    with pytest.raises(PowerCutError):
        Checkpoint(path, digest="d")
    assert not path.exists()
    monkeypatch.undo()
    fresh = Checkpoint(path, digest="d")
    assert fresh.load() is None
    fresh.close()


def test_an_empty_checkpoint_starts_from_the_beginning(plans, undisturbed, path):
    Checkpoint(path, digest="d").close()
    assert_same_outcome(run_once(plans["sequential"], path), undisturbed["sequential"])


def test_a_checkpoint_of_version_0_1_is_refused(finished):
    with sqlite3.connect(finished) as database:
        database.execute("PRAGMA user_version = 0")
    with pytest.raises(DataError, match="checkpoint format 0, but this version of tacit reads 4"):
        open_and_load(finished)


def test_an_open_request_stays_as_it_was_sent(tmp_path):
    """Parties share the noisy sum: an answer of one changes the factors of those still asked."""
    plan = probe_plan(tmp_path / "journal", Asynchronous(rounds=2), insecure_noise_seed=7)
    state = begin(plan.rules, initial_state(plan.rules))
    sent = {request.id: request.content for request in open_requests(state)}
    with closing(Checkpoint(tmp_path / "c.sqlite", digest="d")) as checkpoint:
        checkpoint.save(state)
        for request in open_requests(state)[:2]:
            arrays = {"linear": np.array([0.7]), "quadratic": np.array([-1.0])}
            reply = Reply(request.id, request.party, request.version, arrays, None)
            before = state.factors
            state, log = step(plan.rules, state, reply)
            assert all(state.factors[name].version > before[name].version for name in before)
            checkpoint.save(state, log)
            sent |= {one.id: one.content for one in open_requests(state) if one.id not in sent}
            assert {one.id: sent[one.id] for one in open_requests(state)} == {
                one.id: one.content for one in open_requests(state)
            }
    with closing(Checkpoint(tmp_path / "c.sqlite", digest="d")) as checkpoint:
        loaded = checkpoint.load()
    assert loaded is not None
    assert {one.id: one.content for one in open_requests(loaded[0])} == {
        one.id: sent[one.id] for one in open_requests(state)
    }
