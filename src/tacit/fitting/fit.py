"""`tacit.fit`, `tacit.check` and `tacit.load`: a federation in a notebook."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from tacit.data import Federation
from tacit.data.frames import frame_library
from tacit.data.records import pooled
from tacit.data.schema.layout import Layout
from tacit.data.schema.schema import Schema
from tacit.engines.execute import Observer, Outcome, carry_out
from tacit.errors import ConfigError
from tacit.fitting.charged import fit_ledger, known_total
from tacit.fitting.progress import Progress
from tacit.fitting.result import Fit
from tacit.fitting.study import Family, read_study
from tacit.methods import LocalMethod, PrivateScores, PrivateScoring
from tacit.methods.scoring.units import check_units
from tacit.models import Model, ModelSchema, Records
from tacit.models.registry import build
from tacit.plan.arguments import (
    _check_fits,
    as_method,
    as_parties,
    as_schedule,
    as_seed,
    check_bounded,
    check_callback,
    check_declared,
    check_model,
    check_test,
)
from tacit.plan.plan import Plan, make_plan
from tacit.privacy.settings import Privacy
from tacit.results.cautions import Caution, warn
from tacit.results.check import Check, describe
from tacit.results.compose import compose_result, data_facts, party_row, privacy_facts
from tacit.results.diagnostics import known_before, second_choice
from tacit.results.evaluation import (
    Attempts,
    EvaluationWarning,
    measure,
    measure_parties,
    outcome_unit,
)
from tacit.results.published import NOTHING_MEASURED, public_result
from tacit.results.saved import read_saved
from tacit.results.shown import site_summary
from tacit.results.statements import not_declared
from tacit.results.summary import LedgerFacts, Result, declared_columns
from tacit.server.schedule import Schedule
from tacit.support.argument_names import python_names

PREDICTIVE_DRAWS = 100


@dataclass(frozen=True)
class _Prepared:
    """Checked arguments of `fit`: a plan, and facts about its records."""

    plan: Plan
    test: Records | None
    federation: Federation | None
    undeclared: tuple[str, ...]
    frames: str | None
    """Library of the data frames that were given (`frame_library`)."""

    @property
    def layout(self) -> Layout | None:
        return None if self.federation is None else self.federation.layout


def fit(
    model: str | Model | type[Model],
    data: Any,
    *,
    privacy: Literal["none"] | Privacy | None,
    party: str | None = None,
    schema: Schema | None = None,
    family: Family = "auto",
    person: str | None = None,
    test: Any = None,
    posterior: str = "auto",
    method: LocalMethod | str = "auto",
    schedule: Schedule | str = "synchronous",
    seed: int = 0,
    ledger: str | Path | None = None,
    callback: Observer | None = None,
    progress: bool | None = None,
) -> Fit:
    """Fit a model to the records of several parties, in this process.

    A private fit is charged to a ledger that adds up the spending on the same records, and is
    refused if it would exceed their budget. Unusable arguments or records raise a `TacitError`.

    Parameters
    ----------
    model
        A formula such as "died ~ age + C(sex)"; a model (e.g. of `tacit.from_numpyro`); a class of
        `tacit.models`, which is instantiated for the columns of the federation; or, without
        privacy, a NumPyro function whose arguments are columns of the records.
    data
        With a formula: a pandas, polars or Arrow data frame, a dict from party names to frames,
        files (one per party) or a pattern such as "data/*.csv". Otherwise a federation
        (`tacit.datasets.load`), or arrays of each party: ``{"north": {"x": x, "y": y}, …}``.
    privacy
        `tacit.Privacy(epsilon=…)`; None or "none" for exact updates without differential privacy.
    party, person
        Columns of a data frame: the party of each record, and its person (for unit = "person").
    schema
        Public bounds and levels of columns. Without privacy, undeclared ones are read from `data`.
    family
        Likelihood of a formula: "logistic", "linear", "poisson", "softmax", "auto" (by the kind of
        outcome), or keys of the [model] table: ``{"kind": "linear", "noise_sd": 12.0}``.
    test
        Held-out records, or the share of a data frame to hold out; by default `federation.test`.
    posterior, method, schedule
        `posterior`: "mean-field", "full" (covariance) or "auto". `method` and `schedule`: objects
        of `tacit.methods` and `tacit.schedules`, or names such as "auto" and "sequential".
    seed
        Seed of everything random except privacy noise.
    ledger
        Ledger file to charge; by default `privacy.ledger` or your own. "none": no ledger.
    callback, progress
        `callback`: a function of (state, log) that is called after every update of the posterior.
        `progress`: whether to show a progress bar; by default only in notebooks.
    """
    check_callback(callback)
    prepared = _prepared(
        model, data, privacy, party, schema, family, person, test, posterior, method, schedule, seed
    )
    return _run(prepared, ledger, callback, progress)


def check(
    model: str | Model | type[Model],
    data: Any,
    *,
    privacy: Literal["none"] | Privacy | None,
    party: str | None = None,
    schema: Schema | None = None,
    family: Family = "auto",
    person: str | None = None,
    test: Any = None,
    posterior: str = "auto",
    method: LocalMethod | str = "auto",
    schedule: Schedule | str = "synchronous",
    seed: int = 0,
) -> Check:
    """Validate the arguments of `fit` and describe the plan. Nothing is run or spent.

    Parameters
    ----------
    model, data, privacy, party, schema, family, person, test, posterior, method, schedule, seed
        The arguments of `fit`.

    Returns
    -------
    Check
        The plan: method, schedule, guarantee, noise and signal. `print` shows it.

    Raises
    ------
    tacit.TacitError
        The error that `fit` would raise before it runs.

    Examples
    --------
    >>> import tacit
    >>> hospitals = tacit.datasets.load("synthetic-cohort", parties=3, records=300, seed=1)
    >>> checked = tacit.check(tacit.models.LogisticRegression, hospitals, privacy=None)
    >>> dict(checked.rows)["held out"]
    '60 records'
    """
    prepared = _prepared(
        model, data, privacy, party, schema, family, person, test, posterior, method, schedule, seed
    )
    return describe(prepared.plan, prepared.federation, prepared.test)


def load(path: str | Path, *, model: Model | None = None) -> Fit:
    """Read a fit that `Fit.save` wrote, or the public part of a run directory.

    Parameters
    ----------
    path
        A run directory, its public part, the state directory of a live server or party, or a
        folder that `Fit.save` wrote.
    model
        The model that was fitted, for models that cannot be stored (NumPyro functions). Without it
        such a fit has its posterior and summary, but cannot predict.

    Returns
    -------
    Fit
        The fit, without metrics or history that are not public.
    """
    public, posterior, history = read_saved(Path(path), model)
    result, guarantee = public, public.privacy.guarantee
    if guarantee is not None and public.privacy.ledger is None:
        total = known_total(public.run, guarantee.delta)
        facts = msgspec.structs.replace(public.privacy, ledger=total)
        result = msgspec.structs.replace(public, privacy=facts)
    return Fit(posterior, history, _schema_of(public), result, public)


def _prepared(
    model: Any,
    data: Any,
    privacy: Literal["none"] | Privacy | None,
    party: str | None,
    schema: Schema | None,
    family: Family,
    person: str | None,
    test: Any,
    posterior: str,
    method: LocalMethod | str,
    schedule: Schedule | str,
    seed: int,
) -> _Prepared:
    """Check the arguments of `fit`, read its records and make the plan."""
    with python_names():
        study = read_study(
            model, data, private=isinstance(privacy, Privacy), party=party, schema=schema,
            family=family, person=person, test=test, seed=as_seed(seed),
        )  # fmt: skip
        prepared = _prepare(*study, privacy, posterior, method, schedule, seed)
    known = data.frames if isinstance(data, Federation) else frame_library(data)
    return replace(prepared, frames=known)


def _run(
    prepared: _Prepared,
    ledger: str | Path | None,
    callback: Observer | None,
    progress: bool | None,
) -> Fit:
    """Charge the ledger, run the plan and evaluate it. Warnings name the line that called `fit`."""
    before = [*second_choice(prepared.plan), *known_before(prepared.plan)]
    warn(before, stacklevel=4)
    with fit_ledger(prepared.plan, prepared.federation, ledger) as charged:
        charging = None if charged is None else charged.charging
        with Progress(prepared.plan.schedule.rounds, progress) as bar:
            observe = bar.observer(callback)
            outcome = carry_out(prepared.plan, observe=observe, charging=charging)
    fitted = _fit_of(prepared, outcome, None if charged is None else charged.facts)
    cautions = [Caution(one.kind, one.text) for one in fitted._result.cautions]
    warn([one for one in cautions if one not in before], stacklevel=4)
    return fitted


def _prepare(
    model: Model | type[Model],
    data: Federation | dict[str, Records],
    test: Records | None,
    privacy: Literal["none"] | Privacy | None,
    posterior: str,
    method: LocalMethod | str,
    schedule: Schedule | str,
    seed: int,
) -> _Prepared:
    private = None if isinstance(privacy, str) and privacy == "none" else privacy
    if private is not None and not isinstance(private, Privacy):
        raise ConfigError(
            f"privacy = {privacy!r}; give tacit.Privacy(epsilon=…, delta=…), or None to train "
            "without privacy"
        )
    check_model(model)
    seed = as_seed(seed)
    federation = data if isinstance(data, Federation) else None
    parties = data.parties if isinstance(data, Federation) else as_parties(data)
    undeclared = ()
    if federation is None:
        if private is not None and isinstance(model, Model):
            undeclared = check_declared(model, parties)
    else:
        if private is not None:
            check_bounded(federation)
        test = federation.test if test is None else test
    model = _as_model(model, federation)
    plan = make_plan(
        model,
        parties,
        family=posterior,
        method=as_method(method),
        schedule=as_schedule(schedule),
        seed=seed,
        privacy=private,
    )
    if federation is None and isinstance(plan.method, PrivateScoring):
        check_units(model, parties)
    if federation is None and isinstance(plan.method, PrivateScores):
        plan.method.check_ranges(model, parties)
    check_test(parties, test)
    return _Prepared(plan, test, federation, undeclared, None)


def _as_model(model: Model | type[Model], federation: Federation | None) -> Model:
    """Return the model; if a class was given, instantiate it for the federation's columns."""
    if isinstance(model, Model):
        return model
    if federation is None:
        raise ConfigError(
            f"model = {model.__name__} is a class, but the parties' records are plain arrays "
            f"without names of columns; give an instance, e.g. {model.__name__}(names)"
        )
    _check_fits(model, federation)
    return build(model, model.Settings(), ModelSchema.of(federation))


