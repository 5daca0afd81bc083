"""The workers of a sweep on a Ray cluster."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from tacit.engines.ray import LostError, Pool, Runner, check_folder, connected
from tacit.errors import ConfigError
from tacit.run.config import parse_config
from tacit.run.ledger import ledger_path
from tacit.run.sweep.job import Job, Row, carry_out_job, failed_row
from tacit.run.sweep.local import TRIES


class OnRay:
    """Runs jobs on the actors of a cluster whose nodes can all access the sweep directory."""

    def __init__(
        self, folder: Path, workers: int | None, ledger: Path | None, address: str | None
    ) -> None:
        if workers is not None and not workers >= 1:
            raise ConfigError(f"--workers {workers}; it must be at least 1")
        self._folder, self._workers = folder.resolve(), workers
        self._ledger = None if ledger is None else str(ledger.resolve())
        self._address = address

    def map(self, jobs: Sequence[Job]) -> Generator[Row, None, None]:
        """Yield a row for every job, in the order of completion."""
        if not jobs:
            return
        with connected(self._address) as cluster:
            check_folder(self._folder, one_machine=False)
            for folder in self._ledgers(jobs):
                check_folder(folder, one_machine=True)
            count = min(self._workers or cluster.cores, len(jobs))
            pool = Pool(Runner, [(1, str(Path.cwd()))] * count, max_losses=TRIES - 1)
            try:
                yield from self._spread(pool, jobs)
            finally:
                pool.close()

    def _spread(self, pool: Pool, jobs: Sequence[Job]) -> Generator[Row, None, None]:
        waiting = list(reversed(jobs))
        given = {}

        def give(place: int) -> None:
            if waiting:
                job = waiting.pop()
                call = pool.call(place, "do", carry_out_job, job, str(self._folder), self._ledger)
                given[call] = job

        for place in range(len(pool)):
            give(place)
        while given:
            try:
                call, row = pool.first(list(given))
            except LostError as error:
                call, row = error.call, failed_row(given[error.call], str(error), error.exit_code)
                pool.renew(call.place)
            del given[call]
            give(call.place)
            yield row

    def _ledgers(self, jobs: Sequence[Job]) -> list[Path]:
        """Return the folders of all permanent ledgers."""
        found: dict[Path, None] = {}
        for job in jobs:
            config = parse_config(job.config)
            if config.private is not None and config.private.insecure_noise_seed is None:
                asked = None if self._ledger is None else Path(self._ledger)
                path = ledger_path(config, self._folder / job.id, asked)
                if path.exists():  # the run refuses a missing ledger
                    found[path.resolve().parent] = None
        return list(found)
