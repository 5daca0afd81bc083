"""The server's half of `NaturalVI` for models with too many parameters for a full covariance.

q = N(mean, diag(scale²)) is the mean-field optimum, and its standard deviations are corrected at
the end. Its coordinates φ are θ or, for regressions with the default prior, the parameters of
centred columns (`tacit.methods.natural.wide_columns`). Everything is computed in z, φ = mean +
scale·z, so that the units of single coordinates do not matter, and from sums over parties
(`tacit.methods.natural.wide_party`). A = −E_q[∇²] is known by its diagonal and by its products with
`DIRECTION_COUNT` directions per exchange.

1. **First evaluation.** The diagonal at the start gives every coordinate its scale, and the row of
   the intercept gives the centre of the columns.
2. **Steps.** A step is the solution of A x = E_q[∇] in the span of the directions known so far.
   Each exchange evaluates the next q and multiplies A there with new directions: the residual, as
   in the method of conjugate gradients, and a random block that finds the directions in which
   coordinates are correlated. A step that lowers the evidence lower bound is shortened. If the
   gradient changes differently than predicted, the known products with A are dropped. Scales are
   computed from the diagonal.
3. **Standard deviations.** Variances of a mean-field q are too small if coordinates are correlated:
  1/A_jj instead of (A⁻¹)_jj, the linear response (Giordano, Broderick and Jordan 2018). (A⁻¹)_jj is
  computed by solving A X = Z for unit vectors of the coordinates with the strongest correlations,
  and for random signs; for other coordinates see `Subspace.diagonal_of_inverse`.
   The variances of many effects and their common scale depend on each other; for scales of a user's
   model this is included. If a system is not solved accurately, the result is marked: intervals are
   too narrow.

With so many parameters a few draws would have nearly all importance weight for any q, so no weights
are computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from tacit.arrays import Arrays, Natural
from tacit.expfam import MeanFieldGaussian
from tacit.methods.natural import wide_variances
from tacit.methods.natural.scale_prior import ScaleFacts
from tacit.methods.natural.solver import ENERGY_ROUNDING, ENERGY_SLACK
from tacit.methods.natural.stages import DIRECTION_COUNT, FAILED, WIDE
from tacit.methods.natural.subspace import Solved, Subspace
from tacit.methods.natural.wide_columns import Columns
from tacit.methods.natural.wide_place import (
    FIRST,
    MOST_NUMBERS,
    STEP,
    Seen,
    known_space,
    positive,
    request,
)
from tacit.methods.natural.wide_prior import CENTRE, NormalPrior, ScalesPrior, WideTerm
from tacit.models.learnt_scale import LearntScalePrior
from tacit.server.combine import RoundSum, Shared

MAX_SHRUNK = 5
SHORTEST_STEP = 1e-4
WIDE_SETTLED = 1e-3
"""A run has converged if a full step moves the mean by fewer nats than this; that step is taken."""
RESOLVED = 0.3
"""Largest residual of the last step of a converged run, relative to the gradient."""
SCALE_TOLERANCE = 0.003
"""Tolerance for log A_jj when a run has converged, where A is the precision matrix of the quadratic
model. Common scales depend on many variances, so small differences add up.
"""
MEASURED_BELOW = 0.1
"""If a step is smaller than this many nats, every exchange requests the diagonal of the Hessian."""
SCALE_CHANGE = (0.25, 1e6)
"""Smallest and largest factor by which a coordinate's precision may change in one step."""
SAMPLED_ENERGY = 0.05
"""The lower bound may decrease by this many nats if scales are recomputed from the diagonal at the
mean: a bound that is an average over points has its maximum at slightly different scales.
"""
FORGETTING = 0.5
"""Old products with A are dropped if the relative error of a predicted gradient exceeds this."""
LITTLE_RESCALED = 0.5
LONGEST_WITHOUT_DIAGONAL = 1
"""Largest number of accepted steps without a new diagonal, if replies do not always contain it."""
TURNS, AGREED = 30, 1e-4
"""Largest number and tolerance of the iterations that make the next step and the precisions of a
prior with learned scales agree.
"""


