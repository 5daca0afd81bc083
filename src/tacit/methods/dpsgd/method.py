"""`DPSGD`: every local step releases one clipped, noisy gradient (TMLR §4.1, MEng §4.2.1).

Only the likelihood's part of the gradient depends on records. It is sampled, clipped per unit and
noised; the cavity's part is exact and added afterwards. All steps of all rounds are charged.

Steps follow the natural gradient. Let q = N(m, Λ⁻¹), and let the party's factor have the linear
term b and the precision L. A release contains the gradient G of E_q[log p(xₘ|θ)] in m and the
information K. With momentum β and step length η,

    v ← β v + (G − b + L∘m),   b ← b + η v + ΔL∘m,   ΔL = (K − L)/(t + 1),   L ← L + ΔL

for the party's t-th release. G − b + L∘m is the gradient of the local ELBO. The fixed point
therefore does not depend on L, which only sets the step length in m. L is the mean of all K so far.
K is nearly constant, so the mean has less noise. The velocity v is computed from released values.
Between rounds the server stores it (in the memory of `floored_step`), so a party has no state.

With one step per round the changes of b and L are linear in (G, K) and in the party's factor, and η
does not depend on the party. The sum of the parties' changes is therefore a function of the sum of
their releases and the product of their factors. Under aggregation "secure" and "trusted" the server
receives only sums and takes the step itself (`from_integers`).

`optimiser` "adam" or "sgd" makes steps in m and the log-sd of q from the same releases
(`tacit.methods.dpsgd.optimiser`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from tacit.arrays import Arrays, namespace
from tacit.errors import ConfigError
from tacit.expfam import Family, MeanFieldGaussian, Natural
from tacit.expfam.gaussian import Free
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
from tacit.methods.base import Answer, Arranged, Array, Task
from tacit.methods.batches import Batches, SamplingName
from tacit.methods.dpsgd.clipping import clipped_gradient
from tacit.methods.dpsgd.optimiser import MOMENTUM, OptimiserName, server_step, stepped, still
from tacit.methods.private import PrivateMethod, Terms, by_unit, units_present
from tacit.models import LinearPredictor, Model, Records
from tacit.privacy.bounded import Bounded, Tally
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Aggregation, Unit
from tacit.privacy.mechanisms import Cost, Gaussian, Release
from tacit.privacy.sampling import summed_in_blocks
from tacit.privacy.settings import check_clip
from tacit.pvi import cavity, damped_update, divide, multiply, power
from tacit.server.combine import Combine, RoundSum, Run
from tacit.server.messages import Asked
from tacit.support.compiler import jax, jnp

Precision = Literal["isotropic", "per-coordinate", "log-sd", "fixed"]
MAX_ISOTROPIC_DIMENSION = 256
FIXED_STEP = 2.4
STABLE_SHARE = 0.9
"""Step length, as a share of the longest one that is stable for any direction of the curvature."""


class Local(NamedTuple):
    """A party's factor (linear term and precision) and the optimiser's state between two steps."""

    linear: Array
    precision: Array
    state: dict[str, Array]


class Place(NamedTuple):
    """Point at which a step's gradient is taken: mean, precision and free parameters of q."""

    mean: Array
    precision: Array
    known: Array
    """Precision without the part of the prior. No lower bound is applied to it."""
    free: Free


class Path(NamedTuple):
    """Quantities that are constant over the steps of an answer."""

    others: Natural
    rest: Natural
    least: Array
    start: Local
    first: Array
    """Number of the party's releases before this answer."""
    last: int
    """The answer is averaged over this many steps, the last ones of the visit."""
    terms: Terms


