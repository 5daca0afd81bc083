"""`PrivateStatistics`: clipped expected statistics of each record, summed and noised once a round.

Where E_q[log p(record | θ)] = s·(x·θ) − ½ω(x·θ)² + const (`Model.working`), a record adds (s·x,
ω·xxᵀ) to the natural parameters of its party's factor (MEng 4.20–4.23, VIPS Alg. 2). A party
releases Σ clip(s·x, κ·ω·xxᵀ) + noise and its factor becomes that; the next round replaces it.

**Sensitivity.** One unit is one contribution of norm ≤ C over all coordinates. The matrix is
released as its upper triangle, off-diagonal entries times √2, so that the norm is Frobenius's and
noise of one standard deviation in every coordinate is isotropic there.

**Mean-field.** The released pair is (score, diagonal): (s − ωx·m)x and κ·ωx², m the mean of q,
which is public; b = score + Λ∘m.

**Repair.** A noisy precision may be negative. "truncate" takes its positive part at the party,
which biases it upwards (MEng 4.21, 4.24–4.26); "none" keeps the raw sums, which are unbiased, and
only the q that is made of them is made proper. With `noise_aware` that q also knows how much noise
is in them (`tacit.local.aware`).

**Once.** `once = True` is the fixed private likelihood of MEng §5.1: the first visit's release is
kept at the party, and what it answers later is free. It needs statistics that do not depend on q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import ConfigError
from tacit.expfam import Family, FullGaussian, Gaussian, Natural
from tacit.local.aware import aware_q, plain_q
from tacit.local.base import Answer, Arranged, Array, Task
from tacit.local.combine import Combine, Memory, Run
from tacit.local.private import PrivateMethod, by_unit
from tacit.models import ConjugateGaussian, Model, Records
from tacit.models.base import Working
from tacit.privacy.bounded import Bounded, clip_sum, clip_units, kept_rows
from tacit.privacy.events import GaussianEvent
from tacit.privacy.guarantee import Aggregation
from tacit.privacy.mechanisms import Gaussian as GaussianMechanism
from tacit.privacy.settings import check_clip
from tacit.pvi import cavity, divide, multiply, power, product

ROOT = float(np.sqrt(2.0))


@dataclass(frozen=True, kw_only=True)
class PrivateStatistics(PrivateMethod):
    """Release the sum of clipped expected statistics.

    `precision_weight` is κ, the precision's share in the clip. `repair` and `noise_aware` say what
    becomes of a noisy precision; `once` releases at the first visit only.
    """

    kind: ClassVar[str] = "private-statistics"
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain", "trusted")
    damping: ClassVar[float | None] = 1.0
    wants_full: ClassVar[bool] = True
    clip: float = 1.0
    precision_weight: float = 1.0
    repair: Literal["none", "truncate"] = "none"
    noise_aware: bool = True
    once: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_clip(self.precision_weight, "method.precision_weight")

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(family, Gaussian) or type(model).working is Model.working:
            raise ConfigError(
                f"method.kind = 'private-statistics' needs a model with expected statistics, not "
                f"{model.kind!r} with family {family.kind!r}; use method.kind = 'auto'"
            )
        if self.repair == "truncate" and self.aggregation != "plain":
            raise ConfigError(
                f"method.repair = 'truncate' with privacy.aggregation = {self.aggregation!r}; a "
                "sum of truncated numbers lacks the noise that it is charged for: use 'none'"
            )
        if self.once and not (isinstance(model, ConjugateGaussian) and _whole(family)):
            raise ConfigError(
                f"method.once = true with model {model.kind!r} and family {family.kind!r}, whose "
                "statistics depend on q; use a conjugate model with family = 'full'"
            )

    def knows_noise(self, family: Family) -> bool:
        return self.noise_aware and self.repair == "none" and _whole(family)

    def arrange(self, party: str, records: Records, seed: int) -> Arranged:
        del seed
        return by_unit(party, records, self.unit)

    def release(self, *, clip: float, noise_sd: float, units: int) -> tuple[GaussianEvent, ...]:
        del units
        return (GaussianEvent(clip=clip, noise_sd=noise_sd),)

    def events(
        self, *, visit: int, visits: int, clip: float, noise_sd: float, units: int
    ) -> tuple[GaussianEvent, ...]:
        if self.once and visit > 0:
            return ()
        return super().events(visit=visit, visits=visits, clip=clip, noise_sd=noise_sd, units=units)

    def stage(self, visit: int) -> int:
        """0: release; 1: what was released before is said again."""
        return int(self.once and visit > 0)

    def memory(self, model: Model, family: Family) -> Natural | None:
        """The party's released statistics, if they are used again."""
        del model
        return family.zero() if self.once else None

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        del key
        rest = cavity(task.q, task.factor)
        if task.stage == 1:
            return Answer(multiply(rest, task.memory), None, None, task.memory)
        bounded = self._bounded(model, family, task)
        mechanism = GaussianMechanism(noise_sd=task.terms.noise_sds[0], shares=task.terms.shares)
        released = mechanism.release(task.secret, bounded)
        found = self._natural(family, task.q, released.value)
        costs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], released.cost)
        return Answer(multiply(rest, found), None, costs, found if self.once else None)

    def server(self, run: Run) -> Combine:
        """The raw sum of what was released, and the q that is read from it.

        Requests carry an equal part of the likelihood in q to every party, repaired as it may be,
        and updates are Δₘ = ρ(sₘ − that part); with u = q/prior, k of M parties asked and R the
        raw sum, R ← R − ρ(k/M)R + ΣΔₘ + ρ(k/M)u.
        """
        prior = run.model.prior(run.family)
        read = aware_q if self.knows_noise(run.family) else plain_q

        def combine(
            q: Natural, updates: Sequence[Natural], memory: Memory | None, number: int
        ) -> tuple[Natural, Memory | None]:
            part = run.damping_at(number) * len(updates) / run.parties
            known = divide(q, prior)
            raw = power(family_part(memory, known), 1.0 - part)
            raw = product(multiply(raw, power(known, part)), updates)
            noise = self._noise_left(memory, run, number, part)
            following = read(run.family, prior, raw, noise, noise / self.precision_weight)
            return following, {**raw, "noise_variance": np.asarray(noise**2)}

        return combine

    def _noise_left(self, memory: Memory | None, run: Run, number: int, part: float) -> float:
        """Standard deviation of the noise in the raw sum, after damping."""
        before = 0.0 if memory is None else float(memory["noise_variance"])
        if self.once and number > 1:
            # The same noise comes in again: it adds up as a number, not as a variance.
            share = (1.0 - part) * np.sqrt(before) + part * run.noise_sd(1)
            return float(share)
        added = run.damping_at(number) * run.noise_sd(number)
        return float(np.sqrt((1.0 - part) ** 2 * before + added**2))

    def _bounded(self, model: Model, family: Family, task: Task) -> Bounded:
        clip = task.terms.clips[0]
        records, weights = task.records, task.weights
        if weights.ndim == 1:
            return self._by_record(model.working(family, task.q, records), family, task, clip)
        flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in records.items()}
        one = model.working(family, task.q, flat)
        assert one is not None
        parts = Working(*(value.reshape(*weights.shape, *value.shape[1:]) for value in one))

        def unit(x: Array, slope: Array, weight: Array, present: Array) -> dict[str, Array]:
            return self._sums(family, task.q, Working(x, slope, weight), present)

        contributions = jax.vmap(unit)(*parts, weights)
        return clip_units(contributions, clip, jnp.any(weights > 0, axis=1))

    def _by_record(self, parts: Working | None, family: Family, task: Task, clip: Array) -> Bounded:
        """No contribution is written down: ‖(s·x, κω·xxᵀ)‖² = s²‖x‖² + κ²ω²‖x‖⁴."""
        assert parts is not None
        # In float64, as the sums are: a square that vanishes would take its part out of the norm.
        parts = Working(*(value.astype(jnp.float64) for value in parts))
        x, slope = parts.x, parts.slope
        squares = jnp.sum(x * x, axis=1)
        fourth = jnp.square(squares)
        if not _whole(family):
            fourth = jnp.sum(jnp.square(x * x), axis=1)
            slope = slope - parts.weight * (x @ _mean(task.q))
        norms = jnp.sqrt(
            jnp.square(slope) * squares + jnp.square(self.precision_weight * parts.weight) * fourth
        )
        return clip_sum(norms, clip, task.weights, lambda w: self._sums(family, task.q, parts, w))

    def _sums(self, family: Family, q: Natural, parts: Working, weights: Array) -> dict[str, Array]:
        """Σ wᵢ·(sᵢxᵢ, κωᵢxᵢxᵢᵀ) as they are released."""
        x = kept_rows(weights, parts.x)
        weights = weights.astype(jnp.float64)
        slope = kept_rows(weights, parts.slope)
        weight = kept_rows(weights, weights * parts.weight)
        if _whole(family):
            rows, columns, root = _triangle(family.dimension)
            second = ((x * weight[:, None]).T @ x)[rows, columns] * root
        else:
            slope = slope - kept_rows(weights, parts.weight) * (x @ _mean(q))
            second = weight @ jnp.square(x)
        return {"linear": (weights * slope) @ x, "precision": self.precision_weight * second}

    def _natural(self, family: Family, q: Natural, value: dict[str, Array]) -> Natural:
        """λ of the factor that the released sums are."""
        second = value["precision"] / self.precision_weight
        if _whole(family):
            rows, columns, root = _triangle(family.dimension)
            upper = jnp.zeros((family.dimension,) * 2).at[rows, columns].set(second / root)
            matrix = upper + jnp.triu(upper, 1).T
            if self.repair == "truncate":
                sizes, axes = jnp.linalg.eigh(matrix)
                matrix = (axes * jnp.maximum(sizes, 0.0)) @ axes.T
            matrix = matrix.reshape(family.shapes["quadratic"])
            return {"linear": value["linear"], "quadratic": -0.5 * matrix}
        if self.repair == "truncate":
            second = jnp.maximum(second, 0.0)
        return {"linear": value["linear"] + second * _mean(q), "quadratic": -0.5 * second}


def family_part(memory: Memory | None, known: Natural) -> Natural:
    """The raw sums: what q says at the beginning."""
    return known if memory is None else {name: memory[name] for name in known}


def _whole(family: Family) -> bool:
    """Whether all of xxᵀ is released; otherwise its diagonal, and the score at q's mean."""
    return isinstance(family, FullGaussian) or family.dimension == 1


def _mean(q: Natural) -> Array:
    return q["linear"] / (-2.0 * q["quadratic"])


def _triangle(dimension: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = np.triu_indices(dimension)
    return rows, columns, np.where(rows == columns, 1.0, ROOT)
