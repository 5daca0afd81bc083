"""`tacit tune`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.cli.options import print_json
from tacit.run.config import read_config

if TYPE_CHECKING:
    from tacit.run.tune import Tuned

SHOWN = 8


def tune_command(
    path: Path,
    out: Path | None,
    seed: int | None,
    overrides: list[str] | None,
    grid: list[str] | None,
    *,
    trials: int | None,
    repeats: int | None,
    records: int | None,
    overwrite: bool,
    as_json: bool = False,
) -> None:
    """Run the search, then show its results and write them to a file."""
    config = read_config(path, tuple(overrides or ()), seed)
    from tacit.cli.show.results import StepProgress, console
    from tacit.run.tune import parse_grid, tune, write_tuned
    from tacit.run.tune.write import as_data, check_tune_out

    slug = re.sub(r"[^a-z0-9]+", "-", config.name.lower()).strip("-") or "run"
    out = out or Path("runs") / f"{slug}-tuned"
    check_tune_out(out, overwrite=overwrite)
    with StepProgress("tuning") as progress:
        found = tune(
            config,
            trials=trials,
            repeats=repeats,
            records=records,
            grid=parse_grid(grid or (), config.tune.grid),
            progress=progress.step,
        )
    told = (*(overrides or ()), *(() if seed is None else (f"seed={seed}",)))
    written = write_tuned(out, found, path.read_text(encoding="utf-8"), told)
    if as_json:
        print_json({"tuned": str(written), **as_data(found)})
        return
    _show(config.name, found)
    console.print(f"tuned configuration: {written}; all trials: {out}/trials.csv", highlight=False)


def _show(name: str, found: Tuned) -> None:
    from tacit.cli.show.results import console, show_table
    from tacit.run.tune import NOTHING_SPENT
    from tacit.run.tune.write import snippet

    show_table(
        f"{name}: held-out log-likelihood on synthetic records ({found.kind})",
        ["settings", "mean", "± s.e.", "gain", "± s.e.", "federations"],
        _rows(found),
    )
    for trial in found.trials:
        if trial.failure:
            console.print(f"failed: {_shown(trial.settings)}: {trial.failure}", highlight=False)
    console.print(_verdict(found), highlight=False)
    if found.best.settings:
        console.print(f"\n{snippet(found)}\n", highlight=False, markup=False)
    for line in found.made:
        console.print(f"synthetic records: {line}", highlight=False)
    console.print(NOTHING_SPENT, highlight=False)


def _rows(found: Tuned) -> list[list[Any]]:
    """Return the rows of the table: the best trials, and the given configuration."""
    sound = [trial for trial in found.trials if not trial.failure]
    shown = [t for i, t in enumerate(sound) if i < SHOWN or not t.settings]
    rows = []
    for trial in shown:
        gain, error = trial.gain_over(found.given) if trial.settings else (None, None)
        name = _shown(trial.settings)
        rows.append([name, trial.mean, trial.standard_error, gain, error, len(trial.scores)])
    return rows


def _shown(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items()) or "as configured"


def _verdict(found: Tuned) -> str:
    if found.check is None:
        return "The given configuration was the best of all trials; nothing to change."
    (gain, error), count = found.check[0].gain_over(found.check[1]), len(found.check[0].scores)
    more = "" if error is None else f" ± {error:.4f}"
    told = f"{gain:+.4f}{more} nats per record against the given configuration, on {count} new"
    if found.holds:
        return f"Best: {told} synthetic federations."
    return (
        f"The best trial was not better: {told} synthetic federations. The given configuration is "
        "kept."
    )
