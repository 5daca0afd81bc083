"""Mixtures of normals along one axis, for posteriors that are far from normal along this axis.

Hierarchical models are nearly normal given their scale parameter, and far from normal jointly. The
split chooses one coordinate θ_k as the axis, and several values of it as nodes. At each node, a
normal distribution is fitted to the other coordinates by natural-gradient steps. All nodes are
fitted in the same exchanges. The evidence lower bound at a node approximates the logarithm of the
marginal density of θ_k there, up to a constant.

Nodes are added beyond an end of the axis while the evidence lower bound at that end is within
`LOW_ENDS` nats of the maximum, because draws from a truncated split would not reveal the
truncation. Nodes are also added between two nodes that are far apart compared with the width of the
marginal. Between nodes, means and covariance roots are interpolated. Draws from this mixture get
importance weights like draws from a normal q.

The axis is the coordinate along which the curvature of the log-joint changes most. Let H(θ) be the
Hessian, μ the mean of q and L a root of its covariance. Let c_k be one standard deviation of θ_k
together with the correlated change of the other coordinates. The axis is the k with the largest
‖Lᵀ(H(μ + c_k) − H(μ − c_k))L‖.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tacit.arrays import Arrays
from tacit.expfam.quadrature import standardised, weighing_draws
from tacit.methods.natural.curvature import lower_root
from tacit.methods.natural.move import Place, move_of
from tacit.methods.natural.stages import NODE_COUNT

FIRST_NODES = np.arange(-5.0, 4.5)
"""Positions of the first nodes on the axis, in standard deviations of q."""
LOW_ENDS = 7.0
MAX_NODES = 48
MAX_EXCHANGES = 40
SETTLED_KL = 1e-2
SHORTEST = 1 / 128
NODE_SLACK = 1e-3
MAX_SPACING = 0.8
"""Largest distance between neighbouring nodes where the marginal has mass, in standard deviations
of the marginal.
"""
FAR_NODE = 1.5
"""An unconverged node is far from the converged ones if its distance is more than this multiple of
the distance between the last two of them.
"""
SKEWED = 0.5
"""Smallest skewness of a coordinate that may be the axis although the model has scales. It must
also be twice as large as that of every scale.
"""
GRID = 4000
NEW, GOING, DONE, LOST = range(4)


class Node(NamedTuple):
    """A value of the axis coordinate, with a normal approximation of the other coordinates given
    this value.
    """

    value: float
    status: int
    place: Place
    """Normal distribution of the other coordinates. Its energy and derivatives are set by the first
    evaluation.
    """
    mean: np.ndarray
    """Proposed next mean."""
    root: np.ndarray
    length: float


def axis_candidates(skewness: np.ndarray, scales: tuple[int, ...]) -> np.ndarray:
    """Return the coordinates that may become the axis of the split, the most skewed first.

    These are the coordinates in `scales`, or all coordinates if `scales` is empty. A coordinate
    that is clearly more skewed than every scale (`SKEWED`) is a candidate too, because no scale
    explains its shape.

    >>> axis_candidates(np.array([0.3, 0.1, -0.6]), (1,))
    array([2, 1])
    """
    size = np.abs(skewness)
    order = np.argsort(-size, kind="stable")
    if scales:
        least = max(SKEWED, 2.0 * float(np.max(size[list(scales)])))
        order = np.array([place for place in order if place in scales or size[place] >= least])
    return order[: NODE_COUNT // 2]


def axis_points(mean: np.ndarray, root: np.ndarray, axes: np.ndarray) -> list[np.ndarray]:
    """Return two points for each coordinate in `axes`: `mean` plus and minus one standard deviation
    of the coordinate.

    The other coordinates change by the amount that their correlation with this coordinate implies.
    The list is padded with `mean`.
    """
    covariance = root @ root.T
    points = []
    for k in axes:
        step = covariance[:, k] / math.sqrt(covariance[k, k])
        points += [mean + step, mean - step]
    return points + [mean] * (NODE_COUNT - len(points))


def worst_axis(axes: np.ndarray, hessians: np.ndarray, values: np.ndarray, failed: float) -> int:
    """Return the coordinate in `axes` with the largest difference between the Hessians at its two
    `axis_points`.
    """
    changes = []
    for number in range(len(axes)):
        pair = slice(2 * number, 2 * number + 2)
        known = bool(np.all(values[pair] > failed))
        one, other = hessians[pair]
        changes.append(float(np.linalg.norm(one - other)) if known else math.inf)
    return int(axes[int(np.argmax(changes))])


def first_nodes(mean: np.ndarray, root: np.ndarray, axis: int) -> list[Node]:
    """Return nodes at several values of the coordinate `axis`.

    Each node has the conditional distribution of the other coordinates under q.
    """
    order = np.r_[axis, np.delete(np.arange(len(mean)), axis)]
    lower = lower_root(root[order])
    sd = lower[0, 0]
    slope, inner = lower[1:, 0] / sd, lower[1:, 1:]
    nodes = []
    for steps in FIRST_NODES:
        centre = mean[order[1:]] + slope * steps * sd
        nodes.append(_fresh(mean[axis] + steps * sd, centre, inner))
    return nodes


def _fresh(value: float, mean: np.ndarray, root: np.ndarray) -> Node:
    size = len(mean)
    place = Place(mean, root, -math.inf, np.zeros(size), np.zeros((size, size)))
    return Node(float(value), NEW, place, mean, root, 1.0)


def open_nodes(nodes: list[Node]) -> list[int]:
    """Return the indices of nodes that have not converged. At most `NODE_COUNT` indices, the size
    of one request, are returned.
    """
    return [n for n, node in enumerate(nodes) if node.status in (NEW, GOING)][:NODE_COUNT]


def request(nodes: list[Node], numbers: list[int], axis: int, size: int) -> Arrays:
    """Return the public arrays of a request that evaluates the nodes with the indices `numbers`.

    The arrays are the means and covariance roots of the nodes over all of θ. The first column of
    each root is 0, because the coordinate `axis` is fixed at a node.
    """
    order = np.r_[axis, np.delete(np.arange(size), axis)]
    means, roots = np.zeros((NODE_COUNT, size)), np.zeros((NODE_COUNT, size, size))
    for slot in range(NODE_COUNT):
        node = nodes[numbers[min(slot, len(numbers) - 1)]]
        means[slot, order] = np.r_[node.value, node.mean]
        roots[slot][order[1:], 1:] = node.root
    return {"mean": means, "root": roots, "spread": np.asarray(1.0)}


def updated(node: Node, value: float, gradient: np.ndarray, hessian: np.ndarray) -> Node:
    """Return the node with its proposed distribution accepted or rejected, and with the next
    proposal.

    `value`, `gradient` and `hessian` are those of the log-joint under the proposed distribution.
    """
    volume = float(np.sum(np.log(np.diagonal(node.root)))) if len(node.root) else 0.0
    energy = value + volume
    tried = Place(node.mean, node.root, energy, gradient[1:], hessian[1:, 1:])
    worse = not math.isfinite(energy) or energy < node.place.energy - NODE_SLACK
    if worse:
        if node.status == NEW or node.length < SHORTEST:
            return node._replace(status=LOST if node.status == NEW else DONE)
        return _proposed(node, node.place, 0.5 * node.length)
    if not len(node.mean) or move_of(tried).divergence < SETTLED_KL:
        return node._replace(status=DONE, place=tried)
    return _proposed(node, tried, min(1.0, 2.0 * node.length))


def _proposed(node: Node, place: Place, length: float) -> Node:
    mean, root = move_of(place).taken(place, length)
    return Node(node.value, GOING, place, mean, root, length)


def more_nodes(nodes: list[Node]) -> list[Node]:
    """Return additional nodes beyond an end of the axis where the marginal density is still high.

    If the density is low at both ends, return nodes between existing nodes that are far apart.
    """
    return _wanted(nodes)[: max(MAX_NODES - len(nodes), 0)]


def inner_nodes(nodes: list[Node]) -> list[Node]:
    """Return nodes between an end of the converged nodes and unconverged ones far beyond it.

    Steps at a node of low density may need many exchanges. If the new node converges and its
    density is low too, the node beyond it is not needed. Nothing is returned if the density at an
    unconverged node is not low, or if it is as near as the last two converged nodes are to each
    other.
    """
    known = sorted((node for node in nodes if node.status == DONE), key=lambda node: node.value)
    unknown = [node for node in nodes if node.status in (NEW, GOING)]
    if len(known) < 4:
        return []
    low = max(node.place.energy for node in known) - LOW_ENDS
    if any(node.status == NEW or node.place.energy > low for node in unknown):
        return []
    added = []
    for end, inner, sign in ((0, 1, -1.0), (-1, -2, 1.0)):
        value, spacing = known[end].value, abs(known[end].value - known[inner].value)
        beyond = [node.value for node in unknown if sign * (node.value - value) > 0]
        nearest = min(beyond, key=lambda one: abs(one - value), default=value)
        if known[end].place.energy > low and abs(nearest - value) > FAR_NODE * spacing:
            added.append(_near(known, 0.5 * (value + nearest)))
    return added[: max(MAX_NODES - len(nodes), 0)]


def needed(nodes: list[Node]) -> list[Node]:
    """Return `nodes` without unconverged nodes that lie beyond a converged node with low density.

    The omitted nodes have no mass, and steps at such nodes may not converge.
    """
    known = [node for node in nodes if node.status == DONE]
    if not known:
        return nodes
    top = max(known, key=lambda node: node.place.energy)
    low = [node.value for node in known if node.place.energy < top.place.energy - LOW_ENDS]
    first = max((value for value in low if value < top.value), default=-math.inf)
    last = min((value for value in low if value > top.value), default=math.inf)
    return [node for node in nodes if node.status != GOING or first < node.value < last]


def is_cut_off(nodes: list[Node]) -> bool:
    """True if draws from these nodes would not represent the marginal.

    This is the case if more nodes are needed, or if the density is still high at the outermost node
    and not finite beyond it.
    """
    known = sorted((node for node in nodes if node.status == DONE), key=lambda node: node.value)
    lost = [node.value for node in nodes if node.status == LOST]
    top = max(node.place.energy for node in known)
    before = any(one < known[0].value for one in lost) and known[0].place.energy > top - LOW_ENDS
    after = any(one > known[-1].value for one in lost) and known[-1].place.energy > top - LOW_ENDS
    return before or after or bool(_wanted(nodes))


def _wanted(nodes: list[Node]) -> list[Node]:
    known = sorted((node for node in nodes if node.status == DONE), key=lambda node: node.value)
    if len(known) < 4:
        return []
    energies = np.array([node.place.energy for node in known])
    values = np.array([node.value for node in known])
    top = float(np.max(energies))
    lost = [node.value for node in nodes if node.status == LOST]
    added = []
    for end, inner, sign in ((0, 1, -1.0), (-1, -2, 1.0)):
        blocked = any(sign * (value - values[end]) > 0 for value in lost)
        if energies[end] > top - LOW_ENDS and not blocked:
            gap = abs(values[end] - values[inner])
            # Each extension doubles the distance: q may be far narrower than the posterior.
            steps = gap * np.array([1.0, 3.0, 7.0, 15.0])
            added += [_near(known, values[end] + sign * step) for step in steps]
    if added:
        return added
    weights = np.exp(energies - top)
    shares = weights * np.gradient(values)
    centre = float(shares @ values / np.sum(shares))
    sd = math.sqrt(float(shares @ np.square(values - centre) / np.sum(shares)))
    for low in range(len(known) - 1):
        wide = values[low + 1] - values[low] > MAX_SPACING * sd
        if wide and max(energies[low], energies[low + 1]) > top - LOW_ENDS:
            added.append(_near(known, 0.5 * (values[low] + values[low + 1])))
    return added


def _near(known: list[Node], value: float) -> Node:
    """Return a new node at `value`, with the distribution of the nearest node in `known`."""
    nearest = min(known, key=lambda node: abs(node.value - value))
    return _fresh(value, nearest.place.mean, nearest.place.root)


class Draws(NamedTuple):
    """Draws of θ from a split, and the logarithms of their densities up to a constant."""

    theta: np.ndarray
    log_density: np.ndarray


def draw(nodes: list[Node], axis: int, size: int, count: int | None = None) -> Draws:
    """Draw θ from the mixture that interpolates between the nodes.

    The values of the axis coordinate are evenly spaced quantiles, and the other coordinates are
    normal draws. By default there are as many draws as `weighing_draws` has.
    """
    from scipy.interpolate import PchipInterpolator

    known = sorted((node for node in nodes if node.status == DONE), key=lambda node: node.value)
    values = np.array([node.value for node in known])

    def interpolated(parts: list[np.ndarray]) -> Any:
        return PchipInterpolator(values, np.stack(parts), axis=0)

    energy = interpolated([np.asarray(node.place.energy) for node in known])
    grid = np.linspace(values[0], values[-1], GRID)
    density = np.exp(energy(grid) - np.max([node.place.energy for node in known]))
    reached = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    count = count or len(weighing_draws(size))
    levels = (np.arange(count) + 0.5) / count * reached[-1]
    axis_values = np.interp(levels, reached, grid)
    rng = np.random.default_rng([size, count, 0x5B17])
    axis_values = axis_values[rng.permutation(count)]
    log_density = energy(axis_values)
    theta = np.empty((count, size))
    theta[:, axis] = axis_values
    if size == 1:
        return Draws(theta, log_density)
    noise = standardised(rng.standard_normal((count // 2, size - 1)))[0][:count]
    means = interpolated([node.place.mean for node in known])(axis_values)
    diagonal = np.arange(size - 1)
    logs = []
    for node in known:
        root = node.place.root.copy()
        root[diagonal, diagonal] = np.log(np.diagonal(root))
        logs.append(root)
    roots = interpolated(logs)(axis_values)
    volumes = np.sum(roots[:, diagonal, diagonal], axis=1)
    roots[:, diagonal, diagonal] = np.exp(roots[:, diagonal, diagonal])
    rest = np.delete(np.arange(size), axis)
    theta[:, rest] = means + np.einsum("sij,sj->si", roots, noise)
    return Draws(theta, log_density - volumes - 0.5 * np.sum(noise * noise, axis=1))


def pack(nodes: list[Node], axis: int, exchanges: int) -> Arrays:
    """Return arrays for the server's memory that contain the nodes, the axis and the number of
    exchanges so far.
    """
    fields = {
        "value": [node.value for node in nodes],
        "status": [node.status for node in nodes],
        "length": [node.length for node in nodes],
        "mean": [node.mean for node in nodes],
        "root": [node.root for node in nodes],
        "energy": [max(node.place.energy, -1e300) for node in nodes],
        "place_mean": [node.place.mean for node in nodes],
        "place_root": [node.place.root for node in nodes],
        "gradient": [node.place.gradient for node in nodes],
        "hessian": [node.place.hessian for node in nodes],
    }
    packed = {f"split.{name}": np.asarray(value, np.float64) for name, value in fields.items()}
    return packed | {
        "split.axis": np.asarray(float(axis)),
        "split.exchanges": np.asarray(float(exchanges)),
    }


def unpack(memory: Arrays) -> tuple[list[Node], int, int]:
    """Return the nodes, the axis and the number of exchanges that `pack` has stored in `memory`."""
    part = {name[6:]: value for name, value in memory.items() if name.startswith("split.")}
    nodes = []
    for n in range(len(part["value"])):
        energy = float(part["energy"][n])
        place = Place(
            part["place_mean"][n],
            part["place_root"][n],
            energy if energy > -1e299 else -math.inf,
            part["gradient"][n],
            part["hessian"][n],
        )
        status = int(part["status"][n])
        mean, root = part["mean"][n], part["root"][n]
        nodes.append(
            Node(float(part["value"][n]), status, place, mean, root, float(part["length"][n]))
        )
    return nodes, int(part["axis"]), int(part["exchanges"])
