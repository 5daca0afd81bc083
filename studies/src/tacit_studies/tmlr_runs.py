"""One run of the TMLR study, and the folder of finished runs, from which a study continues.

A run is a simulation: its noise comes from a known seed, so that it can be repeated, and no ledger
is charged. The stated guarantee is that of the same run with secret noise.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tacit.data import DataConfig, Federation, PartitionConfig, load_federation
from tacit.engines.execute import carry_out
from tacit.errors import ConfigError
from tacit.methods import METHODS
from tacit.models import LogisticRegression, Model, NeuralNetwork
from tacit.plan.baselines import as_baseline
from tacit.plan.plan import Plan, make_plan
from tacit.privacy.settings import Privacy
from tacit.results.evaluation import measure
from tacit.results.posterior import Posterior
from tacit.run import sweep
from tacit.server.schedule import Sequential, Synchronous
from tacit.server.settings import DampingSettings
from tacit.server.state import Log, ServerState
from tacit.support.storage import write_text
from tacit_studies.tmlr_factors import OwnFactors
from tacit_studies.tmlr_network import LearnedVariance
from tacit_studies.tmlr_parameters import ClippedParameters
from tacit_studies.tmlr_settings import Job

DRAWS = 100
"""Draws of θ for a predictive distribution without a closed form, as in the paper."""
SCHEDULES = {"synchronous": Synchronous, "sequential": Sequential}
PUBLISHED_FORMS = {form.kind: form for form in (ClippedParameters, LearnedVariance, OwnFactors)}
"""Forms of the paper's methods that the library does not have."""
POINTS = 12
"""Approximate number of points of a curve; they are denser at its beginning."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out performance after a number of exchanges; None if predictions are not finite."""

    exchanges: int
    accuracy: float | None
    log_likelihood: float | None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a job. The last point of `curve` is the final performance."""

    curve: tuple[Point, ...]
    parties: int
    epsilon: float | None
    """ε by this library's accounting; None without privacy."""
    trust: str
    seconds: float

    @property
    def end(self) -> Point:
        """Performance after the last exchange."""
        return self.curve[-1]


class Store:
    """A JSON file for every finished run, named by the digest of its settings.

    Files are written atomically. A file that does not parse, or whose settings do not match its
    name, is computed again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, job: Job) -> Run | None:
        """The result of a job, if it was finished before."""
        try:
            held = json.loads((self.folder / f"{job.digest}.json").read_text(encoding="utf-8"))
            if msgspec.convert(held["job"], Job).digest != job.digest:
                return None
            run = msgspec.convert(held["run"], Run)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return run if run.curve else None

    def put(self, job: Job, run: Run) -> None:
        """Store a result."""
        held = {"job": msgspec.to_builtins(job), "run": msgspec.to_builtins(run)}
        text = json.dumps(held, indent=1, ensure_ascii=False, allow_nan=False)
        write_text(self.folder / f"{job.digest}.json", text)


def carried_out(jobs: Sequence[Job], store: Store, workers: int) -> Iterator[tuple[Job, Run]]:
    """Yield the result of every job: stored results first, the others as they finish.

    With several workers, processes of a sweep run the jobs in parallel.
    """
    missing = []
    for job in jobs:
        run = store.get(job)
        if run is None:
            missing.append(job)
        else:
            yield job, run
    done = _side_by_side(missing, store, workers) if workers > 1 and len(missing) > 1 else (
        (job, run_job(job)) for job in missing
    )  # fmt: skip
    for job, run in done:
        store.put(job, run)
        yield job, run


def _side_by_side(jobs: Sequence[Job], store: Store, workers: int) -> Iterator[tuple[Job, Run]]:
    asked = {
        job.digest: sweep.Job(
            id=job.digest,
            case={},
            seed=job.seed,
            config=msgspec.to_builtins(job),
            runner=f"{__name__}:swept",
        )
        for job in jobs
    }
    by_digest = {job.digest: job for job in jobs}
    pool = sweep.Local(store.folder, store.folder / "workers.log", workers, None)
    with contextlib.closing(pool.map(list(asked.values()))) as rows:
        for row in rows:
            if row["status"] != "done":
                raise ConfigError(f"a run of the study failed: {row['error']}; the same command "
                                  "continues the study")  # fmt: skip
            yield by_digest[row["id"]], msgspec.convert(row["run"], Run)


def swept(job: sweep.Job) -> dict[str, Any]:
    """Run a job in a worker of a sweep; returns the column of its row."""
    return {"run": msgspec.to_builtins(run_job(msgspec.convert(job.config, Job)))}


@functools.lru_cache(maxsize=2)
def _loaded(data: bytes, partition: bytes, seed: int) -> Federation:
    return load_federation(
        msgspec.json.decode(data, type=DataConfig),
        msgspec.json.decode(partition, type=PartitionConfig),
        seed,
    )


def federation_of(job: Job) -> Federation:
    """The job's records."""
    return records_of(job.data, job.partition, job.seed)


