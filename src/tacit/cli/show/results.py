"""Tables and progress bars: the only place that writes to the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tacit.cli.quiet import output_is_discarded
from tacit.engines.execute import Observer
from tacit.results.check import NOTHING_SPENT, TERMS, Check
from tacit.results.explained import explained, explained_lines
from tacit.results.shown import to_precision
from tacit.results.summary import PartyResult, Result, VerdictFacts
from tacit.results.text import COLUMNS, interaction_lines, table_rows, texts
from tacit.run.run import Prepared

# Names of columns, levels, parties and files are printed literally: "[age,0]" is not markup.
console = Console(soft_wrap=True, markup=False, emoji=False)
if not console.is_terminal:
    console.width = 160  # files and pipes have no width
errors = Console(stderr=True, markup=False, emoji=False)
MOST_ROWS = 40
SHOWN_ROWS = 25
POSTERIOR_COLUMNS = ("mean", "2.5 %", "97.5 %")


@contextmanager
def quiet(wanted: bool) -> Iterator[None]:
    """Context manager that suppresses terminal output if `wanted`, because JSON is printed
    afterwards.
    """
    before, console.quiet = console.quiet, wanted or console.quiet
    try:
        yield
    finally:
        console.quiet = before


def plain_column(template: str) -> TextColumn:
    """Return a progress column that prints its text without interpreting markup."""
    return TextColumn(template, markup=False)


def printable(text: str) -> str:
    """Return the text without control characters."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


