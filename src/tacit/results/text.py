"""Text of a result: the table and lines shown by `print(fit)` and in the terminal."""

from __future__ import annotations

from tacit.results.shown import Shown, result_rows, to_precision
from tacit.results.summary import AT_PARTY, Coefficient, PartyResult, Result, declared_columns

TITLES = {
    "logistic": "Logistic regression",
    "softmax": "Softmax regression",
    "linear": "Linear regression",
    "linear-unknown-noise": "Linear regression",
    "poisson": "Poisson regression",
    "negative-binomial": "Negative binomial regression",
    "student": "Student-t regression",
    "normal-mean": "Mean of a normal",
    "neural-network": "Neural network",
    "numpyro": "NumPyro model",
    "topics": "Topic model",
    "belief-network": "Belief network",
    "factors": "Factor model",
    "mixture": "Gaussian mixture",
}
UNDERSTOOD = ("1", "true", "yes")
"""Levels of an outcome that the title does not name, because they obviously mean y = 1."""
COLUMNS = ("mean", "sd", "2.5 %", "97.5 %")


def title(result: Result) -> str:
    """Make the title line: model, outcome, parties and, if public, the number of records."""
    kind = result.model.kind
    text = TITLES.get(kind, kind.replace("-", " ").capitalize())
    if result.data.outcome:
        text += f" of {result.data.outcome}"
        if (result.data.positive or "1").lower() not in UNDERSTOOD:
            text += f" = {result.data.positive}"
    if result.engine == AT_PARTY:
        return f"{text} · as party {result.parties[0].name} received it"
    count = len(result.parties)
    text += f" · {count} {'party' if count == 1 else 'parties'}"
    records = [row.records for row in result.parties]
    if records and all(one is not None for one in records):
        count = f"{sum(one or 0 for one in records):,} records"
        text += f", about {count} as announced" if result.engine == "live" else f", {count}"
    return text


def table_rows(result: Result | PartyResult) -> list[Coefficient]:
    """Return the rows of the table: coefficients in the original units of the columns or, if there
    are none, the sites or coordinates of the model.
    """
    if result.coefficients:
        return result.coefficients
    return [as_coefficient(row) for row in result_rows(result)]


def interaction_lines(result: Result | PartyResult) -> list[str]:
    """Return a line with the values of interacting columns at which their main effects hold; empty
    if there are no interactions.
    """
    columns = () if result.data is None else declared_columns(result.data) or ()
    known = {one.name: one for one in columns}
    factors = dict.fromkeys(name for one in columns for name in one.product)
    centres = [
        f"{name} = {known[name].affine[0]:.4g}"  # pyright: ignore[reportOptionalSubscript]
        for name in factors
        if name in known and known[name].affine is not None
    ]
    if not centres:
        return []
    return [f"Interactions: main effects of interacting columns hold at {', '.join(centres)}."]


def as_coefficient(row: Shown) -> Coefficient:
    """Convert a quantity of a model to a row without a unit."""
    return Coefficient(
        term=row.name, name=row.name, mean=row.mean, sd=row.sd, low=row.low, high=row.high
    )


def texts(row: Coefficient) -> list[str]:
    """Format mean, sd and interval to the precision of the sd."""
    return [to_precision(value, row.sd) for value in (row.mean, row.sd, row.low, row.high)]


def table_lines(rows: list[Coefficient]) -> list[str]:
    """Format the table of a posterior as lines of text."""
    if not rows:
        return []
    cells = [texts(row) for row in rows]
    name_width = max(len(row.term) for row in rows)
    widths = [
        max(len(heading), *(len(row[i]) for row in cells)) for i, heading in enumerate(COLUMNS)
    ]
    with_units = any(row.unit for row in rows)
    heading = "  ".join(text.rjust(width) for text, width in zip(COLUMNS, widths, strict=True))
    lines = [f"{'':<{name_width}}  {heading}{'  per' if with_units else ''}"]
    for row, numbers in zip(rows, cells, strict=True):
        shown = "  ".join(text.rjust(width) for text, width in zip(numbers, widths, strict=True))
        lines.append(f"{row.term:<{name_width}}  {shown}  {row.unit or ''}".rstrip())
    return lines


def plain_table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Format a table of text cells as aligned lines."""
    cells = [columns, *rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
