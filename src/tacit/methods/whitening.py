"""`Whitened`: a private method that learns in coordinates where the features are alike.

Steps of one length and noise of one size suit features of one scale that do not vary together. Of
each party's records the first visit releases the second moment, as a noisy sum (a unit's x xᵀ has
Frobenius norm ‖x‖² ≤ B² by clipping), and nothing else. The server adds them up to M, repairs what
the noise did to it, and from then on sends, beside q, the scale-free map

    A = √(tr M / d) M^(−½)          (symmetric, of mean-square size about 1)

by which every party multiplies its x. The inner method learns θ̃ from x A, since x·θ = (x A)·θ̃ for
θ = A θ̃. At the end q(θ̃) = N(m, S) is read as q(θ) = N(A m, A S A): a full covariance, though a
mean-field one was learnt. All of it but the first release is post-processing.

**The prior holds in whitened coordinates**: θ̃ ~ N(μ, σ²), so that θ ~ N(A μ, σ² A²). With μ = 0
that says that linear predictors are about as large as before, and coefficients of features that
hardly vary, alone or against others, may be larger.

**What it costs.** The first release has `share` of the run's budget: for Gaussian releases of whole
data sets μ² = (sensitivity/s)² adds up, and the noise of the first is such that its μ² is
share/(1 − share) times that of all others together. A sampled release counts as rate·μ, which is
what it is about where it is small; whatever the split, the accountant counts all events as they
are. Under substitution the first has a sensitivity of √2·B² (see `clip_moments`), others of 2·C.

**Repair.** In the packed sum each entry has noise of sd s. Such noise alone has eigenvalues up to
s√(2d) (Wigner's semicircle), so that smaller ones of M are not told from 0: they are raised to
that, and to 1/1000 of the mean, so that no direction is stretched beyond all bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from tacit.arrays import Arrays, Natural
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
from tacit.privacy.settings import check_clip
from tacit.server.combine import Combine, RoundSum, Run, Shared
from tacit.server.messages import Stage
from tacit.support.compiler import jax, jnp

MOMENT, MAP = "moment", "map"
"""What the first replies release, and what all requests after them publish (A, packed)."""
LEAST = 1e-3


@dataclass(frozen=True, kw_only=True)
class Whitened(PrivateMethod):
    """`inner` on whitened features; `bound` is B, and `clip` always that of `inner`.

    Parameters
    ----------
    inner
        The method that learns from the whitened features.
    share
        Share of the budget for the features' second moment.
    bound
        Norm to which the features are clipped for that second moment.
    clip, clip_end, noise_end
        Those of `inner`.
    """

    kind: ClassVar[str] = "whitened"
    reads_public: ClassVar[bool] = True
    inner: DPSGD | PrivateUpdate
    share: float = 0.1
    bound: float
    clip: float = math.nan

    def __post_init__(self) -> None:
        if not isinstance(self.inner, DPSGD | PrivateUpdate):
            raise ConfigError(f"method.inner = {self.inner!r}; give a DPSGD() or a PrivateUpdate()")
        object.__setattr__(self, "clip", self.inner.clip)
        super().__post_init__()
        if not 0 < self.share < 1:
            raise ConfigError(
                f"method.whiten = {self.share}; it is the share of the budget for the features' "
                "second moment, in (0, 1)"
            )
        check_clip(self.bound, "method.whiten_bound")

    @property
    def told(self) -> DPSGD | PrivateUpdate:
        """The inner method, told what the plan has told this one."""
        return replace(self.inner, _run=self._run)

    # What the plan and the engines ask a method's class is the inner method's to say.

    @property
    def units(self) -> tuple[Unit, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Only a method that keeps a person's records together can clip all of them at once."""
        return ("record", "person") if isinstance(self.inner, DPSGD) else ("record",)

    @property
    def aggregations(self) -> tuple[Aggregation, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the inner method's; no server is sent an exact second moment."""
        return tuple(one for one in self.inner.aggregations if one != "server")

    @property
    def damping(self) -> float | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the inner method's."""
        return self.inner.damping

    @property
    def average_last(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the inner method's."""
        return self.inner.average_last

    @property
    def variable_axis(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the inner method's."""
        return self.inner.variable_axis

    @property
    def dtype(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the inner method's."""
        return self.inner.dtype

    @property
    def shards(self) -> int | None:
        """As the inner method's, where it has any."""
        return self.inner.shards if isinstance(self.inner, PrivateUpdate) else None

    def numbers(self, dimension: int) -> int:
        """How many numbers all releases but the first have."""
        return self.inner.numbers(dimension)

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(model, GeneralisedLinear):
            raise ConfigError(
                f"method.whiten = {self.share} with model {model.kind!r}; features are whitened "
                "for models that are linear in them: leave it out, or use 'logistic' or 'linear'"
            )
        self.told.check(model, family)

    def check_run(self, facts: RunFacts) -> None:
        if facts.schedule == "asynchronous" or not facts.everybody:
            raise ConfigError(
                f"method.whiten = {self.share} with schedule.kind = {facts.schedule!r}"
                f"{'' if facts.everybody else ' and parties_per_round'}; the features' second "
                "moment is that of all parties in the first round: ask everybody, in turn or "
                "at once"
            )
        if facts.rounds < 2:
            raise ConfigError(
                f"schedule.rounds = {facts.rounds} with method.whiten = {self.share}; the first "
                "round measures the features and learns nothing: at least 2 are needed"
            )
        if facts.tolerance > 0:
            raise ConfigError(
                f"schedule.tolerance = {facts.tolerance} with method.whiten = {self.share}; q does "
                "not move in the first round, which would end the run: leave it out"
            )
        if facts.one_noise:
            raise ConfigError(
                f"method.whiten = {self.share} with privacy.aggregation = 'trusted' and a clip of "
                "a party's own; the shares of the first release's noise would differ: use one clip"
            )
        self.told.check_run(facts._replace(rounds=facts.rounds - 1))

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        return self.told.arrange(party, records, seed)

    def stage_at(self, visit: int) -> Stage:
        if visit == 0:
            return Stage(MOMENT, needs_q=False, needs_factor=False)
        return self.told.stage_at(visit - 1)

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        if stage == MOMENT:
            return {MOMENT: (model.dimension * (model.dimension + 1) // 2,)}
        return self.told.released_shapes(model, family, stage)

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        if stage == MOMENT:
            return {}
        packed = model.dimension * (model.dimension + 1) // 2
        return self.told.public_shapes(model, family, stage) | {MAP: (packed,)}

    def memory(self, model: Model, family: Family) -> Natural | None:
        return self.told.memory(model, family)

    def starts_at_prior(self, model: Model) -> bool:
        return self.told.starts_at_prior(model)

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        return self.told.release(clip=clip, noise_sd=noise_sd, units=units)

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        """The second moment's at the first visit, then the inner method's."""

        def later(number: int) -> tuple[GaussianEvent, ...]:
            return self.told.events(
                visit=number, visits=visits - 1, clip=clip, noise_sd=noise_sd, units=units
            )

        if visit > 0:
            return later(visit - 1)
        rest = sum(self._square(event) for number in range(visits - 1) for event in later(number))
        first = GaussianEvent(clip=self.bound**2, noise_sd=1.0, nonnegative=True)
        noise_sd = math.sqrt(self._square(first) * (1.0 - self.share) / (self.share * rest))
        return (msgspec.structs.replace(first, noise_sd=noise_sd),)

    def _square(self, event: GaussianEvent) -> float:
        """μ² of an event, about."""
        rate = 1.0 if event.sampling is None else event.sampling.rate
        return event.count * (rate * event.sensitivity(self.adjacency) / event.noise_sd) ** 2

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        if task.stage == MOMENT:
            return self._moment(task)
        return self._learnt(model, family, key, task)

    def _moment(self, task: Task) -> Answer:
        """The noisy second moment, undamped: damping is for what is learned."""
        bounded, _ = self._clipped_moment(task)
        mechanism = Gaussian(noise_sd=task.terms.noise_sds[0], shares=task.terms.shares)
        release = mechanism.release(task.secret, bounded)
        costs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], release.cost)
        return Answer(None, None, costs, task.memory, {MOMENT: release.value})

    def _clipped_moment(self, task: Task, tally: Tally | None = None) -> tuple[Bounded, Array]:
        """The clipped second moment, and which units it is of."""
        x = task.records["x"]
        weights = task.weights
        if self.unit == "record":  # each row is a unit, however the inner method groups them
            x, weights = x.reshape(-1, x.shape[-1]), weights.reshape(-1)
        bounded = clip_moments(x, task.terms.clips[0], weights, tally=tally)
        return bounded, units_present(weights)

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array] | None:
        if task.stage == MOMENT:
            return self._clipped_moment(task, tally)
        return self.told.contributions(model, family, key, self._inner_task(task), tally)

    def clipping_biases(self, model: Model, stage: str) -> bool:
        """Of the inner method alone: q is that of θ whatever the features' map is."""
        return stage != MOMENT and self.told.clipping_biases(model, stage)

    def clipped_visits(self, visits: int) -> dict[int, str]:
        """The second moment, and what the inner method releases."""
        return {0: "method.whiten_bound", visits - 1: "method.clip"}

    def _learnt(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        return self.told.answer(model, family, key, self._inner_task(task))

    def _inner_task(self, task: Task) -> Task:
        """The task on whitened features, as the inner method counts visits."""
        x = task.records["x"]
        records = task.records | {"x": x @ unpack_symmetric(task.public[MAP]).astype(x.dtype)}
        visit = jnp.asarray(task.visit, jnp.float64)
        later = visit / task.terms.progress - 1.0  # how many visits follow the inner's first
        terms: Terms = task.terms._replace(
            releases=task.terms.releases - 1,
            progress=(visit - 1.0) / jnp.maximum(1.0, later),
        )
        return task._replace(records=records, visit=jnp.asarray(task.visit) - 1, terms=terms)

    def server(self, run: Run) -> Combine:
        """The map from the first round's sum; then the inner method's half."""
        then = self.told.server(
            run._replace(
                rounds=run.rounds - 1,
                damping_at=lambda number: run.damping_at(number + 1),
                noise_sd=lambda number: run.noise_sd(number + 1),
            )
        )
        first_noise_sd = run.noise_sd(1)
        first_inner = self.told.first_public(run.model, run.family)

        def combine(shared: Shared, answers: RoundSum) -> Shared:
            memory = shared.memory
            if answers.number == 1:
                moment = answers.total[MOMENT]
                if memory is not None:  # a sequential schedule: other parties answered before
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
        """θ = A θ̃; before the first round is over A is the identity."""
        family, inside = self.told.read(model, family, natural, public)
        mean, sd = family.location_scale(inside)
        stretch = np.eye(model.dimension)
        if MAP in public:
            stretch = np.asarray(unpack_symmetric(public[MAP]))
        covariance = (stretch * np.square(sd)) @ stretch
        full = FullGaussian(model.dimension)
        return full, full.natural(mean=stretch @ mean, covariance=covariance)


def whitened(inner: LocalMethod | None, share: float | None, bound: float | None) -> Whitened:
    """What method.whiten and method.whiten_bound ask for."""
    if share is None or bound is None:
        raise ConfigError(
            f"method.whiten = {share} and method.whiten_bound = {bound}; give both: the share of "
            "the budget, e.g. 0.1, and the norm to clip x to, e.g. the square root of how many "
            "columns are not 0 in a record"
        )
    if not isinstance(inner, DPSGD | PrivateUpdate):
        kind = "auto" if inner is None else inner.kind
        raise ConfigError(
            f"method.whiten = {share} with method.kind = {kind!r}; it is for dp-sgd and "
            "dp-updates: choose one of them, or leave it out"
        )
    return Whitened(inner=inner, share=share, bound=bound)


def whitening_map(moment: np.ndarray, noise_sd: float) -> np.ndarray:
    """A = √(tr M/d) M^(−½) of a noisy M whose packed entries have noise of that sd."""
    values, vectors = np.linalg.eigh(moment)
    d = len(values)
    values = np.maximum(values, noise_sd * math.sqrt(2.0 * d))
    values = np.maximum(values, LEAST * float(np.mean(values)))
    return (vectors * np.sqrt(np.mean(values) / values)) @ vectors.T


def unpack_symmetric(packed: Any) -> Any:
    """The matrix of `pack_symmetric`, in NumPy or JAX as what is given."""
    d = math.isqrt(2 * packed.shape[-1])
    rows, columns = np.triu_indices(d)
    place = np.zeros((d, d), dtype=np.int64)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return packed[place] * np.where(np.eye(d) > 0, 1.0, math.sqrt(0.5))