class _Bar:
    """A progress bar; does nothing without a terminal."""

    def __init__(self, *columns: TextColumn, on: Console = errors) -> None:
        self._progress = Progress(
            plain_column("{task.description}"),
            BarColumn(),
            *columns,
            TimeRemainingColumn(),
            console=on,
            disable=not on.is_terminal,
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> Any:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _at(self, done: float, total: float, description: str, **fields: Any) -> None:
        if self._task is None:
            self._task = self._progress.add_task(description, total=total, **fields)
        self._progress.update(
            self._task, completed=done, total=total, description=description, **fields
        )


class RunProgress(_Bar):
    """Progress bar of a run, with round, negative ELBO and remaining time."""

    def __init__(self) -> None:
        super().__init__(
            plain_column("round {task.fields[round]}"), plain_column("{task.fields[elbo]}")
        )
        self.begun = False

    def watch(self, prepared: Prepared) -> Observer:
        """Return an observer of the run that updates the bar."""
        self.begun = True
        schedule = prepared.plan.schedule
        visited = schedule.parties_per_round or len(prepared.plan.rules.parties)
        elbo = ""

        def observe(state: Any, log: Any) -> None:
            nonlocal elbo
            for line in log:
                if line["event"] == "round" and line["negative_elbo"] is not None:
                    elbo = f"negative ELBO {line['negative_elbo']:.1f}"
            self._at(
                state.exchanges,
                schedule.rounds * visited,
                prepared.config.name,
                round=f"{state.round}/{schedule.rounds}",
                elbo=elbo,
            )

        return observe


class StepProgress(_Bar):
    """Progress bar for numbered steps with labels."""

    def __init__(self, title: str) -> None:
        super().__init__(plain_column("{task.fields[label]}"))
        self.title = title

    def step(self, done: int, total: int, label: str) -> None:
        """Show that `done` of `total` steps are done."""
        self._at(done, total, self.title, label=label)


class DownloadProgress(_Bar):
    """Progress bar for downloads, in bytes, one file after another."""

    def step(self, name: str, done: int, total: int) -> None:
        """Show the progress of a file."""
        self._at(done, total, name)


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    formatted: Sequence[str] = (),
) -> None:
    """Print a table; numbers and `formatted` columns are right-aligned."""
    table = Table(title=printable(title), title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        numeric = column in formatted or (bool(rows) and isinstance(rows[0][index], int | float))
        table.add_column(printable(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    console.print(table)


def show_result(result: Result) -> None:
    """Show the result at the end of `tacit run`."""
    warning = result.intervals.warning
    if result.sites:
        rows = [
            [name, *(to_precision(v, site.sd) for v in (site.mean, site.low, site.high))]
            for name, site in list(result.sites.items())[:MOST_ROWS]
        ]
        title = f"{result.name}: posterior of the model's sites with {_intervals(result)}"
        show_table(title, ["site", *POSTERIOR_COLUMNS], rows, formatted=POSTERIOR_COLUMNS)
    elif result.topics:
        rows = [[row.number, f"{row.share:.1%}", " ".join(row.words)] for row in result.topics]
        show_table(f"{result.name}: topics", ["topic", "share", "top words"], rows)
    elif result.posterior.names:
        show_coefficients(result)
    for one in result.tables:
        show_table(f"{result.name}: {one.title}", one.columns, one.rows)
    if warning is not None and (result.sites or result.posterior.names or result.tables):
        on = errors if output_is_discarded() else console
        on.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    show_metrics(result.metrics, local=result.privacy.private)
    show_party_metrics(result)
    for what, why in result.not_evaluated.items():
        console.print(f"note: {what} could not be computed: {why}", highlight=False, markup=False)
    for value, words in (
        (result.kl_to_exact, "KL(q ‖ exact posterior)"),
        (result.kl_to_reference, "KL(q ‖ NUTS)"),
    ):
        if value is not None:
            console.print(f"{words}: {value:.3g}")
    console.print(
        f"{len(result.parties)} parties, {result.schedule}, {result.rounds} rounds "
        f"({_ended(result.finished)}), {result.exchanges} exchanges, "
        f"{result.refused} refused{_took(result.timing)}",
        highlight=False,
    )
    show_verdict(result)
    for line in explained_lines(explained(result.diagnostics)):
        console.print(f"  {printable(line)}", highlight=False)
    if result.model.prior is not None:
        console.print(f"prior: {result.model.prior}", highlight=False)
    console.print(f"privacy: {result.privacy.statement}", highlight=False)
    book = result.privacy.ledger
    if book is not None:
        console.print(
            f"ledger: {book.path}, at most ε = {book.epsilon_spent:.4g} spent on any party's "
            "records so far",
            highlight=False,
        )


EXACT = "(Exact, not covered by the guarantee.)"
"""Remark on cautions with exact numbers of the records of a private run."""


def show_party_result(result: PartyResult) -> None:
    """Show the result of a party of a live federation."""
    show_coefficients(result)
    show_verdict(result)
    console.print(f"privacy: {result.privacy}", highlight=False)


def show_warning(text: str) -> None:
    """Print a warning, on standard error if --quiet is set."""
    on = errors if output_is_discarded() else console
    line = " ".join(printable(text).split())  # a peer's text must not look like other lines
    on.print(f"WARNING: {line}", style="bold red", highlight=False, soft_wrap=True)


def show_verdict(result: VerdictFacts) -> None:
    """Show all reasons not to trust the numbers of a run, then whether it converged."""
    for caution in result.cautions:
        show_warning(caution.text)
    for caution in result.local_cautions:
        show_warning(f"{caution.text} {EXACT}")
    if result.clipped is not None:
        console.print(f"clipping: {printable(result.clipped.statement)}", highlight=False)
    if result.converged:
        console.print(f"converged: {printable(result.why)}", highlight=False)


def show_metrics(measured: dict[str, Any], *, local: bool = False) -> None:
    """Show metrics, if there are any.

    `local` is true if the run has a guarantee, which does not cover these exact numbers.
    """
    metrics = {split: values for split, values in measured.items() if values}
    if metrics:
        names = list(next(iter(metrics.values())))
        rows = [
            [_split(split), *(values[name] for name in names)] for split, values in metrics.items()
        ]
        title = "Held-out performance"
        if local:
            title += " (exact, confidential like the records; not in public/)"
        show_table(title, ["records", *(_metric(name) for name in names)], rows)


def show_party_metrics(result: Result) -> None:
    """Show metrics of each party's own records, if there are several parties."""
    rows = result.party_metrics
    if not 1 < len(rows) <= MOST_ROWS:
        return
    names = list(next(iter(rows.values())))
    cells = [[party, *(values.get(name) for name in names)] for party, values in rows.items()]
    title = "Performance by party"
    if result.privacy.private:
        title += " (exact, confidential like the records; not in public/)"
    show_table(title, ["party", *(_metric(name) for name in names)], cells)


def show_check(check: Check) -> None:
    """Show the output of `tacit check` for a valid configuration."""
    show_table("Configuration is valid", ["item", "value"], check.rows)
    if check.terms:
        show_table("Noise and signal per party", TERMS, check.terms)
    for text in check.warnings:
        show_warning(text)
    for text in check.notes:
        console.print(f"note: {printable(text)}", highlight=False)
    if check.terms:
        console.print(NOTHING_SPENT, highlight=False)


def show_coefficients(result: Result | PartyResult) -> None:
    """Show the coefficients in the units of their columns; if there are many, show only those whose
    sign is most certain.
    """
    rows = table_rows(result)
    hidden = 0
    if len(rows) > MOST_ROWS:
        hidden = len(rows) - SHOWN_ROWS
        rows = sorted(rows, key=lambda row: -abs(row.mean) / row.sd)[:SHOWN_ROWS]
    columns = ["coefficient", *COLUMNS]
    cells = [[row.term, *texts(row)] for row in rows]
    if any(row.unit for row in rows):
        columns.append("per")
        cells = [[*cell, row.unit or ""] for cell, row in zip(cells, rows, strict=True)]
    if any(row.learned is not None for row in rows):
        columns.append("learned")
        cells = [[*cell, _share(row.learned)] for cell, row in zip(cells, rows, strict=True)]
    if any(row.true_value is not None for row in rows):
        columns.append("true value")
        cells = [
            [*cell, "" if row.true_value is None else to_precision(row.true_value, row.sd)]
            for cell, row in zip(cells, rows, strict=True)
        ]
    title = f"{result.name}: posterior with {_intervals(result)}"
    right = [name for name in columns[1:] if name != "per"]
    show_table(title, columns, cells, formatted=right)
    if hidden:
        console.print(f"… and {hidden} more in the report; their signs are less certain")
    for line in interaction_lines(result):
        console.print(printable(line), highlight=False)


def _share(learned: float | None) -> str:
    return "" if learned is None else f"{learned:.0%}"


def _intervals(result: Result | PartyResult) -> str:
    narrow = result.intervals.warning is not None
    failed = result.converged is False
    return (
        f"95 % intervals{' that are too narrow' if narrow else ''}"
        f"{'; NOT CONVERGED, do not use' if failed else ''}"
    )


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1e-3 and cell else f"{cell:.4f}"
    return "" if cell is None else printable(str(cell))


def _took(timing: dict[str, float]) -> str:
    """Return the duration of the run as text, or "" if it is not public (empty `timing`)."""
    if not timing:
        return ""
    if "wall_s" not in timing:
        return f"; {timing['train_s']:.1f} s since the server was started"
    return f"; {timing['wall_s']:.1f} s ({timing['compile_s']:.1f} s compiling)"


def _ended(reason: str | None) -> str:
    return "the limit" if reason in (None, "rounds") else reason


def _split(name: str) -> str:
    return name.replace("_", " ")


def _metric(name: str) -> str:
    words = {"rmse": "root mean square error", "auroc": "AUROC", "c_index": "C-index"}
    return words.get(name, name.replace("_", " "))
