"""Attendance: skip late parties, readmit them, and remove parties that leave.

As in `tacit.server.step`, all functions are pure: they take a state and return a new state, most of
them with a log. They preserve the relation q = prior × product of all factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tacit.server.refuse import divide_out, exclude
from tacit.server.requests import ask, close_requests
from tacit.server.state import Factor, Log, Rules, ServerState
from tacit.server.step import go_on, open_round


def may_skip(rules: Rules, state: ServerState, late: Sequence[str]) -> bool:
    """True if a round can continue without these parties, because the others reach the quorum."""
    if rules.quorum is None or not late:
        return False
    others = set(_others(rules))
    if rules.order == "synchronous":
        return len(others & set(state.arrived)) >= rules.quorum
    if rules.order == "sequential":
        return len(others - state.absent - state.not_asked - set(late)) >= rules.quorum
    return False


def skip(
    rules: Rules, state: ServerState, late: Sequence[str], now: float = 0.0
) -> tuple[ServerState, Log]:
    """Continue without late parties.

    Their requests are closed, so late replies are ignored. They get no requests until `welcome`.
    """
    log = tuple(
        {"event": "skipped", "round": state.round + 1, "party": request.party, "id": request.id}
        for request in state.open.values()
        if request.party in late
    )
    state = _without_requests(state, late)
    state, more = go_on(rules, replace(state, absent=state.absent | set(late)), now)
    return state, (*log, *more)


def welcome(rules: Rules, state: ServerState, party: str, now: float = 0.0) -> ServerState:
    """Send requests to a skipped party again: from the next round on, or at once in an asynchronous
    run.
    """
    if party in state.absent:
        state = replace(state, absent=state.absent - {party})
    asked = any(request.party == party for request in state.open.values())
    idle = asked or state.finished or party in state.not_asked
    if rules.order != "asynchronous" or idle:
        return state
    if rules.most_visits is not None and state.factors[party].visits >= rules.most_visits:
        return state
    return ask(rules, state, [party], now)


def leave(
    rules: Rules, state: ServerState, party: str, now: float = 0.0
) -> tuple[ServerState, Log]:
    """Remove a party permanently. Its factor is divided out of q if `Rules.divide_out` is true and
    updates are exact; otherwise it stays in q.
    """
    if party in state.left or state.finished:
        return state, ()
    state = replace(_without_requests(state, [party]), left=state.left | {party})
    state = replace(state, waiting=tuple(name for name in state.waiting if name != party))
    kept = "kept"
    if rules.divide_out and rules.combine is None:
        state, kept = divide_out(rules, state, party)
    log: Log = ({"event": "left", "round": state.round + 1, "party": party, "factor": kept},)
    state, more = _go_on_without(rules, state, now)
    return state, (*log, *more)


def leave_out(
    rules: Rules, state: ServerState, party: str, reason: str, now: float = 0.0
) -> tuple[ServerState, Log]:
    """Exclude a party whose update breaks a bound; it gets no requests until `readmit`.

    The factor of the party is divided out of q, because it may be wrong. If the server has only the
    sums of the parties' noisy updates, the party's earlier contributions cannot be removed from q,
    and the log says so.
    """
    if party in state.not_asked or state.finished:
        return state, ()
    state, event = exclude(rules, state, party, reason)
    state, more = _go_on_without(rules, state, now)
    return state, (event, *more)


def readmit(
    rules: Rules, state: ServerState, party: str, now: float = 0.0
) -> tuple[ServerState, Log]:
    """Send requests to an excluded party again: from the next round on, or at once in an
    asynchronous run.
    """
    if party not in state.left_out or state.finished:
        return state, ()
    rest = {name: found for name, found in state.left_out.items() if name != party}
    state = welcome(rules, replace(state, left_out=rest), party, now)
    return state, ({"event": "readmitted", "round": state.round + 1, "party": party},)


def admit(
    rules: Rules, state: ServerState, parties: Sequence[str], now: float = 0.0
) -> tuple[ServerState, Log]:
    """Add new parties, whose factors are 1. `rules` must already contain them.

    They get requests from the next round on, or at once in an asynchronous run. A solver can only
    compare sums over the same parties, so it starts again with all parties.
    """
    if state.finished:
        return state, ()
    zero = rules.family.zero()
    state = replace(state, factors=state.factors | {party: Factor(zero) for party in parties})
    log: Log = ({"event": "admitted", "round": state.round + 1, "parties": list(parties)},)
    if rules.order == "asynchronous":
        return ask(rules, state, parties, now), log
    if rules.solver is None:
        return state, log
    state = close_requests(state, {}, unanswered=list(state.open))
    state = replace(
        state,
        arrived={},
        waiting=(),
        public=rules.first_public,
        memory=None,
        stage=rules.stage_at(0).name,
    )
    return open_round(rules, state, now), log


def widen(
    rules: Rules, state: ServerState, arrived: Sequence[str], now: float = 0.0
) -> tuple[ServerState, Log]:
    """Open requests to further parties if too few parties can contribute to a secure sum.

    A party can contribute if it has an open request or is in `arrived`. If these parties are fewer
    than the quorum, all other available parties get requests. If none is available, the run ends.
    """
    asked = {request.party for request in state.open.values()} | set(arrived)
    others = set(_others(rules))
    if rules.quorum is None or len(asked & others) >= rules.quorum or state.finished:
        return state, ()
    more = [party for party in _others(rules) if party not in asked | state.not_asked]
    if more:
        return ask(rules, replace(state, absent=state.absent - set(more)), more, now), ()
    return too_few(rules, state)


def too_few(
    rules: Rules, state: ServerState, unmasking: dict[str, int] | None = None
) -> tuple[ServerState, Log]:
    """End the run because too few parties are left. The result is the posterior after the last
    round.

    If a secure sum cannot be unmasked, `unmasking` contains the number of its parties that are left
    and the number that are needed. Both are written to the log.
    """
    event: dict[str, Any] = {"event": "too few", "round": state.round + 1, "quorum": rules.quorum}
    event |= {"left": sorted(state.left), "left_out": sorted(state.left_out)}
    event |= unmasking or {}
    return replace(state, finished="too few parties", open={}, issued={}), (event,)


def _go_on_without(rules: Rules, state: ServerState, now: float) -> tuple[ServerState, Log]:
    if rules.order == "asynchronous" and state.not_asked.issuperset(_others(rules)):
        # Also if only the prior pseudo-party is left.
        state = replace(state, open={}, issued={}, finished="all parties left")
    return go_on(rules, state, now)


def _others(rules: Rules) -> tuple[str, ...]:
    """Return all parties except the prior pseudo-party."""
    return rules.parties[1:] if rules.site_prior else rules.parties


def _without_requests(state: ServerState, parties: Sequence[str]) -> ServerState:
    """Close the open requests of these parties."""
    keys = [key for key, request in state.open.items() if request.party in parties]
    return close_requests(state, {}, unanswered=keys)
