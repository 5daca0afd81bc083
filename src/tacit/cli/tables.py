"""Commands on tables of records: `tacit init` and `tacit predict`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tacit.cli.options import Json, print_json
from tacit.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".csv", ".parquet")


def init(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A CSV or Parquet file, or 'a/*.csv'.")
    ],
    outcome: Annotated[str, typer.Option(help="The outcome column.")],
    party: Annotated[
        str | None, typer.Option(help="The column that names the party of each record.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The study file to write.")] = Path(
        "study.toml"
    ),
    epsilon: Annotated[float, typer.Option(help="ε of the study.")] = 1.0,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="A study without differential privacy.")
    ] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Ask for bounds of numeric columns.")] = False,
    json: Json = False,
) -> None:
    """Write a commented study file for a table of records.

    Its public schema is a draft: bounds are read from the records and rounded outwards, unless
    --ask prompts for them. A private run refuses drafts until you confirm them. Examples:

      tacit init patients.csv --outcome died --party hospital

      tacit init 'hospitals/*.csv' --outcome died --ask
    """
    from tacit.run.draft import draft_study
    from tacit.support.storage import write_text

    if out.exists():
        raise ConfigError(f"--out {out} exists; choose another path, or remove it")
    if not epsilon > 0:
        raise ConfigError(f"--epsilon {epsilon}; it must be above 0")
    draft = draft_study(
        data, outcome, party,
        epsilon=None if not_private else epsilon, ask=_asked if ask else None,
    )  # fmt: skip
    write_text(out, draft.text)
    if json:
        print_json({"study": str(out), "confirm": list(draft.confirm), "left_out": draft.left_out})
        return
    from tacit.cli.show.results import console

    console.print(f"study: {out}", highlight=False)
    if draft.confirm:
        console.print(
            f"to confirm ({len(draft.confirm)}): {', '.join(draft.confirm)}", highlight=False
        )
    for name, why in draft.left_out.items():
        console.print(f"left out: {name} ({why})", highlight=False)
    console.print(f"next: edit this file, then tacit check {out}", highlight=False)


def _asked(name: str, low: float, high: float) -> tuple[float, float]:
    """Ask for the bounds of a numeric column in the terminal."""
    while True:
        least = typer.prompt(f"smallest possible {name}", default=low, type=float, err=True)
        most = typer.prompt(f"largest possible {name}", default=high, type=float, err=True)
        if least < most:
            return least, most
        typer.echo(f"{least:g} is not below {most:g}", err=True)


def predict(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run or state directory, or a saved fit.")
    ],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="New records: CSV or Parquet.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Predictions: .csv or .parquet.")],
    level: Annotated[float, typer.Option(help="Probability of the intervals.")] = 0.95,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Copy this column of DATA, e.g. an id; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Predict the outcome of new records with a finished run.

    Works with run directories, with the state directories of a live server and of its parties, and
    with folders that `Fit.save` wrote. The records need no outcome; predictions keep their order.

    Examples:

      tacit predict runs/study-seed0 new.csv --out predictions.csv --keep patient_id

      tacit predict state new.parquet --out predictions.parquet --json
    """
    from tacit.results.new_records import predicted, read_new
    from tacit.results.saved import read_predictor

    if not out.name.lower().endswith(SUFFIXES):
        raise ConfigError(f"--out {out}; the name must end in one of {', '.join(SUFFIXES)}")
    if out.exists():
        raise ConfigError(f"--out {out} exists; choose another path, or remove it")
    fitted = read_predictor(run_dir)
    new = read_new(fitted.posterior, fitted.data, data)
    frame = cast("pl.DataFrame", predicted(new, "interval", level=level))
    frame = _with_kept(frame, data, keep or [])
    incomplete = int((~new.prepared.complete).sum())
    _write(frame, out)
    if json:
        print_json({
            "predictions": str(out), "rows": frame.height, "what": new.what, "level": level,
            "clipped": new.prepared.clipped, "without_prediction": incomplete,
            "warnings": fitted.cautions,
        })  # fmt: skip
        return
    from tacit.cli.show.results import console, show_warning

    clipped = ", ".join(f"{count} values of {name}" for name, count in new.prepared.clipped.items())
    named = new.posterior.model.prediction_words is not None  # clusters, scores
    interval = "" if named else f", {100 * level:g} % interval"
    console.print(
        f"{frame.height:,} rows: {new.what}{interval}."
        + (f" Clipped to bounds: {clipped}." if clipped else "")
        + (f" Without a prediction (missing values): {incomplete}." if incomplete else ""),
        highlight=False,
    )
    for text in fitted.cautions:
        show_warning(text)
    console.print(f"predictions: {out}", highlight=False)


def _with_kept(frame: pl.DataFrame, data: Path, names: list[str]) -> pl.DataFrame:
    """Return the kept columns of the records followed by the predictions."""
    if not names:
        return frame
    from tacit.data.frames import raw_frame

    both = [name for name in names if name in frame.columns]
    if both:
        raise ConfigError(
            f"--keep {both[0]}; the predictions already have a column of that name: rename the "
            f"column in {data}"
        )
    return raw_frame(data, f'"{data}"').select(names).hstack(frame)


def _write(frame: pl.DataFrame, out: Path) -> None:
    """Write a table atomically."""
    from tacit.support.storage import writing

    part = out.with_name(out.name + ".part")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.name.lower().endswith(".parquet"):
            frame.write_parquet(part)
        else:
            frame.write_csv(part)
        os.replace(part, out)  # noqa: PTH105 - atomic on every platform
