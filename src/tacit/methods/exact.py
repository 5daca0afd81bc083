"""`Exact`: closed-form update of a conjugate model (MEng eqs 4.9–4.11). Not private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.errors import ConfigError
from tacit.expfam import Family, FullGaussian, Gaussian
from tacit.methods.base import Answer, Array, LocalMethod, Task
from tacit.models import ConjugateGaussian, Model
from tacit.pvi import cavity, multiply
from tacit.support.compiler import jnp


@dataclass(frozen=True)
class Exact(LocalMethod):
    """Closed form for a log-likelihood that is quadratic in θ: log p(xₘ|θ) = b·θ − ½θᵀPθ +
    constant.

    Let the cavity have precision Λ and linear term c. With a full covariance, the local answer qₘ
    has precision Λ + P and linear term c + b. If q is mean-field, qₘ has precision Λ + diag P, and
    its mean m solves (Λ + P) m = c + b.
    """

    kind: ClassVar[str] = "exact"
    second_order: ClassVar[bool] = True
    takes_batches: ClassVar[bool] = True
    dtype: str = "float64"

    def check(self, model: Model, family: Family) -> None:
        if not isinstance(model, ConjugateGaussian) or not isinstance(family, Gaussian):
            raise ConfigError(
                f"method.kind = 'exact' needs a conjugate model, not {model.kind!r} with family "
                f"{family.kind!r}; use method.kind = 'auto'"
            )

    def answer(self, model: Model, family: Family, key: Array, task: Task) -> Answer:
        assert isinstance(model, ConjugateGaussian)
        assert isinstance(family, Gaussian)
        form, linear = model.quadratic_form(task.records, task.weights)
        rest = cavity(task.q, task.factor)
        if isinstance(family, FullGaussian):
            natural = multiply(rest, {"linear": linear, "quadratic": -0.5 * form})
        else:
            precision = -2.0 * rest["quadratic"]
            mean = jnp.linalg.solve(jnp.diag(precision) + form, rest["linear"] + linear)
            precision = precision + jnp.diagonal(form)
            natural = {"linear": precision * mean, "quadratic": -0.5 * precision}
        return Answer(natural, self._loss(model, family, form, task))

    def _loss(self, model: Model, family: Family, form: Array, task: Task) -> Array:
        # Exact, because log p(xₘ|θ) is quadratic: its expectation is its value at the mean of q
        # minus half the trace of `form` times the covariance of q.
        usual = family.usual(task.q)
        spread = (
            jnp.sum(form * usual["covariance"])
            if isinstance(family, FullGaussian)
            else jnp.diagonal(form) @ jnp.square(usual["sd"])
        )
        at_mean = model.log_likelihood(usual["mean"], task.records)
        return 0.5 * spread - task.weights @ at_mean
