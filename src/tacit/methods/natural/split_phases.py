"""The phases of `NaturalSolver` that split a posterior along one axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam.quadrature import weighing_draws
from tacit.methods.natural import heavy, split
from tacit.methods.natural.move import Place
from tacit.methods.natural.stages import DRAWS, FAILED, NODES
from tacit.methods.natural.weights import DOUBTED, MAX_PARETO_K, Weighed, weigh_draws
from tacit.server.combine import RoundSum, Shared

if TYPE_CHECKING:
    from tacit.methods.natural.solver import NaturalSolver

KEPT = "kept."
"""Prefix of the weighted draws from a split in the server's memory."""
NODES_KEPT = "nodes."
"""Prefix of the nodes of a complete split in the server's memory."""
AXIS_PHASE, NODES_PHASE, DRAWS_PHASE = 6, 7, 8


def begin(solver: NaturalSolver, shared: Shared, memory: Arrays) -> Shared:
    """Return a request for Hessians: at two points for each coordinate that may become the axis."""
    mean, root = shared.public["mean"], shared.public["root"]
    axes = split.axis_candidates(memory["skewness"], solver.scales)
    points = split.axis_points(mean, root, axes)
    public = {
        "mean": np.stack(points),
        "root": np.stack([root] * split.NODE_COUNT),
        "spread": np.asarray(0.0),
    }
    memory |= {
        "q.mean": mean,
        "q.root": root,
        "q.axes": axes.astype(np.float64),
        "phase": np.asarray(AXIS_PHASE),
    }
    return Shared(shared.q, public, memory, stage=NODES, note="split along the worst axis")


