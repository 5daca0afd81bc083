"""Arguments and options that several commands share."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.examples import with_examples

ConfigPath = Annotated[
    Path,
    typer.Argument(metavar="CONFIG.toml", help="The configuration.", callback=with_examples),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. schedule.rounds=20."),
]
Seed = Annotated[int | None, typer.Option(help="Override the seed.")]
Out = Annotated[
    Path | None, typer.Option(help="Output directory [default: runs/NAME-seedN or runs/STUDY].")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier run in that directory.")
]
Report = Annotated[bool, typer.Option("--report", help="Also write the HTML report.")]
ChargedLedger = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="Charge a private run to this ledger [default: your ledger].",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
LedgerFile = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="FILE", help="The ledger [default: your ledger]."),
]


def print_json(body: Any) -> None:
    """Print a result as JSON, with null for numbers that are not finite."""
    print(json.dumps(_finite(body), indent=1, allow_nan=False, default=str, ensure_ascii=False))


def repeated(option: str, *, without: str, command: str | None = None) -> str:
    """Return the command of this process with one more option, and without another.

    `command` replaces the command `tacit check`.
    """
    arguments = [argument for argument in sys.argv[1:] if argument not in (option, without)]
    if command is not None and "check" in arguments:
        arguments[arguments.index("check")] = command
    return shlex.join(["tacit", *arguments, option])


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
