"""Coefficients in a report: a table with intervals and bars, and a table of ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.models.glm.normal import LOG_NOISE
from tacit.report.parts import Bar, Heading, Paragraph, Table, TableRow
from tacit.results.coefficients import as_ratios
from tacit.results.shown import to_precision
from tacit.results.summary import Coefficient, PartyResult, Result
from tacit.results.text import interaction_lines, table_rows

RATIOS = {
    "logistic": "Odds ratio",
    "softmax": "Odds ratio",
    "poisson": "Rate ratio",
    "negative-binomial": "Rate ratio",
}
"""Dict from the kind of a model to the name of exp(coefficient)."""


def coefficient_parts(result: Result | PartyResult) -> list[Any]:
    """Return the section on coefficients: a table with intervals, then odds ratios or rate ratios.

    A row is coloured if its interval excludes 0, the quantity can have either sign, the fit
    converged, and the intervals are not known to be too narrow.
    """
    rows = table_rows(result)
    if not rows:
        return []
    failed, warning = result.converged is False, result.intervals.warning
    signed = _signed(result, rows)
    clear = [
        one and (row.low > 0 or row.high < 0) and warning is None and not failed
        for row, one in zip(rows, signed, strict=True)
    ]
    truth = [_true_value(result, row) for row in rows]
    known = any(value is not None for value in truth)
    bars = _bars(result, rows)
    head = ["Name", "Mean", "Sd", "2.5 %", "97.5 %", *(["True value"] if known else [])]
    shown = [
        TableRow(
            row.term,
            [
                *(_digits(value, row.sd) for value in (row.mean, row.sd, row.low, row.high)),
                *([_digits(value, row.sd)] if known else []),
            ],
            note=f"per {row.unit}" if row.unit else "",
            clear=coloured,
            bar=bar,
        )
        for row, coloured, value, bar in zip(rows, clear, truth, bars, strict=True)
    ]
    table = Table(f"All {len(rows)} coefficients", head, shown, minor=(2, 5))
    parts: list[Any] = _notes(sum(clear), sum(signed), failed=failed, warning=warning)
    return [*parts, table, *_bar_note(result), *_ratio_parts(result)]


def _notes(clear: int, signed: int, *, failed: bool, warning: str | None) -> list[Paragraph]:
    notes = []
    if failed:
        notes.append(
            Paragraph(
                "Whether an interval excludes 0 is not reliable, so no row is coloured.",
                lead="Not converged.",
            )
        )
    if warning is not None:
        notes.append(Paragraph(warning, lead="Too narrow."))
    elif not failed and signed:
        notes.append(
            Paragraph(f"{clear} of {signed} intervals exclude 0; those rows are coloured.")
        )
    return notes


def _digits(value: float | None, sd: float) -> str:
    return to_precision(value, sd).replace("-", "−")


def _signed(result: Result | PartyResult, rows: Sequence[Coefficient]) -> list[bool]:
    sites = result.sites if isinstance(result, Result) and not result.coefficients else {}
    return [sites[row.name].real if row.name in sites else row.name != LOG_NOISE for row in rows]


def _true_value(result: Result | PartyResult, row: Coefficient) -> float | None:
    if row.true_value is not None or not isinstance(result, Result) or result.coefficients:
        return row.true_value
    return result.true_values.get(row.name)


def _bars(result: Result | PartyResult, rows: Sequence[Coefficient]) -> list[Bar | None]:
    """Place the interval of each row on a common axis.

    Coefficients in the units of their columns cannot share an axis. If the posterior lists the
    coefficients of the scaled columns, the bars show those instead, and the intercept has no bar.
    """
    table = result.posterior
    scaled = dict(zip(table.names, zip(table.mean, table.sd, strict=True), strict=True))
    natural = bool(result.coefficients) and all(row.name in scaled for row in rows)
    ends: list[tuple[float, float, float, float | None] | None] = []
    for row in rows:
        truth = _true_value(result, row)
        if natural:
            mean, sd = scaled[row.name]
            held = result.true_values.get(row.name) if isinstance(result, Result) else None
            place = (mean - 1.96 * sd, mean, mean + 1.96 * sd, held)
            ends.append(None if row.name in ("intercept", LOG_NOISE) else place)
        else:
            ends.append((row.low, row.mean, row.high, truth))
    values = [v for one in ends if one is not None for v in one if v is not None]
    if not values:
        return [None] * len(rows)
    low, high = min(0.0, *values), max(0.0, *values)
    width = (high - low) or 1.0

    def at(value: float) -> float:
        return round(2 + 96 * (value - low) / width, 2)

    return [
        None
        if one is None
        else Bar(
            low=at(one[0]), mean=at(one[1]), high=at(one[2]), zero=at(0.0),
            label=f"{row.term}: interval from {row.low:.3g} to {row.high:.3g}",
            true_value=None if one[3] is None else at(one[3]),
        )
        for row, one in zip(rows, ends, strict=True)
    ]  # fmt: skip


def _bar_note(result: Result | PartyResult) -> list[Paragraph]:
    if not result.coefficients:
        return []
    text = (
        "Numbers are in the units of the columns. Bars are on one axis: the effect of a change by "
        "half the declared range of a column, with 95 % intervals; the thin line is 0."
    )
    return [Paragraph(text), *(Paragraph(line) for line in interaction_lines(result))]


def _ratio_parts(result: Result | PartyResult) -> list[Any]:
    """Return the table of odds ratios or rate ratios, exp(coefficient); empty for other models."""
    kind = None if result.model is None else result.model.kind
    title = RATIOS.get(kind or "")
    if title is None or not result.coefficients:
        return []
    rows = [
        TableRow(
            row.term,
            [_digits(value, row.sd) for value in (row.mean, row.low, row.high)],
            note=f"per {row.unit}" if row.unit else "",
        )
        for row in as_ratios(result.coefficients)
    ]
    if not rows:
        return []
    head = ["Name", title, "2.5 %", "97.5 %"]
    return [Heading(f"{title}s"), Table(f"{title}s of {len(rows)} coefficients", head, rows)]
