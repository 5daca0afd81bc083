"""Output files of a search: tuned.toml, trials.json and trials.csv."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import tomlkit

from tacit.errors import ConfigError
from tacit.run.config import override
from tacit.run.directory import make_directory
from tacit.run.tune.grid import Settings
from tacit.run.tune.search import NOTHING_SPENT, Tuned
from tacit.run.tune.trials import Trial
from tacit.support.storage import write_text

SCHEMA = "tacit/tune/1"
TRIALS = "trials.json"


def check_tune_out(out: Path, *, overwrite: bool) -> None:
    """Raise a ConfigError unless `out` is a new or empty directory or, with `overwrite`, a
    directory with earlier trials.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; choose a directory")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / TRIALS).exists():
        raise ConfigError(
            f"--out {out} contains files that are not from tune; choose another directory"
        )
    if not overwrite:
        raise ConfigError(
            f"--out {out} contains earlier trials; add --overwrite, or choose another directory"
        )


def write_tuned(out: Path, tuned: Tuned, source: str, overrides: tuple[str, ...] = ()) -> Path:
    """Write tuned.toml, trials.json and trials.csv to the directory `out`. Return the path of
    tuned.toml.

    The arguments are those of `tuned_toml`.
    """
    make_directory(out)
    path = out / "tuned.toml"
    write_text(path, tuned_toml(tuned, source, overrides))
    write_text(out / TRIALS, json.dumps(as_data(tuned), indent=1, allow_nan=False))
    write_text(out / "trials.csv", _as_csv(tuned))
    return path


def tuned_toml(tuned: Tuned, source: str, overrides: tuple[str, ...] = ()) -> str:
    """Return the TOML text `source` with the tuned values. Comments and the order of keys are kept.

    `overrides` are the `--set` arguments of the command, which are applied first.
    """
    document = tomlkit.parse(source)
    for asked in overrides:
        override(document, asked)
    found = named_settings(tuned)
    _put(document, found)
    names = ", ".join(found) or "nothing was better than the given settings"
    return f"# Found by tacit tune: {names}.\n# {NOTHING_SPENT}\n" + tomlkit.dumps(document)


def snippet(tuned: Tuned) -> str:
    """Return only the tuned values, as a TOML text."""
    document = tomlkit.document()
    _put(document, named_settings(tuned))
    return tomlkit.dumps(document).strip()


def _put(document: Any, settings: Settings) -> None:
    for key, value in settings.items():
        *parents, last = key.split(".")
        place = document
        for parent in parents:
            place = place.setdefault(parent, tomlkit.table())
        place[last] = value


def named_settings(tuned: Tuned) -> Settings:
    """Return the tuned values. If one of them is a setting of the method and `method.kind` was
    "auto", the chosen kind is included.
    """
    found = {key: value for key, value in tuned.best.settings.items() if value is not None}
    named = any(key.startswith("method.") for key in found)
    if named and tuned.config.method.kind == "auto":
        return {"method.kind": tuned.kind} | found
    return found


def as_data(tuned: Tuned) -> dict[str, Any]:
    """Return the trials, the best settings and the check, in the form of trials.json."""
    check = None
    if tuned.check is not None:
        gain, error = tuned.check[0].gain_over(tuned.check[1])
        check = {
            "best": _trial(tuned.check[0]),
            "given": _trial(tuned.check[1]),
            "gain": gain,
            "gain_standard_error": error,
        }
    return {
        "schema": SCHEMA,
        "name": tuned.config.name,
        "method": tuned.kind,
        "statement": NOTHING_SPENT,
        "made_up": list(tuned.made),
        "objective": "held-out log-likelihood per record (nats)",
        "grid": {key: list(values) for key, values in tuned.grid.items()},
        "best": named_settings(tuned),
        "check": check,
        "trials": [_trial(trial) for trial in tuned.trials],
        "seconds": tuned.seconds,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    failed = trial.failure is not None or not trial.scores
    return {
        "settings": trial.settings,
        "scores": list(trial.scores),
        "mean": None if failed else trial.mean,
        "standard_error": trial.standard_error,
        "failure": trial.failure,
    }


def _as_csv(tuned: Tuned) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*tuned.grid, "federations", "mean", "standard_error", "failure"])
    for trial in tuned.trials:
        row = _trial(trial)
        writer.writerow(
            [
                *(trial.settings.get(key, "") for key in tuned.grid),
                len(trial.scores),
                row["mean"],
                row["standard_error"],
                row["failure"],
            ]
        )
    return text.getvalue()
