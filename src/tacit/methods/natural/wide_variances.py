"""The phases of `WideSolver` that compute standard deviations, accounting for correlations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural.stages import DIRECTION_COUNT, FAILED
from tacit.methods.natural.subspace import Subspace
from tacit.methods.natural.wide_place import (
    MOST_NUMBERS,
    PROBE,
    RESPOND,
    STEP,
    Seen,
    known_space,
    positive,
)
from tacit.methods.natural.wide_prior import CENTRE, FIXED, ScalesPrior
from tacit.server.combine import RoundSum, Shared

if TYPE_CHECKING:
    from tacit.methods.natural.wide import WideSolver

MOST_SCALES = 4
"""Largest number of scales whose response is measured; each takes two exchanges."""
HUBS = 16
"""Number of coordinates whose standard deviation is solved for exactly."""
MOST_CONSTANTS = 24
"""Largest number of intercepts whose standard deviation is solved for exactly."""
MAX_PROBES = 16
SETTLED_STEP = 0.1
"""If a full step at the end is larger than this, in nats, the mean had not converged."""
PROBE_RESIDUAL = 0.05
MAX_TURNS, INFLATED = 8, 0.1
"""Largest number of times that learned scales are computed again from corrected variances, and the
change of log-precisions below which both agree (5 % of a scale).
"""
LEAST_SHARE = 0.1
STEPS_PER_TURN = 20
"""Number of steps that are always allowed after learned scales were computed again."""
MAX_STEPS = 60
"""Largest number of steps otherwise."""
SEEDS = 1_000
"""First seed of the random directions; it differs from the seeds of the steps."""


def begin(
    solver: WideSolver, shared: Shared, memory: Arrays, seen: Seen, *, settled: bool
) -> Shared:
    """Request the first products with unit vectors and random signs."""
    size = len(seen.mean)
    space = known_space(memory, size)
    precision = seen.diagonal + solver.prior_of(memory).term(seen.mean, seen.scale).diagonal
    hubs = _hubs(solver, space, seen.diagonal)
    rng = np.random.default_rng([size, 0x9B0BE])
    right = rng.choice([-1.0, 1.0], (DIRECTION_COUNT, size))
    right[: len(hubs)] = 0.0
    right[np.arange(len(hubs)), hubs] = 1.0
    constants = _constants(solver, memory) * seen.scale
    right[len(hubs) : len(hubs) + len(constants)] = constants
    memory = {n: v for n, v in memory.items() if not n.startswith(("place.", "space."))}
    memory |= seen.pack() | {
        "settled": np.asarray(float(settled)),
        "precision": precision,
        "hubs": hubs.astype(np.float64),
        "right": right,
        "probes": np.asarray(0),
        "phase": np.asarray(PROBE),
    }
    directions = Subspace.empty(size).new_directions(right, DIRECTION_COUNT, SEEDS)
    following = solver.ask(shared, memory, seen.mean, seen.scale, directions, exact=False)
    return following._replace(energy=seen.energy, moved=float(memory["last_change"]))


def _constants(solver: WideSolver, memory: Arrays) -> np.ndarray:
    """Return rows b such that b·φ are the intercepts in θ; no rows without columns or for too many
    outputs.
    """
    size = solver.family.dimension
    if solver.columns is None or size // solver.columns.count > MOST_CONSTANTS:
        return np.zeros((0, size))
    return solver.columns.functionals(memory[CENTRE])


def _hubs(solver: WideSolver, space: Subspace, diagonal: np.ndarray) -> np.ndarray:
    """Choose coordinates: the scales, then those with the strongest correlations in the random
    products.
    """
    few = slice(max(0, len(space.directions) - DIRECTION_COUNT), None)
    apart = space.products[few] - diagonal * space.directions[few]
    order = np.argsort(-np.linalg.norm(apart, axis=0), kind="stable")
    chosen = list(dict.fromkeys([*solver.scales[:MOST_SCALES], *order.tolist()]))
    return np.array(chosen[:HUBS], dtype=np.int64)


def after_probe(solver: WideSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Request more directions until the linear systems are solved; then compute the variances."""
    place = Seen.unpack(memory)
    assert place is not None
    space = known_space(memory, len(place.mean))
    least = 1.0 / positive(memory["precision"])
    if not float(answers.total["value"]) > 0.1 * FAILED:
        memory |= {"settled": np.asarray(0.0), "residual": np.asarray(1.0)}
        return _finished(solver, place, memory | {"variance": least, "sd_noise": np.asarray(1.0)})
    space = space.joined(shared.public["directions"], -answers.total["products"])
    term = solver.prior_of(memory).term(place.mean, place.scale)
    gradient = answers.total["gradient"] + term.gradient
    right, basis = np.concatenate([memory["right"], gradient[None]]), space.basis()
    found = space.solved(basis, term.products, right)
    residual = float(np.max(found.share(right)[:-1]))
    probes, known = int(memory["probes"]) + 1, len(basis[0])
    done = residual <= PROBE_RESIDUAL or known >= len(place.mean) or probes >= MAX_PROBES
    if not done and (known + DIRECTION_COUNT) * len(place.mean) <= MOST_NUMBERS:
        memory |= {
            "probes": np.asarray(probes),
            "space.directions": space.directions,
            "space.products": space.products,
        }
        directions = space.new_directions(found.residual[:-1], DIRECTION_COUNT, SEEDS + probes)
        return solver.ask(shared, memory, place.mean, place.scale, directions, exact=False)
    hubs, constants = memory["hubs"].astype(np.int64), _constants(solver, memory) * place.scale
    signs = slice(len(hubs) + len(constants), -1)
    variance, noise = space.diagonal_of_inverse(
        basis, term.products, right[signs], found.solution[signs]
    )
    variance[hubs] = found.solution[np.arange(len(hubs)), hubs]
    variance = np.maximum(variance, least)
    again = _with_variances(solver, memory, place, space, variance / least)
    if again is not None:
        place = place._replace(energy=float(again["place.energy"]))
        return solver.advance(shared, again, place, space)
    step = 0.5 * float(gradient @ found.solution[-1])
    settled = bool(memory["settled"]) and found.definite and step < SETTLED_STEP
    memory |= {
        "settled": np.asarray(float(settled)),
        "last_change": np.asarray(max(step, 0.0) if np.isfinite(step) else 1e300),
        "residual": np.asarray(residual),
        "sd_noise": np.asarray(0.5 * noise),
        "variance": variance,
        "constants": np.sum(constants * found.solution[len(hubs) : signs.start], axis=1),
    }
    count = min(len(solver.scales), MOST_SCALES)
    if not settled or not count:
        return _finished(solver, place, memory)
    memory = {n: v for n, v in memory.items() if not n.startswith("space.") and n != "right"}
    memory |= {
        "response.solution": found.solution[:count],
        "response.hubs": hubs[:count].astype(np.float64),
        "response.slopes": np.zeros((0, len(place.mean))),
        "phase": np.asarray(RESPOND),
    }
    return _ask_response(solver, shared, memory, place)


