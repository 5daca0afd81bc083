"""Read and validate the public part of a run directory.

The only input of a report is `config.toml`, `events.jsonl` and `result.json` in the public part of
a run directory, of a live federation's server, or of one of its parties. A report therefore
contains only what may be shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.results.summary import (
    PARTY_SCHEMA,
    PartyResult,
    Refusal,
    Result,
    Round,
    decode,
    read_events,
    read_part,
    read_result,
    read_text,
)
from tacit.support.public_files import RESULT


@dataclass(frozen=True, kw_only=True)
class Run:
    """Input of a report."""

    directory: Path
    config: str
    result: Result
    rounds: list[Round]
    refused: list[Refusal]


@dataclass(frozen=True, kw_only=True)
class PartyRun:
    """Input of a report at one party of a live federation."""

    directory: Path
    result: PartyResult


def load_run(directory: Path) -> Run | PartyRun:
    """Load the run in `directory`, or raise a `DataError` that names the faulty file."""
    directory = Path(directory)
    public = directory / "public"
    path = public / RESULT
    if decode(read_text(path), dict[str, Any], path).get("schema") == PARTY_SCHEMA:
        return PartyRun(directory=directory, result=read_part(path, PartyResult))
    result = read_result(public)
    rounds, refused = read_events(public)
    return Run(
        directory=directory,
        config=read_text(public / "config.toml"),
        result=result,
        rounds=rounds,
        refused=refused,
    )