def _fit_of(prepared: _Prepared, outcome: Outcome, charged: LedgerFacts | None) -> Fit:
    plan, federation = prepared.plan, prepared.federation
    posterior = outcome.posterior
    attempts = Attempts()
    unit = outcome_unit(federation)
    # An exact training score would be an uncharged release.
    train = pooled(plan.parties) if plan.privacy is None else None
    metrics, bins = attempts.attempt(
        "metrics",
        lambda: measure(posterior, train, prepared.test, PREDICTIVE_DRAWS, plan.seed, unit),
        otherwise=(NOTHING_MEASURED, None),
    )
    shared = {} if federation is None else federation.held_out_by_party()
    if not shared and train is not None and "y" in train:
        shared = plan.parties
    if "metrics" in attempts.failed:
        shared = {}
    by_party = attempts.attempt(
        "metrics by party",
        lambda: measure_parties(posterior, shared, PREDICTIVE_DRAWS, plan.seed, unit),
        otherwise={},
    )
    sites = attempts.attempt("summary", lambda: site_summary(posterior, plan.seed), otherwise={})
    for what, why in attempts.failed.items():
        warnings.warn(f"{what} could not be computed: {why}", EvaluationWarning, stacklevel=4)
    privacy = privacy_facts(plan)
    if prepared.undeclared:
        user_program = plan.model.user_program
        lacks = not_declared(prepared.undeclared, user_program=user_program)
        said = f"{privacy.statement} {lacks}"
        privacy = msgspec.structs.replace(privacy, statement=said)
    if charged is not None:
        privacy = msgspec.structs.replace(privacy, ledger=charged)
    result = compose_result(
        plan,
        posterior,
        outcome.state,
        outcome.log,
        outcome.verdict,
        prepared.layout,
        outcome.clipped,
        name="fit",
        engine="in-process",
        run=None if charged is None else charged.run,
        metrics=metrics,
        party_metrics=by_party,
        calibration={} if bins is None else {"held_out": bins},
        sites=sites,
        not_evaluated=attempts.failed,
        parties=[party_row(plan, name) for name in plan.parties],
        data=msgspec.structs.replace(data_facts(federation), frames=prepared.frames),
        privacy=privacy,
    )
    rounds = [line for line in outcome.log if line["event"] == "round"]
    public = public_result(result, plan, publish=False)
    return Fit(posterior, rounds, _schema_of(result), result, public, outcome)


def _schema_of(result: Result) -> Schema | None:
    columns = declared_columns(result.data)
    return None if columns is None else Schema.of(columns)
