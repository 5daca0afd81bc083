"""NumPyro models whose observed sites are Poisson counts."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from tacit.arrays import Array
from tacit.models.base import Records
from tacit.models.capabilities import DispersionSums
from tacit.models.counts import PoissonVariance, poisson_sums

if TYPE_CHECKING:
    from tacit.models.numpyro.layout import Layout
    from tacit.models.numpyro.program import Program, Sites


class ComparedCounts(PoissonVariance):
    """Mixin that gives NumPyro models the abilities `ComparesCounts` and `HasImages`."""

    if TYPE_CHECKING:
        program: Program
        layout: Layout

        def _sites(self, theta: Array, records: Records) -> Sites: ...
        def log_likelihood(self, theta: Array, records: Records) -> Array: ...
        def log_prior(self, theta: Array) -> Array: ...

    @cached_property
    def observes_counts(self) -> bool:
        """True if every observed site is a Poisson count whose log-probability is not rescaled."""
        found: list[bool] = []

        def call(records: Records) -> None:
            sites, _ = self.program.run(records, key=jax.random.key(0), blank=True)
            found.extend(_rate(sites[name]) is not None for name in self.layout.observed)

        jax.eval_shape(call, self.program.blank(1))
        return all(found)

    def count_sums(self, thetas: Array, records: Records) -> DispersionSums:
        """Return the sums of `poisson_sums`, averaged over draws of θ from the posterior.

        If the model is right, a draw of θ and the records have the same joint distribution as the
        true θ and the records. Each summed term therefore has expectation 0, however uncertain θ
        is. The mean over draws varies less than the sum at a single θ, so p-values are
        conservative.
        """
        batch = self.program.batch(records)
        return DispersionSums(*self._count_sums(jnp.asarray(thetas), batch))

    @partial(jax.jit, static_argnums=0)
    def _count_sums(self, thetas: Array, records: Records) -> Array:
        def at(theta: Array) -> Array:
            total = jnp.zeros(len(DispersionSums._fields))
            sites = self._sites(theta, records)
            for name in self.layout.observed:
                rate, weights = _rate(sites[name]) or (0.0, 0.0)
                y = jnp.asarray(sites[name]["value"], jnp.float64)
                total += jnp.stack(poisson_sums(rate, y, weights))
            return total

        return jnp.mean(jax.lax.map(at, thetas), axis=0)

    @property
    def site_places(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Dict from the name of each latent site to its slice of θ and its shape."""
        return {one.name: (slice(one.start, one.stop), one.shape) for one in self.layout.latents}

    def log_joints(self, thetas: Array, records: Records) -> Array:
        """Return log p(records, θ) for each row of `thetas`."""
        return self._log_joints(jnp.asarray(thetas), self.program.batch(records))

    @partial(jax.jit, static_argnums=0)
    def _log_joints(self, thetas: Array, records: Records) -> Array:
        def at(theta: Array) -> Array:
            return self.log_prior(theta) + jnp.sum(self.log_likelihood(theta, records))

        return jax.lax.map(at, thetas)


def _rate(site: dict[str, Any]) -> tuple[Array, Array] | None:
    """Return the rates and the mask of an observed Poisson site; None for other sites."""
    fn, mask = site["fn"], jnp.ones(())
    if site["scale"] is not None:
        return None
    while not isinstance(fn, dist.Poisson):
        if isinstance(fn, dist.MaskedDistribution) and not fn.event_dim:
            mask = mask * jnp.asarray(fn._mask, jnp.float64)
        elif not isinstance(fn, dist.Independent | dist.ExpandedDistribution):
            return None
        fn = fn.base_dist
    shape = jnp.shape(site["value"])
    return jnp.broadcast_to(fn.rate, shape), jnp.broadcast_to(mask, shape)
