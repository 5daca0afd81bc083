"""The server's half of `NaturalVI` for more parameters than a full covariance serves.

q = N(mean, diag(scale²)) is the mean-field optimum, and its standard deviations are corrected at
the end. Everything is computed in z, θ = mean + scale·z, so that the units of single coordinates
do not matter, and from sums over parties (`tacit.methods.natural.wide_party`). A = −E_q[∇²] is
known by its diagonal and by its products with `DIRECTION_COUNT` directions per exchange.

1. **First look.** The diagonal at the start gives every coordinate its scale.
2. **Steps.** A step is the solution of A x = E_q[∇] in the span of the directions known so far.
   Each exchange evaluates the next q and multiplies A there with new directions: the residual,
   which makes the steps those of conjugate gradients, and a random block that finds the directions
   in which coordinates vary together. A step that lowers the evidence lower bound is shortened;
   one that changes the gradient by other than its prediction drops what is known of A. Scales
   follow the diagonal.
3. **Standard deviations.** Those of a mean-field q are too narrow wherever coordinates are
   correlated: 1/A_jj instead of (A⁻¹)_jj, which is linear response (Giordano, Broderick and Jordan
   2018). The latter is found by solving A X = Z for unit vectors of the coordinates that vary most
   with others, and for random signs; for other coordinates see `Subspace.diagonal_of_inverse`.
   The variances of many effects and their common scale respond to each other; for scales of a
   user's model this is included. Where a system is not solved, a mark says that intervals are too
   narrow.

With so many parameters importance weights against the exact posterior are those of a few draws
whatever q is like, so that none are computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.expfam import MeanFieldGaussian
from tacit.methods.natural.scale_prior import ScaleFacts
from tacit.methods.natural.solver import ENERGY_ROUNDING, ENERGY_SLACK
from tacit.methods.natural.stages import DIRECTION_COUNT, FAILED, WIDE
from tacit.methods.natural.subspace import Solved, Subspace
from tacit.methods.natural.wide_prior import (
    FIXED,
    NormalPrior,
    ScalesPrior,
    WideTerm,
    constant_of,
)
from tacit.models.learnt_scale import LearntScalePrior
from tacit.server.combine import RoundSum, Shared

FIRST, STEP, PROBE, RESPOND = range(4)
MAX_STEPS = 60
MAX_SHRUNK = 5
SHORTEST_STEP = 1e-4
WIDE_SETTLED = 1e-3
"""Nats that a whole step may still move the mean when a run has converged; that step is taken."""
RESOLVED = 0.3
"""Residual of the last step, relative to the gradient, that is small beside the step itself."""
SCALE_TOLERANCE = 0.003
"""Of log A_jj when a run has converged. Common scales follow many variances, so that small
differences of these add up."""
MEASURED_BELOW = 0.1
"""Nats of a step from which every exchange asks for the diagonal."""
SCALE_CHANGE = (0.25, 1e6)
"""Between these the precision of a coordinate changes in one step."""
FORGETTING = 0.5
"""Error of a predicted gradient, relative to the last, from which old products are dropped."""
LITTLE_RESCALED = 0.5
LONGEST_WITHOUT_DIAGONAL = 1
"""Accepted steps, where the diagonal is not free."""
MOST_NUMBERS = 4_000_000
"""In the directions that are kept."""
MOST_SCALES = 4
"""Scales whose response is measured; it takes two exchanges each."""
HUBS = 16
"""Coordinates whose standard deviation is solved for exactly."""
MAX_PROBES = 16
PROBE_RESIDUAL = 0.05
TURNS, AGREED = 30, 1e-4
"""Of precisions of a prior with learnt scales and the next step."""
MAX_TURNS, INFLATED = 3, 0.02
"""Of learnt scales and corrected variances, and the change of log-precisions that is none."""


class Seen(NamedTuple):
    """A q and what the likelihood looks like from there, in z."""

    mean: np.ndarray
    scale: np.ndarray
    energy: float
    """Evidence lower bound up to a constant."""
    gradient: np.ndarray
    diagonal: np.ndarray
    """Of −E_q[∇²]."""

    def pack(self) -> Arrays:
        return {f"place.{name}": np.asarray(value) for name, value in self._asdict().items()}

    @classmethod
    def unpack(cls, memory: Arrays) -> Seen | None:
        if "place.mean" not in memory:
            return None
        parts = {name: memory[f"place.{name}"] for name in cls._fields}
        return cls(**parts)._replace(energy=float(parts["energy"]))


class Proposal(NamedTuple):
    """A whole step from a place."""

    solved: Solved
    term: WideTerm
    precision: np.ndarray
    """A_jj, the prior's part included."""
    nats: float
    """½ gᵀA⁻¹g, with the residual by the diagonal."""

    @property
    def step(self) -> np.ndarray:
        return self.solved.solution[0]

    @property
    def residual(self) -> np.ndarray:
        return self.solved.residual[0]


