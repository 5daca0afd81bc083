"""Formulas for two array libraries: what NumPy computes here is what a library computes."""

import numpy as np
import pytest
from scipy.linalg import solve_triangular

from tacit.arrays import softplus, solve_lower


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 70])
def test_triangular_systems_are_solved_as_by_lapack(size):
    rng = np.random.default_rng(size)
    scale = 10.0 ** rng.integers(-6, 7, size)  # rows of very different size
    draws = rng.normal(size=(3 * size + 2, size))
    factor = scale[:, None] * np.linalg.cholesky(draws.T @ draws)
    for right in (rng.normal(size=size), np.eye(size)):
        right = (scale * right.T).T
        found, expected = solve_lower(factor, right), solve_triangular(factor, right, lower=True)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_systems_without_a_solution_are_refused():
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        solve_lower(np.tril(np.ones((2, 2)) - np.diag([0.0, 1.0])), np.ones(2))
    with pytest.raises(ValueError, match="not finite"):
        solve_lower(np.eye(2), np.array([0.0, np.nan]))
    with pytest.raises(ValueError, match="not finite"):
        solve_lower(np.diag([1.0, np.inf]), np.ones(2))


def test_softplus_neither_overflows_nor_loses_digits():
    import jax.numpy as jnp

    values = np.array([-1e300, -800.0, -40.0, -1e-9, 0.0, 1e-9, 40.0, 800.0, 1e300])
    np.testing.assert_allclose(softplus(values), softplus(jnp.asarray(values)), rtol=1e-15)
    assert softplus(values)[2] == pytest.approx(np.exp(-40.0), rel=1e-15)
