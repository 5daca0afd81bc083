"""`tacit ledger`: the commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.options import Json
from tacit.cli.options import LedgerFile as LedgerPath

ledger_app = typer.Typer(
    help="A party's privacy ledger: show, budget, verify, export, link, close. Every private "
    "`tacit run` is charged to a ledger before anything is computed."
)

Reason = Annotated[str, typer.Option(help="Reason, recorded in the ledger.")]


def _ledger_path(path: Path | None) -> Path:
    from tacit.privacy.ledger.paths import own_ledger

    return path or own_ledger()


@ledger_app.command("show")
def ledger_show(
    ledger: LedgerPath = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every entry, with full ids of data sets.")
    ] = False,
    json: Json = False,
) -> None:
    """Show spending and budget per data set, and the cost of each run.

    Examples:

      tacit ledger show

      tacit ledger show --ledger state/ledger.sqlite --all
    """
    from tacit.cli.ledger_show import show_command

    show_command(_ledger_path(ledger), everything=everything, as_json=json)


@ledger_app.command("budget")
def ledger_budget(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="ID|CONFIG.toml|PARTY.toml",
            help="Id of a data set, or a file: all data sets of this run or party.",
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Total ε that may be spent.")],
    delta: Annotated[float, typer.Option(help="The δ of that ε.")],
    reason: Reason,
    adjacency: Annotated[
        str | None,
        typer.Option(help="add-or-remove-one or replace-one [default: the configuration's]."),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="record, person or party [default: the configuration's].")
    ] = None,
    raising: Annotated[
        bool, typer.Option("--raise", help="Allow raising an existing budget.")
    ] = False,
    ledger: LedgerPath = None,
    json: Json = False,
) -> None:
    """Set the budget of a data set. Servers and runs cannot set or raise budgets.

    With CONFIG.toml, sets the budget of every party's records. With PARTY.toml, sets the budget of
    that party's records. The file names the ledger; a missing ledger is created.

    Examples:

      tacit ledger budget private.toml --epsilon 1 --delta 1e-5 --reason "board of 3 May"

      tacit ledger budget party.toml --epsilon 1 --delta 1e-5 --reason "board of 3 May"

      tacit ledger budget ID --ledger state/ledger.sqlite --epsilon 2 --delta 1e-5 --reason "board"
    """
    from tacit.cli.ledger import budget_command

    budget_command(
        ledger,
        dataset,
        epsilon,
        delta,
        adjacency,
        unit,
        reason=reason,
        raising=raising,
        as_json=json,
    )


@ledger_app.command("verify")
def ledger_verify(
    ledger: LedgerPath = None,
    receipt: Annotated[
        str | None, typer.Option(help="A receipt of this ledger that was stored elsewhere.")
    ] = None,
    json: Json = False,
) -> None:
    """Check all entries of a ledger and the hash chain that links them.

    The exit code is 4 if there is a problem.

    Example:

      tacit ledger verify --ledger state/ledger.sqlite
    """
    from tacit.cli.ledger import verify_command

    verify_command(_ledger_path(ledger), receipt, as_json=json)


@ledger_app.command("export")
def ledger_export(
    out: Annotated[Path, typer.Option(help="A .json or .csv file.")],
    ledger: LedgerPath = None,
    json: Json = False,
) -> None:
    """Write the entries, without secrets, to a file.

    Example:

      tacit ledger export --ledger state/ledger.sqlite --out entries.csv
    """
    from tacit.cli.ledger import export_command

    export_command(_ledger_path(ledger), out, as_json=json)


@ledger_app.command("link")
def ledger_link(
    newer: Annotated[str, typer.Argument(metavar="NEW", help="The later data set.")],
    older: Annotated[str, typer.Argument(metavar="OLD", help="The earlier data set.")],
    reason: Reason,
    ledger: LedgerPath = None,
    json: Json = False,
) -> None:
    """Declare that a changed data set continues an old one, so that spending carries over.

    Example:

      tacit ledger link NEW OLD --ledger state/ledger.sqlite --reason "monthly update"
    """
    from tacit.cli.ledger import link_command

    link_command(_ledger_path(ledger), newer, older, reason=reason, as_json=json)


@ledger_app.command("close")
def ledger_close(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of a run, from `tacit ledger show`.")
    ],
    reason: Reason,
    ledger: LedgerPath = None,
    json: Json = False,
) -> None:
    """End an unfinished run for good, so that no budget is reserved for its remaining releases.

    Releases that were charged stay charged. The run cannot be resumed.

    Example:

      tacit ledger close run-0123456789abcdef01234567 --reason "its machine was lost"
    """
    from tacit.cli.ledger import close_command

    close_command(_ledger_path(ledger), run, reason=reason, as_json=json)
