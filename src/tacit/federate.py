"""From a model and parties to a posterior: choices resolved, engine driven, nothing written.

`tacit.run` adds configuration files and run directories; `tacit.fit` is this for a notebook.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from tacit.charging import Charging
from tacit.engines.compilations import Compilations, compilations
from tacit.engines.driver import Driver
from tacit.engines.in_process import InProcess
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, Natural, make_family
from tacit.local import METHODS, Exact, LocalMethod, PrivateMethod, choose_method
from tacit.local.base import RunFacts
from tacit.local.combine import Combine, Run
from tacit.models import (
    ConjugateGaussian,
    GeneralisedLinear,
    Model,
    PoissonRegression,
    Records,
)
from tacit.models.base import GaussianPriorModel
from tacit.models.prior import PRIOR_PARTY
from tacit.party import Agreement, len_records
from tacit.posterior import Posterior
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.settings import Privacy
from tacit.privacy.settle import PartyShape, Settled, settle
from tacit.pvi import divide, power
from tacit.server import (
    Checkpoint,
    Rules,
    Schedule,
    ServerState,
    Synchronous,
    initial_state,
    resolved_damping,
)
from tacit.server.state import Log

FULL_UP_TO = 256
CONVERGED = 1e-5  # nats a round; 0.005 sd in one coordinate. `Exact` can do better and goes on.
Observer = Callable[[ServerState, Log], None]


@dataclass(frozen=True, kw_only=True)
class Live:
    """What a plan has to be told of a federation whose records are elsewhere."""

    total_units: int = 0
    """How many units all parties have together, where that is public; 0: it is not."""
    quorum: int | None = None
    """With how many answers a round may do; None: everybody's."""
    divide_out: bool = False
    """Whether a party that leaves for good takes its factor with it."""


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
            own_factors=self._noise_rng is not None and self._own_factors,
            most_visits=self.schedule.rounds if self.settled else None,
            quorum=self._quorum,
            divide_out=self.live is not None and self.live.divide_out,
        )

    @property
    def agreement(self) -> Agreement:
        """The parties' side of the plan."""
        noise_seed = None if self.privacy is None else self.privacy.noise_seed
        return Agreement(self.model, self.family, self.method, self.seed, noise_seed)

    def posterior(self, natural: Natural) -> Posterior:
        """What natural parameters of this run, such as a server's state has, stand for."""
        return Posterior(self.model, *self.method.read(self.model, self.family, natural))

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
        if self.privacy is None or self.privacy.aggregation != "server":
            return None
        seed = self.privacy.noise_seed
        key = (seed,) if seed is not None else self.noise_key or (secrets.randbits(128),)
        return lambda number: np.random.default_rng([*key, number])

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
    """What came of a plan."""

    plan: Plan
    state: ServerState = field(repr=False)
    log: Log = field(repr=False)
    train_s: float
    compiled: Compilations
    report: dict[str, Any] = field(default_factory=dict)
    """What the engine has to say about itself."""

    @property
    def posterior(self) -> Posterior:
        """The posterior."""
        return self.plan.posterior(self.state.result)


def choose_family(kind: str, model: Model, *, private: bool = False) -> Family:
    """The family of that name; "auto" is full covariance for a (generalised) linear model.

    Mean-field intervals are too narrow wherever coordinates are correlated, and many parties that
    correct a mean-field q at once converge slowly; up to 256 coordinates a full covariance costs
    little. Other models get the mean-field family, and so does a private run: d² noisy numbers
    instead of 2d would drown in their noise.
    """
    if model.own_family is not None:
        if kind not in ("auto", model.own_family.kind):
            raise ConfigError(
                f"family = {kind!r} with model {model.kind!r}, whose posterior is "
                f"{model.own_family.kind!r}; leave family out"
            )
        return model.own_family
    if kind == "auto":
        linear = not private and isinstance(model, GeneralisedLinear | ConjugateGaussian)
        kind = "full" if linear and model.dimension <= FULL_UP_TO else "mean-field"
    return make_family(kind, model.dimension)


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
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed}; it must be in 0 … {2**32 - 1}")
    if not parties:
        raise DataError("there are no parties; give at least one")
    _check_records(model, {name: one for name, one in parties.items() if one or live is None})
    if PRIOR_PARTY in parties:
        raise ConfigError(f"a party is called {PRIOR_PARTY!r}; that name is the prior's")
    schedule = schedule or Synchronous()
    why = ""
    if method is None:
        steady = live is None or live.quorum is None
        method, why = choose_method(
            model, privacy=privacy, schedule=schedule, parties=len(parties), steady=steady
        )
    method = method.suited(model)
    if not (model.traceable or method.eager):
        usable = ", ".join(kind for kind, one in METHODS.items() if one.eager)
        raise ConfigError(
            f"method.kind = {method.kind!r} needs gradients, which model {model.kind!r} has not; "
            f"choose one of auto, {usable}"
        )
    noisy = isinstance(method, PrivateMethod) and not method.wants_full
    chosen_family = choose_family(family, model, private=noisy)
    units = _units(method, privacy, parties, live)
    method = _settled_method(method, privacy, units, live)
    method.check(model, chosen_family)
    chosen_family = method.family(model, chosen_family)
    if isinstance(method, PrivateMethod):
        method.check_schedule(schedule, len(parties))
    if schedule.parties_per_round is not None and schedule.parties_per_round > len(parties):
        raise ConfigError(
            f"schedule.parties_per_round = {schedule.parties_per_round}; there are only "
            f"{len(parties)} parties"
        )
    if schedule.damping is None and method.damping is not None:
        schedule = replace(schedule, damping=method.damping)
    damping = resolved_damping(
        schedule,
        parties=len(parties),
        dimension=model.dimension,
        full=chosen_family.kind != "mean-field",
        second_order=method.second_order,
    )
    tolerance = schedule.tolerance
    if tolerance is None:
        tolerance = 0.0 if isinstance(method, Exact | PrivateMethod) else CONVERGED
    schedule = replace(schedule, damping=damping, tolerance=tolerance)
    _check_memory(method, model, chosen_family, schedule, live)
    method.check_run(_facts(schedule, privacy, tolerance))
    plan = Plan(
        model, chosen_family, method, schedule, parties, seed, batch_parties, live=live, why=why
    )
    if privacy is None:
        return plan
    assert isinstance(method, PrivateMethod)
    settled = settle(
        privacy,
        method,
        _shapes(schedule, units, seed),
        shares=_shares(privacy, schedule, len(parties), live),
        trust=trust,
    )
    if privacy.aggregation != "plain":
        _check_in_step(settled, schedule, live)
    return replace(plan, privacy=privacy, settled=settled)


