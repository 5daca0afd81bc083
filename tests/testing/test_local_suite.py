"""check_local_method rejects wrong methods, also if the model is not conjugate."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

from tacit.errors import ConfigError
from tacit.expfam import FullGaussian
from tacit.methods import Answer, LocalMethod
from tacit.models import LogisticRegression
from tacit.pvi import cavity, multiply
from tacit.testing import check_local_method

NAMES = ("a", "b")
LOGISTIC = LogisticRegression(NAMES, prior_sd=1.0)


@dataclass(frozen=True)
class Laplace(LocalMethod):
    """The party's log-likelihood to second order at the mean. `wrong` selects an error."""

    kind: ClassVar[str] = "laplace"
    dtype: str = "float64"
    wrong: str = ""

    def check(self, model, family):
        if self.wrong == "only logistic" and model.kind != "logistic":
            raise ConfigError("only logistic regression")

    def answer(self, model, family, key, task):
        factor = 0.9 if self.wrong == "gradient" else 1.0

        def fit(theta):
            return jnp.sum(task.weights * model.log_likelihood(theta, task.records))

        mean = family.usual(task.start)["mean"]
        slope, curvature = factor * jax.grad(fit)(mean), jax.hessian(fit)(mean)
        if self.wrong == "curvature":
            curvature = 0.5 * curvature
        if self.wrong == "asymmetric":
            curvature = curvature + 0.01 * jnp.triu(curvature, 1)
        rest = task.q if self.wrong == "own factor twice" else cavity(task.q, task.factor)
        site = {"linear": slope - curvature @ mean, "quadratic": 0.5 * curvature}
        loss = fit(mean) + 7.0 if self.wrong == "loss" else -fit(mean)
        found = task.start if self.wrong == "start" else multiply(rest, site)
        return Answer(found, loss)


def test_the_checks_are_named():
    with jax.disable_jit():
        done = check_local_method(Laplace(), LOGISTIC, FullGaussian(2))
        fewer = check_local_method(Laplace(wrong="only logistic"), LOGISTIC, FullGaussian(2))
    both = {"answer", "determinism", "padding", "order", "progress", "symmetry"}
    assert set(done) == both | {"fixed point", "loss"}
    assert set(fewer) == both


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("gradient", "fixed point of the linear model: the mean moves by"),
        ("curvature", "fixed point of the linear model: log sd moves by"),
        ("own factor twice", "fixed point of the linear model: the mean moves by"),
        ("asymmetric", "symmetry: first round: 'quadratic' is not symmetric"),
        ("loss", r"loss: found -45.* at the exact posterior, expected 52.* \(−E\[log p\]\)"),
        ("start", "progress: the answer to the first request is its start"),
    ],
)
def test_wrong_methods_are_rejected(wrong, message):
    with jax.disable_jit(), pytest.raises(AssertionError, match=message):
        check_local_method(Laplace(wrong=wrong), LOGISTIC, FullGaussian(2))
