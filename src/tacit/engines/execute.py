"""Run a plan on an engine, from its checkpoint if there is one."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from tacit.engines.compilations import Compilations, compilations
from tacit.engines.driver import Driver
from tacit.engines.in_process import InProcess
from tacit.errors import ConfigError
from tacit.expfam import Gaussian
from tacit.methods import Clipped
from tacit.methods.natural.method import SOLVED_UP_TO
from tacit.methods.natural.stages import DISPERSION
from tacit.party.charge import Charging
from tacit.party.clipping import clipped_share
from tacit.plan.checks import infinite_likelihoods
from tacit.plan.plan import Plan, first_factors
from tacit.results import gradient_step
from tacit.results.diagnostics import run_verdict
from tacit.results.dispersion import Dispersion, measured_dispersion
from tacit.results.evaluation import EvaluationWarning
from tacit.results.images import other_mode
from tacit.results.posterior import Posterior, posterior_of
from tacit.results.verdict import (
    Verdict,
)
from tacit.server.checkpoint import Checkpoint
from tacit.server.run import ServerRun
from tacit.server.state import Log, ServerState, initial_state
from tacit.support.blas import one_blas_thread

Observer = Callable[[ServerState, Log], None]


@dataclass(frozen=True)
class Outcome:
    """Result of running a plan, without records."""

    plan: Plan
    """The plan without its parties' records."""
    state: ServerState = field(repr=False)
    log: Log = field(repr=False)
    train_s: float
    compiled: Compilations
    report: dict[str, Any] = field(default_factory=dict)
    """Engine-specific facts about the run."""
    gradient_step: float | None = None
    """Result of `tacit.results.gradient_step`, the size of a full step at the final q, for methods
    that do not take full steps; else None.
    """
    clipped: Clipped | None = None
    """Result of `tacit.party.clipping.clipped_share`; None unless this was a simulation."""
    dispersion: Dispersion | None = None
    """Result of `measured_dispersion`, if the parties' replies did not contain it."""
    other_mode: str | None = None
    """Result of `tacit.results.images.other_mode`."""
    impossible: str | None = None
    """The first party with records whose log-likelihood is not finite, if the run ended because no
    finite log-density was found. None with privacy.
    """

    @property
    def posterior(self) -> Posterior:
        """The posterior."""
        return posterior_of(self.plan, self.state.result, self.state.public)

    @property
    def verdict(self) -> Verdict:
        """Whether the run has converged, and the reason."""
        found = run_verdict(self.plan, self.state, self.log, self.gradient_step, self.dispersion)
        why = found.why if self.impossible is None else f"{found.why}; {self.impossible}"
        return found._replace(why=why, other_mode=self.other_mode)


def carry_out(
    plan: Plan,
    *,
    checkpoint: Checkpoint | None = None,
    observe: Observer | None = None,
    charging: Charging | None = None,
    engine: Callable[..., Driver] = InProcess,
    start: ServerState | None = None,
) -> Outcome:
    """Run a plan on an engine, from the checkpoint if it contains a state.

    `start` is the initial state if there is no checkpoint; by default `first_factors` computes it.
    Without `charging`, the guarantee of a private run covers only this run, because the spending of
    earlier runs on the same records is not added.
    """
    with one_blas_thread():
        return _carried_out(plan, checkpoint, observe, charging, engine, start)


