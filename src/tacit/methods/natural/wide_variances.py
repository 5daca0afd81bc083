"""The phases of `WideSolver` that compute standard deviations, accounting for correlations.

The variance of coordinate j is (A⁻¹)_jj, where A is the negative expected Hessian. For the
coordinates with the strongest correlations the variance is computed by solving A x = e_j for the
unit vector e_j. For the other coordinates it is estimated from solutions with random signs as
right-hand sides (`Subspace.diagonal_of_inverse`).

The variances of many effects and their common scale parameter depend on each other. For scale
parameters of a user's model, this dependence is included.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tacit.arrays import Arrays
from tacit.methods.natural import wide_root
from tacit.methods.natural.stages import DIRECTION_COUNT, FAILED
from tacit.methods.natural.subspace import Solved, Subspace
from tacit.methods.natural.wide_place import (
    MAX_STEPS,
    MOST_NUMBERS,
    PROBE,
    RESPOND,
    STEP,
    STEPS_PER_TURN,
    Seen,
    known_space,
    positive,
)
from tacit.methods.natural.wide_prior import CENTRE, FIXED, ScalesPrior
from tacit.methods.natural.wide_root import LAST, ROOT
from tacit.server.combine import RoundSum, Shared

if TYPE_CHECKING:
    from tacit.methods.natural.wide import WideSolver

MOST_SCALES = 4
"""Largest number of scales for which the response of the variances to the scale is measured. Each
takes two exchanges.
"""
HUBS = 16
"""Number of coordinates whose standard deviation is computed by solving a system for the
coordinate.
"""
MOST_CONSTANTS = 24
"""Largest number of intercepts whose standard deviations are computed in this way."""
MAX_PROBES = 16
SETTLED_STEP = 0.1
"""If a full step at the end is larger than this many nats, the mean has not converged."""
PROBE_RESIDUAL, LAST_RESIDUAL = 0.05, 0.03
"""Largest relative residual of a system that counts as solved: without a root, and with a root."""
MAX_TURNS, INFLATED = 8, 0.1
"""Learned scales are computed again from corrected variances at most `MAX_TURNS` times, until
log-precisions change by at most `INFLATED` (5 % of a scale).
"""
LEAST_SHARE = 0.1
UNCHANGED_MEAN = 0.1
"""If the first root moves no scale, and no mean by more than this many sds, it is the last root."""
SEEDS = 1_000
"""First seed of the random directions; it differs from the seeds of the steps."""


def leave(
    solver: WideSolver, shared: Shared, memory: Arrays, seen: Seen, *, settled: bool
) -> Shared:
    """Return the request that follows the last step. If standard deviations are already known,
    return the result of the run instead.
    """
    if ROOT not in memory:
        return begin(solver, shared, memory, seen, settled=settled)
    sd = seen.scale * np.sqrt(memory["variance"])
    moved = float(np.max(np.abs(seen.mean - memory["root.mean"]) / sd))
    first, same = int(memory["root.number"]) == 1, not bool(memory["root.rescaled"])
    last = bool(memory[LAST])
    if not last and not (first and same and settled and moved <= UNCHANGED_MEAN):
        return begin(solver, shared, memory, seen, settled=settled)
    if last and settled:
        seen = seen._replace(mean=0.5 * (seen.mean + memory["root.mean"]))
        moved = 0.5 * moved
    memory |= {
        "settled": np.asarray(float(settled)),
        "residual": memory["root.residual"],
        "mean_error": np.asarray(moved),
    }
    return finished(solver, seen, memory)


def begin(
    solver: WideSolver, shared: Shared, memory: Arrays, seen: Seen, *, settled: bool
) -> Shared:
    """Return the first request for products with unit vectors and random signs."""
    size = len(seen.mean)
    space = known_space(memory, size)
    precision = seen.diagonal + solver.prior_of(memory).term(seen.mean, seen.scale).diagonal
    hubs = (
        memory["hubs"].astype(np.int64) if ROOT in memory else _hubs(solver, space, seen.diagonal)
    )
    rng = np.random.default_rng([size, 0x9B0BE + int(memory.get("root.number", np.asarray(0)))])
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
    """Return one row b per intercept; b·φ is the intercept in θ (`wide_columns`).

    There are no rows if the solver has no columns or there are more than `MOST_CONSTANTS` outputs.
    """
    size = solver.family.dimension
    if solver.columns is None or size // solver.columns.count > MOST_CONSTANTS:
        return np.zeros((0, size))
    return solver.columns.functionals(memory[CENTRE])


def _hubs(solver: WideSolver, space: Subspace, diagonal: np.ndarray) -> np.ndarray:
    """Return the indices of coordinates for each of which a linear system gives the exact variance.

    These are the scale parameters, the intercepts, and then the coordinates with the strongest
    correlations according to the last products with the Hessian.
    """
    few = slice(max(0, len(space.directions) - DIRECTION_COUNT), None)
    apart = space.products[few] - diagonal * space.directions[few]
    order = np.argsort(-np.linalg.norm(apart, axis=0), kind="stable")
    first = (*solver.scales[:MOST_SCALES], *solver.intercepts)
    chosen = list(dict.fromkeys([*first, *order.tolist()]))
    return np.array(chosen[:HUBS], dtype=np.int64)


def after_probe(solver: WideSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Return a request for more products with the Hessian if the linear systems are not solved yet.

    Otherwise compute the variances, and return the next request or the result.
    """
    place = Seen.unpack(memory)
    assert place is not None
    space = known_space(memory, len(place.mean))
    least = 1.0 / positive(memory["precision"])
    if not float(answers.total["value"]) > 0.1 * FAILED:
        memory |= {"settled": np.asarray(0.0), "residual": np.asarray(1.0)}
        return finished(solver, place, memory | {"variance": least, "sd_noise": np.asarray(1.0)})
    space = space.joined(shared.public["directions"], -answers.total["products"])
    term = solver.prior_of(memory).term(place.mean, place.scale)
    gradient = answers.total["gradient"] + term.gradient
    right, basis = np.concatenate([memory["right"], gradient[None]]), space.basis()
    found = space.solved(basis, term.products, right)
    residual = float(np.max(found.share(right)[:-1]))
    probes, rank = int(memory["probes"]) + 1, len(basis[0])
    enough = LAST_RESIDUAL if ROOT in memory else PROBE_RESIDUAL
    done = residual <= enough or rank >= len(place.mean) or probes >= MAX_PROBES
    if not done and (rank + DIRECTION_COUNT) * len(place.mean) <= MOST_NUMBERS:
        memory |= {
            "probes": np.asarray(probes),
            "space.directions": space.directions,
            "space.products": space.products,
        }
        directions = space.new_directions(_wanted(found, right), DIRECTION_COUNT, SEEDS + probes)
        return solver.ask(shared, memory, place.mean, place.scale, directions, exact=False)
    known = _variances(solver, memory, place, space, found)
    variance = known["variance"] = np.maximum(known["variance"], least)
    step = 0.5 * (float(gradient @ found.solution[-1]) + found.missing(-1))
    again = _with_variances(solver, memory, place, space, variance / least)
    definite = bool(memory["settled"]) and found.definite
    settled = definite and step < SETTLED_STEP
    known |= {
        "settled": np.asarray(float(settled)),
        "last_change": np.asarray(max(step, 0.0) if np.isfinite(step) else 1e300),
    }
    if solver.rooted and (settled or (definite and ROOT not in memory)):
        kept = (again or memory) | known | {"root.residual": np.asarray(residual)}
        last = again is None and ROOT in memory
        return wide_root.renew(solver, shared, kept, place, space, last=last)
    if again is not None:
        place = place._replace(energy=float(again["place.energy"]))
        return solver.advance(shared, again, place, space)
    memory |= known | {"residual": np.asarray(residual)}
    count = min(len(solver.scales), MOST_SCALES)
    if not settled or not count:
        return finished(solver, place, memory)
    memory = {n: v for n, v in memory.items() if not n.startswith("space.") and n != "right"}
    memory |= {
        "response.solution": found.solution[:count],
        "response.hubs": memory["hubs"][:count],
        "response.slopes": np.zeros((0, len(place.mean))),
        "phase": np.asarray(RESPOND),
    }
    return _ask_response(solver, shared, memory, place)


