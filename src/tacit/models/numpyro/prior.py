"""The prior of a NumPyro model as independent normals in θ: exact if possible, otherwise an
approximation.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tacit.arrays import Array
from tacit.errors import ConfigError


def robust_quantiles(draws: Array, names: tuple[str, ...]) -> tuple[Array, Array]:
    """Return the median of each column of `draws`, and half the width of its central 68 % interval.
    For normal draws these are the mean and the standard deviation.
    """
    draws = np.array(draws, dtype=np.float64)
    draws[~np.isfinite(draws)] = np.nan  # a value that rounded to the edge of its support
    finite = np.mean(np.isfinite(draws), axis=0)
    if not np.all(finite > 0.5):
        raise ConfigError(
            f"most draws from the prior of '{names[int(np.argmin(finite))]}' are at the edge of "
            "its support in float64; choose a less extreme prior"
        )
    low, median, high = np.nanquantile(draws, [0.1587, 0.5, 0.8413], axis=0)
    spread = 0.5 * (high - low)
    if not np.all(spread > 0):
        raise ConfigError(
            f"the prior of '{names[int(np.argmin(spread))]}' has no spread; use a constant instead"
        )
    return median, spread


def independent_normals(
    log_prior: Callable[[Array], Array], thetas: Array
) -> tuple[Array, Array] | None:
    """Return mean and standard deviation of the prior of θ if it consists of independent normals,
    otherwise None.

    For independent normals the gradient of the log-prior is affine in θ, with a diagonal matrix.
    This affine function is computed at θ = 0 and compared with the gradient at `thetas`.
    """
    slope = jax.grad(log_prior)

    @jax.jit
    def slopes(thetas: Array) -> tuple[Array, Array, Array]:
        origin = jnp.zeros(thetas.shape[1])
        return *jax.jvp(slope, (origin,), (jnp.ones_like(origin),)), jax.vmap(slope)(thetas)

    at_zero, curvature, at_thetas = (np.asarray(value) for value in slopes(thetas))
    precision = -curvature
    if not np.all(np.isfinite(precision) & (precision > 0)):
        return None
    mean = at_zero / precision
    expected = (mean - thetas) * precision
    if not np.all(np.abs(at_thetas - expected) <= 1e-8 * (np.abs(expected) + np.sqrt(precision))):
        return None
    return mean, 1.0 / np.sqrt(precision)
