"""`tacit update`: the posterior of an earlier run, updated by records that arrived later."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.options import ChargedLedger, Json, Overrides, Overwrite, Report, Resume
from tacit.errors import ConfigError, DataError, PrivacyBudgetError


def update(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the earlier run.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA …", help="File or files with the new records [data.path]."),
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
    prior. Rows that the earlier run has used are refused. For runs with method.kind = "exact",
    "expected-statistics" or "dp-statistics". A private update needs a budget for the new records:
    write its study file with --study, and set the budget with that file. Examples:

      tacit update runs/first records-2027.csv --out runs/second

      tacit update runs/first records-2027.csv --study update.toml

      tacit update runs/second --set data.path=records-2028.csv
    """
    raw = updated_study(run, data, overrides)
    if study is not None:
        _write_study(study, raw, as_json=json)
        return
    from tacit.cli.commands import carry_out_run
    from tacit.run.config import parse_config

    config = parse_config(raw)
    out = out or run.with_name(f"{run.name}-update")
    try:
        carry_out_run(
            config, Path("update.toml"), out,
            resume=resume, overwrite=overwrite, report=report, ledger=ledger, as_json=json,
        )  # fmt: skip
    except PrivacyBudgetError as error:
        files = " ".join(data or [])
        raise PrivacyBudgetError(
            f"{error}; the study file: tacit update {run} {files} --study update.toml"
        ) from error


def updated_study(run: Path, data: list[str] | None, overrides: list[str] | None) -> dict[str, Any]:
    """The study file of an update as a dictionary: that of the earlier run with the new records."""
    from tacit.results.summary import public_of
    from tacit.run.config import override, read_toml
    from tacit.run.directory import CONFIG

    path = public_of(run) / CONFIG
    if not path.is_file():
        raise DataError(
            f"{path} does not exist; give the directory of a finished run (tacit run --out …)"
        )
    raw = read_toml(path)
    raw["continues"] = {"run": str(run)}
    if data:
        raw.setdefault("data", {})["path"] = data[0] if len(data) == 1 else data
    before = dict(raw.get("data", {}))
    for asked in overrides or ():
        override(raw, asked)
    if not data and raw.get("data") == before and raw.get("seed") == read_toml(path).get("seed"):
        raise ConfigError(
            "the new records are not named; give their files, e.g. tacit update "
            f"{run} new.csv, or --set data.query=…"
        )
    return raw


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
