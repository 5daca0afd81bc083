"""`PrivateUpdate`: the local update, clipped and noised once per round (TMLR §4.2).

A party's records are split into N shards. Shard k has the records xₖ, computes an update like a
separate party, and changes the natural parameters of q by Δₖ. The noisy sum of the clipped changes
is released. The computation of a shard costs nothing, because only its clipped change is released.
With the noise ξ, the party's factor tₘ and the factor tₘₖ of shard k:

| shards | objective  | shard k maximises               | released                           |
|--------|------------|---------------------------------|------------------------------------|
| 1      | either     | the party's own objective       | clip(Δ) + ξ                        |
| N      | "averaged" | N·E[log p(xₖ|θ)] − KL(q ‖ q/tₘ) | Σ clip(Δₖ/N) + ξ   (eqs 4.1, 4.7)  |
| N      | "virtual"  | E[log p(xₖ|θ)] − KL(q ‖ q/tₘₖ)  | Σ clip(Δₖ) + ξ     (eqs 4.8, 4.11) |

**Sensitivity.** One unit is in one shard, whose change is a vector of norm ≤ C with or without the
unit, so the sum moves by at most 2C. This holds under replace-one, where the new unit is in the
same shard. It also holds under add-or-remove-one, where the unit alters the change of a shard but
adds no shard. The event therefore has a clip of C under replace-one and of 2C under
add-or-remove-one. (TMLR Theorems 7 and 12 count C.) For `unit = "party"` a party makes one
contribution. The sum moves by at most C under add-or-remove-one, and by at most 2C under
replace-one.

**The factor of a shard** is tₘₖ = tₘ/N, where tₘ is the party's factor at the server. It is public,
like everything that is computed from releases. A private factor, which contains only the changes of
one shard, is valid too if it contains no noise. (With noise, a shard's next update would depend on
the records of other shards.) But with such factors the noise in q is never corrected, and
accumulates as a random walk.

**The clip of a whole party.** A change grows with the number of the party's records. MEng §4.3.2
therefore sets the clip to half the number of records. But clip, noise and step are public, and with
`unit = "party"` the number of records is protected, because replacing a party's data may change it.
A clip computed from a party's actual number of records would reveal that number, and its
sensitivity would hold only for data of that size. There are two alternatives:

* `clip_per_record` = c sets the clip Cₘ = c·nₘ of party m. The numbers nₘ are declared
  (`privacy.parties."name".records`) and never compared with the data. Party m is charged for the
  clip Cₘ.
* `adaptive` finds one clip for all parties from the noisy share of parties within the clip
  (`tacit.methods.adaptive`). Every contribution then has one more coordinate.

**Forms.** Clip and noise are applied in public coordinates, which depend only on q. Forms differ in
these coordinates, in the handling of an improper q, and in the factor by which a party's next
update is divided (`tacit.methods.update.forms`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tacit.arrays import Arrays
from tacit.errors import ConfigError, DataError
from tacit.expfam import Family, MeanFieldGaussian, Natural
from tacit.methods.adam import EPSILON
from tacit.methods.adaptive import (
    SCALE,
    WITHIN,
    Counted,
    adapted,
    check_adaptive,
    clip_scale,
    count_weight,
    inner_clip,
    tally_clip,
    tally_of,
    tally_weight,
)
from tacit.methods.base import Answer, Arranged, Array, LocalMethod, Task
from tacit.methods.exact import Exact
from tacit.methods.gradient import GradientVI
from tacit.methods.natural.method import NaturalVI
from tacit.methods.private import (
    PrivateMethod,
    contents,
    group_rows,
    person_codes,
    shard_of_content,
    shard_of_slots,
    units_present,
    without_person,
)
from tacit.methods.update.forms import (
    FORMS,
    NAMES,
    Even,
    Form,
    FormName,
    blank,
    own_factor,
    remembered,
)
from tacit.models import ConjugateGaussian, LinearPredictor, Model, Records
from tacit.models.capabilities import GaussianSites
from tacit.privacy.bounded import Bounded, Tally, clip_units, within
from tacit.privacy.events import GaussianEvent, Poisson
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import Drawn, Gaussian
from tacit.privacy.sampling import poisson_mask
from tacit.privacy.settings import check_clip
from tacit.pvi import divide, power
from tacit.server.combine import Combine, Run
from tacit.server.messages import Asked
from tacit.support.compiler import jax, jnp

UNITS_PER_SHARD = 2
FLOOR_NOISE_SDS = 1.5


@dataclass(frozen=True, kw_only=True)
class PrivateUpdate(PrivateMethod):
    """Releases the noisy sum of the clipped changes that a party's shards make to natural
    parameters.

    By default there is one shard per two units, which needs a public number of units (adjacency =
    "replace-one"). With the objective "averaged", all parties have the same number of shards.
    `steps` and `step_size` apply to generalised linear models, for which a shard takes
    natural-gradient steps by default. One full step is enough, because the next round continues
    from it.

    The default `form` is "even" for records and persons and "roll-back" for parties. With `unit =
    "party"` a party takes part in a round with probability `sampling_rate`, decided by a secret
    random number. It adds its share of the noise in any case.

    Parameters
    ----------
    clip
        Norm to which the contribution of each unit is clipped.
    clip_end, noise_end
        Clip and noise multiplier at the last visit, each divided by its value at the first visit.
    shards
        Number of shards of a party; by default one per two units.
    shard_rows
        Largest number of records in one of several shards, if the number of records is secret.
    objective
        "virtual": a shard is treated like a separate party. "averaged": the weight of each record
        is multiplied by the number of shards, and the changes of the shards are averaged.
    precision_weight
        Weight that multiplies the change of the precision before clipping, in the form "even".
    steps, step_size
        Number and length of the natural-gradient steps of a shard.
    optimiser
        "natural": shards take natural-gradient steps. "adam": shards take Adam steps, as in TMLR.
        By default natural-gradient steps where the model supports them, e.g. regressions, and Adam
        elsewhere, e.g. for networks. Conjugate models need neither.
    adam_steps, adam_rate, adam_draws
        Steps, learning rate and draws of Adam.
    adam_epsilon
        Adam's ε. By default it is negligible, and the first step moves every coordinate equally
        far, even if its gradient is small. If ε is far larger than the gradients, a step is
        proportional to the gradient. One step with adam_rate = ε/Λ, where Λ is the precision of q,
        is then a full natural-gradient step of the mean.
    form
        Coordinates in which the change is clipped; by default chosen by the unit.
    sampling_rate
        Probability that a party takes part in a round, with unit = "party".
    adaptive
        Adapt the clip to this quantile of the contributions' norms; by default the clip is fixed.
    clip_per_record
        With unit = "party": the clip of a party divided by its declared number of records.
    average_last
        Share of the rounds, at the end of the run, over which the server averages the posterior.
    dtype
        Floating-point type of the records, "float32" or "float64".
    """

    kind: ClassVar[str] = "dp-updates"
    units: ClassVar[tuple[Unit, ...]] = ("record", "person", "party")
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain", "secure", "trusted", "server")
    own_factors: ClassVar[bool] = True
    damping: ClassVar[float | None] = 0.1
    shards: int | None = None
    shard_rows: int = 64
    objective: Literal["averaged", "virtual"] = "virtual"
    clip: float = 4.0
    precision_weight: float = 0.2
    steps: int = 1
    step_size: float = 1.0
    optimiser: Literal["natural", "adam"] | None = None
    adam_steps: int = 200
    adam_rate: float = 0.05
    adam_draws: int = 8
    adam_epsilon: float = EPSILON
    average_last: float = 0.0
    form: FormName | None = None
    sampling_rate: float = 1.0
    adaptive: float | None = None
    clip_per_record: float | None = None
    dtype: str = "float32"

    @property
    def needs_one_clip(self) -> bool:
        return self.adaptive is not None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adaptive(self.adaptive)
        if self.clip_per_record is not None:
            check_clip(self.clip_per_record, "method.clip_per_record")
        if self.shards is not None and not self.shards >= 1:
            raise ConfigError(f"method.shards = {self.shards}; it must be at least 1")
        if not self.shard_rows >= 1:
            raise ConfigError(f"method.shard_rows = {self.shard_rows}; it must be at least 1")
        check_clip(self.precision_weight, "method.precision_weight")
        if not 0 <= self.average_last <= 1:
            raise ConfigError(f"method.average_last = {self.average_last}; it must be in [0, 1]")
        if not 0 < self.sampling_rate <= 1:
            raise ConfigError(f"method.sampling_rate = {self.sampling_rate}; it must be in (0, 1]")
        NaturalVI(steps=self.steps, step_size=self.step_size)  # validates them
        for key, value in (("steps", self.adam_steps), ("draws", self.adam_draws)):
            if not value >= 1:
                raise ConfigError(f"method.adam_{key} = {value}; it must be at least 1")
        for key, value in (("rate", self.adam_rate), ("epsilon", self.adam_epsilon)):
            if not 0 < value < math.inf:
                raise ConfigError(f"method.adam_{key} = {value}; it must be a finite number > 0")

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(family, MeanFieldGaussian):
            raise ConfigError(
                f"method.kind = 'dp-updates' needs posterior = 'mean-field', not {family.kind!r}; "
                "for d parameters, a full covariance would require a release of d² noisy numbers"
            )
        if self.unit == "party" and self.shards != 1:
            raise ConfigError(
                f"method.shards = {self.shards} with privacy.unit = 'party'; a party is one "
                "contribution: set shards = 1"
            )
        if self.unit != "party" and (self.sampling_rate < 1 or self.form not in (None, "even")):
            raise ConfigError(
                f"method.sampling_rate = {self.sampling_rate} and method.form = {self.form!r} with "
                f"privacy.unit = {self.unit!r}; a sampling rate below 1 and forms other than "
                "'even' are only for whole parties: leave both out, or set privacy.unit = 'party'"
            )
        if self.unit != "party" and self.aggregation == "server":
            raise ConfigError(
                f"privacy.aggregation = 'server' needs privacy.unit = 'party', not {self.unit!r}: "
                "otherwise the server's exact factor would make the update of one shard depend on "
                "the records of other shards; set privacy.unit = 'party', or choose another "
                "aggregation"
            )
        if self.shards is None and self.adjacency != "replace-one":
            raise ConfigError(
                f"method.shards is not set and privacy.adjacency = {self.adjacency!r}; the default "
                "number of shards would reveal the number of records, which is private under this "
                "adjacency: set method.shards, e.g. shards = 500"
            )
        if self.adaptive is not None and self.shards is None:
            raise ConfigError(
                f"method.adaptive = {self.adaptive} needs a public number of contributions; set "
                "method.shards, e.g. shards = 500"
            )
        if self.clip_per_record is not None and self.unit != "party":
            raise ConfigError(
                f"method.clip_per_record = {self.clip_per_record} with privacy.unit = "
                f"{self.unit!r}; it is for whole parties: set method.clip instead, or "
                "privacy.unit = 'party'"
            )
        self._inner(model).check(model, family)

    def party_clip(self, party: str, records: int | None) -> float:
        if self.clip_per_record is None:
            return super().party_clip(party, records)
        if records is None:
            raise ConfigError(
                f"method.clip_per_record = {self.clip_per_record} needs the public number of "
                f'records of every party, but privacy.parties."{party}".records is not set; '
                "declare it, or set method.clip"
            )
        return self.clip_per_record * records

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        plain = without_person(records)
        rows = np.arange(len(next(iter(plain.values()))))
        codes = person_codes(party, records) if self.unit == "person" else rows
        count = int(codes.max()) + 1
        shards = self.shards_of(count)
        if shards == 1:
            shard = np.zeros(count, dtype=np.int64)
        elif self.adjacency == "replace-one":
            shard = shard_of_slots(party, count, shards, seed)
        else:
            shard = shard_of_content(party, contents(plain, codes, count), shards, seed)
        grouped = group_rows(plain, shard[codes], shards)
        if shards == 1 or not self.hides_lengths:
            return grouped
        return self._lengthened(party, grouped)

    def _lengthened(self, party: str, grouped: Arranged) -> Arranged:
        """Return the shards with `shard_rows` rows each.

        The contribution of a shard may depend on the length of its array, because different lengths
        are rounded differently. The length must therefore not depend on the records of others.
        """
        most = grouped.weights.shape[1]
        if most > self.shard_rows:
            raise DataError(
                f"party {party!r}: a shard has {most} records, but at most method.shard_rows = "
                f"{self.shard_rows} are allowed; increase method.shards or method.shard_rows"
            )

        def padded(column: np.ndarray) -> np.ndarray:
            more = np.repeat(column[:, :1], self.shard_rows - most, axis=1)
            return np.concatenate([column, more], axis=1)

        weights = np.pad(grouped.weights, ((0, 0), (0, self.shard_rows - most)))
        return Arranged({name: padded(one) for name, one in grouped.records.items()}, weights)

    def shards_of(self, units: int) -> int:
        """Return the number of shards of a party with `units` units."""
        if self.shards is not None:
            return self.shards
        if self.objective == "averaged":
            units = math.ceil(self.total_units / self.parties)
        return math.ceil(units / UNITS_PER_SHARD)

    def summands(self, units: int) -> int:
        """Return the number of shards, including shards without records."""
        return self.shards_of(units)

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        del units
        sampling = Poisson(rate=self.sampling_rate) if self.sampling_rate < 1 else None
        clip = clip if self.adaptive is None else tally_clip(clip)
        clip = clip if self._adds else 2.0 * clip
        return (GaussianEvent(clip=clip, noise_sd=noise_sd, sampling=sampling),)

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]] | None:
        del model, stage
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(NAMES, (family.dimension,))
        return shapes if self.adaptive is None else shapes | {WITHIN: ()}

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        del model, stage
        return family.shapes if self.adaptive is None else family.shapes | {WITHIN: ()}

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        del model, family, stage
        return {} if self.adaptive is None else {SCALE: ()}

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """Return the damped change of natural parameters that the released integers encode."""
        del model, family
        assert asked.q is not None
        value = {name: event.step * integers[name] for name in NAMES}
        if self.adaptive is None:
            return power(self._form.natural(asked.q, value), asked.damping)
        value = power(value, clip_scale(asked.public))
        share = event.step * integers[WITHIN] / tally_weight(self._contributed(event.clip))
        count = {WITHIN: np.asarray(asked.damping * share)}
        return power(self._form.natural(asked.q, value), asked.damping) | count

    def _contributed(self, clip: Array) -> Array:
        return clip if self._adds else clip / 2.0

    @property
    def _adds(self) -> bool:
        """True if the clip of a privacy event is the norm bound of one contribution. If False, the
        clip of the event is twice this bound.
        """
        return self.unit == "party" or self.adjacency == "replace-one"

    def starts_at_prior(self, model: Model) -> bool:
        """Return False for a model with a linear predictor and the form "even", otherwise True.

        A wide prior has little curvature, so a first step from the prior could be too long.
        """
        return not (isinstance(self._form, Even) and isinstance(model, LinearPredictor))

    @property
    def _form(self) -> Form:
        name = self.form or ("roll-back" if self.unit == "party" else "even")
        return FORMS[name](self.precision_weight)

    @property
    def _keeps(self) -> bool:
        return self._form.own_factor and self.aggregation != "server"

    def memory(self, model: Model, family: Family) -> Natural | None:
        """Return the initial method memory of a party, or None if the form needs no memory.

        It has the party's factor, its last change, and the q of its last visit.
        """
        del model
        return blank(family) if self._keeps else None

    def server(self, run: Run) -> Combine:
        if self.adaptive is None:
            return self._combining(run)

        weight = count_weight(self, run.rounds)
        return adapted(
            self._combining, run, self.adaptive, Counted(run.parties * self.shards_of(0), weight)
        )

    def _combining(self, run: Run) -> Combine:
        def floor(q: Natural, number: int) -> Array:
            # After repeated damping by ρ, the noise in q has ρ/(2 − ρ) of the variance of one
            # round.
            damping = run.damping_at(number)
            scale = self._form.scales(q)["precision"]
            return (
                FLOOR_NOISE_SDS
                * run.noise_sd(number)
                * scale
                * math.sqrt(damping / (2.0 - damping))
            )

        prior = -2.0 * np.asarray(run.model.prior(run.family)["quadratic"])
        return self._form.combine(lambda q, number: np.maximum(prior, floor(q, number)))

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        form, task = self._form, self._divided_by_own(task)
        present = jnp.arange(task.weights.shape[0]) < self._count(task)
        drawn = Drawn()
        if self.sampling_rate < 1:
            present = present & poisson_mask(task.secret, jnp.ones(1), self.sampling_rate)
            drawn = Drawn(rate=jnp.asarray(self.sampling_rate))
        bounded = self._clipped(model, family, key, task, present)
        if not self._adds:
            bounded = within(bounded)
        shares = jnp.inf if self.aggregation == "server" else task.terms.shares
        mechanism = Gaussian(
            noise_sd=task.terms.noise_sds[0], shares=shares, lattice=task.terms.lattice
        )
        release = mechanism.release(task.noise[0], bounded, drawn)
        costs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], release.cost)
        kept = None
        if self._keeps:
            value = bounded.value
            if self.adaptive is not None:
                value = power(value[0], clip_scale(task.public))
            own = power(form.natural(task.q, value), task.damping)
            kept = remembered(task.factor, own, task.q)
        integers = release.integers
        if self.adaptive is not None:
            integers = integers[0] | {WITHIN: integers[1]}
        return Answer(None, None, costs, kept, integers, release.sound)

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array]:
        """Return the sum of the clipped changes of all shards that have records, and a mask of
        these shards.
        """
        present, task = units_present(task.weights), self._divided_by_own(task)
        return self._clipped(model, family, key, task, present, tally), present

    def _divided_by_own(self, task: Task) -> Task:
        if not self._keeps:
            return task
        return task._replace(factor=own_factor(task.memory, task.q))

    def _clipped(
        self,
        model: Model,
        family: Family,
        key: Array,
        task: Task,
        present: Array,
        tally: Tally | None = None,
    ) -> Bounded:
        changes = jax.vmap(self._form.coordinates, in_axes=(None, 0))(
            task.q, self._changes(model, family, key, task)
        )
        clip = self._contributed(task.terms.clips[0])
        if self.adaptive is not None:
            tally, clip = tally or tally_of(clip), inner_clip(clip)
            changes = power(changes, 1.0 / clip_scale(task.public))
        return clip_units(changes, clip, present, tally=tally)

    def _count(self, task: Task) -> Array:
        """Return the number of shards of the party.

        It is an array, because parties that are computed together may have different numbers of
        shards.
        """
        if self.shards is not None or self.objective == "averaged":
            return jnp.asarray(float(self.shards_of(0)))
        return jnp.ceil(task.terms.units / UNITS_PER_SHARD)

    def _changes(self, model: Model, family: Family, key: Array, task: Task) -> Natural:
        """Return the change of natural parameters of every shard.

        If the objective is "averaged", the changes are divided by the number of shards.
        """
        method, count = self._inner(model), self._count(task)
        averaged = self.objective == "averaged"
        factor = task.factor if averaged else power(task.factor, 1.0 / count)

        def one(records: Records, weights: Array, key: Array) -> Natural:
            weights = weights * count.astype(weights.dtype) if averaged else weights
            # Every shard starts at q: shards differ only in their records.
            part = Task(records, weights, task.q, factor, task.q, jnp.bool_(False))
            found = method.answer(model, family, key, part).natural
            assert found is not None
            change = divide(found, task.q)
            return power(change, 1.0 / count) if averaged else change

        return jax.vmap(one)(
            task.records, task.weights, jax.random.split(key, task.weights.shape[0])
        )

    def _inner(self, model: Model) -> LocalMethod:
        if isinstance(model, ConjugateGaussian) and self.optimiser is None:
            return Exact()
        sites = isinstance(model, GaussianSites)
        if self.optimiser == "natural" and not sites:
            raise ConfigError(
                f"method.optimiser = 'natural' cannot be combined with model {model.kind!r}, which "
                "has no natural-gradient steps: set method.optimiser = 'adam', or leave it out"
            )
        if sites and self.optimiser != "adam":
            return NaturalVI(steps=self.steps, step_size=self.step_size, dtype=self.dtype)
        return GradientVI(
            steps=self.adam_steps,
            learning_rate=self.adam_rate,
            draws=self.adam_draws,
            adam_epsilon=self.adam_epsilon,
            dtype=self.dtype,
        )