def after_axis(solver: NaturalSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Choose the axis along which the curvature changes most, and return a request that evaluates
    its first nodes.
    """
    axes, total = memory["q.axes"].astype(int), answers.total
    axis = split.worst_axis(axes, total["hessian"], total["value"], 0.1 * FAILED)
    nodes = split.first_nodes(memory["q.mean"], memory["q.root"], axis)
    return _ask(solver, shared, memory, nodes, axis, 0)


def after_nodes(solver: NaturalSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Update the evaluated nodes, and return the next request.

    The request evaluates the nodes that have not converged. If all nodes have converged, it is a
    request for the log-likelihood at draws from the split.
    """
    nodes, axis, exchanges = split.unpack(memory)
    total = answers.total
    for slot, number in enumerate(split.open_nodes(nodes)):
        place = Place(
            shared.public["mean"][slot],
            shared.public["root"][slot],
            float(total["value"][slot]),
            total["gradient"][slot],
            total["hessian"][slot],
        )
        failed = place.failed
        place = solver.with_prior(place, 1.0)
        value = -np.inf if failed else place.energy
        nodes[number] = split.updated(nodes[number], value, place.gradient, place.hessian)
    nodes, exchanges = split.needed(nodes), exchanges + 1
    if exchanges < split.MAX_EXCHANGES:
        waiting = split.open_nodes(nodes)
        nodes += split.inner_nodes(nodes) if waiting else split.more_nodes(nodes)
    if exchanges < split.MAX_EXCHANGES and split.open_nodes(nodes):
        return _ask(solver, shared, memory, nodes, axis, exchanges)
    if sum(node.status == split.DONE for node in nodes) < 4:
        return _finish_without(solver, shared, memory)
    drawn = split.draw(nodes, axis, len(memory["q.mean"]))
    memory = _without_nodes(memory) | _stored(nodes, axis)
    memory |= {
        "split.axis": np.asarray(float(axis)),
        "split.cut_off": np.asarray(float(split.is_cut_off(nodes))),
        "log_density": drawn.log_density,
        "phase": np.asarray(DRAWS_PHASE),
    }
    return Shared(shared.q, {"draws": drawn.theta}, memory, stage=DRAWS)


def after_draws(solver: NaturalSolver, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
    """Compute importance weights of the draws from the split, and end the run.

    The result is the weighted draws from the split, or the result before the split if that had
    better weights.
    """
    theta = shared.public["draws"]
    found = weigh_draws(theta, memory["log_density"], solver.log_joint(theta, answers))
    if not _better(found, memory):
        return _finish_without(solver, shared, memory)
    memory = heavy.dropped(memory)
    memory = {name: one for name, one in memory.items() if name not in ("log_density", DOUBTED)}
    cut_off = bool(memory["split.cut_off"])
    memory |= found.facts | {"settled": np.asarray(float(not cut_off))}
    kept = {
        "mean": found.mean,
        "root": found.root(memory["q.root"]),
        "log_weights": found.log_weights,
        "draws": theta,
    }
    memory |= {f"{KEPT}{name}": one for name, one in kept.items()}
    if found.heavy and not cut_off:
        # The normals between the nodes may miss a tail, as q may.
        return heavy.request(shared, memory, found.mean, kept["root"])
    return finish_kept(solver, memory)


def finish_kept(solver: NaturalSolver, memory: Arrays) -> Shared:
    """End the run with the weighted draws from the split, which are in the server's memory."""
    kept = {n.removeprefix(KEPT): one for n, one in memory.items() if n.startswith(KEPT)}
    memory = {name: one for name, one in memory.items() if not name.startswith(KEPT)}
    q = solver.natural(kept["mean"], kept["root"])
    public = kept | {"weighted": np.asarray(1.0)}
    finished = "converged" if bool(memory["settled"]) else "rounds"
    return Shared(q, public, heavy.dropped(memory), finished=finished)


def _ask(
    solver: NaturalSolver,
    shared: Shared,
    memory: Arrays,
    nodes: list[split.Node],
    axis: int,
    exchanges: int,
) -> Shared:
    del solver
    numbers = split.open_nodes(nodes)
    public = split.request(nodes, numbers, axis, len(memory["q.mean"]))
    memory = _without_nodes(memory) | split.pack(nodes, axis, exchanges)
    return Shared(shared.q, public, memory | {"phase": np.asarray(NODES_PHASE)}, stage=NODES)


def _stored(nodes: list[split.Node], axis: int) -> Arrays:
    packed = split.pack(nodes, axis, 0)
    return {f"{NODES_KEPT}{name}": one for name, one in packed.items()}


def more_draws(memory: Arrays, count: int) -> split.Draws:
    """Return more draws from the split whose nodes are in the server's memory."""
    packed = {n.removeprefix(NODES_KEPT): v for n, v in memory.items() if n.startswith(NODES_KEPT)}
    nodes, axis, _ = split.unpack(packed)
    return split.draw(nodes, axis, len(memory["q.mean"]), count)


def _without_nodes(memory: Arrays) -> Arrays:
    return {name: one for name, one in memory.items() if not name.startswith("split.")}


def _better(found: Weighed, memory: Arrays) -> bool:
    """True if the weights of draws from a split are better than those of the result before the
    split.
    """
    share = heavy.share(memory)
    if share is not None:
        return (found.sound or found.even) and found.effective_share >= share
    light = float(memory["pareto_k"]) <= MAX_PARETO_K
    return (found.sound and not light) or found.effective_share >= float(memory["effective_share"])


def _finish_without(solver: NaturalSolver, shared: Shared, memory: Arrays) -> Shared:
    """End the run without the draws from the split. The result is the one from before the split:
    the weighted heavy-tailed draws if there are any, otherwise q.
    """
    if heavy.share(memory) is not None:
        return heavy.finished(solver, _without_nodes(memory))
    mean, root = memory["q.mean"], memory["q.root"]
    size = len(weighing_draws(len(mean)))
    public = {
        "mean": mean,
        "root": root,
        "log_weights": np.full(size, -np.log(size)),
        "weighted": np.asarray(0.0),
    }
    memory = _without_nodes(memory)
    finished = "converged" if bool(memory["settled"]) else "rounds"
    return Shared(shared.q, public, memory, finished=finished, note="the split was not better")