def _carried_out(
    plan: Plan,
    checkpoint: Checkpoint | None,
    observe: Observer | None,
    charging: Charging | None,
    engine: Callable[..., Driver],
    start: ServerState | None,
) -> Outcome:
    if not all(plan.parties.values()) and plan.live is None:
        raise ConfigError(
            "the plan holds no records, like the plan of a result or a copy of a private plan; "
            "make a new one with make_plan"
        )
    if not plan.method.in_numpy(plan.model):
        import_module("jax")  # compilations are counted once it is loaded
    before, started = compilations(), time.perf_counter()
    # One key for the whole run, drawn once so that every reader sees the same noise.
    secret = (secrets.randbits(256),) if checkpoint is None else checkpoint.secret()
    plan = replace(plan, noise_key=secret)
    rules = plan.rules
    server = ServerRun(rules, checkpoint)
    if server.state is None:
        server.state = start or initial_state(rules, first_factors(plan))
    driver = engine(
        plan.agreement, rules, dict(plan.parties), plan.batch_parties, plan.settled, charging
    )
    driver.run(server, observe=observe)
    state = server.state
    return Outcome(
        plan.without_records(),
        state,
        tuple(server.history),
        time.perf_counter() - started,
        compilations().since(before).plus(driver.elsewhere),
        driver.report,
        _measured_step(plan, state),
        _measured_clipping(plan, state, driver),
        _measured_dispersion(plan, state),
        _other_mode(plan, state),
        _impossible(plan, state),
    )


def _measured_step(plan: Plan, state: ServerState) -> float | None:
    """Return the size of a full step from the final q (`gradient_step`), for a method without
    `step_share`.

    The result is None in a private run, because the step is computed from exact records.
    """
    if plan.privacy is not None or plan.method.step_share is not None:
        return None
    posterior = posterior_of(plan, state.result, state.public)
    if not isinstance(posterior.family, Gaussian) or not plan.model.traceable:
        return None
    try:
        return gradient_step(plan.model, posterior.family, posterior.natural, plan.parties)
    except Exception:  # e.g. too little memory: keep the posterior
        return None


def _measured_dispersion(plan: Plan, state: ServerState) -> Dispersion | None:
    """Return the measured squared residuals at the final q.

    The result is None in a private run, because the measurement reads exact records.
    """
    if plan.privacy is not None or DISPERSION in (state.memory or {}):
        return None
    posterior = posterior_of(plan, state.result, state.public)
    if not isinstance(posterior.family, Gaussian) or not all(plan.parties.values()):
        return None
    try:
        return measured_dispersion(plan.model, posterior.family, posterior.natural, plan.parties)
    except (MemoryError, RuntimeError, np.linalg.LinAlgError):  # keep the posterior
        return None


def _impossible(plan: Plan, state: ServerState) -> str | None:
    """Describe the first party with impossible records, for `Outcome.impossible`."""
    if plan.privacy is not None or state.finished != "no density":
        return None
    here = {name: records for name, records in plan.parties.items() if records}
    return next(infinite_likelihoods(plan.model, here), None)


def _other_mode(plan: Plan, state: ServerState) -> str | None:
    """Return the name of a point that is probably another mode of the posterior (`other_mode`).

    The result is None if no such point is found. In a private run it is always None.
    """
    if plan.privacy is not None or plan.model.dimension > SOLVED_UP_TO:
        return None
    posterior = posterior_of(plan, state.result, state.public)
    if not isinstance(posterior.family, Gaussian) or not all(plan.parties.values()):
        return None
    try:
        return other_mode(plan.model, posterior.family, posterior.natural, plan.parties)
    except (MemoryError, RuntimeError, np.linalg.LinAlgError):  # keep the posterior
        return None


def _measured_clipping(plan: Plan, state: ServerState, driver: Driver) -> Clipped | None:
    """Measure the share of clipped contributions at the end of a simulation.

    It depends on exact records, so it is never measured with secret noise.
    """
    if plan.privacy is None or plan.privacy.insecure_noise_seed is None or not plan.report_steps:
        return None
    try:
        return clipped_share(
            plan.agreement,
            plan.parties,
            plan.settled,
            state.q,
            state.public,
            {name: state.factors[name].natural for name in plan.parties},
            {name: one.memory for name, one in driver.store.states.items()},
        )
    except Exception as error:  # e.g. too little memory: keep the posterior
        warnings.warn(
            f"the share of clipped contributions could not be computed: {error}",
            EvaluationWarning,
            stacklevel=2,
        )
        return None