def _check_in_step(settled: dict[str, Settled], schedule: Schedule, live: Live | None) -> None:
    """Shared noise is that of one visit only while all parties are at the same one."""
    apart = schedule.parties_per_round is not None or (live is not None and live.quorum is not None)
    differ = any(len(one.answers) > 1 for one in settled.values())
    if apart and differ:
        raise ConfigError(
            "the noise of this method differs by visit and is shared by the parties, but with "
            "schedule.parties_per_round or a quorum they would not be at the same visit, and a sum "
            "could have less noise than one of them needs; ask everybody, or aggregate 'plain'"
        )


def _facts(schedule: Schedule, privacy: Privacy | None, tolerance: float) -> RunFacts:
    clips = [] if privacy is None else [own.clip for own in privacy.parties.values()]
    return RunFacts(
        schedule=schedule.kind,
        everybody=schedule.parties_per_round is None,
        rounds=schedule.rounds,
        tolerance=tolerance,
        one_noise=privacy is not None and privacy.aggregation != "plain" and any(clips),
    )


def _units(
    method: LocalMethod, privacy: Privacy | None, parties: dict[str, Records], live: Live | None
) -> dict[str, int]:
    """How many units each party has; where its records are elsewhere, about how many."""
    if privacy is None or not isinstance(method, PrivateMethod):
        return {}
    method = replace(method, unit=privacy.unit)
    method.check_unit()
    share = 1
    if live is not None and privacy.unit != "party":
        share = max(1, math.ceil(live.total_units / len(parties)))
    return {
        name: method.count_units(name, records) if records else share
        for name, records in parties.items()
    }


def _settled_method(
    method: LocalMethod, privacy: Privacy | None, units: dict[str, int], live: Live | None
) -> LocalMethod:
    """The method, told what it protects; a method and a privacy that do not fit are refused."""
    if privacy is None:
        if method.private:
            raise ConfigError(
                f"method.kind = {method.kind!r} is private, but privacy = 'none'; say what it is "
                "to guarantee, e.g. [privacy] epsilon = 1.0, or choose another method"
            )
        return method
    if not isinstance(method, PrivateMethod):
        private = ", ".join(kind for kind, one in METHODS.items() if one.private)
        raise ConfigError(
            f"method.kind = {method.kind!r} sends exact updates and cannot keep privacy.epsilon = "
            f"{privacy.epsilon}; choose one of auto, {private}"
        )
    total = 0
    if privacy.relation == "substitute":
        total = sum(units.values())
        if live is not None and privacy.unit != "party":
            total = live.total_units
    return replace(
        method,
        unit=privacy.unit,
        relation=privacy.relation,
        aggregation=privacy.aggregation,
        parties=len(units),
        total_units=total,
    )


def _shapes(schedule: Schedule, units: dict[str, int], seed: int) -> dict[str, PartyShape]:
    """How often the schedule asks each party, which is public, and how many units it has."""
    names = tuple(units)
    chosen = [schedule.chosen(names, seed, number + 1) for number in range(schedule.rounds)]
    visits = Counter(name for names in chosen for name in names)
    return {name: PartyShape(visits[name], count) for name, count in units.items()}


