"""Gaussian families: mean-field and full covariance.

    T(θ) = (θ, θ²)   λ = (Λμ, −½Λ)     Λ diagonal   (`MeanFieldGaussian`)
    T(θ) = (θ, θθᵀ)  λ = (Λμ, −½Λ)     Λ a matrix   (`FullGaussian`)

Both also have *free* parameters (a location and an unconstrained scale) in which gradient methods
can move without leaving the family.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np

from tacit.arrays import Array, cholesky, namespace, solve_lower
from tacit.expfam.base import Family, Mean, Natural

LOG_2PI = float(np.log(2 * np.pi))
Free = dict[str, Array]


class Gaussian(Family):
    """Base class of the two Gaussian families, with θ ∈ ℝᵈ and the base measure h(θ) =
    (2π)^(−d/2).
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = int(dimension)

    def expected_log_base(self, natural: Natural) -> Array:
        return -0.5 * self.dimension * LOG_2PI

    @abc.abstractmethod
    def covariance(self, natural: Natural) -> Array:
        """Return the covariance matrix of θ."""

    @abc.abstractmethod
    def free(self, natural: Natural) -> Free:
        """Convert natural parameters to free parameters: a location and an unconstrained scale."""

    @abc.abstractmethod
    def from_free(self, free: Free) -> Natural:
        """Convert free parameters to natural parameters."""

    @abc.abstractmethod
    def free_entropy(self, free: Free) -> Array:
        """Return the entropy of the q with these free parameters, up to a constant."""

    @abc.abstractmethod
    def free_inner(self, free: Free, natural: Natural) -> Array:
        """Return ⟨λ, E_q[T]⟩ for the q with these free parameters.

        λ is `natural`, which may be improper.
        """

    @abc.abstractmethod
    def free_draw(self, free: Free, noise: Array) -> Array:
        """Transform standard normal noise of shape (…, d) to draws of θ from the q with these free
        parameters.
        """

    @abc.abstractmethod
    def free_project(self, free: Free, directions: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of x·θ under the q with these free parameters, for each
        row x of `directions`.
        """

    @abc.abstractmethod
    def free_root(self, free: Free) -> Array:
        """Return the matrix L such that location + L·z has the distribution q if z is standard
        normal.

        A diagonal L is returned as the vector of its diagonal.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dimension})"


