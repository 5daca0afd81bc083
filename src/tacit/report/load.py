"""Read the public part of a run directory, checking what is read.

The whole input of a report is `config.toml`, `events.jsonl` and `result.json` in the public part of
a run directory: nothing that may not be shared can get into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.results.shown import Shown, result_rows
from tacit.results.summary import Refusal, Result, Round, read_events, read_result, read_text


@dataclass(frozen=True, kw_only=True)
class Run:
    """Input of a report."""

    directory: Path
    config: str
    result: Result
    rounds: list[Round]
    refused: list[Refusal]

    @property
    def rows(self) -> list[Shown]:
        """What tables and figures show: sites in their own space, or else the coefficients."""
        return result_rows(self.result)


def load_run(directory: Path) -> Run:
    """Load the run in `directory`, or raise a `DataError` that names the faulty file."""
    directory = Path(directory)
    public = directory / "public"
    result = read_result(public)
    rounds, refused = read_events(public)
    return Run(
        directory=directory,
        config=read_text(public / "config.toml"),
        result=result,
        rounds=rounds,
        refused=refused,
    )
