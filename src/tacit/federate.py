"""From a model and parties to a posterior: choices resolved, engine driven, nothing written.

`tacit.run` adds configuration files and run directories; `tacit.fit` is this for a notebook.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from tacit.blas import one_blas_thread
from tacit.charging import Charging
from tacit.engines.compilations import Compilations, compilations
from tacit.engines.driver import Driver
from tacit.engines.in_process import InProcess
from tacit.errors import ConfigError
from tacit.evaluate import gradient_step
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.local import LocalMethod, PrivateMethod, choose_method
from tacit.local.combine import Combine, Run
from tacit.models import (
    Model,
    Records,
    SoftmaxRegression,
)
from tacit.models.prior import PRIOR_PARTY
from tacit.party import Agreement
from tacit.planning import (
    Live,
    check_eager,
    check_in_step,
    check_memory,
    check_parties,
    check_rounding,
    choose_family,
    facts,
    resolved_schedule,
    settled_method,
    shapes_of,
    shares_of,
    units_of,
)
from tacit.posterior import Posterior
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.settings import Privacy
from tacit.privacy.settle import Settled, settle
from tacit.pvi import divide, power
from tacit.server import (
    Checkpoint,
    Rules,
    Schedule,
    ServerState,
    Synchronous,
    initial_state,
)
from tacit.server.state import Log
from tacit.verdict import (
    Caution,
    Verdict,
    convergence_caution,
    judge,
    learned,
    learning_caution,
    rounding_trouble,
)

MOST_COMMON = 0.1
"""Of a logarithm of variances: 5 % of a standard deviation."""
Observer = Callable[[ServerState, Log], None]


@dataclass(frozen=True)
class Plan:
    """Everything a run does, decided: the same plan gives the same posterior."""

    model: Model
    family: Family
    method: LocalMethod
    schedule: Schedule
    parties: dict[str, Records] = field(repr=False)  # records are not for notebooks and logs
    seed: int = 0
    batch_parties: bool = True
    privacy: Privacy | None = None
    settled: dict[str, Settled] = field(default_factory=dict)
    """Noise, events and guarantee of every party; empty for a run without privacy."""
    live: Live | None = None
    noise_key: tuple[int, ...] | None = field(default=None, repr=False)
    """What the server's own noise is made of, kept with the checkpoint: the noise of a round that
    is done again, from a copy of it, must be the same."""
    report_steps: bool = field(default=True, compare=False)
    """Whether the log says how far each round moved q; False saves that work."""
    why: str = field(default="", compare=False)
    """Why "auto" is this method; empty where the method was named."""

    @property
    def guarantee(self) -> Guarantee | None:
        """What holds for everybody: parties hold different records, so the weakest counts."""
        if not self.settled:
            return None
        each = [one.guarantee for one in self.settled.values()]
        return msgspec.structs.replace(
            each[0],
            epsilon=max(one.epsilon for one in each),
            delta=max(one.delta for one in each),
        )

    @property
    def rules(self) -> Rules:
        """The server's side of the plan."""
        site = self.model.has_site_prior
        return Rules(
            family=self.family,
            schedule=self.schedule,
            parties=((PRIOR_PARTY,) if site else ()) + tuple(self.parties),
            seed=self.seed,
            prior=self.family.zero() if site else self.model.prior(self.family),
            site_prior=site,
            average_last=math.ceil(self.method.averaged_share * self.schedule.rounds),
            combine=self._combine,
            own_factors=self._server_adds_noise and self._own_factors,
            most_visits=self.schedule.rounds if self.settled else None,
            quorum=self._quorum,
            line_search=self.method.whole_steps(self.family),
            divide_out=self.live is not None and self.live.divide_out,
            leave_out=self.live is not None,
            report_steps=self.report_steps,
        )

    @property
    def agreement(self) -> Agreement:
        """The parties' side of the plan."""
        noise_seed = None if self.privacy is None else self.privacy.noise_seed
        return Agreement(self.model, self.family, self.method, self.seed, noise_seed)

    def posterior(self, natural: Natural) -> Posterior:
        """What natural parameters of this run, such as a server's state has, stand for."""
        with one_blas_thread():  # the same bits as at the end of a live federation
            read = self.method.read(self.model, self.family, natural)
        return Posterior(self.model, *read)

    def without_records(self) -> Plan:
        """The same plan with empty records and without the server's noise key.

        What a result keeps: its files, copies and pickles hold nobody's records.
        """
        return replace(self, parties={name: {} for name in self.parties}, noise_key=None)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: a private plan leaves its records out."""
        kept = self if self.privacy is None else self.without_records()
        return dict(vars(kept))

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    @property
    def _own_factors(self) -> bool:
        return isinstance(self.method, PrivateMethod) and self.method.own_factors

    @property
    def _quorum(self) -> int | None:
        """With shared noise a sum of fewer messages would carry less than was promised."""
        shares = max((one.shares for one in self.settled.values()), default=1)
        return shares if shares > 1 else None if self.live is None else self.live.quorum

    @property
    def _noise_rng(self) -> Callable[[int], np.random.Generator] | None:
        """The server's own noise, by round, where it is the server that adds it."""
        if self.privacy is None or not self._server_adds_noise:
            return None
        seed = self.privacy.noise_seed
        key = self.noise_key if seed is None else (seed,)

        def generator(number: int) -> np.random.Generator:
            if key is None:
                raise RuntimeError("this plan has no noise key: carry_out draws one for each run")
            return np.random.default_rng([*key, number])

        return generator

    @property
    def _server_adds_noise(self) -> bool:
        return self.privacy is not None and self.privacy.aggregation == "server"

    @property
    def _combine(self) -> Combine | None:
        if not isinstance(self.method, PrivateMethod):
            return None
        asked = self.schedule.parties_per_round or len(self.parties)

        def noise_sd(number: int) -> float:
            """Of the round's sum: as many parties' releases as are asked."""
            each = [
                max(
                    (event.noise_sd for event in one.events_at(min(number, one.visits) - 1)),
                    default=0.0,
                )
                ** 2
                / one.shares
                for one in self.settled.values()
            ]
            return math.sqrt(sum(each) * asked / len(each))

        return self.method.server(
            Run(
                self.model,
                self.family,
                parties=len(self.parties),
                asked=asked,
                rounds=self.schedule.rounds,
                damping_at=self.schedule.damping_at,
                noise_sd=noise_sd,
                noise_rng=self._noise_rng,
            )
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a plan. It holds no records: a posterior may be shared, they may not."""

    plan: Plan
    """The plan without its parties' records."""
    state: ServerState = field(repr=False)
    log: Log = field(repr=False)
    train_s: float
    compiled: Compilations
    report: dict[str, Any] = field(default_factory=dict)
    """What the engine has to say about itself."""
    gradient_step: float | None = None
    """That of `tacit.evaluate.gradient_step`, where it says more than the last round does."""

    @property
    def posterior(self) -> Posterior:
        """The posterior."""
        return self.plan.posterior(self.state.result)

    @property
    def verdict(self) -> Verdict:
        """Whether the run converged, and why."""
        return run_verdict(self.plan, self.state, self.log, self.gradient_step)


def run_verdict(
    plan: Plan, state: ServerState, log: Sequence[dict[str, Any]], step: float | None = None
) -> Verdict:
    """Whether a run that has ended converged, from what its server has seen and that step."""
    posterior = plan.posterior(state.result)
    trouble = rounding_trouble(posterior.family, posterior.natural)
    if trouble is None and isinstance(plan.model, SoftmaxRegression) and plan.privacy is None:
        trouble = _common_trouble(plan.model, posterior)
    if trouble is not None:
        return Verdict(False, trouble)
    return judge(
        plan.family,
        state,
        log,
        private=plan.privacy is not None,
        step_share=plan.method.step_share,
        gradient_step=step,
        exact_loss=plan.schedule.kind == "synchronous",
    )


def _common_trouble(model: SoftmaxRegression, posterior: Posterior) -> str | None:
    """Whether rounding has changed what all levels have in common, which the prior alone knows."""
    if not isinstance(posterior.family, FullGaussian):
        return None
    levels, width = len(model.levels), len(model.layout)
    covariance = posterior.family.covariance(posterior.natural)
    blocks = np.asarray(covariance).reshape(levels, width, levels, width)
    found = np.diagonal(blocks.sum(axis=(0, 2)))
    declared = np.sum(model.rows(np.square(model.prior_sd)), axis=0)
    if np.ptp(model.prior_sd.reshape(levels, width), axis=0).any():
        return None  # levels with unequal priors are told apart by the records as well
    ratio = float(np.max(np.abs(np.log(found / declared))))
    if ratio <= MOST_COMMON:
        return None
    return (
        f"rounding has changed the variance that all levels share by {math.expm1(ratio):.1%}; "
        "bring the columns to a similar scale, or use a narrower prior"
    )


def learned_share(plan: Plan, posterior: Posterior) -> np.ndarray | None:
    """1 − (posterior sd / prior sd)² of each coordinate; None where the prior has no such sd."""
    model = plan.model
    if model.has_site_prior or not model.listed or not isinstance(posterior.family, Gaussian):
        return None
    return learned(posterior.family, posterior.natural, model.prior(posterior.family))


def cautions_of(plan: Plan, posterior: Posterior, verdict: Verdict | None) -> list[Caution]:
    """Why not to believe the numbers of a run as they stand; empty: no reason is known."""
    share = learned_share(plan, posterior)
    doubts = [] if verdict is None else convergence_caution(verdict)
    return [*doubts, *learning_caution(share)]


def make_plan(
    model: Model,
    parties: dict[str, Records],
    *,
    family: str = "auto",
    method: LocalMethod | None = None,
    schedule: Schedule | None = None,
    seed: int = 0,
    batch_parties: bool = True,
    privacy: Privacy | None = None,
    trust: str | None = None,
    live: Live | None = None,
) -> Plan:
    """Resolve every "auto" and refuse what cannot work, before anything runs or is spent.

    `trust` says who must be trusted where the aggregation does not tell. With `live`, records that
    are elsewhere are an empty dictionary.
    """
    check_parties(model, parties, seed, live)
    schedule = schedule or Synchronous()
    why = ""
    if method is None:
        steady = live is None or live.quorum is None
        method, why = choose_method(
            model, privacy=privacy, schedule=schedule, parties=len(parties), steady=steady
        )
    method = method.suited(model)
    check_eager(method, model)
    noisy = isinstance(method, PrivateMethod) and not method.wants_full
    chosen_family = choose_family(family, model, private=noisy)
    units = units_of(method, privacy, parties, live)
    method = settled_method(method, privacy, units, live)
    check_rounding(model, method)
    method.check(model, chosen_family)
    chosen_family = method.family(model, chosen_family)
    schedule = resolved_schedule(schedule, method, model, chosen_family, len(parties))
    check_memory(method, model, chosen_family, schedule, live)
    run_facts = facts(schedule, privacy, live)
    method.check_run(run_facts)
    method = method.for_run(run_facts)
    plan = Plan(
        model, chosen_family, method, schedule, parties, seed, batch_parties, live=live, why=why
    )
    if privacy is None:
        return plan
    assert isinstance(method, PrivateMethod)
    settled = settle(
        privacy,
        method,
        shapes_of(schedule, units, seed),
        shares=shares_of(privacy, schedule, len(parties), live),
        trust=trust,
    )
    if privacy.aggregation != "plain":
        check_in_step(settled, schedule, live)
    return replace(plan, privacy=privacy, settled=settled)


def first_factors(plan: Plan) -> dict[str, Natural]:
    """What q is made of at the beginning, beside a prior in the family.

    A method that does not learn the precision needs q to start with the model's own: every party
    is given an equal share of start/prior, which is public.
    """
    prior = plan.model.prior(plan.family)
    factors = {PRIOR_PARTY: prior} if plan.model.has_site_prior else {}
    if not plan.method.starts_at_prior(plan.model):
        start = plan.model.start(plan.family) or prior
        share = power(divide(start, prior), 1.0 / len(plan.parties))
        factors |= dict.fromkeys(plan.parties, share)
    return factors


def carry_out(
    plan: Plan,
    *,
    checkpoint: Checkpoint | None = None,
    observe: Observer | None = None,
    charging: Charging | None = None,
    engine: Callable[..., Driver] = InProcess,
    start: ServerState | None = None,
) -> Outcome:
    """Run the plan, from the checkpoint if that holds a state, on an engine of that kind.

    `start` is the state that it begins with where there is no other; None: that of `first_factors`.

    Without `charging` a private run has its guarantee for itself alone: nobody adds it to what was
    spent on the same records before.
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
            "the plan holds no records: a result's plan and a copy of a private plan have none; "
            "make it again with make_plan"
        )
    before, started = compilations(), time.perf_counter()
    # One key for the whole run: a property that drew one would give each reader other noise.
    secret = (secrets.randbits(128),) if checkpoint is None else checkpoint.secret()
    plan = replace(plan, noise_key=secret)
    rules = plan.rules
    lines: list[dict[str, Any]] = []

    def watch(state: ServerState, log: Log) -> None:
        lines.extend(log)
        if observe is not None:
            observe(state, log)

    saved = checkpoint.load() if checkpoint is not None else None
    if saved is not None:
        state, log = saved
        lines.extend(log)
    else:
        state = start or initial_state(rules, first_factors(plan))
    driver = engine(
        plan.agreement, rules, dict(plan.parties), plan.batch_parties, plan.settled, charging
    )
    state = driver.run(state, checkpoint=checkpoint, observe=watch)
    return Outcome(
        plan.without_records(),
        state,
        tuple(lines),
        time.perf_counter() - started,
        compilations().since(before).plus(driver.elsewhere),
        driver.report,
        _measured_step(plan, state),
    )


def _measured_step(plan: Plan, state: ServerState) -> float | None:
    """The size of a whole step at the end, for a method that does not make such steps itself.

    It looks at exact gradients of all records, so never in a private run.
    """
    if plan.privacy is not None or plan.method.step_share is not None:
        return None
    posterior = plan.posterior(state.result)
    if not isinstance(posterior.family, Gaussian) or not plan.model.traceable:
        return None
    try:
        return gradient_step(plan.model, posterior.family, posterior.natural, plan.parties)
    except Exception:  # no second derivatives, too little memory: no reason to lose the posterior
        return None
