"""Update an earlier run with later records from Python, as `tacit update` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import ConfigError, DataError
from tacit.fitting.fit import load
from tacit.fitting.result import Fit
from tacit.live.config import read_server
from tacit.live.plan import posterior_digest
from tacit.results.saved import read_saved
from tacit.results.summary import public_of
from tacit.run.config import parse_config, read_toml, set_key
from tacit.run.directory import CONFIG
from tacit.run.run import run as carry_out


def update(
    run: str | Path,
    data: str | Path | Sequence[str | Path] | None = None,
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    ledger: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Fit:
    """Update the posterior of an earlier run with records that arrived later.

    Only the new records are read, released and charged; the posterior of the earlier run is the
    prior. Rows that the earlier run has used are refused. The earlier run must have method.kind =
    "exact", "expected-statistics" or "dp-statistics".

    Parameters
    ----------
    run
        Directory of the earlier run.
    data
        File or files with the new records.
    out
        Directory of the new run; by default that of the earlier run with "-update" added.
    settings
        Keys of the study file to change, with their new values, e.g. {"data.query": "SELECT …"}.
    ledger
        Ledger to which a private update is charged; by default the user's ledger.
    resume
        True: continue an interrupted update.
    overwrite
        True: replace an earlier run in `out`.

    Returns
    -------
    Fit
        The posterior of all records, which `tacit.load(out)` also returns.
    """
    run = Path(run)
    out = run.with_name(f"{run.name}-update") if out is None else Path(out)
    config = parse_config(updated_study(run, data, settings))
    place = None if ledger is None else Path(ledger)
    carry_out(config, out, resume=resume, overwrite=overwrite, ledger=place)
    return load(out)


def continued_federation(server: Path) -> dict[str, Any]:
    """Make the agreed file, as a dictionary, of a run that updates a finished live run.

    Parameters
    ----------
    server
        server.toml of the earlier run.
    """
    setup = read_server(server)
    result, posterior, _ = read_saved(setup.state)
    raw = read_toml(setup.agreed.path)
    raw.pop("version", None)
    raw["continues"] = {"run": result.run, "posterior": posterior_digest(posterior.natural)}
    return raw


def updated_study(
    run: Path,
    data: str | Path | Sequence[str | Path] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the study file of an update, as a dictionary. It is the earlier run's file with the new
    records.
    """
    path = public_of(run) / CONFIG
    if not path.is_file():
        raise DataError(
            f"{path} does not exist; give the directory of a finished run (tacit run --out …)"
        )
    raw = read_toml(path)
    before, seed = dict(raw.get("data", {})), raw.get("seed")
    raw["continues"] = {"run": str(run)}
    files = [data] if isinstance(data, str | Path) else list(data or ())
    if files:
        names = [str(file) for file in files]
        raw.setdefault("data", {})["path"] = names[0] if len(names) == 1 else names
    for key, value in (settings or {}).items():
        set_key(raw, key, value)
    if not files and raw.get("data") == before and raw.get("seed") == seed:
        raise ConfigError(
            "the new records are not named; give their files, e.g. tacit update "
            f"{run} new.csv, or --set data.query=…"
        )
    return raw