def _variances(
    solver: WideSolver, memory: Arrays, place: Seen, space: Subspace, found: Solved
) -> Arrays:
    """Return the variances of the coordinates, those of the intercepts, and the relative noise of
    the standard deviations.
    """
    hubs, constants = memory["hubs"].astype(np.int64), _constants(solver, memory) * place.scale
    signs = slice(len(hubs) + len(constants), len(memory["right"]))
    more = solver.prior_of(memory).term(place.mean, place.scale).products
    variance, noise = space.diagonal_of_inverse(
        space.basis(), more, memory["right"][signs], found.solution[signs]
    )
    variance[hubs] = found.solution[np.arange(len(hubs)), hubs]
    return {
        "variance": variance,
        "sd_noise": np.asarray(0.5 * noise),
        "constants": np.sum(constants * found.solution[len(hubs) : signs.start], axis=1),
    }


def _wanted(found: Solved, right: np.ndarray) -> np.ndarray:
    """Return the residuals that the next directions should reduce, one per row.

    The last row of `found` belongs to the gradient. If its residual is small, it is left out.
    Otherwise it comes first, and the others follow in decreasing order.
    """
    rows = found.residual
    if 0.5 * found.missing(-1) < 0.5 * SETTLED_STEP:
        return rows[:-1]
    order = np.argsort(-found.share(right)[:-1], kind="stable")
    return rows[np.concatenate([[len(rows) - 1], order])]


