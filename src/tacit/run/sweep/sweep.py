"""Carry a sweep out: what is finished stays finished, what is missing is run."""

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
    """Whatever carries jobs out; rows come in the order in which they are done."""

    def map(self, jobs: Sequence[Job]) -> Generator[Row, None, None]: ...


@dataclass(frozen=True)
class Swept:
    """What came of a sweep: a row a run, a row a case, and how many were found done."""

    jobs: list[Job]
    rows: list[Row]
    summary: list[Row]
    found: int

    @property
    def failed(self) -> list[Row]:
        """The runs that came to nothing, each with its message."""
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
    """Run what is not done yet and write the tables.

    A private run is charged exactly as by `tacit run`: to `ledger`, or where its configuration
    says, or to the user's own. `spread` are other workers than processes of
    this machine.
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
    """The same for jobs that no sweep file stands for (`tacit.run.sweep.make_job`).

    `text` is what the directory's sweep.toml says of them. Rows of an earlier sweep in the same
    directory whose jobs are not asked for now stay as they are.
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
    """A ledger that counts must outlive the sweep, which --overwrite removes, and be charged."""
    for job in jobs:
        config = parse_config(job.config)
        if config.private is None or config.private.insecure_noise_seed is not None:
            continue
        if job.runner is not None:
            raise ConfigError(
                f"{job.runner} runs a private configuration without "
                "privacy.insecure_noise_seed; its noise "
                "would be secret and no ledger charged: set it, or leave the runner out"
            )
        folder = out / "runs" / job.id
        path = ledger_path(config, folder, ledger)
        if own_ledger_of_run(config, path, folder):
            continue
        if out.resolve() in path.resolve().parents:
            raise ConfigError(
                f"the ledger {path} lies in the sweep directory {out} and would be overwritten "
                "with it; keep it elsewhere"
            )


def _as_toml(asked: Sweep) -> str:
    import tomlkit

    body: dict[str, Any] = msgspec.to_builtins(asked)
    return tomlkit.dumps({key: value for key, value in body.items() if value not in (None, {}, [])})
