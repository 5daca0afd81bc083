"""Read and validate the input of a report.

The only input of a report is `config.toml`, `events.jsonl` and `result.json` in the public part of
a run directory, of a live federation's server, or of one of its parties. A report therefore
contains only what may be shared. A private report (`tacit report --private`) also reads
`private/evaluation.json`, and is written into the private part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.errors import DataError
from tacit.results.published import whole_result
from tacit.results.summary import (
    PartyEvaluation,
    PartyResult,
    Refusal,
    Result,
    Round,
    read_any_result,
    read_events,
    read_part,
    read_text,
)
from tacit.support.public_files import EVALUATION


@dataclass(frozen=True, kw_only=True)
class Run:
    """Input of a report."""

    directory: Path
    config: str
    result: Result
    rounds: list[Round]
    refused: list[Refusal]
    private: bool = False
    """True if `result` contains measurements on records, which may not be shared."""


@dataclass(frozen=True, kw_only=True)
class PartyRun:
    """Input of a report at one party of a live federation."""

    directory: Path
    result: PartyResult
    evaluation: PartyEvaluation | None = None
    """Measurements on the party's records and its balance; None in a report to share."""


def load_run(directory: Path, *, private: bool = False) -> Run | PartyRun:
    """Load the run in `directory`; raise a `DataError` that names the file if one cannot be read.

    With `private`, measurements on records and the ledger's totals are loaded too.
    """
    directory = Path(directory)
    local = directory / "private" / EVALUATION
    if private and not local.exists():
        raise DataError(
            f"{local} does not exist, so there is nothing private to report; leave --private out, "
            "or wait until the run has ended"
        )
    public = directory / "public"
    result = read_any_result(public)
    if isinstance(result, PartyResult):
        return PartyRun(
            directory=directory,
            result=result,
            evaluation=read_part(local, PartyEvaluation) if private else None,
        )
    if private:
        result = whole_result(result, local, read_text(local))
    rounds, refused = read_events(public)
    return Run(
        directory=directory,
        config=read_text(public / "config.toml"),
        result=result,
        rounds=rounds,
        refused=refused,
        private=private,
    )
