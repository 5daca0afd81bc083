"""Posterior of a Gaussian mixture: Dirichlet weights and one normal-Wishart per component.

With weights π ~ Dirichlet(α) and, for each component, Λ ~ Wishart(W, ν), μ | Λ ~ N(m, (βΛ)⁻¹)
(Bishop 2006, section 10.2),

    T(θ) = (log π, −½ μᵀΛμ, Λμ, −½Λ, ½ log|Λ|),    λ = (α − 1, β, βm, W⁻¹ + βmmᵀ, ν − d),    h = 1.

A record with responsibilities r adds r·(1, 1, x, xxᵀ, 1).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from tacit.arrays import Array, namespace, special
from tacit.expfam.base import Family, Mean, Natural
from tacit.expfam.dirichlet import Dirichlet

LOG_2, LOG_2PI = math.log(2.0), math.log(2.0 * math.pi)
NEWTON_STEPS = 100


class NormalWisharts(Family):
    """Weights, means and precision matrices of `components` normals in `width` columns.

    θ is the weights, then the means, then the precision matrices, component by component. The usual
    parameters are concentration (K,), mean (K, d), mean_precision β (K,), scale W⁻¹ (K, d, d) and
    degrees ν (K,).

    Parameters
    ----------
    components
        Number of components.
    width
        Number of columns.

    Examples
    --------
    >>> NormalWisharts(3, 2).dimension
    21
    """

    kind: ClassVar[str] = "normal-wisharts"

    def __init__(self, components: int, width: int) -> None:
        self.components, self.width = int(components), int(width)
        self.dimension = self.components * (1 + self.width + self.width**2)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        k, d = self.components, self.width
        return {
            "log": (k,),
            "count": (k,),
            "linear": (k, d),
            "quadratic": (k, d, d),
            "degrees": (k,),
        }

    def natural(
        self,
        *,
        concentration: Array,
        mean: Array,
        mean_precision: Array,
        scale: Array,
        degrees: Array,
    ) -> Natural:
        linear = mean_precision[:, None] * mean
        return {
            "log": concentration - 1.0,
            "count": mean_precision,
            "linear": linear,
            "quadratic": scale + linear[:, :, None] * mean[:, None, :],
            "degrees": degrees - self.width,
        }

    def usual(self, natural: Natural) -> dict[str, Array]:
        mean = natural["linear"] / natural["count"][:, None]
        return {
            "concentration": natural["log"] + 1.0,
            "mean": mean,
            "mean_precision": natural["count"],
            "scale": natural["quadratic"] - natural["linear"][:, :, None] * mean[:, None, :],
            "degrees": natural["degrees"] + self.width,
        }

    def parts(self, theta: Array) -> tuple[Array, Array, Array]:
        """Split θ into weights (…, K), means (…, K, d) and precision matrices (…, K, d, d)."""
        k, d = self.components, self.width
        lead = theta.shape[:-1]
        means = theta[..., k : k + k * d].reshape(*lead, k, d)
        return theta[..., :k], means, theta[..., k + k * d :].reshape(*lead, k, d, d)

    def statistics(self, theta: Array) -> Mean:
        weights, mean, precision = self.parts(theta)
        xp = namespace(theta)
        pulled = xp.einsum("...ij,...j->...i", precision, mean)
        return {
            "log": xp.log(weights),
            "count": -0.5 * xp.sum(pulled * mean, axis=-1),
            "linear": pulled,
            "quadratic": -0.5 * precision,
            "degrees": 0.5 * xp.linalg.slogdet(precision)[1],
        }

    def mean(self, natural: Natural) -> Mean:
        usual = self.usual(natural)
        xp = namespace(natural["linear"])
        m, degrees = usual["mean"], usual["degrees"]
        precision = degrees[:, None, None] * xp.linalg.inv(usual["scale"])
        pulled = xp.einsum("kij,kj->ki", precision, m)
        spread = self.width / usual["mean_precision"]
        return {
            **Dirichlet(self.components).mean({"log": natural["log"]}),
            "count": -0.5 * (spread + xp.sum(pulled * m, axis=-1)),
            "linear": pulled,
            "quadratic": -0.5 * precision,
            "degrees": 0.5 * self.log_determinant(usual["scale"], degrees),
        }

    def log_determinant(self, scale: Array, degrees: Array) -> Array:
        """Return E[log|Λ|] for the precision matrix Λ of each component."""
        halves = 0.5 * (degrees[:, None] - np.arange(self.width))
        found = special(degrees).digamma(halves).sum(axis=-1)
        return found + self.width * LOG_2 - namespace(scale).linalg.slogdet(scale)[1]

    def from_mean(self, mean: Mean) -> Natural:
        precision = -2.0 * np.asarray(mean["quadratic"])
        m = np.linalg.solve(precision, np.asarray(mean["linear"])[..., None])[..., 0]
        pull = np.sum(np.asarray(mean["linear"]) * m, axis=-1)
        count = self.width / (-2.0 * np.asarray(mean["count"]) - pull)
        gap = np.linalg.slogdet(precision)[1] - 2.0 * np.asarray(mean["degrees"])
        degrees = np.array([self._degrees(float(one)) for one in gap])
        scale = degrees[:, None, None] * np.linalg.inv(precision)
        weights = Dirichlet(self.components).from_mean({"log": mean["log"]})
        return self.natural(
            concentration=weights["log"] + 1.0,
            mean=m,
            mean_precision=count,
            scale=scale,
            degrees=degrees,
        )

    def _degrees(self, gap: float) -> float:
        """Return the degrees of freedom ν of a Wishart matrix Λ for which log|E[Λ]| − E[log|Λ|] =
        `gap`.

        The left side decreases from ∞ to 0 as ν grows, so there is exactly one ν.
        """
        from scipy.optimize import brentq
        from scipy.special import digamma

        d = self.width

        def excess(log_more: float) -> float:
            degrees = d - 1.0 + math.exp(log_more)
            halves = 0.5 * (degrees - np.arange(d))
            return d * math.log(0.5 * degrees) - float(np.sum(digamma(halves))) - gap

        found: Any = brentq(excess, -30.0, 40.0, xtol=1e-14)
        return d - 1.0 + math.exp(found)

    def log_partition(self, natural: Natural) -> Array:
        usual = self.usual(natural)
        d, degrees, scale = self.width, usual["degrees"], usual["scale"]
        xp, sp = namespace(scale), special(scale)
        halves = 0.5 * (degrees[:, None] - np.arange(d))
        wishart = (
            0.5 * d * LOG_2 * degrees
            + 0.25 * d * (d - 1) * math.log(math.pi)
            + sp.gammaln(halves).sum(axis=-1)
            - 0.5 * degrees * xp.linalg.slogdet(scale)[1]
        )
        normal = 0.5 * d * (LOG_2PI - xp.log(usual["mean_precision"]))
        weights = Dirichlet(self.components).log_partition({"log": natural["log"]})
        return weights + xp.sum(wishart + normal)

    def expected_log_base(self, natural: Natural) -> Array:
        del natural
        return 0.0

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        """Draw θ, with precision matrices by Bartlett's decomposition of the Wishart
        distribution.
        """
        import jax
        import jax.numpy as jnp

        usual = {name: jnp.asarray(value) for name, value in self.usual(natural).items()}
        k, d = self.components, self.width
        for_weights, for_squares, for_rest, for_means = jax.random.split(key, 4)
        weights = jax.random.dirichlet(for_weights, usual["concentration"], shape, dtype=np.float64)
        halves = 0.5 * (usual["degrees"][:, None] - jnp.arange(d))
        squares = 2.0 * jax.random.gamma(for_squares, halves, (*shape, k, d), dtype=np.float64)
        below = jnp.tril(jax.random.normal(for_rest, (*shape, k, d, d), np.float64), -1)
        bartlett = below + jnp.sqrt(squares)[..., None] * jnp.eye(d)
        # W = (W⁻¹)⁻¹ = L⁻ᵀL⁻¹ with W⁻¹ = LLᵀ, so that L⁻ᵀ is a root of W.
        root = jnp.linalg.cholesky(usual["scale"])
        upper = jnp.swapaxes(jnp.linalg.inv(root), -1, -2)
        factor = jnp.einsum("kij,...kjl->...kil", upper, bartlett)
        precision = jnp.einsum("...ij,...lj->...il", factor, factor)
        noise = jax.random.normal(for_means, (*shape, k, d), np.float64)
        turned = jnp.linalg.solve(jnp.swapaxes(factor, -1, -2), noise[..., None])[..., 0]
        means = usual["mean"] + turned / jnp.sqrt(usual["mean_precision"])[:, None]
        lead = (*shape, -1)
        parts = [weights, means.reshape(lead), precision.reshape(lead)]
        return jnp.concatenate(parts, axis=-1)

    def is_proper(self, natural: Natural) -> bool:
        if not all(np.all(np.isfinite(value)) for value in natural.values()):
            return False
        if np.any(natural["count"] <= 0) or np.any(natural["degrees"] <= -1):
            return False
        if not Dirichlet(self.components).is_proper({"log": natural["log"]}):
            return False
        with np.errstate(all="ignore"):
            scale = np.asarray(self.usual(natural)["scale"])
            try:
                np.linalg.cholesky(0.5 * (scale + np.swapaxes(scale, -1, -2)))
            except np.linalg.LinAlgError:
                return False
        return True

    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        """Return mean and standard deviation of every entry of θ.

        The mean of a component has a standard deviation only if its degrees of freedom exceed
        `width` + 1.
        """
        usual = self.usual(natural)
        xp = namespace(natural["linear"])
        d, degrees = self.width, usual["degrees"]
        weights, weights_sd = Dirichlet(self.components).location_scale({"log": natural["log"]})
        free = xp.maximum(degrees - d - 1.0, 1e-9)
        diagonal = xp.diagonal(usual["scale"], axis1=-2, axis2=-1)
        means_sd = xp.sqrt(diagonal / (usual["mean_precision"] * free)[:, None])
        inverse = xp.linalg.inv(usual["scale"])
        own = xp.diagonal(inverse, axis1=-2, axis2=-1)
        variance = xp.square(inverse) + own[:, :, None] * own[:, None, :]
        precision = degrees[:, None, None] * inverse
        precision_sd = xp.sqrt(degrees[:, None, None] * variance)
        location = [weights, usual["mean"].reshape(-1), precision.reshape(-1)]
        scale = [weights_sd, means_sd.reshape(-1), precision_sd.reshape(-1)]
        return xp.concatenate(location), xp.concatenate(scale)

    def __repr__(self) -> str:
        return f"NormalWisharts({self.components}, {self.width})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NormalWisharts) and self.shapes == other.shapes

    def __hash__(self) -> int:
        return hash((type(self), self.components, self.width))
