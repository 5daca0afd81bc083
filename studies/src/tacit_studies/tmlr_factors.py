"""Algorithm 3 of the TMLR paper as published: every virtual shard keeps a factor of its own.

Party m has N shards, and shard k has the records xₖ and the factor tₘₖ. In a round it maximises
E[log p(xₖ|θ)] − KL(q ‖ q/tₘₖ) (eq. 4.8), which changes the natural parameters of q by Δₖ. The party
releases Σ clip(Δₖ) + ξ with noise ξ (eq. 4.11), and shard k multiplies tₘₖ by its own clipped and
damped change (eq. 4.10), without noise. The library has the public factor tₘ/N instead
(`tacit.methods.update.method`).

**Privacy.** Let two data sets differ in a unit of shard k, and let all earlier releases be equal,
so that all earlier q are equal too. The factor of another shard is computed from these q and from
its own records, so it is the same for both. The factor of shard k differs, but its change is
clipped after it was computed and has norm ≤ C in both. So the sum moves by at most 2C in every
round, as with public factors, and ε is the same. This needs factors without noise: a factor with a
part of ξ would make the changes of all shards depend on the noise that protects shard k.

**Noise.** The factors do not contain the noise of earlier rounds, so no shard takes it back. With
damping ρ the noise in q is a random walk of variance ρ²Sσ² after S rounds, where σ² is the variance
of ξ. With public factors it is at most σ²ρ/(2 − ρ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.arrays import Array
from tacit.errors import ConfigError
from tacit.expfam import Family, Natural
from tacit.methods import PrivateUpdate
from tacit.methods.base import Answer, Task
from tacit.models import Model, Records
from tacit.privacy.bounded import clip_weights
from tacit.privacy.guarantee import Aggregation
from tacit.pvi import divide, multiply, power
from tacit.support.compiler import jax, jnp


@dataclass(frozen=True, kw_only=True)
class OwnFactors(PrivateUpdate):
    """`PrivateUpdate` with virtual shards that keep their own factors at the party.

    Parameters
    ----------
    most_shards
        Rows of the arrays in which a party keeps the factors; at least its number of shards,
        rounded up to the length of a batch.
    """

    kind: ClassVar[str] = "dp-own-factors"
    aggregations: ClassVar[tuple[Aggregation, ...]] = ("plain", "trusted")
    most_shards: int = 4096

    def check(self, model: Model, family: Family) -> None:
        super().check(model, family)
        if self.unit == "party" or self.objective != "virtual" or self.adaptive is not None:
            raise ConfigError(
                "dp-own-factors is for virtual shards of records: set method.objective = "
                "'virtual', and leave adaptive out"
            )

    def memory(self, model: Model, family: Family) -> Natural:
        """Return arrays with a row of zeros for each shard: nothing is known of it yet."""
        del model
        return {
            name: np.zeros((self.most_shards, *value.shape))
            for name, value in family.zero().items()
        }

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        if task.weights.shape[0] > self.most_shards:
            raise ConfigError(
                f"method.most_shards = {self.most_shards}, but a party has up to "
                f"{task.weights.shape[0]} shards; set most_shards to at least this number"
            )
        found = super().answer(model, family, key, task)
        return found._replace(memory=self._kept(model, family, key, task))

    def _kept(self, model: Model, family: Family, key: Array, task: Task) -> Natural:
        """Return the factors of all shards after this round, without noise."""
        form, rows = self._form, task.weights.shape[0]
        values = jax.vmap(form.coordinates, in_axes=(None, 0))(
            task.q, self._changes(model, family, key, task)
        )
        norms = jnp.sqrt(sum(jnp.sum(jnp.square(value), axis=1) for value in values.values()))
        present = jnp.arange(rows) < self._count(task)
        weights = clip_weights(norms, self._contributed(task.terms.clips[0]), present)
        kept = weights[:, None]
        values = {name: jnp.where(kept > 0, kept * value, 0.0) for name, value in values.items()}
        clipped = jax.vmap(form.natural, in_axes=(None, 0))(task.q, values)
        following = multiply(self._factors(task), power(clipped, task.damping))
        return {name: task.memory[name].at[:rows].set(following[name]) for name in following}

    def _factors(self, task: Task) -> Natural:
        """Return the factor of every shard. Before the first round it is an equal part of the
        party's factor, which is public.
        """
        rows, count = task.weights.shape[0], self._count(task)
        return {
            name: jnp.where(task.visit == 0, value / count, task.memory[name][:rows])
            for name, value in task.factor.items()
        }

    def _changes(self, model: Model, family: Family, key: Array, task: Task) -> Natural:
        method = self._inner(model)

        def one(records: Records, weights: Array, factor: Natural, key: Array) -> Natural:
            part = Task(records, weights, task.q, factor, task.q, jnp.bool_(False))
            found = method.answer(model, family, key, part).natural
            assert found is not None
            return divide(found, task.q)

        keys = jax.random.split(key, task.weights.shape[0])
        return jax.vmap(one)(task.records, task.weights, self._factors(task), keys)
