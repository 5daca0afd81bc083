"""The server's step: pure functions from (state, reply) to (state, log), for all engines.

After `begin` and after every `step`, the requests to send are `open_requests(state)`. A request can
be sent again, because only the first reply to it is applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tacit.arrays import Arrays
from tacit.errors import ConfigError
from tacit.expfam import check_integers
from tacit.privacy.lattice import lattice_sum
from tacit.pvi import divide, multiply, power, product
from tacit.server.combine import RoundSum, Shared
from tacit.server.messages import Asked, Reply
from tacit.server.refuse import refuse, usable
from tacit.server.requests import (
    ask,
    check_released,
    check_reply,
    close_requests,
    is_integer,
    read_released,
)
from tacit.server.solve import concluded, solve_round
from tacit.server.staleness import damped
from tacit.server.state import Log, Rules, ServerState


def begin(rules: Rules, state: ServerState, now: float = 0.0) -> ServerState:
    """Open the requests of the first round."""
    if not rules.family.is_proper(state.q):
        raise ConfigError(
            "the prior is not a proper distribution; give every coordinate a finite sd > 0"
        )
    return open_round(rules, state, now)


def step(
    rules: Rules, state: ServerState, reply: Reply, now: float = 0.0
) -> tuple[ServerState, Log]:
    """Apply one reply. A reply whose id is not open was applied before and is ignored."""
    return step_together(rules, state, [reply], now)


def step_together(
    rules: Rules, state: ServerState, replies: Sequence[Reply], now: float = 0.0
) -> tuple[ServerState, Log]:
    """Apply replies that arrived together. The result is the same as one `step` per reply."""
    fresh: dict[str, Reply] = {}
    log: Log = ()
    for reply in replies:
        if reply.id in fresh or reply.id not in state.open or state.finished:
            log = (*log, {"event": "ignored", "id": reply.id, "party": reply.party})
            continue
        request = state.open[reply.id]
        released = check_released(rules, request, reply)
        reply = check_reply(request, reply)._replace(released=released)
        if rules.lattice is None or not rules.lattice.sums:
            reply = reply._replace(released=read_released(rules, state, request, reply))
        fresh[reply.id] = reply
    if rules.order == "synchronous":
        state, more = _synchronous(rules, close_requests(state, fresh), fresh, now)
        return state, (*log, *more)
    for key, reply in fresh.items():
        if state.finished:
            break
        follow = _sequential
        if rules.order == "asynchronous":
            follow, reply = _asynchronous, damped(rules, state, state.open[key], reply)
        state, more = follow(rules, close_requests(state, {key: reply}), reply, now)
        log = (*log, *more)
    return state, log


def step_sum(
    rules: Rules,
    state: ServerState,
    total: Arrays,
    terms: Sequence[str],
    others: Sequence[Reply] = (),
    now: float = 0.0,
) -> tuple[ServerState, Log]:
    """Apply a round, given only the sum `total` of the replies of the parties `terms`.

    `total` contains the integer arrays of the round's stage. Open requests of other parties are
    closed, and these parties are absent until they return. `others` are replies outside the sum:
    replies of the prior pseudo-party.
    """
    assert rules.quorum is not None
    assert rules.lattice is not None
    asked = {request.party: request for request in state.open.values()}
    if not (set(terms) <= set(rules.parties) and len(set(terms)) >= rules.quorum):
        raise ValueError(
            f"the sum is over the parties {sorted(terms)}; it must be over at least {rules.quorum} "
            "parties of this run"
        )
    stage = rules.stage_at(state.round).name
    total = check_integers(total, rules.lattice.shapes(stage) or {}, what="the sum of a round")
    # The replies only name their parties: only the sum of the released values is known.
    silent = [
        Reply(asked[name].id if name in asked else f"of {name}, which left", name, 0, {}, None)
        for name in rules.parties
        if name in terms
    ]
    others = [reply for reply in (*state.arrived.values(), *others) if reply.party not in terms]
    fresh = {reply.id: reply for reply in (*others, *silent)}
    late = [name for name in asked if name not in {reply.party for reply in fresh.values()}]
    log: Log = tuple(
        {"event": "skipped", "round": state.round + 1, "party": name, "id": asked[name].id}
        for name in late
    )
    state = close_requests(state, fresh, unanswered=[asked[name].id for name in late])
    state = replace(state, absent=state.absent | set(late), arrived={})
    state, more = _apply(rules, state, list(fresh.values()), total)
    return _end_round(rules, state, now, (*log, *more))


def negative_elbo(rules: Rules, state: ServerState) -> float | None:
    """Compute the negative evidence lower bound: the sum of the parties' losses plus KL(q ‖ prior).

    A loss is a party's negative expected log-likelihood. Returns None if a party has reported no
    loss, as in a private run.

    In a synchronous round the value is exact for the q at the start of the round. The first round
    is an exception, because its losses are computed at the model's starting point. In other
    schedules each loss is computed at the q that the party received last. If the prior is a factor
    of a pseudo-party (`Rules.site_prior`), the losses include −E_q[log prior], and the negative
    entropy of q replaces the KL divergence.
    """
    losses = [state.losses.get(party) for party in rules.parties if party not in state.left_out]
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses):
        return None
    q = state.previous if state.previous is not None else state.q
    complexity = -rules.family.entropy(q) if rules.site_prior else rules.family.kl(q, rules.prior)
    # Summed in the order of the plan, as q is: the order of arrival changes nothing.
    return float(sum(known) + complexity)


def open_round(rules: Rules, state: ServerState, now: float) -> ServerState:
    """Open the requests of the next round: to the chosen parties that are not absent or, if these
    are fewer than the quorum, to all chosen parties.
    """
    prior = rules.parties[:1] if rules.site_prior else ()
    others = rules.parties[len(prior) :]
    while not state.finished:
        number = state.round + 1
        chosen = rules.schedule.chosen(others, rules.seed, number)
        chosen = [party for party in chosen if party not in state.not_asked]
        here = [party for party in chosen if party not in state.absent]
        asked = here if len(here) >= (rules.quorum or 1) else chosen
        if asked:
            asked = [*prior, *asked]
            if rules.order == "sequential":
                state = replace(state, waiting=tuple(asked[1:]))
                asked = asked[:1]
            return ask(rules, state, asked, now)
        if state.not_asked.issuperset(others):
            state = replace(state, finished="all parties left")
        elif number >= rules.schedule.rounds:
            state = replace(state, finished="rounds")
        state = replace(state, round=number)
    return concluded(rules, state)


def _synchronous(
    rules: Rules, state: ServerState, fresh: dict[str, Reply], now: float
) -> tuple[ServerState, Log]:
    arrived = state.arrived | {reply.party: reply for reply in fresh.values()}
    state = replace(state, arrived=arrived)
    return go_on(rules, state, now) if fresh else (state, ())


def go_on(rules: Rules, state: ServerState, now: float) -> tuple[ServerState, Log]:
    """If no request is open, take the next step of the schedule: open more requests, apply the
    round, or end the run.
    """
    if state.open or state.finished:
        return state, ()
    if rules.order == "sequential":
        return _next_in_turn(rules, state, now, ())
    if rules.order == "asynchronous":
        return replace(state, finished="rounds"), ()
    others = rules.parties[1:] if rules.site_prior else rules.parties
    answered = [name for name in others if name in state.arrived]
    if rules.quorum is not None and len(answered) < rules.quorum:
        return _below_quorum(rules, state, others, now)
    return _combine_arrived(rules, state, now)


def _combine_arrived(rules: Rules, state: ServerState, now: float) -> tuple[ServerState, Log]:
    """Apply the replies of a complete round, and open the next one."""
    # Summed in the order of the plan, so that the order of arrival changes nothing.
    replies = [state.arrived[name] for name in rules.parties if name in state.arrived]
    state = replace(state, arrived={})
    if rules.solver is not None and replies:
        state, log = solve_round(rules, state, replies)
        return state if state.finished else open_round(rules, state, now), log
    log: Log = ()
    if replies:
        state, log = _apply(rules, state, replies)
    return _end_round(rules, state, now, log)


def _below_quorum(
    rules: Rules, state: ServerState, others: Sequence[str], now: float
) -> tuple[ServerState, Log]:
    """Open requests to the chosen parties that have not replied. If there are none, end the run,
    because a round with fewer replies than the quorum is never applied.
    """
    chosen = rules.schedule.chosen(tuple(others), rules.seed, state.round + 1)
    away = state.arrived.keys() | state.not_asked
    more = [party for party in chosen if party not in away]
    if not more:
        event = {"event": "too few", "round": state.round + 1, "quorum": rules.quorum}
        event |= {"left": sorted(state.left), "left_out": sorted(state.left_out)}
        return replace(state, finished="too few parties", arrived={}), (event,)
    return ask(rules, state, more, now), ()


def _sequential(
    rules: Rules, state: ServerState, reply: Reply, now: float
) -> tuple[ServerState, Log]:
    if rules.solver is not None:
        state, log = replace(state, arrived=state.arrived | {reply.party: reply}), ()
    else:
        state, log = _apply(rules, state, [reply])
    return _next_in_turn(rules, state, now, log)


def _next_in_turn(
    rules: Rules, state: ServerState, now: float, log: Log
) -> tuple[ServerState, Log]:
    if state.waiting:
        following, state = state.waiting[0], replace(state, waiting=state.waiting[1:])
        return ask(rules, state, [following], now), log
    if rules.solver is not None:
        return _combine_arrived(rules, state, now)
    return _end_round(rules, state, now, log)


def _asynchronous(
    rules: Rules, state: ServerState, reply: Reply, now: float
) -> tuple[ServerState, Log]:
    state, log = _apply(rules, state, [reply])
    if state.exchanges % len(rules.parties) == 0:
        state, more = _close_round(rules, state)
        log = (*log, *more)
    if state.finished:
        return replace(state, open={}, issued={}), log
    limit = rules.most_visits
    spent = limit is not None and state.factors[reply.party].visits >= limit
    if spent or reply.party in state.not_asked:
        state, more = go_on(rules, state, now)
        return state, (*log, *more)
    return ask(rules, state, [reply.party], now), log


def _apply(
    rules: Rules, state: ServerState, replies: list[Reply], summed: Arrays | None = None
) -> tuple[ServerState, Log]:
    """Multiply the updates into q and the factors, or refuse all of them if q would be unusable.

    `summed` is the sum of the parties' replies, if the single replies are not known.
    """
    shared = Shared(state.q, state.public, state.memory)
    first = rules.parties[:1] if rules.site_prior else ()
    exact = [r for r in replies if rules.combine is None or r.party in first]
    q = product(state.q, (reply.released for reply in exact))
    changes = {reply.party: reply.released for reply in exact}
    noisy = [r for r in replies if rules.combine is not None and r.party not in first]
    if summed is None:
        noisy = _of_one_stage(rules, state, noisy)
    if rules.combine is not None and noisy:
        if summed is None:
            total = noisy_sum(rules, state, noisy)
        else:
            total = _read_sum(rules, state, noisy, summed)
        before, answers = q, RoundSum(total, len(noisy), state.round + 1)
        shared = rules.combine(shared._replace(q=before), answers)
        q = shared.q
        if rules.own_factors:
            changes |= {r.party: _own_change(rules, state, r) for r in noisy}
        elif rules.keeps_factors:
            # The sum of noisy updates is public; every party gets an equal part of it.
            parties = rules.parties[len(first) :]
            share = power(divide(q, before), 1.0 / len(parties))
            changes |= dict.fromkeys(parties, share)
    if not usable(rules, state, q):
        return refuse(rules, state, replies)
    # Open requests keep the factor with which they were sent; replies of others may change the
    # current factor.
    carried = {
        key: request._replace(factor=state.factors[request.party].natural)
        for key, request in state.open.items()
        if request.party in changes and request.factor is None
    }
    factors = dict(state.factors)
    for party, change in changes.items():
        factor = factors[party]
        natural = multiply(factor.natural, change)
        factors[party] = factor._replace(natural=natural, version=factor.version + 1)
    return replace(
        state,
        q=q,
        q_version=state.q_version + 1,
        open=state.open | carried if carried else state.open,
        factors=factors,
        public=shared.public,
        memory=shared.memory,
        applied=state.applied + len(replies),
        heard=state.heard | {reply.party for reply in replies},
        moved_since=state.moved_since | {reply.party: 0.0 for reply in replies},
        refused_in_a_row=0,
        caution=min(1.0, 2.0 * state.caution),
    ), ()


def noisy_sum(rules: Rules, state: ServerState, replies: list[Reply]) -> Arrays:
    """Add up a round's releases; integers are added exactly, so their order does not matter."""
    if not is_integer(replies[0].released):
        return product(replies[0].released, (reply.released for reply in replies[1:]))
    lattice = rules.lattice
    assert lattice is not None
    alike: dict[tuple[float, float], list[Reply]] = {}
    for reply in replies:
        alike.setdefault(lattice.scale(reply.party, state.round), []).append(reply)
    noise = None
    if lattice.noise is not None:
        shapes = {name: value.shape for name, value in replies[0].released.items()}
        noise = lattice.noise(state.round + 1, shapes)
    sums = []
    for some in alike.values():
        parts = [reply.released for reply in some] + ([] if noise is None else [noise])
        noise = None  # the noise is added to only one of the sums
        total = {name: lattice_sum([part[name] for part in parts]) for name in parts[0]}
        sums.append(_read_sum(rules, state, some, total))
    return product(sums[0], sums[1:])


