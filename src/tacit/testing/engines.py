"""Conformance suite of engines: results, charges and resumption."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tacit.engines.driver import Driver
from tacit.engines.execute import Outcome, carry_out
from tacit.engines.in_process import InProcess
from tacit.errors import PrivacyBudgetError
from tacit.models import LinearRegression, Records
from tacit.plan.plan import Plan, make_plan
from tacit.privacy.ledger.ledger import Ledger
from tacit.server.checkpoint import Checkpoint
from tacit.server.schedule import Asynchronous, Schedule, Sequential, Synchronous
from tacit.server.state import Log, ServerState
from tacit.testing.engine_probe import (
    FAULT,
    ROUNDS,
    RUN,
    SIZES,
    Journal,
    Line,
    WatchedCharging,
    prior_plan,
    probe_plan,
    watched_charging,
)

Engine = Callable[..., Driver]
SCHEDULES: dict[str, Schedule] = {
    "synchronous": Synchronous(rounds=ROUNDS),
    "sequential": Sequential(rounds=2),
    "asynchronous": Asynchronous(rounds=2),
}
ROUNDING = 1e-10


class Cancelled(Exception):  # noqa: N818 - it is not an error
    """Raised by an observer to stop the run."""


def check_engine(engine: Engine) -> None:
    """Assert that an engine computes and charges like the in-process engine.

    The following properties are checked:

    * With the same seed, the posterior equals that of the in-process engine for every schedule: bit
      for bit if each party is computed alone, and up to rounding if parties are batched or named in
      another order. This includes a run whose prior is outside of the family and answers like a
      party.
    * Every update is reported to the observer. If the observer raises an exception, the run ends.
      A new engine continues from the checkpoint to the same posterior, bit for bit.
    * In a private run, every reply is charged once, before it is computed. It is computed with the
      noise key of its charge, and stored before the server receives it.
    * If a party fails, the run ends with the error of the party, and no charged reply is lost:
      after resuming, the party replies with the same noise and without a second charge.
    * If a charge is refused, the run ends before anything is computed.

    Parameters
    ----------
    engine
        A function of (agreement, rules, parties, batch_parties, settled, charging) that returns an
        engine: a subclass of `tacit.engines.driver.Driver`, or a `functools.partial` of one. It is
        called about a dozen times. Asynchronous replies must be applied in the simulated order.
    """
    with tempfile.TemporaryDirectory(prefix="tacit-check-") as name:
        folder = Path(name)
        _check_compiled(engine)
        _check_prior(engine)
        _check_progress(engine, folder)
        _check_schedules(engine, folder)
        _check_cancelled(engine, folder)
        _check_charges(engine, folder)
        _check_failing_party(engine, folder)
        _check_refused_charge(engine, folder)


def _run(engine: Engine, plan: Plan, check: str, **options: Any) -> Outcome:
    try:
        return carry_out(plan, engine=engine, **options)
    except Exception as error:
        raise AssertionError(
            f"{check}: the engine raised {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _expect_same(outcome: Outcome, wanted: Outcome, check: str, *, rounding: float = 0.0) -> None:
    for name, value in wanted.state.q.items():
        found = outcome.state.q[name]
        gap = float(np.max(np.abs(found - value) / np.max(np.abs(value))))
        assert gap <= rounding, (
            f"{check}: '{name}' of the posterior differs by {gap:.3g} of its size from the "
            f"in-process engine's, expected {f'at most {rounding:g}' if rounding else 'equal bits'}"
        )
    visits = {name: factor.visits for name, factor in outcome.state.factors.items()}
    asked = {name: factor.visits for name, factor in wanted.state.factors.items()}
    assert visits == asked, f"{check}: answers per party are {visits}, expected {asked}"


def _check_compiled(engine: Engine) -> None:
    rng = np.random.default_rng(2)
    parties = {}
    for name, count in (("small", 5), ("large", 40), ("middle", 12)):
        x = np.column_stack([np.ones(count), rng.normal(size=count)])
        parties[name] = {"x": x, "y": x @ [1.0, -0.5] + rng.normal(size=count)}

    def plan(parties: dict[str, Records], *, together: bool) -> Plan:
        return make_plan(
            LinearRegression(("intercept", "slope"), prior_sd=1.0),
            parties,
            schedule=Synchronous(rounds=2),
            batch_parties=together,
            seed=1,
        )

    alone = carry_out(plan(parties, together=False))
    check = "posterior: each party answered alone"
    _expect_same(_run(engine, plan(parties, together=False), check), alone, check)
    check = "posterior: parties answered together and named in another order"
    turned = plan(dict(reversed(parties.items())), together=True)
    _expect_same(_run(engine, turned, check), alone, check, rounding=ROUNDING)


def _check_prior(engine: Engine) -> None:
    """Check a run whose prior is outside the family and answers like a party (`PRIOR_PARTY`)."""
    plan, check = prior_plan(), "posterior: a prior outside of the family, which answers as a party"
    assert plan.rules.site_prior
    _expect_same(_run(engine, plan, check), carry_out(plan), check, rounding=ROUNDING)


def _check_schedules(engine: Engine, folder: Path) -> None:
    for name in ("sequential", "asynchronous"):
        plan = probe_plan(folder / name, SCHEDULES[name], insecure_noise_seed=7)
        check = f"posterior: {name} schedule"
        _expect_same(_run(engine, plan, check), carry_out(plan), check)


def _check_progress(engine: Engine, folder: Path) -> None:
    """Check that the observer is called with every update, and that the log contains the same
    events as with the in-process engine.
    """
    plan = probe_plan(folder / "progress", SCHEDULES["synchronous"], insecure_noise_seed=7)
    seen: list[tuple[int, int]] = []
    expected: list[tuple[int, int]] = []

    def noting(place: list[tuple[int, int]]) -> Callable[[ServerState, Log], None]:
        return lambda state, _: place.append((state.round, state.exchanges))

    outcome = _run(engine, plan, "posterior: synchronous schedule", observe=noting(seen))
    wanted = carry_out(plan, observe=noting(expected))
    _expect_same(outcome, wanted, "posterior: synchronous schedule")
    assert seen == expected, (
        f"progress: the observer was given (round, exchanges) {seen}, expected {expected}"
    )
    events = [line["event"] for line in outcome.log]
    rounds = [line["event"] for line in wanted.log]
    assert events == rounds, f"progress: the log has the events {events}, expected {rounds}"


def _check_cancelled(engine: Engine, folder: Path) -> None:
    journal = folder / "cancelled"
    plan = probe_plan(journal, SCHEDULES["synchronous"], insecure_noise_seed=7)
    calls = []

    def cancel(state: ServerState, log: Log) -> None:
        del state, log
        calls.append(True)
        if len(calls) == 2:
            raise Cancelled

    with closing(Checkpoint(folder / "cancelled.sqlite", digest="plan")) as checkpoint:
        stopped = False
        try:
            carry_out(plan, engine=engine, checkpoint=checkpoint, observe=cancel)
        except Cancelled:
            stopped = True
        assert stopped, "cancellation: the observer raised, but the run went on to its end"
        done = checkpoint.load()
        assert done is not None, "cancellation: nothing was saved to the checkpoint"
        assert done[0].round == 2, (
            f"cancellation: after two rounds the checkpoint holds round {done[0].round}"
        )
    before = len(Journal(str(journal)).read())
    with closing(Checkpoint(folder / "cancelled.sqlite", digest="plan")) as checkpoint:
        outcome = _run(engine, plan, "cancellation", checkpoint=checkpoint)
    again = [line.visit for line in Journal(str(journal)).read()[before:]]
    assert all(visit == 2 for visit in again), (
        f"cancellation: after two of three rounds visits {sorted(set(again))} were computed again, "
        "expected only visit 2: requests that were answered must not be repeated"
    )
    _expect_same(outcome, carry_out(plan), "cancellation: resumed run")


def _check_charges(engine: Engine, folder: Path) -> None:
    journal = folder / "charges"
    plan = probe_plan(journal, SCHEDULES["synchronous"], insecure_noise_seed=None)
    with Ledger(folder / "charges-ledger.sqlite", create=True) as ledger:
        charging = watched_charging(plan, ledger, journal)

        def stored(state: ServerState, log: Log) -> None:
            del log
            rows = [row for row in ledger.entries() if row.kind == "charge"]
            lost = [row.request for row in rows if row.state != "answered"]
            assert not lost, (
                f"stored before seen: round {state.round} was applied while the ledger holds no "
                f"reply to {', '.join(lost)}: a crash would lose charged replies"
            )

        try:
            outcome = carry_out(plan, engine=engine, charging=charging, observe=stored)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"charges: the engine raised {error!r}") from error
        _check_journal(Journal(str(journal)).read(), "charges")
        _check_once(ledger, "charges")
        _check_replay(plan, charging, outcome, "charges")


def _check_journal(lines: list[Line], check: str) -> None:
    """Check that each reply is computed after its charge, with the noise key of this charge, and
    that it is stored afterwards.
    """
    charged: dict[tuple[str, int], str] = {}
    stored: set[tuple[str, int]] = set()
    for line in lines:
        where = f"{check}: party {line.party!r}, visit {line.visit}"
        if line.what == "charged":
            assert charged.setdefault(line.place, line.noise) == line.noise, (
                f"{where}: one answer was given two noise keys"
            )
        elif line.what == "stored":
            stored.add(line.place)
        else:
            assert line.place in charged, f"{where}: computed before it was charged"
            assert line.place not in stored, f"{where}: computed again after its reply was stored"
            assert line.noise == charged[line.place], (
                f"{where}: computed with a noise key other than that of its charge"
            )
    missing = charged.keys() - stored
    assert not missing, f"{check}: {sorted(missing)} were charged and no reply was stored"


def _check_once(ledger: Ledger, check: str) -> None:
    counts = Counter(charge.purpose for charge in ledger.charges(RUN))
    twice = sorted(purpose for purpose, count in counts.items() if count > 1)
    assert not twice, f"{check}: charged more than once: {'; '.join(twice)}"
    expected = ROUNDS * len(SIZES)
    assert len(counts) == expected, f"{check}: {len(counts)} answers charged, expected {expected}"
    problems = ledger.verify().problems
    assert not problems, f"{check}: the ledger is damaged: {'; '.join(problems)}"


def _check_replay(plan: Plan, charging: WatchedCharging, outcome: Outcome, check: str) -> None:
    """Check that the in-process engine computes the same posterior from the stored replies."""
    journal = Journal(charging.journal)
    before = len(journal.read())
    replayed = carry_out(plan, engine=InProcess, charging=charging)
    more = journal.read()[before:]
    assert not [line for line in more if line.what == "computed"], (
        f"{check}: the ledger does not hold the replies to all requests of the run"
    )
    _expect_same(outcome, replayed, f"{check}: posterior recomputed from the stored replies")


def _check_failing_party(engine: Engine, folder: Path) -> None:
    journal, path = folder / "failing", folder / "failing.sqlite"
    plan = probe_plan(journal, SCHEDULES["synchronous"], insecure_noise_seed=None)
    fault = Path(f"{journal}.fault")
    with Ledger(folder / "failing-ledger.sqlite", create=True) as ledger:
        charging = watched_charging(plan, ledger, journal)
        fault.touch()
        message = None
        with closing(Checkpoint(path, digest="plan")) as checkpoint:
            try:
                carry_out(plan, engine=engine, charging=charging, checkpoint=checkpoint)
            except Exception as error:
                message = str(error)
        assert message is not None, (
            "a party that fails: the run went on to its end without the party's answer"
        )
        assert FAULT in message, (
            f"a party that fails: the error does not contain the party's message: {message[:200]}"
        )
        charges = ledger.charges(charging.run)
        paid = ledger.paid_for(charging.run)
        assert len(paid) == len(charges) >= len(SIZES), (
            f"a party that fails: {len(charges)} answers were charged and {len(paid)} are stored "
            f"or can be recomputed; expected equal numbers, at least {len(SIZES)}"
        )
        fault.unlink()
        with closing(Checkpoint(path, digest="plan")) as checkpoint:
            options = {"charging": charging, "checkpoint": checkpoint}
            outcome = _run(engine, plan, "a party that fails, resumed", **options)
        _check_journal(Journal(str(journal)).read(), "a party that fails, resumed")
        _check_once(ledger, "a party that fails, resumed")
        _check_replay(plan, charging, outcome, "a party that fails, resumed")


def _check_refused_charge(engine: Engine, folder: Path) -> None:
    """Check that a round that would exceed the budget is refused before anything is computed."""
    journal = folder / "refused"
    plan = probe_plan(journal, SCHEDULES["synchronous"], insecure_noise_seed=None)
    with Ledger(folder / "refused-ledger.sqlite", create=True) as ledger:
        charging = watched_charging(plan, ledger, journal)

        def lower(_state: ServerState, _log: Log) -> None:
            spent = {one: ledger.spent(one) for one in charging.datasets.values()}
            budgets = {
                dataset: msgspec.structs.replace(one.budget, epsilon=one.epsilon)
                for dataset, one in spent.items()
                if one.budget is not None
            }
            ledger.set_budgets(budgets, reason="check_engine")

        refused = False
        try:
            carry_out(plan, engine=engine, charging=charging, observe=lower)
        except PrivacyBudgetError:
            refused = True
        assert refused, "refused charge: the budget was reached and the run went on to its end"
        computed = {line.visit for line in Journal(str(journal)).read() if line.what == "computed"}
        assert computed == {0}, (
            f"refused charge: visits {sorted(computed)} were computed, expected only the first, "
            "which was charged"
        )
