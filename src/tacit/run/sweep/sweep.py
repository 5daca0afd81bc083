"""Run a sweep; finished runs are not repeated."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tacit.errors import ConfigError
from tacit.run.config import parse_config
from tacit.run.ledger import ledger_path, own_ledger_of_run
from tacit.run.sweep.job import Job, Row
from tacit.run.sweep.local import Local
from tacit.run.sweep.spec import Sweep, expand
from tacit.run.sweep.store import Store
from tacit.run.sweep.summary import summarise

Progress = Callable[[int, int, str], None]
TABLES_EVERY_S = 10.0


class Workers(Protocol):
    """Runs jobs and yields rows in the order of completion."""

    def map(self, jobs: Sequence[Job]) -> Generator[Row, None, None]: ...


@dataclass(frozen=True)
class Swept:
    """Result of a sweep: a table of runs, a table of cases, and the number of runs that were
    already finished.
    """

    jobs: list[Job]
    rows: list[Row]
    summary: list[Row]
    found: int

    @property
    def failed(self) -> list[Row]:
        """The failed runs, with their messages."""
        return [row for row in self.rows if row["status"] != "done"]


def sweep(
    asked: Sweep,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    ledger: Path | None = None,
    spread: Workers | None = None,
    progress: Progress | None = None,
) -> Swept:
    """Carry out the runs of a sweep that are not finished, and write the tables.

    A private run is charged as by `tacit run`. `spread` runs the jobs; by default they run in local
    worker processes.
    """
    Store(out).check(resume=resume, overwrite=overwrite)
    return sweep_jobs(
        expand(asked), out,
        text=_as_toml(asked), resume=resume, overwrite=overwrite, workers=workers, ledger=ledger,
        spread=spread, progress=progress,
    )  # fmt: skip


def sweep_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    text: str,
    resume: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    ledger: Path | None = None,
    spread: Workers | None = None,
    progress: Progress | None = None,
) -> Swept:
    """Run jobs that were made by `tacit.run.sweep.make_job`, without a sweep file.

    `text` is written to sweep.toml. Rows of other jobs in the directory are kept. The other
    arguments are as in `sweep`.
    """
    jobs, store = list(jobs), Store(out)
    store.check(resume=resume, overwrite=overwrite)
    _check_ledgers(jobs, out, ledger)
    pool = spread or Local(store.runs, store.log, workers, ledger)
    with store.held(text, overwrite=overwrite):
        rows = {job.id: row for job in jobs if (row := store.get(job)) is not None}
        found, told = len(rows), time.monotonic()
        tell = progress or (lambda *_: None)
        tell(found, len(jobs), "")
        missing = [job for job in jobs if job.id not in rows]
        try:
            with contextlib.closing(pool.map(missing)) as coming:
                for row in coming:
                    store.put(row)
                    rows[row["id"]] = row
                    tell(len(rows), len(jobs), row["error"] or "")
                    if time.monotonic() - told > TABLES_EVERY_S:
                        _write(store, jobs, rows)
                        told = time.monotonic()
        finally:
            ordered, summary = _write(store, jobs, rows)
    return Swept(jobs, ordered, summary, found)


def _write(store: Store, jobs: Sequence[Job], rows: dict[str, Row]) -> tuple[list[Row], list[Row]]:
    ordered = [rows[job.id] for job in jobs if job.id in rows]
    summary = summarise(jobs, ordered)
    store.write_tables(ordered, summary)
    return ordered, summary


def _check_ledgers(jobs: Sequence[Job], out: Path, ledger: Path | None) -> None:
    """Refuse a ledger inside the sweep directory, and private runs that would not be charged."""
    for job in jobs:
        config = parse_config(job.config)
        if config.private is None or config.private.insecure_noise_seed is not None:
            continue
        if job.runner is not None:
            raise ConfigError(
                f"the runner {job.runner} does not charge a ledger, so it may only simulate "
                "private runs, but privacy.insecure_noise_seed is not set; set "
                "privacy.insecure_noise_seed to simulate the run, or make the job without a runner "
                "to charge a ledger"
            )
        folder = out / "runs" / job.id
        path = ledger_path(config, folder, ledger)
        if own_ledger_of_run(config, path, folder):
            continue
        if out.resolve() in path.resolve().parents:
            raise ConfigError(
                f"the ledger {path} is in the sweep directory {out} and would be overwritten "
                "with it; use a ledger outside this directory"
            )


def _as_toml(asked: Sweep) -> str:
    import tomlkit

    body: dict[str, Any] = msgspec.to_builtins(asked)
    return tomlkit.dumps({key: value for key, value in body.items() if value not in (None, {}, [])})
