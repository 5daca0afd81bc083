"""`tacit update`: update the posterior of an earlier run with records that arrived later."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.options import ChargedLedger, Json, Overrides, Overwrite, Report, Resume
from tacit.errors import ConfigError, PrivacyBudgetError


def update(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|SERVER.toml", help="Directory of the earlier run, or a live server's file."
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA …", help="File or files with the new records [default: key data.path]."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output directory [default: RUN-update].")
    ] = None,
    overrides: Overrides = None,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Write the study file of the update and stop."),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    report: Report = False,
    ledger: ChargedLedger = None,
    json: Json = False,
) -> None:
    """Update the posterior of an earlier run with records that arrived later.

    Only the new records are read, released and charged; the posterior of the earlier run is the
    prior. Rows that the earlier run has used are refused. The earlier run must have method.kind =
    "exact", "expected-statistics" or "dp-statistics". A private update needs a budget for the new
    records: write the study file of the update with --study, and give that file to `tacit ledger
    budget`. Examples:

      tacit update runs/first records-2027.csv --out runs/second

      tacit update runs/first records-2027.csv --study update.toml

      tacit update runs/second --set data.path=records-2028.csv

      tacit update server.toml --study federation-2027.toml
    """
    if run.is_file():
        _continue_federation(run, study, data=data, out=out, overrides=overrides, as_json=json)
        return
    from tacit.live.update import updated_study
    from tacit.run.config import read_override

    raw = updated_study(run, data, dict(map(read_override, overrides or ())))
    if study is not None:
        _write_study(study, raw, as_json=json)
        return
    out = out or run.with_name(f"{run.name}-update")
    options = {"resume": resume, "overwrite": overwrite, "report": report, "ledger": ledger}
    _carry_out(raw, out, f"{run} {' '.join(data or [])}", as_json=json, **options)


def _carry_out(raw: dict[str, Any], out: Path, arguments: str, **options: Any) -> None:
    from tacit.cli.commands import carry_out_run
    from tacit.run.config import parse_config

    try:
        carry_out_run(parse_config(raw), Path("update.toml"), out, **options)
    except PrivacyBudgetError as error:
        raise PrivacyBudgetError(
            f"{error}; write a study file: tacit update {arguments} --study update.toml"
        ) from error


def _continue_federation(server: Path, study: Path | None, *, as_json: bool, **given: Any) -> None:
    """Write the agreed file of a live run that continues the finished run of server.toml."""
    import tomlkit

    from tacit.cli.options import print_json
    from tacit.live.config import read_agreed
    from tacit.live.update import continued_federation
    from tacit.support.storage import write_text

    unused = next((name for name, value in given.items() if value), None)
    if study is None or unused is not None:
        raise ConfigError(
            f"{server} belongs to a live federation, whose parties hold the new records; here you "
            f"can only write the agreed file of the update: tacit update {server} --study FILE.toml"
        )
    if study.exists():
        raise ConfigError(f"--study {study} exists; choose another name")
    write_text(study, tomlkit.dumps(continued_federation(server)))
    digest = read_agreed(study).digest
    if as_json:
        print_json({"study": str(study), "configuration": digest})
    else:
        typer.echo(
            f"agreed file: {study} (digest {digest[:12]}…); next: in the files of the server "
            "and of every party, set `earlier` to the old state directory and `state` to a new "
            "one; then every party approves the agreed file"
        )


def _write_study(path: Path, raw: dict[str, Any], *, as_json: bool) -> None:
    import tomlkit

    from tacit.cli.options import print_json
    from tacit.run.config import parse_config
    from tacit.support.storage import write_text

    if path.exists():
        raise ConfigError(f"--study {path} exists; choose another name")
    parse_config(raw)
    write_text(path, tomlkit.dumps(raw))
    if as_json:
        print_json({"study": str(path)})
    else:
        typer.echo(f"study file: {path}; next: tacit check {path}, tacit run {path}")
