"""Advanced commands: audit, tune, sweep, account, reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.options import ConfigPath, Json, Out, Overrides, Seed


def audit(
    config: ConfigPath,
    method: Annotated[
        str | None,
        typer.Option(help="Audit this method instead of the configured one, e.g. dp-sgd."),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            help="Time limit for drawing noise; a minimum number of draws is always taken."
        ),
    ] = 2.0,
    records: Annotated[
        int | None,
        typer.Option(help="Total number of synthetic records [default: 100 per party]."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write a figure of claims and lower bounds, e.g. a.svg.")
    ] = None,
    seed: Seed = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Attack the releases of a private configuration, and test the claimed ε.

    Synthetic records are drawn from the public schema; no record is read and nothing is charged.
    For each kind of release the command searches for the worst pair of neighbouring data sets,
    measures the noise that the party's code draws, and computes a lower bound on ε. If the lower
    bound is above the claimed ε, the guarantee is false and the exit code is 3. The lower bound is
    also computed with half the noise; it should then be above the claim, which shows that the test
    can find errors. Examples:

      tacit audit examples/hospitals-private.toml

      tacit audit private.toml --method dp-sgd --minutes 10 --figure audit.svg

      tacit audit private.toml --set privacy.unit=person --json
    """
    from tacit.cli.audit import audit_command

    audit_command(
        config, seed, overrides,
        method=method, minutes=minutes, records=records, figure=figure, as_json=json,
    )  # fmt: skip


def tune(
    config: ConfigPath,
    trials: Annotated[
        int | None,
        typer.Option(help="Number of settings to try [default: key tune.trials, or 24]."),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            help="Synthetic federations in the final comparison [default: key tune.repeats, or 8]."
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Values to try [default: the method's own grid]."),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(help="Total number of training records, if it depends on a data file."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output directory [default: runs/NAME-tuned].")
    ] = None,
    seed: Seed = None,
    overrides: Overrides = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace earlier trials in that directory.")
    ] = False,
    json: Json = False,
) -> None:
    """Tune on synthetic data, spending no budget.

    Synthetic records are drawn from the public schema and the model's prior. The noise is that of
    the real run. No record is read. Writes tuned.toml, the configuration with the best settings,
    and a table of all trials. Examples:

      tacit tune examples/adult-private.toml

      tacit tune private.toml --records 20000 --trials 50 --out runs/tuned

      tacit tune private.toml --grid method.clip=0.5,1,2 --grid schedule.rounds=20,40,80
    """
    from tacit.cli.tune import tune_command

    tune_command(
        config, out, seed, overrides, grid,
        trials=trials, repeats=repeats, records=records, overwrite=overwrite, as_json=json,
    )  # fmt: skip


def sweep(
    config: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="The sweep.")],
    out: Annotated[Path | None, typer.Option(help="Output directory [default: runs/NAME].")] = None,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue; finished runs are not repeated.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier sweep in that directory.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of parallel runs [default: one per core].")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for several machines.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: a cluster [default: start one].")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Charge private runs to this ledger [default: your ledger]."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a configuration with several settings and seeds in parallel; write tables.

    After an interruption the same command with --resume continues. If a run fails, the others still
    run and the exit code is not 0. Examples:

      tacit sweep examples/sweeps/privacy.toml

      tacit sweep examples/sweeps/privacy.toml --workers 8 --set schedule.rounds=5 --out runs/quick

      tacit sweep examples/sweeps/privacy.toml --resume
    """
    from tacit.cli.sweep import sweep_command

    sweep_command(
        config, out, overrides,
        resume=resume, overwrite=overwrite, workers=workers, engine=engine, address=address,
        ledger=ledger, as_json=json,
    )  # fmt: skip


def account(
    rounds: Annotated[int, typer.Option(help="Number of releases.")] = 1,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise sd divided by the clipping bound; computes ε.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target ε; computes the noise.")] = None,
    delta: Annotated[float, typer.Option(help="The δ; 0 for pure ε with Laplace noise.")] = 1e-5,
    adjacency: Annotated[
        str, typer.Option(help="replace-one or add-or-remove-one.")
    ] = "replace-one",
    rate: Annotated[
        float | None,
        typer.Option(help="Poisson sampling: probability that a record is in a batch."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Size of batches drawn without replacement; needs --of.")
    ] = None,
    of: Annotated[
        int | None, typer.Option("--of", help="Number of records from which --batch draws.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot of ε against rounds to this PNG file.")
    ] = None,
    json: Json = False,
) -> None:
    """Compute ε for a noise level, or the noise for a target ε.

    No data are read and no budget is spent. Examples:

      tacit account --noise-multiplier 4 --rounds 1000 --rate 0.05

      tacit account --epsilon 1 --rounds 1000 --rate 0.05 --adjacency add-or-remove-one

      tacit account --noise-multiplier 4 --rounds 1000 --batch 100 --of 2000 --plot epsilon.png
    """
    from tacit.cli.account import account_command, make_question

    question = make_question(
        rounds=rounds, delta=delta, adjacency=adjacency, rate=rate, batch=batch, total=of
    )
    account_command(question, noise=noise_multiplier, epsilon=epsilon, plot=plot, as_json=json)


def reproduce(
    study: Annotated[str | None, typer.Argument(metavar="STUDY", help="Name of the study.")] = None,
    out: Out = None,
    seed: Annotated[int, typer.Option(help="The seed.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a smaller version of the study.")
    ] = False,
    figure: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this figure of the study.")
    ] = None,
    json: Json = False,
) -> None:
    """Repeat a published study with this library; without STUDY, list all studies.

    Examples:

      tacit reproduce fedvi --out runs/fedvi

      tacit reproduce tmlr --figure 1 --quick

      tacit reproduce meng --figure 4.8

      tacit reproduce vips --figure topics

      tacit reproduce frontier --figure 1 --figure ablation
    """
    from tacit.cli.commands import reproduce_command

    reproduce_command(study, out, seed, quick=quick, figure=figure, as_json=json)
