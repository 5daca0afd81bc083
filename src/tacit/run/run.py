"""Run a configuration and write a run directory.

`tacit.run.directory` lists the files of a run directory: a public part, which reports are made
from, and a private part. The directory is created only after configuration and data were checked.
The posterior is written first, because later steps (metrics, references) may fail. A failed step is
noted in the result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tacit.data import Federation, load_federation
from tacit.data.records import pooled
from tacit.engines.execute import Observer, Outcome, carry_out
from tacit.errors import ConfigError, DataError
from tacit.methods import LocalMethod
from tacit.models import ConjugateGaussian, Model, Records
from tacit.plan.arguments import check_bounded
from tacit.plan.baselines import as_baseline
from tacit.plan.checks import check_likelihood
from tacit.plan.plan import Plan, make_plan
from tacit.privacy.ledger.ledger import BudgetCheck, Ledger
from tacit.results import check_nuts, exact_posterior, kl_to, nuts_reference
from tacit.results.compose import compose_result, data_facts, party_row, privacy_facts
from tacit.results.evaluation import Attempts, measure, measure_parties, outcome_unit
from tacit.results.posterior import Posterior
from tacit.results.published import NOTHING_MEASURED, covered, local_result, public_result
from tacit.results.saved import write_posterior
from tacit.results.shown import site_summary
from tacit.results.summary import Result, Topic, write_result
from tacit.run.build import make_engine, make_method, make_model, make_schedule
from tacit.run.config import (
    Config,
    check_same_configuration,
    config_digest,
    resolved_toml,
)
from tacit.run.continued import (
    Earlier,
    check_same_columns,
    check_same_guarantee,
    check_same_model,
    read_earlier,
    records_used,
)
from tacit.run.directory import (
    CONFIG,
    Events,
    checkpoint_path,
    empty_directory,
    make_run_directory,
    private_part,
    public_part,
    reserved,
)
from tacit.run.ledger import (
    check_room,
    end_run,
    known_run,
    ledger_path,
    open_charging,
    own_ledger_of_run,
    run_name,
    spent,
)
from tacit.server.checkpoint import OTHER_RUN, Checkpoint, configuration_of
from tacit.support.public_files import EVALUATION, EVENTS, POSTERIOR, RESULT
from tacit.support.storage import write_text
from tacit.support.type_info import prepare as prepare_type


@dataclass(frozen=True)
class Prepared:
    """A configuration with its loaded data and plan."""

    config: Config
    federation: Federation
    plan: Plan
    data_s: float
    earlier: Earlier | None = None


def prepare(config: Config, method: LocalMethod | None = None) -> Prepared:
    """Load the data and make the plan, without writing anything.

    `method` replaces the configured method, e.g. by one that cannot be configured.
    """
    started = time.perf_counter()
    federation = load_federation(config.data, config.partition, config.seed)
    check_private(config, federation)
    model = make_model(config, federation)
    earlier = None if config.continues is None else read_earlier(config.continues)
    if earlier is not None:
        check_same_columns(earlier, data_facts(federation, config.data.source))
    plan = plan_for(config, model, federation.parties, method, earlier)
    if config.private is None and model.user_program:
        check_likelihood(model, plan.parties)
    if config.evaluate.reference == "nuts":
        check_nuts(model)
    return Prepared(config, federation, plan, time.perf_counter() - started, earlier)


def plan_for(
    config: Config,
    model: Model,
    records: dict[str, Records],
    method: LocalMethod | None = None,
    earlier: Earlier | None = None,
    *,
    any_noise: bool = False,
) -> Plan:
    """Return the plan of a configuration for the given records of each party.

    With `any_noise`, a private plan is made even if its noise is too large for a useful result.
    """
    parties, method, schedule, trust = as_baseline(
        config.baseline,
        records,
        method or make_method(config),
        make_schedule(config),
        private=config.private is not None,
    )
    plan = make_plan(
        model,
        parties,
        family=config.posterior,
        method=method,
        schedule=schedule,
        seed=config.seed,
        batch_parties=config.engine.batch_parties,
        privacy=config.private,
        trust=trust,
        earlier=None if earlier is None else earlier.natural,
        any_noise=any_noise,
    )
    if earlier is not None:
        check_same_model(earlier, plan)
        check_same_guarantee(earlier, plan)
    return plan


def check_private(config: Config, federation: Federation) -> None:
    """Raise an error for a private run that would use records for anything other than charged
    releases.
    """
    if config.private is None:
        return
    check_bounded(federation)
    for check in CONFIG_CHECKS:
        check(config)


def _check_person(config: Config) -> None:
    if config.private is None:
        return
    if config.private.unit == "person" and config.data.person is None:
        raise ConfigError(
            'privacy.unit = "person", but data.person is not set; name the column that identifies '
            'the person, or use unit = "record"'
        )


def _check_balance(config: Config) -> None:
    if config.private is None:
        return
    if config.data.balance and config.private.insecure_noise_seed is None:
        raise ConfigError(
            "data.balance = true in a private run; the choice of dropped records depends on exact "
            "records: leave data.balance out, or simulate with privacy.insecure_noise_seed"
        )


def _check_counts(config: Config) -> None:
    """Raise an error for settings that would make a private run use labels or a posterior without
    noise.
    """
    if config.private is None or config.private.insecure_noise_seed is not None:
        return
    if config.evaluate.reference == "nuts":
        raise ConfigError(
            'evaluate.reference = "nuts" in a private run; it would write an exact posterior of '
            "the records into the result: leave evaluate.reference out, or simulate with "
            "privacy.insecure_noise_seed"
        )
    if config.partition.label_skew != 0:
        raise ConfigError(
            f"partition.label_skew = {config.partition.label_skew} in a private run; the partition "
            "would depend on exact labels: leave partition.label_skew out, or simulate with "
            "privacy.insecure_noise_seed"
        )


CONFIG_CHECKS = (_check_person, _check_counts, _check_balance)
"""Checks of a private run that need no records."""


def run(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    ledger: Path | None = None,
    observe: Callable[[Prepared], Observer | None] | None = None,
    prepared: Prepared | None = None,
) -> Result:
    """Run a configuration, write a run directory, and return the result with all measurements.

    A private run is charged to `ledger`; by default to the configured ledger or, if there is none,
    to the user's ledger. public/result.json has only the part of the result that the guarantee
    covers. If `prepared` is given, its data and plan replace those of the configuration, e.g. for
    synthetic records. While the run works, other processes are excluded from the directory.
    """
    cpu = time.process_time()
    started = time.perf_counter()
    with reserved(out, resume=resume, overwrite=overwrite):
        result, plan = _run(
            config, out,
            resume=resume, overwrite=overwrite, ledger=ledger, observe=observe, prepared=prepared,
        )  # fmt: skip
        result = _timed(result, started, cpu)
        _write(out, result, public_result(result, plan, publish=config.evaluate.publish))
    return result


def _run(
    config: Config,
    out: Path,
    *,
    resume: bool,
    overwrite: bool,
    ledger: Path | None,
    observe: Callable[[Prepared], Observer | None] | None,
    prepared: Prepared | None,
) -> tuple[Result, Plan]:
    """Run a configuration in a reserved directory; return the result and the plan."""
    engine = make_engine(config)
    prepared = prepared or prepare(config)
    plan, federation = prepared.plan, prepared.federation
    resolved = resolved_toml(config)
    book = ledger_path(config, out, ledger) if plan.settled else None
    inside = book is not None and own_ledger_of_run(config, book, out)
    seen = records_used(plan, federation, config.continues, None if inside else book)
    if resume:
        check_resumed(prepared, out, ledger)
    if book is not None:
        check_room_of(prepared, out, book, resume=resume, inside=inside)
        before = None if resume or inside else known_run(out)
        if before is not None:
            end_run(book, before)
    if overwrite:
        empty_directory(out)
    make_run_directory(out, covered=covered(plan))
    if seen is not None:
        seen.write(out)
    with contextlib.ExitStack() as stack:
        charging = None
        if book is not None:
            charging = open_charging(plan, federation, book, run_name(out), inside=inside)
            stack.callback(charging.ledger.close)
        key = own_key(out) if charging is None else charging.ledger.derived_key("checkpoint")
        checkpoint = Checkpoint(checkpoint_path(out), digest=_digest(prepared, key))
        stack.callback(checkpoint.close)
        write_text(public_part(out) / CONFIG, resolved)
        saved = checkpoint.load()
        events = Events(public_part(out) / EVENTS, _start_line(prepared), saved[1] if saved else ())
        watch = _writing(events, None if observe is None else observe(prepared))
        outcome = carry_out(
            plan, checkpoint=checkpoint, observe=watch, charging=charging, engine=engine
        )
        if charging is not None:
            charging.close("finished")
        events.write(({"event": "end", "reason": outcome.state.finished},))
        write_posterior(public_part(out) / POSTERIOR, outcome.posterior)
        result = _result(prepared, outcome)
        if charging is not None and book is not None:
            privacy = msgspec.structs.replace(result.privacy, ledger=spent(charging, book))
            result = msgspec.structs.replace(result, privacy=privacy)
    return result, plan


def check_room_of(
    prepared: Prepared, out: Path, book: Path, *, resume: bool, inside: bool
) -> BudgetCheck | None:
    """Check that the run does not exceed a budget, and return the result of `check_room`."""
    before = known_run(out)
    found = {"run": before} if resume else {"ended": before}
    return check_room(prepared.plan, prepared.federation, book, inside=inside, **found)


def check_resumed(prepared: Prepared, out: Path, ledger: Path | None = None) -> None:
    """Raise an error if the run in a directory has another configuration, other records or another
    ledger.
    """
    known = configuration_of(checkpoint_path(out))
    if known is None:
        return
    check_same_configuration(prepared.config, public_part(out) / CONFIG, out)
    book = ledger_path(prepared.config, out, ledger) if prepared.plan.settled else None
    if book is not None and not book.exists():
        return  # the budget check reports it
    if book is not None:
        with Ledger(book) as found:
            key = found.derived_key("checkpoint")
    else:
        key = own_key(out) if _key_file(out).exists() else None
    if key is None or _digest(prepared, key) != known:
        raise DataError(OTHER_RUN.format(path=checkpoint_path(out)))


def _digest(prepared: Prepared, key: bytes) -> str:
    """Return a keyed digest of the configuration, the records and, if there is one, the posterior
    of the earlier run.
    """
    known = fingerprint(prepared.federation, key)
    if prepared.earlier is not None:
        known += prepared.earlier.digest(key)
    return config_digest(prepared.config, known)


def _writing(events: Events, observe: Observer | None) -> Observer:
    """Return an observer that writes new events to the run's log, then calls `observe`."""

    def write(state: Any, log: Any) -> None:
        events.write(log)
        if observe is not None:
            observe(state, log)

    return write


