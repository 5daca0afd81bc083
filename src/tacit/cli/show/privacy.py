"""What `tacit check` and `tacit explain` say about privacy."""

from __future__ import annotations

from typing import Any

from tacit.cli.show.results import console, show_table
from tacit.plan.calibrate import Settled
from tacit.plan.explain import Explanation
from tacit.plan.plan import Plan
from tacit.plan.signal import POOR, signal
from tacit.results.statements import statement

MOST_ROWS = 12


def show_terms(plan: Plan) -> None:
    """The noise of every kind of party, its ε, and how much signal is left."""
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for name, one in plan.settled.items():
        key = (one.clip, one.noise_sd, one.visits, one.guarantee.epsilon, one.units)
        kinds.setdefault(key, []).append(name)
    rows = []
    poor = []
    for names in list(kinds.values())[:MOST_ROWS]:
        settled = plan.settled[names[0]]
        heard = signal(plan, settled)
        if heard < POOR:
            poor.append((names[0], heard))
        rows.append(_row(names, settled, heard))
    columns = [
        "parties", "units", "ε", "δ", "clip", "noise sd", "z", "releases", "signal to noise",
    ]  # fmt: skip
    show_table("What each party would add, and what is left", columns, rows)
    if len(kinds) > MOST_ROWS:
        console.print(f"… and {len(kinds) - MOST_ROWS} more kinds of party", highlight=False)
    for name, heard in poor[:3]:
        console.print(
            f"warning: party {name}: even if all its records agree, a whole run's signal is "
            f"{heard:.2g} times its noise (per coordinate, root mean square); use more records, a "
            "larger ε, fewer parameters or aggregation = 'trusted'",
            highlight=False,
        )
    console.print("No budget has been spent.", highlight=False)


def _row(names: list[str], settled: Settled, heard: float) -> list[Any]:
    shown = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"
    share = f" (a party adds 1/√{settled.shares} of it)" if settled.shares > 1 else ""
    return [
        shown,
        settled.units,
        settled.guarantee.epsilon,
        f"{settled.guarantee.delta:g}",
        settled.clip,
        f"{settled.noise_sd:.4g}{share}",
        f"{settled.noise_multiplier:.4g}",
        settled.releases,
        f"{heard:.2g}",
    ]


def show_explanation(plan: Plan, found: Explanation) -> None:
    """The table of adversaries."""
    unit = found.unit if found.unit != "party" else "party (the unit)"
    columns = ["an adversary who", "sees", f"ε for one {unit}", "ε for a whole party", "remark"]
    rows = [
        [row.adversary, row.sees, _epsilon(row.unit_epsilon), _epsilon(row.party_epsilon),
         row.remark]
        for row in found.rows
    ]  # fmt: skip
    title = f"Who is protected from whom (party {found.party}, the weakest guarantee)"
    show_table(title, columns, rows)
    why = f", chosen by auto: {plan.why}" if plan.why else ""
    console.print(f"method: {plan.method.kind}{why}", highlight=False)
    console.print(f"privacy: {statement(plan)}", highlight=False)
    if plan.privacy is None:
        return
    console.print(
        f"every ε is at δ = {found.delta:g}, relation {found.relation}; "
        "“not protected” means that no ε below 50 can be shown.",
        highlight=False,
    )
    if found.groups:
        rows = [
            [size, _epsilon(direct), f"({general[0]:.4g}, {general[1]:.3g})"]
            for size, direct, general in found.groups
        ]
        show_table(
            f"Several {found.unit}s at once",
            ["how many", f"ε at δ = {found.delta:g}", "(ε, δ) by the general rule"],
            rows,
        )


def _epsilon(value: float | None) -> str:
    return "not protected" if value is None else f"{value:.4g}"
