"""Server side of `NaturalVI`: the server finds q with few exchanges and controls every step.

θ is unconstrained, q = N(mean, root·rootᵀ) and θ = mean + root·z. Each reply is a sum over records,
with derivatives in z (`tacit.methods.natural.party`). The server sees only the sum over parties and
adds the prior.

1. **Modes.** Each party fits the posterior given only its records and replies with a Gaussian
   approximation of its likelihood. The modes of products of these approximations are candidates.
2. **Candidates.** The server requests value, gradient and Hessian at up to five points, and chooses
   the point with the best Laplace approximation. If it is far from a mode, damped Newton steps
   follow, with five points per exchange.
3. **Steps.** Let A be −E_q[∇² log p] in z, with each eigenvalue replaced by its absolute value,
   clipped to [¼, 10⁶]. A step of length ρ leads to the precision B = (1 − ρ)I + ρA and the mean
   ρB⁻¹E_q[∇ log p], in z. This is a natural-gradient step, which does not depend on the scales of
   the coordinates. If a step lowers the evidence lower bound, five shorter lengths are tried in one
   exchange. The run has converged when a full step would move q by less than `settled_kl` nats.
   This last step is still taken.
4. **Weights.** Log-likelihoods at draws from q give importance weights, which show how far q is
   from the exact posterior (`tacit.methods.natural.weights`). Usable weights correct the moments of
   q. If the weights are uneven, draws with heavier tails are weighted instead
   (`tacit.methods.natural.tails`).
5. **Split.** If the weights show that q is wrong, q is replaced by a mixture of normals along one
   axis (`tacit.methods.natural.split`).
6. **More draws.** If weighted means or standard deviations are not precise enough, or their weights
   not good enough, up to four exchanges follow with draws from a distribution that is fitted to the
   last weighted draws (`tacit.methods.natural.more`).
7. **Chains**, if `NaturalVI.sampling` is set. If the result is still not trusted or not precise
   enough, Hamiltonian Monte Carlo samples the exact posterior (`tacit.methods.natural.chains`).

This is PVI with all parties updated together. The factor of a party has the precision −E_q[∇² log
p] over its records, and may be improper as long as q is proper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tacit.arrays import Arrays, Natural, solve_lower
from tacit.expfam import FullGaussian, Gaussian
from tacit.expfam.quadrature import weighing_draws
from tacit.expfam.rooted import RootedGaussian
from tacit.methods.natural import chains, more, split_phases, tails
from tacit.methods.natural.curvature import absolute_eigen, lower_root
from tacit.methods.natural.move import Move, Place, extrapolated, log_volume, move_of
from tacit.methods.natural.precision import Precision, Sites
from tacit.methods.natural.scale_prior import (
    TRANSFORM,
    ScaleFacts,
    mixture_draws,
    with_learnt_scales,
)
from tacit.methods.natural.stages import (
    CANDIDATE_COUNT,
    CANDIDATES,
    DISPERSION,
    EVALUATE,
    FAILED,
    SPLIT_UP_TO,
    WEIGH,
)
from tacit.methods.natural.stages import DRAWS as DRAWS_STAGE
from tacit.methods.natural.weights import CLOSE_SHARE, weigh_draws
from tacit.models.capabilities import HasEffects
from tacit.models.learnt_scale import LearntScalePrior
from tacit.server.combine import RoundSum, Shared

MAX_STEPS = 40
SLOW_STEPS, SLOW_KL = 20, 1e-2
"""After `SLOW_STEPS` steps, the solver takes no further step if a full step would move q by less
than `SLOW_KL` nats, because steps may never become smaller if the density has kinks. The importance
weights then show whether q is close to the posterior.
"""
MAX_NEWTON = 20
NO_DENSITY = (
    "no point with a finite log-density was found, usually because an outcome is outside the "
    "support of its distribution"
)
NEAR_MODE = 0.5
"""Squared Newton decrement per coordinate below which variational steps begin."""
ENERGY_SLACK = 1e-4
ENERGY_ROUNDING = 1e-11
NEWTON_DAMPING = (0.0, 0.3, 3.0, 30.0)
SHORTEST_STEP = 1e-4
REGULAR_PRECISION = 1e-13
"""Share of its diagonal that is added to a precision matrix; a badly conditioned q stays proper."""
MODES, LAPLACE, STARTS, STEP, BACKTRACK, WEIGHTS, AXIS, NODES, DRAWS = range(9)


@dataclass(frozen=True, eq=False)
class NaturalSolver:
    """Computes the server's next request from the sums of the parties' replies.

    The solver has no state. Everything that it needs from earlier rounds is in the arguments of a
    call.

    Parameters
    ----------
    family
        Family of q: full covariance, or mean-field.
    prior
        Natural parameters of the prior; None if each party adds its share of the log-prior.
    settled_kl
        The run has converged when the KL divergence of a full step is less than this many nats.
        This last step is still taken.
    scales
        Coordinates that are tried first as axes of a split (`Model.scale_coordinates`).
    scale_facts
        Facts about a prior whose scales are learned, or None. Until the scales of the columns are
        known, `prior` is used instead.
    scale_prior
        The prior with learned scales, once the scales of the columns are known.
    sites
        Function that computes the quantities that users see from draws of θ, or None if these are
        θ itself.
    sampling
        True to sample the posterior if the result is not trusted otherwise (`NaturalVI.sampling`).
    effects
        The model, if its effects can be standardised for the chains; otherwise None.
    """

    family: Gaussian
    prior: Natural | None
    settled_kl: float = 1e-4
    scales: tuple[int, ...] = ()
    scale_facts: ScaleFacts | None = None
    scale_prior: LearntScalePrior | None = None
    sites: Sites | None = None
    sampling: bool = False
    effects: HasEffects | None = None

    def __call__(self, shared: Shared, answers: RoundSum) -> Shared:
        memory = dict(shared.memory or {"phase": np.asarray(MODES)})
        phase = int(memory["phase"])
        share = np.asarray(1.0 / answers.contributors)
        if shared.public["prior_share"] != share:
            # A party has joined or left: the shares of the prior did not add up to 1, and values of
            # different sets of parties are not comparable.
            note = "parties have changed"
            if phase >= BACKTRACK:
                again = self._again(shared, memory)
                return again._replace(public=again.public | {"prior_share": share}, note=note)
            memory = {name: one for name, one in memory.items() if not name.startswith("place.")}
            public = shared.public | {"prior_share": share}
            return shared._replace(public=public, memory=memory, note=note)
        solver = self._informed(shared, memory, answers)
        after = (
            solver._after_modes,
            solver._after_laplace,
            solver._after_starts,
            solver._after_step,
            solver._after_backtrack,
            solver._after_weights,
            partial(split_phases.after_axis, solver),
            partial(split_phases.after_nodes, solver),
            partial(split_phases.after_draws, solver),
            partial(tails.after_tails, solver),
            partial(more.after_more, solver),
            partial(chains.after_chains, solver),
        )[phase]
        with np.errstate(all="ignore"):
            try:
                following = after(shared, memory, answers)
            except np.linalg.LinAlgError:
                note = "the records and the prior do not determine all parameters"
                following = self._give_up(shared, memory, note)
            if following.finished is not None and phase < more.MORE_PHASE:
                following = more.checked(solver, following)
            if following.finished is not None and phase != chains.CHAINS_PHASE:
                following = solver._sampled(following)
        if following.finished is not None:
            return following
        return following._replace(public=following.public | {"prior_share": share})

    def _again(self, shared: Shared, memory: Arrays) -> Shared:
        """Return a request that starts the steps again at the result so far, without anything else
        that was computed from earlier replies.
        """
        family = RootedGaussian(self.family.dimension)
        mean, root = family.moments(self.concluded(shared).public)
        kept = {name: one for name, one in memory.items() if name in (TRANSFORM, "centre")}
        return self._evaluate(shared, {"centre": mean} | kept | _no_steps(), mean, root)

    def _sampled(self, ended: Shared) -> Shared:
        """Return a finished state, or a request that starts Markov chains if they are allowed and
        needed.
        """
        memory = ended.memory or {}
        if not self.sampling or "weighted" not in ended.public or "mean_error" not in memory:
            return ended
        errors = Precision(float(memory["mean_error"]), float(memory["sd_error"]))
        if more.is_trusted(memory) and errors.enough:
            return ended
        mean, root = RootedGaussian(self.family.dimension).moments(ended.public)
        return chains.begin(self, ended, mean, root)

    def _informed(self, shared: Shared, memory: Arrays, answers: RoundSum) -> NaturalSolver:
        """Return the solver with `scale_prior` set, if the prior's scales are learned.

        Scales of the columns are computed from the first released Hessian and stored in `memory`.
        """
        if self.scale_facts is None or int(memory["phase"]) == MODES:
            return self
        if TRANSFORM not in memory:
            hessian = answers.total["hessian"]
            memory[TRANSFORM] = self.scale_facts.with_units(shared.public, hessian)
        return replace(self, scale_prior=self.known_scale_prior(memory))

    def known_scale_prior(self, memory: Arrays) -> LearntScalePrior | None:
        """Return the prior with learned scales. Return None if the prior's scales are not learned,
        or if the scales of the columns are not known yet.
        """
        if self.scale_facts is None or TRANSFORM not in memory:
            return None
        return self.scale_facts.prior(memory[TRANSFORM])

    def site(self, stage: str, public: Arrays, released: Arrays) -> Natural | None:
        """Return one party's factor, computed from the derivatives in its reply, or None if the
        reply has no derivatives at q.
        """
        if stage != EVALUATE or not float(released["value"]) > 0.1 * FAILED:
            return None
        inverse = solve_lower(public["root"], np.eye(len(public["mean"])))
        form = -inverse.T @ released["hessian"] @ inverse
        form = 0.5 * (form + form.T)
        linear = inverse.T @ released["gradient"] + form @ public["mean"]
        if not isinstance(self.family, FullGaussian):
            form = np.diagonal(form).copy()
            linear = inverse.T @ released["gradient"] + form * public["mean"]
        return {"linear": linear, "quadratic": -0.5 * form}

    def concluded(self, shared: Shared) -> Shared:
        """Return the state with the last q as the result, with equal importance weights.

        It is used if a run ends early.
        """
        public, memory = shared.public, shared.memory or {}
        if "weighted" in public:
            return shared
        if int(memory.get("phase", MODES)) == more.MORE_PHASE:
            return more.finish(self, memory)
        if int(memory.get("phase", MODES)) == chains.CHAINS_PHASE:
            return chains.concluded(self, memory)
        if np.ndim(public.get("mean", np.zeros((0, 0)))) == 1:
            mean, root = public["mean"], public["root"]
        elif "q.mean" in memory:
            mean, root = memory["q.mean"], memory["q.root"]
        elif "place.mean" in memory:
            mean, root = memory["place.mean"], memory["place.root"]
        else:
            mean, sd = self.family.location_scale(shared.q)
            root = np.diag(sd)
        count = len(weighing_draws(len(mean)))
        public = {
            "mean": mean,
            "root": root,
            "log_weights": np.full(count, -math.log(count)),
            "weighted": np.asarray(0.0),
        }
        return shared._replace(q=self.natural(mean, root), public=public)

    # Phases

    def _after_modes(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        total, centre = answers.total, shared.public["centre"]
        form, pull = self._prior_form()
        whole = absolute_eigen(form + total["precision"])
        points = [centre]
        for kind in ("good_", ""):
            precision = form + total[f"{kind}precision"]
            slope = pull + total[f"{kind}linear"] - precision @ centre
            points.append(centre + absolute_eigen(precision).solve(slope))
        points.append(total["modes"] / answers.contributors)
        points.append(0.5 * (points[1] + points[3]))
        if not np.any(total["good_precision"]):
            # No party has enough records for a mode. The product of such factors may be much too
            # far from the centre, so shorter moves in the same direction are tried too.
            reach = points[2] - centre
            points[1], points[4] = centre + reach / 64.0, centre + reach / 8.0
        memory |= {"centre": centre, "newton": np.asarray(0), "stalled": np.asarray(0)}
        root = lower_root(whole.inverse_root)
        return self._try_points(shared, memory, points, root)

    def _after_laplace(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        before = Place.unpack(memory)
        places = self._places(shared.public, answers.total)
        best, merit = before, -math.inf if before is None else float(memory["merit"])
        gained = 0.0
        for place in places:
            if place.failed:
                continue
            found = place.energy - 0.5 * absolute_eigen(-place.hessian).log_determinant
            found += log_volume(place.root)
            if found > merit:
                gained = found - merit
                best, merit = place, found
        newton, stalled = int(memory["newton"]), int(memory["stalled"])
        if best is None:
            if newton >= MAX_NEWTON:
                return self._give_up(shared, memory, NO_DENSITY)
            centre = memory["centre"]
            if newton:
                points = [centre + 0.5**k * (p.mean - centre) for k, p in enumerate(places, 1)]
            else:
                # The median of a vague prior may be where the likelihood overflows, and a median of
                # exactly 0 where it divides by 0.
                noise = np.random.default_rng(len(centre)).standard_normal((5, len(centre)))
                near = noise * np.diagonal(places[0].root) * 0.1
                steps = np.array([0.5, 0.25, 0.1, 0.01, 0.0])
                points = list(steps[:, None] * centre + near)
            memory |= {"newton": np.asarray(newton + 1)}
            return self._try_points(shared, memory, points, 0.1 * places[0].root)
        stalled = 0 if gained >= NEAR_MODE else stalled + 1
        memory |= best.pack() | {"merit": np.asarray(merit), "stalled": np.asarray(stalled)}
        eigen = absolute_eigen(-best.hessian)
        step = eigen.solve(best.gradient)
        size = len(best.mean)
        decrement = float(best.gradient @ step)
        near = decrement < NEAR_MODE * max(size, 4) and bool(eigen.definite)
        if near or stalled >= 2 or newton >= MAX_NEWTON:
            return self._begin_steps(shared, memory, best, clean=near)
        root = lower_root(best.root @ eigen.inverse_root)
        # In the new z the precision is the identity: damping only shortens the full step.
        shortening = 30.0**stalled
        whole = best.root @ step
        points = [best.mean + whole / (1.0 + shortening * damping) for damping in NEWTON_DAMPING]
        points.append(best.mean + 2.0 * whole)
        memory |= {"newton": np.asarray(newton + 1)}
        return self._try_points(shared, memory, points, root)

    def _begin_steps(self, shared: Shared, memory: Arrays, best: Place, *, clean: bool) -> Shared:
        eigen = absolute_eigen(-best.hessian)
        root = lower_root(self._restricted(best.root @ eigen.inverse_root))
        mean = best.mean + best.root @ eigen.solve(best.gradient) if clean else best.mean
        memory = {name: value for name, value in memory.items() if not name.startswith("place.")}
        memory |= _no_steps()
        if clean:
            return self._evaluate(shared, memory, mean, root)
        narrow = np.minimum(1.0, 0.1 / np.maximum(1e-300, np.abs(np.diagonal(root))))
        means = [best.mean, best.mean, best.mean, memory["centre"], best.mean]
        roots = [root, root / 3.0, root / 10.0, narrow[:, None] * root, 2.0 * root]
        return self._ask_candidates(shared, memory, means, roots, 1.0, STARTS)

    def _after_starts(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        places = self._places(shared.public, answers.total)
        best = max(places, key=lambda place: place.energy)
        if best.failed:
            return self._give_up(shared, memory, "no starting point has a finite lower bound")
        return self._advance(shared, memory, best, "")

    def _after_step(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        before = Place.unpack(memory)
        (place,) = self._places(shared.public, answers.total)
        if before is None and place.failed:
            best = place._replace(
                gradient=np.zeros_like(place.mean), hessian=-np.eye(len(place.mean))
            )
            return self._begin_steps(shared, memory, best, clean=False)
        if before is None or _not_lower(place, before):
            successes, limit = int(memory["successes"]) + 1, float(memory["limit"])
            if successes >= 4 and limit < 1.0:
                successes, limit = 0, min(1.0, 2.0 * limit)
            memory |= {"successes": np.asarray(successes), "limit": np.asarray(limit)}
            return self._advance(shared, memory, place, "")
        return self._shorten(shared, memory, before, float(memory["length"]))

    def _shorten(self, shared: Shared, memory: Arrays, before: Place, length: float) -> Shared:
        move = self._move(before)
        lengths = [length * 0.5**k for k in range(1, CANDIDATE_COUNT + 1)]
        pairs = [move.taken(before, one) for one in lengths]
        memory |= {"lengths": np.asarray(lengths)}
        means, roots = [mean for mean, _ in pairs], [root for _, root in pairs]
        return self._ask_candidates(shared, memory, means, roots, 1.0, BACKTRACK)

    def _after_backtrack(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        before = Place.unpack(memory)
        places = self._places(shared.public, answers.total)
        number = int(np.argmax([place.energy for place in places]))
        best, length = places[number], float(memory["lengths"][number])
        memory |= {"successes": np.asarray(0)}
        if not best.failed and (before is None or _not_lower(best, before)):
            memory |= {"limit": np.asarray(length)}
            return self._advance(shared, memory, best, "shortened")
        assert before is not None
        shortest = float(memory["lengths"][-1])
        if shortest < SHORTEST_STEP:
            return self._finish(shared, memory, before.mean, before.root, before, settled=False)
        return self._shorten(shared, memory, before, shortest)

    def _advance(self, shared: Shared, memory: Arrays, place: Place, note: str) -> Shared:
        move = self._move(place)
        divergence = move.divergence
        steps = int(memory["steps"]) + 1
        memory |= place.pack() | {"steps": np.asarray(steps), "last_change": np.asarray(divergence)}
        if divergence < self.settled_kl and move.definite:
            mean, root = move.taken(place, 1.0)
            return self._finish(shared, memory, mean, root, place, settled=True)
        slow = steps >= SLOW_STEPS and divergence < SLOW_KL and self.affordable
        if steps >= MAX_STEPS or (slow and self.scale_prior is None):
            return self._finish(shared, memory, place.mean, place.root, place, settled=False)
        length, changes = float(memory["limit"]), memory.get("changes", np.zeros(0))
        changes = np.r_[changes[-2:], divergence]
        if length == 1.0 and (longer := extrapolated(changes)) > 1.0:
            length, changes = longer, np.zeros(0)
        mean, root = move.taken(place, length)
        memory |= {"length": np.asarray(length), "changes": changes}
        following = self._evaluate(shared, memory, mean, root)
        return following._replace(energy=place.energy, moved=divergence, note=note)

    def _finish(
        self,
        shared: Shared,
        memory: Arrays,
        mean: np.ndarray,
        root: np.ndarray,
        place: Place,
        *,
        settled: bool,
    ) -> Shared:
        memory |= {"settled": np.asarray(float(settled)), "phase": np.asarray(WEIGHTS)}
        return Shared(
            q=self.natural(mean, root),
            public={"mean": mean, "root": root},
            memory=memory,
            stage=WEIGH,
            energy=place.energy,
            moved=float(memory["last_change"]),
        )

    def _after_weights(self, shared: Shared, memory: Arrays, answers: RoundSum) -> Shared:
        mean, root = shared.public["mean"], shared.public["root"]
        draws = weighing_draws(len(mean))
        log_density = -0.5 * np.sum(draws * draws, axis=1)
        theta = mean + draws @ root.T
        found = weigh_draws(theta, log_density, self.log_joint(theta, answers))
        memory |= found.facts
        if DISPERSION in answers.total:
            memory[DISPERSION] = answers.total[DISPERSION]
        doubtful = not found.believed or not bool(memory["settled"])
        affordable = self.affordable
        if affordable and self.scale_prior is not None:
            drawn = None
            if doubtful or found.effective_share < CLOSE_SHARE:
                drawn = self._draw_scales(shared, memory)
            if drawn is not None:
                return drawn
        elif affordable and (doubtful or found.uneven):
            if found.believed:
                return tails.begin(shared, memory, found)
            return split_phases.begin(self, shared, memory)
        # Usable weights that are not all about equal correct the moments of q.
        weighted = found.usable and isinstance(self.family, FullGaussian)
        public = {
            "mean": mean,
            "root": root,
            "log_weights": found.log_weights,
            "weighted": np.asarray(float(weighted)),
        }
        q = self.natural(found.mean, found.root(root)) if weighted else shared.q
        settled = bool(memory["settled"])
        return Shared(q, public, memory, finished="converged" if settled else "rounds")

    def _draw_scales(self, shared: Shared, memory: Arrays) -> Shared | None:
        """Return a request for the log-likelihood at draws from a mixture over the scales of the
        prior, or None if no draws can be made.
        """
        mean, root = shared.public["mean"], shared.public["root"]
        place = Place.unpack(memory)
        assert self.scale_prior is not None
        assert place is not None
        try:
            draws, log_density = mixture_draws(self.scale_prior, place, mean, root)
        except np.linalg.LinAlgError:  # the likelihood is not finite there
            return None
        memory |= {
            "q.mean": mean,
            "q.root": root,
            "split.cut_off": np.asarray(float(not bool(memory["settled"]))),
            "log_density": log_density,
            "phase": np.asarray(DRAWS),
        }
        return Shared(shared.q, {"draws": draws}, memory, stage=DRAWS_STAGE, note="scales drawn")

    def log_joint(self, theta: np.ndarray, answers: RoundSum) -> np.ndarray:
        """Return log p(records, θ) up to a constant for each row θ of `theta`. The value is FAILED
        if a party's log-likelihood is not finite.
        """
        fit = answers.total["log_likelihood"]
        if self.scale_prior is not None:
            prior = self.scale_prior.log_density(theta)
        else:
            form, pull = self._prior_form()
            prior = theta @ pull - 0.5 * np.sum((theta @ form) * theta, axis=1)
        return np.where(fit > 0.1 * FAILED, fit + prior, FAILED)

    def prior_slope(self, theta: np.ndarray) -> np.ndarray:
        """Return the gradient of the log-prior in θ for each row θ of `theta`. It is 0 if the
        parties add the log-prior.
        """
        if self.scale_prior is not None:
            return self.scale_prior.log_density_slope(theta)
        form, pull = self._prior_form()
        return pull - theta @ form

    def _give_up(self, shared: Shared, memory: Arrays, note: str) -> Shared:
        memory |= {"settled": np.asarray(0.0), "last_change": np.asarray(1e300)}
        return shared._replace(memory=memory, finished="no density", note=note)

    @property
    def affordable(self) -> bool:
        """True if q has a full covariance and few enough parameters for additional draws or a
        split.
        """
        return self.family.dimension <= SPLIT_UP_TO and isinstance(self.family, FullGaussian)

    # Requests

    def _try_points(
        self, shared: Shared, memory: Arrays, points: list[np.ndarray], root: np.ndarray
    ) -> Shared:
        return self._ask_candidates(shared, memory, points, [root] * CANDIDATE_COUNT, 0.0, LAPLACE)

    def _ask_candidates(
        self,
        shared: Shared,
        memory: Arrays,
        means: list[np.ndarray],
        roots: list[np.ndarray],
        spread: float,
        phase: int,
    ) -> Shared:
        public = {"mean": np.stack(means), "root": np.stack(roots), "spread": np.asarray(spread)}
        memory = memory | {"phase": np.asarray(phase)}
        return Shared(shared.q, public, memory, stage=CANDIDATES)

    def _evaluate(
        self, shared: Shared, memory: Arrays, mean: np.ndarray, root: np.ndarray
    ) -> Shared:
        del shared
        memory = memory | {"phase": np.asarray(STEP)}
        q = self.natural(mean, root)
        return Shared(q, {"mean": mean, "root": root}, memory, stage=EVALUATE)

    # Arithmetic

    def _move(self, place: Place) -> Move:
        return move_of(place, full=isinstance(self.family, FullGaussian))

    def _restricted(self, root: np.ndarray) -> np.ndarray:
        """Return a covariance root that the family of q allows.

        For a full covariance this is `root`. For a mean-field q it is diagonal, and each diagonal
        entry of the precision matrix is kept.
        """
        if isinstance(self.family, FullGaussian):
            return root
        precision = np.linalg.inv(root @ root.T)
        return np.diag(1.0 / np.sqrt(np.diagonal(precision)))

    def _places(self, public: Arrays, total: Arrays) -> list[Place]:
        """Return a `Place` for each requested point.

        A `Place` has the sum of the parties' values and derivatives, plus those of the log-prior.
        If the request is for a distribution instead of a point, its entropy is added to the value.
        """
        single = np.ndim(total["value"]) == 0
        spread = float(public.get("spread", 1.0))
        parts = [
            public["mean"],
            public["root"],
            total["value"],
            total["gradient"],
            total["hessian"],
        ]
        rows = [[part] for part in parts] if single else parts
        found = []
        for mean, root, value, gradient, hessian in zip(*rows, strict=True):
            place = Place(mean, root, float(value), gradient, hessian)
            place = self.with_prior(place, spread)
            if spread > 0:
                place = place._replace(energy=place.energy + log_volume(root))
            if not math.isfinite(place.energy):
                place = place._replace(energy=FAILED)
            found.append(place)
        return found

    def with_prior(self, place: Place, spread: float) -> Place:
        if self.scale_prior is not None:
            full = isinstance(self.family, FullGaussian)
            return with_learnt_scales(self.scale_prior, place, spread, full=full)
        if self.prior is None:
            return place
        form, pull = self._prior_form()
        inside = place.root.T @ form @ place.root
        slope = pull - form @ place.mean
        value = pull @ place.mean - 0.5 * place.mean @ form @ place.mean
        return place._replace(
            energy=place.energy + float(value) - 0.5 * spread**2 * float(np.trace(inside)),
            gradient=place.gradient + place.root.T @ slope,
            hessian=place.hessian - inside,
        )

    def _prior_form(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the precision matrix of a prior in the family, and this matrix times the prior
        mean.

        Both are zero if the parties add the log-prior.
        """
        size = self.family.dimension
        if self.prior is None:
            return np.zeros((size, size)), np.zeros(size)
        form = -2.0 * np.asarray(self.prior["quadratic"])
        return form if form.ndim == 2 else np.diag(form), np.asarray(self.prior["linear"])

    def natural(self, mean: np.ndarray, root: np.ndarray) -> Natural:
        inverse = solve_lower(root, np.eye(len(mean)))
        precision = inverse.T @ inverse
        if not isinstance(self.family, FullGaussian):
            diagonal = np.diagonal(precision).copy()
            return {"linear": diagonal * mean, "quadratic": -0.5 * diagonal}
        precision = precision + np.diag(REGULAR_PRECISION * np.diagonal(precision))
        return {"linear": precision @ mean, "quadratic": -0.5 * precision}


def _no_steps() -> Arrays:
    """Return what the server remembers of the steps before the first one."""
    return {
        "steps": np.asarray(0),
        "limit": np.asarray(1.0),
        "successes": np.asarray(0),
        "length": np.asarray(1.0),
    }


def _not_lower(place: Place, before: Place) -> bool:
    slack = ENERGY_SLACK + ENERGY_ROUNDING * abs(before.energy)
    return not place.failed and place.energy >= before.energy - slack
