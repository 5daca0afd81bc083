"""Commands of one study: check, run, explain, show, report, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.options import (
    ChargedLedger,
    ConfigPath,
    Json,
    Out,
    Overrides,
    Overwrite,
    Report,
    Resume,
    Seed,
)


def check(
    config: ConfigPath,
    out: Out = None,
    seed: Seed = None,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Check the budget in this ledger [default: your ledger]."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Validate a configuration and its data, and show the plan.

    The exit code is that of `tacit run` with the same options: 2 for a bad configuration or an
    output directory that cannot be used, 4 for bad or missing data, 3 if the ledger does not allow
    a private run. Nothing is written or sent, and no budget is spent. For a private run the command
    shows guarantee, noise and signal. It also checks the files of a live federation: certificate,
    records, approval and budget of a party; certificate, address and state of a server. Examples:

      tacit check examples/hospitals.toml --set partition.parties=50

      tacit check examples/adult-private.toml --set privacy.epsilon=0.5

      tacit check examples/adult.toml --out runs/adult --resume

      tacit check party.toml
    """
    from tacit.cli.commands import check_command

    check_command(
        config, out, seed, overrides,
        resume=resume, overwrite=overwrite, ledger=ledger, as_json=json,
    )  # fmt: skip


def run(
    config: ConfigPath,
    out: Out = None,
    seed: Seed = None,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    report: Report = False,
    ledger: ChargedLedger = None,
    engine: Annotated[
        str | None,
        typer.Option(help="in-process, or ray for many machines [default: key engine.kind]."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="With --engine ray: HOST:PORT of a cluster [default: key engine.address]."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Fit a model and write a run directory.

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
        resume=resume, overwrite=overwrite, report=report, ledger=ledger, as_json=json,
    )  # fmt: skip


def explain(
    config: ConfigPath,
    seed: Seed = None,
    overrides: Overrides = None,
    colluding: Annotated[
        int | None, typer.Option(help="Number of colluding parties [default: all but one].")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Write a figure of what each attacker sees."),
    ] = None,
    json: Json = False,
) -> None:
    """Show the privacy guarantee against each kind of attacker.

    Shows ε for one record (or person) and for a whole party, against readers of the model,
    eavesdroppers, curious and colluding parties and the server. No budget is spent. Examples:

      tacit explain examples/adult-private.toml --colluding 3

      tacit explain examples/hospitals-private.toml --figure barriers.svg

      tacit explain federation.toml
    """
    from tacit.cli.commands import explain_command

    explain_command(config, seed, overrides, colluding, as_json=json, figure=figure)


def show(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A run directory, or the state directory of a live server or party."
        ),
    ],
    json: Json = False,
) -> None:
    """Print the result of a finished run, from the public part of its directory.

    Examples:

      tacit show runs/ten-hospitals-seed1

      tacit show runs/ten-hospitals-seed1 --json
    """
    from tacit.cli.commands import show_command

    show_command(run_dir, as_json=json)


def report(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A run directory, or the state directory of a live server or party.",
        ),
    ],
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Write DIR/private/report.html, with metrics on held-out records and the spent "
            "and remaining budget. Do not share that page.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Write DIR/public/report.html, one self-contained page, from the public part of a run.

    Examples:

      tacit report runs/ten-hospitals-seed1

      tacit report party-state --private
    """
    from tacit.cli.commands import report_command

    report_command(run_dir, private=private, as_json=json)


def compare(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="DIR DIR…", help="Two or more run directories.")
    ],
    json: Json = False,
) -> None:
    """Show two or more finished runs side by side, from the public parts of their directories.

    Example:

      tacit compare runs/private runs/not-private
    """
    from tacit.cli.commands import compare_command

    compare_command(run_dirs, as_json=json)


def schema(
    file: Annotated[
        str, typer.Option(help="Which file: study, federation, server, party or sweep.")
    ] = "study",
) -> None:
    """Print a JSON Schema of a TOML file, so that editors can complete and check it.

    Write the schema to a file, and name that file in the first line of the TOML file, `#:schema
    study.schema.json`:

      tacit schema > study.schema.json

      tacit schema --file federation > federation.schema.json
    """
    from tacit.cli.schema import schema_command

    schema_command(file)
