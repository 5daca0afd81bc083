"""The program `tacit`: command tree, one-line error messages and exit codes."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tacit.cli import advanced, network, study, tables, update
from tacit.cli.certs import certs_app
from tacit.cli.data import data_app
from tacit.cli.ledger_app import ledger_app
from tacit.cli.quiet import discarding_output
from tacit.errors import DataError, TacitError
from tacit.support.storage import UNUSABLE

HELP = (
    "Private federated Bayesian inference: one posterior, while records stay at the parties.\n\n"
    "Start with `tacit run examples/hospitals.toml --report` in any directory: the examples come "
    "with the package. Examples on public data need the files first: `tacit data fetch adult`. "
    "For a run between organisations, start with certs, approve, serve and join (docs/live.md). "
    "Advanced: audit, tune, sweep, account, reproduce. With --quiet, any command prints only "
    "warnings, errors and the output of --json; with --debug, it shows a traceback. Exit codes: 2 "
    "bad configuration, 3 privacy budget, 4 bad or missing data, 5 network or peer."
)
COMMANDS = {
    "init": tables.init,
    "check": study.check,
    "run": study.run,
    "update": update.update,
    "predict": tables.predict,
    "explain": study.explain,
    "show": study.show,
    "report": study.report,
    "compare": study.compare,
    "ledger": ledger_app,
    "serve": network.serve,
    "join": network.join,
    "approve": network.approve,
    "status": network.status,
    "server": network.server_app,
    "certs": certs_app,
    "data": data_app,
    "schema": study.schema,
    "audit": advanced.audit,
    "tune": advanced.tune,
    "sweep": advanced.sweep,
    "account": advanced.account,
    "reproduce": advanced.reproduce,
}
"""All commands, in the order of `tacit --help`."""
GROUPS = [name for name, command in COMMANDS.items() if isinstance(command, typer.Typer)]


class _InOrder(TyperGroup):
    """Lists commands and groups in the order of `COMMANDS`."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Typer would end without a message if it were interrupted."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted(str(error)) from error


class _Interrupted(Exception):  # noqa: N818
    """A command was interrupted; the text is the next step, if there is one."""


app = typer.Typer(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=HELP,
)
for _name, _command in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tacit import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run a command: print an error as one line and exit with its code; --debug shows a
    traceback.
    """
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--debug", "--quiet")]
    debug, quiet = "--debug" in sys.argv[1:], "--quiet" in sys.argv[1:]
    if arguments in ([], *([name] for name in GROUPS)):
        arguments.append("--help")
    try:
        with warnings.catch_warnings(), discarding_output(quiet and "--json" not in arguments):
            warnings.showwarning = _warn
            code = app(arguments, prog_name="tacit", standalone_mode=False)
    except TacitError as error:
        code = _fail(str(error), error.exit_code, debug=debug)
        for other in error.also:
            typer.echo(f"error: {' '.join(str(other).split())}", err=True)
    except (_Interrupted, KeyboardInterrupt, typer.Abort) as error:
        code = _fail("; ".join(filter(None, ("interrupted", str(error)))), 130, debug=debug)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # Click's errors, wherever Typer keeps Click
        if usage is not None:
            code = _fail(f"{usage().rstrip('.')}; see --help", 2, debug=debug)
        elif isinstance(error, OSError) and error.errno in UNUSABLE:
            code = _fail(_storage_words(error), DataError.exit_code, debug=debug)
        else:
            name = type(error).__name__
            code = _fail(f"internal: {name}: {error}; repeat with --debug", 1, debug=debug)
    sys.exit(code or 0)


def entry() -> None:
    """Start the `tacit` program: `main` with a faster start and end.

    The garbage collector runs 70 times less often, and the interpreter exits without cleaning up
    its modules. This saves a third of the time of a short command.
    """
    gc.set_threshold(50_000, 20, 20)
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if threading.active_count() > 1 or "ray" in sys.modules:  # these need the clean-up
            raise
        with contextlib.suppress(OSError):  # the output pipe may be closed
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        raise


def _storage_words(error: OSError) -> str:
    """Return the message for an unusable disk or file, with its path if known."""
    place = "a file" if error.filename is None else str(error.filename)
    reason = error.strerror or str(error) or type(error).__name__
    return (
        f"{place}: {reason}; free disk space or fix the file's permissions, then repeat the "
        "command (--debug shows where it happened)"
    )


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line without its source location."""
    typer.echo("warning: " + " ".join(str(message).split()), err=True)


def _fail(message: str, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    typer.echo("error: " + " ".join(message.split()), err=True)
    return code


if __name__ == "__main__":
    entry()
