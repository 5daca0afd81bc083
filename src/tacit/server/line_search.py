"""Backtracking on the free energy of a synchronous run.

Where every party answers every round with one whole natural-gradient step, the updates of a round
add up to a natural-gradient step on the free energy F(q) = Σₘ −E_q[log p(xₘ|θ)] + KL(q ‖ p), and a
short enough one lowers F. The losses of a round are those of the q that it started from, so F of a
proposal is known when the next round has been answered: if it is higher than F of the base, the
point from which the step was made, that round's updates are dropped and the proposal becomes the
point halfway to the base; otherwise the proposal is the new base. Natural parameters of two proper
members of the family have only proper ones between them.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.expfam import Natural
from tacit.pvi import multiply, power
from tacit.server.state import Factor, Log, ServerState

ENERGY_SLACK = 1e-4
"""Nats by which a step may raise the free energy: quadrature is no better."""
ENERGY_ROUNDING = 1e-11
"""Relative to the free energy."""
MAX_HALVINGS = 30


def rises(state: ServerState, energy: float) -> bool:
    """Whether the last step led to a higher free energy than that of its base."""
    if state.base is None or state.base_energy is None or state.shortened >= MAX_HALVINGS:
        return False
    return not energy <= state.base_energy + ENERGY_SLACK + ENERGY_ROUNDING * abs(energy)


def halved(state: ServerState, energy: float) -> tuple[ServerState, Log]:
    """Go back halfway to the base; the updates of this round are dropped."""
    assert state.base is not None
    assert state.base_energy is not None
    event = {
        "event": "halved",
        "round": state.round + 1,
        "reason": f"the free energy rose by {energy - state.base_energy:.3g} nats",
    }
    factors = {
        name: factor
        if factor.base is None
        else factor._replace(
            natural=_halfway(factor.base, factor.natural), version=factor.version + 1
        )
        for name, factor in state.factors.items()
    }
    return replace(
        state,
        q=_halfway(state.base, state.q),
        q_version=state.q_version + 1,
        factors=factors,
        shortened=state.shortened + 1,
        caution=0.5 * state.caution,
    ), (event,)


def with_base(state: ServerState, energy: float | None) -> ServerState:
    """The state with its q as the base of the next step; without an energy it has no base."""
    if energy is None:
        return replace(state, base=None, base_energy=None, shortened=0)
    factors: dict[str, Factor] = {
        name: factor._replace(base=factor.natural) for name, factor in state.factors.items()
    }
    return replace(state, factors=factors, base=state.q, base_energy=energy, shortened=0)


def _halfway(one: Natural, other: Natural) -> Natural:
    return power(multiply(one, other), 0.5)
