"""Tables of the frontier: the cost of privacy by method, ε, split and trust."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit_studies.frontier_ablation import VARIANTS
from tacit_studies.frontier_settings import ABLATION, REFERENCE, Cell, Settings
from tacit_studies.tables import Cell as TableCell
from tacit_studies.tables import Table
from tacit_studies.tmlr_published import PUBLISHED, UNDERSTATED
from tacit_studies.tmlr_published import Point as Published
from tacit_studies.tmlr_tables import SPLITS, Mean, mean_of

Row = Mapping[str, Any]
ACCURACY, FIT = "held_out.accuracy", "held_out.log_predictive_density"
ADJACENCIES = {"replace-one": "substituting", "add-or-remove-one": "adding or removing"}
NO_PUBLISHED = Published(None, None)


@dataclass(frozen=True)
class Series:
    """All seeds of one method, ε and split, with the corresponding runs without privacy."""

    cell: Cell
    rows: tuple[Row, ...]
    references: tuple[Row, ...]

    def mean(self, key: str) -> Mean:
        """Mean of a metric over seeds."""
        return mean_of([row.get(key) for row in self.rows])

    @property
    def regret(self) -> Mean:
        """Log-likelihood without privacy minus log-likelihood, on the same records."""
        pairs = zip(self.rows, self.references, strict=True)
        return mean_of([one[FIT] - row[FIT] for row, one in pairs])

    @property
    def guarantee(self) -> str:
        """ε with δ, adjacency and unit."""
        if self.cell.epsilon is None:
            return "none"
        row = max(self.rows, key=lambda row: row["guarantee.epsilon"])
        return (
            f"(ε = {row['guarantee.epsilon']:.4g}, δ = {row['guarantee.delta']:g}), "
            f"{ADJACENCIES[row['guarantee.adjacency']]} one {row['guarantee.unit']}"
        )


def series_of(cells: Sequence[Cell], rows: Mapping[str, Row]) -> list[Series]:
    """Group the runs that differ only in their seed; groups are in order of first appearance."""
    groups: dict[tuple, list[Cell]] = {}
    references: dict[tuple, Row] = {}
    for cell in cells:
        groups.setdefault((cell.figure, cell.split, cell.method, cell.epsilon), []).append(cell)
        if cell.method == REFERENCE:
            references[cell.figure, cell.split, cell.job.seed] = rows[cell.job.id]
    return [
        Series(
            group[0],
            tuple(rows[cell.job.id] for cell in group),
            tuple(references[cell.figure, cell.split, cell.job.seed] for cell in group),
        )
        for group in groups.values()
    ]


def published(settings: Settings, figure: int | str, split: str, method: str) -> Published:
    """The paper's accuracy and log-likelihood of that method; None for numbers it does not show."""
    source = settings.figures[str(figure)].published
    return PUBLISHED.get((source.figure, split), {}).get(method, NO_PUBLISHED)


def regret_table(settings: Settings, figure: int, split: str, found: Sequence[Series]) -> Table:
    """Regret (held-out log-likelihood lost to privacy) on one split, by method and ε."""
    here = [one for one in found if one.cell.figure == figure and one.cell.split == split]
    epsilons = sorted({one.cell.epsilon for one in here if one.cell.epsilon is not None})
    by_place = {(one.cell.method, one.cell.epsilon): one for one in here}
    what = settings.figures[str(figure)]
    theirs = what.published.epsilon
    reference = by_place[REFERENCE, None]
    rows: list[list[TableCell]] = []
    for name in dict.fromkeys(one.cell.method for one in here if one.cell.method != REFERENCE):
        end = published(settings, figure, split, name)
        star = "*" if end.log_likelihood is not None and name in UNDERSTATED else ""
        row: list[TableCell] = [settings.methods[name].label + star, settings.methods[name].trusted]
        for epsilon in epsilons:
            regret = by_place[name, epsilon].regret
            row += [regret.value, regret.error]
        at = by_place.get((name, theirs))
        for key, value in ((ACCURACY, end.accuracy), (FIT, end.log_likelihood)):
            row += [None if at is None else at.mean(key).value, value]
        rows.append(row)
    errors = [f"s.e.{' ' * number}" for number in range(len(epsilons))]
    columns = [f"regret, ε = {epsilon:g}" for epsilon in epsilons]
    pairs = [name for pair in zip(columns, errors, strict=True) for name in pair]
    ends = (
        f"accuracy, ε = {theirs:g}", "published", f"log-likelihood, ε = {theirs:g}", "published ",
    )  # fmt: skip
    return Table(
        name=f"figure-{figure}-{split}",
        title=f"Figure {figure}, {SPLITS[split]}: Adult, logistic regression, {what.title}",
        columns=("method", "trusted", *pairs, *ends),
        rows=rows,
        note=_note(reference),
        digits=dict.fromkeys(columns, 2) | dict.fromkeys(errors, 1) | dict.fromkeys(ends, 4),
    )


