"""The server's step: (state, reply) -> (state, log). Pure, engine-free, NumPy only.

After `begin` and after every `step` the requests to send are `open_requests(state)`; sending one
again is harmless, because an id is answered once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.errors import ConfigError, PeerError
from tacit.expfam import Family, check_arrays, check_integers
from tacit.privacy.lattice import lattice_sum
from tacit.pvi import divide, multiply, power, product
from tacit.server.combine import RoundSum, Shared
from tacit.server.messages import Asked, Reply
from tacit.server.solve import concluded, solve_round
from tacit.server.state import Log, Open, Published, Rules, ServerState

MAX_REFUSED_IN_A_ROW = 20
FARTHEST = 1e12
"""How far from 0, and how wide, a q may be that somebody goes on from."""


def begin(rules: Rules, state: ServerState, now: float = 0.0) -> ServerState:
    """Ask the first parties."""
    if not rules.family.is_proper(state.q):
        raise ConfigError(
            "the prior is not a proper distribution; give every coordinate a finite sd > 0"
        )
    return _open_round(rules, state, now)


def step(
    rules: Rules, state: ServerState, reply: Reply, now: float = 0.0
) -> tuple[ServerState, Log]:
    """Take one reply. One whose id is not open is ignored: it was answered before."""
    return step_together(rules, state, [reply], now)


def step_together(
    rules: Rules, state: ServerState, replies: Sequence[Reply], now: float = 0.0
) -> tuple[ServerState, Log]:
    """Take replies that arrived together: the state after one `step` each, at the cost of one."""
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
        follow = _sequential if rules.order == "sequential" else _asynchronous
        state, more = follow(rules, close_requests(state, {key: reply}), reply, now)
        log = (*log, *more)
    return state, log


def negative_elbo(rules: Rules, state: ServerState) -> float | None:
    """Σ losses + KL(q ‖ p) at the q that the round started from, once everybody has reported.

    None where a party keeps its loss to itself, as a private one does.

    Exact for a synchronous round after the first (in the first, losses are at the model's starting
    point); otherwise each loss is at the q its party last saw. With a site prior the prior's own
    loss −E_q[log p] is among the losses and −H(q) takes KL's place.
    """
    losses = [state.losses.get(party) for party in rules.parties if party not in state.left_out]
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses):
        return None
    q = state.previous if state.previous is not None else state.q
    complexity = -rules.family.entropy(q) if rules.site_prior else rules.family.kl(q, rules.prior)
    # In the run's order, as q is: the order of arrival changes nothing.
    return float(sum(known) + complexity)


def _open_round(rules: Rules, state: ServerState, now: float) -> ServerState:
    """Ask the next round's parties: those that are here, or all of them where too few are."""
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
            state = replace(state, finished="everybody left")
        elif number >= rules.schedule.rounds:
            state = replace(state, finished="rounds")
        state = replace(state, round=number)
    return concluded(rules, state)


def ask(rules: Rules, state: ServerState, parties: Sequence[str], now: float) -> ServerState:
    """One new request for each of these parties."""
    damping = rules.schedule.damping_at(state.round + 1) * state.caution
    asked = {
        f"r{number}": Open(
            id=f"r{number}",
            party=party,
            visit=state.factors[party].visits,
            version=state.factors[party].version,
            posterior=state.q_version,
            damping=damping,
            initial=state.applied == 0,
            issued_at=now,
            stage=rules.stages[state.stage]
            if state.stage is not None
            else rules.stage_at(state.factors[party].visits),
        )
        for number, party in enumerate(parties, start=state.requests)
    }
    visited = {
        party: factor._replace(visits=factor.visits + 1)
        for party in parties
        for factor in (state.factors[party],)
    }
    return replace(
        state,
        open=state.open | asked,
        issued=state.issued | {state.q_version: Published(state.q, state.public)},
        factors=state.factors | visited,
        requests=state.requests + len(asked),
    )


def check_reply(request: Open, reply: Reply) -> Reply:
    """A reply that is for this request and this factor, or an error that names what is wrong."""
    if request.party != reply.party or request.version != reply.version:
        raise PeerError(
            f"request {reply.id} was for party {request.party!r}, factor version "
            f"{request.version}, but {reply.party!r} answered for version {reply.version}; "
            "the party must rejoin and take the server's factor"
        )
    if reply.loss is not None and not math.isfinite(reply.loss):
        raise PeerError(
            f"update of party {reply.party!r}: loss = {reply.loss} is not finite; "
            "the party must check its records"
        )
    return reply


def read_released(rules: Rules, state: ServerState, request: Open, reply: Reply) -> Arrays:
    """What a reply released, as floats: integers times the public step of the agreed plan."""
    lattice = rules.lattice
    if lattice is None or not is_integer(reply.released):
        return reply.released
    factor = request.factor
    if factor is None and request.stage.needs_factor:
        factor = state.factors[request.party].natural
    sent = state.issued[request.posterior]
    parts = (request.party, request.visit, request.stage.name)
    asked = Asked(*parts, sent.q, factor, request.damping, sent.public)
    return lattice.read(asked, reply.released)


