"""What is compiled is what is written, for as many records as a party may have.

XLA on CPU (jaxlib 0.10.2) computes Σₖ aₖ(x² @ A)ₖ wrongly for a constant A from about 1,400 rows
on: the norms of some gradients came out too small, and what was clipped by them was not.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.data.schema.layout import INTERCEPT, Feature
from tacit.engines.execute import carry_out
from tacit.expfam import FullGaussian, MeanFieldGaussian
from tacit.methods import DPSGD
from tacit.methods.dpsgd.clipping import clipped_gradient
from tacit.methods.scoring.party import counted, counts_sum, moment_sum, score_sum
from tacit.models import (
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    PoissonRegression,
    SoftmaxRegression,
)
from tacit.models.glm.linear import GaussianLikelihood
from tacit.models.glm.logistic import BernoulliLikelihood
from tacit.models.glm.poisson import PoissonLikelihood
from tacit.models.glm.softmax_scores import CategoricalLikelihood
from tacit.plan.plan import make_plan
from tacit.privacy.settings import Privacy
from tacit.server.schedule import Synchronous

pytestmark = pytest.mark.full_optimisation

NAMES = ("intercept", *(f"c{i}" for i in range(9)))
LAYOUT = (INTERCEPT, *(Feature("numeric", name, -3.0, 3.0) for name in NAMES[1:]))
MODELS = {
    "logistic": LogisticRegression(NAMES, layout=LAYOUT, prior_sd=1.0),
    "linear": LinearRegression(NAMES, layout=LAYOUT, prior_sd=1.0),
    "poisson": PoissonRegression(NAMES, max_count=20.0, layout=LAYOUT, prior_sd=1.0),
    "softmax": SoftmaxRegression(NAMES, levels=("a", "b", "c"), layout=LAYOUT, prior_sd=1.0),
    "network": NeuralNetwork(NAMES, hidden=20),
}


def drawn(rows, seed=5):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, len(NAMES))) * rng.choice([0.1, 1.0, 30.0], (rows, 1))
    x[:, 0] = 1.0
    return {"x": x, "y": rng.integers(0, 2, rows).astype(float)}


def drawn_twice():
    parts = [drawn(4_500, seed) for seed in (0, 1)]
    return {name: jnp.stack([one[name] for one in parts]) for name in parts[0]}


def unit_spread(family):
    full = isinstance(family, FullGaussian)
    return {"covariance": np.eye(10)} if full else {"sd": np.ones(10)}


def agree(function, *arguments):
    plain, compiled = function(*arguments), jax.jit(function)(*arguments)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("agnostic", [True, False])
@pytest.mark.parametrize("rows", [1_500, 8_192])
@pytest.mark.parametrize("kind", MODELS)
def test_a_clipped_sum(kind, rows, agnostic):
    model, rng = MODELS[kind], np.random.default_rng(6)
    family, size = MeanFieldGaussian(model.dimension), model.dimension
    records = {name: jnp.asarray(value) for name, value in drawn(rows).items()}
    noise, scale = rng.standard_normal(size), np.full(size, -3.0)
    maps = {"location": np.ones(size), "information": np.ones(())}

    def summed(location, records):
        free = {"location": location, "scale": jnp.asarray(scale)}
        found = clipped_gradient(
            model, family, free, jnp.asarray(noise), records, jnp.ones(rows), jnp.asarray(1.0),
            maps, label_agnostic=agnostic,
        )  # fmt: skip
        return found.value

    agree(summed, jnp.asarray(0.3 * rng.standard_normal(size)), records)


LIKELIHOODS = {
    "bernoulli": BernoulliLikelihood(),
    "poisson": PoissonLikelihood(20.0),
    "gaussian": GaussianLikelihood(1.0),
    "categorical": CategoricalLikelihood(3),
}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_the_sums_of_private_scoring(kind):
    """For two parties in one program, as an engine asks them."""
    likelihood, rng = LIKELIHOODS[kind], np.random.default_rng(7)
    what = counted(LAYOUT, likelihood.largest, likelihood.smallest, likelihood.levels)
    asked = {
        "centre": np.zeros(10), "scale": np.ones(10), "bend": 0.1 * rng.standard_normal((8, 10)),
        "point": 0.3 * rng.standard_normal(10 * likelihood.outputs), "reach": np.array(2.0),
    }  # fmt: skip

    def sums(records, asked):
        mask, clip = jnp.ones(len(records["y"])), jnp.asarray(1.0)
        moment = moment_sum(records["x"], asked["centre"], asked["scale"], mask, clip)
        score = score_sum(likelihood, records, mask, clip, **asked)
        return counts_sum(what, records, mask, clip).value, moment.value, score.value

    agree(jax.vmap(sums, in_axes=(0, None)), drawn_twice(), asked)


@pytest.mark.parametrize("family", [FullGaussian(10), MeanFieldGaussian(10)])
def test_norms_and_sums_of_statistics(family):
    model, q = MODELS["logistic"], family.natural(mean=np.full(10, 0.2), **unit_spread(family))

    def sums(records, q):
        found = model.statistics(family, q, records, jnp.ones(len(records["y"])))
        return found.norms(), found.total(jnp.ones(len(records["y"])))

    agree(jax.vmap(sums, in_axes=(0, None)), drawn_twice(), q)


def test_a_round_of_two_parties():
    """Everything that a party does, noise included."""
    parties = {str(i): drawn(4_500, seed=i) for i in (0, 1)}
    privacy = Privacy(epsilon=50.0, delta=1e-5, insecure_noise_seed=3)
    plan = make_plan(
        MODELS["network"], parties, method=DPSGD(steps=1), privacy=privacy,
        schedule=Synchronous(rounds=1),
    )  # fmt: skip
    compiled = carry_out(plan).posterior
    with jax.disable_jit():
        plain = carry_out(plan).posterior
    np.testing.assert_allclose(compiled.mean / plain.sd, plain.mean / plain.sd, atol=0.02)
    np.testing.assert_allclose(compiled.sd, plain.sd, rtol=0.01)
