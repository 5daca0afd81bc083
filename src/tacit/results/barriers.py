"""Diagram of what each attacker sees: numbers before or after the noise (MEng Figs 3.1–3.3).

The privacy barrier is the place where noise is added: at each party if every party adds noise, or
at the aggregator if only the sum is protected. The stated ε holds against an attacker who sees only
numbers that have passed the barrier, and not against other attackers.
"""

from __future__ import annotations

from html import escape
from typing import Literal

from tacit.plan.explain import Explanation, Row

Barrier = Literal["none", "party", "sum"]

WIDTH, LANE, TOP = 1050, 54, 112
PARTY_X, BARRIER_PARTY, SERVER_X, BARRIER_SUM, SEEN_X = 24, 212, 250, 412, 440
# Selectors begin with the drawing's class: a style in an inline SVG applies to the whole page.
_STYLE = """
.barriers { font: 14px system-ui, sans-serif; background: #ffffff }
.barriers text { fill: #1f2430 } .barriers .quiet { fill: #5b6472; font-size: 12px }
.barriers .box { fill: #f2f4f8; stroke: #8a94a6 }
.barriers .safe { fill: #1b6e3c } .barriers .open { fill: #b3261e }
.barriers .barrier { stroke: #1b6e3c; stroke-width: 4; stroke-dasharray: 9 5 }
.barriers .arrow { stroke: #8a94a6; stroke-width: 1.5; fill: none }
@media (prefers-color-scheme: dark) {
  .barriers { background: #14171d }
  .barriers text { fill: #e6e9ef } .barriers .quiet { fill: #9aa5b5 }
  .barriers .box { fill: #20252e; stroke: #6b7689 }
  .barriers .safe { fill: #6fd596 } .barriers .open { fill: #ff8a80 }
  .barriers .barrier { stroke: #6fd596 }
}
"""


def barrier_of(explanation: Explanation, *, aggregation: str | None) -> Barrier:
    """Return where the noise is added: nowhere, at each party, or to the sum over the parties."""
    if aggregation is None or all(row.unit_epsilon is None for row in explanation.rows):
        return "none"
    return "party" if aggregation == "plain" else "sum"


def draw_barriers(
    explanation: Explanation, *, aggregation: str | None, parties: int, whole_party: bool = True
) -> str:
    """Draw records, server and attackers as SVG, with ε for each attacker.

    Parameters
    ----------
    explanation
        Result of `tacit.plan.explain.explain`.
    aggregation
        `Privacy.aggregation`; None for a run without privacy.
    parties
        Number of parties.
    whole_party
        Whether ε of a whole party is known and shown.

    Returns
    -------
    str
        A self-contained SVG for light and dark backgrounds.
    """
    barrier = barrier_of(explanation, aggregation=aggregation)
    height = TOP + LANE * len(explanation.rows) + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'class="barriers" role="img" '
        f'aria-label="{escape(_described(explanation, barrier))}">',
        f"<style>{_STYLE}</style>",
        _text(PARTY_X, 30, "Who sees what", weight=600),
        _text(PARTY_X, 52, _described(explanation, barrier), kind="quiet"),
        *_places(parties, height),
        *_barrier(barrier, height),
    ]
    for number, row in enumerate(explanation.rows):
        whole = whole_party and explanation.unit != "party"
        parts += _lane(row, TOP + 34 + LANE * number, whole=whole)
    if barrier != "none":
        note = f"δ = {explanation.delta:g}, adjacency {explanation.adjacency}, party "
        note += f"{explanation.party}: the weakest guarantee"
        parts.append(_text(PARTY_X, height - 14, note, kind="quiet"))
    return "\n".join([*parts, "</svg>\n"])


def _described(explanation: Explanation, barrier: Barrier) -> str:
    if barrier == "none":
        return "No noise is added: everyone who sees a message or the model sees exact numbers."
    unit = explanation.unit
    if barrier == "party":
        return f"Each party adds noise before anything leaves it; ε is for one {unit}."
    return f"Noise protects the sum over the parties, not single messages; ε is for one {unit}."


def _places(parties: int, height: int) -> list[str]:
    bottom = height - 40
    return [
        f'<rect class="box" x="{PARTY_X}" y="74" width="164" height="{bottom - 74}" rx="8"/>',
        _text(PARTY_X + 12, 98, "records", weight=600),
        _text(PARTY_X + 12, 118, f"of each of {parties} parties", kind="quiet"),
        _text(PARTY_X + 12, 136, "never leave it", kind="quiet"),
        f'<rect class="box" x="{SERVER_X}" y="74" width="138" height="{bottom - 74}" rx="8"/>',
        _text(SERVER_X + 12, 98, "server", weight=600),
        _text(SERVER_X + 12, 118, "all messages, q", kind="quiet"),
        f'<path class="arrow" d="M188 160 H{SERVER_X} M{SERVER_X + 138} 160 H{SEEN_X - 8}"/>',
    ]


def _barrier(barrier: Barrier, height: int) -> list[str]:
    if barrier == "none":
        return []
    at = BARRIER_PARTY + 8 if barrier == "party" else BARRIER_SUM
    return [
        f'<line class="barrier" x1="{at}" y1="80" x2="{at}" y2="{height - 34}"/>',
        _text(at, 72, "noise", kind="safe", anchor="middle", weight=600),
    ]


def _lane(row: Row, y: int, *, whole: bool) -> list[str]:
    protected = row.unit_epsilon is not None
    found = f"ε = {row.unit_epsilon:.3g}" if protected else "not protected"
    party = ""
    if whole and protected:
        party = (
            "whole party: not protected"
            if row.party_epsilon is None
            else f"whole party: ε = {row.party_epsilon:.3g}"
        )
    return [
        _text(SEEN_X, y, row.attacker),
        _text(SEEN_X, y + 18, _shortened(row.sees), kind="quiet"),
        _text(WIDTH - 24, y, found, kind="safe" if protected else "open", anchor="end", weight=600),
        _text(WIDTH - 24, y + 18, party, kind="quiet", anchor="end"),
    ]


def _shortened(text: str, most: int = 62) -> str:
    return text if len(text) <= most else text[: most - 1].rsplit(" ", 1)[0] + " …"


def _text(
    x: int, y: int, words: str, *, kind: str = "", anchor: str = "start", weight: int = 400
) -> str:
    return (
        f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )
