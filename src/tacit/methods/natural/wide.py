"""Server side of `NaturalVI` for models with too many parameters for a full covariance.

q = N(mean, diag(scale²)) is the mean-field optimum, and its standard deviations are corrected at
the end. q is a distribution of φ. For regressions with the default prior, φ are the parameters of
centred columns (`wide_columns`). Otherwise φ are the parameters θ. Everything is computed from sums
over parties (`wide_party`), and in z with φ = mean + scale·z, so that the scales of single
coordinates do not matter. Of the negative expected Hessian A = −E_q[∇² log p], the server knows
only the diagonal and the products with `DIRECTION_COUNT` directions per exchange.

1. **First evaluation.** The diagonal at the starting point determines the scale of every
   coordinate, and the row of the intercept determines the centre of the columns.
2. **Steps.** A step is the solution of A x = E_q[∇ log p] in the span of the directions known so
   far. Each exchange evaluates the next q and multiplies its A with new directions. These are the
   residual, as in the method of conjugate gradients, and a random block that finds the directions
   in which coordinates are correlated. A step that lowers the evidence lower bound is shortened. If
   the gradient changes differently than predicted, the known products with A are dropped. Scales
   are computed from the diagonal.
3. **Standard deviations.** If coordinates are correlated, the variances 1/A_jj of a mean-field q
   are too small. They are replaced by those of linear response, (A⁻¹)_jj (Giordano, Broderick and
   Jordan 2018), which are computed by solving A X = Z for some unit vectors and for random signs
   (`wide_variances`). If a system is not solved accurately, the result is marked, because credible
   intervals are then too narrow.
4. **Correlations.** For generalised linear models, the mean and the standard deviations are
   computed again with expectations that account for correlations (`wide_root`).

No importance weights are computed, because for any q a few draws would have nearly all of the
weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

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
    MAX_STEPS,
    MOST_NUMBERS,
    NO_COMPARISON,
    STEP,
    Proposal,
    Seen,
    given_up,
    known_space,
    positive,
    request,
)
from tacit.methods.natural.wide_prior import CENTRE, NormalPrior, ScalesPrior
from tacit.methods.natural.wide_root import ROOT
from tacit.models.learnt_scale import LearntScalePrior
from tacit.server.combine import RoundSum, Shared

MAX_SHRUNK, SHORTEST_STEP = 5, 1e-4
WIDE_SETTLED = 1e-3
"""A run has converged if a full step moves the mean by less than this many nats. This last step is
still taken.
"""
RESOLVED = 0.3
"""Largest residual of the last step of a converged run, relative to the gradient."""
SCALE_TOLERANCE = 0.003
"""A run has converged if every log A_jj changes by at most this value, where A is the precision
matrix of the quadratic model. Common scales depend on many variances, so small differences add up.
"""
ROUGH_SETTLED, ROUGH_SCALES = 0.05, 0.05
"""`WIDE_SETTLED` and `SCALE_TOLERANCE` for a mean-field q from which the first root is computed."""
ROOT_SCALES = 0.01
"""`SCALE_TOLERANCE` for a q with a root (`wide_root`)."""
MEASURED_BELOW = 0.1
"""If a step is smaller than this many nats, every exchange requests the diagonal of the Hessian."""
SCALE_CHANGE = (0.25, 1e6)
"""Smallest and largest factor by which a coordinate's precision may change in one step."""
SAMPLED_ENERGY = 0.05
"""The evidence lower bound may decrease by this many nats if scales are recomputed from the
diagonal at the mean. A bound that is computed as an average over points has its maximum at slightly
different scales.
"""
FORGETTING = 0.5
"""Old products with A are dropped if a predicted gradient has a larger relative error than this."""
LITTLE_RESCALED, LONGEST_WITHOUT_DIAGONAL = 0.5, 1
"""Near convergence, products with A stay valid if log-scales change by less than `LITTLE_RESCALED`.
After `LONGEST_WITHOUT_DIAGONAL` accepted steps without the diagonal, it is requested.
"""
TURNS, AGREED = 30, 1e-4
"""For a prior with learned scales, the precisions of the prior and the next step are computed
alternately, at most `TURNS` times, until the log-precisions change by at most `AGREED`.
"""


