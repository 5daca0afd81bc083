"""From a model and parties to a posterior: choices resolved, engine driven, nothing written.

`tacit.run` adds configuration files and run directories; `tacit.fit` is this for a notebook.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tacit.engines.compilations import Compilations, compilations
from tacit.engines.in_process import InProcess
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, make_family
from tacit.local import Exact, LocalMethod, choose_method
from tacit.models import ConjugateGaussian, GeneralisedLinear, Model, Records
from tacit.models.base import GaussianPriorModel
from tacit.models.prior import PRIOR_PARTY
from tacit.party import Agreement, len_records
from tacit.posterior import Posterior
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
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a plan."""

    plan: Plan
    state: ServerState = field(repr=False)
    log: Log = field(repr=False)
    train_s: float
    compiled: Compilations

    @property
    def posterior(self) -> Posterior:
        """The posterior."""
        return Posterior(self.plan.model, self.plan.family, self.state.q)


def choose_family(kind: str, model: Model) -> Family:
    """The family of that name; "auto" is full covariance for a (generalised) linear model.

    Mean-field intervals are too narrow wherever coordinates are correlated, and many parties that
    correct a mean-field q at once converge slowly; up to 256 coordinates a full covariance costs
    little. Other models get the mean-field family.
    """
    if kind == "auto":
        linear = isinstance(model, GeneralisedLinear | ConjugateGaussian)
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
) -> Plan:
    """Resolve every "auto" and refuse what cannot work, before anything runs."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed}; it must be in 0 … {2**32 - 1}")
    _check_records(model, parties)
    if PRIOR_PARTY in parties:
        raise ConfigError(f"a party is called {PRIOR_PARTY!r}; that name is the prior's")
    chosen_family = choose_family(family, model)
    method = method or choose_method(model)
    method.check(model, chosen_family)
    schedule = schedule or Synchronous()
    if schedule.parties_per_round is not None and schedule.parties_per_round > len(parties):
        raise ConfigError(
            f"schedule.parties_per_round = {schedule.parties_per_round}; there are only "
            f"{len(parties)} parties"
        )
    damping = resolved_damping(
        schedule,
        parties=len(parties),
        dimension=model.dimension,
        full=chosen_family.kind == "full",
        second_order=method.second_order,
    )
    tolerance = schedule.tolerance
    if tolerance is None:
        tolerance = 0.0 if isinstance(method, Exact) else CONVERGED
    schedule = replace(schedule, damping=damping, tolerance=tolerance)
    return Plan(model, chosen_family, method, schedule, parties, seed, batch_parties)


def _check_records(model: Model, parties: dict[str, Records]) -> None:
    """Refuse records that differ in form between parties, or that the model cannot read."""
    if not parties:
        raise DataError("there are no parties; give at least one")
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
    first = next(iter(parties))
    for name, form in forms.items():
        if form != forms[first]:
            raise DataError(
                f"party {name!r} has columns {form}, but {first!r} has {forms[first]}; every "
                "party must hold the same columns"
            )
    _check_readable(model, parties[first])
    if model.output == "bernoulli" and isinstance(model, GaussianPriorModel):
        for name, records in parties.items():
            if not np.all(np.isin(records["y"], (0, 1))):
                raise DataError(
                    f"party {name!r}: y holds values other than 0 and 1, which model "
                    f"{model.kind!r} needs; recode them or choose another model"
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


def carry_out(
    plan: Plan, *, checkpoint: Checkpoint | None = None, observe: Observer | None = None
) -> Outcome:
    """Run the plan, from the checkpoint if that holds a state."""
    before, started = compilations(), time.perf_counter()
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
        site = plan.model.has_site_prior
        state = initial_state(rules, {PRIOR_PARTY: plan.model.prior(plan.family)} if site else None)
    agreement = Agreement(plan.model, plan.family, plan.method, plan.seed)
    engine = InProcess(agreement, rules, dict(plan.parties), plan.batch_parties)
    state = engine.run(state, checkpoint=checkpoint, observe=watch)
    return Outcome(
        plan, state, tuple(lines), time.perf_counter() - started, compilations().since(before)
    )
