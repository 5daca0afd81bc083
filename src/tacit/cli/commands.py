"""Implementation of the commands, with slow imports inside functions."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tacit.cli.options import print_json, repeated
from tacit.errors import ConfigError
from tacit.run.config import Config, read_config, read_toml
from tacit.support.public_files import RESULT

if TYPE_CHECKING:
    from tacit.cli.show.results import RunProgress
    from tacit.plan.explain import Explanation
    from tacit.plan.plan import Plan


def run_command(
    path: Path,
    out: Path | None,
    seed: int | None,
    overrides: list[str] | None,
    *,
    resume: bool,
    overwrite: bool,
    report: bool,
    ledger: Path | None,
    as_json: bool = False,
) -> None:
    """Implement `tacit run`."""
    config = read_config(path, tuple(overrides or ()), seed)
    carry_out_run(
        config, path, out or default_out(config),
        resume=resume, overwrite=overwrite, report=report, ledger=ledger, as_json=as_json,
    )  # fmt: skip


def carry_out_run(
    config: Config,
    path: Path,
    out: Path,
    *,
    resume: bool,
    overwrite: bool,
    report: bool,
    ledger: Path | None,
    as_json: bool,
) -> None:
    """Run a configuration and show its result. `path` is the file that error messages name."""
    check_directory(out, resume=resume, overwrite=overwrite)  # before anything heavy is imported
    from tacit.cli.budget import commands_for
    from tacit.cli.show.results import RunProgress, console, show_result
    from tacit.run.run import run

    with RunProgress() as progress, commands_for(path), _advice(out, progress, overwrite=overwrite):
        result = run(
            config, out,
            resume=resume, overwrite=overwrite, ledger=ledger, observe=progress.watch,
        )  # fmt: skip
    if as_json:
        from tacit.results.summary import builtins_of

        written = {"directory": str(out)}
        if report:
            from tacit.report import write_report

            written["report"] = str(write_report(out))
        print_json(builtins_of(result) | written)
        return
    show_result(result)
    console.print(f"run directory: {out}", highlight=False)
    if result.privacy.private:
        console.print(
            f"shareable: {out / 'public'}; confidential like the records: {out / 'private'}",
            highlight=False,
        )
    if report:
        report_command(out)
    else:
        console.print(f"a report with figures: tacit report {out}", highlight=False)


def check_directory(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Raise the errors of `check_out`, with the command that continues an unfinished run."""
    from tacit.run.directory import check_out, is_run, public_part

    check = functools.partial(check_out, out, overwrite=overwrite)
    try:
        check(resume=resume)
    except ConfigError as error:
        if resume or overwrite or not is_run(out) or (public_part(out) / RESULT).exists():
            raise
        check(resume=True)  # raises an error if another process runs in the directory
        command = repeated("--resume", without="--json", command="run")
        raise ConfigError(f"{error}; its run is unfinished and continues with: {command}") from None


@contextlib.contextmanager
def _advice(out: Path, progress: RunProgress, *, overwrite: bool) -> Iterator[None]:
    """Context manager that adds the next step to an interrupt of a run in `out`."""
    from tacit.run.directory import is_run

    try:
        yield
    except KeyboardInterrupt as error:
        begun = is_run(out) and (progress.begun or not overwrite)
        step = (
            f"continue the run: {repeated('--resume', without='--overwrite')}"
            if begun
            else "the run had not begun, and nothing was charged: repeat the command"
        )
        raise KeyboardInterrupt(step) from error


def check_command(
    path: Path,
    out: Path | None,
    seed: int | None,
    overrides: list[str] | None,
    *,
    resume: bool,
    overwrite: bool,
    ledger: Path | None,
    as_json: bool = False,
) -> None:
    """Implement `tacit check`."""
    if _is_live(path):
        for option, value in (("out", out), ("resume", resume), ("overwrite", overwrite)):
            if value:
                raise ConfigError(
                    f"--{option} with {path}, which belongs to a live federation and has no run "
                    f"directory; leave --{option} out"
                )
        from tacit.cli.live_check import check_live
        from tacit.cli.show.results import quiet

        with quiet(as_json):
            check_live(path, overrides, seed)
        if as_json:
            print_json({"valid": True, "file": str(path)})
        return
    config = read_config(path, tuple(overrides or ()), seed)
    from tacit.cli.check import check_run

    check_run(
        config, path, out or default_out(config), ledger,
        resume=resume, overwrite=overwrite, as_json=as_json,
    )  # fmt: skip


def explain_command(
    path: Path,
    seed: int | None,
    overrides: list[str] | None,
    colluding: int | None,
    *,
    as_json: bool = False,
    figure: Path | None = None,
) -> None:
    """Implement `tacit explain`."""
    if figure is not None and figure.suffix != ".svg":
        raise ConfigError(f"--figure {figure}; the name must end in .svg")
    live = _is_live(path)
    config = None if live else read_config(path, tuple(overrides or ()), seed)
    if colluding is not None and not colluding >= 1:
        raise ConfigError(f"--colluding {colluding}; it must be at least 1")
    from tacit.cli.live_check import live_plan
    from tacit.cli.show.privacy import show_explanation
    from tacit.plan.explain import explain
    from tacit.run.run import prepare

    plan = live_plan(path, overrides, seed) if config is None else prepare(config).plan
    central = config is not None and config.baseline == "central"
    found = explain(plan, colluding=colluding, central=central)
    if figure is not None:
        _write_barriers(figure, plan, found)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        show_explanation(plan, found)
        if figure is not None:
            typer.echo(f"figure: {figure}")


