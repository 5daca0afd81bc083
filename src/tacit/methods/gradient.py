"""`GradientVI`: optimise the local ELBO with Adam. Not private."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tacit.errors import ConfigError
from tacit.expfam import Family, Gaussian, Natural
from tacit.expfam.gaussian import Free
from tacit.methods.adam import EPSILON, Moments, Pace, at_rest, moved, paces
from tacit.methods.base import Answer, Array, LocalMethod, Task
from tacit.models import Model, Records
from tacit.models.capabilities import GaussianExpectations
from tacit.pvi import cavity
from tacit.support.compiler import jax, jnp
from tacit.support.validation import check_fields

SLOWEST = 0.05  # learning rate at the end of a round, relative to its start


@dataclass(frozen=True, kw_only=True)
class GradientVI(LocalMethod):
    """Maximises the local ELBO, E_q[log p(xₘ|θ)] + ⟨λ_cavity, E_q[T(θ)]⟩ + H(q), by Adam.

    xₘ are the party's records, λ_cavity the natural parameters of the cavity, T(θ) the sufficient
    statistics and H(q) the entropy. The objective is defined even if the cavity is improper. The
    expected log-likelihood is computed by quadrature for a generalised linear model, and otherwise
    as the mean over `draws` reparametrised draws. A batch is drawn with replacement. In each round
    the learning rate decreases to 5 % of its start, on a cosine curve.

    Parameters
    ----------
    steps
        Adam steps per round.
    batch_size
        Records drawn for each step; by default all of them.
    learning_rate
        Adam's learning rate at the start of each round.
    draws
        Draws of the parameters for each gradient, if it has no closed form.
    adam_epsilon
        Adam's ε, which is added to the root mean square of a gradient. If ε is much larger than the
        gradients, a step is the gradient times learning_rate/ε.
    dtype
        Floating-point type of the records, "float32" or "float64".
    """

    kind: ClassVar[str] = "gradient-vi"
    steps: int = 200
    batch_size: int | None = None
    learning_rate: float = 0.05
    draws: int = 8
    adam_epsilon: float = EPSILON
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_fields(self, "method")
        if not self.steps >= 1:
            raise ConfigError(f"method.steps = {self.steps}; it must be at least 1")
        if self.batch_size is not None and not self.batch_size >= 1:
            raise ConfigError(
                f"method.batch_size = {self.batch_size}; it must be at least 1, or be left out "
                "to use every record at each step"
            )
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ConfigError(
                f"method.learning_rate = {self.learning_rate}; it must be a finite number > 0"
            )
        if not self.draws >= 1:
            raise ConfigError(f"method.draws = {self.draws}; at least 1 draw is needed")
        if not 0 < self.adam_epsilon < math.inf:
            raise ConfigError(
                f"method.adam_epsilon = {self.adam_epsilon}; it must be a finite number > 0"
            )

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(family, Gaussian):
            raise ConfigError(
                f"method.kind = 'gradient-vi' needs a Gaussian posterior, not "
                f"{family.kind!r}; set posterior = 'full' or 'mean-field'"
            )

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        assert isinstance(family, Gaussian)
        rest = cavity(task.q, task.factor)

        def objective(free: Free, step_key: Array) -> Array:
            draw_key, batch_key = jax.random.split(step_key)
            records, weights = self._batch(batch_key, task)
            fit = self._expected(model, family, free, draw_key, records, weights)
            return -(fit + family.free_inner(free, rest) + family.free_entropy(free))

        def step(
            carry: tuple[Free, Moments], now: tuple[Array, Pace]
        ) -> tuple[tuple[Free, Moments], None]:
            (free, moments), (step_key, pace) = carry, now
            gradient = jax.grad(objective)(free, step_key)
            return moved(free, moments, gradient, pace, self.adam_epsilon), None

        loss_key, scan_key = jax.random.split(key)
        start = self._cast(task.begun or family.free(task.start))
        table = paces(self.learning_rate, self.steps, least=SLOWEST, dtype=self.dtype)
        keys = jax.random.split(scan_key, self.steps)
        (free, _), _ = jax.lax.scan(step, (start, at_rest(start)), (keys, table))
        loss = -self._expected(model, family, start, loss_key, task.records, task.weights)
        return Answer(self._result(family, free), loss)

    def begin(self, family: Family, start: Natural) -> Free:
        assert isinstance(family, Gaussian)
        return family.free(start)

    def _cast(self, free: Free) -> Free:
        return {name: value.astype(self.dtype) for name, value in free.items()}

    def _result(self, family: Gaussian, free: Free) -> Natural:
        return family.from_free({name: v.astype(jnp.float64) for name, v in free.items()})

    def _batch(self, key: Array, task: Task) -> tuple[Records, Array]:
        """Return the records of one step, and their weights.

        The weighted sum over the batch is an unbiased estimate of the sum over all records of the
        party.
        """
        size, padded = self.batch_size, task.weights.shape[0]
        if size is None or size >= padded:
            return task.records, task.weights
        count = jnp.sum(task.weights)
        uniform = jax.random.uniform(key, (size,), dtype=task.weights.dtype)
        drawn = jnp.minimum((uniform * count).astype(jnp.int32), count.astype(jnp.int32) - 1)
        # A party no larger than a batch uses all its records, however far it is padded.
        small = count <= size
        rows = jnp.where(small, jnp.arange(size), drawn)
        records = {name: value[rows] for name, value in task.records.items()}
        return records, jnp.where(small, task.weights[:size], count / size)

    def _expected(
        self,
        model: Model,
        family: Gaussian,
        free: Free,
        key: Array,
        records: Records,
        weights: Array,
    ) -> Array:
        if isinstance(model, GaussianExpectations):
            return jnp.sum(weights * model.expected_fit(family, free, records))
        noise = jax.random.normal(key, (self.draws, family.dimension), dtype=self.dtype)
        draws = family.free_draw(free, noise)
        values = jax.vmap(lambda theta: model.log_likelihood(theta, records))(draws)
        return jnp.sum(weights * values) / self.draws