def records_of(data: DataConfig, partition: PartitionConfig, seed: int) -> Federation:
    """Distributed records. The last ones are cached, because several methods use the same."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    return _loaded(encode(data), encode(partition), seed)


def run_job(job: Job) -> Run:
    """Run a job, and evaluate q on the held-out records during the run."""
    started = time.perf_counter()
    federation = federation_of(job)
    plan = job_plan(job, federation)
    parties = len(federation.parties)
    # In one place nothing is exchanged; over a network every step would need every party.
    each = parties if job.recipe.baseline == "central" else 1
    wanted = rounds_to_measure(plan.schedule.rounds)
    curve: list[Point] = []
    seen = {0}

    def measured(posterior: Posterior, exchanges: int) -> Point:
        metrics = measure(posterior, None, federation.test, DRAWS, job.seed)[0]["held_out"]
        return Point(
            exchanges=each * exchanges,
            accuracy=metrics["accuracy"],
            log_likelihood=metrics["log_predictive_density"],
        )

    def watch(state: ServerState, _log: Log) -> None:
        if state.round in wanted - seen and state.finished is None:
            seen.add(state.round)
            now = Posterior(plan.model, plan.family, state.result)
            curve.append(measured(now, state.exchanges))

    outcome = carry_out(plan, observe=watch)
    curve.append(measured(outcome.posterior, outcome.state.exchanges))
    guarantee = plan.guarantee
    return Run(
        curve=tuple(curve),
        parties=parties,
        epsilon=None if guarantee is None else guarantee.epsilon,
        trust="everybody" if guarantee is None else guarantee.trust,
        seconds=time.perf_counter() - started,
    )


def job_plan(job: Job, federation: Federation) -> Plan:
    """The job as a plan of the library, with the same parts as from a configuration file."""
    recipe, privacy, method = job.recipe, None, None
    if recipe.kind is not None:
        method = (METHODS | PUBLISHED_FORMS)[recipe.kind](**recipe.options)
        privacy = Privacy(
            epsilon=job.epsilon,
            delta=job.delta,
            unit="record",
            adjacency="replace-one",
            aggregation=recipe.aggregation,
            insecure_noise_seed=job.seed,
        )
    damping = recipe.damping
    if isinstance(damping, DampingSettings):
        damping = damping.make()
    parties, method, schedule, trust = as_baseline(
        recipe.baseline,
        federation.parties,
        method,
        SCHEDULES[recipe.schedule](rounds=recipe.rounds, damping=damping),
        private=privacy is not None,
    )
    return make_plan(
        _model(job, federation),
        parties,
        method=method,
        schedule=schedule,
        seed=job.seed,
        privacy=privacy,
        trust=trust,
    )


def rounds_to_measure(rounds: int) -> set[int]:
    """All rounds of a short run; about `POINTS` rounds of a long run, evenly spaced on a log scale.

    >>> sorted(rounds_to_measure(3))
    [1, 2, 3]
    >>> len(rounds_to_measure(4000)) <= POINTS
    True
    """
    if rounds <= POINTS:
        return set(range(1, rounds + 1))
    return {round(rounds ** (k / (POINTS - 1))) for k in range(POINTS)}


def _model(job: Job, federation: Federation) -> Model:
    if job.hidden is None:
        return LogisticRegression(federation.names, prior_sd=1.0)
    return NeuralNetwork(federation.names, hidden=job.hidden, start_seed=job.seed)