def ablation_table(found: Sequence[Series]) -> Table:
    """One row per variant: its loss relative to the whole recipe, on the same records and noise."""
    here = {one.cell.method: one for one in found if one.cell.figure == ABLATION}
    whole = here["whole"]
    rows: list[list[TableCell]] = []
    for name, (words, _) in VARIANTS.items():
        one = here[name]
        pairs = zip(one.rows, whole.rows, strict=True)
        lost = mean_of([reference[FIT] - row[FIT] for row, reference in pairs])
        fit = one.mean(FIT)
        difference = (None, None) if name == "whole" else (lost.value, lost.error)
        rows.append([words, fit.value, one.regret.value, one.regret.error, *difference])
    return Table(
        name=ABLATION,
        title="Private scoring without one of its parts",
        columns=("what is left out", "log-likelihood", "regret", "s.e.", "lost by it", "s.e. "),
        rows=rows,
        note=f"Balanced split, no trusted party; every row {whole.guarantee}, accounted for by the "
        "same code. Lost: relative to the first row, on the same records. A row also pays for the "
        "release that it does not use. The plain clip does not change the server's computations. "
        + _seeds(whole),
        digits={"log-likelihood": 4, "regret": 2, "s.e.": 1, "lost by it": 2, "s.e. ": 1},
    )


def absent_table(settings: Settings, absent: Mapping[str, str]) -> Table:
    """Private methods that do not support this model, with the reasons."""
    return Table(
        name="absent",
        title="Methods that do not support this model",
        columns=("method", "why"),
        rows=sorted({(settings.methods[name].label, words) for name, words in absent.items()}),
        note="Not run.",
    )


def as_csv(settings: Settings, found: Sequence[Series]) -> str:
    """Everything in one long table: one line per method, split, number of parties and ε."""
    body = io.StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow(
        ["figure", "parties", "split", "method", "trusted", "epsilon", "delta", "unit", "adjacency",
         "seeds", "accuracy", "accuracy_se", "log_likelihood", "log_likelihood_se", "regret",
         "regret_se", "published_epsilon", "published_accuracy", "published_log_likelihood",
         "published_epsilon_understated"]
    )  # fmt: skip
    for one in found:
        cell, row = one.cell, one.rows[0]
        theirs: list[Any] = [None, None, None, None]
        if cell.figure == ABLATION:
            trusted = "–" if cell.method == REFERENCE else "none"
        else:
            trusted = settings.methods[cell.method].trusted
            source = settings.figures[str(cell.figure)].published
            end = published(settings, cell.figure, cell.split, cell.method)
            if end != NO_PUBLISHED and cell.epsilon == source.epsilon:
                theirs = [source.epsilon, end.accuracy, end.log_likelihood,
                          cell.method in UNDERSTATED]  # fmt: skip
        accuracy, fit, regret = one.mean(ACCURACY), one.mean(FIT), one.regret
        writer.writerow(
            [cell.figure, cell.job.config["partition"]["parties"], cell.split, cell.method,
             trusted, cell.epsilon, row.get("guarantee.delta"), row.get("guarantee.unit"),
             row.get("guarantee.adjacency"), len(one.rows), accuracy.value, accuracy.error,
             fit.value, fit.error, regret.value, regret.error, *theirs]
        )  # fmt: skip
    return body.getvalue()


def _note(reference: Series) -> str:
    accuracy, fit = reference.mean(ACCURACY).value, reference.mean(FIT).value or 0.0
    return (
        f"Without privacy: accuracy {accuracy:.4f}, log-likelihood −{-fit:.4f}. "
        "Regret: loss of held-out log-likelihood relative to this, on the same records. Every ε is "
        "for substituting one record, δ = 1e−5, against everyone except those who are trusted in "
        "the second column, by this library's accountant. Published: ends of the curves of the "
        "DP-PVI paper (TMLR 2023), as published; a star marks an understated ε. "
        + _seeds(reference)
    )


def _seeds(one: Series) -> str:
    seeds = [row["seed"] for row in one.rows]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return f"Mean of {which}; s.e. is its standard error."
