"""The prior at the server: any differentiable density, and the posterior that it gives.

A Gaussian prior is exact. Any other one meets the Gaussian likelihood of the scores in a
variational Gaussian q: its natural gradient uses E_q[∇log p] and E_q[∇²log p] over fixed
antithetic draws, and a step is taken only if the free energy does not rise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tacit.models import Model
from tacit.support.compiler import jax, jnp

DRAWS = 64
STEPS = 100
STILL = 1e-6


class Local(NamedTuple):
    """∇log p at a point, and a positive definite precision there."""

    gradient: np.ndarray
    precision: np.ndarray


class PriorTerm:
    """log p(θ) of a model, with a Gaussian of about its location and scale."""

    def __init__(self, model: Model, mean: np.ndarray, precision: np.ndarray) -> None:
        """`mean` and diagonal `precision` are the prior's, or those of its stand-in."""
        self.model, self.mean, self.precision = model, mean, precision
        self.exact = not model.has_site_prior
        normal = np.random.default_rng(0x5C0E).standard_normal((DRAWS, len(mean)))
        normal = normal / np.sqrt(np.mean(np.square(normal), axis=0))
        self.draws = np.concatenate([normal, -normal])
        self._run: Any = None

    def local(self, point: np.ndarray) -> Local:
        """Of the Gaussian, for the way to the mode.

        The exact density may have no mode there: that of a hierarchy grows without bound where all
        groups are alike and their spread goes to 0, as it is where a fit starts.
        """
        return Local(self.precision * (self.mean - point), np.diag(self.precision))

    def posterior(
        self, information: np.ndarray, linear: np.ndarray, start: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and precision of q ∝ p(θ) exp(linear·θ − ½ θᵀ information θ)."""
        if self.exact:
            precision = information + np.diag(self.precision)
            return np.linalg.solve(precision, linear + self.precision * self.mean), precision
        precision = _symmetric(information + np.diag(self.precision))
        return self._variational(information, linear, start, precision)

    def _variational(
        self, information: np.ndarray, linear: np.ndarray, mean: np.ndarray, precision: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        least = 1e-3 * self.precision  # keeps q proper where log p is not concave
        best, gradient, hessian = self._energy(information, linear, mean, precision)
        rate = 0.5
        for _ in range(STEPS):
            wanted = _symmetric(information - hessian)
            values, vectors = np.linalg.eigh(_scaled(wanted, np.diagonal(precision)))
            scale = np.sqrt(np.diagonal(precision))
            wanted = np.outer(scale, scale) * ((vectors * np.maximum(values, 0.05)) @ vectors.T)
            wanted = wanted + np.diag(least)
            following = (1.0 - rate) * precision + rate * wanted
            pull = linear - information @ mean + gradient
            moved = mean + rate * np.linalg.solve(following, pull)
            energy, new_gradient, new_hessian = self._energy(information, linear, moved, following)
            if not energy <= best + 1e-9 * (1.0 + abs(best)):
                rate *= 0.5
                if rate < 1e-3:
                    break
                continue
            gained = best - energy
            mean, precision, best = moved, _symmetric(following), energy
            gradient, hessian = new_gradient, new_hessian
            if gained < STILL and rate >= 0.5:
                break
            rate = min(1.0, 1.5 * rate)
        return mean, precision

    def _energy(
        self, information: np.ndarray, linear: np.ndarray, mean: np.ndarray, precision: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Negative free energy of q up to a constant, E_q[∇log p] and E_q[∇²log p]."""
        try:
            factor = np.linalg.cholesky(precision)
        except np.linalg.LinAlgError:
            return np.inf, mean, precision
        covariance = np.linalg.inv(precision)
        points = mean + np.linalg.solve(factor.T, self.draws.T).T
        values, gradients, hessians = self._evaluated(points)
        quadratic = linear @ mean - 0.5 * (
            mean @ information @ mean + np.sum(information * covariance)
        )
        entropy = -np.sum(np.log(np.diagonal(factor)))
        energy = -(float(np.mean(values)) + quadratic + entropy)
        energy = energy if np.isfinite(energy) else np.inf
        return energy, np.mean(gradients, axis=0), np.mean(hessians, axis=0)

    def _evaluated(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self._run is None:
            log_prior = self.model.log_prior

            def one(theta: Any) -> Any:
                value, gradient = jax.value_and_grad(log_prior)(theta)
                return value, gradient, jax.hessian(log_prior)(theta)

            self._run = jax.jit(jax.vmap(one))
        found = self._run(jnp.asarray(points))
        return tuple(np.asarray(value, np.float64) for value in found)  # pyright: ignore


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)


def _scaled(matrix: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """With rows and columns in units of 1/√diagonal."""
    scale = 1.0 / np.sqrt(diagonal)
    return _symmetric(np.outer(scale, scale) * matrix)
