"""One run of a sweep: carry out a job and return its row."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from tacit.errors import TacitError
from tacit.results.summary import Result
from tacit.run.config import parse_config
from tacit.run.directory import is_run
from tacit.run.run import run
from tacit.support.locks import locked

Row = dict[str, Any]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep, as data that can be sent to another process."""

    id: str
    """Digest of the configuration; equal runs have equal ids."""
    case: dict[str, Any]
    """Dict from the dotted keys that the sweep changes to their values in this run."""
    seed: int
    config: dict[str, Any]
    runner: str | None = None
    """Function, as "package.module:function", that is called instead of `tacit.run.run.run`. It
    gets the job and returns the columns of its row. None for runs with a run directory.
    """


def carry_out_job(job: Job, folder: str, ledger: str | None) -> Row:
    """Run a job in the directory folder/ID and return its row. If the run fails, the row contains
    the error.

    A run that was killed continues from its checkpoint under the same id, so that nothing is
    charged twice.
    """
    out = Path(folder) / job.id
    try:
        if job.runner is not None:
            return start_row(job) | _function(job.runner)(job)
        with _alone(out):
            resume = is_run(out)
            if out.exists() and not resume:
                shutil.rmtree(out)  # killed before its first file: nothing was charged
            config = parse_config(job.config)
            result = run(
                config, out, resume=resume, ledger=None if ledger is None else Path(ledger)
            )
        return start_row(job) | columns_of(result)
    except TacitError as error:
        return failed_row(job, str(error), error.exit_code)
    except Exception as error:
        return failed_row(job, f"internal: {type(error).__name__}: {error}", 1)


def _function(name: str) -> Callable[[Job], dict[str, Any]]:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def start_row(job: Job) -> Row:
    """Return the first columns of a row: id, swept keys, seed, status "done" and no error."""
    return {"id": job.id, **job.case, "seed": job.seed, "status": "done", "error": None}


def failed_row(job: Job, message: str, code: int) -> Row:
    """Return the row of a failed run."""
    words = " ".join(message.split())
    return start_row(job) | {"status": "failed", "error": words, "exit_code": code}


def columns_of(result: Result) -> Row:
    """Return the columns of a row that are taken from the result of a run."""
    row: Row = {key: getattr(result, key) for key in ("rounds", "finished", "exchanges", "refused")}
    for split, metrics in result.metrics.items():
        row |= {f"{split}.{name}": value for name, value in (metrics or {}).items()}
    for key in ("kl_to_exact", "kl_to_reference"):
        if getattr(result, key) is not None:
            row[key] = getattr(result, key)
    privacy = result.privacy
    if privacy.guarantee is not None:  # ε only together with its terms
        named = ("epsilon", "delta", "unit", "adjacency", "trust", "caveat")
        row |= {f"guarantee.{key}": getattr(privacy.guarantee, key) for key in named}
    if privacy.ledger is not None:
        row["ledger.epsilon_spent"] = privacy.ledger.epsilon_spent
    row |= {f"timing.{key}": value for key, value in result.timing.items()}
    row["compilations"] = result.compilations
    return row


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    # Waits, because an orphaned worker may still hold the lock.
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.with_name(out.name + ".lock"), wait=True):
        yield