def _write(out: Path, result: Result, shared: Result) -> None:
    local = json.dumps(local_result(result), indent=1, allow_nan=False)
    write_text(private_part(out) / EVALUATION, local)
    write_result(public_part(out) / RESULT, shared)


def _timed(result: Result, started: float, cpu: float) -> Result:
    times = {"wall_s": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}
    return msgspec.structs.replace(result, timing=result.timing | times)


def simulate(config: Config, method: LocalMethod | None = None) -> Result:
    """Simulate a run and return its result, without writing files; for studies of many runs."""
    if config.private is not None and config.private.insecure_noise_seed is None:
        raise ConfigError(
            "privacy.insecure_noise_seed is not set; a simulation is not charged to a ledger, "
            "so its noise must be seeded: set privacy.insecure_noise_seed, or use tacit run"
        )
    cpu, started = time.process_time(), time.perf_counter()
    prepared = prepare(config, method)
    return _timed(_result(prepared, carry_out(prepared.plan)), started, cpu)


def _result(prepared: Prepared, outcome: Outcome) -> Result:
    config, federation, plan = prepared.config, prepared.federation, prepared.plan
    posterior, state = outcome.posterior, outcome.state
    started = time.perf_counter()
    attempts = Attempts()
    train = pooled(plan.parties)
    measured = train if plan.privacy is None else None
    unit = outcome_unit(federation)
    metrics, bins = attempts.attempt(
        "metrics",
        lambda: measure(
            posterior, measured, federation.test, config.evaluate.draws, config.seed, unit
        ),
        otherwise=(NOTHING_MEASURED, None),
    )
    shared = federation.held_out_by_party()
    if not shared and measured is not None and "y" in measured:
        shared = plan.parties
    if "metrics" in attempts.failed:
        shared = {}
    by_party = attempts.attempt(
        "metrics by party",
        lambda: measure_parties(posterior, shared, config.evaluate.draws, config.seed, unit),
        otherwise={},
    )
    true_values = {key: float(value) for key, value in (federation.true_values or {}).items()}
    tables = attempts.attempt("summary", lambda: _tables(prepared, posterior), otherwise={})
    references = attempts.attempt(
        "reference", lambda: _references(config, plan, posterior, train), otherwise={}
    )
    return compose_result(
        plan,
        posterior,
        state,
        outcome.log,
        outcome.verdict,
        federation.layout,
        outcome.clipped,
        name=config.name,
        engine=config.engine.kind,
        metrics=metrics,
        party_metrics=by_party,
        calibration={} if bins is None else {"held_out": bins},
        parties=[party_row(plan, name) for name in plan.parties],
        data=data_facts(federation, config.data.source),
        privacy=privacy_facts(plan, publish=config.evaluate.publish),
        true_values=true_values if set(true_values) == set(posterior.names) else {},
        not_evaluated=attempts.failed,
        timing={
            "data_s": prepared.data_s,
            "train_s": outcome.train_s,
            "evaluate_s": time.perf_counter() - started,
            "compile_s": outcome.compiled.seconds,
        },
        compilations=outcome.compiled.count,
        cluster=outcome.report,
        **tables,
        **references,
    )