@dataclass(frozen=True, eq=False)
class WideSolver:
    """Computes the server's next request from the sums of the parties' replies, as a pure
    function.

    Parameters
    ----------
    family
        The mean-field family of q.
    prior
        Natural parameters of the prior; None if each party adds its share of the log-prior.
    settled_kl
        The run has converged when a full step moves q by less than max(`settled_kl`,
        `WIDE_SETTLED`) nats.
    scales
        Coordinates that are logarithms of scales (`Model.scale_coordinates`).
    scale_facts
        Facts about a prior whose scales are learned, or None.
    free_diagonal
        True if every reply contains the diagonal of the Hessian; otherwise only on request.
    columns
        The columns of a regression whose prior has learned scales, or None.
    intercepts
        Indices of the intercepts of a regression, which are correlated with all other coordinates.
    """

    family: MeanFieldGaussian
    prior: Natural | None
    settled_kl: float = WIDE_SETTLED
    scales: tuple[int, ...] = ()
    scale_facts: ScaleFacts | None = None
    free_diagonal: bool = False
    columns: Columns | None = None
    intercepts: tuple[int, ...] = ()

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
        """Return the public arrays of the first request.

        The request asks for the log-density, its gradient and the diagonal of its Hessian at the
        point `mean` and, for a regression, for the intercept's row of the Hessian.
        """
        directions = np.zeros((DIRECTION_COUNT, len(mean)))
        if self.columns is not None:
            directions[0, self.columns.constant] = 1.0
        return request(mean, scale, np.zeros(len(mean)), None, directions, spread=0.0, exact=True)

    @property
    def rooted(self) -> bool:
        """True if expectations account for correlations between coordinates (`wide_root`)."""
        return self.free_diagonal and not self.scales

    def site(self, stage: str, public: Arrays, released: Arrays) -> Natural | None:
        """Return None, because the server stores no factors of single parties."""
        del stage, public, released

    def concluded(self, shared: Shared) -> Shared:
        """Return the state with the last q as result. It is used if a run ends early."""
        place = Seen.unpack(shared.memory or {})
        if shared.finished is not None or place is None:
            return shared._replace(public={})
        known = ("residual", "sd_noise")  # of an earlier phase
        memory = {n: v for n, v in (shared.memory or {}).items() if n not in known}
        sd = place.scale * np.sqrt(memory.get("variance", np.ones(())))
        q = self.natural(memory, place.mean, sd)
        return shared._replace(q=q, public={}, memory=memory)

    def known_scale_prior(self, memory: Arrays) -> LearntScalePrior | None:
        """Return the prior with learned scales. Return None if the prior has no learned scales, or
        if the scales of the columns are not known yet.
        """
        found = ScalesPrior.known(self.scale_facts, memory)
        return None if found is None else found.density

    # Phases

    def _after_first(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        public, total = shared.public, answers.total
        mean, scale = public["mean"], public["scale"]
        if not float(total["value"]) > 0.1 * FAILED:
            return given_up(shared, memory, "the log-density is not finite where the fit starts")
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
                return given_up(shared, memory, "no starting point has a finite lower bound")
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
        """Return a request for a shorter step, in which only the mean changes."""
        length = 0.3 * float(memory["length"])
        if length < SHORTEST_STEP:
            return wide_variances.leave(self, shared, memory, before, settled=False)
        memory |= {"length": np.asarray(length), "allowed": np.asarray(0.0)}
        mean = before.mean + length * memory["step"]
        directions = shared.public["directions"] * (shared.public["scale"] / before.scale)
        exact = bool(shared.public["exact"])
        return self.ask(shared, memory, mean, before.scale, directions, exact)

    def advance(self, shared: Shared, memory: Arrays, seen: Seen, space: Subspace) -> Shared:
        """Return the next request after an accepted step: for one more step, or for the standard
        deviations.
        """
        proposal = self._proposal(memory, seen, space)
        steps, nats = int(memory["steps"]) + 1, proposal.nats
        measured = bool(shared.public["exact"])
        precision = np.clip(positive(proposal.precision), *SCALE_CHANGE)
        off = float(np.max(np.abs(np.log(precision)))) if measured else 0.0
        memory |= seen.pack() | {
            "steps": np.asarray(steps),
            "last_change": np.asarray(nats),
            "unmeasured": np.asarray(0 if measured else int(memory["unmeasured"]) + 1),
            "space.directions": space.directions,
            "space.products": space.products,
            "renewed": np.asarray(0.0),
        }
        enough, tolerance = self._tolerances(memory)
        right = (seen.gradient + proposal.term.gradient)[None]
        resolved = float(proposal.solved.share(right)[0]) < RESOLVED or nats < 0.1 * enough
        arrived = nats < enough and resolved and proposal.solved.definite
        if arrived and measured and off <= tolerance:
            seen = seen._replace(mean=seen.mean + seen.scale * proposal.step)
            return wide_variances.leave(self, shared, memory, seen, settled=True)
        if steps >= MAX_STEPS:
            return wide_variances.leave(self, shared, memory, seen, settled=False)
        changes = off > tolerance and (ROOT not in memory or nats < MEASURED_BELOW)
        scale = seen.scale / np.sqrt(precision) if changes else seen.scale
        allowed = self._allowed(memory, precision) if changes else 0.0
        step = seen.scale * proposal.step
        if allowed > 0 and nats < MEASURED_BELOW and not self.free_diagonal:
            step = np.zeros_like(step)  # change scales first: both at once would oscillate
        memory |= {
            "step": step,
            "length": memory["limit"],
            "bend": proposal.likelihood_part(right[0]) if np.any(step) else step,
            "allowed": np.asarray(allowed),
        }
        if changes and ROOT in memory:
            memory |= {"root.rescaled": np.asarray(1.0)}
        mean = seen.mean + float(memory["length"]) * step
        wanted = np.concatenate([proposal.residual[None], space.products[-DIRECTION_COUNT:]])
        directions = space.new_directions(wanted, DIRECTION_COUNT, steps)
        exact = nats < MEASURED_BELOW or int(memory["unmeasured"]) >= LONGEST_WITHOUT_DIAGONAL
        asked = directions * (seen.scale / scale)
        following = self.ask(shared, memory, mean, scale, asked, exact)
        return following._replace(energy=seen.energy, moved=nats)

    def _tolerances(self, memory: Arrays) -> tuple[float, float]:
        """Return two limits below which steps have converged: one for the size of a step in nats,
        and one for the largest change of a log-precision.
        """
        enough = max(self.settled_kl, WIDE_SETTLED)
        if not self.rooted:
            return enough, SCALE_TOLERANCE
        return (enough, ROOT_SCALES) if ROOT in memory else (ROUGH_SETTLED, ROUGH_SCALES)

    def _allowed(self, memory: Arrays, precision: np.ndarray) -> float:
        """Return the number of nats by which the evidence lower bound may decrease if the scales of
        q change.
        """
        if ROOT in memory:
            return NO_COMPARISON  # the root is not changed, so these scales are not its optimum
        change = 0.5 * float(np.sum(1.0 / precision - 1.0 + np.log(precision)))
        return 0.5 * change if self.free_diagonal else max(change, SAMPLED_ENERGY)

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
        """Return the earlier directions with their products with the negative Hessian, or an empty
        subspace if the products are no longer valid.
        """
        size = len(seen.mean)
        if before is None:
            return Subspace.empty(size)
        space = known_space(memory, size)
        if (len(space.directions) + DIRECTION_COUNT) * size > MOST_NUMBERS:
            return Subspace.empty(size)
        ratio, length = before.scale / seen.scale, float(memory["length"])
        if bool(memory.get("renewed", np.asarray(0.0))):
            return space.rescaled(ratio)  # with a new root A changes little, unlike the gradient
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
        """Return the step to the optimum of the quadratic approximation of the objective."""
        prior = self.prior_of(memory)
        solved, precisions = self.agreed(prior, seen, space)
        term = prior.term(seen.mean, seen.scale, precision=precisions)
        precision = seen.diagonal + term.diagonal
        inner = float((seen.gradient + term.gradient) @ solved.solution[0])
        return Proposal(solved, term, precision, 0.5 * (abs(inner) + solved.missing(0)))

    def agreed(
        self, prior: NormalPrior | ScalesPrior, seen: Seen, space: Subspace
    ) -> tuple[Solved, np.ndarray]:
        """Return a full step of the mean, and the prior's precisions at the q that results from the
        step.
        """
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
        """Return the natural parameters of q over θ.

        `mean` and `sd` are those of the coordinates in which the solver works (`wide_columns`).
        """
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
        root = memory.get(ROOT)
        public = request(mean, scale, memory[CENTRE], root, directions, spread=1.0, exact=exact)
        return Shared(self.natural(memory, mean, scale), public, memory, stage=WIDE)
