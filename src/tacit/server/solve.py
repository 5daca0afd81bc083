"""Rounds whose steps the server controls: a solver uses the sum of the replies to choose the
next request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.arrays import Arrays
from tacit.pvi import product
from tacit.server.combine import RoundSum, Shared
from tacit.server.messages import Reply
from tacit.server.state import Log, Rules, ServerState

FEW_PARTIES = 20
"""If a round has fewer replies than this, the factors of the parties are stored, to check whether
the result depends on one party.
"""


def solve_round(
    rules: Rules, state: ServerState, replies: Sequence[Reply]
) -> tuple[ServerState, Log]:
    """Apply a complete round with the run's solver, which chooses the next stage or ends the run.
    Return the new state and its log.
    """
    assert rules.solver is not None
    number = state.round + 1
    stage = state.stage or rules.stage_at(0).name
    total = product(replies[0].released, (reply.released for reply in replies[1:]))
    shared = rules.solver(
        Shared(state.q, state.public, state.memory, stage=stage),
        RoundSum(total, len(replies), number),
    )
    shared = _in_one_order(shared)
    event: dict[str, Any] = {
        "event": "round",
        "round": number,
        "stage": stage,
        "exchanges": state.exchanges,
        "negative_elbo": None if shared.energy is None else -shared.energy,
        "last_change": shared.moved,
        "damping": 1.0,
        "refused": state.refused,
    }
    if shared.note:
        event["note"] = shared.note
    finished = shared.finished
    if finished is None and number >= rules.schedule.rounds:
        finished, shared = "rounds", _in_one_order(rules.solver.concluded(shared))
    answered = {reply.party: 0.0 for reply in replies}
    factors = dict(state.factors)
    if len(replies) < FEW_PARTIES:
        for reply in replies:
            site = rules.solver.site(stage, state.public, reply.released)
            if site is not None:
                before = factors[reply.party]
                factors[reply.party] = before._replace(natural=site, version=before.version + 1)
    following = replace(
        state,
        q=shared.q,
        q_version=state.q_version + 1,
        previous=shared.q,
        factors=factors,
        public=shared.public,
        memory=shared.memory,
        stage=shared.stage,
        round=number,
        applied=state.applied + len(replies),
        heard=frozenset(answered),
        moved_since=answered,
        finished=finished,
    )
    return following, (event,)


def _in_one_order(shared: Shared) -> Shared:
    """Return the values with all arrays in C order.

    Arrays that were read from a checkpoint or received over the network are in C order. Products of
    arrays in another order may differ in the last bits.
    """

    def ordered(arrays: Arrays) -> Arrays:
        return {name: np.asarray(one, order="C") for name, one in arrays.items()}

    memory = None if shared.memory is None else ordered(shared.memory)
    return shared._replace(q=ordered(shared.q), public=ordered(shared.public), memory=memory)


def concluded(rules: Rules, state: ServerState) -> ServerState:
    """Return the state with the solver's final q and public arrays. If the run has no solver or has
    not ended, return the state unchanged.
    """
    if rules.solver is None or not state.finished:
        return state
    shared = rules.solver.concluded(Shared(state.q, state.public, state.memory, stage=state.stage))
    shared = _in_one_order(shared)
    return replace(state, q=shared.q, public=shared.public, previous=shared.q)
