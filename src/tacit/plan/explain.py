"""Who is protected from whom: the attackers of MEng §3.1 against one plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan
from tacit.privacy.accounting import epsilon
from tacit.privacy.accounting.groups import group_epsilon, group_guarantee
from tacit.privacy.events import GaussianEvent

HOPELESS = 50.0
GROUPS = (2, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attacker: what it sees, and ε against it for one unit and for a whole party."""

    attacker: str
    sees: str
    unit_epsilon: float | None
    party_epsilon: float | None
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The table, and group privacy of t units for whoever sees what everybody may see."""

    party: str
    unit: str
    delta: float
    adjacency: str
    rows: tuple[Row, ...]
    groups: tuple[tuple[int, float | None, tuple[float, float]], ...]
    """(t, ε at δ from the releases themselves, (ε, δ) by MEng eq. 3.8)."""


def explain(plan: Plan, *, colluding: int | None = None, central: bool = False) -> Explanation:
    """For the party whose guarantee is the weakest; `colluding` others add up what they know.

    The noise is taken to be secret. Whoever knows its seed is protected from nobody.
    """
    if plan.privacy is None:
        return _without(plan)
    party, settled = max(plan.settled.items(), key=lambda item: item[1].guarantee.epsilon)
    others = settled.shares - 1 if settled.shares > 1 else len(plan.parties) - 1
    k = min(max(1, others if colluding is None else colluding), max(others, 1))
    watchers = [
        ("reads the final model", "the posterior that the run ends with", 1.0, ""),
        ("reads the model of every round", "q after each round", 1.0, ""),
        *_on_the_way(settled),
        *_insiders(settled, len(plan.parties), k),
        _server(settled, central=central),
    ]
    rows = []
    for attacker, sees, share, remark in watchers:
        if share == 0.0:
            rows.append(
                Row(
                    attacker=attacker,
                    sees=sees,
                    unit_epsilon=None,
                    party_epsilon=None,
                    remark=remark,
                )
            )
            continue
        events = _with_noise(settled, share)
        rows.append(
            Row(
                attacker=attacker,
                sees=sees,
                unit_epsilon=_bounded(
                    epsilon(events, settled.guarantee.delta, plan.privacy.adjacency)
                ),
                party_epsilon=_whole_party(plan, settled, events),
                remark=remark,
            )
        )
    return Explanation(
        party=party,
        unit=plan.privacy.unit,
        delta=settled.guarantee.delta,
        adjacency=plan.privacy.adjacency,
        rows=tuple(rows),
        groups=_groups(plan, settled),
    )


def _on_the_way(settled: Settled) -> list[tuple[str, str, float, str]]:
    sees = "every message of every party, if the channel is not encrypted"
    if settled.shares == 1:
        return [("eavesdrops", sees, 1.0, "messages are private by themselves")]
    share = math.sqrt(1.0 / settled.shares)
    return [
        ("eavesdrops", sees, share, "a message carries a share of the noise: encrypt the channel")
    ]


def _insiders(settled: Settled, parties: int, k: int) -> list[tuple[str, str, float, str]]:
    if parties == 1:
        return []
    found = []
    for count, who in ((1, "one curious party"), (k, f"{k} colluding parties")):
        if count == k == 1 and found:
            continue
        share, remark = 1.0, ""
        if settled.shares > 1:
            share = math.sqrt((settled.shares - count) / settled.shares)
            remark = "they can subtract the noise that they added themselves"
        found.append((who, "q of every round and what they sent themselves", share, remark))
    return found


def _server(settled: Settled, *, central: bool) -> tuple[str, str, float, str]:
    if central:
        return ("the server", "all the records", 0.0, "it holds them: it has to be trusted")
    if settled.shares == 1:
        return ("the server", "every message and every factor", 1.0, "")
    share = math.sqrt(1.0 / settled.shares)
    return (
        "the server", "every message and every factor", share,
        "it has to be trusted to show nobody anything but the sum",
    )  # fmt: skip


def _with_noise(settled: Settled, share: float) -> list[GaussianEvent]:
    return [
        msgspec.structs.replace(event, noise_sd=event.noise_sd * share)
        for event in settled.all_events
    ]


def _whole_party(plan: Plan, settled: Settled, events: list[GaussianEvent]) -> float | None:
    """All units of the party exchanged at once."""
    assert plan.privacy is not None
    size = min(settled.units, getattr(plan.method, "shards", None) or settled.units)
    return _bounded(group_epsilon(events, settled.guarantee.delta, plan.privacy.adjacency, size))


def _bounded(value: float | None) -> float | None:
    """None for a number that protects nobody."""
    return None if value is None or not value < HOPELESS else value


def _groups(
    plan: Plan, settled: Settled
) -> tuple[tuple[int, float | None, tuple[float, float]], ...]:
    assert plan.privacy is not None
    found = []
    for size in GROUPS:
        if plan.privacy.unit == "party" or size > settled.units:
            continue
        reach = min(size, getattr(plan.method, "shards", None) or size)
        direct = group_epsilon(
            settled.all_events, settled.guarantee.delta, plan.privacy.adjacency, reach
        )
        general = group_guarantee(settled.guarantee.epsilon, settled.guarantee.delta, size)
        found.append((size, direct, general))
    return tuple(found)


def _without(plan: Plan) -> Explanation:
    names = (
        "reads the final model", "reads the model of every round", "eavesdrops",
        "one curious party", "colluding parties", "the server",
    )  # fmt: skip
    rows = [
        Row(
            attacker=name,
            sees="exact numbers",
            unit_epsilon=None,
            party_epsilon=None,
            remark="privacy = 'none'",
        )
        for name in names
    ]
    return Explanation(
        party=next(iter(plan.parties)), unit="record", delta=0.0, adjacency="replace-one",
        rows=tuple(rows), groups=(),
    )  # fmt: skip
