"""Worker processes on this machine."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from tacit.errors import ConfigError
from tacit.run.sweep.job import Job, Row, failed_row

TRIES = 2
"""Number of times that a run is attempted if its worker process dies."""


def default_workers() -> int:
    """Return the number of available cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _shared(workers: int) -> list[list[int]]:
    """Return the cores of each worker: separate cores if there are enough, otherwise no fixed
    cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [[]] * workers
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // max(1, workers)
    return [cores[i * each : (i + 1) * each] for i in range(workers)]


class Local:
    """Runs jobs in worker processes; `map` yields rows as they finish."""

    def __init__(self, folder: Path, log: Path, workers: int | None, ledger: Path | None) -> None:
        if workers is not None and not workers >= 1:
            raise ConfigError(f"--workers {workers}; it must be at least 1")
        self.workers = workers or default_workers()
        self._command = [sys.executable, "-m", "tacit.run.sweep.worker", str(folder)]
        if ledger is not None:
            self._command.append(str(ledger))
        self._log = log

    def map(self, jobs: Sequence[Job]) -> Generator[Row, None, None]:
        """Yield a row for every job, in the order of completion."""
        waiting = _Waiting(jobs)
        rows: queue.SimpleQueue[Row | BaseException] = queue.SimpleQueue()
        count = min(self.workers, len(jobs))
        with self._log.open("ab") as log:
            processes = [_Process(self._command, log, cores) for cores in _shared(count)]
            threads = [
                threading.Thread(target=_serve, args=(process, waiting, rows), daemon=True)
                for process in processes
            ]
            for thread in threads:
                thread.start()
            try:
                for _ in jobs:
                    row = rows.get()
                    if isinstance(row, BaseException):
                        raise row
                    yield row
            finally:
                for process in processes:
                    process.end()
                for thread in threads:
                    thread.join()
                for process in processes:
                    process.close()


class _EndedError(Exception):
    """The sweep is over; no further worker is started."""


class _Process:
    """One worker process, restarted if it dies."""

    def __init__(self, command: list[str], log: IO[bytes], cores: list[int]) -> None:
        # Limit threads, or workers would compete for cores.
        threads = len(cores) or 1
        self._cores = cores
        several = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
        flags = f"{os.environ.get('XLA_FLAGS', '')} {several}".strip()
        limits = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        self._environment = {**os.environ, **limits, "XLA_FLAGS": flags}
        self._command, self._log = command, log
        self._lock, self._ended = threading.Lock(), False
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, job: Job) -> Row:
        """Run a job and return its row. If the worker dies `TRIES` times, the row contains an
        error.
        """
        body = msgspec.json.encode(job) + b"\n"
        code = 0
        for _ in range(TRIES):
            child = self._running()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                child.stdin.write(body)
                child.stdin.flush()
                line = child.stdout.readline()
            except BrokenPipeError:
                line = b""
            if line.endswith(b"\n"):
                return msgspec.json.decode(line)
            code = child.wait()
        return failed_row(
            job,
            f"its worker ended with code {code} {TRIES} times, perhaps out of memory; see "
            "workers.log, or use fewer --workers",
            1,
        )

    def end(self) -> None:
        """Terminate the worker, even during a run."""
        with self._lock:
            self._ended = True
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def close(self) -> None:
        """Close the pipes of an ended worker."""
        if self._child is not None:
            self._child.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise _EndedError
            if self._child is None or self._child.poll() is not None:
                self.close()
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    env=self._environment,
                )
                if self._cores:
                    with contextlib.suppress(OSError):  # it may have died already
                        os.sched_setaffinity(self._child.pid, self._cores)
            return self._child


class _Waiting:
    """Jobs that have not started.

    A worker gets the job that has the most settings in common with its last job, because compiled
    code can then be reused. Among several such jobs, it gets one that differs from the jobs of the
    other workers.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        self._lock = threading.Lock()
        self._at: dict[int, Job] = {}

    def take(self, worker: int) -> Job | None:
        """Return the next job of this worker; None if there are no more jobs."""
        with self._lock:
            if not self._jobs:
                return None
            own = self._at.get(worker)
            others = [job for other, job in self._at.items() if other != worker]

            def suits(job: Job) -> tuple[int, int]:
                apart = -max((_common(job, other) for other in others), default=0)
                return (0 if own is None else _common(job, own)), apart

            found = max(self._jobs, key=suits)
            self._jobs.remove(found)
            self._at[worker] = found
            return found


def _common(one: Job, other: Job) -> int:
    """Return the number of swept keys with equal values in both jobs."""
    return sum(other.case.get(key) == value for key, value in one.case.items())


def _serve(
    process: _Process, waiting: _Waiting, rows: queue.SimpleQueue[Row | BaseException]
) -> None:
    while (job := waiting.take(id(process))) is not None:
        try:
            rows.put(process.ask(job))
        except _EndedError:
            return
        except BaseException as error:  # raised in the thread that waits for rows
            rows.put(error)
            return
