"""`PrivateStatistics`: clipped expected statistics per record, summed and noised once per round.

The mechanism is the same for every conjugate-exponential model (VIPS Alg. 1–2, MEng 4.20–4.23). At
the party, the model computes the expected statistics E[T(record)] under q (`Model.statistics`). The
party releases

    Σ_{batch} min(1, C/‖E[T]‖) E[T] + N(0, noise_sd² I),

and its factor is this sum divided by the sampling rate. The next round replaces the factor λ or,
with damping ρ, moves it: λ ← (1 − ρ)λ + ρ·(new factor), the stochastic M-step. The clip is in the
model's units, in which a typical record has norm 1.

**Sensitivity.** One unit adds one contribution of norm ≤ C over all coordinates. The sensitivity is
C under add-or-remove-one and 2C under replace-one, or √2·C if the model declares its statistics
nonnegative.

**Pure ε.** With δ = 0 contributions are clipped in the L1 norm, so one unit moves the sum by at
most Δ = C or 2C. The noise is Laplace noise of scale Δ/ε in every coordinate. The L1 norm of a
matrix of d² numbers is far larger than its L2 norm, so this is only useful for few columns.

**Repair.** A noisy sum may not be a valid sum of statistics, because a precision or a count may be
negative. "truncate" takes the positive part of a precision or of counts at the party, which biases
them upwards (MEng 4.21, 4.24–4.26; VIPS, section 4). "none" keeps the raw sums, which are unbiased,
and repairs only the q that is computed from them. With `noise_aware`, the uncertainty of this q
includes the noise (module `noise_aware`).

**One shot.** `one_shot = True` is the fixed private likelihood of MEng §5.1. The party stores the
release of the first visit and repeats it, so later replies cost nothing. This requires statistics
that do not depend on q.

**Adaptive clip and count.** `adaptive` scales contributions before they are clipped, so that the
clip follows a quantile of the norms. `count_clipped` only counts the units within the clip. Both
add a coordinate of weight ω to every contribution, which then has the norm bound √(C² + ω²/4), or
C + ω/2 in the L1 norm (`tacit.methods.adaptive`).

`ExpectedStatistics` is the same method without clip and noise.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from tacit.arrays import Arrays, namespace
from tacit.errors import ConfigError
from tacit.expfam import Dirichlets, Family, Gaussian, Natural
from tacit.methods.adaptive import (
    SCALE,
    WITHIN,
    Counted,
    adapted,
    check_adaptive,
    clip_scale,
    count_weight,
    inner_clip,
    noted,
    tally_clip,
    tally_of,
    tally_weight,
)
from tacit.methods.base import Answer, Arranged, Array, LocalMethod, Task
from tacit.methods.batches import Batches, SamplingName, shuffled_rows
from tacit.methods.private import PrivateMethod, by_unit, units_present
from tacit.methods.statistics.noise_aware import aware_q, plain_q, stepped_q, summed_q
from tacit.models import ConjugateGaussian, Model, Records
from tacit.models.statistics import Statistics, whole
from tacit.privacy.bounded import Bounded, Norm, Tally, clip_sum, clip_units
from tacit.privacy.events import GaussianEvent, LaplaceEvent
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import Gaussian as GaussianMechanism
from tacit.privacy.mechanisms import Laplace as LaplaceMechanism
from tacit.privacy.sampling import summed_by_row, summed_in_blocks
from tacit.privacy.settings import check_clip
from tacit.pvi import cavity, divide, multiply, power
from tacit.server.combine import Combine, RoundSum, Run, Shared
from tacit.server.messages import UPDATE, Asked, Stage
from tacit.support.compiler import jax, jnp
from tacit.support.validation import check_fields


@dataclass(frozen=True)
class ExpectedStatistics(LocalMethod):
    """Conjugate update at q: natural parameters of the cavity plus the sum of the records'
    statistics. Not private.

    The update is exact if the statistics do not depend on q. Otherwise it is one step of coordinate
    ascent, which updates the latent variables given q and then θ. With `sampling_rate` < 1 the sum
    over a batch is divided by the batch's share of the records. This is stochastic variational
    inference, which needs damping.

    Parameters
    ----------
    sampling_rate
        Share of the records in each batch; 1 uses all of them.
    batches
        "poisson": each record is in a batch with probability `sampling_rate`. "shuffled": the
        batches of one pass contain every record once.
    dtype
        Floating-point type of the records, "float32" or "float64".
    """

    kind: ClassVar[str] = "expected-statistics"
    second_order: ClassVar[bool] = True
    takes_batches: ClassVar[bool] = True
    eager: ClassVar[bool] = True
    sampling_rate: float = 1.0
    batches: Literal["poisson", "shuffled"] = "poisson"
    dtype: str = "float64"

    def __post_init__(self) -> None:
        check_fields(self, "method")
        _ = self._drawn

    @property
    def uses_key(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.batches == "poisson"

    @property
    def _drawn(self) -> Batches:
        return Batches(self.sampling_rate, "poisson")

    def check(self, model: Model, family: Family) -> None:
        _require_statistics(self, model, family)

    def starts_at_prior(self, model: Model) -> bool:
        return not model.ties_at_prior

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        def statistics(records: Records, weights: Array) -> Statistics:
            found = model.statistics(family, task.q, records, weights)
            assert found is not None
            return found

        def summed(records: Records, weights: Array) -> Bounded:
            found = statistics(records, weights)
            return clip_sum(found.norms(), jnp.inf, weights, found.total)

        if self.batches == "shuffled":
            records, weights, rate = self._shuffled(task, traced=model.traceable)
            value = statistics(records, weights).total(weights)
        else:
            batch, _ = self._drawn.summed(key, task, summed, traced=model.traceable)
            value, rate = batch.value, self.sampling_rate
        total = jax.tree.map(lambda leaf: leaf / rate, value)
        factor = model.factor(family, task.q, total)
        return Answer(multiply(cavity(task.q, task.factor), factor), None)

    def _shuffled(self, task: Task, *, traced: bool) -> tuple[Records, Array, Array | float]:
        if self.sampling_rate == 1:
            return task.records, task.weights, 1.0
        rows, mask, share = shuffled_rows(task, self.sampling_rate, traced=traced)
        records = {name: column[rows] for name, column in task.records.items()}
        return records, mask.astype(task.weights.dtype), share


@dataclass(frozen=True, kw_only=True)
class PrivateStatistics(PrivateMethod):
    """Release the noisy sum of clipped expected statistics.

    Parameters
    ----------
    clip
        Norm to which the contribution of each unit is clipped.
    clip_end, noise_end
        Clip and noise multiplier at the last visit, relative to those at the first visit.
    sampling_rate
        Share of the units that each release samples; 1 uses all of them.
    sampling
        How a batch is drawn: "poisson" or "without-replacement".
    precision_weight
        Weight κ that multiplies second moments before clipping.
    repair
        "truncate": negative counts or precisions of a release are set to 0. "none": they are kept.
    noise_aware
        True if the posterior accounts for the noise.
    one_shot
        True: release at the first visit only; later visits repeat this release.
    adaptive
        Adapt the clip to this quantile of the contributions' norms; by default the clip is fixed.
    count_clipped
        True: also release, with every sum, a noisy count of the units within the clip.
    dtype
        Floating-point type of the records, "float32" or "float64".
    """

    kind: ClassVar[str] = "dp-statistics"
    units: ClassVar[tuple[Unit, ...]] = ("record", "person")
    eager: ClassVar[bool] = True
    takes_batches: ClassVar[bool] = True
    pure_noise: ClassVar[bool] = True
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain", "secure", "trusted", "server")
    damping: ClassVar[float | None] = 1.0
    wants_full: ClassVar[bool] = True
    uses_key: ClassVar[bool] = False
    clip: float = 1.0
    sampling_rate: float = 1.0
    sampling: SamplingName = "poisson"
    precision_weight: float = 1.0
    repair: Literal["none", "truncate"] = "none"
    noise_aware: bool = True
    one_shot: bool = False
    adaptive: float | None = None
    count_clipped: bool = False
    _nonnegative: bool = False
    dtype: str = "float32"

    @property
    def needs_one_clip(self) -> bool:
        return self.adaptive is not None or self.count_clipped

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adaptive(self.adaptive)
        _ = self.batches
        check_clip(self.precision_weight, "method.precision_weight")

    @property
    def batches(self) -> Batches:
        """Sampling of each release's batch."""
        return Batches(self.sampling_rate, self.sampling)

    def suited(self, model: Model) -> PrivateStatistics:
        return replace(self, _nonnegative=model.nonnegative_statistics)

    def starts_at_prior(self, model: Model) -> bool:
        return not model.ties_at_prior

    def check(self, model: Model, family: Family) -> None:
        _require_statistics(self, model, family)
        self.batches.check(self.adjacency)
        if self.unit != "record" and not model.traceable:
            raise ConfigError(
                f"privacy.unit = {self.unit!r} cannot be combined with model {model.kind!r}, "
                "because this model computes its statistics for each record: use privacy.unit = "
                "'record'"
            )
        if self.aggregation == "server" and not isinstance(family, Dirichlets):
            raise ConfigError(
                "privacy.aggregation = 'server' cannot be combined with model "
                f"{model.kind!r}, because it is only for models of counts: set privacy.aggregation "
                "= 'trusted'"
            )
        if self._counts:
            self._check_counts()
        if self.pure:
            self._check_pure(model, family)
        if self.repair == "truncate" and self.aggregation != "plain":
            raise ConfigError(
                "method.repair = 'truncate' cannot be combined with privacy.aggregation = "
                f"{self.aggregation!r}, because a sum of truncated numbers has less noise than is "
                "charged: set method.repair = 'none'"
            )
        fixed = isinstance(model, ConjugateGaussian) and whole(family) and self.sampling_rate == 1
        if self.one_shot and not fixed:
            raise ConfigError(
                f"method.one_shot = true cannot be combined with model {model.kind!r}, posterior "
                f"{family.kind!r} and method.sampling_rate = {self.sampling_rate}, because "
                "statistics that are released once must not depend on the current posterior or on "
                "a batch: use a conjugate model with posterior = 'full' and method.sampling_rate = "
                "1, or leave method.one_shot out"
            )

    @property
    def _counts(self) -> bool:
        """True if the number of units within the clip is released with every sum."""
        return self.count_clipped or self.adaptive is not None

    @property
    def _norm(self) -> Norm:
        """Norm in which contributions are clipped."""
        return "l1" if self.pure else "l2"

    def _check_counts(self) -> None:
        key = "count_clipped = true" if self.adaptive is None else f"adaptive = {self.adaptive}"
        if self.adjacency != "replace-one":
            raise ConfigError(
                f"method.{key} releases a count, but privacy.adjacency = {self.adjacency!r} keeps "
                "the number of records secret; set privacy.adjacency = 'replace-one', or leave the "
                "method key out"
            )
        if self.one_shot and self.adaptive is not None:
            raise ConfigError(
                f"method.{key} cannot be combined with method.one_shot = true, because the clip of "
                "a single release has nothing to adapt to: leave one of the two keys out"
            )

    def _check_pure(self, model: Model, family: Family) -> None:
        if self.sampling_rate < 1:
            raise ConfigError(
                f"method.sampling_rate = {self.sampling_rate} cannot be combined with "
                "privacy.delta = 0, because ε with delta = 0 is only computed for sums over all "
                "records: leave method.sampling_rate out"
            )
        if not model.statistics_have_l1_norms:
            raise ConfigError(
                f"privacy.delta = 0 cannot be combined with model {model.kind!r}, because the "
                "statistics of this model have no L1 norm in closed form: set a small "
                "privacy.delta, e.g. 1e-9"
            )
        del family

    def numbers(self, dimension: int) -> int:
        return (
            dimension if self._nonnegative else super().numbers(dimension)
        )  # one number per count

    def knows_noise(self, family: Family) -> bool:
        gaussian = isinstance(family, Gaussian) and whole(family)
        return self.noise_aware and self.repair == "none" and gaussian

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        del seed
        return by_unit(party, records, self.unit)

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        clip = tally_clip(clip, self._norm) if self._counts else clip
        if self.pure:
            return (LaplaceEvent(clip=clip, noise_sd=noise_sd, nonnegative=self._nonnegative),)
        return (
            GaussianEvent(
                clip=clip,
                noise_sd=noise_sd,
                sampling=self.batches.accounted(units),
                nonnegative=self._nonnegative,
            ),
        )

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        if self.one_shot and visit > 0:
            return ()
        return super().events(visit=visit, visits=visits, clip=clip, noise_sd=noise_sd, units=units)

    def release_size(self, model: Model, family: Family, stage: str) -> int:
        del model, stage
        return sum(math.prod(shape) for shape in self._sums(family).values())

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        del model, stage
        return family.shapes | ({WITHIN: ()} if self._counts else {})

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        del model, family, stage
        return {} if self.adaptive is None else {SCALE: ()}

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the released sums."""
        del model, stage
        return self._sums(family)

    def _sums(self, family: Family) -> dict[str, tuple[int, ...]]:
        count: dict[str, tuple[int, ...]] = {WITHIN: ()} if self._counts else {}
        if not isinstance(family, Gaussian):
            return dict(family.shapes) | count
        d = family.dimension
        return {"linear": (d,), "precision": (d * (d + 1) // 2 if whole(family) else d,)} | count

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """Convert released integers to the damped change of the party's factor.

        The change leads from the current factor towards the factor that follows from the released
        sums.
        """
        assert asked.q is not None
        assert asked.factor is not None
        value: Any = {name: event.step * whole_numbers for name, whole_numbers in integers.items()}
        count = value.pop(WITHIN, None)
        if self.adaptive is not None:
            value = power(value, clip_scale(asked.public))
        if not isinstance(family, Gaussian):
            (value,) = value.values()
        found = self._factor(model, family, asked.q, value)
        change = power(divide(found, asked.factor), asked.damping)
        if count is None:
            return change
        share = count / (tally_weight(event.clip, self._norm) * self.sampling_rate)
        return change | {WITHIN: np.asarray(asked.damping * share)}

    def stage_at(self, visit: int) -> Stage:
        """Return the stage of a visit; with `one_shot`, later visits repeat the first release."""
        return Stage("repeat" if self.one_shot and visit > 0 else UPDATE)

    def memory(self, model: Model, family: Family) -> Natural | None:
        """Return the method memory before the first visit: zeros with the shapes of the integers
        that the first visit will store if `one_shot` is true, otherwise None.
        """
        del model
        if not self.one_shot:
            return None
        return {name: np.zeros(shape, np.int64) for name, shape in self._sums(family).items()}

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        del key
        if task.stage == "repeat":
            return Answer(None, None, None, task.memory, task.memory)
        for_batch, for_model = jax.random.split(task.secret)

        def clipped(records: Records, weights: Array) -> Bounded:
            return self._clipped(model, family, for_model, task, records, weights)

        if self.hides_lengths and model.traceable:
            clipped = functools.partial(summed_in_blocks, clipped)
        bounded, drawn = self.batches.summed(for_batch, task, clipped, traced=model.traceable)
        noise_sd, lattice = task.terms.noise_sds[0], task.terms.lattice
        shares = jnp.inf if self.aggregation == "server" else task.terms.shares
        mechanism = GaussianMechanism(noise_sd=noise_sd, shares=shares, lattice=lattice)
        if self.pure:
            mechanism = LaplaceMechanism(noise_sd=noise_sd, lattice=lattice)
        released = mechanism.release(task.noise[0], bounded, drawn)
        costs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], released.cost)
        integers, count = released.integers, {}
        if self._counts:
            integers, count = integers[0], {WITHIN: integers[1]}
        if not isinstance(integers, dict):
            (name,) = family.shapes
            integers = {name: integers}
        integers = integers | count
        kept = integers if self.one_shot else None
        return Answer(None, None, costs, kept, integers, released.sound)

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array]:
        del key
        for_model = jax.random.split(task.secret)[1]
        weights = task.weights
        bounded = self._clipped(model, family, for_model, task, task.records, weights, tally)
        return bounded, units_present(weights)

    def clipped_visits(self, visits: int) -> dict[int, str]:
        return {0: "method.clip"} if self.one_shot else super().clipped_visits(visits)

    def server(self, run: Run) -> Combine:
        """Return the server's `Combine` function, which stores the raw sum of the releases and
        computes q from it.

        With an adaptive clip it also updates the scale of the clip. If units within the clip are
        counted, it also stores the last count.
        """
        if not self._counts:
            return self._summing(run)
        if not self.total_units > 0:
            raise ConfigError(
                f"method.adaptive = {self.adaptive}, method.count_clipped = {self.count_clipped} "
                "need the total number of records, which is not known; declare records in the "
                "federation file, or leave both method keys out"
            )

        weight = count_weight(self, run.rounds, norm=self._norm)
        counted = Counted(self.total_units, weight, signed=not self._nonnegative)
        combine = self._summing(run)
        if self.adaptive is not None:
            combine = adapted(self._summing, run, self.adaptive, counted)
        if self.one_shot:
            # Later rounds repeat the count of the first round, with the noise of that round.
            first = run.noise_sd(1)
            run = run._replace(noise_sd=lambda _: first)
        return noted(combine, run, counted)

    def _summing(self, run: Run) -> Combine:
        """Return the `Combine` function that adds up the released sums sₘ in a raw sum R.

        In a request, a party's factor is u/M, where u = q/prior, q may have been repaired, and M is
        the number of parties. With damping ρ, the update of party m is Δₘ = ρ(sₘ − u/M). If k
        parties reply, R becomes R − ρ(k/M)R + ΣΔₘ + ρ(k/M)u.
        """
        prior = run.prior
        read = aware_q if self.noise_aware and self.repair == "none" else plain_q
        if self.repair == "truncate" and isinstance(run.family, Dirichlets):
            read = summed_q
        by_step = isinstance(run.family, Gaussian) and not whole(run.family)
        unit = run.model.statistics_unit / self.sampling_rate

        def combine(shared: Shared, answers: RoundSum) -> Shared:
            q, memory, number = shared.q, shared.memory, answers.number
            part = run.damping_at(number) * answers.contributors / run.parties
            known = divide(q, prior)
            change = answers.total
            raw = power(family_part(memory, known), 1.0 - part)
            raw = multiply(multiply(raw, power(known, part)), change)
            noise = self._noise_left(memory, run, number, answers.contributors)
            sd = unit * noise
            other = sd / self.precision_weight
            if by_step:
                following = stepped_q(prior, raw, q, change, other)
            else:
                following = read(run.family, prior, raw, sd, other)
            kept = {**raw, "noise_variance": np.asarray(noise**2)}
            return shared._replace(q=following, memory=kept)

        return combine

    def _noise_left(self, memory: Arrays | None, run: Run, number: int, updates: int) -> float:
        """Return the standard deviation of the noise in the raw sum, after damping."""
        part = run.damping_at(number) * updates / run.parties
        before = 0.0 if memory is None else float(memory["noise_variance"])
        if self.one_shot and number > 1:
            # The same noise is added again: standard deviations add up, not variances.
            share = (1.0 - part) * np.sqrt(before) + part * run.noise_sd(1)
            return float(share)
        # A round has the noise of all its parties; in a sequential round each adds a share.
        added = run.damping_at(number) ** 2 * run.noise_sd(number) ** 2 * updates / run.asked
        return float(np.sqrt((1.0 - part) ** 2 * before + added))

    def _clipped(
        self,
        model: Model,
        family: Family,
        key: Array,
        task: Task,
        records: Records,
        weights: Array,
        tally: Tally | None = None,
    ) -> Bounded:
        clip, scale = task.terms.clips[0], 1.0
        if self._counts:
            tally = tally or tally_of(clip, signed=not self._nonnegative, norm=self._norm)
            clip = inner_clip(clip, self._norm)
        if self.adaptive is not None:
            scale = 1.0 / clip_scale(task.public)

        def statistics(records: Records, weights: Array) -> Statistics:
            found = model.statistics(
                family, task.q, records, weights, balance=self.precision_weight, key=key
            )
            assert found is not None
            return found

        if weights.ndim == 1:
            found = statistics(records, weights)
            norms = found.l1_norms() if self.pure else found.norms()

            def total(weights: Array) -> Any:
                sums = found.total(weights)
                if self.adaptive is None:
                    return sums
                return jax.tree.map(lambda leaf: scale * leaf, sums)

            return clip_sum(
                scale * norms,
                clip,
                weights,
                total,
                least=found.least(),
                tally=tally,
                norm=self._norm,
            )

        def row(records: Records, weights: Array) -> Any:
            return jax.vmap(lambda own, there: statistics(own, there).total(there))(
                records, weights
            )

        contributions = summed_by_row(row, records, weights)
        there = jnp.any(weights > 0, axis=1)
        if self.adaptive is not None:
            contributions = jax.tree.map(lambda leaf: scale * leaf, contributions)
        return clip_units(contributions, clip, there, tally=tally, norm=self._norm)

    def _factor(self, model: Model, family: Family, q: Natural, value: Any) -> Natural:
        """Return the factor that follows from the released sums `value`. The sums are scaled from
        the batch to all records, and repaired if `repair` is "truncate".
        """
        value = jax.tree.map(lambda leaf: leaf / self.sampling_rate, value)
        truncate = self.repair == "truncate"
        if truncate and isinstance(family, Dirichlets):
            return model.factor(family, q, namespace(value).maximum(value, 0.0))
        if truncate and not whole(family):
            second = value["precision"]
            value = {**value, "precision": namespace(second).maximum(second, 0.0)}
        factor = model.factor(family, q, value, balance=self.precision_weight)
        if truncate and whole(family):
            square = (family.dimension,) * 2
            xp = namespace(factor["quadratic"])
            sizes, axes = xp.linalg.eigh(-2.0 * factor["quadratic"].reshape(square))
            matrix = (axes * xp.maximum(sizes, 0.0)) @ axes.T
            factor["quadratic"] = -0.5 * matrix.reshape(family.shapes["quadratic"])
        return factor


def family_part(memory: Arrays | None, known: Natural) -> Natural:
    """Return the raw sum in the server's memory. Before the first round, return `known`, which is
    q/prior.
    """
    return known if memory is None else {name: memory[name] for name in known}


def _require_statistics(method: LocalMethod, model: Model, family: Family) -> None:
    if not isinstance(family, Gaussian | Dirichlets) or not model.has_statistics:
        raise ConfigError(
            f"method.kind = {method.kind!r} needs a model with expected statistics, not "
            f"{model.kind!r} with family {family.kind!r}; use method.kind = 'auto'"
        )
