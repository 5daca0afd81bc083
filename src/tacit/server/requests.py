"""Open requests to parties, check the replies, and close the requests, without JAX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import PeerError
from tacit.expfam import check_arrays, check_integers
from tacit.server.messages import Asked, Reply
from tacit.server.state import Open, Published, Rules, ServerState


def ask(rules: Rules, state: ServerState, parties: Sequence[str], now: float) -> ServerState:
    """Open one new request to each of these parties."""
    damping = rules.schedule.damping_at(state.round + 1) * state.caution
    visits = {
        party: state.round if rules.in_step else state.factors[party].visits for party in parties
    }
    asked = {
        f"r{number}": Open(
            id=f"r{number}",
            party=party,
            visit=visits[party],
            version=state.factors[party].version,
            posterior=state.q_version,
            damping=damping,
            initial=state.applied == 0,
            issued_at=now,
            stage=rules.stages[state.stage]
            if state.stage is not None
            else rules.stage_at(visits[party]),
        )
        for number, party in enumerate(parties, start=state.requests)
    }
    visited = {
        party: factor._replace(visits=visits[party] + 1)
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
    """Return the reply if it is for the party and factor version of this request and has a finite
    loss; otherwise raise an error.
    """
    if request.party != reply.party or request.version != reply.version:
        raise PeerError(
            f"request {reply.id} was sent to party {request.party!r} with factor version "
            f"{request.version}, but the reply is from party {reply.party!r} with factor version "
            f"{reply.version}; the party that replied must rejoin and start from the factor that "
            "the server then sends"
        )
    if reply.loss is not None and not math.isfinite(reply.loss):
        raise PeerError(
            f"update of party {reply.party!r}: loss = {reply.loss} is not finite; "
            "the party must check its records"
        )
    return reply


def read_released(rules: Rules, state: ServerState, request: Open, reply: Reply) -> Arrays:
    """Return the released values of a reply as floats. Integers are multiplied by the public step
    of the agreed plan.
    """
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
    """True if all released arrays are integers (multiples of a lattice step)."""
    return bool(released) and all(value.dtype == np.int64 for value in released.values())


def check_released(rules: Rules, request: Open, reply: Reply) -> Arrays:
    """Return the released arrays after checking their names, shapes and types for the request's
    stage.
    """
    what = f"update of party {reply.party!r}"
    prior = rules.site_prior and reply.party == rules.parties[0]
    if rules.released is None or prior:
        return rules.family.check(reply.released, what=what)
    integers = integer_shapes(rules, request.stage.name)
    if integers is not None:
        return check_integers(reply.released, integers, what=what)
    return check_arrays(reply.released, rules.released(request.stage.name), what=what)


def integer_shapes(rules: Rules, stage: str) -> dict[str, tuple[int, ...]] | None:
    """Return the names and shapes of the integer arrays in a reply to this stage; None if replies
    are floats.
    """
    return None if rules.lattice is None else rules.lattice.shapes(stage)


def close_requests(
    state: ServerState, replies: dict[str, Reply], *, unanswered: Sequence[str] = ()
) -> ServerState:
    """Close the requests whose ids are in `replies` or `unanswered`. Remove every stored q that is
    no longer needed for an open request.
    """
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