class MeanFieldGaussian(Gaussian):
    """Independent normals.

    Parameters
    ----------
    dimension
        Number of coordinates of θ.

    Examples
    --------
    >>> family = MeanFieldGaussian(2)
    >>> prior = family.natural(mean=np.zeros(2), sd=np.array([1.0, 2.0]))
    >>> family.usual(prior)["sd"]
    array([1., 2.])
    """

    kind: ClassVar[str] = "mean-field"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"linear": (self.dimension,), "quadratic": (self.dimension,)}

    def natural(self, *, mean: Array, sd: Array) -> Natural:
        precision = 1.0 / (sd * sd)
        return {"linear": precision * mean, "quadratic": -0.5 * precision}

    def usual(self, natural: Natural) -> dict[str, Array]:
        variance = -0.5 / natural["quadratic"]
        return {
            "mean": variance * natural["linear"],
            "sd": namespace(variance).sqrt(variance),
        }

    def statistics(self, theta: Array) -> Mean:
        return {"linear": theta, "quadratic": theta * theta}

    def mean(self, natural: Natural) -> Mean:
        variance = -0.5 / natural["quadratic"]
        location = variance * natural["linear"]
        return {"linear": location, "quadratic": location * location + variance}

    def from_mean(self, mean: Mean) -> Natural:
        location = mean["linear"]
        variance = mean["quadratic"] - location * location
        return {"linear": location / variance, "quadratic": -0.5 / variance}

    def log_partition(self, natural: Natural) -> Array:
        linear, quadratic = natural["linear"], natural["quadratic"]
        xp = namespace(linear, quadratic)
        return xp.sum(-(linear * linear) / (4.0 * quadratic) - 0.5 * xp.log(-2.0 * quadratic))

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        import jax

        usual = self.usual(natural)
        noise = jax.random.normal(key, (*shape, self.dimension), dtype=np.float64)
        return usual["mean"] + usual["sd"] * noise

    def is_proper(self, natural: Natural) -> bool:
        linear, quadratic = natural["linear"], natural["quadratic"]
        return bool(
            np.all(np.isfinite(linear)) and np.all(np.isfinite(quadratic)) and np.all(quadratic < 0)
        )

    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        usual = self.usual(natural)
        return usual["mean"], usual["sd"]

    def covariance(self, natural: Natural) -> Array:
        return np.diag(-0.5 / np.asarray(natural["quadratic"]))

    # Free parameters: location m and log-scale s.

    def free(self, natural: Natural) -> Free:
        usual = self.usual(natural)
        return {"location": usual["mean"], "scale": namespace(usual["sd"]).log(usual["sd"])}

    def from_free(self, free: Free) -> Natural:
        return self.natural(mean=free["location"], sd=namespace(free["scale"]).exp(free["scale"]))

    def free_entropy(self, free: Free) -> Array:
        return namespace(free["scale"]).sum(free["scale"])

    def free_inner(self, free: Free, natural: Natural) -> Array:
        xp = namespace(free["scale"])
        second = free["location"] ** 2 + xp.exp(2.0 * free["scale"])
        return xp.sum(natural["linear"] * free["location"] + natural["quadratic"] * second)

    def free_draw(self, free: Free, noise: Array) -> Array:
        return free["location"] + namespace(free["scale"]).exp(free["scale"]) * noise

    def free_project(self, free: Free, directions: Array) -> tuple[Array, Array]:
        variance = namespace(free["scale"]).exp(2.0 * free["scale"])
        return directions @ free["location"], (directions * directions) @ variance

    def free_root(self, free: Free) -> Array:
        return namespace(free["scale"]).exp(free["scale"])