def _own_change(rules: Rules, state: ServerState, reply: Reply) -> Arrays:
    if is_integer(reply.released):
        return _read_sum(rules, state, [reply], reply.released)
    return reply.released


def _read_sum(rules: Rules, state: ServerState, replies: list[Reply], total: Arrays) -> Arrays:
    """Convert `total`, the sum of the integers in these replies, to the floats that the method
    needs.
    """
    assert rules.lattice is not None
    stage = rules.stage_at(state.round)
    factor = None
    if stage.needs_factor:
        first, *others = (state.factors[reply.party].natural for reply in replies)
        factor = product(first, others)
    damping = rules.schedule.damping_at(state.round + 1) * state.caution
    parts = (replies[0].party, state.round, stage.name)
    asked = Asked(*parts, state.q, factor, damping, state.public)
    return rules.lattice.read(asked, total)


def _of_one_stage(rules: Rules, state: ServerState, replies: list[Reply]) -> list[Reply]:
    """Return the replies to the stage of this round. A late party may have replied to an earlier
    stage.
    """
    if rules.released is None or rules.order != "synchronous":
        return replies
    stage = rules.stage_at(state.round).name
    names = set(rules.released(stage))
    if rules.lattice is not None and rules.lattice.sums:
        names = set(rules.lattice.shapes(stage) or names)
    return [reply for reply in replies if set(reply.released) == names]


