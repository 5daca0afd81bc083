"""Files of a sweep directory: rows and tables, each written atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import ConfigError, DataError
from tacit.run.directory import make_directory
from tacit.run.sweep.job import Job, Row
from tacit.support.locks import locked
from tacit.support.storage import write_text

MARK = "sweep.toml"
CHECKSUM = "sha256"
"""Key of a row's checksum; a row with another checksum is damaged and computed again."""


class Store:
    """The files of one sweep."""

    def __init__(self, out: Path) -> None:
        self.out, self.runs, self.log = out, out / "runs", out / "workers.log"
        self._rows = out / "rows"

    def check(self, *, resume: bool, overwrite: bool) -> None:
        """Refuse to overwrite a non-empty directory."""
        if resume and overwrite:
            raise ConfigError("--resume and --overwrite contradict each other; leave one out")
        ours = (self.out / MARK).exists() and self._rows.is_dir()
        if resume and not ours:
            raise DataError(
                f"{self.out} is not a sweep directory, so there is nothing to resume; leave "
                "--resume out"
            )
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out {self.out} is a file; choose a directory")
        if self.out.exists() and any(self.out.iterdir()) and not resume:
            if not overwrite:
                raise ConfigError(
                    f"--out {self.out} is not empty; use --resume to continue, --overwrite to "
                    "start again, or another directory"
                )
            if not ours:
                raise ConfigError(
                    f"--out {self.out} is not a sweep directory and is not overwritten; choose "
                    "another directory"
                )

    @contextlib.contextmanager
    def held(self, text: str, *, overwrite: bool) -> Iterator[None]:
        """Context manager that creates or empties the directory and holds an exclusive lock on
        it.
        """
        make_directory(self.out)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.out / "lock"))
            except OSError:
                raise ConfigError(
                    f"{self.out} is in use by another sweep; wait for it, or choose another --out"
                ) from None
            if overwrite:
                for folder in (self._rows, self.runs):
                    shutil.rmtree(folder, ignore_errors=True)
            self._rows.mkdir(exist_ok=True)
            self.runs.mkdir(exist_ok=True)
            write_text(self.out / MARK, text)
            yield

    def put(self, row: Row) -> None:
        """Store a row."""
        body = json.dumps(row | {CHECKSUM: _digest(row)}, indent=1, allow_nan=False)
        write_text(self._rows / f"{row['id']}.json", body)

    def get(self, job: Job) -> Row | None:
        """Return the stored row of a finished run, or None if it is missing, failed or damaged."""
        try:
            row = json.loads((self._rows / f"{job.id}.json").read_text(encoding="utf-8"))
            if row.pop(CHECKSUM) != _digest(row):
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return row if isinstance(row, dict) and row.get("status") == "done" else None

    def write_tables(self, rows: Sequence[Row], summary: Sequence[Row]) -> None:
        """Write table.parquet, table.csv and summary.csv, each atomically."""
        if rows:
            frame = _frame(rows)
            _replace(self.out / "table.parquet", frame.write_parquet)
            _replace(self.out / "table.csv", frame.write_csv)
        if summary:
            _replace(self.out / "summary.csv", _frame(summary).write_csv)


def _digest(row: Row) -> str:
    """Compute the digest of a row in JSON."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _frame(rows: Sequence[Row]) -> Any:
    import polars

    columns = dict.fromkeys(key for row in rows for key in row)
    return polars.DataFrame({key: _column([row.get(key) for row in rows]) for key in columns})


def _column(values: list[Any]) -> list[Any]:
    """Convert the values of a column to one type; mixed types and tables become text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) <= 1 and not kinds & {dict, list}:
        return values
    return [
        value if value is None or isinstance(value, str) else json.dumps(value) for value in values
    ]


def _replace(path: Path, write: Any) -> None:
    part = path.with_name(path.name + ".part")
    write(part)
    os.replace(part, path)  # noqa: PTH105 - atomic on every platform