@dataclass(frozen=True, kw_only=True)
class DPSGD(PrivateMethod):
    """Private gradient steps, each from one clipped and noisy gradient.

    `precision` determines which information about the curvature of the log-likelihood is released
    besides the gradient. "isotropic" releases one value, the mean over coordinates.
    "per-coordinate" releases one value per coordinate. "log-sd" releases the gradient in the
    log-sds of q, as in the published DP-SGD. "fixed" releases nothing, and q keeps the precision of
    the model's starting point. `precision_weight` multiplies this information before clipping. Its
    default is max(1, d/11) for "isotropic" with d parameters, and 1 otherwise. With `sampling_rate`
    = 1 every step uses all records, which is as good as sampling for the same budget and takes
    fewer steps.

    With optimiser "natural" the default `step_size` is 0.9·2(1 + β)/d, at most ½, where β is the
    momentum. Such steps are stable for every curvature. Let L be the curvature averaged over
    coordinates. The curvature in any direction is at most d·L, and steps of length η are stable if
    η times the curvature divided by L is below 2(1 + β). Clipping does not change this, because it
    shortens gradient and information of a record by the same factor. L is a mean over all releases,
    computed by the same rule for every party, because step lengths that differ between parties
    would move the fixed point. `max_noise` shortens the steps if the signal is weak. With a "fixed"
    precision Λ of q, the default `step_size` is 2.4 Λ/(C n), at most ½, for clip C and n units of
    all parties. Such steps move the mean of q by at most 2.4/(1 − β) in one round.

    Optimisers "adam" and "sgd" move the mean and the log-sd of q. `step_size` is their learning
    rate. SGD applies it to the gradient divided by C n, so n units of norm C move the mean by at
    most `step_size`. The default is D/√T, where T is the number of steps of all parties in the run
    and D is the prior's sd, at most 1. This is the usual rate for T noisy gradients of norm 1 over
    a distance D. SGD learns far more slowly than the other optimisers and is provided for
    comparison.

    Parameters
    ----------
    clip
        Norm to which the contribution of each unit is clipped.
    clip_end, noise_end
        Clip and noise multiplier at the last visit, relative to those at the first visit.
    steps
        Released gradients per round.
    sampling_rate
        Share of the units that each release samples; 1 uses all of them.
    sampling
        How a batch is drawn: "poisson" or "without-replacement".
    optimiser
        "natural", or "adam" or "sgd" on mean and log-sd.
    step_size
        Length of the natural-gradient steps or learning rate, in (0, 1].
    step_end
        Step size at the last visit, relative to that at the first visit.
    momentum
        Momentum of the steps, in [0, 1); by default 0.5, β₁ = 0.9 for "adam", and 0 for "sgd".
    precision
        Released information about the curvature: "isotropic", "per-coordinate", "log-sd" or
        "fixed".
    precision_weight
        Weight that multiplies the released information about the curvature before clipping.
    adaptive
        Adapt the clip to this quantile of the contributions' norms; by default the clip is fixed.
    max_noise
        Bound on how far the noise of the whole run may move the mean by natural-gradient steps.
    label_agnostic
        Clip each record independently of its label, which keeps the score unbiased.
    average_last
        Share of the rounds, at the end of the run, over which the server averages the posterior.
    dtype
        Floating-point type of the records, "float32" or "float64".
    """

    kind: ClassVar[str] = "dp-sgd"
    units: ClassVar[tuple[Unit, ...]] = ("record", "person")
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain", "secure", "trusted")
    damping: ClassVar[float | None] = 1.0  # `step_size` replaces damping
    steps: int = 1
    sampling_rate: float = 1.0
    sampling: SamplingName = "poisson"
    clip: float = 1.0
    optimiser: OptimiserName = "natural"
    step_size: float | None = None
    momentum: float | None = None
    precision: Precision | None = None
    precision_weight: float | None = None
    step_end: float = 1.0
    adaptive: float | None = None
    max_noise: float = 4.0
    label_agnostic: bool = True
    _prior_share: float = 1.0
    average_last: float = 0.5
    dtype: str = "float32"

    @property
    def needs_one_clip(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.steps >= 1:
            raise ConfigError(f"method.steps = {self.steps}; it must be at least 1")
        _ = self.batches
        if self.precision_weight is not None:
            check_clip(self.precision_weight, "method.precision_weight")
        if self.step_size is not None and not 0 < self.step_size <= 1:
            raise ConfigError(f"method.step_size = {self.step_size}; it must be in (0, 1]")
        check_clip(self.step_end, "method.step_end")
        if not 0 <= self.beta < 1:
            raise ConfigError(f"method.momentum = {self.momentum}; it must be in [0, 1)")
        if self.precision == "log-sd" and self.optimiser == "natural":
            raise ConfigError(
                "method.precision = 'log-sd' cannot be combined with method.optimiser = "
                "'natural', because natural-gradient steps need a precision: use method.precision "
                "= 'isotropic' or 'per-coordinate', or method.optimiser = 'adam'"
            )
        check_adaptive(self.adaptive)
        if not self.max_noise > 0:
            raise ConfigError(f"method.max_noise = {self.max_noise}; it must be > 0")
        if not 0 <= self.average_last <= 1:
            raise ConfigError(f"method.average_last = {self.average_last}; it must be in [0, 1]")

    @property
    def batches(self) -> Batches:
        """Sampling of each step's batch."""
        return Batches(self.sampling_rate, self.sampling)

    @property
    def beta(self) -> float:
        """Momentum of the steps."""
        return MOMENTUM[self.optimiser] if self.momentum is None else self.momentum

    @property
    def steps_at_server(self) -> bool:
        """True if the server makes the steps of Adam or SGD, one per round."""
        return self.optimiser != "natural" and self.steps == 1 and self._prior_share == 1.0

    def released_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        del model, stage
        return family.shapes if self.adaptive is None else family.shapes | {WITHIN: ()}

    def public_shapes(self, model: Model, family: Family, stage: str) -> dict[str, tuple[int, ...]]:
        del model, family, stage
        return {} if self.adaptive is None else {SCALE: ()}

    def check(self, model: Model, family: Family) -> None:
        if self.adaptive is not None and self.adjacency != "replace-one":
            raise ConfigError(
                f"method.adaptive = {self.adaptive} needs the number of records, but "
                f"privacy.adjacency = {self.adjacency!r} keeps the number of records secret; use "
                "privacy.adjacency = 'replace-one', or leave method.adaptive out"
            )
        if not isinstance(family, MeanFieldGaussian):
            raise ConfigError(
                f"method.kind = 'dp-sgd' needs posterior = 'mean-field', not {family.kind!r}; for "
                "d parameters, a full covariance would require a release of d² noisy numbers"
            )
        if self.optimiser == "sgd" and self.adjacency != "replace-one":
            raise ConfigError(
                "method.optimiser = 'sgd' divides its steps by the number of records, but "
                f"privacy.adjacency = {self.adjacency!r} keeps the number of records secret; use "
                "method.optimiser = 'adam' or 'natural', or privacy.adjacency = 'replace-one'"
            )
        fixed = self._precision(model) == "fixed" and self.optimiser == "natural"
        if fixed and self.step_size is None and self.adjacency != "replace-one":
            raise ConfigError(
                f"method.step_size is not set; its default for the model {model.kind!r} depends on "
                f"the number of records, but privacy.adjacency = {self.adjacency!r} keeps the "
                "number of records secret: set method.step_size, e.g. 0.05"
            )
        self.batches.check(self.adjacency)
        if self.steps > 1 and self.aggregation != "plain":
            raise ConfigError(
                f"method.steps = {self.steps} cannot be combined with privacy.aggregation = "
                f"{self.aggregation!r}, because the server then takes one step per round, computed "
                "from the sum over all parties: set method.steps = 1 and increase schedule.rounds, "
                "or use privacy.aggregation = 'plain'"
            )

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        del seed
        return by_unit(party, records, self.unit)

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        sampling = self.batches.accounted(units)
        if self.adaptive is not None:
            clip = tally_clip(clip)
        return (GaussianEvent(clip=clip, noise_sd=noise_sd, count=self.steps, sampling=sampling),)

    def numbers(self, dimension: int) -> int:
        """Return the approximate number of values in one release; `release_size` is exact."""
        return 2 * dimension if self.precision in ("per-coordinate", "log-sd") else dimension

    def release_size(self, model: Model, family: Family, stage: str) -> int:
        """Return the number of values that one step releases."""
        del family, stage
        d = model.dimension
        size = {"isotropic": 1, "per-coordinate": d, "log-sd": d, "fixed": 0}
        tally = 0 if self.adaptive is None else 1
        return d + size[self._precision(model)] + tally

    def starts_at_prior(self, model: Model) -> bool:
        """True if the precision of q is learned. Otherwise q starts at the model's starting point
        and keeps the precision that it has there.
        """
        return self._precision(model) != "fixed"

    def floor(
        self, model: Model, q: Natural, number: int, noise_sd: float, damping: float
    ) -> Array:
        """Return a lower bound on the precision of q in round `number`.

        All information released so far is averaged. The bound is the precision of the prior plus
        the standard deviation of the noise in this average.
        """
        del damping
        prior = -2.0 * model.prior(_family(model))["quadratic"]
        return prior + self.precision_noise(model, noise_sd) / math.sqrt(number * self.steps)

    def precision_noise(self, model: Model, noise_sd: float) -> float:
        """Return the standard deviation of the noise in one party's released information, on the
        scale of the precision of q.

        It is 0 if this noise sets no lower bound on the precision.
        """
        if self._precision(model) != "isotropic" or self.optimiser != "natural":
            return 0.0
        return noise_sd / (self._weight(model) * self.sampling_rate)

    def _weight(self, model: Model) -> float:
        """Return the number that multiplies the released information before clipping.

        The default for "isotropic" grows with the number of parameters d, because the mean
        information of a coordinate is about 1/d of the information of a record.
        """
        if self.precision_weight is not None:
            return self.precision_weight
        isotropic = self._precision(model) == "isotropic"
        return max(1.0, model.dimension / 11.0) if isotropic else 1.0

    @property
    def own_releases(self) -> bool:
        """True if there are several steps per visit, so a party's factor contains only the releases
        of that party.

        If False, every party's factor is an equal share of all releases. Several steps that start
        from such a factor would lead away from the posterior if the parties' records differ.
        """
        return self.steps > 1

    @property
    def server_momentum(self) -> float:
        """Momentum between rounds. It is 0 with several steps per round, because momentum is then
        used within the round.
        """
        return self.beta if self.steps == 1 else 0.0

    def server(self, run: Run) -> Combine:
        if self.optimiser == "sgd" and not self.total_units > 0:
            raise ConfigError(
                "method.optimiser = 'sgd' needs the total number of records of all parties, but "
                "this number is not known; set `records` to this number in the federation file, or "
                "use method.optimiser = 'adam'"
            )
        make = self._free_server if self.steps_at_server else super().server
        if self.adaptive is None:
            return make(run)
        if not self.total_units > 0:
            raise ConfigError(
                f"method.adaptive = {self.adaptive} needs the total number of records of all "
                "parties, but this number is not known; set `records` to this number in the "
                "federation file, or leave method.adaptive out"
            )

        weight = count_weight(self, run.rounds, self.steps)
        return adapted(make, run, self.adaptive, Counted(self.total_units, weight))

    def _free_server(self, run: Run) -> Combine:
        """Return the `Combine` function that takes one step of Adam or SGD per round."""
        prior = -2.0 * np.asarray(run.model.prior(run.family)["quadratic"])

        def rates(answers: RoundSum) -> Free:
            progress = np.asarray((answers.number - 1) / max(1, run.rounds - 1))
            steps = run.rounds * run.asked / max(1, answers.contributors)
            return self._rates(run.model, prior, np.asarray(steps), progress)

        return server_step(self.optimiser, self.beta, run, rates)

    def _rates(self, model: Model, prior: Array, steps: Array, progress: Array) -> Free:
        """Return the learning rates of mean and log-sd.

        `prior` is the prior's precision, and `steps` is the number of steps of all parties in the
        run.
        """
        xp = namespace(steps)
        reach = xp.minimum(1.0, 1.0 / xp.sqrt(prior))
        size = 1.0 / xp.sqrt(xp.maximum(steps, 1.0))
        rates = {"location": reach * size, "scale": size}
        if self.step_size is not None:
            rates = {"location": xp.full_like(prior, self.step_size), "scale": self.step_size}
        if self.optimiser == "sgd":
            # A coordinate with a smaller share of the clip has more noise.
            share = xp.square(model.clip_scales()) / (self.clip * max(1, self.total_units))
            rates["location"] = rates["location"] * share
        return {name: value * xp.power(self.step_end, progress) for name, value in rates.items()}

    def integer_shapes(
        self, model: Model, family: Family, stage: str
    ) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the integers in a reply: the sums of every step."""
        del stage
        steps, d = self.steps, family.dimension
        shapes: dict[str, tuple[int, ...]] = {"location": (steps, d)}
        precision = self._precision(model)
        if precision == "isotropic":
            shapes["information"] = (steps,)
        if precision in ("per-coordinate", "log-sd"):
            shapes["scale"] = (steps, d)
        return shapes if self.adaptive is None else shapes | {WITHIN: (steps,)}

    def from_integers(
        self, model: Model, family: Family, event: GaussianEvent, asked: Asked, integers: Arrays
    ) -> Arrays:
        """Recompute the party's steps from the released integers, and return the damped change of
        the natural parameters.
        """
        assert isinstance(family, MeanFieldGaussian)
        assert asked.q is not None
        assert asked.factor is not None
        task = Task({}, None, asked.q, asked.factor, None, np.bool_(False), asked.visit)
        task = task._replace(terms=asked.terms, public=asked.public, damping=asked.damping)
        scale, path = self._clip_scale(task), self._path(model, family, task)
        local, total, within = path.start, family.zero(), []
        for number in range(self.steps):
            sums = {name: event.step * value[number] for name, value in integers.items()}
            count = path.first + number
            place = self._place(model, path, local, count)
            value = self._value(family, place, self._maps(model, place.free, scale), sums)
            local = self._moved(model, local, value, place, count, path)
            if number >= self.steps - path.last:
                total = multiply(total, _natural(local))
            within.append(sums.get(WITHIN, 0.0))
        natural = self._ended(path, total)
        found = damped_update(natural, asked.q, asked.damping)
        if self.adaptive is None:
            return found
        share = np.mean(within) / (tally_weight(event.clip) * self.sampling_rate)
        return found | {WITHIN: np.asarray(asked.damping * share)}

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        assert isinstance(family, MeanFieldGaussian)
        costs, released, sound = self._answer(model, family, key, task)
        return Answer(None, None, costs, None, released, sound)

    def contributions(
        self, model: Model, family: Family, key: Array, task: Task, tally: Tally
    ) -> tuple[Bounded, Array]:
        """Return each unit's contribution to the first step from q."""
        assert isinstance(family, MeanFieldGaussian)
        precision = -2.0 * task.q["quadratic"]
        deviation = -0.5 * jnp.log(precision.astype(self.dtype))
        free = {"location": task.q["linear"] / precision, "scale": deviation}
        scale = self._clip_scale(task)
        clipped = self._clipping(model, family, free, key, task, scale, tally)
        return clipped(task.records, task.weights), units_present(task.weights)

    def clipping_biases(self, model: Model, stage: str) -> bool:
        """Return False if clip weights do not depend on labels, because the clipped score then has
        mean 0.
        """
        del stage
        return not (self.label_agnostic and model.output in ("bernoulli", "categorical"))

    def _clip_scale(self, task: Task) -> Array:
        return np.ones(()) if self.adaptive is None else clip_scale(task.public)

    def _answer(
        self, model: Model, family: MeanFieldGaussian, key: Array, task: Task
    ) -> tuple[Cost, dict[str, Array], Array]:
        """Compute all steps of a visit; return their costs and integers, and whether all sums were
        finite.
        """
        scale, path = self._clip_scale(task), self._path(model, family, task)

        def step(
            local: Local, inputs: tuple[Array, Array, tuple[Array, Array]]
        ) -> tuple[Local, Any]:
            number, public, secret = inputs
            place = self._place(model, path, local, number)
            release = self._released(model, family, place.free, public, secret, task, scale)
            maps = self._maps(model, place.free, scale)
            value = self._value(family, place, maps, _named(release.value))
            local = self._moved(model, local, value, place, number, path)
            return local, (release.cost, _named(release.integers), release.sound)

        inputs = (
            path.first + jnp.arange(self.steps),
            jax.random.split(key, self.steps),
            (jax.random.split(task.secret, self.steps), task.noise),
        )
        _, (costs, integers, sound) = jax.lax.scan(step, path.start, inputs)
        return costs, integers, jnp.all(sound)

    def _path(self, model: Model, family: MeanFieldGaussian, task: Task) -> Path:
        others = cavity(task.q, task.factor)
        noise_sd = self._clip_scale(task) * task.terms.noise_sds[0]
        precision = -2.0 * task.factor["quadratic"]
        xp = namespace(precision)  # q may be shared by parties that are computed together
        return Path(
            others=others,
            rest=power(others, self._prior_share),
            least=-2.0 * model.prior(family)["quadratic"] * self._prior_share,
            start=Local(task.factor["linear"], precision, still(self.optimiser, precision)),
            first=xp.asarray(task.visit, np.float64) * self.steps,
            last=max(1, math.ceil(self.average_last * self.steps)),
            terms=task.terms._replace(noise_sd=noise_sd),
        )

    def _place(self, model: Model, path: Path, local: Local, number: Array) -> Place:
        """Return q with the party's current factor, at which the next gradient is taken."""
        xp = namespace(local.linear)
        q = multiply(path.rest, _natural(local))
        doubt = self.precision_noise(model, 1.0) * path.terms.noise_sd
        floor = path.least + xp.where(number > 0, doubt / xp.sqrt(xp.maximum(number, 1.0)), 0.0)
        precision = xp.maximum(-2.0 * q["quadratic"], floor)
        mean = q["linear"] / precision
        free = {"location": mean, "scale": -0.5 * xp.log(precision.astype(self.dtype))}
        return Place(mean, precision, -2.0 * q["quadratic"] - path.least, free)

    def _ended(self, path: Path, total: Natural) -> Natural:
        """Return the natural parameters of the local posterior.

        The new factor of the party is the mean of its factors after the last `path.last` steps.
        `total` is the sum of these factors.
        """
        local = power(total, 1.0 / path.last)
        return multiply(multiply(path.rest, local), divide(path.others, path.rest))

    def _moved(
        self, model: Model, local: Local, value: Free, place: Place, number: Array, path: Path
    ) -> Local:
        # Only released numbers are used, so that this is post-processing.
        if self.optimiser != "natural" and not self.steps_at_server:
            return self._freely_moved(model, local, value, place, number, path)
        xp = namespace(local.linear)
        change = xp.zeros_like(place.mean)
        if "precision" in value:
            change = value["precision"] - local.precision
            change = change if self.steps_at_server else change / (number + 1.0)
        gradient = value["location"] - local.linear + local.precision * place.mean
        if self.steps_at_server:
            linear = local.linear + gradient + change * place.mean
            return Local(linear, local.precision + change, local.state)
        velocity = self.beta * local.state["velocity"] + gradient
        length = self._length(model, xp.mean(place.known), number, path.terms)
        length = length * xp.power(self.step_end, path.terms.progress)
        # A coordinate with a smaller share of the clip has more noise and takes shorter steps.
        length = length * xp.square(model.clip_scales())
        linear = local.linear + length * velocity + change * place.mean
        return Local(linear, local.precision + change, {"velocity": velocity})

    def _freely_moved(
        self, model: Model, local: Local, value: Free, place: Place, number: Array, path: Path
    ) -> Local:
        xp, mean, precision = namespace(local.linear), place.mean, place.precision
        rest = -2.0 * path.rest["quadratic"]
        slope = xp.zeros_like(mean)
        if "precision" in value:
            slope = 1.0 - (value["precision"] + rest) / precision
        gradient = {
            "location": value["location"] + path.rest["linear"] - rest * mean, "scale": slope,
        }  # fmt: skip
        steps = path.terms.releases * self.parties
        rates = self._rates(model, path.least, steps, path.terms.progress)
        moves, state = stepped(
            self.optimiser, self.beta, gradient, local.state, number - path.first, rates
        )
        mean = mean + moves["location"]
        precision = xp.maximum(precision * xp.exp(-2.0 * moves["scale"]), path.least)
        return Local(precision * mean - path.rest["linear"], precision - rest, state)

    def _length(self, model: Model, known: Array, number: Array, terms: Terms) -> Array:
        """Return the length η of a natural-gradient step.

        Let the noise have sd s in each of T releases of each of M parties, and let q have d
        coordinates and precision Λ. With momentum β, the noise of the whole run moves the mean of q
        by about ηs√(TMd)/(Λ(1 − β)). η is reduced until this distance is at most `max_noise`. For
        Λ, at least the sd of its noise is used. In the first round Λ is small, which keeps the
        first steps short. Short steps are needed because the curvature at a wide q differs from
        that at a narrow q.
        """
        xp = namespace(known)
        size, dimension = self.step_size, model.dimension
        if self._precision(model) == "fixed":
            if size is None:
                precision = known - 2.0 * xp.mean(model.prior(_family(model))["quadratic"])
                whole = terms.clip * self.total_units
                return xp.minimum(0.5, FIXED_STEP * precision / whole)
            return xp.asarray(size)
        if size is None:
            size = min(0.5, STABLE_SHARE * 2.0 * (1.0 + self.beta) / dimension)
        parties = math.sqrt(self.parties)
        if self.aggregation != "plain":  # `noise_sd` is the noise of `shares` parties
            parties = parties / xp.sqrt(terms.shares)
        doubt = self.precision_noise(model, 1.0) * terms.noise_sd
        known = xp.maximum(known, parties * doubt / xp.sqrt(number + 1.0))
        walk = terms.noise_sd / self.sampling_rate * parties
        walk = walk * xp.sqrt(terms.releases * dimension)
        return xp.minimum(size, self.max_noise * (1.0 - self.beta) * known / walk)

    def _released(
        self,
        model: Model,
        family: MeanFieldGaussian,
        free: Free,
        public: Array,
        secret: tuple[Array, Array],
        task: Task,
        scale: Array,
    ) -> Release:
        """Release the noisy sum of one step; `secret` has the batch's random key and the noise."""
        clipped = self._clipping(model, family, free, public, task, scale)
        batch_key, noise = secret
        bounded, drawn = self.batches.summed(batch_key, task, clipped)
        mechanism = Gaussian(
            noise_sd=task.terms.noise_sds[0],
            shares=task.terms.shares,
            lattice=task.terms.lattice,
        )
        return mechanism.release(noise, bounded, drawn)

    def _value(self, family: MeanFieldGaussian, place: Place, maps: Free, sums: Free) -> Free:
        """Convert the released sums of a batch to gradient and curvature over all records."""
        xp = namespace(place.mean)
        found = {name: sums[name] / (maps[name] * self.sampling_rate) for name in maps}
        value = {"location": found["location"]}
        if "information" in found:
            value["precision"] = xp.full(family.dimension, found["information"])
        if "scale" in found:
            value["precision"] = -found["scale"] * xp.exp(-2.0 * place.free["scale"])
        return value

    def _clipping(
        self,
        model: Model,
        family: MeanFieldGaussian,
        free: Free,
        public: Array,
        task: Task,
        scale: Array,
        tally: Tally | None = None,
    ) -> Callable[[Records, Array], Bounded]:
        """Return a function of records and weights that computes the clipped sum.

        If `tally` is given, it replaces the tally of the adaptive clip.
        """
        maps, clip = self._maps(model, free, scale), task.terms.clips[0]
        if self.adaptive is not None:
            tally, clip = tally or tally_of(clip), inner_clip(clip)
        low = {name: value.astype(self.dtype) for name, value in free.items()}
        if self._precision(model) == "fixed":
            # The variance is not learned: take the gradient at q's mean.
            noise = jnp.zeros(family.dimension, self.dtype)
        else:
            noise = jax.random.normal(public, (family.dimension,), self.dtype)

        def clipped(records: Records, weights: Array) -> Bounded:
            return clipped_gradient(
                model, family, low, noise, records, weights, clip, maps,
                label_agnostic=self.label_agnostic, tally=tally,
            )  # fmt: skip

        if not self.hides_lengths:
            return clipped
        return functools.partial(summed_in_blocks, clipped)

    def _maps(self, model: Model, free: Free, scale: Array) -> Free:
        """Return the public weights that multiply the parts of a contribution before clipping."""
        precision, xp = self._precision(model), namespace(free["scale"])
        # NumPy, so that it is a constant of the compiled code and equal weights cost nothing.
        scales = np.asarray(model.clip_scales(), self.dtype)
        maps: Free = {"location": np.broadcast_to(scales, free["location"].shape)}
        if precision == "isotropic":
            maps["information"] = np.asarray(self._weight(model), self.dtype)
        if precision == "per-coordinate":
            wide = self._weight(model) * xp.exp(-2.0 * free["scale"])
            maps["scale"] = wide.astype(self.dtype)
        if precision == "log-sd":
            shape = free["location"].shape
            maps["scale"] = np.full(shape, self._weight(model), self.dtype)
        if self.adaptive is None:
            return maps
        return {name: value / scale.astype(self.dtype) for name, value in maps.items()}

    def _precision(self, model: Model) -> Precision:
        if self.precision is not None:
            return self.precision
        # In a large network most weights carry almost no information, and a mean over all of them
        # is not informative.
        known = isinstance(model, LinearPredictor) or model.dimension <= MAX_ISOTROPIC_DIMENSION
        return "isotropic" if known else "fixed"


def _family(model: Model) -> MeanFieldGaussian:
    return MeanFieldGaussian(model.dimension)


def _named(released: Any) -> dict[str, Array]:
    """Return the arrays of a release, by name. They include the tally if the release has one."""
    if isinstance(released, dict):
        return released
    sums, tally = released
    return sums | {WITHIN: tally}


def _natural(local: Local) -> Natural:
    return {"linear": local.linear, "quadratic": -0.5 * local.precision}
