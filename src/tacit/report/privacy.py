"""Privacy section of a report: guarantee, attackers and cost."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from tacit.plan.explain import Explanation, Row
from tacit.report.parts import (
    Badge,
    Drawing,
    Heading,
    Items,
    Paragraph,
    Statement,
    Table,
    TableRow,
    facts,
    number,
)
from tacit.results.barriers import draw_barriers
from tacit.results.summary import LedgerFacts, PrivacyFacts, Result

ADJACENCY = {
    "replace-one": "replace-one: one {unit} is replaced by another; the number of units is public",
    "add-or-remove-one": "add or remove one {unit}: the number of units is protected too",
}
EXCEPT = "This run was private, except for what this page lists as not covered"


def privacy_badge(result: Result) -> Badge:
    """Return a badge with a short text of the guarantee."""
    privacy = result.privacy
    guarantee = privacy.guarantee
    if not privacy.private or guarantee is None:
        return Badge("Not private" if not privacy.private else "Private", _tone(result))
    terms = f"ε = {guarantee.epsilon:.4g}, δ = {guarantee.delta:g} per {guarantee.unit}"
    return Badge(f"Private: {terms}", _tone(result))


def _tone(result: Result) -> Any:
    return "good" if result.privacy.private and not _measured(result) else "bad"


def _measured(result: Result) -> bool:
    measured = (*result.metrics.values(), *result.calibration.values(), result.party_metrics)
    return any(measured)


def privacy_statement(result: Result) -> Statement:
    """Return the most important statement about the privacy of a run."""
    privacy = result.privacy
    lead = "This run was private" if privacy.private else "This run was not private"
    rest = privacy.statement.strip().removeprefix(lead).removeprefix("Not private")
    rest = rest.lstrip(":.;, ")
    if privacy.private and _measured(result):
        lead = EXCEPT
    return Statement(f"{lead}:" if rest else f"{lead}.", rest, _tone(result))


def privacy_parts(result: Result) -> list[Any]:
    """Return the section on privacy: guarantee, trust, attackers, costs and what is not covered."""
    return guarantee_parts(result.privacy)


def guarantee_parts(privacy: PrivacyFacts | None) -> list[Any]:
    """Return the section on privacy, given the privacy facts; empty without a guarantee."""
    if privacy is None or privacy.guarantee is None:
        return []
    if not privacy.private:
        known = (
            "The noise of this run can be computed from its known seed. The numbers below are "
            "what secret noise would have guaranteed."
        )
        return [Paragraph(known), _facts(privacy)]
    balance = balance_parts(privacy.ledger, several=len(privacy.parties) > 1)
    return [_facts(privacy), *_meaning(privacy), *balance, *_attackers(privacy),
            *_costs(privacy), *_not_covered(privacy)]  # fmt: skip


def balance_parts(ledger: LedgerFacts | None, *, several: bool = False) -> list[Any]:
    """Return the section of a report on the privacy budget of the records.

    The section shows the ε spent on the records, the budget and the ε that is left, as the ledger
    records them. Only a private report contains this section. For other reports `ledger` is None,
    and the result is empty. If the run has `several` parties, the numbers are those of the party
    with the most ε spent on its records.
    """
    if ledger is None:
        return []
    at = "" if ledger.delta is None else f" at δ = {ledger.delta:g}"
    most = " (the largest of all parties)" if several else ""
    spent = f"ε = {ledger.epsilon_spent:.4g}{at}, this run included{most}"
    rows = [("Spent on these records", spent)]
    if ledger.before:
        rows.append(("Spent before this run", f"ε = {ledger.before:.4g}{at}"))
    if ledger.budget is not None:
        left = max(ledger.budget - ledger.epsilon_spent, 0.0)
        rows.append(("Budget", f"ε = {ledger.budget:.4g}{at}"))
        rows.append(("Left", f"ε = {left:.4g}, less what unfinished runs have reserved"))
    rows.append(("Ledger", f"{ledger.path}; all charges: tacit ledger show"))
    return [Heading("Budget of these records"), facts("Budget of these records", rows)]


def _facts(privacy: PrivacyFacts) -> Table:
    guarantee = privacy.guarantee
    assert guarantee is not None
    adjacency = ADJACENCY.get(guarantee.adjacency, guarantee.adjacency)
    rows = [
        ("ε", f"{guarantee.epsilon:.4g}"),
        ("δ", f"{guarantee.delta:g}"),
        ("Protected unit", f"one {guarantee.unit}"),
        ("Adjacency", adjacency.format(unit=guarantee.unit)),
        ("Trust", guarantee.trust),
        ("Accountant", privacy.accountant or "–"),
    ]
    if privacy.private:
        rows.append(
            (
                "Budget spent by this run",
                f"ε = {guarantee.epsilon:.4g} at δ = {guarantee.delta:g} per {guarantee.unit} "
                "(largest of all parties), charged before each reply was computed. Budgets and "
                "earlier spending are in each party's ledger: tacit ledger show",
            )
        )
    return facts("Guarantee", rows)


def _meaning(privacy: PrivacyFacts) -> list[Any]:
    """Explain what ε means for one unit, as odds."""
    guarantee = privacy.guarantee
    assert guarantee is not None
    if not guarantee.epsilon < 10:
        return []
    factor = math.exp(guarantee.epsilon)
    return [
        Paragraph(
            f"For one {guarantee.unit}: whatever is released, the odds that a reader gives to any "
            f"statement about it change by a factor of at most {factor:.3g} (e to the power ε), "
            f"apart from a probability of δ = {guarantee.delta:g}."
        )
    ]


def _attackers(privacy: PrivacyFacts) -> list[Any]:
    guarantee = privacy.guarantee
    assert guarantee is not None
    if not privacy.attackers:
        return []
    rows = [
        TableRow(
            one.attacker,
            ("not protected" if one.epsilon is None else f"{one.epsilon:.4g}", one.sees),
            note=one.remark,
        )
        for one in privacy.attackers
    ]
    parts: list[Any] = [
        Heading("ε by attacker"),
        Table("ε by attacker", ["Attacker", f"ε per {guarantee.unit}", "Sees"], rows,
              numbers=False, minor=(2,)),
    ]  # fmt: skip
    if privacy.parties:  # a party of a live federation knows only its own
        parts.append(_drawing(privacy))
    if guarantee.unit != "party":
        parts.append(Paragraph("Facts shared by all records of a party are not protected."))
    return parts


def _drawing(privacy: PrivacyFacts) -> Drawing:
    guarantee = privacy.guarantee
    assert guarantee is not None
    rows = tuple(
        Row(
            attacker=one.attacker,
            sees=one.sees,
            unit_epsilon=one.epsilon,
            party_epsilon=None,
            remark=one.remark,
        )
        for one in privacy.attackers
    )
    weakest = max(privacy.parties, key=lambda one: one.epsilon).name
    explanation = Explanation(
        party=weakest,
        unit=guarantee.unit,
        delta=guarantee.delta,
        adjacency=guarantee.adjacency,
        rows=rows,
        groups=(),
    )
    drawn = draw_barriers(
        explanation,
        aggregation=privacy.aggregation,
        parties=len(privacy.parties),
        whole_party=False,
    )
    return Drawing(Markup(drawn), "Who sees what, and on which side of the noise.")


def _costs(privacy: PrivacyFacts) -> list[Any]:
    rows = [
        TableRow(
            party.name,
            (
                f"{party.epsilon:.4g}",
                f"{party.delta:g}",
                number(party.noise_multiplier),
                str(party.releases or "–"),
            ),
        )
        for party in privacy.parties
    ]
    if not rows:
        return []
    head = ["Party", "ε", "δ", "Noise sd / clip", "Releases"]
    if len(rows) > 1 and len({tuple(row.cells) for row in rows}) == 1:
        rows = [TableRow(f"each of {len(rows)} parties", rows[0].cells)]
    return [Heading("Cost by party"), Table("Cost by party", head, rows, minor=(2,))]


def _not_covered(privacy: PrivacyFacts) -> list[Any]:
    if not privacy.not_covered:
        return [Paragraph("not stated by result.json.", lead="Not covered:")]
    return [
        Heading("Not covered by this guarantee"),
        Items(privacy.not_covered),
    ]
