"""Checks of models with effects that can be standardised (`HasEffects`)."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tacit.models.capabilities import HasEffects
from tacit.testing.comparisons import expect_at_most
from tacit.testing.models import Subject

ROUNDING = 1e-7


def check_effects(subject: Subject) -> None:
    """Check that `standardised` and `unstandardised` are inverse maps, that the log-determinant is
    that of the Jacobian, and that `standardised_slopes` is the gradient.
    """
    model, thetas = subject.model, np.asarray(subject.thetas[:2], np.float64)
    assert isinstance(model, HasEffects)
    size = thetas.shape[1]
    rng = np.random.default_rng(0)
    for chosen in (np.zeros(size, bool), np.ones(size, bool), rng.random(size) < 0.5):
        _check_choice(model, thetas, chosen, rng.standard_normal(thetas.shape))


def _check_choice(
    model: HasEffects, thetas: np.ndarray, chosen: np.ndarray, slopes: np.ndarray
) -> None:
    psis = np.asarray(model.standardised(thetas, chosen)[0])
    back, log_det = (np.asarray(one) for one in model.unstandardised(psis, chosen))
    expect_at_most("unstandardised(standardised(θ)) − θ", _apart(back, thetas), ROUNDING)

    def part(psi: jax.Array, number: int) -> jax.Array:
        return model.unstandardised(psi[None], chosen)[number][0]

    at = jnp.asarray(psis)
    jacobian = np.asarray(jax.vmap(jax.jacfwd(partial(part, number=0)))(at))
    exact = np.linalg.slogdet(jacobian)[1]
    expect_at_most("log|dθ/dψ| − log-determinant", _apart(log_det, exact), ROUNDING)
    curved = np.asarray(jax.vmap(jax.grad(partial(part, number=1)))(at))
    pulled = np.einsum("nij,ni->nj", jacobian, slopes) + curved
    found = np.asarray(model.standardised_slopes(psis, slopes, chosen))
    expect_at_most("standardised_slopes − gradient", _apart(found, pulled), ROUNDING)


def _apart(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(found - exact) / (1.0 + np.abs(exact))))
