"""Distance of a Gaussian q from a stationary point of the free energy, in nats.

Let x be the records, q = N(m, S), g = E_q[∇ log p(x, θ)] and H = E_q[∇² log p(x, θ)]. A full
natural-gradient step leads from q to a normal with precision −H and mean m + (−H)⁻¹g; for a
mean-field q only the diagonal of −H is used as precision. The size of this step is

    ½ gᵀ(−H)⁻¹g + KL,

where KL is the divergence that the normals before and after the step would have if their means were
equal. The size does not depend on the units of θ, and is 0 at an optimum. g and H are averages over
antithetic pairs of draws. With many coordinates, S replaces (−H)⁻¹ and KL is omitted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tacit.expfam import FullGaussian, Gaussian, Natural
from tacit.models import Model, Records

PAIRS = 32
HESSIAN_PAIRS = 4
HESSIAN_UP_TO = 64
"""Largest number of coordinates for which the Hessian is computed."""


def gradient_step(
    model: Model, family: Gaussian, q: Natural, parties: dict[str, Records], *, seed: int = 0
) -> float:
    """Compute the size of a full natural-gradient step from q, in nats (see the module docstring).

    The result is infinite if the free energy is not convex at q.
    """
    import jax
    import jax.numpy as jnp

    log_joint = _log_joint(model, family, parties)
    mean = np.asarray(family.location_scale(q)[0])
    covariance = np.asarray(family.covariance(q))
    noise = np.random.default_rng(seed).normal(size=(PAIRS, family.dimension))
    noise = np.concatenate([noise, -noise])
    draws = jnp.asarray(mean + noise @ np.linalg.cholesky(covariance).T)
    slope = np.mean(jax.lax.map(jax.grad(log_joint), draws), axis=0)
    if not np.all(np.isfinite(slope)):
        return float("inf")
    if family.dimension > HESSIAN_UP_TO:
        return 0.5 * float(slope @ covariance @ slope)
    few = jnp.concatenate([draws[:HESSIAN_PAIRS], draws[PAIRS : PAIRS + HESSIAN_PAIRS]])
    bend = -np.mean(jax.lax.map(jax.hessian(log_joint), few), axis=0)
    bend = 0.5 * (bend + bend.T)
    try:
        np.linalg.cholesky(bend)
    except np.linalg.LinAlgError:
        return float("inf")
    move = 0.5 * float(slope @ np.linalg.solve(bend, slope))
    if isinstance(family, FullGaussian):
        ratios = np.linalg.eigvals(covariance @ bend).real
    else:
        ratios = np.diagonal(covariance) * np.diagonal(bend)
    return move + 0.5 * float(np.sum(1.0 / ratios - 1.0 + np.log(ratios)))


def _log_joint(model: Model, family: Gaussian, parties: dict[str, Records]) -> Callable:
    """Return the function from θ to log p(x, θ) over all parties' records x, up to a constant."""
    import jax.numpy as jnp

    first = next(iter(parties.values()))
    records = {
        name: jnp.asarray(np.concatenate([np.asarray(one[name]) for one in parties.values()]))
        for name in first
    }
    prior = None if model.has_site_prior else model.prior(family)

    def log_joint(theta):
        fit = jnp.sum(model.log_likelihood(theta, records))
        if prior is None:
            return fit + model.log_prior(theta)
        statistics = family.statistics(theta)
        return fit + sum(jnp.sum(prior[name] * statistics[name]) for name in prior)

    return log_joint
