"""Sums of products become matrix products, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.methods.natural.products import with_matrix_products

X = np.random.default_rng(0).normal(size=(7, 3))
W = np.array([0.5, -1.0, 2.0])

WAYS = {
    "x times w": lambda w, x: (x * w).sum(-1),
    "w times x": lambda w, x: jnp.sum(w[None, :] * x, axis=1),
    "inside a compiled function": lambda w, x: jax.jit(lambda a, b: (a * b).sum(1))(x, w),
}
OTHERS = {
    "matrix product": lambda w, x: x @ w,
    "a sum of squares": lambda w, x: jnp.sum((x * w) ** 2, axis=1),
    "over records": lambda w, x: jnp.sum(x * w, axis=0),
    "of two matrices": lambda w, x: jnp.sum(x * jnp.tanh(x * w), axis=1),
    "a column": lambda w, x: jnp.sum(x[:, :1] * w[:1], axis=1) + jnp.sum(x * w[0], axis=1),
    "custom derivatives": lambda w, x: jax.nn.logsumexp(x * w, axis=1) + jax.nn.softplus(x @ w),
    "a loop": lambda w, x: jax.lax.map(lambda row: jnp.sum(row * w), jnp.asarray(x)),
}


def primitives(function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments))


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_of_products_is_a_matrix_product(way):
    assert "dot_general" not in primitives(WAYS[way], W, X)
    assert "dot_general" in primitives(with_matrix_products(WAYS[way]), W, X)


@pytest.mark.parametrize("way", [*WAYS, *OTHERS])
def test_values_and_derivatives_stay_the_same(way):
    function = (WAYS | OTHERS)[way]
    other = with_matrix_products(function)
    np.testing.assert_allclose(other(W, X), function(W, X), rtol=1e-12)

    def total(each):
        return lambda w: jnp.sum(jnp.sin(each(w, X)))

    for one, two in zip(
        jax.value_and_grad(total(function))(W), jax.value_and_grad(total(other))(W), strict=True
    ):
        np.testing.assert_allclose(two, one, rtol=1e-10, atol=1e-12)