def is_integer(released: Arrays) -> bool:
    """Whether these are integers of a lattice."""
    return bool(released) and all(value.dtype == np.int64 for value in released.values())


def check_released(rules: Rules, request: Open, reply: Reply) -> Arrays:
    """Arrays with the names, shapes and type of the request's stage, or an error."""
    what = f"update of party {reply.party!r}"
    prior = rules.site_prior and reply.party == rules.parties[0]
    if rules.released is None or prior:
        return rules.family.check(reply.released, what=what)
    integers = integer_shapes(rules, request.stage.name)
    if integers is not None:
        return check_integers(reply.released, integers, what=what)
    return check_arrays(reply.released, rules.released(request.stage.name), what=what)


def integer_shapes(rules: Rules, stage: str) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes of the integers of a reply to that stage; None: floats are sent."""
    return None if rules.lattice is None else rules.lattice.shapes(stage)


def close_requests(
    state: ServerState, replies: dict[str, Reply], *, unanswered: Sequence[str] = ()
) -> ServerState:
    """Requests that are answered, or never will be, and the posteriors that only they carried."""
    closed = {*replies, *unanswered}
    still_open = {key: value for key, value in state.open.items() if key not in closed}
    needed = {request.posterior for request in still_open.values()}
    return replace(
        state,
        open=still_open,
        issued={number: q for number, q in state.issued.items() if number in needed},
        losses=state.losses | {reply.party: reply.loss for reply in replies.values()},
        exchanges=state.exchanges + len(replies),
    )


def _synchronous(
    rules: Rules, state: ServerState, fresh: dict[str, Reply], now: float
) -> tuple[ServerState, Log]:
    arrived = state.arrived | {reply.party: reply for reply in fresh.values()}
    state = replace(state, arrived=arrived)
    return go_on(rules, state, now) if fresh else (state, ())


def go_on(rules: Rules, state: ServerState, now: float) -> tuple[ServerState, Log]:
    """What follows once nobody is waited for."""
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
    # Summed in the run's order, whoever was first: the order of arrival changes nothing.
    replies = [state.arrived[name] for name in rules.parties if name in state.arrived]
    state = replace(state, arrived={})
    if rules.solver is not None and replies:
        state, log = solve_round(rules, state, replies)
        return state if state.finished else _open_round(rules, state, now), log
    log: Log = ()
    if replies:
        state, log = _apply(rules, state, replies)
    return _end_round(rules, state, now, log)


def _below_quorum(
    rules: Rules, state: ServerState, others: Sequence[str], now: float
) -> tuple[ServerState, Log]:
    """Somebody left. Ask those passed over before; a round below the quorum is never applied."""
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


def _apply(rules: Rules, state: ServerState, replies: list[Reply]) -> tuple[ServerState, Log]:
    """Put the updates into q and their factors, or refuse them all if q would be improper."""
    shared = Shared(state.q, state.public, state.memory)
    first = rules.parties[:1] if rules.site_prior else ()
    exact = [r for r in replies if rules.combine is None or r.party in first]
    q = product(state.q, (reply.released for reply in exact))
    changes = {reply.party: reply.released for reply in exact}
    noisy = [r for r in replies if rules.combine is not None and r.party not in first]
    noisy = _of_one_stage(rules, state, noisy)
    if rules.combine is not None and noisy:
        total = _noisy_sum(rules, state, noisy)
        before, answers = q, RoundSum(total, len(noisy), state.round + 1)
        shared = rules.combine(shared._replace(q=before), answers)
        q = shared.q
        if rules.own_factors:
            changes |= {r.party: _read_sum(rules, state, [r], r.released) for r in noisy}
        elif rules.keeps_factors:
            # Every party is given an equal part of a sum of noisy updates, which is public.
            parties = rules.parties[len(first) :]
            share = power(divide(q, before), 1.0 / len(parties))
            changes |= dict.fromkeys(parties, share)
    if not _usable(rules, state, q):
        return _refuse(rules, state, replies)
    # What was asked stays as it was asked: the answers of others may change a party's factor.
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


def _noisy_sum(rules: Rules, state: ServerState, replies: list[Reply]) -> Arrays:
    """The sum of a round's releases; integers are added up as such, whatever their order."""
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
        noise = None  # once, whatever the number of scales
        total = {name: lattice_sum([part[name] for part in parts]) for name in parts[0]}
        sums.append(_read_sum(rules, state, some, total))
    return product(sums[0], sums[1:])


def _read_sum(rules: Rules, state: ServerState, replies: list[Reply], total: Arrays) -> Arrays:
    """A sum of integers of these parties as the arrays that the server's half takes."""
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
    """The replies to the stage of this round: a late party may have answered an earlier one."""
    if rules.released is None or rules.order != "synchronous":
        return replies
    stage = rules.stage_at(state.round).name
    names = set(rules.released(stage))
    if rules.lattice is not None and rules.lattice.sums:
        names = set(rules.lattice.shapes(stage) or names)
    return [reply for reply in replies if set(reply.released) == names]


