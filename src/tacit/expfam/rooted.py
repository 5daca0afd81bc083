"""A multivariate normal that stores its mean and a root of its covariance as additional arrays.

Natural parameters contain the precision matrix. In float64 this matrix cannot represent directions
whose standard deviation is 10⁸ times that of others, because its condition number is the square of
that of a root. A result therefore stores the mean and a lower-triangular root L with covariance
LLᵀ. It may also store importance weights of draws from N(mean, LLᵀ)
(`tacit.expfam.quadrature.weighing_draws`) against the exact posterior. With `weighted` = 1, moments
and samples are those of the weighted draws. Draws from a different proposal distribution are stored
as `draws`, or as `more_draws` if there are more of them; mean and root are then the moments of
these weighted draws.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from tacit.arrays import Array, Natural, namespace, solve_lower
from tacit.expfam.gaussian import Free, FullGaussian, _on_diagonal
from tacit.expfam.quadrature import many_draws, weighing_draws


def stored_for(
    shapes: dict[str, tuple[int, ...]], names: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Return those of `RootedGaussian.stored_shapes` that a result with arrays of these names has.

    A result has either more draws with their weights, or weights and possibly draws.
    """
    if "more_draws" in names:
        return {name: one for name, one in shapes.items() if name not in ("draws", "log_weights")}
    absent = ("more_draws", "more_log_weights") + (() if "draws" in names else ("draws",))
    return {name: one for name, one in shapes.items() if name not in absent}


class RootedGaussian(FullGaussian):
    """A `FullGaussian` for results, which may also store a mean, a root and importance weights.

    These additional arrays are not natural parameters. They must not be added when densities are
    multiplied.

    Parameters
    ----------
    dimension
        Number of coordinates of θ.
    """

    def __repr__(self) -> str:
        return f"FullGaussian({self.dimension})"

    @property
    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays that may be stored in addition to the natural parameters."""
        return {
            "mean": (self.dimension,),
            "root": (self.dimension, self.dimension),
            "log_weights": (len(weighing_draws(self.dimension)),),
            "weighted": (),
            "draws": (len(weighing_draws(self.dimension)), self.dimension),
            "more_log_weights": (many_draws(self.dimension),),
            "more_draws": (many_draws(self.dimension), self.dimension),
        }

    def draws(self, natural: Natural) -> tuple[np.ndarray, np.ndarray] | None:
        """Return weighted draws of θ as (draws, weights); None if q itself is the result."""
        if not natural["weighted"]:
            return None
        if "more_draws" in natural:
            weights = np.exp(natural["more_log_weights"])
            return natural["more_draws"], weights / np.sum(weights)
        weights = np.exp(natural["log_weights"])
        if "draws" in natural:
            return natural["draws"], weights / np.sum(weights)
        theta = natural["mean"] + weighing_draws(self.dimension) @ natural["root"].T
        return theta, weights / np.sum(weights)

    def moments(self, natural: Natural) -> tuple[Any, Any]:
        """Return the mean of θ and a lower-triangular root of its covariance.

        If the result has weighted draws, these are the moments of the weighted draws.
        """
        weighted = self.draws(natural)
        if weighted is None or "draws" in natural or "more_draws" in natural:
            return natural["mean"], natural["root"]
        z, weights = weighing_draws(self.dimension), weighted[1]
        centre = weights @ z
        covariance = ((z - centre) * weights[:, None]).T @ (z - centre)
        root = natural["root"] @ np.linalg.cholesky(covariance)
        return natural["mean"] + natural["root"] @ centre, root

    def usual(self, natural: Natural) -> dict[str, Array]:
        if "root" not in natural:
            return super().usual(natural)
        mean, root = self.moments(natural)
        return {"mean": mean, "covariance": root @ root.T}

    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        if "root" not in natural:
            return super().location_scale(natural)
        mean, root = self.moments(natural)
        return mean, np.sqrt(np.sum(np.square(root), axis=1))

    def free(self, natural: Natural) -> Free:
        if "root" not in natural:
            return super().free(natural)
        mean, root = self.moments(natural)
        xp, on_diagonal = namespace(root), _on_diagonal(root)
        logs = xp.log(xp.where(on_diagonal, root, 1.0))
        return {"location": mean, "scale": xp.where(on_diagonal, logs, root)}

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        import jax
        import jax.numpy as jnp

        weighted = self.draws(natural)
        if weighted is None:
            noise = jax.random.normal(key, (*shape, self.dimension), dtype=np.float64)
            return jnp.asarray(natural["mean"]) + noise @ jnp.asarray(natural["root"]).T
        theta, weights = weighted
        return jax.random.choice(key, jnp.asarray(theta), shape, p=jnp.asarray(weights), axis=0)

    def kl(self, first: Natural, second: Natural) -> Array:
        """Return the KL divergence of the two normals, computed from mean and root if both store
        them.
        """
        if "root" not in first or "root" not in second:
            return super().kl(first, second)
        (mean, root), (other, other_root) = self.moments(first), self.moments(second)
        ratio = solve_lower(other_root, root)
        shift = solve_lower(other_root, mean - other)
        logs = np.sum(np.log(np.diagonal(root) / np.diagonal(other_root)))
        return 0.5 * (np.sum(ratio * ratio) + shift @ shift - self.dimension) - logs
