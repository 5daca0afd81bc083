"""Privacy section of a report."""

from __future__ import annotations

from html import escape

from tacit.report.table import details, html_table, number
from tacit.results.summary import PrivacyFacts, Result

ADJACENCY = {
    "replace-one": "replace-one: one {unit} is replaced by another; their number is public",
    "add-or-remove-one": "add or remove one {unit}: their number is protected too",
}
EXCEPT = "This run was private, except for what this page lists as not covered"
LONG = 12


def privacy_statement(result: Result) -> str:
    """The first thing to know about a run."""
    privacy = result.privacy
    lead = "This run was private" if privacy.private else "This run was not private"
    rest = privacy.statement.strip().removeprefix(lead).removeprefix("Not private")
    rest = rest.lstrip(":.;, ")
    measured = any(result.metrics.values()) or any(result.calibration.values())
    if privacy.private and measured:
        lead = EXCEPT
    kept = " kept" if privacy.private and not measured else ""
    end = f":</strong> {escape(rest)}" if rest else ".</strong>"
    return f'<p class="privacy{kept}"><strong>{lead}{end}</p>'


def privacy_section(result: Result) -> str:
    """ε, δ, unit, adjacency, trust, what was spent and what is not covered."""
    privacy = result.privacy
    if privacy.guarantee is None:
        return ""
    if not privacy.private:
        return (
            "<p>The noise of this run can be computed from its known seed. The numbers below are "
            f"what secret noise would have guaranteed.</p>{_facts(privacy)}"
        )
    return _facts(privacy) + _terms(privacy) + _not_covered(privacy)


def _facts(privacy: PrivacyFacts) -> str:
    guarantee = privacy.guarantee
    assert guarantee is not None
    adjacency = ADJACENCY.get(guarantee.adjacency, guarantee.adjacency)
    rows = [
        ("ε", number(guarantee.epsilon)),
        ("δ", f"{guarantee.delta:g}"),
        ("Protected unit", f"one {guarantee.unit}"),
        ("Adjacency", adjacency.format(unit=guarantee.unit)),
        ("Trust", guarantee.trust),
        ("Accountant", privacy.accountant or "–"),
    ]
    if privacy.private:
        spent = (
            f"ε = {number(guarantee.epsilon)} at δ = {guarantee.delta:g} per {guarantee.unit} "
            "(largest of all parties), charged before each reply was computed. Earlier spending on "
            "the same records is in each party's ledger: tacit ledger show"
        )
        rows.append(("Budget spent by this run", spent))
    return html_table(None, [(label, escape(value)) for label, value in rows], numbers=False)


def _terms(privacy: PrivacyFacts) -> str:
    rows = [
        (
            escape(party.name),
            number(party.epsilon),
            f"{party.delta:g}",
            number(party.noise_multiplier),
            str(party.releases or "–"),
        )
        for party in privacy.parties
    ]
    if not rows:
        return ""
    head = ["Party", "ε", "δ", "Noise sd / clip", "Releases"]
    table = html_table(head, rows)
    return details(f"All {len(rows)} parties", table) if len(rows) > LONG else table


def _not_covered(privacy: PrivacyFacts) -> str:
    if not privacy.not_covered:
        return "<p><strong>Not covered:</strong> not stated by result.json.</p>"
    items = "".join(f"<li>{escape(item)}</li>" for item in privacy.not_covered)
    return f"<p><strong>Not covered by this guarantee:</strong></p><ul>{items}</ul>"
