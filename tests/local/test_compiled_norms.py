"""Clipped sums are the same compiled and not, for as many records as a party may have.

XLA on CPU (jaxlib 0.10.2) computes Σₖ aₖ(x² @ A)ₖ wrongly for a constant A from about 1,400 rows
on: norms came out too small, and one record could move a softmax model's sum by 68 times its claim.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.expfam import MeanFieldGaussian
from tacit.local.clipping import clipped_gradient
from tacit.models import (
    BayesianNeuralNetwork,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)

NAMES = ("bias", *(f"c{i}" for i in range(9)))
MODELS = {
    "logistic": LogisticRegression(NAMES),
    "linear": LinearRegression(NAMES),
    "poisson": PoissonRegression(NAMES, largest=20.0),
    "softmax": SoftmaxRegression(NAMES, levels=("a", "b", "c")),
    "network": BayesianNeuralNetwork(NAMES, hidden=20),
}


@pytest.mark.parametrize("agnostic", [True, False])
@pytest.mark.parametrize("rows", [1_500, 8_192])
@pytest.mark.parametrize("kind", MODELS)
def test_what_is_compiled_is_what_is_written(kind, rows, agnostic):
    model, rng = MODELS[kind], np.random.default_rng(5)
    family, size = MeanFieldGaussian(model.dimension), model.dimension
    x = rng.standard_normal((rows, len(NAMES))) * rng.choice([0.1, 1.0, 30.0], (rows, 1))
    records = {"x": jnp.asarray(x), "y": jnp.asarray(rng.integers(0, 2, rows).astype(float))}
    noise, scale = rng.standard_normal(size), np.full(size, -3.0)
    maps = {"location": np.ones(size), "information": np.ones(())}

    def summed(location, records):
        free = {"location": location, "scale": jnp.asarray(scale)}
        found = clipped_gradient(
            model, family, free, jnp.asarray(noise), records, jnp.ones(rows), jnp.asarray(1.0),
            maps, label_agnostic=agnostic,
        )  # fmt: skip
        return found.value

    location = jnp.asarray(0.3 * rng.standard_normal(size))
    plain, compiled = summed(location, records), jax.jit(summed)(location, records)
    for name, value in plain.items():
        np.testing.assert_allclose(compiled[name], value, rtol=1e-6, atol=1e-6)