class Proposal(NamedTuple):
    """A full step of the mean, with its precision and length."""

    solved: Solved
    term: WideTerm
    precision: np.ndarray
    """Diagonal A_jj of the precision matrix A, including the prior's part."""
    nats: float
    """½ gᵀA⁻¹g, with the residual approximated by the diagonal."""

    @property
    def step(self) -> np.ndarray:
        return self.solved.solution[0]

    @property
    def residual(self) -> np.ndarray:
        return self.solved.residual[0]


@dataclass(frozen=True, eq=False)
class WideSolver:
    """Chooses the next request from the sums of a round, as a pure function.

    Parameters
    ----------
    family
        The mean-field family of q.
    prior
        Natural parameters of the prior; None if each party adds its share of it.
    settled_kl
        The run has converged when a full step moves q by fewer nats; at least `WIDE_SETTLED`.
    scales
        Coordinates that are logarithms of scales (`Model.scale_coordinates`).
    scale_facts
        Facts about a prior whose scales are learned, or None.
    free_diagonal
        True if every reply contains the diagonal of the Hessian; otherwise only on request.
    columns
        The columns of a regression whose prior is learned, or None.
    """

    family: MeanFieldGaussian
    prior: Natural | None
    settled_kl: float = WIDE_SETTLED
    scales: tuple[int, ...] = ()
    scale_facts: ScaleFacts | None = None
    free_diagonal: bool = False
    columns: Columns | None = None

    def __call__(self, shared: Shared, answers: RoundSum) -> Shared:
        memory = dict(shared.memory or {"phase": np.asarray(FIRST)})
        share = np.asarray(1.0 / answers.contributors)
        if shared.public["prior_share"] != share:
            # A party has joined or left: earlier sums are not comparable.
            memory = {"phase": np.asarray(FIRST)}
            mean, scale = shared.public["mean"], shared.public["scale"]
            if self.columns is not None:
                mean = self.columns.theta(mean, shared.public["centre"])
            public = self.first(mean, scale) | {"prior_share": share}
            return shared._replace(public=public, memory=memory, note="parties have changed")
        after = (
            self._after_first,
            self._after_step,
            partial(wide_variances.after_probe, self),
            partial(wide_variances.after_response, self),
        )[int(memory["phase"])]
        with np.errstate(all="ignore"):
            following = after(shared, memory, answers)
        if following.finished is not None:
            return following
        return following._replace(public=following.public | {"prior_share": share})

    def first(self, mean: np.ndarray, scale: np.ndarray) -> Arrays:
        """Return the public arrays of the first request: a point, and the direction of the
        intercept.
        """
        directions = np.zeros((DIRECTION_COUNT, len(mean)))
        if self.columns is not None:
            directions[0, self.columns.constant] = 1.0
        return request(mean, scale, np.zeros(len(mean)), directions, spread=0.0, exact=True)

    def site(self, stage: str, public: Arrays, released: Arrays) -> Natural | None:
        """Return None, because factors of single parties are not kept."""
        del stage, public, released

    def concluded(self, shared: Shared) -> Shared:
        """Return the last q, for a run that ends early."""
        place = Seen.unpack(shared.memory or {})
        if shared.finished is not None or place is None:
            return shared._replace(public={})
        q = self.natural(shared.memory or {}, place.mean, place.scale)
        return shared._replace(q=q, public={})

    def known_scale_prior(self, memory: Arrays) -> LearntScalePrior | None:
        """Return the prior with learned scales, once the scales of the columns are known."""
        found = ScalesPrior.known(self.scale_facts, memory)
        return None if found is None else found.density

    # Phases

    def _after_first(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        public, total = shared.public, answers.total
        mean, scale = public["mean"], public["scale"]
        if not float(total["value"]) > 0.1 * FAILED:
            return _given_up(shared, memory, "the log-density is not finite where the fit starts")
        gradient = total["gradient"] / scale
        information = -total["diagonal"] / np.square(scale)
        row, centre = np.zeros(len(mean)), np.zeros(len(mean))
        if self.columns is not None:
            row = -total["products"][0] / (scale * scale[self.columns.constant])
            centre = self.columns.centre(row)
        if self.scale_facts is not None:
            memory |= ScalesPrior.measured(self.scale_facts, information, row)
        memory |= {CENTRE: centre}
        if self.columns is not None:
            mean, gradient = self.columns.phi(mean, centre), self.columns.back(gradient, centre)
            moved = np.square(centre) * self.columns.of_constants(information)
            information = np.maximum(information - moved, 0.0)
        term = self.prior_of(memory).term(mean, np.ones(len(mean)), 0.0)
        scale = 1.0 / np.sqrt(positive(term.diagonal + information))
        gradient = scale * (gradient + term.gradient)
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
        return self.ask(shared, memory, mean, scale, directions, exact=True)

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
            return self.ask(shared, memory, seen.mean, 0.1 * seen.scale, directions, exact=True)
        if before is not None:
            slack = ENERGY_SLACK + ENERGY_ROUNDING * abs(before.energy) + float(memory["allowed"])
            if failed or not seen.energy >= before.energy - slack:
                return self._shorten(shared, memory, before)
        space = self._remembered(memory, before, seen)
        space = space.joined(shared.public["directions"], -answers.total["products"])
        memory |= {"limit": np.asarray(min(1.0, 2.0 * float(memory["length"])))}
        return self.advance(shared, memory, seen, space)

    def _shorten(self, shared: Shared, memory: Arrays, before: Seen) -> Shared:
        """Request a shorter step of the mean alone."""
        length = 0.3 * float(memory["length"])
        if length < SHORTEST_STEP:
            return wide_variances.begin(self, shared, memory, before, settled=False)
        memory |= {"length": np.asarray(length), "allowed": np.asarray(0.0)}
        mean = before.mean + length * memory["step"]
        directions = shared.public["directions"] * (shared.public["scale"] / before.scale)
        exact = bool(shared.public["exact"])
        return self.ask(shared, memory, mean, before.scale, directions, exact)

    def advance(self, shared: Shared, memory: Arrays, seen: Seen, space: Subspace) -> Shared:
        """Continue from an accepted place: one more step, or the standard deviations."""
        proposal = self._proposal(memory, seen, space)
        steps, nats = int(memory["steps"]) + 1, proposal.nats
        measured = bool(shared.public["exact"])
        precision = np.clip(positive(proposal.precision), *SCALE_CHANGE)
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
            return wide_variances.begin(
                self, shared, memory, seen._replace(mean=mean), settled=True
            )
        if steps >= wide_variances.MAX_STEPS:
            return wide_variances.begin(self, shared, memory, seen, settled=False)
        wanted = np.concatenate([proposal.residual[None], space.products[-DIRECTION_COUNT:]])
        directions = space.new_directions(wanted, DIRECTION_COUNT, steps)
        scale, allowed = seen.scale, 0.0
        if off > SCALE_TOLERANCE:
            scale = seen.scale / np.sqrt(precision)
            allowed = 0.5 * float(np.sum(1.0 / precision - 1.0 + np.log(precision)))
            allowed = 0.5 * allowed if self.free_diagonal else max(allowed, SAMPLED_ENERGY)
        length, step = float(memory["limit"]), seen.scale * proposal.step
        if allowed > 0 and nats < MEASURED_BELOW and not self.free_diagonal:
            step = np.zeros_like(step)  # in turn: changing mean and scales at once would oscillate
        memory |= {
            "step": step,
            "length": np.asarray(length),
            "bend": self._likelihood_part(proposal, right[0]) if np.any(step) else step,
            "allowed": np.asarray(allowed),
        }
        mean = seen.mean + length * memory["step"]
        exact = nats < MEASURED_BELOW or unmeasured >= LONGEST_WITHOUT_DIAGONAL
        asked = directions * (seen.scale / scale)
        following = self.ask(shared, memory, mean, scale, asked, exact)
        return following._replace(energy=seen.energy, moved=nats)

    def _likelihood_part(self, proposal: Proposal, right: np.ndarray) -> np.ndarray:
        """Return the product of the likelihood's part of A with the proposed step."""
        whole = right - proposal.residual
        return whole - proposal.term.products(proposal.step[None])[0]

    # Arithmetic

    def _seen(self, public: Arrays, total: Arrays, memory: Arrays) -> Seen:
        mean, scale = public["mean"], public["scale"]
        energy = float(total["value"])
        if energy > 0.1 * FAILED:
            energy += self.prior_of(memory).term(mean, scale).value + float(np.sum(np.log(scale)))
        diagonal = -total["diagonal"]
        before = Seen.unpack(memory)
        if not public["exact"] and before is not None:
            diagonal = before.diagonal * np.square(scale / before.scale)
        energy = energy if math.isfinite(energy) else FAILED
        return Seen(mean, scale, energy, total["gradient"], diagonal)

    def _remembered(self, memory: Arrays, before: Seen | None, seen: Seen) -> Subspace:
        """Return the earlier products with A that are still valid."""
        size = len(seen.mean)
        if before is None:
            return Subspace.empty(size)
        space = known_space(memory, size)
        if (len(space.directions) + DIRECTION_COUNT) * size > MOST_NUMBERS:
            return Subspace.empty(size)
        ratio, length = before.scale / seen.scale, float(memory["length"])
        near = float(memory["last_change"]) < MEASURED_BELOW
        if near and 0 < np.max(np.abs(np.log(ratio))) < LITTLE_RESCALED:
            return space.rescaled(ratio)  # the gradient changes with the scales, A does not
        predicted = before.gradient - length * memory["bend"]
        error = np.linalg.norm(seen.gradient * ratio - predicted)
        whole = length * np.linalg.norm(
            before.gradient + self.prior_of(memory).term(before.mean, before.scale).gradient
        )
        return space.rescaled(ratio) if error <= FORGETTING * whole else Subspace.empty(size)

    def _proposal(self, memory: Arrays, seen: Seen, space: Subspace) -> Proposal:
        """Return the step to the optimum of the quadratic model."""
        prior = self.prior_of(memory)
        solved, precisions = self.agreed(prior, seen, space)
        term = prior.term(seen.mean, seen.scale, precision=precisions)
        precision = seen.diagonal + term.diagonal
        inner = float((seen.gradient + term.gradient) @ solved.solution[0])
        rest = np.sum(np.square(solved.residual[0]) / positive(precision))
        return Proposal(solved, term, precision, 0.5 * (abs(inner) + float(rest)))

    def agreed(
        self, prior: NormalPrior | ScalesPrior, seen: Seen, space: Subspace
    ) -> tuple[Solved, np.ndarray]:
        """Return a step, and the prior's precisions at the q that results from it."""
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

    def prior_of(self, memory: Arrays) -> NormalPrior | ScalesPrior:
        found = ScalesPrior.known(self.scale_facts, memory)
        return NormalPrior.of(self.prior, self.family.dimension) if found is None else found

    def natural(self, memory: Arrays, mean: np.ndarray, sd: np.ndarray) -> Natural:
        """Return natural parameters of q over θ, from independent normals of φ."""
        if self.columns is not None and CENTRE in memory:
            rows = self.columns.functionals(memory[CENTRE])
            mean, sd = self.columns.theta(mean, memory[CENTRE]), sd.copy()
            sd[self.columns.constants(len(sd))] = np.linalg.norm(rows * sd, axis=1)
        return self.family.natural(mean=mean, sd=sd)

    def ask(
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
        public = request(mean, scale, memory[CENTRE], directions, spread=1.0, exact=exact)
        return Shared(self.natural(memory, mean, scale), public, memory, stage=WIDE)


def _given_up(shared: Shared, memory: Arrays, note: str) -> Shared:
    memory |= {"settled": np.asarray(0.0), "last_change": np.asarray(1e300)}
    return shared._replace(memory=memory, public={}, finished="no density", note=note)
