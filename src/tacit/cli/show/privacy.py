"""Output of `tacit explain`."""

from __future__ import annotations

from tacit.cli.show.results import console, show_table
from tacit.plan.explain import Explanation
from tacit.plan.plan import Plan
from tacit.privacy.events import LaplaceEvent
from tacit.results.statements import statement


def show_explanation(plan: Plan, found: Explanation) -> None:
    """Show the table of attackers, with the ε against each."""
    unit = found.unit if found.unit != "party" else "party (the unit)"
    columns = ["attacker", "sees", f"ε for one {unit}", "ε for a whole party", "remark"]
    rows = [
        [row.attacker, row.sees, _epsilon(row.unit_epsilon), _epsilon(row.party_epsilon),
         row.remark]
        for row in found.rows
    ]  # fmt: skip
    title = f"Privacy guarantee per attacker (party {found.party}, the weakest guarantee)"
    show_table(title, columns, rows)
    why = f", chosen by auto: {plan.why}" if plan.why else ""
    console.print(f"method: {plan.method.kind}{why}", highlight=False)
    console.print(f"privacy: {statement(plan)}", highlight=False)
    if plan.privacy is None:
        return
    console.print(
        f"every ε is at δ = {found.delta:g}, adjacency {found.adjacency}; "
        "“not protected” means that no ε below 50 can be proved.",
        highlight=False,
    )
    for line in plan.thresholds.words() if plan.thresholds else ():
        console.print(f"secure sums: {line}", highlight=False)
    console.print(
        f"messages: {_messages(plan, found.party)}; the guarantee also covers the raw bytes. "
        "The computing time of a party is not covered.",
        highlight=False,
    )
    if found.groups:
        rows = [
            [size, _epsilon(direct), f"({general[0]:.4g}, {general[1]:.3g})"]
            for size, direct, general in found.groups
        ]
        show_table(
            f"Guarantee for several {found.unit}s at once",
            ["number", f"ε at δ = {found.delta:g}", "(ε, δ) by the general group privacy bound"],
            rows,
        )


def _messages(plan: Plan, party: str) -> str:
    """Describe the integers that a party sends, with the step and noise of its first release."""
    event = plan.settled[party].events_at(0)[0]
    assert event.lattice is not None
    law = "Laplace" if isinstance(event, LaplaceEvent) else "Gaussian"
    return (
        f"integers times a public step ({event.step:.3g} at first), with exact discrete "
        f"{law} noise of parameter 2^{event.lattice.bits} steps per party"
    )


def _epsilon(value: float | None) -> str:
    return "not protected" if value is None else f"{value:.4g}"
