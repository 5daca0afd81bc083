"""Runs whose result is compared with the files that they write."""

from typing import Any

from tacit.results.summary import builtins_of
from tacit.run.run import run as run_study


def run(*arguments: Any, **options: Any) -> dict[str, Any]:
    """The result of a run as `tacit run --json` prints it."""
    return builtins_of(run_study(*arguments, **options))
