"""Refuse updates that would make q unusable, and exclude parties that cause them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.arrays import Natural
from tacit.errors import ConfigError
from tacit.expfam import Family
from tacit.pvi import divide, multiply, product
from tacit.server.messages import Reply
from tacit.server.requests import close_requests
from tacit.server.state import Log, Rules, ServerState

MAX_REFUSED_IN_A_ROW = 20
FARTHEST = 1e12
"""Largest absolute value of an accepted q's location, and largest scale."""


def is_plausible(family: Family, q: Natural) -> bool:
    """True if the location and the scale of q are small enough to result from records.

    Larger values would come from a faulty or malicious party and could overflow later.
    """
    with np.errstate(all="ignore"):
        location, scale = family.location_scale(q)
        return bool(np.all(np.abs(location) <= FARTHEST) and np.all(scale <= FARTHEST))


def usable(rules: Rules, state: ServerState, q: Natural) -> bool:
    """True if q is proper and plausible, and its distance from the last q is finite."""
    if not rules.family.is_proper(q) or not is_plausible(rules.family, q):
        return False
    if not rules.report_steps:
        return True
    try:
        return math.isfinite(rules.family.kl(q, state.previous if state.previous else state.q))
    except (ArithmeticError, ValueError):  # e.g. a matrix without a Cholesky factor
        return False


def refuse(rules: Rules, state: ServerState, replies: list[Reply]) -> tuple[ServerState, Log]:
    """Refuse the updates of these replies: q and the factors stay unchanged.

    The damping is halved for exact updates, but not for noisy ones. If the rules allow it
    (`Rules.leave_out`), a party whose exact update is proper but implausible is excluded at once.
    After more than `MAX_REFUSED_IN_A_ROW` refusals of exact updates, the parties that cause them
    are excluded, or an error is raised. Returns the new state and its log.
    """
    in_a_row = state.refused_in_a_row + 1
    culprits: list[str] = []
    if rules.combine is None:  # of noisy updates only the sum is public
        culprits = _culprits(rules, state, replies)
        absurd = [
            reply.party
            for reply in replies
            if reply.party in culprits
            and _is_absurd(rules.family, multiply(state.q, reply.released))
        ]
        if rules.leave_out and absurd:
            return _without_culprits(rules, state, absurd, in_a_row)
    if in_a_row > MAX_REFUSED_IN_A_ROW and rules.combine is None:
        if rules.leave_out and culprits:
            return _without_culprits(rules, state, culprits, in_a_row)
        raise _cannot_go_on(rules, state, culprits, in_a_row)
    party = replies[0].party if len(replies) == 1 else None
    event = {
        "event": "refused",
        "round": state.round + 1,
        "party": party,
        "reason": "q would not be a proper distribution; rolled back"
        + ("" if rules.combine else ", damping halved"),
    }
    if rules.combine is None:
        event["improper_alone"] = culprits
    return replace(
        state,
        refused=state.refused + len(replies),
        refused_in_a_row=in_a_row,
        # If noise made q improper, the next draw may not: the step was not too long.
        caution=state.caution if rules.combine else 0.5 * state.caution,
    ), (event,)


def _is_absurd(family: Family, q: Natural) -> bool:
    return family.is_proper(q) and not is_plausible(family, q)


def _culprits(rules: Rules, state: ServerState, replies: list[Reply]) -> list[str]:
    """Return the parties whose update alone makes q unusable. If there are none, return each party
    for which q is usable if only its update is left out.
    """

    def usable_with(kept: Sequence[Reply]) -> bool:
        return usable(rules, state, product(state.q, (reply.released for reply in kept)))

    alone = [reply.party for reply in replies if not usable_with([reply])]
    if alone or len(replies) < 2:
        return alone
    return [
        reply.party
        for reply in replies
        if usable_with([other for other in replies if other is not reply])
    ]


def _cannot_go_on(
    rules: Rules, state: ServerState, culprits: Sequence[str], in_a_row: int
) -> ConfigError:
    if culprits:
        names = ", ".join(repr(name) for name in culprits)
        return ConfigError(
            f"{in_a_row} updates in a row would have made q improper or implausible, because of "
            f"{names}; check the records and software of that party, or run without it"
        )
    return ConfigError(
        f"{in_a_row} updates in a row would have made q improper; lower schedule.damping "
        f"(now {rules.schedule.damping_at(state.round + 1)}) or use schedule.kind = "
        "'sequential'"
    )


def _without_culprits(
    rules: Rules, state: ServerState, culprits: Sequence[str], in_a_row: int
) -> tuple[ServerState, Log]:
    """Exclude parties whose updates made q improper in spite of damping, or made q implausible."""
    log: Log = ()
    for party in culprits:
        reason = (
            f"{in_a_row} updates in a row were refused, because q would have become improper or "
            "implausible, most recently because of this party"
        )
        if in_a_row == 1:
            reason = f"with its update, the location or scale of q would exceed {FARTHEST:g}"
        state, event = exclude(rules, state, party, reason)
        log = (*log, event)
    return replace(state, refused=state.refused + len(culprits), refused_in_a_row=0), log


def exclude(
    rules: Rules, state: ServerState, party: str, reason: str
) -> tuple[ServerState, dict[str, Any]]:
    """Exclude a party from now on, and divide its factor out of q if the server has the factor."""
    keys = [key for key, request in state.open.items() if request.party == party]
    state = close_requests(state, {}, unanswered=keys)
    state, fate = divide_out(rules, state, party)
    found = {"round": state.round + 1, "reason": reason, "factor": fate}
    state = replace(
        state,
        left_out=state.left_out | {party: found},
        absent=state.absent - {party},
        arrived={name: reply for name, reply in state.arrived.items() if name != party},
        waiting=tuple(name for name in state.waiting if name != party),
    )
    return state, {"event": "left out", "party": party, **found}


def divide_out(rules: Rules, state: ServerState, party: str) -> tuple[ServerState, str]:
    """Divide a party's factor out of q, if the factor is known and q stays proper.

    Returns the new state, and a text for the log that says whether the factor was divided out.
    """
    factor = state.factors[party]
    if rules.solver is not None:
        nothing = factor._replace(natural=rules.family.zero(), version=factor.version + 1)
        factors = state.factors | {party: nothing}
        return replace(state, factors=factors), "not included in later sums"
    if rules.combine is not None:
        if state.q_version == 0:
            return state, "nothing yet"
        return state, "kept: only the noisy sum of all parties is known"
    q = divide(state.q, factor.natural)
    if not rules.family.is_proper(q):
        return state, "kept: q would not be proper without it"
    nothing = factor._replace(natural=rules.family.zero(), version=factor.version + 1)
    # A reply that has arrived was computed with the factor that is removed.
    arrived = {name: reply for name, reply in state.arrived.items() if name != party}
    following = replace(
        state,
        q=q,
        q_version=state.q_version + 1,
        factors=state.factors | {party: nothing},
        arrived=arrived,
    )
    return following, "divided out"
