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
    """Closed form for a likelihood that is quadratic in θ: log p(xₘ|θ) = b·θ − ½θᵀPθ.

    Full covariance: λ_{qₘ} = λ_cavity + (b, −½P), independent of the cavity. Mean-field: the
    optimum has precision Λ_cavity + diag P, and its mean solves (Λ_cavity + P) m = b_cavity + b.
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
        """Return −E_q[log p(xₘ|θ)] = −log p(xₘ|m) + ½ tr(PS), exact because log p is quadratic."""
        usual = family.usual(task.q)
        spread = (
            jnp.sum(form * usual["covariance"])
            if isinstance(family, FullGaussian)
            else jnp.diagonal(form) @ jnp.square(usual["sd"])
        )
        at_mean = model.log_likelihood(usual["mean"], task.records)
        return 0.5 * spread - task.weights @ at_mean