def _write_barriers(path: Path, plan: Plan, found: Explanation) -> None:
    from tacit.results.barriers import draw_barriers
    from tacit.support.storage import write_text

    aggregation = None if plan.privacy is None else plan.privacy.aggregation
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, draw_barriers(found, aggregation=aggregation, parties=len(plan.parties)))


def show_command(run_dir: Path, *, as_json: bool) -> None:
    """Implement `tacit show`."""
    from tacit.results.summary import PartyResult, builtins_of, public_of, read_any_result

    result = read_any_result(public_of(run_dir))
    if as_json:
        print_json(builtins_of(result))
        return
    from tacit.cli.show.results import show_party_result, show_result

    if isinstance(result, PartyResult):
        show_party_result(result)
    else:
        show_result(result)


def compare_command(run_dirs: list[Path], *, as_json: bool) -> None:
    """Implement `tacit compare`."""
    if len(run_dirs) < 2:
        raise ConfigError("only one directory was given; name at least two runs to compare")
    from tacit.cli.show.comparison import coefficients, compared, show_comparison
    from tacit.results.summary import public_of, read_result

    results = [read_result(public_of(path)) for path in run_dirs]
    if as_json:
        print_json(
            {
                "runs": [str(path) for path in run_dirs],
                "facts": compared(results),
                "posterior": coefficients(results),
            }
        )
        return
    show_comparison(run_dirs, results)


def report_command(run_dir: Path, *, private: bool = False, as_json: bool = False) -> None:
    """Implement `tacit report`."""
    from tacit.report import write_report

    written = write_report(run_dir, private=private)
    if as_json:
        print_json({"report": str(written)})
        return
    from tacit.cli.show.results import console

    console.print(f"report: {written}", highlight=False)


def reproduce_command(
    study: str | None,
    out: Path | None,
    seed: int,
    *,
    quick: bool,
    figure: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Implement `tacit reproduce`."""
    from tacit.cli.show.results import StepProgress, console, show_table

    studies = _studies()
    if study is None and as_json:
        print_json({name: entry.description for name, entry in studies.items()})
        return
    if study is None:
        rows = [[name, entry.description] for name, entry in studies.items()]
        show_table("Studies", ["study", "description"], rows)
        return
    if study not in studies:
        near = difflib.get_close_matches(study, studies, n=1)
        advice = f"did you mean {near[0]}?" if near else f"choose from {', '.join(studies)}"
        raise ConfigError(f"study {study!r} is unknown; {advice}")
    out = out or Path("runs") / study
    with StepProgress(f"reproducing {study}") as progress:
        result = studies[study](out, seed=seed, quick=quick, figure=figure, progress=progress.step)
    if as_json:
        print_json({"directory": str(out), "tables": result["tables"]})
        return
    for table in result["tables"]:
        show_table(table["title"], table["columns"], table["shown"])
    console.print(f"tables and figures: {out / 'index.html'}", highlight=False)


def _studies() -> dict[str, Any]:
    """Return the studies that installed packages register under the entry point group
    `tacit.studies`.
    """
    found: dict[str, Any] = {}
    for entry in entry_points(group="tacit.studies"):
        found |= entry.load()
    if not found:
        raise ConfigError(
            "no studies are installed; they are the package tacit-studies "
            "(from a clone: pip install ./studies)"
        )
    return found


def data_list_command(*, as_json: bool = False) -> None:
    """Implement `tacit data list`."""
    from tacit.datasets import list as sources

    if as_json:
        print_json([dataclasses.asdict(info) for info in sources()])
        return
    from tacit.cli.show.results import show_table

    rows = [
        [
            info.name,
            info.description,
            "any" if info.records is None else f"{info.records:,}",
            ("here" if info.present else f"tacit data fetch {info.name}")
            if info.file_based
            else ("your files" if info.records is None else "generated or bundled"),
            info.licence,
        ]
        for info in sources()
    ]
    show_table("Data sources", ["source", "description", "records", "files", "licence"], rows)


def data_fetch_command(name: str, *, as_json: bool = False) -> None:
    """Implement `tacit data fetch`."""
    from tacit.cli.show.results import DownloadProgress, console
    from tacit.datasets import fetch

    with DownloadProgress() as progress:
        folder = fetch(name, progress=progress.step)
    if as_json:
        print_json({"name": name, "folder": str(folder)})
    else:
        console.print(f"{name}: {folder}", highlight=False)


def _is_live(path: Path) -> bool:
    """Return True if the file is a federation, server or party file of a live federation."""
    return not {"serve", "join", "parties"}.isdisjoint(read_toml(path))


def default_out(config: Config) -> Path:
    """Return the default directory runs/NAME-seedN, with a name that is safe in a path."""
    slug = re.sub(r"[^a-z0-9]+", "-", config.name.lower()).strip("-") or "run"
    return Path("runs") / f"{slug}-seed{config.seed}"
