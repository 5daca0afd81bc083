"""`tacit sweep`: parse, call, show."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tacit.cli.options import print_json, repeated
from tacit.errors import ConfigError

MAX_COLUMNS = 12
WORST_FIRST = ("held_out.", "kl_to_")


def sweep_command(
    path: Path,
    out: Path | None,
    overrides: list[str] | None,
    *,
    resume: bool,
    overwrite: bool,
    workers: int | None,
    engine: str,
    address: str | None,
    ledger: Path | None,
    as_json: bool = False,
) -> None:
    """Run the sweep; exit code 1 at the end if a run failed."""
    from tacit.run.sweep import read_sweep, sweep

    if engine not in ("local", "ray"):
        raise ConfigError(f"--engine {engine!r}; choose local or ray")
    if address is not None and engine != "ray":
        raise ConfigError(f"--address {address!r} without --engine ray; leave --address out")
    asked = read_sweep(path, tuple(overrides or ()))
    slug = re.sub(r"[^a-z0-9]+", "-", asked.name.lower()).strip("-") or "sweep"
    out = out or Path("runs") / slug
    from tacit.cli.show.results import StepProgress, console

    spread = None
    if engine == "ray":
        from tacit.run.sweep.on_ray import OnRay

        spread = OnRay(out / "runs", workers, ledger, address)
    with StepProgress(asked.name) as progress, _advice(out):
        swept = sweep(
            asked, out,
            resume=resume, overwrite=overwrite, workers=workers, ledger=ledger,
            spread=spread, progress=progress.step,
        )  # fmt: skip
    if as_json:
        print_json({"directory": str(out), "summary": swept.summary, "failed": swept.failed})
    else:
        show_summary(asked.name, swept)
        console.print(f"tables: {out / 'table.parquet'}, {out / 'table.csv'}", highlight=False)
    for row in swept.failed:
        typer.echo(f"failed: {row['id']}: {row['error']}", err=True)
    if swept.failed:
        typer.echo(
            f"error: {len(swept.failed)} of {len(swept.jobs)} runs failed; fix them and continue "
            "with --resume",
            err=True,
        )
        raise typer.Exit(max(row.get("exit_code") or 1 for row in swept.failed))


@contextlib.contextmanager
def _advice(out: Path) -> Iterator[None]:
    """Context manager that adds the next step to an interrupt of a sweep in `out`."""
    from tacit.run.sweep.store import MARK

    try:
        yield
    except KeyboardInterrupt as error:
        if not (out / MARK).exists():
            raise
        step = f"continue the sweep: {repeated('--resume', without='--overwrite')}"
        raise KeyboardInterrupt(step) from error


def show_summary(name: str, swept: Any) -> None:
    """Print one row per case with mean ± standard error, and the guarantee below the table."""
    from tacit.cli.show.results import console, show_table

    cases = swept.summary
    changed = list(swept.jobs[0].case)
    measured = dict.fromkeys(
        key.removesuffix(" ±") for case in cases for key in case if key.endswith(" ±")
    )
    order = sorted(measured, key=lambda key: not key.startswith(WORST_FIRST))
    shown = order[: max(1, MAX_COLUMNS - len(changed))]
    counted = ["runs", *(["failed"] if swept.failed else [])]
    private = any("guarantee.epsilon" in case for case in cases)
    told = ["guarantee.epsilon"] if private else []
    table = [
        [*(_value(case.get(key)) for key in (*changed, *counted, *told)),
         *(_measured(case, key) for key in shown)]
        for case in cases
    ]  # fmt: skip
    titles = [*changed, *counted, *("ε" for _ in told), *(_title(key) for key in shown)]
    show_table(f"{name}: mean ± standard error over seeds", titles, table)
    said = {
        f"(ε above, δ = {case['guarantee.delta']:g}) per {case['guarantee.unit']}, "
        f"{case['guarantee.adjacency']}. {case['guarantee.trust']}"
        for case in cases
        if "guarantee.epsilon" in case
    }
    for line in sorted(said):
        console.print(f"privacy: {line}", highlight=False)
    caveats = {row["guarantee.caveat"] for row in swept.rows if row.get("guarantee.caveat")}
    for line in sorted(caveats):
        console.print(f"note: {line}", highlight=False)
    if swept.found:
        console.print(f"{swept.found} of {len(swept.jobs)} runs were done before")


def _measured(case: dict[str, Any], key: str) -> str:
    if key not in case:
        return ""
    error = case[f"{key} ±"]
    return f"{case[key]:.4g}" + ("" if error is None else f" ± {error:.2g}")


def _value(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _title(key: str) -> str:
    return key.removeprefix("held_out.").replace("_", " ") + (
        " (held out)" if key.startswith("held_out.") else ""
    )
