"""`NaturalVI`: natural-gradient steps on the local ELBO of a generalised linear model.

With g = E_q[ℓ'(η)] and h = −E_q[ℓ''(η)] for each record (one-dimensional quadrature), the
likelihood looks, from q, like the Gaussian site

    P = Xᵀ diag(h) X,   b = Xᵀ g + P m          (its diagonal for a mean-field q)

and λ ← (1 − β) λ + β (λ_cavity + (b, −½P)) is a natural-gradient step of length β (Khan and
Lin 2017). Its fixed point is the local optimum of TMLR eq. 3.5; there is no learning rate to tune
to the data and no Monte Carlo noise. With a full covariance, a federation of ten Adult parties
agrees with central VI after six rounds, under label skew too (`make bench`).
Not private.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tacit.errors import ConfigError
from tacit.expfam import Family, FullGaussian, Gaussian, MeanFieldGaussian, Natural
from tacit.local.base import Answer, Array, LocalMethod, Task
from tacit.local.categorical import categorical_site
from tacit.models import GeneralisedLinear, LinearPredictor, Model, SoftmaxRegression
from tacit.pvi import cavity, multiply, power
from tacit.validation import check_fields


@dataclass(frozen=True, kw_only=True)
class NaturalVI(LocalMethod):
    """`steps` full-batch natural-gradient steps of length `step_size` a round.

    Left out, they are 1 and 1 for a full covariance: with one step a round and no damping a
    synchronous round is a step of central VI, whoever holds which records. A mean-field step
    ignores how coordinates move together and must be short; 40 steps of 0.15 are the default.
    The first step of all is from the model's starting point, a q narrow enough for the curvature
    to mean something, and of length 1, so that nothing of it remains. With several levels, whose
    weights move together too, mean-field steps are 0.05 and the first is no longer.
    """

    kind: ClassVar[str] = "natural-vi"
    second_order: ClassVar[bool] = True
    steps: int | None = None
    step_size: float | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_fields(self, "method")
        if self.steps is not None and not self.steps >= 1:
            raise ConfigError(f"method.steps = {self.steps}; at least 1 step a round is needed")
        if self.step_size is not None and not 0 < self.step_size <= 1:
            raise ConfigError(f"method.step_size = {self.step_size}; it must be in (0, 1]")

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(model, LinearPredictor) or not isinstance(family, Gaussian):
            raise ConfigError(
                f"method.kind = 'natural-vi' needs a generalised linear model and a Gaussian "
                f"family, not {model.kind!r} with {family.kind!r}; use method.kind = 'gradient-vi'"
            )

    def begin(self, family: Family, start: Natural) -> dict[str, Array]:
        return family.usual(start)

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        assert isinstance(model, LinearPredictor)
        rest = cavity(task.q, task.factor)
        full = isinstance(family, FullGaussian)
        steps = self.steps or (1 if full else 40)
        several = isinstance(model, SoftmaxRegression)
        length = self.step_size or (1.0 if full else 0.05 if several else 0.15)

        def step(
            natural: Natural, length: Any, usual: dict[str, Array] | None = None
        ) -> tuple[Natural, Array]:
            site, loss = likelihood_site(model, family, usual or family.usual(natural), task)
            target = power(multiply(rest, site), length)
            return multiply(power(natural, 1.0 - length), target), loss

        # The first step stands outside the scan: alone, it is one fused pass over the numbers.
        whole = length == 1.0 or several
        first = length if whole else jnp.where(task.initial, 1.0, length)
        natural, loss = step(task.start, first, task.begun)
        if steps > 1:
            natural, _ = jax.lax.scan(
                lambda natural, _: (step(natural, length)[0], None), natural, length=steps - 1
            )
        return Answer(natural, loss)


def likelihood_site(
    model: LinearPredictor, family: Family, usual: dict[str, Array], task: Task
) -> tuple[Natural, Array]:
    """(b, −½P) at the q of those usual parameters, float64, and −E_q[log p(xₘ|θ)]."""
    if isinstance(model, SoftmaxRegression):
        return categorical_site(model, family, usual, task)
    assert isinstance(model, GeneralisedLinear)
    x, y, weights = task.records["x"], task.records["y"], task.weights
    mean = usual["mean"].astype(x.dtype)
    eta = x @ mean
    if isinstance(family, FullGaussian):
        variance = jnp.sum((x @ usual["covariance"].astype(x.dtype)) * x, axis=-1)
    else:
        assert isinstance(family, MeanFieldGaussian)
        variance = (x * x) @ jnp.square(usual["sd"]).astype(x.dtype)
    value, slope, curvature = model.expected_derivatives(eta, variance, y)
    slope, curvature = weights * slope, weights * curvature
    if isinstance(family, FullGaussian):
        form = (x * curvature[:, None]).T @ x
        form = 0.5 * (form + form.T)  # single precision does not give the same twice
        linear = x.T @ (slope + curvature * eta)
    else:
        form = curvature @ (x * x)
        linear = slope @ x + form * mean
    site = {
        "linear": linear.astype(jnp.float64),
        "quadratic": -0.5 * form.astype(jnp.float64),
    }
    return site, -jnp.sum(weights * value)
