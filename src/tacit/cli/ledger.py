"""`tacit ledger`: verify, export, budget, link and close."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec
import typer

from tacit.cli.options import print_json
from tacit.errors import ConfigError, DataError
from tacit.privacy.ledger.ledger import Budget, DatasetId, Ledger, audit
from tacit.privacy.ledger.paths import own_ledger
from tacit.privacy.settings import Privacy

ROUNDING = 1e-6
"""Largest excess over a budget that is a rounding error, as a share of the budget."""


def verify_command(path: Path, receipt: str | None, *, as_json: bool = False) -> None:
    """Check the hash chain of all entries. A damaged ledger is reported as an error and never
    repaired.
    """
    from tacit.cli.show.results import console

    report = audit(path, receipt)
    if not report.sound:
        raise DataError(
            f"problems in {report.path}: {'; '.join(report.problems)}; restore all its files from "
            "one backup"
        )
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    console.print(f"{report.path}: {report.entries} entries, intact", highlight=False)
    console.print(f"receipt: {report.receipt}", highlight=False, soft_wrap=True)


def export_command(path: Path, out: Path, *, as_json: bool = False) -> None:
    """Write all entries without secrets; the file's suffix selects JSON or CSV."""
    from tacit.cli.show.results import console

    forms: dict[str, Literal["json", "csv"]] = {".json": "json", ".csv": "csv"}
    if out.suffix not in forms:
        raise ConfigError(f"--out {out}; the name must end in .json or .csv")
    with Ledger(path) as ledger:
        ledger.export(out, forms[out.suffix])
    if as_json:
        print_json({"exported": str(out)})
    else:
        console.print(f"exported: {out}", highlight=False)


def budget_command(
    path: Path | None,
    dataset: str,
    epsilon: float,
    delta: float,
    adjacency: str | None,
    unit: str | None,
    *,
    reason: str,
    raising: bool,
    as_json: bool = False,
) -> None:
    """Set the budget of one data set, or of all data sets of a configuration."""
    from tacit.cli.show.results import console

    def limit(own_adjacency: str, own_unit: str) -> Budget:
        return Budget(
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency or own_adjacency,  # pyright: ignore[reportArgumentType]
            unit=unit or own_unit,  # pyright: ignore[reportArgumentType]
        )

    budget = limit("replace-one", "record")
    if dataset.endswith(".toml"):
        place, terms, name = _records_of(Path(dataset), path)
        if terms is not None:
            budget = limit(terms.adjacency, terms.unit)
        with Ledger(place, create=True) as ledger:
            found = name(ledger)
            wanted = dict.fromkeys(found.values(), budget)
            ledger.set_budgets(wanted, reason=reason, raising=raising)
            exceeded = _exceeded(ledger, wanted)
        for party, identity in () if as_json else found.items():
            console.print(f"{party}: {identity}", highlight=False)
    else:
        found = {"": DatasetId.parse(dataset)}
        place = path or own_ledger()
        with Ledger(place) as ledger:
            ledger.set_budget(DatasetId.parse(dataset), budget, reason=reason, raising=raising)
            exceeded = _exceeded(ledger, found.values())
    if exceeded is not None:
        typer.echo(f"warning: {exceeded}", err=True)
    if as_json:
        ids = [str(one) for one in found.values()]
        print_json({"ledger": str(place), "datasets": ids, **msgspec.to_builtins(budget)})
        return
    console.print(
        f"budget of {dataset}: ε = {budget.epsilon:g} at δ = {budget.delta:g}, "
        f"{budget.adjacency}, unit = {budget.unit}; ledger: {place}",
        highlight=False,
    )


def _exceeded(ledger: Ledger, datasets: Iterable[DatasetId]) -> str | None:
    """Return a text for budgets below what is spent or planned already; None if there are none."""
    found = [ledger.spent(dataset) for dataset in datasets]
    over = [
        row.committed
        for row in found
        if row.budget and row.committed and row.committed > row.budget.epsilon * (1.0 + ROUNDING)
    ]
    if not over:
        return None
    return (
        f"ε = {max(over):.4g} is already spent or planned, more than this budget, so nothing more "
        "is released until it is raised"
    )


def _records_of(
    path: Path, asked: Path | None
) -> tuple[Path, Privacy | None, Callable[[Ledger], dict[str, DatasetId]]]:
    """Return the ledger path, the privacy settings, and a function that identifies each party's
    data set.
    """
    from tacit.live.config import kind_of, read_party
    from tacit.party.datasets import identify_parties

    kind = kind_of(path)
    if kind == "run":
        from tacit.run.config import read_config
        from tacit.run.ledger import operators_ledger
        from tacit.run.run import prepare

        config = read_config(path)
        place = asked or operators_ledger(config)
        prepared = prepare(config)

        def all_parties(ledger: Ledger) -> dict[str, DatasetId]:
            return identify_parties(ledger, prepared.federation, prepared.plan.parties)

        return place, config.private, all_parties
    if kind != "party":
        raise ConfigError(
            f"{path} names no records, but a budget is for a party's records; give a party.toml"
        )
    from tacit.live.join import prepare_party

    setup = read_party(path)
    private = setup.agreed.federation.private
    if private is None or private.insecure_noise_seed is not None:
        why = 'privacy = "none"' if private is None else "privacy.insecure_noise_seed is set"
        raise ConfigError(
            f"{setup.agreed.path}: {why}, so the run is not charged and needs no budget"
        )
    ready = prepare_party(setup)

    def one_party(ledger: Ledger) -> dict[str, DatasetId]:
        return identify_parties(ledger, ready.loaded, [ready.name])

    return asked or ready.ledger_path, private, one_party


def link_command(path: Path, newer: str, older: str, *, reason: str, as_json: bool = False) -> None:
    """Declare that one data set continues another."""
    from tacit.cli.show.results import console

    with Ledger(path) as ledger:
        ledger.link(DatasetId.parse(newer), DatasetId.parse(older), reason=reason)
    if as_json:
        print_json({"newer": newer, "older": older, "ledger": str(path)})
        return
    console.print(f"{newer} continues {older}: they share one budget", highlight=False)


def close_command(path: Path, run: str, *, reason: str, as_json: bool = False) -> None:
    """End a run permanently, so that no budget is reserved for its remaining releases."""
    from tacit.cli.show.results import console

    with Ledger(path) as ledger:
        found = ledger.close_run(run, reason=reason)
    if as_json:
        print_json({"run": run, "closed": [str(one) for one in found], "ledger": str(path)})
    elif found:
        console.print(f"closed {run}: it cannot be charged any more", highlight=False)
    else:
        console.print(f"{run} has nothing reserved: it is finished or closed", highlight=False)
