"""Commands of a live federation: serve, join, approve, status, server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.options import Overrides
from tacit.errors import ConfigError

server_app = typer.Typer(
    help="Operate a running server: start training, stop, add or readmit a party."
)

ServerFile = Annotated[Path, typer.Argument(metavar="SERVER.toml", help="The server's file.")]
PartyFile = Annotated[Path, typer.Argument(metavar="PARTY.toml", help="The party's file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def serve(
    config: ServerFile,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Wait until the other server with the same state directory stops, then take over.",
        ),
    ] = False,
    json: Json = False,
    overrides: Overrides = None,
) -> None:
    """Serve a live federation until its end.

    After a crash or a stop, the same command continues. SIGTERM and Ctrl-C close the server and
    tell the parties when to reconnect. Examples:

      tacit serve server.toml

      tacit serve server.toml --standby --json

      tacit serve server.toml --set serve.listen=0.0.0.0:7443
    """
    from tacit.cli.live import serve_command

    serve_command(config, overrides, standby=standby, as_json=json)


def join(
    config: PartyFile,
    json: Json = False,
    leave: Annotated[
        bool, typer.Option("--leave", help="Leave the run permanently instead of taking part.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help="With --leave: the reason, sent to the server.")
    ] = None,
    yes: Yes = False,
    overrides: Overrides = None,
) -> None:
    """Take part in a live federation until its end.

    Ctrl-C or SIGTERM leave temporarily (exit code 130): the same command joins again, and nothing
    is lost or charged twice. Examples:

      tacit join party.toml

      tacit join party.toml --leave --reason "consent withdrawn"
    """
    from tacit.cli.live import join_command, leave_command

    if leave:
        leave_command(config, overrides, reason, yes=yes)
    elif reason is not None:
        raise ConfigError(
            f"--reason {reason!r} is only used with --leave; add --leave, or omit --reason"
        )
    else:
        join_command(config, overrides, as_json=json)


def approve(config: PartyFile, yes: Yes = False) -> None:
    """Show the terms of a federation, and allow this party to take part in one run.

    The approval holds for the present contents of the federation's file. If the file changes, a new
    approval is needed, and a server with a different file is refused. Example:

      tacit approve party.toml
    """
    from tacit.cli.live import approve_command

    approve_command(config, yes=yes)


def status(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="SERVER.toml|PARTY.toml|DIR",
            help="A server's or party's file, or a state directory.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show the state of a server or party on this machine.

    Examples:

      tacit status server.toml

      tacit status party.toml --json
    """
    from tacit.cli.live_status import status_command

    status_command(place, as_json=json)


@server_app.command("start")
def server_start(config: ServerFile) -> None:
    """Start training now, with the parties that have joined.

    Example:

      tacit server start server.toml
    """
    from tacit.cli.live_status import start_command

    start_command(config)


@server_app.command("stop")
def server_stop(
    config: ServerFile,
    return_in: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Time until parties reconnect [default: key serve.restart_delay].",
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason, sent to the parties.")] = "planned close",
    for_good: Annotated[
        bool, typer.Option("--for-good", help="Close permanently; parties will not reconnect.")
    ] = False,
) -> None:
    """Stop a running server; `tacit serve` continues where it stopped.

    Examples:

      tacit server stop server.toml --return-in 600 --reason "new kernel"

      tacit server stop server.toml --for-good
    """
    from tacit.cli.live_status import stop_command

    stop_command(config, return_in=return_in, reason=reason, for_good=for_good)


@server_app.command("propose")
def server_propose(config: ServerFile) -> None:
    """Propose a new version of the agreed file, which adds parties to the run.

    Raise `version` and add names at the end of `parties` in the agreed file first. Every party
    approves the new version; until then the run follows the old one. Example:

      tacit server propose server.toml
    """
    from tacit.cli.live_status import propose_command

    propose_command(config)


@server_app.command("readmit")
def server_readmit(
    config: ServerFile,
    party: Annotated[str, typer.Argument(metavar="PARTY", help="The party to readmit.")],
) -> None:
    """Readmit a party that was excluded because of its updates.

    Example:

      tacit server readmit server.toml hospital-3
    """
    from tacit.cli.live_status import readmit_command

    readmit_command(config, party)