class FullGaussian(Gaussian):
    """A multivariate normal.

    Parameters
    ----------
    dimension
        Number of coordinates of θ.

    Examples
    --------
    >>> family = FullGaussian(2)
    >>> prior = family.natural(mean=np.ones(2), covariance=np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> np.round(family.usual(prior)["covariance"], 12)
    array([[2., 1.],
           [1., 2.]])
    """

    kind: ClassVar[str] = "full"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"linear": (self.dimension,), "quadratic": (self.dimension, self.dimension)}

    def natural(self, *, mean: Array, covariance: Array) -> Natural:
        precision = _inverse(covariance)
        return {"linear": precision @ mean, "quadratic": -0.5 * precision}

    def usual(self, natural: Natural) -> dict[str, Array]:
        covariance = _inverse(-2.0 * natural["quadratic"])
        return {"mean": covariance @ natural["linear"], "covariance": covariance}

    def statistics(self, theta: Array) -> Mean:
        return {"linear": theta, "quadratic": theta[..., :, None] * theta[..., None, :]}

    def mean(self, natural: Natural) -> Mean:
        usual = self.usual(natural)
        location = usual["mean"]
        return {
            "linear": location,
            "quadratic": usual["covariance"] + location[:, None] * location[None, :],
        }

    def from_mean(self, mean: Mean) -> Natural:
        location = mean["linear"]
        return self.natural(
            mean=location, covariance=mean["quadratic"] - location[:, None] * location[None, :]
        )

    def log_partition(self, natural: Natural) -> Array:
        factor = namespace(natural["quadratic"]).linalg.cholesky(-2.0 * natural["quadratic"])
        xp = namespace(factor)
        white = solve_lower(factor, natural["linear"])
        return 0.5 * xp.sum(white * white) - xp.sum(xp.log(xp.diagonal(factor)))

    def sample(self, key: Array, natural: Natural, shape: tuple[int, ...] = ()) -> Array:
        import jax
        import jax.numpy as jnp

        usual = self.usual(natural)
        factor = jnp.linalg.cholesky(jnp.asarray(usual["covariance"]))
        noise = jax.random.normal(key, (*shape, self.dimension), dtype=np.float64)
        return usual["mean"] + noise @ factor.T

    def is_proper(self, natural: Natural) -> bool:
        linear, quadratic = np.asarray(natural["linear"]), np.asarray(natural["quadratic"])
        if not (np.all(np.isfinite(linear)) and np.all(np.isfinite(quadratic))):
            return False
        precision = -(quadratic + quadratic.T)
        try:
            pivots = np.diagonal(np.linalg.cholesky(precision)) ** 2
        except np.linalg.LinAlgError:
            return False
        # A singular matrix can pass by rounding; its pivots are then rounding errors.
        least = self.dimension * np.finfo(np.float64).eps * np.diagonal(precision)
        return bool(np.all(pivots > least))

    def location_scale(self, natural: Natural) -> tuple[Array, Array]:
        usual = self.usual(natural)
        covariance = usual["covariance"]
        return usual["mean"], namespace(covariance).sqrt(namespace(covariance).diagonal(covariance))

    def covariance(self, natural: Natural) -> Array:
        return self.usual(natural)["covariance"]

    # Free parameters: location m and a matrix whose strict lower triangle is that of the
    # Cholesky factor and whose diagonal is the factor's log-diagonal.

    def free(self, natural: Natural) -> Free:
        usual = self.usual(natural)
        factor = cholesky(usual["covariance"])
        xp, on_diagonal = namespace(factor), _on_diagonal(factor)
        logs = xp.log(xp.where(on_diagonal, factor, 1.0))
        return {"location": usual["mean"], "scale": xp.where(on_diagonal, logs, factor)}

    def from_free(self, free: Free) -> Natural:
        precision = _inverse_of_product(self._factor(free))
        return {"linear": precision @ free["location"], "quadratic": -0.5 * precision}

    def free_entropy(self, free: Free) -> Array:
        xp = namespace(free["scale"])
        return xp.sum(xp.where(_on_diagonal(free["scale"]), free["scale"], 0.0))

    def free_inner(self, free: Free, natural: Natural) -> Array:
        location, factor = free["location"], self._factor(free)
        xp = namespace(factor)
        quadratic = natural["quadratic"]
        return (
            natural["linear"] @ location
            + location @ quadratic @ location
            + xp.sum(factor * (quadratic @ factor))
        )

    def free_draw(self, free: Free, noise: Array) -> Array:
        return free["location"] + noise @ self._factor(free).T

    def free_project(self, free: Free, directions: Array) -> tuple[Array, Array]:
        spread = directions @ self._factor(free)
        return directions @ free["location"], namespace(spread).sum(spread * spread, axis=-1)

    def free_root(self, free: Free) -> Array:
        return self._factor(free)

    def _factor(self, free: Free) -> Array:
        scale = free["scale"]
        xp, on_diagonal = namespace(scale), _on_diagonal(scale)
        diagonal = xp.sum(xp.where(on_diagonal, scale, 0.0), axis=-1)
        return xp.where(on_diagonal, xp.exp(diagonal)[:, None], xp.tril(scale, -1))


def _on_diagonal(matrix: Array) -> Array:
    """Return a mask that is True on the diagonal of a square matrix.

    `xp.where` with this mask compiles to much less code than extracting and reinserting a diagonal.
    The mask is made with `arange`, because the compiler unrolls constants.
    """
    counting = namespace(matrix).arange(matrix.shape[0])
    return counting[:, None] == counting


def _inverse(matrix: Array) -> Array:
    """Return the exactly symmetric inverse of a symmetric positive-definite matrix."""
    return _inverse_of_product(cholesky(0.5 * (matrix + matrix.T)))


def _inverse_of_product(factor: Array) -> Array:
    """Return (LLᵀ)⁻¹, where L is the lower-triangular `factor`."""
    inverse = solve_lower(factor, _on_diagonal(factor).astype(factor.dtype))
    return inverse.T @ inverse