def _tables(prepared: Prepared, posterior: Posterior) -> dict[str, Any]:
    """Return tables of a posterior for users: its topics, or the sites of a NumPyro model."""
    names = prepared.federation.names
    tables = prepared.plan.model.result_tables(posterior.natural, names)
    topics = msgspec.convert(tables.get("topics", []), prepare_type(list[Topic]))
    return {"topics": topics, "sites": site_summary(posterior, prepared.config.seed)}


def _references(config: Config, plan: Plan, posterior: Posterior, train: Records) -> dict[str, Any]:
    """Return the KL divergence between q and a reference posterior of the pooled records, if one is
    requested.
    """
    found: dict[str, Any] = {}
    how = config.evaluate.reference
    secret = plan.privacy is not None and plan.privacy.insecure_noise_seed is None
    learnt = plan.method.learns_scale(plan.model)
    declared = not plan.model.undeclared and plan.earlier is None
    if how == "auto" and not secret and declared and isinstance(plan.model, ConjugateGaussian):
        mean, covariance = exact_posterior(plan.model, [train])
        found["kl_to_exact"] = kl_to(posterior.family, posterior.natural, mean, covariance)
    if how == "nuts":
        mean, covariance, _ = nuts_reference(
            plan.model, train, seed=config.seed, learnt_scales=learnt
        )
        found["kl_to_reference"] = kl_to(posterior.family, posterior.natural, mean, covariance)
        found["reference"] = {
            "kind": "nuts",
            "mean": mean.tolist(),
            "sd": np.sqrt(np.diagonal(covariance)).tolist(),
        }
    return found


