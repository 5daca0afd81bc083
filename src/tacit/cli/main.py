"""`tacit`: the commands and how their errors are told."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.certs import certs_app
from tacit.cli.examples import with_examples
from tacit.errors import ConfigError, DataError, TacitError
from tacit.support.storage import UNUSABLE

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Private federated Bayesian inference: one posterior, every record stays where it is.\n\n"
    "Start with `tacit run examples/hospitals.toml --report` in any directory: the examples come "
    "with the package. Those on public data need its files first: `tacit data fetch adult`. "
    "Between organisations start with certs, approve, serve and join (docs/live.md). Any command "
    "takes --debug to show a traceback. Exit codes: 2 bad configuration, 3 privacy budget, "
    "4 bad or missing data, 5 network or peer.",
)
data_app = typer.Typer(help="List the built-in data sets and fetch their files.")
ledger_app = typer.Typer(
    help="A party's privacy ledger: show, verify, export, budgets. Every private `tacit run` is "
    "charged to one before anything is computed."
)
app.add_typer(data_app, name="data")
app.add_typer(ledger_app, name="ledger")
app.add_typer(certs_app, name="certs")

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
    Path | None, typer.Option(help="Where to write [default: runs/NAME-seedN or runs/STUDY].")
]


@app.command()
def run(
    config: ConfigPath,
    out: Out = None,
    seed: Seed = None,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run stopped.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run in that directory.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Write the HTML report too.")] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Charge a private run here [default: your own ledger]."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="in-process, or ray for many machines [engine.kind].")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: a cluster, HOST:PORT [engine.address].")
    ] = None,
) -> None:
    """Run a federation and leave a run directory.

    Examples:

      tacit run examples/hospitals.toml --report

      tacit run examples/adult.toml --seed 3 --set schedule.kind=sequential --out runs/adult

      tacit run examples/adult.toml --out runs/adult --resume

      tacit run examples/adult-private.toml --out runs/private

      tacit run examples/adult.toml --engine ray --set engine.actors=4
    """
    from tacit.cli.commands import run_command

    if engine is not None:
        overrides = [*(overrides or []), f"engine.kind={engine}"]
    if address is not None:
        overrides = [*(overrides or []), f"engine.address={address}"]
    run_command(
        config, out, seed, overrides,
        resume=resume, overwrite=overwrite, report=report, ledger=ledger,
    )  # fmt: skip


@app.command()
def check(
    config: ConfigPath,
    seed: Seed = None,
    overrides: Overrides = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check against this ledger [default: your own ledger]."),
    ] = None,
) -> None:
    """Report everything that is wrong with a configuration and its data, and what it would do.

    Exits with the code that `tacit run` would: 2 for a bad configuration, 4 for bad or missing
    data, 3 if the ledger does not allow a private run. Nothing is written, nothing leaves this
    process and no budget is spent: for a private run it shows the guarantee, the noise that it
    takes and how much signal is left. It takes any of the three files of a live federation too: for
    a party it checks certificate, records, approval and budget, for a server certificate, address
    and state. Examples:

      tacit check examples/hospitals.toml --set partition.parties=50

      tacit check examples/adult-private.toml --set privacy.epsilon=0.5

      tacit check party.toml
    """
    from tacit.cli.commands import check_command

    check_command(config, seed, overrides, ledger)


@app.command()
def explain(
    config: ConfigPath,
    seed: Seed = None,
    overrides: Overrides = None,
    colluding: Annotated[
        int | None, typer.Option(help="How many parties collude [default: all but one].")
    ] = None,
) -> None:
    """Say, adversary by adversary, whether and with what ε a configuration protects.

    One record (or person) and a whole party, against readers of the model, eavesdroppers, curious
    and colluding parties and the server. Nothing is spent. Examples:

      tacit explain examples/adult-private.toml --colluding 3

      tacit explain federation.toml
    """
    from tacit.cli.commands import explain_command

    explain_command(config, seed, overrides, colluding)


@app.command()
def tune(
    config: ConfigPath,
    trials: Annotated[
        int | None, typer.Option(help="How many settings to try [default: tune.trials, 24].")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Made-up federations at the end [default: tune.repeats, 8].")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Values to try [default: the method's own grid]."),
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="Training records in all, where only a file knows.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write [default: runs/NAME-tuned].")
    ] = None,
    seed: Seed = None,
    overrides: Overrides = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace earlier trials in that directory.")
    ] = False,
) -> None:
    """Find settings for a run on synthetic records of its declared shape.

    No record is read and no budget is spent: records are made up from the public schema and the
    model's prior, and learnt from with the noise that the run would have. Leaves tuned.toml, which
    is the configuration with the best settings, and all trials. Examples:

      tacit tune examples/adult-private.toml

      tacit tune private.toml --records 20000 --trials 50 --out runs/tuned

      tacit tune private.toml --grid method.clip=0.5,1,2 --grid schedule.rounds=20,40,80
    """
    from tacit.cli.tune import tune_command

    tune_command(
        config, out, seed, overrides, grid,
        trials=trials, repeats=repeats, records=records, overwrite=overwrite,
    )  # fmt: skip


ServerFile = Annotated[Path, typer.Argument(metavar="SERVER.toml", help="The server's file.")]
PartyFile = Annotated[Path, typer.Argument(metavar="PARTY.toml", help="The party's file.")]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of words.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command()
def serve(
    config: ServerFile,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until the server of this state is gone.")
    ] = False,
    json: Json = False,
    overrides: Overrides = None,
) -> None:
    """Serve a live federation until its end, or until told to close.

    Killed or closed at any moment, the same command goes on where it stopped. SIGTERM and Ctrl-C
    tell the parties when to be back. Examples:

      tacit serve server.toml

      tacit serve server.toml --standby --json

      tacit serve server.toml --set serve.listen=0.0.0.0:7443
    """
    from tacit.cli.live import serve_command

    serve_command(config, overrides, standby=standby, as_json=json)


@app.command()
def join(
    config: PartyFile,
    json: Json = False,
    leave: Annotated[
        bool, typer.Option("--leave", help="Leave the run for good instead of taking part.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="With --leave: why, for the server.")] = None,
    yes: Yes = False,
    overrides: Overrides = None,
) -> None:
    """Take part in a live federation until its end.

    Ctrl-C or SIGTERM leave for now (exit code 130): the same command joins again, with nothing
    lost and nothing paid twice. Examples:

      tacit join party.toml

      tacit join party.toml --leave --reason "consent withdrawn"
    """
    from tacit.cli.live import join_command, leave_command

    if leave:
        leave_command(config, overrides, reason, yes=yes)
    elif reason is not None:
        raise ConfigError(f"--reason {reason!r} without --leave; it is for leaving for good")
    else:
        join_command(config, overrides, as_json=json)


@app.command()
def approve(config: PartyFile, yes: Yes = False) -> None:
    """Read in plain words what a federation is, and allow this party to take part in it once.

    What is written down is the digest of the agreed file: a changed one has to be approved anew,
    and a server that follows another one is refused. Example:

      tacit approve party.toml
    """
    from tacit.cli.live import approve_command

    approve_command(config, yes=yes)


@app.command()
def status(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="SERVER.toml|PARTY.toml|DIR", help="A server's or party's file, or its state."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="JSON instead of words.")] = False,
) -> None:
    """Say how a server or a party is doing, on the machine where it runs.

    Examples:

      tacit status server.toml

      tacit status party.toml --json
    """
    from tacit.cli.live import status_command

    status_command(place, as_json=json)


@app.command()
def control(
    config: ServerFile,
    action: Annotated[
        str, typer.Argument(metavar="start|close|readmit", help="What the server is to do.")
    ],
    return_in: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="When parties shall be back [serve.return_in_s]."),
    ] = None,
    reason: Annotated[str, typer.Option(help="What the parties are told.")] = "planned close",
    for_good: Annotated[
        bool, typer.Option("--for-good", help="Tell the parties not to come back.")
    ] = False,
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which party to readmit.")
    ] = None,
) -> None:
    """Tell a running server to start training now, to close, or to readmit a party it left out.

    Examples:

      tacit control server.toml start

      tacit control server.toml close --return-in 600 --reason "new kernel"

      tacit control server.toml readmit --party hospital-3
    """
    from tacit.cli.live import control_command

    control_command(
        config, action, return_in=return_in, reason=reason, for_good=for_good, party=party
    )


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
) -> None:
    """Write DIR/public/report.html with figures from the public part of a finished run.

    Example:

      tacit report runs/ten-hospitals-seed1
    """
    from tacit.cli.commands import report_command

    report_command(run_dir)


@app.command()
def reproduce(
    study: Annotated[str | None, typer.Argument(metavar="STUDY", help="Which one.")] = None,
    out: Out = None,
    seed: Annotated[int, typer.Option(help="The seed.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version.")] = False,
    figure: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this figure of the study.")
    ] = None,
) -> None:
    """Repeat a published study with this library; without STUDY, list them.

    Examples:

      tacit reproduce fedvi --out runs/fedvi

      tacit reproduce tmlr --figure 1 --quick

      tacit reproduce meng --figure 4.8

      tacit reproduce vips --figure topics

      tacit reproduce frontier --figure 1 --figure ablation
    """
    from tacit.cli.commands import reproduce_command

    reproduce_command(study, out, seed, quick=quick, figure=figure)


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="The sweep.")],
    out: Annotated[Path | None, typer.Option(help="Where to write [default: runs/NAME].")] = None,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on; finished runs are not run again.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier sweep in that directory.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="How many runs at a time [default: one a core].")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray to spread over machines.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: a cluster [default: one of its own].")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Charge private runs here [default: your own ledger]."),
    ] = None,
) -> None:
    """Run a configuration with other keys and seeds, in parallel: a row a run, a summary.

    Killed at any moment, the same command with --resume goes on. The exit code is not 0 if a run
    failed; all others are run all the same. Examples:

      tacit sweep examples/sweeps/privacy.toml

      tacit sweep examples/sweeps/privacy.toml --workers 8 --set schedule.rounds=5 --out runs/quick

      tacit sweep examples/sweeps/privacy.toml --resume
    """
    from tacit.cli.sweep import sweep_command

    sweep_command(
        config, out, overrides,
        resume=resume, overwrite=overwrite, workers=workers, engine=engine, address=address,
        ledger=ledger,
    )  # fmt: skip


@data_app.command("list")
def data_list() -> None:
    """List the data sources and whether their files are here.

    Example:

      tacit data list
    """
    from tacit.cli.commands import data_list_command

    data_list_command()


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A source, e.g. adult.")],
) -> None:
    """Download a public data set to the cache, checked against its SHA-256.

    Files under $TACIT_DATA/NAME are used first and never downloaded. Example:

      tacit data fetch adult
    """
    from tacit.cli.commands import data_fetch_command

    data_fetch_command(name)


@app.command()
def account(
    rounds: Annotated[int, typer.Option(help="How many releases.")] = 1,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise sd over clip: what does it cost?")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="A target: how much noise?")] = None,
    delta: Annotated[float, typer.Option(help="The δ.")] = 1e-5,
    relation: Annotated[
        str, typer.Option(help="add-or-remove or substitute one unit.")
    ] = "substitute",
    rate: Annotated[float | None, typer.Option(help="Poisson sampling rate.")] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size without replacement …")] = None,
    of: Annotated[int | None, typer.Option("--of", help="… out of this many records.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write ε against rounds here (PNG).")] = None,
) -> None:
    """Say what Gaussian releases cost in ε, or how much noise a target ε needs.

    No data are read and nothing is spent. Examples:

      tacit account --noise-multiplier 4 --rounds 1000 --rate 0.05

      tacit account --epsilon 1 --rounds 1000 --rate 0.05 --relation add-or-remove

      tacit account --noise-multiplier 4 --rounds 1000 --batch 100 --of 2000 --plot epsilon.png
    """
    from tacit.cli.account import account_command, make_question

    question = make_question(
        rounds=rounds, delta=delta, relation=relation, rate=rate, batch=batch, total=of
    )
    account_command(question, noise=noise_multiplier, epsilon=epsilon, plot=plot)


LedgerPath = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="FILE", help="The ledger [default: your own]."),
]
Reason = Annotated[str, typer.Option(help="Why, for whoever reads the ledger later.")]


def _book(path: Path | None) -> Path:
    from tacit.privacy.ledger.paths import own_ledger

    return path or own_ledger()


@ledger_app.command("show")
def ledger_show(
    ledger: LedgerPath = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every entry, and whole ids of data sets.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
) -> None:
    """Show what was spent on each data set, of what budget, and what each run has cost.

    Examples:

      tacit ledger show

      tacit ledger show --ledger state/ledger.sqlite --all
    """
    from tacit.cli.ledger_show import show_command

    show_command(_book(ledger), everything=everything, as_json=json)


@ledger_app.command("verify")
def ledger_verify(
    ledger: LedgerPath = None,
    receipt: Annotated[str | None, typer.Option(help="A receipt kept elsewhere.")] = None,
) -> None:
    """Check every entry and the end of the chain. Exit code 4 if anything is wrong.

    Example:

      tacit ledger verify --ledger state/ledger.sqlite
    """
    from tacit.cli.ledger import verify_command

    verify_command(_book(ledger), receipt)


@ledger_app.command("export")
def ledger_export(
    out: Annotated[Path, typer.Option(help="A .json or .csv file.")], ledger: LedgerPath = None
) -> None:
    """Write the entries, without secrets, to a file.

    Example:

      tacit ledger export --ledger state/ledger.sqlite --out entries.csv
    """
    from tacit.cli.ledger import export_command

    export_command(_book(ledger), out)


@ledger_app.command("budget")
def ledger_budget(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="ID|CONFIG.toml|PARTY.toml", help="A data set, all of a run's, or a party's."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="At most this ε in all.")],
    delta: Annotated[float, typer.Option(help="At this δ.")],
    reason: Reason,
    relation: Annotated[
        str | None, typer.Option(help="add-or-remove or substitute [default: the configuration's].")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="record, person or party [default: the configuration's].")
    ] = None,
    raising: Annotated[bool, typer.Option("--raise", help="Allow more than before.")] = False,
    ledger: LedgerPath = None,
) -> None:
    """Set what may be spent on a data set. No server or run can do this.

    With a configuration, the budget is set for each of its parties' records, with a party's file
    for that party's, in the ledger that the file names. A ledger is made if there is none.

    Examples:

      tacit ledger budget private.toml --epsilon 1 --delta 1e-5 --reason "board of 3 May"

      tacit ledger budget party.toml --epsilon 1 --delta 1e-5 --reason "board of 3 May"

      tacit ledger budget ID --ledger state/ledger.sqlite --epsilon 2 --delta 1e-5 --reason "board"
    """
    from tacit.cli.ledger import budget_command

    budget_command(ledger, dataset, epsilon, delta, relation, unit, reason=reason, raising=raising)


@ledger_app.command("link")
def ledger_link(
    newer: Annotated[str, typer.Argument(metavar="NEW", help="The later data set.")],
    older: Annotated[str, typer.Argument(metavar="OLD", help="The one it continues.")],
    reason: Reason,
    ledger: LedgerPath = None,
) -> None:
    """Declare that a changed data set continues an old one, so that spending carries over.

    Example:

      tacit ledger link NEW OLD --ledger state/ledger.sqlite --reason "monthly update"
    """
    from tacit.cli.ledger import link_command

    link_command(_book(ledger), newer, older, reason=reason)


@app.command()
def version() -> None:
    """Print the version."""
    from tacit import __version__

    typer.echo(__version__)


def main() -> None:
    """Entry point: one line for an error, its exit code, a traceback only with --debug."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if arguments in ([], ["data"], ["ledger"], ["certs"]):
        arguments.append("--help")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code = app(arguments, standalone_mode=False)
    except TacitError as error:
        code = _fail(str(error), error.exit_code, debug=debug)
        for other in error.also:
            typer.echo(f"error: {' '.join(str(other).split())}", err=True)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted; a run goes on with --resume", 130, debug=debug)
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


def _storage_words(error: OSError) -> str:
    """A disk or a file that cannot be used: its path, where the system tells it, and what to do."""
    place = "a file" if error.filename is None else str(error.filename)
    reason = error.strerror or str(error) or type(error).__name__
    return (
        f"{place}: {reason}; make room on the disk or mend the rights of the file, then give the "
        "same command again (--debug shows where it happened)"
    )


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning in one line, without the place in our code that gave it."""
    typer.echo("warning: " + " ".join(str(message).split()), err=True)


def _fail(message: str, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    typer.echo("error: " + " ".join(message.split()), err=True)
    return code


if __name__ == "__main__":
    main()