def _end_round(rules: Rules, state: ServerState, now: float, log: Log) -> tuple[ServerState, Log]:
    state, more = _close_round(rules, state)
    if not state.finished:
        state = open_round(rules, state, now)
    return state, (*log, *more)


def _close_round(rules: Rules, state: ServerState) -> tuple[ServerState, Log]:
    number = state.round + 1
    assert state.previous is not None
    moved = None
    if rules.report_steps:
        moved = max(float(rules.family.kl(state.q, state.previous)), 0.0)
    event: dict[str, Any] = {
        "event": "round",
        "round": number,
        "exchanges": state.exchanges,
        "negative_elbo": negative_elbo(rules, state),
        "last_change": moved,
        "damping": rules.schedule.damping_at(number) * state.caution,
        "refused": state.refused,
    }
    finished = None
    added = 0.0 if moved is None else math.sqrt(moved)
    since = {party: before + added for party, before in state.moved_since.items()}
    asked = set(rules.parties) - state.not_asked - state.absent
    tolerance = rules.schedule.tolerance or 0.0
    # Many rounds that each move q a little can move it far before a party's next request.
    farthest = max((since.get(party, 0.0) ** 2 for party in asked), default=0.0)
    still = moved is not None and moved < tolerance
    quiet = still and state.refused_in_a_row == 0
    # A party that had no request, or is slow, may still change q.
    if quiet and state.heard.issuperset(asked) and farthest < tolerance:
        finished = "converged"
    elif number >= rules.schedule.rounds:
        finished = "rounds"
    total, totalled = state.total, state.totalled
    if number > rules.schedule.rounds - rules.average_last:
        total = state.q if total is None else multiply(total, state.q)
        totalled += 1
    return replace(
        state,
        round=number,
        previous=state.q,
        total=total,
        totalled=totalled,
        heard=state.heard if quiet else frozenset(),
        moved_since=since,
        finished=finished,
    ), (event,)