@dataclass(frozen=True, eq=False)
class WideSolver:
    """A pure function from the sums of a round to the next request.

    Parameters
    ----------
    family
        The mean-field family of q.
    prior
        Natural parameters of the prior; None where each party adds its share of it.
    settled_kl
        Nats that a whole step may still move q when the run has converged, at least `WIDE_SETTLED`.
    scales
        Coordinates that are logarithms of scales (`Model.scale_coordinates`).
    scale_facts
        Of a prior whose scales are learnt, or None.
    free_diagonal
        Whether every reply has the diagonal of the Hessian, not only where it is asked for.
    """

    family: MeanFieldGaussian
    prior: Natural | None
    settled_kl: float = WIDE_SETTLED
    scales: tuple[int, ...] = ()
    scale_facts: ScaleFacts | None = None
    free_diagonal: bool = False

    def __call__(self, shared: Shared, answers: RoundSum) -> Shared:
        memory = dict(shared.memory or {"phase": np.asarray(FIRST)})
        share = np.asarray(1.0 / answers.contributors)
        if shared.public["prior_share"] != share:
            # A party has come or gone: nothing that was added up is comparable.
            memory = {"phase": np.asarray(FIRST)}
            public = self.first(shared.public["mean"], shared.public["scale"]) | {
                "prior_share": share
            }
            return shared._replace(public=public, memory=memory, note="parties have changed")
        phases = (self._after_first, self._after_step, self._after_probe, self._after_response)
        after = phases[int(memory["phase"])]
        with np.errstate(all="ignore"):
            following = after(shared, memory, answers)
        if following.finished is not None:
            return following
        return following._replace(public=following.public | {"prior_share": share})

    def first(self, mean: np.ndarray, scale: np.ndarray) -> Arrays:
        """What the first request publishes: a point, and the direction of the constant."""
        directions = np.zeros((DIRECTION_COUNT, len(mean)))
        constant = None
        if self.scale_facts is not None:
            constant = constant_of(self.scale_facts.model.layout)
        if constant is not None:
            directions[0, constant] = 1.0
        return _request(mean, scale, directions, spread=0.0, exact=True)

    def site(self, stage: str, public: Arrays, released: Arrays) -> Natural | None:
        """None: factors of single parties are not kept."""
        del stage, public, released

    def concluded(self, shared: Shared) -> Shared:
        """The last q, for a run that ends on the way."""
        place = Seen.unpack(shared.memory or {})
        if shared.finished is not None or place is None:
            return shared._replace(public={})
        return shared._replace(q=self._natural(place.mean, place.scale), public={})

    def known_scale_prior(self, memory: Arrays) -> LearntScalePrior | None:
        """The prior whose scales are learnt, once the units of the columns are known."""
        found = ScalesPrior.known(self.scale_facts, memory)
        return None if found is None else found.density

    # Phases

    def _after_first(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        public, total = shared.public, answers.total
        mean, scale = public["mean"], public["scale"]
        if not float(total["value"]) > 0.1 * FAILED:
            return _given_up(shared, memory, "the log-density is not finite where the fit starts")
        if self.scale_facts is not None:
            row = -total["products"][0] / scale
            constant = constant_of(self.scale_facts.model.layout)
            row = row if constant is None else row / scale[constant]
            information = -total["diagonal"] / np.square(scale)
            memory |= ScalesPrior.measured(self.scale_facts, information, row)
        term = self._prior(memory).term(mean, scale, 0.0)
        precision = _positive(term.diagonal - total["diagonal"])
        gradient = (total["gradient"] + term.gradient) / np.sqrt(precision)
        scale = scale / np.sqrt(precision)
        memory |= {
            "steps": np.asarray(0),
            "length": np.asarray(1.0),
            "limit": np.asarray(1.0),
            "unmeasured": np.asarray(0),
            "shrunk": np.asarray(0),
            "allowed": np.asarray(0.0),
            "phase": np.asarray(STEP),
        }
        empty = Subspace.empty(len(mean))
        directions = empty.new_directions(gradient[None], DIRECTION_COUNT, 0)
        return self._ask(shared, memory, mean, scale, directions, exact=True)

    def _after_step(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        before = Seen.unpack(memory)
        seen = self._seen(shared.public, answers.total, memory)
        failed = not seen.energy > 0.1 * FAILED
        if before is None and failed:
            shrunk = int(memory["shrunk"]) + 1
            if shrunk > MAX_SHRUNK:
                return _given_up(shared, memory, "no starting point has a finite lower bound")
            memory |= {"shrunk": np.asarray(shrunk)}
            directions = shared.public["directions"]
            return self._ask(shared, memory, seen.mean, 0.1 * seen.scale, directions, exact=True)
        if before is not None:
            slack = ENERGY_SLACK + ENERGY_ROUNDING * abs(before.energy) + float(memory["allowed"])
            if failed or not seen.energy >= before.energy - slack:
                return self._shorten(shared, memory, before)
        space = self._remembered(memory, before, seen)
        space = space.joined(shared.public["directions"], -answers.total["products"])
        memory |= {"limit": np.asarray(min(1.0, 2.0 * float(memory["length"])))}
        return self._advance(shared, memory, seen, space)

    def _shorten(self, shared: Shared, memory: Arrays, before: Seen) -> Shared:
        """A shorter step of the mean alone."""
        length = 0.3 * float(memory["length"])
        if length < SHORTEST_STEP:
            return self._begin_probes(shared, memory, before, settled=False)
        memory |= {"length": np.asarray(length), "allowed": np.asarray(0.0)}
        mean = before.mean + length * memory["step"]
        directions = shared.public["directions"] * (shared.public["scale"] / before.scale)
        exact = bool(shared.public["exact"])
        return self._ask(shared, memory, mean, before.scale, directions, exact)

    def _advance(self, shared: Shared, memory: Arrays, seen: Seen, space: Subspace) -> Shared:
        """From an accepted place: one more step, or the standard deviations."""
        proposal = self._proposal(memory, seen, space)
        steps, nats = int(memory["steps"]) + 1, proposal.nats
        measured = bool(shared.public["exact"])
        precision = np.clip(_positive(proposal.precision), *SCALE_CHANGE)
        off = float(np.max(np.abs(np.log(precision)))) if measured else 0.0
        unmeasured = 0 if measured else int(memory["unmeasured"]) + 1
        memory |= seen.pack() | {
            "steps": np.asarray(steps),
            "last_change": np.asarray(nats),
            "unmeasured": np.asarray(unmeasured),
            "space.directions": space.directions,
            "space.products": space.products,
        }
        near = nats < max(self.settled_kl, WIDE_SETTLED)
        right = (seen.gradient + proposal.term.gradient)[None]
        resolved = float(proposal.solved.share(right)[0]) < RESOLVED or nats < 1e-9
        if near and resolved and measured and off <= SCALE_TOLERANCE and proposal.solved.definite:
            mean = seen.mean + seen.scale * proposal.step
            return self._begin_probes(shared, memory, seen._replace(mean=mean), settled=True)
        if steps >= MAX_STEPS:
            return self._begin_probes(shared, memory, seen, settled=False)
        wanted = np.concatenate([proposal.residual[None], space.products[-DIRECTION_COUNT:]])
        directions = space.new_directions(wanted, DIRECTION_COUNT, steps)
        scale, allowed = seen.scale, 0.0
        if off > SCALE_TOLERANCE:
            scale = seen.scale / np.sqrt(precision)
            allowed = 0.5 * float(np.sum(1.0 / precision - 1.0 + np.log(precision)))
        length = float(memory["limit"])
        memory |= {
            "step": seen.scale * proposal.step,
            "length": np.asarray(length),
            "bend": self._likelihood_part(proposal, right[0]),
            "allowed": np.asarray(0.5 * allowed),
        }
        mean = seen.mean + length * memory["step"]
        exact = nats < MEASURED_BELOW or unmeasured >= LONGEST_WITHOUT_DIAGONAL
        asked = directions * (seen.scale / scale)
        following = self._ask(shared, memory, mean, scale, asked, exact)
        return following._replace(energy=seen.energy, moved=nats)

    def _likelihood_part(self, proposal: Proposal, right: np.ndarray) -> np.ndarray:
        """What the likelihood's part of A makes of the step."""
        whole = right - proposal.residual
        return whole - proposal.term.products(proposal.step[None])[0]

    def _begin_probes(self, shared: Shared, memory: Arrays, seen: Seen, *, settled: bool) -> Shared:
        size = len(seen.mean)
        space = self._space(memory, size)
        precision = seen.diagonal + self._prior(memory).term(seen.mean, seen.scale).diagonal
        hubs = self._hubs(space, seen.diagonal)
        rng = np.random.default_rng([size, 0x9B0BE])
        right = rng.choice([-1.0, 1.0], (DIRECTION_COUNT, size))
        right[: len(hubs)] = 0.0
        right[np.arange(len(hubs)), hubs] = 1.0
        memory = {n: v for n, v in memory.items() if not n.startswith(("place.", "space."))}
        memory |= seen.pack() | {
            "settled": np.asarray(float(settled)),
            "precision": precision,
            "hubs": hubs.astype(np.float64),
            "right": right,
            "probes": np.asarray(0),
            "phase": np.asarray(PROBE),
        }
        directions = Subspace.empty(size).new_directions(right, DIRECTION_COUNT, MAX_STEPS)
        following = self._ask(shared, memory, seen.mean, seen.scale, directions, exact=False)
        return following._replace(energy=seen.energy, moved=float(memory["last_change"]))

    def _hubs(self, space: Subspace, diagonal: np.ndarray) -> np.ndarray:
        """Scales, and the coordinates that vary most with others, by random products."""
        few = slice(max(0, len(space.directions) - DIRECTION_COUNT), None)
        apart = space.products[few] - diagonal * space.directions[few]
        order = np.argsort(-np.linalg.norm(apart, axis=0), kind="stable")
        chosen = list(dict.fromkeys([*self.scales[:MOST_SCALES], *order.tolist()]))
        return np.array(chosen[:HUBS], dtype=np.int64)

    def _after_probe(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        place = Seen.unpack(memory)
        assert place is not None
        space = self._space(memory, len(place.mean))
        space = space.joined(shared.public["directions"], -answers.total["products"])
        prior = self._prior(memory)
        precisions = prior.precisions(place.mean, place.scale)
        term = prior.term(place.mean, place.scale, precision=precisions)
        right, basis = memory["right"], space.basis()
        gradient = answers.total["gradient"] + term.gradient
        found = space.solved(basis, term.products, np.concatenate([right, gradient[None]]))
        shares = found.share(np.concatenate([right, gradient[None]]))[:-1]
        probes = int(memory["probes"]) + 1
        failed = not float(answers.total["value"]) > 0.1 * FAILED
        done = np.max(shares) <= PROBE_RESIDUAL or len(basis[0]) >= len(place.mean)
        exhausted = (len(basis[0]) + DIRECTION_COUNT) * len(place.mean) > MOST_NUMBERS
        if not (done or failed or exhausted or probes >= MAX_PROBES):
            memory |= {
                "probes": np.asarray(probes),
                "space.directions": space.directions,
                "space.products": space.products,
            }
            directions = space.new_directions(
                found.residual[:-1], DIRECTION_COUNT, MAX_STEPS + probes
            )
            return self._ask(shared, memory, place.mean, place.scale, directions, exact=False)
        hubs = memory["hubs"].astype(np.int64)
        least = 1.0 / _positive(memory["precision"])
        variance, noise = space.diagonal_of_inverse(
            basis, term.products, right[len(hubs) :], found.solution[len(hubs) : -1]
        )
        variance[hubs] = found.solution[np.arange(len(hubs)), hubs]
        variance = np.maximum(variance, least)
        again = self._with_variances(memory, place, space, variance / least)
        if again is not None and not failed:
            place = place._replace(energy=float(again["place.energy"]))
            return self._advance(shared, again, place, space)
        step = 0.5 * float(gradient @ found.solution[-1])
        settled = bool(memory["settled"]) and found.definite and not failed and step < 0.1
        kept = {n: v for n, v in memory.items() if n.startswith(("prior.", "place."))}
        kept |= {
            "settled": np.asarray(float(settled)),
            "last_change": np.asarray(max(step, 0.0) if np.isfinite(step) else 1e300),
            "residual": np.asarray(float(np.max(shares))),
            "sd_noise": np.asarray(0.5 * noise),
            "least": least,
            "variance": variance,
        }
        count = min(len(self.scales), MOST_SCALES)
        if not settled or not count:
            return self._finished(place, kept)
        kept |= {
            "response.solution": found.solution[:count],
            "response.hubs": hubs[:count].astype(np.float64),
            "response.slopes": np.zeros((0, len(place.mean))),
            "phase": np.asarray(RESPOND),
        }
        return self._ask_response(shared, kept, place)

    def _ask_response(self, shared: Shared, memory: Arrays, place: Seen) -> Shared:
        """Ask for the diagonal on one side of q along the response to a scale."""
        number, side = divmod(len(memory["response.slopes"]), 2)
        row, hub = memory["response.solution"][number], int(memory["response.hubs"][number])
        reach = (0.5 - side) * row / np.sqrt(row[hub])
        nothing = np.zeros((DIRECTION_COUNT, len(place.mean)))
        mean = place.mean + place.scale * reach
        return self._ask(shared, memory, mean, place.scale, nothing, exact=True)

    def _after_response(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        """The variances of the other coordinates respond to a scale, and it to them.

        With w_h the change of A_jj along the response x_h = A⁻¹e_h to scale h, V the block of A⁻¹
        of the scales and W = (w_h), linear response of mean and variances has V(V − ½WWᵀ)⁻¹V in
        its place, exact for groups that are independent given their scale.
        """
        place = Seen.unpack(memory)
        assert place is not None
        slopes = np.concatenate([memory["response.slopes"], -answers.total["diagonal"][None]])
        memory |= {"response.slopes": slopes}
        rows, hubs = memory["response.solution"], memory["response.hubs"].astype(np.int64)
        if len(slopes) < 2 * len(rows):
            return self._ask_response(shared, memory, place)
        inner = rows[:, hubs]
        spread = np.sqrt(np.diagonal(inner))
        change = (slopes[0::2] - slopes[1::2]) * spread[:, None] * memory["least"]
        changed = inner - 0.5 * change @ change.T
        try:
            np.linalg.cholesky(0.5 * (changed + changed.T))
        except np.linalg.LinAlgError:
            return self._finished(place, memory | {"residual": np.asarray(1.0)})
        more = np.linalg.inv(changed) - np.linalg.inv(inner)
        added = np.sum(rows * (more @ rows), axis=0)
        return self._finished(place, memory | {"variance": memory["variance"] + added})

    def _finished(self, place: Seen, memory: Arrays) -> Shared:
        names = ("settled", "last_change", "residual", "sd_noise")
        kept = {n: v for n, v in memory.items() if n in names or n.startswith("prior.")}
        kept |= {"narrow": np.sqrt(memory["least"] / memory["variance"])}
        finished = "converged" if bool(memory["settled"]) else "rounds"
        sd = place.scale * np.sqrt(memory["variance"])
        step = float(memory["last_change"])
        q = self._natural(place.mean, sd)
        return Shared(q, {}, kept, finished=finished, energy=place.energy, moved=step)

    def _with_variances(
        self, memory: Arrays, place: Seen, space: Subspace, inflation: np.ndarray
    ) -> Arrays | None:
        """The memory to go on with where the variances change learnt scales; None: they do not.

        Precisions of the prior that agree with them and with the mean then stay fixed.
        """
        turns = int(memory.get("turns", np.asarray(0)))
        prior = ScalesPrior.known(self.scale_facts, memory)
        if prior is None or turns >= MAX_TURNS or not bool(memory["settled"]):
            return None
        used = prior.precisions(place.mean, place.scale)
        wider = prior._replace(inflation=inflation, fixed=None)
        fixed = self._agreed(wider, place, space)[1]
        if not np.max(np.abs(np.log(fixed / used))) > INFLATED:
            return None
        memory = memory | {
            FIXED: fixed,
            "turns": np.asarray(turns + 1),
            "phase": np.asarray(STEP),
            "limit": np.asarray(1.0),
        }
        term = self._prior(memory).term(place.mean, place.scale)
        value = place.energy + term.value - prior.term(place.mean, place.scale).value
        return memory | {"place.energy": np.asarray(value)}

    # Arithmetic

    def _seen(self, public: Arrays, total: Arrays, memory: Arrays) -> Seen:
        mean, scale = public["mean"], public["scale"]
        energy = float(total["value"])
        if energy > 0.1 * FAILED:
            energy += self._prior(memory).term(mean, scale).value + float(np.sum(np.log(scale)))
        diagonal = -total["diagonal"]
        before = Seen.unpack(memory)
        if not public["exact"] and before is not None:
            diagonal = before.diagonal * np.square(scale / before.scale)
        energy = energy if math.isfinite(energy) else FAILED
        return Seen(mean, scale, energy, total["gradient"], diagonal)

    def _remembered(self, memory: Arrays, before: Seen | None, seen: Seen) -> Subspace:
        """What is known of A and still holds."""
        size = len(seen.mean)
        if before is None:
            return Subspace.empty(size)
        space = self._space(memory, size)
        if (len(space.directions) + DIRECTION_COUNT) * size > MOST_NUMBERS:
            return Subspace.empty(size)
        ratio, length = before.scale / seen.scale, float(memory["length"])
        if 0 < np.max(np.abs(np.log(ratio))) < LITTLE_RESCALED:
            return space.rescaled(ratio)  # the gradient changes with the scales, A does not
        predicted = before.gradient - length * memory["bend"]
        error = np.linalg.norm(seen.gradient * ratio - predicted)
        whole = length * np.linalg.norm(
            before.gradient + self._prior(memory).term(before.mean, before.scale).gradient
        )
        return space.rescaled(ratio) if error <= FORGETTING * whole else Subspace.empty(size)

    def _space(self, memory: Arrays, size: int) -> Subspace:
        if "space.directions" not in memory:
            return Subspace.empty(size)
        return Subspace(memory["space.directions"], memory["space.products"])

    def _proposal(self, memory: Arrays, seen: Seen, space: Subspace) -> Proposal:
        """The step to the optimum of the quadratic model."""
        prior = self._prior(memory)
        solved, precisions = self._agreed(prior, seen, space)
        term = prior.term(seen.mean, seen.scale, precision=precisions)
        precision = seen.diagonal + term.diagonal
        inner = float((seen.gradient + term.gradient) @ solved.solution[0])
        rest = np.sum(np.square(solved.residual[0]) / _positive(precision))
        return Proposal(solved, term, precision, 0.5 * (abs(inner) + float(rest)))

    def _agreed(
        self, prior: NormalPrior | ScalesPrior, seen: Seen, space: Subspace
    ) -> tuple[Solved, np.ndarray]:
        """A step, and precisions of the prior that agree with the q at its end."""
        basis, precisions = space.basis(), prior.precisions(seen.mean, seen.scale)
        for _ in range(TURNS if prior.learnt else 1):
            term = prior.term(seen.mean, seen.scale, precision=precisions)
            right = (seen.gradient + term.gradient)[None]
            solved = space.solved(basis, term.products, right)
            if not prior.learnt:
                break
            precision = np.clip(np.abs(seen.diagonal + term.diagonal), *SCALE_CHANGE)
            mean = seen.mean + seen.scale * solved.solution[0]
            following = prior.precisions(mean, seen.scale / np.sqrt(precision))
            change = float(np.max(np.abs(np.log(following / precisions))))
            if not change > AGREED:
                break
            precisions = following
        return solved, precisions

    def _prior(self, memory: Arrays) -> NormalPrior | ScalesPrior:
        found = ScalesPrior.known(self.scale_facts, memory)
        return NormalPrior.of(self.prior, self.family.dimension) if found is None else found

    def _natural(self, mean: np.ndarray, sd: np.ndarray) -> Natural:
        return self.family.natural(mean=mean, sd=sd)

    def _ask(
        self,
        shared: Shared,
        memory: Arrays,
        mean: np.ndarray,
        scale: np.ndarray,
        directions: np.ndarray,
        exact: bool,
    ) -> Shared:
        del shared
        exact = exact or self.free_diagonal
        public = _request(mean, scale, directions, spread=1.0, exact=exact)
        return Shared(self._natural(mean, scale), public, memory, stage=WIDE)


def _request(
    mean: np.ndarray, scale: np.ndarray, directions: np.ndarray, *, spread: float, exact: bool
) -> Arrays:
    return {
        "mean": mean,
        "scale": scale,
        "directions": directions,
        "spread": np.asarray(spread),
        "exact": np.asarray(float(exact)),
    }


def _positive(diagonal: np.ndarray) -> np.ndarray:
    """Absolute values, and 1 for a coordinate of which nothing is known."""
    size = np.abs(diagonal)
    return np.where(size > 0, size, 1.0)


def _given_up(shared: Shared, memory: Arrays, note: str) -> Shared:
    memory |= {"settled": np.asarray(0.0), "last_change": np.asarray(1e300)}
    return shared._replace(memory=memory, public={}, finished="no density", note=note)
