"""`Whitened`: a private method on whitened features.

The same step length and isotropic noise in all directions work best for uncorrelated features of
equal scale. The first visit releases only the second moment of a party's features x, as a noisy
sum. Features are clipped to norm B, so the matrix x xᵀ of a unit has Frobenius norm ‖x‖² ≤ B². The
server adds up the releases of all parties and repairs the total M (see below). From M it computes
the map

    A = √(tr M / d) M^(−½)          (symmetric, with a mean square of about 1)

for d features. Later requests contain A in addition to q, and every party multiplies its x by A.
The inner method learns θ̃ from x A, since x·θ = (x A)·θ̃ for θ = A θ̃. At the end, q(θ̃) = N(m, S)
is converted to q(θ) = N(A m, A S A), which has a full covariance although q(θ̃) is mean-field.
Everything after the first release is post-processing.

**The prior applies in whitened coordinates**: θ̃ ~ N(μ, σ²), so θ ~ N(A μ, σ² A²). With μ = 0,
linear predictors have, on average, the same prior variance as without whitening, and coefficients
of features that vary little may be larger.

**Cost.** The first release has the share `share` of the run's budget. The budget is the sum of
(sensitivity/noise sd)² over all Gaussian releases. For a release that samples its units, the term
is multiplied by the squared sampling rate, which is approximately right for small terms. Only this
division of the budget is approximate. The privacy accountant uses the actual events. Under
replace-one the first release has the sensitivity √2·B² (see `clip_moments`), and a release with
clip C has the sensitivity 2·C.

**Repair.** Each entry of the packed sum has noise of sd s. Such noise alone has eigenvalues up to
s√(2d) (Wigner's semicircle), so smaller eigenvalues of M cannot be distinguished from 0. They are
raised to s√(2d), and to at least 1/1000 of the mean eigenvalue, so that no direction is stretched
too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from tacit.arrays import Arrays, Natural, namespace
from tacit.errors import ConfigError
from tacit.expfam import Family, FullGaussian
from tacit.methods.base import Answer, Arranged, Array, LocalMethod, RunFacts, Task
from tacit.methods.dpsgd.method import DPSGD
from tacit.methods.private import PrivateMethod, Terms, units_present
from tacit.methods.update.method import PrivateUpdate
from tacit.models import GeneralisedLinear, Model, Records
from tacit.privacy.bounded import Bounded, Tally, clip_moments, pack_symmetric
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import Gaussian
from tacit.privacy.sampling import mapped_in_blocks
from tacit.privacy.settings import check_clip
from tacit.server.combine import Combine, RoundSum, Run, Shared
from tacit.server.messages import Asked, Stage
from tacit.support.compiler import jax, jnp

MOMENT, MAP = "moment", "map"
"""Names of the first release, and of the packed map A that later requests publish."""
MIN_EIGENVALUE_SHARE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Whitened(PrivateMethod):
    """Applies the method `inner` to whitened features.

    Parameters
    ----------
    inner
        The method that learns from the whitened features.
    share
        Share of the budget for the features' second moment.
    bound
        Norm to which the features are clipped for that second moment.
    clip, clip_end, noise_end
        Leave these out, because the clips and noise of `inner` are used.
    """

    kind: ClassVar[str] = "whitened"
    reads_public: ClassVar[bool] = True
    inner: DPSGD | PrivateUpdate
    share: float = 0.1
    bound: float
    clip: float = math.nan

    def __post_init__(self) -> None:
        if not isinstance(self.inner, DPSGD | PrivateUpdate):
            raise ConfigError(f"method.inner = {self.inner!r}; pass a DPSGD() or a PrivateUpdate()")
        object.__setattr__(self, "clip", self.inner.clip)
        super().__post_init__()
        if not 0 < self.share < 1:
            raise ConfigError(
                f"method.whiten = {self.share}; it is the share of the budget for the features' "
                "second moment and must be in (0, 1)"
            )
        check_clip(self.bound, "method.whiten_bound")

    @property
    def bound_inner(self) -> DPSGD | PrivateUpdate:
        """The inner method with the unit, adjacency and other facts of the same run."""
        return replace(self.inner, _run=self._run)

    # Class attributes that the plan and the engines read come from the inner method.

    @property
    def units(self) -> tuple[Unit, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Units that can be protected. Persons are only supported with `DPSGD`, which keeps a
        person's records together.
        """
        return ("record", "person") if isinstance(self.inner, DPSGD) else ("record",)

    @property
    def aggregations(self) -> tuple[Aggregation, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Aggregations of the inner method except "server".

        With "server", a party would send its exact second moment.
        """
        return tuple(one for one in self.inner.aggregations if one != "server")

    @property
    def damping(self) -> float | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Damping of the inner method."""
        return self.inner.damping

    @property
    def average_last(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Share of the rounds over which the server averages q in the inner method."""
        return self.inner.average_last

    @property
    def variable_axis(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of the axis that grows with the number of records in the inner method's arrays."""
        return self.inner.variable_axis

    @property
    def dtype(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Floating-point type of the records in the inner method."""
        return self.inner.dtype

    @property
    def shards(self) -> int | None:
        """Number of shards of the inner method; None if it has no shards."""
        return self.inner.shards if isinstance(self.inner, PrivateUpdate) else None

    def numbers(self, dimension: int) -> int:
        """Return the approximate number of values in one release of the inner method."""
        return self.inner.numbers(dimension)

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(model, GeneralisedLinear):
            raise ConfigError(
                f"method.whiten = {self.share} with model {model.kind!r}; whitening needs "
                "a linear predictor: leave method.whiten out, or use the model 'logistic' or "
                "'linear'"
            )
        self.bound_inner.check(model, family)

    def check_run(self, facts: RunFacts) -> None:
        if facts.schedule == "asynchronous" or not facts.all_parties:
            raise ConfigError(
                f"method.whiten = {self.share} with schedule.kind = "
                f"{facts.schedule!r}{'' if facts.all_parties else ' and parties_per_round'}; "
                "whitening needs all parties in the first round: use a synchronous or sequential "
                "schedule with all parties"
            )
        if facts.rounds < 2:
            raise ConfigError(
                f"schedule.rounds = {facts.rounds} with method.whiten = {self.share}; at least 2 "
                "rounds are needed, because the first round only releases the features' second "
                "moment: increase schedule.rounds"
            )
        if facts.tolerance > 0:
            raise ConfigError(
                f"schedule.tolerance = {facts.tolerance} with method.whiten = {self.share}; q does "
                "not change in the first round, so the run would end there: leave "
                "schedule.tolerance out"
            )
        if facts.one_noise:
            raise ConfigError(
                f"method.whiten = {self.share} with privacy.aggregation = {self.aggregation!r} and "
                "a different clip for one party; parties that share the noise of the first "
                "release need the same clip: use one clip for all parties"
            )
        self.bound_inner.check_run(facts._replace(rounds=facts.rounds - 1))

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        return self.bound_inner.arrange(party, records, seed)

    def stage_at(self, visit: int) -> Stage:
        if visit == 0:
            return Stage(MOMENT, needs_q=False, needs_factor=False)
        return self.bound_inner.stage_at(visit - 1)

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        if stage == MOMENT:
            return {MOMENT: (model.dimension * (model.dimension + 1) // 2,)}
        return self.bound_inner.released_shapes(model, family, stage)

    def release_size(self, model: Model, family: Family, stage: str) -> int:
        if stage == MOMENT:
            return super().release_size(model, family, stage)
        return self.bound_inner.release_size(model, family, stage)

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]] | None:
        if stage == MOMENT:
            return self.released_shapes(model, family, stage)
        return self.bound_inner.integer_shapes(model, family, stage)

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        if asked.stage == MOMENT:
            return {MOMENT: event.step * integers[MOMENT]}
        terms, visit = _inner_terms(asked.terms, np.float64(asked.visit)), asked.visit - 1
        asked = asked._replace(visit=visit, terms=terms)
        return self.bound_inner.from_integers(model, family, event, asked, integers)

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        if stage == MOMENT:
            return {}
        packed = model.dimension * (model.dimension + 1) // 2
        return self.bound_inner.public_shapes(model, family, stage) | {MAP: (packed,)}

    def memory(self, model: Model, family: Family) -> Natural | None:
        return self.bound_inner.memory(model, family)

    def starts_at_prior(self, model: Model) -> bool:
        return self.bound_inner.starts_at_prior(model)

    def summands(self, units: int) -> int:
        """Return an upper bound on the number of contributions to any release.

        The bound holds for the release of the second moment and for all releases of the inner
        method.
        """
        return max(units, self.bound_inner.summands(units))

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        return self.bound_inner.release(clip=clip, noise_sd=noise_sd, units=units)

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """Return the privacy events of a visit: at the first visit that of the second moment, later
        those of the inner method.
        """

        def later(number: int) -> tuple[GaussianEvent, ...]:
            return self.bound_inner.events(
                visit=number, visits=visits - 1, clip=clip, noise_sd=noise_sd, units=units
            )

        if visit > 0:
            return later(visit - 1)
        rest = sum(self._square(event) for number in range(visits - 1) for event in later(number))
        first = GaussianEvent(clip=self.bound**2, noise_sd=1.0, nonnegative=True)
        noise_sd = math.sqrt(self._square(first) * (1.0 - self.share) / (self.share * rest))
        return (msgspec.structs.replace(first, noise_sd=noise_sd),)

    def _square(self, event: GaussianEvent) -> float:
        # (sensitivity/noise sd)², approximately multiplied by rate² for a sampled batch.
        # Not the rate of the event, which may depend on a party's number of units: the step of the
        # first release must depend on public numbers only.
        rate = 1.0 if event.sampling is None else self.inner.sampling_rate
        return event.count * (rate * event.sensitivity(self.adjacency) / event.noise_sd) ** 2

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        if task.stage == MOMENT:
            return self._moment(task)
        return self._learnt(model, family, key, task)

    def _moment(self, task: Task) -> Answer:
        bounded, _ = self._clipped_moment(task)
        mechanism = Gaussian(
            noise_sd=task.terms.noise_sds[0],
            shares=task.terms.shares,
            lattice=task.terms.lattice,
        )
        release = mechanism.release(task.noise[0], bounded)
        costs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], release.cost)
        return Answer(
            None, None, costs, task.memory, {MOMENT: release.integers}, sound=release.sound
        )

    def _clipped_moment(self, task: Task, tally: Tally | None = None) -> tuple[Bounded, Array]:
        x = task.records["x"]
        weights = task.weights
        if self.unit == "record":  # each row is a unit, even if the inner method groups rows
            x, weights = x.reshape(-1, x.shape[-1]), weights.reshape(-1)
        bounded = clip_moments(x, task.terms.clips[0], weights, tally=tally)
        return bounded, units_present(weights)

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array] | None:
        if task.stage == MOMENT:
            return self._clipped_moment(task, tally)
        return self.bound_inner.contributions(model, family, key, self._inner_task(task), tally)

    def clipping_biases(self, model: Model, stage: str) -> bool:
        """Return False for the second moment, which only determines the map of the features. For
        other stages, return the result of the inner method.
        """
        return stage != MOMENT and self.bound_inner.clipping_biases(model, stage)

    def clipped_visits(self, visits: int) -> dict[int, str]:
        """Return a dict with one visit for each kind of release, at which clipped units are
        counted.

        Keys are 0, the visit that releases the second moment of the features, and `visits` − 1, the
        last visit of the inner method. Values are the names of the settings that clip the releases.
        """
        return {0: "method.whiten_bound", visits - 1: "method.clip"}

    def _learnt(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        return self.bound_inner.answer(model, family, key, self._inner_task(task))

    def _inner_task(self, task: Task) -> Task:
        """Return the task of the inner method: its features are whitened, and its visits are
        counted from the second one.
        """
        x = task.records["x"]
        stretch = unpack_symmetric(task.public[MAP]).astype(x.dtype)
        if self.hides_lengths:
            rows = mapped_in_blocks(lambda some: some @ stretch, x.reshape(-1, x.shape[-1]))
        else:
            rows = x @ stretch
        records = task.records | {"x": rows.reshape(x.shape)}
        terms = _inner_terms(task.terms, jnp.asarray(task.visit, jnp.float64))
        return task._replace(records=records, visit=jnp.asarray(task.visit) - 1, terms=terms)

    def server(self, run: Run) -> Combine:
        """Return the server's `Combine` function.

        In the first round the function computes the whitening map from the sum of the second
        moments. In later rounds it calls the function of the inner method.
        """
        then = self.bound_inner.server(
            run._replace(
                rounds=run.rounds - 1,
                damping_at=lambda number: run.damping_at(number + 1),
                noise_sd=lambda number: run.noise_sd(number + 1),
            )
        )
        first_noise_sd = run.noise_sd(1)
        first_inner = self.bound_inner.first_public(run.model, run.family)

        def combine(shared: Shared, answers: RoundSum) -> Shared:
            memory = shared.memory
            if answers.number == 1:
                moment = answers.total[MOMENT]
                if memory is not None:  # sequential schedule: other parties replied before
                    moment = moment + memory[MOMENT]
                found = whitening_map(unpack_symmetric(moment), first_noise_sd)
                public = first_inner | {MAP: np.asarray(pack_symmetric(found))}
                return shared._replace(public=public, memory={MOMENT: moment})
            if memory is not None and MOMENT in memory:
                shared = shared._replace(memory=None)
            return then(shared, answers._replace(number=answers.number - 1))

        return combine

    def read(
        self, model: Model, family: Family, natural: Natural, public: Arrays
    ) -> tuple[Family, Natural]:
        """Convert the posterior of the coefficients of whitened features to the posterior of θ.

        The inner method learns coefficients θ̃ with θ = A θ̃, where A is the map of
        `whitening_map`, or the identity until the first round is complete. The result has a full
        covariance.
        """
        family, inside = self.bound_inner.read(model, family, natural, public)
        mean, sd = family.location_scale(inside)
        stretch = np.eye(model.dimension)
        if MAP in public:
            stretch = np.asarray(unpack_symmetric(public[MAP]))
        covariance = (stretch * np.square(sd)) @ stretch
        full = FullGaussian(model.dimension)
        return full, full.natural(mean=stretch @ mean, covariance=covariance)


def _inner_terms(terms: Terms, visit: Array) -> Terms:
    """Return the privacy terms of the inner method, without the first visit and its release."""
    later = visit / terms.progress - 1.0  # visits after the inner method's first
    progress = (visit - 1.0) / namespace(later).maximum(1.0, later)
    return terms._replace(releases=terms.releases - 1, progress=progress)


def whitened(inner: LocalMethod | None, share: float | None, bound: float | None) -> Whitened:
    """Return the method `inner` on whitened features.

    `share` is method.whiten, and `bound` is method.whiten_bound.
    """
    if share is None or bound is None:
        raise ConfigError(
            f"method.whiten = {share} with method.whiten_bound = {bound}; set both: method.whiten "
            "is a share of the budget, e.g. 0.1, and method.whiten_bound is the norm to which x is "
            "clipped, e.g. the square root of the number of nonzero columns in a record"
        )
    if not isinstance(inner, DPSGD | PrivateUpdate):
        kind = "auto" if inner is None else inner.kind
        raise ConfigError(
            f"method.whiten = {share} with method.kind = {kind!r}; whitening supports dp-sgd "
            "and dp-updates: choose one of these methods, or leave method.whiten out"
        )
    return Whitened(inner=inner, share=share, bound=bound)


def whitening_map(moment: np.ndarray, noise_sd: float) -> np.ndarray:
    """Return the map A = √(tr M/d) M^(−½) for a noisy second moment M of d features.

    `noise_sd` is the sd of the noise in each packed entry of M. Eigenvalues of M that noise alone
    could explain are raised first.
    """
    values, vectors = np.linalg.eigh(moment)
    d = len(values)
    values = np.maximum(values, noise_sd * math.sqrt(2.0 * d))
    values = np.maximum(values, MIN_EIGENVALUE_SHARE * float(np.mean(values)))
    return (vectors * np.sqrt(np.mean(values) / values)) @ vectors.T


def unpack_symmetric(packed: Any) -> Any:
    """Return the symmetric matrix that `pack_symmetric` has packed, for NumPy or JAX arrays."""
    d = math.isqrt(2 * packed.shape[-1])
    rows, columns = np.triu_indices(d)
    place = np.zeros((d, d), dtype=np.int64)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return packed[place] * np.where(np.eye(d) > 0, 1.0, math.sqrt(0.5))
