"""`tacit.fit`, `tacit.check` and `tacit.load`: a federation in a notebook."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from tacit.data import Federation
from tacit.data.records import pooled
from tacit.data.schema.layout import Layout
from tacit.data.schema.schema import Schema
from tacit.engines.execute import Observer, Outcome, carry_out
from tacit.errors import ConfigError
from tacit.fitting.progress import Progress
from tacit.fitting.result import Fit
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
from tacit.results.check import Check, describe
from tacit.results.compose import compose_result, data_facts, party_row, privacy_facts
from tacit.results.evaluation import Attempts, EvaluationWarning, measure
from tacit.results.published import NOTHING_MEASURED, public_result
from tacit.results.saved import read_saved
from tacit.results.shown import site_summary
from tacit.results.statements import NOT_DECLARED
from tacit.results.summary import Result, declared_columns
from tacit.results.verdict import Caution, warn
from tacit.server.schedule import Schedule

PREDICTIVE_DRAWS = 100


@dataclass(frozen=True)
class _Prepared:
    """Checked arguments of `fit`: a plan, and facts about its records."""

    plan: Plan
    test: Records | None
    federation: Federation | None
    undeclared: tuple[str, ...]

    @property
    def layout(self) -> Layout | None:
        return None if self.federation is None else self.federation.layout


def fit(
    model: Model | type[Model],
    data: Federation | dict[str, Records],
    *,
    privacy: Literal["none"] | Privacy | None,
    test: Records | None = None,
    posterior: str = "auto",
    method: LocalMethod | str = "auto",
    schedule: Schedule | str = "synchronous",
    seed: int = 0,
    callback: Observer | None = None,
    progress: bool | None = None,
) -> Fit:
    """Fit a model to the records of several parties, in this process.

    A private fit is charged to no ledger: what other fits spent on the same records is not counted.

    Parameters
    ----------
    model
        A model, or the class of one, such as `tacit.models.LogisticRegression`: it is then made for
        the federation's columns.
    data
        A federation (`tacit.datasets.load`), or a dictionary of arrays per party:
        ``{"north": {"x": x, "y": y}, …}``.
    privacy
        `tacit.Privacy(epsilon=…)`; None or "none" for exact updates without differential privacy.
    test
        Held-out records to compute metrics on; by default the federation's own.
    posterior
        Family of the posterior: "mean-field", "full" (Gaussian with full covariance) or "auto".
    method
        How parties compute their updates: a method of `tacit.methods`, the name of one such as
        "natural", or "auto".
    schedule
        Which parties update the posterior and when: a schedule of `tacit.schedules`, or
        "synchronous", "sequential" or "asynchronous".
    seed
        Seed of everything random except privacy noise.
    callback
        A function of (state, log) that is called after every update of the posterior.
    progress
        Whether to show a progress bar; by default only in notebooks.

    Returns
    -------
    Fit
        The posterior with its verdict, metrics and privacy statement.

    Raises
    ------
    tacit.TacitError
        If an argument or the records cannot be used; the message says what to change.

    Examples
    --------
    >>> import tacit
    >>> hospitals = tacit.datasets.load("synthetic-cohort", parties=3, records=300, seed=1)
    >>> fitted = tacit.fit(tacit.models.LogisticRegression, hospitals, privacy=None)
    >>> fitted.posterior.mean.shape == (len(hospitals.names),)
    True
    """
    check_callback(callback)
    prepared = _prepare(model, data, privacy, test, posterior, method, schedule, seed)
    with Progress(prepared.plan.schedule.rounds, progress) as bar:
        outcome = carry_out(prepared.plan, observe=bar.observer(callback))
    fitted = _fit_of(prepared, outcome)
    warn([Caution(one.kind, one.text) for one in fitted._result.cautions])
    return fitted


def check(
    model: Model | type[Model],
    data: Federation | dict[str, Records],
    *,
    privacy: Literal["none"] | Privacy | None,
    test: Records | None = None,
    posterior: str = "auto",
    method: LocalMethod | str = "auto",
    schedule: Schedule | str = "synchronous",
    seed: int = 0,
) -> Check:
    """Validate the arguments of `fit` and describe what it would do. Nothing is run or spent.

    Parameters
    ----------
    model, data, privacy, test, posterior, method, schedule, seed
        The arguments of `fit`.

    Returns
    -------
    Check
        The plan: method, schedule, guarantee, noise and signal. `print` shows it.

    Raises
    ------
    tacit.TacitError
        What `fit` would raise before it runs.

    Examples
    --------
    >>> import tacit
    >>> hospitals = tacit.datasets.load("synthetic-cohort", parties=3, records=300, seed=1)
    >>> checked = tacit.check(tacit.models.LogisticRegression, hospitals, privacy=None)
    >>> dict(checked.rows)["held out"]
    '60 records'
    """
    prepared = _prepare(model, data, privacy, test, posterior, method, schedule, seed)
    return describe(prepared.plan, prepared.federation, prepared.test)


def load(path: str | Path, *, model: Model | None = None) -> Fit:
    """Read a fit that `Fit.save` wrote, or the public part of a run directory.

    Parameters
    ----------
    path
        A run directory, its public part, or a folder that `Fit.save` wrote.
    model
        The model that was fitted, for models that cannot be stored (NumPyro functions). Without it
        such a fit has its posterior and summary, but cannot predict.

    Returns
    -------
    Fit
        The fit, without metrics or history that are not public.
    """
    result, posterior, history = read_saved(Path(path), model)
    return Fit(posterior, history, _schema_of(result), result, result)


def _prepare(
    model: Model | type[Model],
    data: Federation | dict[str, Records],
    privacy: Literal["none"] | Privacy | None,
    test: Records | None,
    posterior: str,
    method: LocalMethod | str,
    schedule: Schedule | str,
    seed: int,
) -> _Prepared:
    private = None if isinstance(privacy, str) and privacy == "none" else privacy
    if private is not None and not isinstance(private, Privacy):
        raise ConfigError(
            f"privacy = {privacy!r}; give tacit.Privacy(epsilon=…, delta=…), or None to train "
            "without"
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
    return _Prepared(plan, test, federation, undeclared)


def _as_model(model: Model | type[Model], federation: Federation | None) -> Model:
    """The model; a class is instantiated for the federation's columns."""
    if isinstance(model, Model):
        return model
    if federation is None:
        raise ConfigError(
            f"model = {model.__name__} is a class and the parties are plain records; pass an "
            f"instance, e.g. {model.__name__}(names)"
        )
    _check_fits(model, federation)
    return build(model, model.Settings(), ModelSchema.of(federation))