def is_plausible(family: Family, q: Natural) -> bool:
    """Whether location and scale of q are numbers that data could have led to.

    Others come from a peer that wants to see what they do to somebody's arithmetic.
    """
    with np.errstate(all="ignore"):
        location, scale = family.location_scale(q)
        return bool(np.all(np.abs(location) <= FARTHEST) and np.all(scale <= FARTHEST))


def _usable(rules: Rules, state: ServerState, q: Natural) -> bool:
    """Proper, and not so strange that nobody could go on from it."""
    if not rules.family.is_proper(q) or not is_plausible(rules.family, q):
        return False
    if not rules.report_steps:
        return True
    try:
        return math.isfinite(rules.family.kl(q, state.previous if state.previous else state.q))
    except (ArithmeticError, ValueError):  # a matrix that has no Cholesky factor, say
        return False


def _refuse(rules: Rules, state: ServerState, replies: list[Reply]) -> tuple[ServerState, Log]:
    """q and the factors stay as they were; the next requests ask for smaller steps."""
    in_a_row = state.refused_in_a_row + 1
    culprits: list[str] = []
    if rules.combine is None:  # of noisy updates only the sum may be told about
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
        # Where noise has made q improper, the next draw may not, and no step was too long.
        caution=state.caution if rules.combine else 0.5 * state.caution,
    ), (event,)


def _is_absurd(family: Family, q: Natural) -> bool:
    """Proper, but further away or wider than records and damping could explain."""
    return family.is_proper(q) and not is_plausible(family, q)


def _culprits(rules: Rules, state: ServerState, replies: list[Reply]) -> list[str]:
    """Whose updates are to blame that q would not be usable.

    Those with which alone it would not be; if there are none, those without which it would be.
    """

    def usable(kept: Sequence[Reply]) -> bool:
        return _usable(rules, state, product(state.q, (reply.released for reply in kept)))

    alone = [reply.party for reply in replies if not usable([reply])]
    if alone or len(replies) < 2:
        return alone
    return [
        reply.party
        for reply in replies
        if usable([other for other in replies if other is not reply])
    ]


def _cannot_go_on(
    rules: Rules, state: ServerState, culprits: Sequence[str], in_a_row: int
) -> ConfigError:
    if culprits:
        names = ", ".join(repr(name) for name in culprits)
        return ConfigError(
            f"{in_a_row} updates in a row would have made q improper or absurd, because of {names}"
            "; look at the records and the software there, or run without it"
        )
    return ConfigError(
        f"{in_a_row} updates in a row would have made q improper; lower schedule.damping "
        f"(now {rules.schedule.damping_at(state.round + 1)}) or use schedule.kind = "
        "'sequential'"
    )


def _without_culprits(
    rules: Rules, state: ServerState, culprits: Sequence[str], in_a_row: int
) -> tuple[ServerState, Log]:
    """Go on without parties whose updates alone have made q improper, however damped."""
    log: Log = ()
    for party in culprits:
        reason = f"{in_a_row} updates in a row would have made q improper or absurd, because of it"
        if in_a_row == 1:
            reason = f"q with its update would be further than {FARTHEST:g} away, or as wide"
        state, event = exclude(rules, state, party, reason)
        log = (*log, event)
    return replace(state, refused=state.refused + len(culprits), refused_in_a_row=0), log


def exclude(
    rules: Rules, state: ServerState, party: str, reason: str
) -> tuple[ServerState, dict[str, Any]]:
    """Leave a party out of what follows, and its factor out of q where the server knows it."""
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
    """q without that party's factor, where it is the party's own and q stays proper."""
    factor = state.factors[party]
    if rules.solver is not None:
        nothing = factor._replace(natural=rules.family.zero(), version=factor.version + 1)
        factors = state.factors | {party: nothing}
        return replace(state, factors=factors), "not in the sums that follow"
    if rules.combine is not None:
        if state.q_version == 0:
            return state, "nothing yet"
        return state, "kept: only the noisy sum of all parties is known"
    q = divide(state.q, factor.natural)
    if not rules.family.is_proper(q):
        return state, "kept, q would not be proper without it"
    nothing = factor._replace(natural=rules.family.zero(), version=factor.version + 1)
    # A waiting answer was made against the factor that is taken out.
    arrived = {name: reply for name, reply in state.arrived.items() if name != party}
    following = replace(
        state,
        q=q,
        q_version=state.q_version + 1,
        factors=state.factors | {party: nothing},
        arrived=arrived,
    )
    return following, "divided out"


def _end_round(rules: Rules, state: ServerState, now: float, log: Log) -> tuple[ServerState, Log]:
    state, more = _close_round(rules, state)
    if not state.finished:
        state = _open_round(rules, state, now)
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
    # Rounds that each move q by little can move it far until a party is asked again.
    farthest = max((since.get(party, 0.0) ** 2 for party in asked), default=0.0)
    still = moved is not None and moved < tolerance
    quiet = still and state.refused_in_a_row == 0
    # A party that was not asked, or is slow, may still have much to say.
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