def _shares(privacy: Privacy, schedule: Schedule, parties: int, live: Live | None) -> int:
    """How many messages are added up before anybody sees them."""
    if privacy.aggregation == "plain":
        return 1
    if privacy.aggregation == "server" and live is not None:
        raise ConfigError(
            "privacy.aggregation = 'server' in a live federation; a party cannot see that a server "
            "far away adds the noise that its ledger is charged for: use 'trusted' or 'plain'"
        )
    if schedule.kind != "synchronous":
        raise ConfigError(
            f"privacy.aggregation = {privacy.aggregation!r} with schedule.kind = "
            f"{schedule.kind!r}, which shows q after every single message; only 'synchronous' "
            "adds them up first"
        )
    asked = schedule.parties_per_round or parties
    return asked if live is None or live.quorum is None else min(asked, live.quorum)


def _check_memory(
    method: LocalMethod, model: Model, family: Family, schedule: Schedule, live: Live | None
) -> None:
    """What a party keeps to itself is right only if it can tell whether its round was applied."""
    everybody = schedule.kind == "synchronous" and schedule.parties_per_round is None
    everybody = everybody and (live is None or live.quorum is None)
    if not everybody and method.memory(model, family) is not None:
        raise ConfigError(
            f"method.kind = {method.kind!r} here keeps a factor at each party, which needs rounds "
            f"of everybody: schedule.kind = {schedule.kind!r}, parties_per_round = "
            f"{schedule.parties_per_round}; use 'synchronous' without it, or method.rate"
        )


def _check_records(model: Model, parties: dict[str, Records]) -> None:
    """Refuse records that differ in form between parties, or that the model cannot read."""
    forms = {}
    for name, records in parties.items():
        if not records or len_records(records) == 0:
            raise DataError(f"party {name!r} has no records; leave it out or give it some")
        lengths = {key: len(column) for key, column in records.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"party {name!r} has columns of unequal length {lengths}; each record needs all"
            )
        forms[name] = {key: np.shape(column)[1:] for key, column in records.items()}
        for key, column in records.items():
            if np.asarray(column).dtype.kind == "f" and not np.all(np.isfinite(column)):
                raise DataError(
                    f"party {name!r}, column {key!r}: a value is not finite; mend it or drop "
                    "the record"
                )
    if not forms:
        return
    first = next(iter(parties))
    for name, form in forms.items():
        if form != forms[first]:
            raise DataError(
                f"party {name!r} has columns {form}, but {first!r} has {forms[first]}; every "
                "party must hold the same columns"
            )
    if model.traceable:
        _check_readable(model, parties[first])
    for name, records in parties.items():
        model.check_records(name, records)
    if model.output == "bernoulli" and isinstance(model, GaussianPriorModel):
        for name, records in parties.items():
            if not np.all(np.isin(records["y"], (0, 1))):
                raise DataError(
                    f"party {name!r}: y holds values other than 0 and 1, which model "
                    f"{model.kind!r} needs; recode them or choose another model"
                )
    if isinstance(model, PoissonRegression):
        for name, records in parties.items():
            y = np.asarray(records["y"], np.float64)
            if not np.all((y >= 0) & (y <= model.largest) & (y == np.round(y))):
                raise DataError(
                    f"party {name!r}: y holds values other than whole numbers from 0 to "
                    f"{model.largest:g}, which model 'poisson' needs; mend them, or declare "
                    "another largest count"
                )


def _check_readable(model: Model, records: Records) -> None:
    import jax

    example = {key: np.asarray(column[:1]) for key, column in records.items()}
    try:
        answer = jax.eval_shape(model.log_likelihood, np.zeros(model.dimension), example)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        columns = ", ".join(f"{key} {np.shape(column)[1:]}" for key, column in records.items())
        raise DataError(
            f"model {model.kind!r} of dimension {model.dimension} cannot read records with columns "
            f"{columns} ({type(error).__name__}: {str(error).splitlines()[0]}); choose another "
            "model or add what it needs"
        ) from error
    if answer.shape != (1,):
        raise ConfigError(
            f"model {model.kind!r} answers shape {answer.shape} for 1 record; log_likelihood must "
            "give one number a record"
        )


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
) -> Outcome:
    """Run the plan, from the checkpoint if that holds a state, on an engine of that kind.

    Without `charging` a private run has its guarantee for itself alone: nobody adds it to what was
    spent on the same records before.
    """
    before, started = compilations(), time.perf_counter()
    if checkpoint is not None:
        plan = replace(plan, noise_key=checkpoint.secret())
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
        state = initial_state(rules, first_factors(plan))
    driver = engine(
        plan.agreement, rules, dict(plan.parties), plan.batch_parties, plan.settled, charging
    )
    state = driver.run(state, checkpoint=checkpoint, observe=watch)
    return Outcome(
        plan,
        state,
        tuple(lines),
        time.perf_counter() - started,
        compilations().since(before).plus(driver.elsewhere),
        driver.report,
    )