def _start_line(prepared: Prepared) -> dict[str, Any]:
    plan = prepared.plan
    return {
        "event": "start",
        "name": prepared.config.name,
        "parties": len(plan.parties),
        "dimension": plan.model.dimension,
        "schedule": plan.schedule.kind,
        "rounds": plan.schedule.rounds,
    }


def own_key(out: Path) -> bytes:
    """Return the random key of a run without a ledger: see `fingerprint`."""
    path = _key_file(out)
    if not path.exists():
        write_text(path, secrets.token_hex(32) + "\n")
    return bytes.fromhex(path.read_text(encoding="utf-8").strip())


def _key_file(out: Path) -> Path:
    return checkpoint_path(out).with_name("key")


def fingerprint(federation: Federation, key: bytes) -> str:
    """Return a keyed digest of the prepared records, to check that a resumed run has the same
    records.

    The digest is keyed because otherwise a guess about a record could be tested against it. If the
    run has a ledger, the key is derived from the ledger's key, which is not in the run directory.
    """
    digest = hashlib.blake2b(digest_size=16, key=key)
    for name, records in federation.parties.items():
        digest.update(name.encode())
        for column in sorted(records):
            digest.update(column.encode())
            digest.update(np.ascontiguousarray(records[column]).tobytes())
    return digest.hexdigest()
