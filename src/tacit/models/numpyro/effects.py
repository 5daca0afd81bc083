"""Effects of a NumPyro model in standardised form, for samplers.

An effect is a latent site on the real line whose distribution has a location and a scale, such as
Normal(mean, τ). Its standardised value is e = (x − location)/scale. Given the records, τ and x
depend on each other strongly if the records say little about x, because x must be near its location
where τ is small. The dependence of τ and e is then weak. This is the non-centred parametrisation.

`standardised` maps θ to coordinates ψ in which chosen coordinates are standardised, and
`unstandardised` maps ψ back to θ. Location and scale of a site depend only on sites that the model
samples before it, so the Jacobian is triangular and log|dθ/dψ| = Σ log scale.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import IdentityTransform, IndependentTransform

from tacit.arrays import Array
from tacit.models.numpyro.program import FromUnconstrained, Latent

if TYPE_CHECKING:
    from tacit.models.numpyro.layout import Layout
    from tacit.models.numpyro.program import Program


class Standard(NamedTuple):
    """How one site is standardised."""

    scale: Array
    """Standard deviation, or scale parameter, of every element."""
    log_det: Array
    """Terms whose sum is log|dx/de| of the site; for elements that can be chosen one by one, one
    term per element.
    """
    apply: Callable[[Array], Array]
    """Maps e to x."""
    invert: Callable[[Array], Array]
    """Maps x to e."""
    jointly: bool = False
    """True if all elements along the last axis are standardised, or none."""


def standard_of(distribution: Any, shape: tuple[int, ...]) -> Standard | None:
    """Return how a site with this distribution is standardised; None if it has no location and
    scale.
    """
    if not _is_real(distribution.support):
        return None
    core: Any = distribution
    while isinstance(core, dist.ExpandedDistribution | dist.Independent):
        core = core.base_dist
    if isinstance(core, dist.MultivariateNormal):
        loc: Any = core.loc
        tril: Any = core.scale_tril
        sd = jnp.sqrt(jnp.sum(jnp.square(tril), axis=-1))
        logs = jnp.log(jnp.diagonal(tril, axis1=-2, axis2=-1))
        return Standard(
            jnp.broadcast_to(sd, shape),
            jnp.broadcast_to(logs, shape),
            lambda e: loc + jnp.einsum("...ij,...j->...i", tril, e),
            lambda x: _solved(tril, x - loc),
            jointly=True,
        )
    if not {"loc", "scale"} <= set(core.arg_constraints) or core.event_dim:
        return None
    loc, scale = core.loc, core.scale
    if jnp.broadcast_shapes(jnp.shape(loc), jnp.shape(scale), shape) != shape:
        return None
    return Standard(
        jnp.broadcast_to(scale, shape),
        jnp.log(jnp.broadcast_to(scale, shape)),
        lambda e: loc + scale * e,
        lambda x: (x - loc) / scale,
    )


def _is_real(support: Any) -> bool:
    """True if θ contains the values of a site with this support as they are."""
    transform = biject_to(support)
    while isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    return isinstance(transform, IdentityTransform)


def _solved(tril: Array, right: Array) -> Array:
    tril = jnp.broadcast_to(tril, (*right.shape, tril.shape[-1]))
    return jax.scipy.linalg.solve_triangular(tril, right[..., None], lower=True)[..., 0]


class _FromStandardised(FromUnconstrained):
    """Sets latent sites from ψ, or from θ if `inverse`, and collects the other coordinates."""

    def __init__(
        self, latents: tuple[Latent, ...], given: Array, chosen: Array, *, inverse: bool
    ) -> None:
        super().__init__(latents, given)
        self.chosen, self.inverse = chosen, inverse
        self.other, self.scales = given, jnp.full(given.shape, jnp.nan)
        self.log_scale = jnp.zeros(())

    def process_message(self, msg: Any) -> None:
        latent = self.latents.get(msg.get("name"))
        if msg["type"] == "sample" and latent is not None:
            shape = latent.shape
            standard = standard_of(msg["fn"], shape)
            if standard is not None:
                self._standardise(latent, standard, msg)
                return
        super().process_message(msg)

    def _standardise(self, latent: Latent, standard: Standard, msg: Any) -> None:
        place = slice(latent.start, latent.stop)
        chosen = self.chosen[place].reshape(latent.shape)
        if standard.jointly:
            chosen = jnp.broadcast_to(jnp.any(chosen, axis=-1, keepdims=True), latent.shape)
        assert self.theta is not None
        given = self.theta[place].reshape(latent.shape)
        mapped = (standard.invert if self.inverse else standard.apply)(given)
        mapped = jnp.where(chosen, mapped, given)
        self.other = self.other.at[place].set(mapped.reshape(-1))
        self.scales = self.scales.at[place].set(standard.scale.reshape(-1))
        self.log_scale = self.log_scale + jnp.sum(jnp.where(chosen, standard.log_det, 0.0))
        msg["value"] = given if self.inverse else mapped


class StandardisedEffects:
    """Mixin that gives NumPyro models the ability `HasEffects`."""

    if TYPE_CHECKING:
        program: Program
        layout: Layout

    def standardised(self, thetas: Array, chosen: Array) -> tuple[Array, Array]:
        """Return ψ for each row of `thetas`, and the scales of the effects (NaN for other
        coordinates). `chosen` is True for coordinates that are standardised.
        """
        one = partial(self._mapped, chosen=chosen, inverse=True)
        psi, scales, _ = jax.vmap(one)(jnp.asarray(thetas))
        return psi, scales

    def unstandardised(self, psis: Array, chosen: Array) -> tuple[Array, Array]:
        """Return θ and log|dθ/dψ| for each row of `psis`."""
        one = partial(self._mapped, chosen=chosen, inverse=False)
        theta, _, log_scale = jax.vmap(one)(jnp.asarray(psis))
        return theta, log_scale

    def standardised_slopes(self, psis: Array, slopes: Array, chosen: Array) -> Array:
        """Return the gradients in ψ of log p(θ(ψ)) + log|dθ/dψ|, given those of log p in θ."""
        return self._slopes(jnp.asarray(psis), jnp.asarray(slopes), jnp.asarray(chosen))

    @partial(jax.jit, static_argnums=0)
    def _slopes(self, psis: Array, slopes: Array, chosen: Array) -> Array:
        def pulled(psi: Array, slope: Array) -> Array:
            def paired(at: Array) -> Array:
                theta, _, log_scale = self._mapped(at, chosen=chosen, inverse=False)
                return slope @ theta + log_scale

            return jax.grad(paired)(psi)

        return jax.vmap(pulled)(psis, slopes)

    @partial(jax.jit, static_argnums=0, static_argnames="inverse")
    def _mapped(self, given: Array, *, chosen: Array, inverse: bool) -> tuple[Array, Array, Array]:
        mapping = _FromStandardised(self.layout.latents, given, chosen, inverse=inverse)
        self.program.call(self.program.blank(1), mapping, blank=True)
        return mapping.other, mapping.scales, mapping.log_scale
