"""The phase of `NaturalSolver` that samples the posterior by Hamiltonian Monte Carlo (HMC).

It runs if `NaturalVI.sampling` is set and the result so far is not trusted or not precise enough,
as with several weakly determined scales. The records stay with the parties: in one exchange the
server publishes one point of every chain, and the sum of the replies, with the prior, is the exact
log-joint and its gradient there. HMC with these values therefore samples the exact posterior.

Many chains run side by side in coordinates z with ψ = mean + root·z, in which the posterior has
about unit scale. ψ is θ with weakly determined effects in standardised form
(`tacit.methods.natural.effects`). A trajectory of a chain has as many leapfrog steps as exchanges.
Step size, mean and root are adapted in `WARM_UP` trajectories, whose draws are not used afterwards,
and are then fixed. Lengths and step sizes vary at random between trajectories, because one size
does not suit all parts of a posterior whose scale varies.

The chains start at `STARTS` different draws from the result before, several at each. After the
warm-up they have converged if the means of the groups that started together agree (nested R̂,
Margossian et al. 2024). Standard errors are computed from the means of the chains, which are
independent. Trajectories are added until means and standard deviations are precise enough
(`tacit.methods.natural.precision`). If trajectories diverge, the step size is halved and the draws
are taken again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacit.arrays import Arrays, solve_lower
from tacit.expfam.quadrature import many_draws
from tacit.methods.natural.curvature import lower_root
from tacit.methods.natural.effects import coordinates, start_of
from tacit.methods.natural.precision import Precision
from tacit.methods.natural.stages import FAILED, SLOPES, chain_count
from tacit.server.combine import RoundSum, Shared

if TYPE_CHECKING:
    from tacit.methods.natural.solver import NaturalSolver

CHAINS_PHASE = 11
STARTS = 16
FEWEST_STARTS = 8
"""Without this many starting points with a finite log-joint, agreement would mean little."""
WARM_UP = 60
RESCALED = (8, 20, 40)
"""Trajectories of the warm-up after which mean and root are computed again."""
MOST_EXCHANGES = 10_000
"""The chains end after the trajectory that reaches this number of exchanges."""
FEWEST_TRAJECTORIES = 8
"""Fewer trajectories after the warm-up are not a result."""
LENGTH = 0.5 * math.pi
"""Typical length of a trajectory: the one that makes the next draw from a standard normal
independent of the last.
"""
MOST_LEAPFROGS = 48
ACCEPTED = 0.8
"""Share of accepted trajectories to which the step size is adapted."""
DIVERGED = 50.0
"""A trajectory diverges if the error of its energy exceeds this many nats."""
MOST_DIVERGENT = 1e-3
"""Largest accepted share of divergent trajectories."""
MOST_HALVINGS = 3
MAX_NESTED_R_HAT = 1.02
FARTHEST = 1e12
"""A chain is lost if a coordinate of θ is larger than this."""
SEED = 0xC4A1
"""Public fixed seed, so that every server draws the same numbers."""
PREFIX, BEFORE, DRAWN = "chains.", "chains.before.", "chains.drawn."


class Chains(NamedTuple):
    """All chains in the middle of a trajectory. Positions, slopes and momenta have one row per
    chain, in z.
    """

    chosen: np.ndarray
    """1 for coordinates of ψ that are standardised effects, otherwise 0."""
    mean: np.ndarray
    root: np.ndarray
    position: np.ndarray
    """Start of the trajectory."""
    value: np.ndarray
    """Log-density in ψ at the start."""
    slope: np.ndarray
    """Gradient of the log-density at the start."""
    energy: np.ndarray
    """Value minus kinetic energy at the start."""
    moving: np.ndarray
    """Position at which the log-joint was requested."""
    momentum: np.ndarray
    """Momentum half a step before `moving`."""
    lost: np.ndarray
    """1 for chains whose trajectory has left the region with a finite log-joint, otherwise 0."""
    size: np.ndarray
    """Step size of this trajectory."""
    left: np.ndarray
    """Number of leapfrog steps of this trajectory that are left."""
    number: np.ndarray
    """Number of this trajectory; −1 if the chains have not started."""
    log_size: np.ndarray
    """Logarithm of the adapted step size."""
    log_sizes: np.ndarray
    """Sum of `log_size` over the last trajectories of the warm-up."""
    count: np.ndarray
    """Number of draws in `sums` and `products`."""
    sums: np.ndarray
    products: np.ndarray
    divergent: np.ndarray
    """Number of divergent trajectories after the warm-up."""
    halvings: np.ndarray
    exchanges: np.ndarray

    def pack(self) -> Arrays:
        return {f"{PREFIX}{name}": np.asarray(one) for name, one in self._asdict().items()}

    @classmethod
    def unpack(cls, memory: Arrays) -> Chains:
        return cls(**{name: memory[f"{PREFIX}{name}"] for name in cls._fields})

    def psi(self, position: np.ndarray) -> np.ndarray:
        return self.mean + position @ self.root.T


class Sampled(NamedTuple):
    """What the draws of all chains say about the posterior and about themselves."""

    r_hat: float
    """Largest nested R̂ over the coordinates of θ and the sites that users see."""
    precision: Precision
    divergent: float
    """Share of divergent trajectories."""

    @property
    def sound(self) -> bool:
        """True if all chains describe the same distribution and none was obstructed."""
        return self.r_hat <= MAX_NESTED_R_HAT and self.divergent <= MOST_DIVERGENT


def begin(solver: NaturalSolver, ended: Shared, mean: np.ndarray, root: np.ndarray) -> Shared:
    """Return a request for the log-joint at the chains' starting points.

    `ended` is the finished state with the result so far, which is kept for a run that ends before
    the chains do, and `mean` and `root` are its moments.
    """
    size = len(mean)
    chosen, mean, root = start_of(solver.effects, mean, root, [SEED, size, 1])
    start = np.random.default_rng([SEED, size]).standard_normal((STARTS, size))
    count = chain_count(size)
    position = np.repeat(start, count // STARTS, axis=0)
    nothing = np.zeros(count)
    chains = Chains(
        chosen,
        mean,
        root,
        position,
        value=nothing,
        slope=np.zeros_like(position),
        energy=nothing,
        moving=position,
        momentum=np.zeros_like(position),
        lost=nothing,
        size=np.asarray(0.0),
        left=np.asarray(0),
        number=np.asarray(-1),
        log_size=np.asarray(-0.25 * math.log(size)),
        log_sizes=np.asarray(0.0),
        count=np.asarray(0),
        sums=np.zeros(size),
        products=np.zeros((size, size)),
        divergent=np.asarray(0),
        halvings=np.asarray(0),
        exchanges=np.asarray(0),
    )
    facts = {"finished": np.asarray(float(ended.finished == "converged"))}
    memory = dict(ended.memory or {})
    memory |= {f"{BEFORE}{name}": one for name, one in (ended.public | facts).items()}
    return _ask(solver, ended, memory, chains, "chains started")


def after_chains(
    solver: NaturalSolver, shared: Shared, memory: Arrays, answers: RoundSum
) -> Shared:
    """Take one leapfrog step of every chain. Return the next request, or the result once the draws
    are precise enough.
    """
    chains = Chains.unpack(memory)
    theta, psi = shared.public["draws"], chains.psi(chains.moving)
    maps = coordinates(solver.effects, chains.chosen)
    value = solver.log_joint(theta, answers)
    failed = value <= 0.1 * FAILED
    value = value + maps.to_theta(psi)[1]
    slope = maps.slope(psi, answers.total["gradient"] + solver.prior_slope(theta)) @ chains.root
    failed = failed | ~np.isfinite(value) | ~np.all(np.isfinite(slope), axis=1)
    slope[failed] = 0.0
    if int(chains.number) < 0:
        return _first(solver, shared, memory, chains, value, slope, failed)
    lost = np.maximum(chains.lost, failed)
    if int(chains.left) > 0:
        momentum = chains.momentum + float(chains.size) * slope
        chains = chains._replace(lost=lost, momentum=momentum, left=chains.left - 1)
        return _ask(solver, shared, memory, _drifted(chains))
    momentum = chains.momentum + 0.5 * float(chains.size) * slope
    gained = value - 0.5 * np.sum(np.square(momentum), axis=1) - chains.energy
    gained = np.where((lost > 0) | ~np.isfinite(gained), -math.inf, gained)
    number = int(chains.number)
    uniform = _generator(chains, 1).random(len(value))
    taken = np.log(uniform) < gained
    chains = chains._replace(
        position=np.where(taken[:, None], chains.moving, chains.position),
        value=np.where(taken, value, chains.value),
        slope=np.where(taken[:, None], slope, chains.slope),
    )
    if number < WARM_UP:
        return _ask(solver, shared, memory, _adapted(chains, gained))
    chains = chains._replace(divergent=chains.divergent + np.sum(gained < -DIVERGED))
    memory |= {f"{DRAWN}{number - WARM_UP:04d}": maps.to_theta(chains.psi(chains.position))[0]}
    return _checked(solver, shared, memory, chains)


def _first(
    solver: NaturalSolver,
    shared: Shared,
    memory: Arrays,
    chains: Chains,
    value: np.ndarray,
    slope: np.ndarray,
    failed: np.ndarray,
) -> Shared:
    """Start the first trajectory. Chains without a finite log-joint move to the start of others."""
    failed = failed | (chains.lost > 0)
    sound = np.flatnonzero(~failed)
    groups = len(np.unique(sound // (len(value) // STARTS)))
    if groups < FEWEST_STARTS:
        return finish_before(solver, memory)
    source = np.where(failed, sound[np.arange(len(value)) % len(sound)], np.arange(len(value)))
    chains = chains._replace(
        position=chains.position[source], value=value[source], slope=slope[source]
    )
    return _ask(solver, shared, memory, _launched(chains, 0))


def _launched(chains: Chains, number: int) -> Chains:
    """Return the chains at the first leapfrog step of trajectory `number`, with new momenta."""
    chains = chains._replace(number=np.asarray(number))
    rng = _generator(chains, 0)
    momentum = rng.standard_normal(chains.position.shape)
    longer, smaller = rng.random(2)
    length = LENGTH * (0.5 + longer)
    largest = math.exp(float(chains.log_size)) * 2.0 ** (-2.0 * max(0.0, smaller - 0.5))
    steps = int(np.clip(math.ceil(length / largest), 1, MOST_LEAPFROGS))
    size = min(largest, length / steps)
    energy = chains.value - 0.5 * np.sum(np.square(momentum), axis=1)
    chains = chains._replace(
        energy=energy,
        moving=chains.position,
        momentum=momentum + 0.5 * size * chains.slope,
        lost=np.zeros(len(energy)),
        size=np.asarray(size),
        left=np.asarray(steps - 1),
    )
    return _drifted(chains)


def _drifted(chains: Chains) -> Chains:
    moved = chains.moving + float(chains.size) * chains.momentum
    sound = np.all(np.isfinite(moved), axis=1) & (np.max(np.abs(moved), axis=1) < 1e6)
    moved = np.where(sound[:, None], moved, chains.position)
    return chains._replace(moving=moved, lost=np.maximum(chains.lost, ~sound))


def _adapted(chains: Chains, gained: np.ndarray) -> Chains:
    """Return the chains at the start of the next trajectory of the warm-up, or of the first one
    after it, with an adapted step size, mean and root.
    """
    number = int(chains.number)
    accepted = float(np.mean(np.exp(np.minimum(gained, 0.0))))
    since = number - max([0, *(one for one in RESCALED if one <= number)])
    log_size = float(chains.log_size) + (accepted - ACCEPTED) / (1.0 + since) ** 0.6
    log_size = min(log_size, 0.5)
    last = number >= RESCALED[-1]
    chains = chains._replace(
        log_size=np.asarray(log_size),
        log_sizes=chains.log_sizes + (log_size if last else 0.0),
        count=chains.count + len(gained),
        sums=chains.sums + np.sum(chains.position, axis=0),
        products=chains.products + chains.position.T @ chains.position,
    )
    following = number + 1
    if following in RESCALED:
        chains = _rescaled(chains)
    if following == WARM_UP:
        average = float(chains.log_sizes) / (WARM_UP - RESCALED[-1])
        chains = chains._replace(log_size=np.asarray(average))
    return _launched(chains, following)


def _rescaled(chains: Chains) -> Chains:
    """Return the chains with mean and root computed from the draws since the last time.

    The covariance in z is shrunk towards a multiple of the identity by the oracle approximation of
    Chen, Wiesel, Eldar and Hero (2010).
    """
    count, size = int(chains.count), len(chains.mean)
    centre = chains.sums / count
    covariance = chains.products / count - np.outer(centre, centre)
    trace, square = float(np.trace(covariance)), float(np.sum(np.square(covariance)))
    apart = (count + 1.0 - 2.0 / size) * (square - trace**2 / size)
    share = 1.0 if not apart > 0 else ((1.0 - 2.0 / size) * square + trace**2) / apart
    share = min(1.0, max(share, 1e-3))
    covariance = (1.0 - share) * covariance + share * trace / size * np.eye(size)
    inner = np.linalg.cholesky(covariance)
    mean, root = chains.mean + chains.root @ centre, chains.root @ inner
    position = solve_lower(inner, (chains.position - centre).T).T
    return chains._replace(
        mean=mean,
        root=root,
        position=position,
        slope=chains.slope @ inner,
        count=np.asarray(0),
        sums=np.zeros(size),
        products=np.zeros((size, size)),
    )


def _checked(solver: NaturalSolver, shared: Shared, memory: Arrays, chains: Chains) -> Shared:
    """End the run if the draws are good enough or as many as allowed; otherwise start the next
    trajectory. If trajectories diverge, halve the step size and drop all draws.
    """
    done = int(chains.number) - WARM_UP + 1
    wanted = math.ceil(many_draws(len(chains.mean)) / len(chains.value))
    divergent = int(chains.divergent) / (max(done, wanted) * len(chains.value))
    if divergent > MOST_DIVERGENT and int(chains.halvings) < MOST_HALVINGS:
        memory = {name: one for name, one in memory.items() if not name.startswith(DRAWN)}
        chains = chains._replace(
            log_size=chains.log_size - math.log(2.0),
            halvings=chains.halvings + 1,
            divergent=np.asarray(0),
        )
        return _ask(solver, shared, memory, _launched(chains, WARM_UP), "smaller steps")
    ended = int(chains.exchanges) >= MOST_EXCHANGES and done >= FEWEST_TRAJECTORIES
    if done % wanted and not ended:
        return _ask(solver, shared, memory, _launched(chains, int(chains.number) + 1))
    theta = _drawn(memory)
    found = sampled(theta, solver, divergent)
    if (found.sound and found.precision.enough) or ended:
        return _finished(solver, memory, theta, found)
    if found.r_hat > MAX_NESTED_R_HAT:  # the first draws may depend on where the chains started
        names = sorted(name for name in memory if name.startswith(DRAWN))
        early = names[: max(0, len(names) - done // 2)]
        memory = {name: one for name, one in memory.items() if name not in early}
    return _ask(solver, shared, memory, _launched(chains, int(chains.number) + 1))


def sampled(theta: np.ndarray, solver: NaturalSolver, divergent: float = 0.0) -> Sampled:
    """Return R̂ and standard errors of draws with the shape (trajectories, chains, coordinates)."""
    values = theta
    if solver.sites is not None:
        shown = np.asarray(solver.sites(theta.reshape(-1, theta.shape[2])), np.float64)
        values = np.concatenate([theta, shown.reshape(*theta.shape[:2], -1)], axis=2)
    centre, spread = np.mean(values, axis=(0, 1)), np.std(values, axis=(0, 1))
    size = np.maximum(np.max(np.abs(values), axis=(0, 1)), 1e-300)
    moving = spread > 1e-9 * size  # constant entries, such as those of a Cholesky factor
    if not np.all(np.isfinite(spread)) or not np.any(moving):
        return Sampled(math.inf, Precision(math.inf, math.inf), divergent)
    scaled = (values[:, :, moving] - centre[moving]) / spread[moving]
    squares = np.square(scaled) - 1.0
    errors = [
        float(np.max(np.std(np.mean(one, axis=0), axis=0, ddof=1))) / math.sqrt(theta.shape[1])
        for one in (scaled, squares)
    ]
    shapes = (scaled, np.abs(scaled - np.median(scaled, axis=(0, 1))))
    r_hat = max(float(np.max(nested_r_hat(one))) for one in shapes)
    return Sampled(r_hat, Precision(errors[0], 0.5 * errors[1]), divergent)


def nested_r_hat(values: np.ndarray) -> np.ndarray:
    """Return the nested R̂ of each coordinate, for values with the shape (trajectories, chains,
    coordinates). Consecutive chains started at the same point.

    With B the variance of the means of these groups of chains and W the variance within the groups,
    it is √(1 + B/W). Values are not rank-normalised.

    >>> steady = np.random.default_rng(0).standard_normal((64, 64, 1))
    >>> bool(nested_r_hat(steady)[0] < 1.01)
    True
    >>> apart = np.repeat(np.linspace(-1, 1, 16), 4)[:, None]
    >>> bool(nested_r_hat(steady + apart)[0] > 1.1)
    True
    """
    steps, chains, size = values.shape
    groups = values.reshape(steps, STARTS, chains // STARTS, size)
    of_groups = np.mean(groups, axis=(0, 2))
    within = np.var(np.mean(groups, axis=0), axis=1, ddof=1) + np.mean(
        np.var(groups, axis=0, ddof=1), axis=1
    )
    return np.sqrt(1.0 + np.var(of_groups, axis=0, ddof=1) / np.mean(within, axis=0))


def _finished(solver: NaturalSolver, memory: Arrays, theta: np.ndarray, found: Sampled) -> Shared:
    """End the run with the draws of the chains as its result."""
    trajectories, chains, size = theta.shape
    whole = theta.reshape(-1, size)
    mean = np.mean(whole, axis=0)
    root = lower_root((whole - mean).T / math.sqrt(len(whole)))
    count = many_draws(size)
    used = np.linspace(0, trajectories - 1, math.ceil(count / chains)).round().astype(int)
    kept = theta[used].reshape(-1, size)
    kept = kept[np.linspace(0, len(kept) - 1, count).round().astype(int)]
    scaled = (whole - mean) / np.sqrt(np.sum(np.square(root), axis=1))
    public = {
        "mean": mean,
        "root": root,
        "more_draws": kept,
        "more_log_weights": np.full(count, -math.log(count)),
        "weighted": np.asarray(1.0),
    }
    gone = (PREFIX, "split.", "tails.", "kept.", "more")
    memory = {name: one for name, one in memory.items() if not name.startswith(gone)}
    memory |= {
        "sampled.r_hat": np.asarray(min(found.r_hat, 1e9)),
        "sampled.divergent": np.asarray(found.divergent),
        "sampled.draws": np.asarray([chains, trajectories]),
        "skewness": np.mean(scaled**3, axis=0),
        "settled": np.asarray(float(found.sound)),
    }
    memory |= {name: np.asarray(min(one, 1e9)) for name, one in found.precision._asdict().items()}
    finished = "converged" if found.sound else "rounds"
    return Shared(solver.natural(mean, root), public, memory, finished=finished)


def concluded(solver: NaturalSolver, memory: Arrays) -> Shared:
    """End a run that was stopped: with the draws so far, or with the result from before them."""
    chains = Chains.unpack(memory)
    names = [name for name in memory if name.startswith(DRAWN)]
    if len(names) < FEWEST_TRAJECTORIES:
        return finish_before(solver, memory)
    theta = _drawn(memory)
    divergent = int(chains.divergent) / (len(names) * len(chains.value))
    return _finished(solver, memory, theta, sampled(theta, solver, divergent))


def finish_before(solver: NaturalSolver, memory: Arrays) -> Shared:
    """End the run with the result from before the chains."""
    from tacit.expfam.rooted import RootedGaussian

    before = {n.removeprefix(BEFORE): one for n, one in memory.items() if n.startswith(BEFORE)}
    finished = "converged" if bool(before.pop("finished")) else "rounds"
    number = memory[f"{PREFIX}number"]  # the verdict says that the chains did not end
    memory = {name: one for name, one in memory.items() if not name.startswith(PREFIX)}
    memory |= {f"{PREFIX}number": number}
    q = solver.natural(*RootedGaussian(solver.family.dimension).moments(before))
    return Shared(q, before, memory, finished=finished, note="the chains did not end")


def _drawn(memory: Arrays) -> np.ndarray:
    names = sorted(name for name in memory if name.startswith(DRAWN))
    return np.stack([memory[name] for name in names])


def _generator(chains: Chains, purpose: int) -> np.random.Generator:
    """Return random numbers that depend only on the trajectory and the purpose."""
    key = [SEED, len(chains.mean), int(chains.number), int(chains.halvings), purpose]
    return np.random.default_rng(key)


def _ask(
    solver: NaturalSolver, shared: Shared, memory: Arrays, chains: Chains, note: str = ""
) -> Shared:
    """Request the log-joint and its gradient at the moving positions.

    A chain without a finite θ there is lost, and the position at its start is requested instead.
    """
    maps = coordinates(solver.effects, chains.chosen)
    draws = maps.to_theta(chains.psi(chains.moving))[0]
    sound = np.all(np.isfinite(draws), axis=1) & (np.max(np.abs(draws), axis=1) < FARTHEST)
    if not np.all(sound):
        moving = np.where(sound[:, None], chains.moving, chains.position)
        chains = chains._replace(moving=moving, lost=np.maximum(chains.lost, ~sound))
        draws = np.nan_to_num(maps.to_theta(chains.psi(moving))[0], posinf=0.0, neginf=0.0)
    chains = chains._replace(exchanges=chains.exchanges + 1)
    memory = memory | chains.pack() | {"phase": np.asarray(CHAINS_PHASE)}
    return Shared(shared.q, {"draws": draws}, memory, stage=SLOPES, note=note)