def _fit_of(prepared: _Prepared, outcome: Outcome) -> Fit:
    plan, federation = prepared.plan, prepared.federation
    posterior = outcome.posterior
    attempts = Attempts()
    # An exact training score would be an uncharged release.
    train = pooled(plan.parties) if plan.privacy is None else None
    metrics, bins = attempts.attempt(
        "metrics",
        lambda: measure(posterior, train, prepared.test, PREDICTIVE_DRAWS, plan.seed),
        otherwise=(NOTHING_MEASURED, None),
    )
    sites = attempts.attempt("summary", lambda: site_summary(posterior, plan.seed), otherwise={})
    for what, why in attempts.failed.items():
        warnings.warn(f"{what} could not be computed: {why}", EvaluationWarning, stacklevel=3)
    privacy = privacy_facts(plan)
    if prepared.undeclared:
        said = f"{privacy.statement} {NOT_DECLARED}"
        privacy = msgspec.structs.replace(privacy, statement=said)
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
        metrics=metrics,
        calibration={} if bins is None else {"held_out": bins},
        sites=sites,
        not_evaluated=attempts.failed,
        parties=[party_row(plan, name) for name in plan.parties],
        data=data_facts(federation),
        privacy=privacy,
    )
    rounds = [line for line in outcome.log if line["event"] == "round"]
    public = public_result(result, plan, publish=False)
    return Fit(posterior, rounds, _schema_of(result), result, public, outcome)


def _schema_of(result: Result) -> Schema | None:
    columns = declared_columns(result.data)
    return None if columns is None else Schema.of(columns)