def _ask_response(solver: WideSolver, shared: Shared, memory: Arrays, place: Seen) -> Shared:
    """Request the diagonal on one side of q along the response to a scale."""
    number, side = divmod(len(memory["response.slopes"]), 2)
    row, hub = memory["response.solution"][number], int(memory["response.hubs"][number])
    reach = (0.5 - side) * row / np.sqrt(row[hub])
    nothing = np.zeros((DIRECTION_COUNT, len(place.mean)))
    mean = place.mean + place.scale * reach
    return solver.ask(shared, memory, mean, place.scale, nothing, exact=True)


def after_response(solver: WideSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Combine the responses of variances to a scale, and of the scale to the variances.

    With w_h the change of A_jj along the response x_h = A⁻¹e_h to scale h, V the block of A⁻¹ of
    the scales and W = (w_h), linear response of mean and variances replaces V by V(V − ½WWᵀ)⁻¹V,
    which is exact for groups that are independent given their scale.
    """
    place = Seen.unpack(memory)
    assert place is not None
    if not float(answers.total["value"]) > 0.1 * FAILED:
        return _finished(solver, place, memory | {"residual": np.asarray(1.0)})
    slopes = np.concatenate([memory["response.slopes"], -answers.total["diagonal"][None]])
    memory |= {"response.slopes": slopes}
    rows, hubs = memory["response.solution"], memory["response.hubs"].astype(np.int64)
    if len(slopes) < 2 * len(rows):
        return _ask_response(solver, shared, memory, place)
    inner = rows[:, hubs]
    spread = np.sqrt(np.diagonal(inner))
    change = (slopes[0::2] - slopes[1::2]) * spread[:, None] * positive(memory["precision"]) ** -1.0
    changed = inner - 0.5 * change @ change.T
    try:
        np.linalg.cholesky(0.5 * (changed + changed.T))
    except np.linalg.LinAlgError:
        return _finished(solver, place, memory | {"residual": np.asarray(1.0)})
    more = np.linalg.inv(changed) - np.linalg.inv(inner)
    added = np.sum(rows * (more @ rows), axis=0)
    memory |= {"variance": memory["variance"] + added}
    if "constants" in memory:
        across = rows @ (_constants(solver, memory) * place.scale).T
        added = np.sum(across * (more @ across), axis=0)
        memory |= {"constants": memory["constants"] + added}
    return _finished(solver, place, memory)


def _finished(solver: WideSolver, place: Seen, memory: Arrays) -> Shared:
    names = ("settled", "last_change", "residual", "sd_noise")
    kept = {n: v for n, v in memory.items() if n in names or n.startswith("prior.")}
    independent = positive(memory["precision"]) ** -1.0
    finished = "converged" if bool(memory["settled"]) else "rounds"
    sd, alone = place.scale * np.sqrt(memory["variance"]), place.scale * np.sqrt(independent)
    step = float(memory["last_change"])
    q = solver.natural(memory, place.mean, sd)
    if len(memory.get("constants", ())):
        assert solver.columns is not None
        usual, places = solver.family.usual(q), solver.columns.constants(len(sd))
        sd[places] = np.sqrt(memory["constants"])
        alone[places] = np.linalg.norm(_constants(solver, memory) * alone, axis=1)
        q = solver.family.natural(mean=np.asarray(usual["mean"]), sd=sd)
    kept |= {"narrow": alone / sd}
    return Shared(q, {}, kept, finished=finished, energy=place.energy, moved=step)


def _with_variances(
    solver: WideSolver, memory: Arrays, place: Seen, space: Subspace, inflation: np.ndarray
) -> Arrays | None:
    """Return the memory with which to continue if the variances change learned scales; otherwise
    None.

    The prior's precisions that agree with variances and mean are then kept fixed.
    """
    turns = int(memory.get("turns", np.asarray(0)))
    prior = ScalesPrior.known(solver.scale_facts, memory)
    if prior is None or not bool(memory["settled"]):
        return None
    used = prior.precisions(place.mean, place.scale)
    wider = prior._replace(inflation=inflation, fixed=None)
    change = np.log(solver.agreed(wider, place, space)[1] / used)
    common = float(np.mean(change))
    step = common / _share_of_change(memory, common)
    if abs(step) <= INFLATED and np.max(np.abs(change - common)) <= 2.0 * INFLATED:
        return None
    if turns >= MAX_TURNS:
        memory["settled"] = np.asarray(0.0)
        return None
    memory = memory | {
        FIXED: used * np.exp(change - common + step),
        "turns": np.asarray(turns + 1),
        "turn.change": np.asarray(common),
        "turn.step": np.asarray(step),
        "steps": np.minimum(memory["steps"], MAX_STEPS - STEPS_PER_TURN),
        "phase": np.asarray(STEP),
        "limit": np.asarray(1.0),
    }
    term = solver.prior_of(memory).term(place.mean, place.scale)
    value = place.energy + term.value - prior.term(place.mean, place.scale).value
    return memory | {"place.energy": np.asarray(value)}


def _share_of_change(memory: Arrays, change: float) -> float:
    """Estimate, by a secant, the share of the way to agreement that one `change` of log-precisions
    covers.

    Larger variances make larger scales, which make larger variances: repeating the computation
    approaches agreement slowly, and each time by a constant factor.
    """
    if "turn.step" not in memory:
        return 1.0
    step = float(memory["turn.step"])
    share = (float(memory["turn.change"]) - change) / step if step else math.nan
    return min(max(share, LEAST_SHARE), 1.0) if math.isfinite(share) else 1.0
