"""The guarantee of a plan against each kind of attacker (MEng §3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from tacit.plan.calibrate import Settled
from tacit.plan.plan import Plan
from tacit.privacy.accounting import epsilon
from tacit.privacy.accounting.groups import group_epsilon, group_guarantee
from tacit.privacy.events import GaussianEvent
from tacit.privacy.secure_sums import Thresholds

MAX_SHOWN_EPSILON = 50.0
GROUP_SIZES = (2, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of attacker: what it sees, and ε against it, for one unit and for all units of a
    party.

    An ε is None if the attacker can learn the records, or if ε is too large to be useful.
    """

    attacker: str
    sees: str
    unit_epsilon: float | None
    party_epsilon: float | None
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The guarantee against each kind of attacker, and the guarantee for groups of units."""

    party: str
    unit: str
    delta: float
    adjacency: str
    rows: tuple[Row, ...]
    groups: tuple[tuple[int, float | None, tuple[float, float]], ...]
    """For groups of t units: t, ε of the releases at δ, and (ε, δ) by MEng eq. 3.8."""


def explain(plan: Plan, *, colluding: int | None = None, central: bool = False) -> Explanation:
    """Return the guarantee against each kind of attacker, for the party with the largest ε.

    `colluding` is the number of other parties that collude. By default it is all other parties or,
    for secure sums, the agreed number. `central` means that the server has all records. The noise
    is assumed to be secret; if its seed is known, there is no protection.
    """
    if plan.privacy is None:
        return _without(plan)
    party, settled = max(plan.settled.items(), key=lambda item: item[1].guarantee.epsilon)
    secure = plan.thresholds
    others = settled.shares - 1 if settled.shares > 1 else len(plan.parties) - 1
    k = min(max(1, others if colluding is None else colluding), max(others, 1))
    watchers = [
        ("reads the final model", "the final posterior", 1.0, ""),
        ("reads the model of every round", "the posterior after each round", 1.0, ""),
        *_on_the_way(settled),
        *_insiders(settled, len(plan.parties), k),
        _server(settled, central=central),
    ]
    if plan.privacy.aggregation == "server" and not central:
        watchers[2:] = _around_exact(watchers[3:-1])
    if secure is not None and not central:
        watchers[2:] = _around_sums(secure, secure.colluding if colluding is None else colluding)
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
        return [("eavesdrops", sees, 1.0, "each message is private")]
    share = math.sqrt(1.0 / settled.shares)
    return [
        ("eavesdrops", sees, share, "a message contains a share of the noise: encrypt the channel")
    ]


def _around_exact(
    insiders: list[tuple[str, str, float, str]],
) -> list[tuple[str, str, float, str]]:
    """Return the attackers on a run in which parties send exact messages and the server adds the
    noise.
    """
    sees = "every message of every party"
    return [
        ("eavesdrops", f"{sees}, if the channel is not encrypted", 0.0,
         "messages are exact: encrypt the channel"),
        *((who, what, 1.0, "the server adds the noise") for who, what, _, _ in insiders),
        ("the server", f"{sees} and every factor", 0.0,
         "messages are exact: the server must be trusted to add the noise"),
    ]  # fmt: skip


def _around_sums(secure: Thresholds, colluding: int) -> list[tuple[str, str, float, str]]:
    """Return the attackers on secure sums, each with the share of the noise that this attacker does
    not know.
    """

    # There are n parties, the threshold is t, the quorum is q, and c parties may collude. Together
    # with up to c parties, the server sees sums that contain the unknown noise of at least q − c
    # parties. With k > c parties it is the noise of at least q − k parties. If 2t ≤ n + k, the
    # server and the k parties can even unmask two different sums of one round. They can then
    # compute single messages, which contain the noise of one party.
    def left(count: int) -> tuple[float, str]:
        if count <= secure.colluding:
            return 1.0, "they can subtract only their own noise"
        if 2 * secure.threshold <= secure.parties + count:
            share = math.sqrt(1.0 / secure.shares)
            return share, f"more than the {secure.colluding} agreed: they can read single messages"
        noise = max(0.0, secure.quorum - count) / secure.shares
        return math.sqrt(noise), f"more than the {secure.colluding} agreed: less noise is left"

    sums = "sums over the parties, and their own messages"
    most = min(max(1, colluding), secure.parties - 1)
    counts = [most] if most > secure.colluding else [most, secure.colluding + 1]
    rows = [
        ("eavesdrops", "masked messages, if the channel is not encrypted", 1.0,
         "the same messages as the server"),
        ("one curious party", "the posterior of every round and its own messages", *left(1)),
        ("the server", "masked messages and their sums", 1.0, "no single message"),
    ]  # fmt: skip
    for count in counts:
        with_them = "a party" if count == 1 else f"{count} parties"
        rows.append((f"the server with {with_them}", sums, *left(count)))
    return rows


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
        found.append((who, "the posterior of every round, and their own messages", share, remark))
    return found


def _server(settled: Settled, *, central: bool) -> tuple[str, str, float, str]:
    if central:
        return ("the server", "all the records", 0.0, "the server must be trusted")
    if settled.shares == 1:
        return ("the server", "every message and every factor", 1.0, "")
    share = math.sqrt(1.0 / settled.shares)
    return (
        "the server", "every message and every factor", share,
        "the server must be trusted to reveal only the sum",
    )  # fmt: skip


def _with_noise(settled: Settled, share: float) -> list[GaussianEvent]:
    """Return the events with their noise sd multiplied by `share`; the step of the lattice is
    unchanged.
    """
    found = []
    for event in settled.all_events:
        lattice = event.lattice
        if lattice is not None:
            parties = max(1, round(share**2 * lattice.parties))
            lattice = msgspec.structs.replace(lattice, parties=parties)
        noise_sd = event.noise_sd * share
        found.append(msgspec.structs.replace(event, noise_sd=noise_sd, lattice=lattice))
    return found


def _whole_party(plan: Plan, settled: Settled, events: list[GaussianEvent]) -> float | None:
    """Return ε for replacing all units of the party at once; None if this ε is too large to be
    useful.
    """
    assert plan.privacy is not None
    size = min(settled.units, getattr(plan.method, "shards", None) or settled.units)
    return _bounded(group_epsilon(events, settled.guarantee.delta, plan.privacy.adjacency, size))


def _bounded(value: float | None) -> float | None:
    return None if value is None or not value < MAX_SHOWN_EPSILON else value


def _groups(
    plan: Plan, settled: Settled
) -> tuple[tuple[int, float | None, tuple[float, float]], ...]:
    assert plan.privacy is not None
    found = []
    for size in GROUP_SIZES:
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