def _ask_response(solver: WideSolver, shared: Shared, memory: Arrays, place: Seen) -> Shared:
    """Return a request for the diagonal of the Hessian at a shifted mean.

    The shift changes one scale parameter by half a standard deviation, and the other coordinates as
    their correlation with this parameter implies. There are two requests per scale parameter, one
    for a shift up and one for a shift down.
    """
    number, side = divmod(len(memory["response.slopes"]), 2)
    row, hub = memory["response.solution"][number], int(memory["response.hubs"][number])
    reach = (0.5 - side) * row / np.sqrt(row[hub])
    nothing = np.zeros((DIRECTION_COUNT, len(place.mean)))
    mean = place.mean + place.scale * reach
    return solver.ask(shared, memory, mean, place.scale, nothing, exact=True)


def after_response(solver: WideSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Correct the variances for the dependence between scale parameters and the variances of
    effects.

    Let A be the negative expected Hessian, V the block of A⁻¹ for the scale parameters, and e_h the
    unit vector of scale parameter h. Row h of the matrix W is the relative change of the diagonal
    of A along A⁻¹e_h. The covariance V of the scale parameters is replaced by V(V − ½WWᵀ)⁻¹V, the
    linear response of mean and variances. This is exact for groups that are independent given their
    scale.
    """
    place = Seen.unpack(memory)
    assert place is not None
    if not float(answers.total["value"]) > 0.1 * FAILED:
        return finished(solver, place, memory | {"residual": np.asarray(1.0)})
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
        return finished(solver, place, memory | {"residual": np.asarray(1.0)})
    more = np.linalg.inv(changed) - np.linalg.inv(inner)
    added = np.sum(rows * (more @ rows), axis=0)
    memory |= {"variance": memory["variance"] + added}
    if "constants" in memory:
        across = rows @ (_constants(solver, memory) * place.scale).T
        added = np.sum(across * (more @ across), axis=0)
        memory |= {"constants": memory["constants"] + added}
    return finished(solver, place, memory)


def finished(solver: WideSolver, place: Seen, memory: Arrays) -> Shared:
    """Return the final state, with the mean and the corrected standard deviations."""
    names = ("settled", "last_change", "residual", "sd_noise", "mean_error")
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
    """Return the memory for further steps if the corrected variances change the learned scales of
    the prior; otherwise return None.

    During these steps the prior's precisions are fixed at values that agree with the mean and the
    corrected variances.
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
    """Return the share of the distance to the fixed point that one `change` of the log-precisions
    covers.

    Larger variances give larger scales, which give larger variances. Plain iteration would
    therefore converge slowly. The share is estimated by the secant method.
    """
    if "turn.step" not in memory:
        return 1.0
    step = float(memory["turn.step"])
    share = (float(memory["turn.change"]) - change) / step if step else math.nan
    return min(max(share, LEAST_SHARE), 1.0) if math.isfinite(share) else 1.0
