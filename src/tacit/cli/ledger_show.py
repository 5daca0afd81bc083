"""`tacit ledger show`: spending per data set and run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tacit.errors import TacitError
from tacit.privacy.events import Event
from tacit.privacy.ledger.cost import CachedAccountant
from tacit.privacy.ledger.exposure import Charged
from tacit.privacy.ledger.ledger import Budget, DatasetId, Ledger, Spent
from tacit.privacy.ledger.state import counting_terms, tally
from tacit.privacy.ledger.verify import Row
from tacit.support.type_info import prepare

MOST_NAMES = 3
NOT_RECORDED = "not recorded"
"""Shown instead of the plan of a run that an earlier version of tacit made."""
USUAL_DELTA = 1e-5
"""δ at which spending is shown if no budget sets one."""


def show_command(path: Path, *, everything: bool, as_json: bool) -> None:
    """Show the totals of each data set and each run; with `everything`, also show every entry, with
    the full ids of data sets.
    """
    with Ledger(path) as ledger:
        entries = ledger.entries()
        spent = [_without_budget(ledger, dataset, entries) for dataset in ledger.datasets()]
    names = party_names(entries)
    if as_json:
        _print_json(path, spent, entries, names)
        return
    from tacit.cli.show.results import console, show_table

    if not entries:
        console.print("the ledger is empty: no release and no budget")
        return
    adaptive = not everything and any(row.epsilon != row.as_one_run for row in spent)
    plans = _show_spent(spent, names, whole=everything, as_one_run=adaptive)
    terms = {row.dataset: row.budget or _terms(entries, row.dataset) for row in spent}
    runs = _run_rows(entries, names, terms)
    if runs:
        columns = ["run", "first charge", "parties", "charges", "unanswered", "ε of this run",
                   "planned"]  # fmt: skip
        unfinished = any(row[-1] not in (row[-2], NOT_RECORDED) for row in runs)
        if not unfinished:
            runs, columns = [row[:-1] for row in runs], columns[:-1]
        show_table("Runs", columns, runs)
        if unfinished:
            console.print(
                '"planned": ε of all planned releases of the run. Until it is finished or closed '
                "(tacit ledger close RUN), its remaining releases count as spent.",
                highlight=False,
            )
    allowed = _operator_rows(entries, names)
    if allowed:
        show_table(
            "Budgets, links and closed runs", ["time", "entry", "parties", "reason"], allowed
        )
    if everything:
        _show_entries(entries, names)
    else:
        if adaptive:
            console.print(
                '"as one run": ε if all runs had been planned in advance. The budget is compared '
                f'with the larger "{"with plans" if plans else "ε spent"}", which also holds if a '
                "run was chosen because of the results of earlier runs.",
                highlight=False,
            )
        console.print(
            f"{len(entries)} entries; all entries with full ids: tacit ledger show --all",
            highlight=False,
        )


class Unlimited(Spent, frozen=True, kw_only=True):
    """Spending on a data set without a budget.

    Every ε is for δ = `USUAL_DELTA` and for the unit and adjacency of the last charge. If some
    charges do not count for these terms, the next weaker unit and adjacency are used for which all
    charges count.
    """

    delta: float
    adjacency: str
    unit: str


def _without_budget(ledger: Ledger, dataset: DatasetId, entries: Sequence[Row]) -> Spent:
    """Return the spending on a data set without a budget, for the unit and adjacency of its
    charges.
    """
    found, terms = ledger.spent(dataset), _terms(entries, str(dataset))
    if found.budget is not None or terms is None:
        return found
    epsilon = None
    for unit, adjacency in counting_terms(terms.unit, terms.adjacency):
        with suppress(TacitError):  # charges for several units or adjacencies
            epsilon = ledger.price(dataset, (), unit=unit, adjacency=adjacency, delta=terms.delta)
            terms = msgspec.structs.replace(terms, unit=unit, adjacency=adjacency)
            break
    return Unlimited(
        dataset=found.dataset,
        epsilon=epsilon,
        budget=None,
        remaining=None,
        charges=found.charges,
        releases=found.releases,
        family=found.family,
        committed=epsilon,
        as_one_run=epsilon,
        shared=found.shared,
        delta=terms.delta,
        adjacency=terms.adjacency,
        unit=terms.unit,
    )


def _terms(entries: Sequence[Row], dataset: str) -> Budget | None:
    # Only unit, adjacency and δ of this budget are used.
    for row in reversed(entries):
        if row.kind == "charge" and row.dataset == dataset:
            return Budget(
                epsilon=1.0,
                delta=USUAL_DELTA,
                unit=row.unit,  # pyright: ignore[reportArgumentType]
                adjacency=row.adjacency,  # pyright: ignore[reportArgumentType]
            )
    return None


def party_names(entries: Sequence[Row]) -> dict[str, str]:
    """Return party names by id of the data set. Names in charges are preferred to names in run
    plans.
    """
    names = {row.dataset: row.purpose for row in entries if row.kind == "plan" and row.purpose}
    for row in entries:
        named = re.fullmatch(r"(.+), visit \d+", row.purpose) if row.kind == "charge" else None
        if named:
            names[row.dataset] = named.group(1)
    return names


def _short(dataset: str) -> str:
    return DatasetId.parse(dataset).short


def _named(datasets: Sequence[str], names: dict[str, str]) -> str:
    """Return a shortened list of the parties that hold these data sets."""
    shown = [names.get(dataset, _short(dataset)) for dataset in dict.fromkeys(datasets)]
    if len(shown) > MOST_NAMES:
        return f"{shown[0]} … {shown[-1]} ({len(shown)})"
    return ", ".join(shown)


def _show_spent(
    spent: Sequence[Spent], names: dict[str, str], *, whole: bool, as_one_run: bool
) -> bool:
    """Print the table of spending per data set; return whether it has the column "with plans".

    The column "as one run" is shown if `as_one_run`. The column "with plans" is shown if planned
    releases increase some ε, but not with full ids (`whole`), which leave no space for it.
    """
    from tacit.cli.show.results import console, show_table

    rows = [_spent_row(row, names, whole=whole) for row in spent]
    columns = ["party", "data set", "ε spent", "as one run", "with plans", "budget", "remaining",
               "δ", "adjacency", "unit", "releases"]  # fmt: skip
    plans = not whole and any(row.committed != row.epsilon for row in spent)
    kept = [n for n in range(len(columns)) if (n != 3 or as_one_run) and (n != 4 or plans)]
    show_table(
        "Spent per data set, over all runs",
        [columns[n] for n in kept],
        [[row[n] for n in kept] for row in rows],
    )
    for row in spent:
        if row.shared:
            console.print(
                f"{_short(row.dataset)} shares records with {_named_contents(row.shared, names)}",
                highlight=False,
            )
    return plans


def _spent_row(row: Spent, names: dict[str, str], *, whole: bool) -> list[Any]:
    identity = row.dataset if whole else _short(row.dataset)
    first = [names.get(row.dataset, ""), identity]
    limit = row.budget
    if isinstance(row, Unlimited):
        bound = "no bound" if row.epsilon is None else f"{row.epsilon:.4g}"
        return [*first, bound, bound, bound, "none", "", f"{row.delta:g}", row.adjacency, row.unit,
                row.releases]  # fmt: skip
    if limit is None or row.epsilon is None or row.remaining is None:
        return [*first, "", "", "", "none", "", "", "", "", row.releases]
    return [
        *first,
        f"{row.epsilon:.4g}",
        f"{row.as_one_run:.4g}",
        f"{row.committed:.4g}",
        f"{limit.epsilon:g}",
        f"{row.remaining:.4g}",
        f"{limit.delta:g}",
        limit.adjacency,
        limit.unit,
        row.releases,
    ]


def _named_contents(shared: dict[str, int | None], names: dict[str, str]) -> str:
    """List the other data sets that share records with this one, and the number of shared
    records.
    """
    known = {DatasetId.parse(dataset).content: name for dataset, name in names.items()}
    said = [
        f"{content[:8]} ({known.get(content, 'not charged')}, "
        f"{'perhaps all' if count is None else f'{count:,}'})"
        for content, count in shared.items()
    ]
    more = f" and {len(said) - MOST_NAMES} more" if len(said) > MOST_NAMES else ""
    return ", ".join(said[:MOST_NAMES]) + more


def _run_rows(
    entries: Sequence[Row], names: dict[str, str], budgets: dict[str, Budget | None]
) -> list[list[Any]]:
    runs: dict[str, list[Row]] = {}
    plans: dict[str, list[Row]] = {}
    for row in entries:
        if row.kind in ("charge", "plan"):
            (runs if row.kind == "charge" else plans).setdefault(row.run, []).append(row)
    price = CachedAccountant(None)
    return [
        [
            run,
            charges[0].time[:16].replace("T", " "),
            _named([row.dataset for row in charges], names),
            len(charges),
            sum(row.state == "charged" for row in charges),
            _epsilon_of(charges, budgets, price),
            _epsilon_of(plans[run], budgets, price) if run in plans else NOT_RECORDED,
        ]
        for run, charges in runs.items()
    ]


def _epsilon_of(
    charges: Sequence[Row], budgets: dict[str, Budget | None], price: CachedAccountant
) -> str:
    """Return the largest ε of a run over its data sets, as text.

    The budget of a data set determines unit, adjacency and δ.
    """
    found = []
    for dataset, limit in budgets.items():
        own = [row for row in charges if row.dataset == dataset]
        if own and limit is not None:
            with suppress(TacitError, msgspec.ValidationError):
                charged = Charged({own[0].run: _paid(own)})
                found.append((price.of(charged, limit), limit.delta))
    if not found:
        return "no budget set"
    epsilon, delta = max(found)
    return f"{epsilon:.4g} at δ = {delta:g}"


def _paid(charges: Sequence[Row]) -> Counter[Any]:
    kind = list[Event]
    return tally(
        (msgspec.convert(row.detail, prepare(kind)), row.unit, row.adjacency)  # pyright: ignore[reportArgumentType]
        for row in charges
    )


def _operator_rows(entries: Sequence[Row], names: dict[str, str]) -> list[list[Any]]:
    """Return table rows of budgets, links and closed runs; entries made together share one row."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in entries:
        if row.kind == "budget":
            what = (
                f"budget ε = {row.detail['epsilon']:g} at δ = {row.detail['delta']:g}, "
                f"per {row.unit}, {row.adjacency}"
            )
        elif row.kind == "link":
            what = f"continues {_short(row.detail)}"
        elif row.kind == "close":
            what = f"closes {row.run}"
        else:
            continue
        key = (row.time[:16].replace("T", " "), what, row.purpose)
        groups.setdefault(key, []).append(row.dataset)
    return [
        [time, what, _named(datasets, names), reason]
        for (time, what, reason), datasets in groups.items()
    ]


def _show_entries(entries: Sequence[Row], names: dict[str, str]) -> None:
    from tacit.cli.show.results import show_table

    rows = [
        [row.seq, row.time, row.kind, row.state, names.get(row.dataset, _short(row.dataset)),
         row.run, row.request, row.purpose]
        for row in entries
    ]  # fmt: skip
    columns = ["#", "time", "kind", "state", "party", "run", "request", "purpose"]
    show_table("Entries", columns, rows)


def _print_json(
    path: Path, spent: Sequence[Spent], entries: Sequence[Row], names: dict[str, str]
) -> None:
    body = {
        "ledger": str(path),
        "datasets": [msgspec.to_builtins(row) | {"party": names.get(row.dataset)} for row in spent],
        "entries": list(entries),
    }
    print(msgspec.json.format(msgspec.json.encode(body), indent=1).decode())
